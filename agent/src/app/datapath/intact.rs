//! Whether the kernel's side is still as this agent made it, and putting it right.

use std::collections::BTreeMap;
use std::path::Path;

use portway_datapath::layout::{CONFIG, LOCAL_ADDRESSES};
use portway_datapath::{Addr, LocalAddress, NodeConfig, ServiceIndex};
use portway_model::loadbalancer::Desired;
use portway_model::plan::{Damage, Difference};

use super::super::metrics::Counted;
use super::Datapath;
use crate::api;
use crate::maps::{MapId, PinFault};
use crate::programs::{LinkFault, LinkFaultKind, Links, OtherProgram};

/// What a look needs beside maps and programs.
pub(super) struct Intact {
    /// `None` where no program is attached.
    pub(super) links: Option<Links>,
    /// Where the next look at Maglev tables begins.
    maglev_from: ServiceIndex,
}

impl Intact {
    pub(super) const fn new() -> Self {
        Self { links: None, maglev_from: ServiceIndex::new(0) }
    }
}

/// What the kernel should hold that the planner does not know.
pub(in crate::app) struct Expected<'a> {
    pub(in crate::app) bpf_root: &'a Path,
    pub(in crate::app) node: NodeConfig,
    pub(in crate::app) addresses: BTreeMap<Addr, LocalAddress>,
    /// Every source has spoken: what nobody wants is a difference.
    pub(in crate::app) leftovers: bool,
}

/// Something that somebody else changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::app) enum Finding {
    Program(LinkFault),
    Pin(PinFault<MapId>),
    Element(Damage),
    Address { addr: Addr, held: Option<LocalAddress>, wanted: Option<LocalAddress> },
    Settings { held: NodeConfig, wanted: NodeConfig },
}

impl Datapath {
    /// Everything that is not as it was written, attached and pinned. Writes nothing.
    pub(in crate::app) fn findings(&mut self, expected: &Expected<'_>) -> anyhow::Result<Vec<Finding>> {
        let reader = self.tables.reader();
        let damage = self.planner.damage(&reader, &mut self.intact.maglev_from)?;
        let mut findings: Vec<_> = damage.into_iter().map(Finding::Element).collect();
        let held = reader.local_addresses()?;
        let wanted = &expected.addresses;
        for addr in held.keys().chain(wanted.keys().filter(|addr| !held.contains_key(addr))) {
            let (held, wanted) = (held.get(addr).copied(), wanted.get(addr).copied());
            if held != wanted {
                findings.push(Finding::Address { addr: *addr, held, wanted });
            }
        }
        let held = reader.config()?;
        if held != expected.node {
            findings.push(Finding::Settings { held, wanted: expected.node });
        }
        findings.extend(self.tables.pin_faults(expected.bpf_root)?.into_iter().map(Finding::Pin));
        if let Some(links) = &self.intact.links {
            findings.extend(links.faults(&self.programs)?.into_iter().map(Finding::Program));
        }
        Ok(findings)
    }

    /// Puts right what can be at once, maps before programs; what must be published anew is marked, for the next
    /// reconcile. What failed, in words; the next look finds it again.
    pub(in crate::app) fn repair(&mut self, findings: &[Finding], expected: &Expected<'_>) -> Vec<String> {
        let mut failures = Vec::new();
        let mut damage = Vec::new();
        let (mut addresses, mut settings, mut programs) = (false, false, false);
        for finding in findings {
            match finding {
                Finding::Element(element) => damage.push(element.clone()),
                Finding::Address { .. } => addresses = true,
                Finding::Settings { .. } => settings = true,
                Finding::Program(_) => programs = true,
                Finding::Pin(fault) => {
                    let pinned = self.tables.pin_again(expected.bpf_root, *fault);
                    failures.extend(pinned.err().map(|error| error.to_string()));
                }
            }
        }
        let mut tables = Counted { tables: &mut self.tables, metrics: &self.metrics };
        let failed = self.planner.repair(&damage, &mut self.dirty, &mut tables);
        failures.extend(failed.iter().map(ToString::to_string));
        if addresses {
            let set = self.tables.set_local_addresses(&expected.addresses);
            failures.extend(set.err().map(|error| error.to_string()));
        }
        if settings {
            failures.extend(self.tables.set_config(expected.node).err().map(|error| error.to_string()));
        }
        if programs && let Some(links) = &mut self.intact.links {
            failures.extend(links.heal(&self.programs).err().map(|error| error.to_string()));
        }
        failures
    }

    /// Where what was written is not what `desired` says; with `leftovers` also what nobody wants.
    pub(in crate::app) fn differences<D: Desired>(&self, desired: &D, leftovers: bool) -> Vec<Difference> {
        self.planner.differences(desired, &self.dirty, leftovers)
    }

    /// Everything is to be compared by the next reconcile; `leftovers` as in [`Self::differences`].
    pub(in crate::app) fn mark_everything<D: Desired>(&mut self, desired: &D, leftovers: bool) {
        if leftovers {
            self.dirty.merge(self.planner.everything());
        }
        self.dirty.merge(desired.everything());
    }

    /// Programs of others at our hooks.
    pub(in crate::app) fn other_programs(&self) -> anyhow::Result<Vec<OtherProgram>> {
        let links = self.intact.links.as_ref();
        Ok(links.map(|links| links.others(&self.programs)).transpose()?.unwrap_or_default())
    }
}

impl Finding {
    pub(in crate::app) fn difference(&self) -> api::Difference {
        let (kind, what, held, wanted) = match self {
            Self::Program(LinkFault { hook, kind }) => {
                let (held, wanted) = match kind {
                    LinkFaultKind::Detached => ("detached".to_owned(), "attached"),
                    LinkFaultKind::OtherProgram { program } => (format!("program {program}"), "ours"),
                    LinkFaultKind::NotPinned => ("not pinned".to_owned(), "pinned"),
                    LinkFaultKind::OtherPin => ("another pin".to_owned(), "pinned"),
                };
                ("program", hook.to_string(), held, wanted.to_owned())
            }
            Self::Pin(fault) => {
                let (map, held) = match fault {
                    PinFault::Missing(map) => (map, "not pinned"),
                    PinFault::Other(map) => (map, "another pin"),
                };
                ("pin", map.to_string(), held.to_owned(), "pinned".to_owned())
            }
            Self::Element(damage) => (damage.map(), damage.what(), damage.held(), damage.wanted()),
            Self::Address { addr, held, wanted } => {
                (LOCAL_ADDRESSES, addr.to_string(), address(*held), address(*wanted))
            }
            Self::Settings { held, wanted } => (CONFIG, "settings".to_owned(), node(held), node(wanted)),
        };
        api::Difference { kind: kind.to_owned(), what, held, wanted }
    }
}

fn address(value: Option<LocalAddress>) -> String {
    match value {
        None => "nothing",
        Some(value) if value.serves_node_ports() => "an address with NodePorts",
        Some(_) => "an address without NodePorts",
    }
    .to_owned()
}

fn node(config: &NodeConfig) -> String {
    let NodeConfig { host_netns, settings } = config;
    format!("namespace {host_netns}, settings {settings:#x}")
}
