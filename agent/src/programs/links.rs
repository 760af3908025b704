use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use portway_datapath::layout::LAYOUT_VERSION;

use crate::{bpf, versions};

use super::error::ProgramError;
use super::hook::Hook;
use super::load::Programs;
use super::sys;

/// A program that runs, kept by a pinned link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    pub hook: Hook,
    /// The kernel's numbers, as `bpftool link` and `bpftool prog` show them.
    pub link: u32,
    pub program: u32,
    /// The cgroup's number, which is the inode of its directory; 0 where the cgroup is gone and nothing runs.
    pub cgroup: u64,
}

/// What [`Programs::attach`] did at a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// There was no link.
    Attached,
    /// The pinned link's program was replaced, without a moment with none or two. The old program's number.
    Replaced { old_program: u32 },
    /// The pinned link was to another cgroup (0: one that is gone) and was removed first.
    Moved { old_cgroup: u64 },
}

/// The directory of the links' pins.
pub fn link_dir(bpf_root: &Path) -> PathBuf {
    bpf_root.join("portway").join(format!("v{LAYOUT_VERSION}")).join("links")
}

impl Programs {
    /// Makes these programs run for `cgroup` and everything below it, and pins the links in `dir`, which is made if
    /// it is missing.
    ///
    /// Programs of an earlier agent are replaced through their pinned links. An error leaves the hooks before the
    /// failed one with the new programs and the others as they were; repeating the call goes on from there.
    pub fn attach(&self, cgroup: &Path, dir: &Path) -> Result<Vec<(Hook, Change)>, ProgramError> {
        let changes = attach(self.hooks(), cgroup, dir)?;
        // What a version with other hooks left.
        for name in pins(dir)? {
            if Hook::from_name(&name).is_none() {
                remove(&dir.join(name))?;
            }
        }
        Ok(changes)
    }

    /// As [`Self::attach`], the programs that read an earlier agent's maps too, where there are any.
    pub fn attach_both(&self, cgroup: &Path, dir: &Path) -> Result<Vec<(Hook, Change)>, ProgramError> {
        attach(self.both(), cgroup, dir)
    }
}

fn attach<'a>(
    programs: impl Iterator<Item = (Hook, BorrowedFd<'a>)>,
    cgroup: &Path,
    dir: &Path,
) -> Result<Vec<(Hook, Change)>, ProgramError> {
    let cgroup_dir = open_cgroup(cgroup)?;
    let about = cgroup_dir.metadata();
    let cgroup_id = about.map_err(|source| ProgramError::Cgroup { path: cgroup.to_owned(), source })?.ino();
    std::fs::create_dir_all(dir).map_err(ProgramError::pin("make the directory", dir))?;
    let mut changes = Vec::new();
    for (hook, program) in programs {
        let path = dir.join(hook.name());
        let mut change = Change::Attached;
        if let Some(link) = open_or_take_over(hook, dir)? {
            let info = sys::link_info(link.as_fd()).map_err(ProgramError::pin("read the link", &path))?;
            if info.cgroup == cgroup_id && info.attach_type == hook.attach_type() {
                sys::link_update(link.as_fd(), program)
                    .map_err(|source| ProgramError::Replace { path, source })?;
                changes.push((hook, Change::Replaced { old_program: info.program }));
                continue;
            }
            remove(&path)?;
            change = Change::Moved { old_cgroup: info.cgroup };
        }
        let link = sys::link_create(program, cgroup_dir.as_fd(), hook.attach_type())
            .map_err(|source| ProgramError::Attach { hook, cgroup: cgroup.to_owned(), source })?;
        bpf::pin(link.as_fd(), &path).map_err(ProgramError::pin("pin a link at", &path))?;
        changes.push((hook, change));
    }
    Ok(changes)
}

/// The link pinned for `hook`, or that of another layout version, which is pinned here from then on.
fn open_or_take_over(hook: Hook, dir: &Path) -> Result<Option<OwnedFd>, ProgramError> {
    let path = dir.join(hook.name());
    if let Some(link) = open_link(&path)? {
        return Ok(Some(link));
    }
    for other in other_link_dirs(dir)? {
        let other = other.join(hook.name());
        if let Some(link) = open_link(&other)? {
            bpf::pin(link.as_fd(), &path).map_err(ProgramError::pin("pin a link at", &path))?;
            std::fs::remove_file(&other).map_err(ProgramError::pin("remove", &other))?;
            return Ok(Some(link));
        }
    }
    Ok(None)
}

fn other_link_dirs(dir: &Path) -> Result<Vec<PathBuf>, ProgramError> {
    let Some(version) = dir.parent() else { return Ok(Vec::new()) };
    let others = versions::others(version).map_err(ProgramError::pin("read the directory", version))?;
    Ok(others.iter().map(|version| versions::links(version)).collect())
}

