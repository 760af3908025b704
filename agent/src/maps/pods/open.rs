use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use portway_datapath::layout::PodSizes;

use super::earlier::{self, EarlierFlows};
use super::layout::{Content, PodMapId};
use super::{PodMaps, PodReader, PodTables};
use crate::maps::error::MapError;
use crate::maps::layout::{LayoutDifference, LayoutField};
use crate::maps::open::Origin;
use crate::maps::set::{is_missing, pin_dir, pin_over, remove_next, unpin};
use crate::maps::sys::{Access, Expect, RawMap, is_bpf_fs};
use crate::maps::writer::insert;

/// What was found when the maps were opened.
#[derive(Debug)]
pub struct PodOpening {
    pub origins: BTreeMap<PodMapId, Origin>,
    /// Flows in maps of other sizes, which the programs of an earlier agent go on to fill.
    pub earlier: EarlierFlows,
}

impl PodTables {
    /// Takes over the maps pinned under `bpf_root`, which must be a bpf file system, or makes them with these sizes.
    ///
    /// A map that has another size or layout is made anew beside the old one, which lives on as long as programs use it; what
    /// the agent wrote in it is in the new one when this returns, what programs learned comes over with
    /// [`EarlierFlows::adopt`]. Must come before the socket programs are loaded: they read `pw_netns`. The caller holds the
    /// lock on `bpf_root`.
    ///
    /// # Errors
    /// The kernel refuses a map or a pin; the maps before that one are pinned, the others as they were.
    pub fn open(bpf_root: &Path, sizes: &PodSizes) -> Result<(Self, PodOpening), MapError> {
        if !is_bpf_fs(bpf_root).map_err(MapError::pin("look at", bpf_root))? {
            return Err(MapError::NotBpfFs { root: bpf_root.to_owned() });
        }
        let dir = pin_dir(bpf_root);
        std::fs::create_dir_all(&dir).map_err(MapError::pin("make", &dir))?;
        remove_next(&dir, PodMapId::ALL.map(PodMapId::name))?;
        let mut earlier = EarlierFlows::default();
        let mut origins = BTreeMap::new();
        let mut maps = BTreeMap::new();
        for map in PodMapId::ALL {
            let (raw, origin) = open_one(&dir, map, sizes, &mut earlier)?;
            origins.insert(map, origin);
            maps.insert(map, raw);
        }
        let set = PodMaps::new(Access::ReadWrite, |map| {
            maps.remove(&map).ok_or_else(|| MapError::NoMaps { dir: dir.clone() })
        })?;
        let reader = PodReader { maps: Arc::new(set) };
        Ok((Self { reader }, PodOpening { origins, earlier }))
    }
}

impl PodTables {
    /// Whether an agent with a pod network has been at work under `bpf_root`.
    pub fn are_pinned(bpf_root: &Path) -> bool {
        pin_dir(bpf_root).join(PodMapId::Endpoints.name()).exists()
    }

    /// Removes the pins of the pod network's maps; they go when no program uses them. The names.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn unpin(bpf_root: &Path) -> Result<Vec<String>, MapError> {
        let dir = pin_dir(bpf_root);
        let mut removed = Vec::new();
        remove_next(&dir, PodMapId::ALL.map(PodMapId::name))?;
        // Last the one that says that there is something to remove.
        for map in PodMapId::ALL.into_iter().rev() {
            for path in [earlier::pin(&dir, map), dir.join(map.name())] {
                if unpin(&path)? {
                    removed.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
                }
            }
        }
        Ok(removed)
    }
}

fn open_one(
    dir: &Path,
    map: PodMapId,
    sizes: &PodSizes,
    earlier: &mut EarlierFlows,
) -> Result<(RawMap, Origin), MapError> {
    let path = dir.join(map.name());
    let wanted = map.layout(sizes);
    let (old, origin) = match RawMap::open(&path, Access::ReadWrite) {
        Ok(raw) => match wanted.difference(raw.info()) {
            None => {
                earlier.find(dir, map)?;
                return Ok((raw, Origin::Reused));
            }
            Some(difference) => (Some(raw), Origin::Replaced(difference)),
        },
        Err(e) if is_missing(&e) => (None, Origin::Created),
        // Something else is pinned here: a program, a link.
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            let (field, wanted) = (LayoutField::Kind, wanted.kind as u32);
            (None, Origin::Replaced(LayoutDifference { map: map.into(), field, found: 0, wanted }))
        }
        Err(source) => return Err(MapError::Pin { action: "open", path, source }),
    };
    let entries = wanted.entries;
    let raw = RawMap::create(map.name(), wanted.info(), None).map_err(|source| MapError::Create {
        map: map.into(),
        entries,
        source,
    })?;
    // Whatever was copied before a start that did not end is behind the pins.
    earlier.find(dir, map)?;
    match (map.content(), old) {
        (Content::Written, Some(old)) => copy_written(map, &old, &raw)?,
        (Content::Learned, Some(old)) => earlier.add(dir, map, old)?,
        (Content::Written | Content::Learned | Content::Passing, _) => {}
    }
    pin_over(&raw, dir, map.name())?;
    Ok((raw, origin))
}

/// What only agents write and nobody writes now. A smaller map takes what fits: the rest is written when its owner knows it.
fn copy_written(map: PodMapId, old: &RawMap, new: &RawMap) -> Result<(), MapError> {
    let (from, to) = (old.info(), new.info());
    if (from.kind, from.key_size, from.value_size) != (to.kind, to.key_size, to.value_size) {
        return Ok(());
    }
    let mut failed = None;
    let read = old.for_each(|key, value| {
        if failed.is_none() {
            failed = insert(new, key, value, Expect::Any).err();
        }
    });
    read.map_err(MapError::map(map, "read the earlier"))?;
    match failed {
        Some(e) if !matches!(e.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC)) => {
            Err(MapError::map(map, "copy the earlier agent's entries into")(e))
        }
        Some(_) | None => Ok(()),
    }
}
