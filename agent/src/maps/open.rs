//! Opening the pinned maps, or making them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use portway_datapath::layout::Sizes;

use super::KernelTables;
use super::check::{Inconsistency, check};
use super::earlier::Earlier;
use super::error::MapError;
use super::layout::{LayoutDifference, LayoutField, MapId};
use super::numbering::{Numbering, fits};
use super::reader::MapReader;
use super::set::{MapSet, is_missing, pin_dir, remove_next, remove_shared_next, unpin};
use super::sys::{Access, RawMap, is_bpf_fs};
use crate::versions;

/// What was found when the maps were opened, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The maps that refer to each other ([`MapId::is_published`]): taken over together or made anew together.
    pub published: Published,
    /// Each of the other maps.
    pub others: BTreeMap<MapId, Origin>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    Reused,
    /// There were none.
    Created,
    /// Made beside the old ones, which live on as long as programs use them.
    Replaced(Reason),
}

/// Why the published maps could not be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Layout(LayoutDifference),
    /// Some pins are there, but not this one.
    Missing(MapId),
    Inconsistent(Inconsistency),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Reused,
    Created,
    Replaced(LayoutDifference),
}

enum Pinned {
    Matches(RawMap),
    /// The map, unless it is something else that is pinned.
    Differs(LayoutDifference, Option<RawMap>),
    Missing,
}

impl KernelTables {
    /// Takes over the maps pinned under `bpf_root`, which must be a bpf file system, or makes them with these sizes.
    ///
    /// Everything is created before the first pin changes, so a failure leaves the old maps pinned. The caller holds
    /// the lock on `bpf_root`.
    pub fn open(bpf_root: &Path, sizes: &Sizes) -> Result<(Self, Opening), MapError> {
        if !is_bpf_fs(bpf_root).map_err(MapError::pin("look at", bpf_root))? {
            return Err(MapError::NotBpfFs { root: bpf_root.to_owned() });
        }
        let dir = pin_dir(bpf_root);
        std::fs::create_dir_all(&dir).map_err(MapError::pin("make", &dir))?;
        if let Some(version) = dir.parent() {
            versions::mark(version).map_err(MapError::pin("make a directory in", version))?;
        }
        remove_next(&dir, MapId::ALL.map(MapId::name))?;
        remove_shared_next(&dir)?;
        let (maps, opening, earlier) = assemble(&dir, sizes, None)?;
        let reader = MapReader { maps: Arc::new(maps) };
        if opening.published != Published::Reused {
            return Ok((Self::new(reader, &opening, earlier), opening));
        }
        let found = match reader.dump() {
            Ok(dump) => check(&dump, &reader.sizes()),
            Err(MapError::Inconsistent(inconsistency)) => Err(inconsistency),
            Err(error) => return Err(error),
        };
        match found {
            Ok(()) => Ok((Self::new(reader, &opening, earlier), opening)),
            Err(inconsistency) => {
                let anew = Some(Reason::Inconsistent(inconsistency));
                let (maps, opening, earlier) = assemble(&dir, sizes, anew)?;
                let reader = MapReader { maps: Arc::new(maps) };
                Ok((Self::new(reader, &opening, earlier), opening))
            }
        }
    }
}

