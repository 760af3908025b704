//! What this planner keeps in the maps otherwise than it is wanted. Whether the maps are as it believes is asked by
//! [`Planner::damage`].

use std::fmt;
use std::net::SocketAddr;

use portway_datapath::{Addr, FrontendKey, FrontendKind, FrontendValue, Port};
use serde::{Deserialize, Serialize};

use super::held::{CLUSTER, Held, LOCAL, Who, bits};
use super::{Planner, Subject};
use crate::loadbalancer::{Desired, DesiredService, Dirty};

/// A frontend or service that is not what is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// `frontend 10.96.0.1:80/TCP`, `service default/web port http TCP IPv4`.
    pub subject: String,
    pub aspect: Aspect,
    /// What is there, or the part of it that is not wanted.
    pub held: String,
    /// What should be there, or the part of it that is missing.
    pub wanted: String,
    /// It was not written yet: it failed, lacks room or waits, and is tried again anyway. What is not pending is an
    /// error of this program.
    pub is_pending: bool,
}

/// What of a frontend or service differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aspect {
    /// Which service a frontend points at, and as what.
    Frontend,
    /// Whether there is a version.
    Version,
    /// Traffic policies, affinity, flags and Maglev tables.
    Settings,
    Backends,
}

impl Aspect {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frontend => "frontend",
            Self::Version => "version",
            Self::Settings => "settings",
            Self::Backends => "backends",
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, aspect, held, wanted, is_pending } = self;
        write!(f, "{subject}: {}: {held}, wanted {wanted}", aspect.name())?;
        if *is_pending { f.write_str(" (not written yet)") } else { Ok(()) }
    }
}

/// How many backends of a service are named.
const MOST_NAMED: usize = 8;
const NOTHING: &str = "nothing";

impl Planner {
    /// Where what the maps hold, as far as this planner knows, is not what `desired` says. `pending` is what
    /// [`Self::reconcile`] left dirty. Nothing is changed.
    ///
    /// [`Self::prune`] mends it, with everything of `desired` dirty. As long as a source has not spoken, `leftovers` is
    /// false: what nobody wants may be its, and is no difference. O(everything).
    pub fn differences<D: Desired>(&self, desired: &D, pending: &Dirty, leftovers: bool) -> Vec<Difference> {
        let Dirty { mut services, mut frontends } = desired.everything();
        if leftovers {
            services.extend(self.by_key.keys().cloned());
            frontends.extend(self.frontends.keys());
        }
        let mut differences = Vec::new();
        for key in services {
            let held = self.by_key.get(&key).and_then(|index| self.held.get(index));
            let held = held.filter(|held| held.version.is_some());
            let (aspect, held, wanted) = match (held, desired.service(&key)) {
                (None, None) => continue,
                (Some(held), Some(wanted)) if self.is_published(held, &key, &wanted) => continue,
                (Some(held), Some(wanted)) => unlike(held, &wanted),
                (Some(_), None) => (Aspect::Version, "a version".to_owned(), NOTHING.to_owned()),
                (None, Some(_)) => (Aspect::Version, NOTHING.to_owned(), "a version".to_owned()),
            };
            let is_pending = pending.services.contains(&key);
            let subject = Subject::Service(key).to_string();
            differences.push(Difference { subject, aspect, held, wanted, is_pending });
        }
        differences
            .extend(frontends.iter().filter_map(|key| self.frontend_difference(key, desired, pending)));
        differences
    }

    fn frontend_difference<D: Desired>(
        &self,
        key: &FrontendKey,
        desired: &D,
        pending: &Dirty,
    ) -> Option<Difference> {
        let held = self.frontends.get(key).copied();
        let wanted = desired.frontend(key);
        let value = |wanted: &crate::loadbalancer::DesiredFrontend| {
            Some(FrontendValue::new(key, wanted.kind, *self.by_key.get(&wanted.service)?))
        };
        // One whose service has no index can't be there.
        let is_right = match &wanted {
            Some(wanted) => held.is_some() && held == value(wanted),
            None => held.is_none(),
        };
        let nothing = || NOTHING.to_owned();
        (!is_right).then(|| Difference {
            subject: Subject::Frontend(*key).to_string(),
            aspect: Aspect::Frontend,
            held: held.map_or_else(nothing, |held| self.describe(key, held)),
            wanted: wanted
                .map_or_else(nothing, |wanted| answers(Some(wanted.kind), &Subject::Service(wanted.service))),
            is_pending: pending.frontends.contains(key),
        })
    }

    fn describe(&self, key: &FrontendKey, value: FrontendValue) -> String {
        let index = value.service();
        match self.held.get(&index).map(|held| &held.who) {
            _ if !value.is_of(key) => "the value of another frontend".to_owned(),
            Some(Who::Owner(key) | Who::Former(key)) => answers(value.kind(), &Subject::Service(key.clone())),
            Some(Who::Restored { .. }) | None => answers(value.kind(), &Subject::Leftover(index)),
        }
    }
}

fn answers(kind: Option<FrontendKind>, service: &Subject) -> String {
    format!("{} of {service}", kind.map_or("an unknown kind", FrontendKind::name))
}

/// How a published version is not the wanted one.
fn unlike(held: &Held, wanted: &DesiredService) -> (Aspect, String, String) {
    let published = held.backends.iter().filter(|backend| backend.published != 0);
    let has: Vec<_> = published.map(|b| (b.addr, b.port, b.published)).collect();
    let wants: Vec<_> = wanted.backends.iter().map(|b| (b.addr, b.port, bits(b))).collect();
    if has == wants {
        let header = held.version.map(|version| version.header).unwrap_or_default();
        let has = settings(header.flags.bits(), header.affinity_seconds, header.maglev_size != 0);
        let wants = settings(wanted.flags.bits(), wanted.affinity_seconds, wanted.reached_from_outside);
        return (Aspect::Settings, has, wants);
    }
    // Both are in order.
    let only_in = |one: &[(Addr, Port, u8)], other: &[(Addr, Port, u8)]| {
        one.iter().filter(|b| other.binary_search(b).is_err()).copied().collect::<Vec<_>>()
    };
    (Aspect::Backends, named(&only_in(&has, &wants)), named(&only_in(&wants, &has)))
}

fn settings(flags: u32, affinity_seconds: u32, tables: bool) -> String {
    let tables = if tables { "with" } else { "without" };
    format!("flags {flags:#x}, affinity {affinity_seconds} s, {tables} Maglev tables if they are asked for")
}

fn named(backends: &[(Addr, Port, u8)]) -> String {
    let mut names: Vec<_> = backends.iter().take(MOST_NAMED).map(backend).collect();
    if backends.is_empty() {
        return NOTHING.to_owned();
    }
    if backends.len() > MOST_NAMED {
        names.push(format!("{} more", backends.len() - MOST_NAMED));
    }
    names.join(", ")
}

fn backend((addr, port, sets): &(Addr, Port, u8)) -> String {
    let socket = SocketAddr::new((*addr).into(), port.get());
    match (sets & CLUSTER != 0, sets & LOCAL != 0) {
        (true, true) => format!("{socket} (cluster, local)"),
        (true, false) => format!("{socket} (cluster)"),
        (false, _) => format!("{socket} (local)"),
    }
}
