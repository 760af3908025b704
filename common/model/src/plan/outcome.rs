use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use portway_datapath::{FrontendKey, NameTooLong, Protocol, ServiceIndex, layout};

use crate::loadbalancer::ServicePortKey;

/// What a [`super::Planner::reconcile`] did.
#[derive(Debug)]
#[must_use = "failures are to be reported and retried"]
pub struct Outcome<E> {
    /// Operations that succeeded.
    pub writes: u64,
    /// What keeps its last good version. Worth a report, and a retry with backoff.
    pub failures: Vec<Failure<E>>,
    /// What goes on after the next [`super::Planner::reclaim`]: not an error.
    pub waiting: BTreeSet<Subject>,
}

impl<E> Outcome<E> {
    /// Whether the maps are what was wanted. Where they are not, reconcile again: after a reclaim where something
    /// waits, with backoff where something failed.
    pub fn is_settled(&self) -> bool {
        self.failures.is_empty() && self.waiting.is_empty()
    }
}

/// One thing that failed.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {problem}")]
pub struct Failure<E> {
    pub subject: Subject,
    /// Shown by this error, not its source.
    pub problem: Problem<E>,
}

/// What a failure is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Service(ServicePortKey),
    Frontend(FrontendKey),
    /// A service that an earlier run left and nobody wants.
    Leftover(ServiceIndex),
}

#[derive(Debug, thiserror::Error)]
pub enum Problem<E> {
    #[error("{map}: {error}")]
    Write { map: &'static str, error: E },
    /// The map is full and nothing in it is about to come free.
    #[error(transparent)]
    Full(#[from] Shortage),
    #[error(transparent)]
    Name(#[from] NameTooLong),
    #[error("belongs to {}, which does not exist", Subject::Service(.0.clone()))]
    NoService(ServicePortKey),
}

/// A map that has no room for what is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Shortage {
    pub(super) resource: Resource,
    /// How many the map has.
    pub entries: u32,
    pub used: u32,
    pub needed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Services,
    Runs,
    Backends,
    Maglev,
    SourceRanges,
    Frontends,
    Incarnations,
}

impl Shortage {
    /// The map's name.
    pub const fn map(&self) -> &'static str {
        match self.resource {
            Resource::Services => layout::SERVICES,
            Resource::Runs => layout::RUNS,
            Resource::Backends | Resource::Incarnations => layout::BACKENDS,
            Resource::Maglev => layout::MAGLEV,
            Resource::SourceRanges => layout::SOURCE_RANGES,
            Resource::Frontends => layout::FRONTENDS,
        }
    }

    /// The configuration key that makes the map larger; `None` where none does.
    pub const fn size_key(&self) -> Option<&'static str> {
        match self.resource {
            Resource::Services => Some("bpf-lb-service-map-max"),
            Resource::Runs | Resource::Backends => Some("bpf-lb-service-backend-map-max"),
            Resource::Maglev => Some("bpf-lb-maglev-map-max"),
            Resource::SourceRanges => Some("bpf-lb-source-range-map-max"),
            Resource::Frontends => Some("bpf-lb-map-max"),
            Resource::Incarnations => None,
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource: _, entries, used, needed } = self;
        let map = self.map();
        match self.size_key() {
            Some(key) => write!(
                f,
                "{map} has no room for {needed} more: {used} of {entries} entries are in use; raise {key}"
            ),
            None => {
                write!(f, "{map} has had {used} backends and can number no other; remove the pinned maps")
            }
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(key) => {
                write!(f, "service {}", key.service())?;
                if !key.port_name.is_empty() {
                    write!(f, " port {}", key.port_name)?;
                }
                let family = match key.family {
                    portway_datapath::Family::V4 => "IPv4",
                    portway_datapath::Family::V6 => "IPv6",
                };
                write!(f, " {} {family}", key.protocol)
            }
            Self::Frontend(key) => {
                write!(f, "frontend {}", SocketAddr::new(key.addr.into(), key.port.get()))?;
                match Protocol::from_number(key.protocol) {
                    Some(protocol) => write!(f, "/{protocol}"),
                    None => write!(f, "/{}", key.protocol),
                }
            }
            Self::Leftover(index) => write!(f, "left-over service {}", index.get()),
        }
    }
}