/// Opens or creates every map. `anew`: don't take the published ones over.
fn assemble(dir: &Path, sizes: &Sizes, anew: Option<Reason>) -> Result<(MapSet, Opening, Earlier), MapError> {
    let mut pinned = BTreeMap::new();
    for map in MapId::ALL {
        pinned.insert(map, look(dir, map, sizes)?);
    }
    let published = anew.map_or_else(|| judge(&pinned), Published::Replaced);
    // What programs remember by numbers is remembered in those of the earlier set.
    let numbering = matches!(published, Published::Replaced(_)).then(|| Arc::new(numbering(&pinned)));
    let mut earlier = Earlier::default();
    let mut others = BTreeMap::new();
    let mut maps = BTreeMap::new();
    let mut new = Vec::new();
    for (map, pinned) in pinned {
        let reusable = match map.is_published() {
            true => published == Published::Reused,
            false => numbering.is_none() || !map.refers_by_number(),
        };
        let (origin, old) = match pinned {
            Pinned::Matches(raw) if reusable => {
                maps.insert(map, raw);
                (Origin::Reused, None)
            }
            Pinned::Differs(difference, old) => (Origin::Replaced(difference), old),
            Pinned::Matches(old) => (Origin::Created, Some(old)),
            Pinned::Missing => (Origin::Created, None),
        };
        if let Some(old) = old {
            earlier.add(map, old, numbering.as_ref()).map_err(MapError::map(map, "look at"))?;
        }
        if origin != Origin::Reused {
            maps.insert(map, create(map, sizes)?);
            new.push(map);
        }
        if !map.is_published() {
            others.insert(map, origin);
        }
    }
    // The earlier maps keep a pin: an agent that takes over from this one in the middle goes on with them.
    let ours = maps.values().map(RawMap::number).collect::<Result<Vec<_>, _>>();
    let ours = ours.map_err(MapError::pin("look at the maps of", dir))?;
    earlier.find(dir, numbering.as_ref(), &ours)?;
    earlier.pin(dir)?;
    // Every old pin goes before the first new one comes: a start that ends between leaves pins missing, and the next
    // one begins anew. Old and new maps side by side could pass for one set, and programs may still run on the old.
    for map in &new {
        unpin(&dir.join(map.name()))?;
    }
    for map in new {
        if let Some(raw) = maps.get(&map) {
            let path = dir.join(map.name());
            raw.pin(&path).map_err(MapError::pin("pin", &path))?;
        }
    }
    let set = MapSet::new(Access::ReadWrite, |map| {
        maps.remove(&map).ok_or_else(|| MapError::NoMaps { dir: dir.to_owned() })
    })?;
    Ok((set, Opening { published, others }, earlier))
}

/// What the numbers of the pinned set mean; nothing where it cannot be read.
fn numbering(pinned: &BTreeMap<MapId, Pinned>) -> Numbering {
    let raw = |map: MapId| match pinned.get(&map)? {
        Pinned::Matches(raw) | Pinned::Differs(_, Some(raw)) if fits(map, raw) => Some(raw),
        Pinned::Matches(_) | Pinned::Differs(..) | Pinned::Missing => None,
    };
    let read = raw(MapId::ServiceNames).zip(raw(MapId::Backends));
    let read = read.map(|(names, backends)| Numbering::read(names, backends));
    read.transpose().unwrap_or_else(|error| {
        tracing::warn!(%error, "the services and backends of the earlier agent cannot be read: affinity begins anew");
        None
    })
    .unwrap_or_default()
}

fn look(dir: &Path, map: MapId, sizes: &Sizes) -> Result<Pinned, MapError> {
    let path = dir.join(map.name());
    let wanted = map.layout(sizes);
    match RawMap::open(&path, Access::ReadWrite) {
        Ok(raw) => Ok(match wanted.difference(raw.info()) {
            None => Pinned::Matches(raw),
            Some(difference) => Pinned::Differs(difference, Some(raw)),
        }),
        Err(e) if is_missing(&e) => Ok(Pinned::Missing),
        // Something else is pinned here: a program, a link.
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            let (field, wanted) = (LayoutField::Kind, wanted.kind as u32);
            Ok(Pinned::Differs(LayoutDifference { map: map.into(), field, found: 0, wanted }, None))
        }
        Err(source) => Err(MapError::Pin { action: "open", path, source }),
    }
}

fn judge(pinned: &BTreeMap<MapId, Pinned>) -> Published {
    let mut missing = None;
    let mut any = false;
    for (map, pinned) in pinned.iter().filter(|(map, _)| map.is_published()) {
        match pinned {
            Pinned::Matches(_) => any = true,
            Pinned::Differs(difference, _) => return Published::Replaced(Reason::Layout(*difference)),
            Pinned::Missing => missing = missing.or(Some(*map)),
        }
    }
    match missing {
        None => Published::Reused,
        Some(map) if any => Published::Replaced(Reason::Missing(map)),
        Some(_) => Published::Created,
    }
}

fn create(map: MapId, sizes: &Sizes) -> Result<RawMap, MapError> {
    let layout = map.layout(sizes);
    RawMap::create(map.name(), layout.info(), None).map_err(|source| MapError::Create {
        map: map.into(),
        entries: layout.entries,
        source,
    })
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reused => f.write_str("taken over"),
            Self::Created => f.write_str("created"),
            Self::Replaced(reason) => write!(f, "made anew beside the old ones: {reason}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout(difference) => difference.fmt(f),
            Self::Missing(map) => write!(f, "{map} is not pinned"),
            Self::Inconsistent(inconsistency) => inconsistency.fmt(f),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reused => f.write_str("taken over"),
            Self::Created => f.write_str("created"),
            Self::Replaced(difference) => write!(f, "made anew: {difference}"),
        }
    }
}
