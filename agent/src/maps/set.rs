use std::io;
use std::path::{Path, PathBuf};

use portway_datapath::layout::{LAYOUT_VERSION, MAGLEV_SLOTS, Sizes};

use super::array::Array;
use super::error::MapError;
use super::layout::{MapId, MapLayout};
use super::sys::{Access, RawMap};

/// Every map, open.
#[derive(Debug)]
pub(super) struct MapSet {
    pub(super) frontends: RawMap,
    pub(super) services: Array,
    pub(super) runs: Array,
    pub(super) maglev: Array,
    pub(super) backends: Array,
    pub(super) source_ranges: RawMap,
    pub(super) service_names: RawMap,
    pub(super) affinity: RawMap,
    pub(super) sock: RawMap,
    pub(super) sock_udp: RawMap,
    pub(super) sock_replies: RawMap,
    pub(super) local_addresses: RawMap,
    pub(super) config: Array,
    pub(super) metrics: RawMap,
    pub(super) sizes: Sizes,
}

impl MapSet {
    /// From maps whose layouts were checked; `open` gives each.
    pub(super) fn new(
        access: Access,
        mut open: impl FnMut(MapId) -> Result<RawMap, MapError>,
    ) -> Result<Self, MapError> {
        let mut mapped = |map| -> Result<Array, MapError> {
            Array::new(open(map)?, access).map_err(MapError::map(map, "map the memory of"))
        };
        let services = mapped(MapId::Services)?;
        let runs = mapped(MapId::Runs)?;
        let maglev = mapped(MapId::Maglev)?;
        let backends = mapped(MapId::Backends)?;
        let config = mapped(MapId::Config)?;
        let frontends = open(MapId::Frontends)?;
        let source_ranges = open(MapId::SourceRanges)?;
        let service_names = open(MapId::ServiceNames)?;
        let affinity = open(MapId::Affinity)?;
        let sock = open(MapId::Sock)?;
        let sock_udp = open(MapId::SockUdp)?;
        let sock_replies = open(MapId::SockReplies)?;
        let local_addresses = open(MapId::LocalAddresses)?;
        let metrics = open(MapId::Metrics)?;
        let sizes = Sizes {
            frontends: frontends.info().entries,
            services: services.entries(),
            runs: runs.entries(),
            backends: backends.entries(),
            maglev: maglev.entries().saturating_mul(MAGLEV_SLOTS),
            affinity: affinity.info().entries,
            source_ranges: source_ranges.info().entries,
            local_addresses: local_addresses.info().entries,
            sockets: sock.info().entries,
            exchanges: sock_udp.info().entries,
        };
        Ok(Self {
            frontends,
            services,
            runs,
            maglev,
            backends,
            source_ranges,
            service_names,
            affinity,
            sock,
            sock_udp,
            sock_replies,
            local_addresses,
            config,
            metrics,
            sizes,
        })
    }

    pub(super) fn raw(&self, map: MapId) -> &RawMap {
        match map {
            MapId::Frontends => &self.frontends,
            MapId::Services => self.services.map(),
            MapId::Runs => self.runs.map(),
            MapId::Maglev => self.maglev.map(),
            MapId::Backends => self.backends.map(),
            MapId::SourceRanges => &self.source_ranges,
            MapId::ServiceNames => &self.service_names,
            MapId::Affinity => &self.affinity,
            MapId::SockUdp => &self.sock_udp,
            MapId::SockReplies => &self.sock_replies,
            MapId::LocalAddresses => &self.local_addresses,
            MapId::Config => self.config.map(),
            MapId::Metrics => &self.metrics,
            MapId::Sock => &self.sock,
        }
    }
}

/// The directory of the maps' pins.
pub fn pin_dir(bpf_root: &Path) -> PathBuf {
    bpf_root.join("portway").join(format!("v{LAYOUT_VERSION}")).join("maps")
}

/// Where a map is pinned; for the loader's `map_pin_path`.
pub fn pin_path(bpf_root: &Path, map: MapId) -> PathBuf {
    pin_dir(bpf_root).join(map.name())
}

/// Opens a pinned map for reading alone, whatever its size; `None` where there is none.
pub(super) fn open_to_read(
    dir: &Path,
    name: &str,
    mut wanted: MapLayout,
) -> Result<Option<RawMap>, MapError> {
    let path = dir.join(name);
    let raw = match RawMap::open(&path, Access::ReadOnly) {
        Ok(raw) => raw,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(source) => return Err(MapError::Pin { action: "open", path, source }),
    };
    wanted.entries = raw.info().entries;
    match wanted.difference(raw.info()) {
        Some(difference) => Err(MapError::Layout(difference)),
        None => Ok(Some(raw)),
    }
}

/// Removes a pin; false where there is none.
pub(super) fn unpin(path: &Path) -> Result<bool, MapError> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if is_missing(&e) => Ok(false),
        Err(source) => Err(MapError::pin("remove", path)(source)),
    }
}

/// Where a map is pinned before it is put under its name. A place of its own for each name: other threads pin other maps in
/// the same directory at the same time. Names in a bpf file system have no dots.
fn next(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}_next"))
}

/// Removes what an agent left that ended while it put a map under one of these names: the map would stay in memory.
pub(super) fn remove_next(dir: &Path, names: impl IntoIterator<Item = &'static str>) -> Result<(), MapError> {
    names.into_iter().try_for_each(|name| unpin(&next(dir, name)).map(drop))
}

/// As [`remove_next`], of agents that had one place for all names.
pub(super) fn remove_shared_next(dir: &Path) -> Result<(), MapError> {
    unpin(&dir.join("pw_next")).map(drop)
}

/// Puts a map under a name in one step: whoever opens it finds what was there or this map. For each name on one thread at a
/// time.
pub(super) fn pin_over(raw: &RawMap, dir: &Path, name: &str) -> Result<(), MapError> {
    let (next, path) = (next(dir, name), dir.join(name));
    unpin(&next)?;
    raw.pin(&next).map_err(MapError::pin("pin", &next))?;
    std::fs::rename(&next, &path).map_err(MapError::pin("rename to", &path))
}

/// The same where somebody may have removed the directory of the pins, too.
pub(super) fn pin_again(raw: &RawMap, bpf_root: &Path, name: &str) -> Result<(), MapError> {
    let dir = pin_dir(bpf_root);
    std::fs::create_dir_all(&dir).map_err(MapError::pin("make", &dir))?;
    pin_over(raw, &dir, name)
}

pub(super) fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
