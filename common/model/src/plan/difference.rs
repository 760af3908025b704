//! What the maps hold otherwise than they should, each with a name.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use portway_datapath::{
    Addr, BackendIndex, FrontendKey, FrontendKind, FrontendValue, Port, RunHeader, ServiceIndex,
};
use serde::{Deserialize, Serialize};

use super::held::{CLUSTER, Held, HeldBackend, LOCAL, Who, bits};
use super::{Planner, Subject};
use crate::loadbalancer::{Desired, DesiredService, Dirty};
use crate::tables::TableDump;

/// One thing that the maps hold otherwise than it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// `frontend 10.96.0.1:80/TCP`, `service default/web port http TCP IPv4`, `left-over service 7`.
    pub subject: String,
    pub aspect: Aspect,
    /// What the maps hold, or the part of it that is not wanted.
    pub held: String,
    /// What should be there, or the part of it that is missing.
    pub wanted: String,
    /// It was not written yet: it failed, lacks room or waits, and is tried again anyway. What is not pending was
    /// changed by somebody else, or is an error of this program.
    pub is_pending: bool,
}

/// What of a frontend or service differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aspect {
    /// Which service a frontend points at, and as what.
    Frontend,
    /// Which run is published.
    Version,
    /// Traffic policies, affinity and flags of the published run.
    Settings,
    /// The backends of the published run.
    Backends,
    /// The states by which clients keep their backends.
    BackendStates,
    SourceRanges,
    /// The name for people.
    Name,
}

impl Aspect {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frontend => "frontend",
            Self::Version => "version",
            Self::Settings => "settings",
            Self::Backends => "backends",
            Self::BackendStates => "backend states",
            Self::SourceRanges => "source ranges",
            Self::Name => "name",
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, aspect, held, wanted, is_pending } = self;
        let aspect = aspect.name();
        write!(f, "{subject}: {aspect}: the maps hold {held}, wanted is {wanted}")?;
        if *is_pending { f.write_str(" (not written yet)") } else { Ok(()) }
    }
}

/// How many backends or ranges of a service are named.
const MOST_NAMED: usize = 8;

impl Planner {
    /// What `dump` has otherwise than this planner wrote it, or than `desired` is. `pending` is what
    /// [`Self::reconcile`] left dirty. Nothing is changed; [`Self::heal`] mends it.
    ///
    /// `dump` must be of now: nothing may have been written after it. Maglev tables are not compared, for a dump has
    /// none. O(everything).
    pub fn differences<D: Desired>(&self, dump: &TableDump, desired: &D, pending: &Dirty) -> Vec<Difference> {
        let in_maps = Self::read(self.options, 0, dump).planner;
        let mut differences = Vec::new();
        let nothing = Held::new(Who::unknown());
        let indices: BTreeSet<_> = self.held.keys().chain(in_maps.held.keys()).copied().collect();
        for index in indices {
            let ours = self.held.get(&index);
            let found = in_maps.held.get(&index).unwrap_or(&nothing);
            let changed = ours.unwrap_or(&nothing).changes(found);
            let subject = subject(index, ours.unwrap_or(found)).to_string();
            differences.extend(changed.into_iter().map(|(aspect, held, wanted)| Difference {
                subject: subject.clone(),
                aspect,
                held,
                wanted,
                is_pending: false,
            }));
        }
        self.compare_services(desired, pending, &mut differences);
        self.compare_frontends(&in_maps, desired, pending, &mut differences);
        differences
    }

    /// Services that are not what is wanted as far as this planner knows.
    fn compare_services<D: Desired>(&self, desired: &D, pending: &Dirty, differences: &mut Vec<Difference>) {
        let mut keys = desired.everything().services;
        keys.extend(self.by_key.keys().cloned());
        for key in keys {
            let index = self.by_key.get(&key);
            let held = index.and_then(|index| self.held.get(index)).filter(|held| held.version.is_some());
            let wanted = desired.service(&key);
            let (aspect, held, wanted) = match (held, &wanted) {
                (None, None) => continue,
                (Some(held), Some(wanted)) if self.is_published(held, &key, wanted) => continue,
                (Some(held), Some(wanted)) => unlike(held, wanted),
                (Some(_), None) => (Aspect::Version, "a version".to_owned(), NOTHING.to_owned()),
                (None, Some(_)) => (Aspect::Version, NOTHING.to_owned(), "a version".to_owned()),
            };
            let is_pending = pending.services.contains(&key);
            let subject = Subject::Service(key).to_string();
            differences.push(Difference { subject, aspect, held, wanted, is_pending });
        }
    }

