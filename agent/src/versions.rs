//! The directories that agents of all layout versions pin in: `BPF_ROOT/portway/v<number>/{maps,links}`, and beside these
//! `learned-<number>`, which says what the maps that programs fill mean.

use std::io;
use std::path::{Path, PathBuf};

use portway_datapath::layout::LEARNED_VERSION;

/// The directory of maps of a version.
pub(crate) fn maps(version: &Path) -> PathBuf {
    version.join("maps")
}

/// The directory of links of a version.
pub(crate) fn links(version: &Path) -> PathBuf {
    version.join("links")
}

/// The directory of links to interfaces of a version.
pub(crate) fn interfaces(version: &Path) -> PathBuf {
    version.join("interfaces")
}

/// Every version beside this one, sorted by name.
pub(crate) fn others(version: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(portway) = version.parent() else { return Ok(Vec::new()) };
    let mut others = Vec::new();
    for name in entries(portway)? {
        let path = portway.join(&name);
        let is_version = name.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
        if is_version && path != version {
            others.push(path);
        }
    }
    Ok(others)
}

/// Notes that what programs learn in this version's maps means what it means to us.
pub(crate) fn mark(version: &Path) -> io::Result<()> {
    std::fs::create_dir_all(version.join(learned()))
}

/// Whether what programs have learned in another version's maps means what it means to us.
pub(crate) fn speaks_ours(version: &Path) -> bool {
    version.join(learned()).is_dir()
}

/// Whether programs of that version were attached.
pub(crate) fn has_links(version: &Path) -> bool {
    entries(&links(version)).is_ok_and(|links| !links.is_empty())
}

/// Removes the pins of maps and the directories; links must have gone. What was removed, by name.
pub(crate) fn remove(version: &Path) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    let maps = maps(version);
    for map in entries(&maps)? {
        std::fs::remove_file(maps.join(&map))?;
        removed.push(map);
    }
    for dir in entries(version)? {
        std::fs::remove_dir(version.join(dir))?;
    }
    match std::fs::remove_dir(version) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(removed),
    }
}

/// Names in a directory, sorted; none where it is missing.
pub(crate) fn entries(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names: Vec<_> =
        entries.into_iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

fn learned() -> String {
    format!("learned-{LEARNED_VERSION}")
}
