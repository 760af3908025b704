//! tcx: a link an interface and hook.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::super::error::ProgramError;
use super::super::links::open_link;
use super::super::sys;
use super::{AttachedInterface, InterfaceChange, InterfaceHook, pins};
use crate::{bpf, versions};

impl InterfaceHook {
    /// Number in `enum bpf_attach_type` of include/uapi/linux/bpf.h.
    const fn attach_type(self) -> u32 {
        match self {
            Self::Ingress => 46,
            Self::Egress => 47,
        }
    }
}

pub(super) fn attach(
    dir: &Path,
    (ifindex, interface): (u32, &str),
    hook: InterfaceHook,
    (name, program, id): (&'static str, BorrowedFd<'_>, u32),
) -> Result<InterfaceChange, ProgramError> {
    std::fs::create_dir_all(dir).map_err(ProgramError::pin("make the directory", dir))?;
    let path = dir.join(pins::name(interface, hook));
    let mut change = InterfaceChange::Attached;
    if let Some(link) = open_or_take_over(dir, &path)? {
        match info(link.as_fd(), &path)? {
            Some(info) if info.ifindex == ifindex && info.attach_type == hook.attach_type() => {
                if info.program == id {
                    return Ok(InterfaceChange::Unchanged);
                }
                sys::link_update(link.as_fd(), program)
                    .map_err(|source| ProgramError::Replace { path, source })?;
                return Ok(InterfaceChange::Replaced { old_program: info.program });
            }
            Some(info) => {
                change = InterfaceChange::Moved { old_ifindex: info.ifindex };
                remove(&path)?;
            }
            None => remove(&path)?,
        }
    }
    let link = sys::tcx_link_create(program, ifindex, hook.attach_type())
        .map_err(|source| ProgramError::interface("attach", name, interface, source))?;
    bpf::pin(link.as_fd(), &path).map_err(ProgramError::pin("pin a link at", &path))?;
    Ok(change)
}

/// The link pinned at `path`, or that of another layout version, which is pinned here from then on.
fn open_or_take_over(dir: &Path, path: &Path) -> Result<Option<OwnedFd>, ProgramError> {
    if let Some(link) = open_link(path)? {
        return Ok(Some(link));
    }
    let Some((link, other)) = of_another_version(dir, path)? else { return Ok(None) };
    bpf::pin(link.as_fd(), path).map_err(ProgramError::pin("pin a link at", path))?;
    std::fs::remove_file(&other).map_err(ProgramError::pin("remove", &other))?;
    Ok(Some(link))
}

/// The link that another layout version pinned where this one pins at `path`, and its pin.
fn of_another_version(dir: &Path, path: &Path) -> Result<Option<(OwnedFd, PathBuf)>, ProgramError> {
    let (Some(version), Some(name)) = (dir.parent(), path.file_name()) else { return Ok(None) };
    for other in versions::others(version).map_err(ProgramError::pin("read the directory", version))? {
        let other = versions::interfaces(&other).join(name);
        if let Some(link) = open_link(&other)? {
            return Ok(Some((link, other)));
        }
    }
    Ok(None)
}

/// `None` for something that is no link to an interface.
fn info(link: BorrowedFd<'_>, path: &Path) -> Result<Option<sys::TcxLinkInfo>, ProgramError> {
    match sys::tcx_link_info(link) {
        Ok(info) => Ok(Some(info)),
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => Ok(None),
        Err(e) => Err(ProgramError::pin("read the link", path)(e)),
    }
}

/// Removing the pin alone would let the program run on until the kernel comes to free the link. What is no link loses its pin.
pub(super) fn remove(path: &Path) -> Result<(), ProgramError> {
    if let Some(link) = open_link(path)?
        && info(link.as_fd(), path)?.is_some_and(|info| info.ifindex != 0)
    {
        match sys::link_detach(link.as_fd()) {
            // The interface went just now.
            Err(e) if e.raw_os_error() == Some(libc::ENOLINK) => {}
            Err(e) => return Err(ProgramError::pin("detach the link pinned at", path)(e)),
            Ok(()) => {}
        }
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(ProgramError::pin("remove", path)(e)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether a link of ours, of any layout version, is at a hook of an interface.
pub(super) fn is_linked(
    dir: &Path,
    (ifindex, interface): (u32, &str),
    hook: InterfaceHook,
) -> Result<bool, ProgramError> {
    let path = dir.join(pins::name(interface, hook));
    let link = match open_link(&path)? {
        Some(link) => Some(link),
        None => of_another_version(dir, &path)?.map(|(link, _)| link),
    };
    let Some(link) = link else { return Ok(false) };
    Ok(info(link.as_fd(), &path)?.is_some_and(|info| info.ifindex == ifindex))
}

/// Whether there were any.
pub(super) fn detach(dir: &Path, interface: &str) -> Result<bool, ProgramError> {
    let mut found = false;
    for hook in InterfaceHook::ALL {
        let path = dir.join(pins::name(interface, hook));
        if open_link(&path)?.is_some() {
            remove(&path)?;
            found = true;
        }
    }
    Ok(found)
}

pub(super) fn detach_all(dir: &Path) -> Result<Vec<String>, ProgramError> {
    let names = versions::entries(dir).map_err(ProgramError::pin("read the directory", dir))?;
    for name in &names {
        remove(&dir.join(name))?;
    }
    match std::fs::remove_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(ProgramError::pin("remove", dir)(e)),
        Ok(()) | Err(_) => Ok(names),
    }
}

pub(super) fn attached(dir: &Path) -> Result<Vec<AttachedInterface>, ProgramError> {
    let names = versions::entries(dir).map_err(ProgramError::pin("read the directory", dir))?;
    let mut found = Vec::new();
    for (interface, hook) in names.iter().filter_map(|name| pins::parse(name)) {
        found.extend(look(dir, &interface, hook)?);
    }
    found.sort();
    Ok(found)
}

pub(super) fn attached_to(dir: &Path, interface: &str) -> Result<Vec<AttachedInterface>, ProgramError> {
    let found = InterfaceHook::ALL.into_iter().map(|hook| look(dir, interface, hook));
    Ok(found.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

fn look(dir: &Path, interface: &str, hook: InterfaceHook) -> Result<Option<AttachedInterface>, ProgramError> {
    let path = dir.join(pins::name(interface, hook));
    let Some(link) = open_link(&path)? else { return Ok(None) };
    let info = info(link.as_fd(), &path)?.filter(|info| info.attach_type == hook.attach_type());
    Ok(info.map(|info| AttachedInterface {
        interface: interface.to_owned(),
        hook,
        ifindex: info.ifindex,
        program: info.program,
    }))
}