    fn compare_frontends<D: Desired>(
        &self,
        in_maps: &Self,
        desired: &D,
        pending: &Dirty,
        differences: &mut Vec<Difference>,
    ) {
        let mut keys = desired.everything().frontends;
        keys.extend(self.frontends.keys().chain(in_maps.frontends.keys()));
        for key in keys {
            let (found, ours) = (in_maps.frontends.get(&key), self.frontends.get(&key));
            let wanted = desired.frontend(&key);
            let value = wanted.as_ref().and_then(|wanted| {
                Some(FrontendValue::new(&key, wanted.kind, *self.by_key.get(&wanted.service)?))
            });
            let is_lost = wanted.is_some() && value.is_none();
            if found == ours && found == value.as_ref() && !is_lost {
                continue;
            }
            differences.push(Difference {
                subject: Subject::Frontend(key).to_string(),
                aspect: Aspect::Frontend,
                held: found.map_or_else(|| NOTHING.to_owned(), |found| self.describe(&key, *found)),
                wanted: wanted.map_or_else(
                    || NOTHING.to_owned(),
                    |wanted| answers_as(Some(wanted.kind), &Subject::Service(wanted.service)),
                ),
                is_pending: found == ours && pending.frontends.contains(&key),
            });
        }
    }

    fn describe(&self, key: &FrontendKey, value: FrontendValue) -> String {
        let index = value.service();
        match self.held.get(&index) {
            _ if !value.is_of(key) => "the value of another frontend".to_owned(),
            Some(held) => answers_as(value.kind(), &subject(index, held)),
            None => format!("service index {}, which is nobody's", index.get()),
        }
    }
}

const NOTHING: &str = "nothing";

fn answers_as(kind: Option<FrontendKind>, service: &Subject) -> String {
    format!("{} of {service}", kind.map_or("an unknown kind", FrontendKind::name))
}

fn subject(index: ServiceIndex, held: &Held) -> Subject {
    match &held.who {
        Who::Owner(key) | Who::Former(key) => Subject::Service(key.clone()),
        Who::Restored { .. } => Subject::Leftover(index),
    }
}

/// How a published version is not the wanted one.
fn unlike(held: &Held, wanted: &DesiredService) -> (Aspect, String, String) {
    if held.has_sets(&wanted.backends) {
        let has = held.version.map(|v| settings(v.header.flags.bits(), v.header.affinity_seconds));
        return (
            Aspect::Settings,
            has.unwrap_or_else(|| NOTHING.to_owned()),
            settings(wanted.flags.bits(), wanted.affinity_seconds),
        );
    }
    let wanted = wanted.backends.iter().map(|b| (b.addr, b.port, bits(b)));
    let (held, wanted) =
        only_in_one(&held.published().map(|b| (b.addr, b.port, b.published)).collect(), &wanted.collect());
    (Aspect::Backends, named(held.into_iter().map(backend)), named(wanted.into_iter().map(backend)))
}

