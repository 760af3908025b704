use std::io;
use std::path::{Path, PathBuf};

use super::check::Inconsistency;
use super::layout::{AnyMap, LayoutDifference};
use super::sys::RawMap;

/// What went wrong with a map, with the way out where there is one.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error("bpf-root {root} is not in a bpf file system; mount one there: mount -t bpf bpf {root}", root = .root.display())]
    NotBpfFs { root: PathBuf },
    #[error("no Portway maps in {dir}: no agent has run with this bpf-root, or it was cleaned up", dir = .dir.display())]
    NoMaps { dir: PathBuf },
    #[error(
        "no maps of a pod network in {dir}: no agent has run there with enable-pod-network, or it was cleaned up",
        dir = .dir.display()
    )]
    NoPodMaps { dir: PathBuf },
    #[error("cannot {action} {path}: {source}", path = .path.display())]
    Pin { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot create {map} with {entries} entries: {source}{hint}", hint = lower(*.map))]
    Create { map: AnyMap, entries: u32, source: io::Error },
    #[error("{0}: it was made by another version; use that version's portway")]
    Layout(LayoutDifference),
    #[error("the maps contradict each other: {0}; restart the agent to make them anew")]
    Inconsistent(Inconsistency),
    #[error("{map} is full at {entries} entries{hint}", hint = raise(*.map))]
    Full { map: AnyMap, entries: u32 },
    #[error("{map} has {entries} elements and no element {element}{hint}", hint = raise(*.map))]
    OutOfRange { map: AnyMap, element: u64, entries: u32 },
    #[error("{map} has {key} with another value; it must change in place")]
    Exists { map: AnyMap, key: String },
    #[error("{map} has no {key}")]
    NoSuchKey { map: AnyMap, key: String },
    #[error("cannot store {key} in {map} in place: the program that does it is not loaded yet")]
    NoStoreProgram { map: AnyMap, key: String },
    #[error("the program that stores in place returned {code} for {key} in {map}, which it never should")]
    StoreProgram { map: AnyMap, key: String, code: u32 },
    #[error("cannot {action} {key} in {map}: {source}")]
    Element { map: AnyMap, action: &'static str, key: String, source: io::Error },
    #[error("cannot {action} {map}: {source}")]
    Map { map: AnyMap, action: &'static str, source: io::Error },
}

impl MapError {
    pub(super) fn pin(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Pin { action, path: path.to_owned(), source }
    }

    pub(super) fn map(map: impl Into<AnyMap>, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let map = map.into();
        move |source| Self::Map { map, action, source }
    }

    /// A failed insert: a full hash is `E2BIG`, a full trie `ENOSPC`.
    pub(super) fn insert(map: impl Into<AnyMap>, raw: &RawMap, key: String, source: io::Error) -> Self {
        let map = map.into();
        match source.raw_os_error() {
            Some(libc::E2BIG | libc::ENOSPC) => Self::Full { map, entries: raw.info().entries },
            Some(_) | None => Self::Element { map, action: "insert", key, source },
        }
    }
}

fn raise(map: AnyMap) -> String {
    map.size_key().map(|key| format!("; raise {key} and restart the agent")).unwrap_or_default()
}

fn lower(map: AnyMap) -> String {
    map.size_key().map(|key| format!("; free memory or lower {key}")).unwrap_or_default()
}
