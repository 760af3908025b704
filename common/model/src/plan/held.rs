use portway_datapath::{
    Addr, BackendIndex, FrontendKey, Membership, Port, Record, RunBackend, RunHeader, ServiceFlags,
    ServiceWord,
};

use super::extents::Extent;
use crate::loadbalancer::{DesiredBackend, DesiredService, ServicePortKey};

/// All that the maps hold under one service index.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) who: Who,
    pub(super) named: bool,
    pub(super) version: Option<Version>,
    /// In order of address and port: those of the published run, and those whose slots are not given up yet. A
    /// backend has one slot; where a crash left a second one, that of the run is first.
    pub(super) backends: Vec<HeldBackend>,
    /// In order.
    pub(super) ranges: Vec<HeldRange>,
    /// Those that point here, in order.
    pub(super) frontends: Vec<FrontendKey>,
    /// The last frontend that was answered here and is not, or not as before.
    pub(super) left: Option<Left>,
}

/// Programs that began before a frontend left may still follow it here: one that pointed here, or one that a
/// frontend for any address of the node stood in for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) key: FrontendKey,
    /// [`super::room::Room::mark`] of any frontend that left.
    pub(super) mark: u64,
    /// That of one that now points elsewhere; 0 where there was none. Who follows one that was deleted may find
    /// nothing here.
    pub(super) moved: u64,
}

/// Whose an index is.
#[derive(Debug)]
pub(super) enum Who {
    Owner(ServicePortKey),
    /// It went, or was published at another index.
    Former(ServicePortKey),
    /// Found in the maps under these names of service and port; "" where it has none.
    Restored {
        service: Box<str>,
        port: Box<str>,
    },
}

impl Who {
    pub(super) fn unknown() -> Self {
        Self::Restored { service: "".into(), port: "".into() }
    }

    /// Whether it is free to be taken over by `key`: it belongs to nobody and has the same names.
    pub(super) fn can_become(&self, key: &ServicePortKey) -> bool {
        match self {
            Self::Owner(_) => false,
            Self::Former(former) => former.service() == key.service() && former.port_name == key.port_name,
            Self::Restored { service, port } => **service == *key.service() && **port == *key.port_name,
        }
    }
}

/// The published version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub(super) extent: Extent,
    pub(super) header: RunHeader,
    pub(super) maglev: Extent,
    /// [`super::publish::print_of`] the tables.
    pub(super) maglev_print: u64,
    pub(super) word: ServiceWord,
    /// Whether the run is known to be what its header and `backends` say. A restored one may not be.
    pub(super) is_sound: bool,
}

/// A slot of `pw_backends` in use, with bits of [`Membership`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldBackend {
    pub(super) addr: Addr,
    pub(super) port: Port,
    /// The sets of the published run that it is in; 0 where the run does not have it.
    pub(super) published: u8,
    /// The bits in the map.
    pub(super) stored: u8,
    pub(super) slot: BackendIndex,
    pub(super) incarnation: u32,
}

/// A prefix in `pw_source_ranges`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldRange {
    pub(super) prefix: (Addr, u8),
    pub(super) wanted: bool,
}

impl Held {
    pub(super) const fn new(who: Who) -> Self {
        Self {
            who,
            named: false,
            version: None,
            backends: Vec::new(),
            ranges: Vec::new(),
            frontends: Vec::new(),
            left: None,
        }
    }

    /// Whether the published version is `wanted`, Maglev tables of `maglev_size` slots included.
    pub(super) fn is(&self, wanted: &DesiredService, maglev_size: u32) -> bool {
        self.version.is_some_and(|version| {
            version.is_sound
                && version.header.flags == wanted.flags
                && version.header.affinity_seconds == wanted.affinity_seconds
                && version.header.maglev_size == maglev_size
        }) && self.has_sets(&wanted.backends)
    }

    /// Whether the sets of the published version are those of `backends`.
    pub(super) fn has_sets(&self, backends: &[DesiredBackend]) -> bool {
        let published =
            self.backends.iter().filter(|b| b.published != 0).map(|b| (b.addr, b.port, b.published));
        published.eq(backends.iter().map(|b| (b.addr, b.port, bits(b))))
    }

    pub(super) fn add_frontend(&mut self, key: FrontendKey) {
        if let Err(at) = self.frontends.binary_search(&key) {
            self.frontends.insert(at, key);
        }
    }

    pub(super) fn remove_frontend(&mut self, key: &FrontendKey) {
        if let Ok(at) = self.frontends.binary_search(key) {
            self.frontends.remove(at);
        }
    }

    /// Notes that `key` is not answered by this service any more; `moves` where another one answers.
    pub(super) fn note_left(&mut self, key: &FrontendKey, mark: u64, moves: bool) {
        let moved = if moves { mark } else { self.left.map_or(0, |left| left.moved) };
        self.left = Some(Left { key: *key, mark, moved });
    }
}

impl HeldBackend {
    /// What a run would have for it; its slot is to be given later.
    pub(super) const fn without_slot(backend: &DesiredBackend) -> Self {
        Self {
            addr: backend.addr,
            port: backend.port,
            published: 0,
            stored: 0,
            slot: BackendIndex::new(0),
            incarnation: 0,
        }
    }

    pub(super) const fn has_slot(&self) -> bool {
        self.slot.get() != 0
    }

    pub(super) const fn record(&self) -> Record {
        RunBackend { addr: self.addr, port: self.port, index: self.slot }.record()
    }
}

pub(super) const CLUSTER: u8 = Membership::Cluster.bit() as u8;
pub(super) const LOCAL: u8 = Membership::Local.bit() as u8;

/// Bits of [`Membership`].
pub(super) const fn bits(backend: &DesiredBackend) -> u8 {
    (if backend.cluster { CLUSTER } else { 0 }) | (if backend.local { LOCAL } else { 0 })
}

/// Where a backend with these bits stands in a run: local only, both, cluster only.
pub(super) const fn part_of_run(bits: u8) -> usize {
    match (bits & LOCAL != 0, bits & CLUSTER != 0) {
        (true, false) => 0,
        (true, true) => 1,
        (false, _) => 2,
    }
}

/// Tables that a version with these flags has where it has any: the cluster set's, and the local set's where a
/// policy asks for it.
pub(super) const fn maglev_tables(flags: ServiceFlags) -> u32 {
    if flags.has(ServiceFlags::INTERNAL_LOCAL) || flags.has(ServiceFlags::EXTERNAL_LOCAL) { 2 } else { 1 }
}