impl Held {
    /// How `found` in the maps differs from this: what, what is held, what should be. Frontends are not looked at.
    pub(super) fn changes(&self, found: &Self) -> Vec<(Aspect, String, String)> {
        let mut changes = Vec::new();
        match (&self.version, &found.version) {
            (None, None) => {}
            (Some(_), None) => changes.push((Aspect::Version, NOTHING.to_owned(), "a version".to_owned())),
            (None, Some(_)) => changes.push((Aspect::Version, "a version".to_owned(), NOTHING.to_owned())),
            (Some(ours), Some(theirs)) => {
                let (has, wants) = (&theirs.header, &ours.header);
                if theirs.extent.start != ours.extent.start {
                    let run = |start| format!("the run at {start}");
                    changes.push((Aspect::Version, run(theirs.extent.start), run(ours.extent.start)));
                } else if has.flags != wants.flags || has.affinity_seconds != wants.affinity_seconds {
                    let text = |header: &RunHeader| settings(header.flags.bits(), header.affinity_seconds);
                    changes.push((Aspect::Settings, text(has), text(wants)));
                } else if !theirs.is_sound || has != wants {
                    changes.push((Aspect::Version, "a damaged run".to_owned(), "a sound one".to_owned()));
                }
            }
        }
        let sets = |held: &Self| held.published().map(|b| (b.addr, b.port, b.published)).collect();
        let (has, wants) = only_in_one(&sets(found), &sets(self));
        if !has.is_empty() || !wants.is_empty() {
            let (has, wants) = (has.into_iter().map(backend), wants.into_iter().map(backend));
            changes.push((Aspect::Backends, named(has), named(wants)));
        }
        let slots = |held: &Self| {
            let used = held.backends.iter().filter(|b| b.published != 0 || b.stored != 0);
            used.map(|b| (b.addr, b.port, b.stored, b.slot, b.incarnation)).collect()
        };
        let (has, wants) = only_in_one(&slots(found), &slots(self));
        if !has.is_empty() || !wants.is_empty() {
            let slot = |(addr, port, stored, slot, incarnation): (_, _, _, BackendIndex, _)| {
                format!("{} in slot {}, incarnation {incarnation}", backend((addr, port, stored)), slot.get())
            };
            let (has, wants) = (has.into_iter().map(slot), wants.into_iter().map(slot));
            changes.push((Aspect::BackendStates, named(has), named(wants)));
        }
        let ranges = |held: &Self| held.ranges.iter().map(|range| range.prefix).collect();
        let (has, wants) = only_in_one(&ranges(found), &ranges(self));
        if !has.is_empty() || !wants.is_empty() {
            let (has, wants) = (has.into_iter().map(prefix), wants.into_iter().map(prefix));
            changes.push((Aspect::SourceRanges, named(has), named(wants)));
        }
        if self.named && !self.is_named_in(found) {
            changes.push((Aspect::Name, found.who.name(), self.who.name()));
        } else if !self.named && found.named {
            changes.push((Aspect::Name, found.who.name(), NOTHING.to_owned()));
        }
        changes
    }

    /// Whether `found` in the maps has this one's name. That of an index without a version is not known.
    pub(super) fn is_named_in(&self, found: &Self) -> bool {
        let is_its = match (&self.who, &found.who) {
            (Who::Owner(key) | Who::Former(key), Who::Restored { service, port }) => {
                **service == *key.service() && **port == *key.port_name
            }
            (Who::Restored { service, port }, Who::Restored { service: found, port: found_port }) => {
                service == found && port == found_port
            }
            (_, Who::Owner(_) | Who::Former(_)) => false,
        };
        found.named && (is_its || found.version.is_none())
    }

    /// The backends of the published run.
    fn published(&self) -> impl Iterator<Item = &HeldBackend> {
        self.backends.iter().filter(|backend| backend.published != 0)
    }
}

impl Who {
    fn name(&self) -> String {
        let (service, port) = match self {
            Self::Owner(key) | Self::Former(key) => (key.service(), &*key.port_name),
            Self::Restored { service, port } => (&**service, &**port),
        };
        match (service, port) {
            ("", "") => NOTHING.to_owned(),
            (service, "") => service.to_owned(),
            (service, port) => format!("{service} port {port}"),
        }
    }
}

fn only_in_one<T: Ord + Copy>(one: &BTreeSet<T>, other: &BTreeSet<T>) -> (Vec<T>, Vec<T>) {
    (one.difference(other).copied().collect(), other.difference(one).copied().collect())
}

fn backend((addr, port, sets): (Addr, Port, u8)) -> String {
    let socket = SocketAddr::new(addr.into(), port.get());
    match (sets & CLUSTER != 0, sets & LOCAL != 0) {
        (true, true) => format!("{socket} (cluster, local)"),
        (true, false) => format!("{socket} (cluster)"),
        (false, true) => format!("{socket} (local)"),
        (false, false) => format!("{socket} (going)"),
    }
}

fn prefix((addr, bits): (Addr, u8)) -> String {
    let ip = IpAddr::from(addr);
    format!("{ip}/{}", if ip.is_ipv4() { bits.saturating_sub(96) } else { bits })
}

fn settings(flags: u32, affinity_seconds: u32) -> String {
    format!("flags {flags:#x}, affinity {affinity_seconds} s")
}

fn named(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(MOST_NAMED);
    let mut names: Vec<_> = items.take(MOST_NAMED).collect();
    match (names.is_empty(), more) {
        (true, _) => return NOTHING.to_owned(),
        (false, 0) => {}
        (false, more) => names.push(format!("{more} more")),
    }
    names.join(", ")
}
