use std::fmt;

use portway_datapath::{
    Addr, BackendIndex, BackendSlot, FrontendKey, FrontendValue, ServiceIndex, ServiceWord, layout,
};

use super::Subject;

/// Something in the maps that is not what the planner wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// `held` and `wanted` are [`ServiceWord::NONE`] where there is nothing.
    Service {
        service: ServiceIndex,
        name: Box<str>,
        held: ServiceWord,
        wanted: ServiceWord,
    },
    /// A published run.
    Run {
        service: ServiceIndex,
        name: Box<str>,
    },
    /// The Maglev tables of a published run.
    Maglev {
        service: ServiceIndex,
        name: Box<str>,
    },
    /// `wanted` is [`BackendSlot::EMPTY`] where the slot is free.
    Backend {
        index: BackendIndex,
        held: BackendSlot,
        wanted: BackendSlot,
    },
    /// The name of a service index; `None` where there is none.
    Name {
        service: ServiceIndex,
        held: Option<Box<str>>,
        wanted: Option<Box<str>>,
    },
    /// A source range that is there and not ours, or the other way round.
    SourceRange {
        service: ServiceIndex,
        addr: Addr,
        bits: u8,
        is_wanted: bool,
    },
    Frontend {
        key: FrontendKey,
        held: Option<FrontendValue>,
        wanted: Option<FrontendValue>,
    },
}

impl Damage {
    /// The map that it is in.
    pub const fn map(&self) -> &'static str {
        match self {
            Self::Service { .. } => layout::SERVICES,
            Self::Run { .. } => layout::RUNS,
            Self::Maglev { .. } => layout::MAGLEV,
            Self::Backend { .. } => layout::BACKENDS,
            Self::Name { .. } => layout::SERVICE_NAMES,
            Self::SourceRange { .. } => layout::SOURCE_RANGES,
            Self::Frontend { .. } => layout::FRONTENDS,
        }
    }

    pub(super) fn subject(&self) -> Subject {
        match self {
            Self::Service { service, .. }
            | Self::Run { service, .. }
            | Self::Maglev { service, .. }
            | Self::Name { service, .. }
            | Self::SourceRange { service, .. } => Subject::Leftover(*service),
            Self::Backend { held, wanted, .. } => {
                Subject::Leftover(if wanted.incarnation() == 0 { held.service } else { wanted.service })
            }
            Self::Frontend { key, .. } => Subject::Frontend(*key),
        }
    }

    /// What in the map differs, e.g. `service 3 (default/web:http)`.
    pub fn what(&self) -> String {
        let service = |index: &ServiceIndex, name: &str| {
            let number = index.get();
            if name.is_empty() { format!("service {number}") } else { format!("service {number} ({name})") }
        };
        match self {
            Self::Service { service: index, name, .. } => service(index, name),
            Self::Run { service: index, name } => format!("run of {}", service(index, name)),
            Self::Maglev { service: index, name } => format!("Maglev tables of {}", service(index, name)),
            Self::Backend { index, .. } => format!("backend {}", index.get()),
            Self::Name { service: index, .. } => service(index, ""),
            Self::SourceRange { service: index, addr, bits, .. } => {
                format!("range {addr}/{bits} of {}", service(index, ""))
            }
            Self::Frontend { key, .. } => Subject::Frontend(*key).to_string(),
        }
    }

    /// What the map holds.
    pub fn held(&self) -> String {
        match self {
            Self::Service { held, .. } => word(*held),
            Self::Run { .. } | Self::Maglev { .. } => "changed".to_owned(),
            Self::Backend { held, .. } => backend(held),
            Self::Name { held, .. } => held.as_deref().unwrap_or("nothing").to_owned(),
            Self::SourceRange { is_wanted, .. } => if *is_wanted { "nothing" } else { "an entry" }.to_owned(),
            Self::Frontend { held, .. } => value(*held),
        }
    }

    /// What the planner wrote.
    pub fn wanted(&self) -> String {
        match self {
            Self::Service { wanted, .. } => word(*wanted),
            Self::Run { .. } | Self::Maglev { .. } => "as published".to_owned(),
            Self::Backend { wanted, .. } => backend(wanted),
            Self::Name { wanted, .. } => wanted.as_deref().unwrap_or("nothing").to_owned(),
            Self::SourceRange { is_wanted, .. } => if *is_wanted { "an entry" } else { "nothing" }.to_owned(),
            Self::Frontend { wanted, .. } => value(*wanted),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}, wanted {}", self.map(), self.what(), self.held(), self.wanted())
    }
}

fn word(word: ServiceWord) -> String {
    match word.run() {
        Some(run) => format!("run {} generation {}", run.get(), word.generation()),
        None => "nothing".to_owned(),
    }
}

fn backend(slot: &BackendSlot) -> String {
    if *slot == BackendSlot::EMPTY {
        return "nothing".to_owned();
    }
    let socket = std::net::SocketAddr::new(slot.addr.into(), slot.port.get());
    let (incarnation, members) = (slot.incarnation(), slot.members());
    format!("{socket} of service {}, incarnation {incarnation}, sets {members:#b}", slot.service.get())
}

fn value(value: Option<FrontendValue>) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    match value.kind() {
        Some(kind) => format!("{} of service {}", kind.name(), value.service().get()),
        None => format!("word {:#018x}", value.word()),
    }
}