/// Whether programs of other layout versions than that of `dir` are attached.
pub fn of_other_versions(dir: &Path) -> Result<bool, ProgramError> {
    let Some(version) = dir.parent() else { return Ok(false) };
    let others = versions::others(version).map_err(ProgramError::pin("read the directory", version))?;
    Ok(others.iter().any(|other| versions::has_links(other)))
}

/// Removes what other layout versions have left beside `dir`: their programs end, unless the link is one of `dir`, and their
/// maps lose their pins. Those that have links to interfaces are left to
/// [`super::InterfacePrograms::retire_other_versions`]. The names of the versions.
pub fn retire_other_versions(dir: &Path) -> Result<Vec<String>, ProgramError> {
    let ours: BTreeSet<u32> = attached(dir)?.into_iter().map(|attached| attached.link).collect();
    let Some(version) = dir.parent() else { return Ok(Vec::new()) };
    let others = versions::others(version).map_err(ProgramError::pin("read the directory", version))?;
    let mut retired = Vec::new();
    for other in others {
        if versions::entries(&versions::interfaces(&other)).is_ok_and(|links| !links.is_empty()) {
            continue;
        }
        let links = versions::links(&other);
        for name in pins(&links)? {
            let path = links.join(name);
            let link = open_link(&path)?;
            let info = link.map(|link| sys::link_info(link.as_fd())).transpose();
            let info = info.map_err(ProgramError::pin("read the link", &path))?;
            match info {
                // An agent that moved the link here ended before it removed the pin there.
                Some(info) if ours.contains(&info.id) => {
                    std::fs::remove_file(&path).map_err(ProgramError::pin("remove", &path))?;
                }
                Some(_) | None => remove(&path)?,
            }
        }
        versions::remove(&other).map_err(ProgramError::pin("remove", &other))?;
        retired.extend(other.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    Ok(retired)
}

/// The links pinned in `dir`, in the order of [`Hook::ALL`]; none where there is no such directory.
pub fn attached(dir: &Path) -> Result<Vec<Attached>, ProgramError> {
    let mut found = Vec::new();
    for hook in Hook::ALL {
        let path = dir.join(hook.name());
        let Some(link) = open_link(&path)? else { continue };
        let info = sys::link_info(link.as_fd()).map_err(ProgramError::pin("read the link", &path))?;
        found.push(Attached { hook, link: info.id, program: info.program, cgroup: info.cgroup });
    }
    Ok(found)
}

/// Detaches every program by removing the pins of its link, and the directory. The names of the pins; none where there
/// is no such directory.
///
/// Those that translate go first, so that no socket is translated that is not translated back.
pub fn detach(dir: &Path) -> Result<Vec<String>, ProgramError> {
    let mut left = pins(dir)?;
    let mut removed = Vec::new();
    for hook in Hook::ALL.into_iter().rev() {
        if let Some(name) = left.take(hook.name()) {
            remove(&dir.join(&name))?;
            removed.push(name);
        }
    }
    for name in left {
        remove(&dir.join(&name))?;
        removed.push(name);
    }
    match std::fs::remove_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(ProgramError::pin("remove", dir)(e)),
        Ok(()) | Err(_) => Ok(removed),
    }
}

/// A directory of a cgroup v2 hierarchy.
pub(super) fn open_cgroup(path: &Path) -> Result<File, ProgramError> {
    let error = |source| ProgramError::Cgroup { path: path.to_owned(), source };
    let dir = File::open(path).map_err(error)?;
    match sys::is_cgroup2(dir.as_fd()).map_err(error)? {
        true => Ok(dir),
        false => Err(ProgramError::NotCgroup2 { path: path.to_owned() }),
    }
}

pub(super) fn open_link(path: &Path) -> Result<Option<OwnedFd>, ProgramError> {
    match bpf::open_pin(path, 0) {
        Ok(link) => Ok(Some(link)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(ProgramError::pin("open the link pinned at", path)(e)),
    }
}

/// Removing the pin alone would let the program run on until the kernel comes to free the link.
fn remove(path: &Path) -> Result<(), ProgramError> {
    if let Some(link) = open_link(path)? {
        sys::link_detach(link.as_fd()).map_err(ProgramError::pin("detach the link pinned at", path))?;
    }
    std::fs::remove_file(path).map_err(ProgramError::pin("remove", path))
}

fn pins(dir: &Path) -> Result<BTreeSet<String>, ProgramError> {
    let read = |e| ProgramError::pin("read the directory", dir)(e);
    let entries = match dir.read_dir() {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(e) => return Err(read(e)),
    };
    entries.map(|entry| Ok(entry.map_err(read)?.file_name().to_string_lossy().into_owned())).collect()
}
