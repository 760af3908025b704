//! Whether the programs still run as this agent attached them, and putting them right where somebody took them away.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::bpf;

use super::error::ProgramError;
use super::hook::Hook;
use super::links::{open_cgroup, open_link};
use super::load::Programs;
use super::sys;

/// The links of an agent that runs, held open: a pin that goes takes nothing with it.
#[derive(Debug)]
pub struct Links {
    cgroup: PathBuf,
    /// The number that the links are to.
    cgroup_id: u64,
    dir: PathBuf,
    /// `None` where there was none to open.
    held: Vec<(Hook, Option<HeldLink>)>,
}

#[derive(Debug)]
struct HeldLink {
    link: OwnedFd,
    id: u32,
}

/// What is wrong with the link of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkFault {
    pub hook: Hook,
    pub kind: LinkFaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkFaultKind {
    /// Nothing of ours runs: the link was detached, or its cgroup made anew.
    Detached,
    /// The link runs a program that is not ours.
    OtherProgram {
        program: u32,
    },
    NotPinned,
    /// Something that is not our link is pinned under its name.
    OtherPin,
}

/// A program that runs on the sockets of our cgroup and is not ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OtherProgram {
    pub hook: Hook,
    /// The kernel's number, as `bpftool prog` shows it.
    pub program: u32,
    /// "" where the kernel has none.
    pub name: String,
    /// Before ours, so that ours sees what it left; else after.
    pub runs_before: bool,
}

impl Links {
    /// Opens the links that [`Programs::attach`] pinned.
    ///
    /// # Errors
    /// The cgroup or a pin cannot be opened. A pin that is missing is no error: [`Self::faults`] finds it.
    pub fn open(cgroup: &Path, dir: &Path) -> Result<Self, ProgramError> {
        let held = Hook::ALL
            .into_iter()
            .map(|hook| {
                let path = dir.join(hook.name());
                let held = open_link(&path)?.map(|link| HeldLink::new(link, &path)).transpose()?;
                Ok((hook, held))
            })
            .collect::<Result<_, ProgramError>>()?;
        Ok(Self { cgroup: cgroup.to_owned(), cgroup_id: cgroup_id(cgroup)?, dir: dir.to_owned(), held })
    }

    /// What is not as it was made. Costs five system calls a hook.
    ///
    /// # Errors
    /// The kernel would not say.
    pub fn faults(&self, programs: &Programs) -> Result<Vec<LinkFault>, ProgramError> {
        let mut faults = Vec::new();
        for (hook, held) in &self.held {
            let kinds = [self.attachment(*hook, held.as_ref(), programs)?, self.pin(*hook, held.as_ref())?];
            faults.extend(kinds.into_iter().flatten().map(|kind| LinkFault { hook: *hook, kind }));
        }
        Ok(faults)
    }

    /// Puts the links of every hook right, those that undo a translation first: a program is attached again or put
    /// back in its link, then the link is pinned. What is right is not touched.
    ///
    /// # Errors
    /// The kernel refused something; the hooks before that one are right, and repeating the call goes on from there.
    pub fn heal(&mut self, programs: &Programs) -> Result<(), ProgramError> {
        let group = open_cgroup(&self.cgroup)?;
        // One that was made anew under the same name has another number.
        self.cgroup_id = cgroup_id(&self.cgroup)?;
        for (hook, program) in programs.hooks() {
            let Some(at) = self.held.iter().position(|(held, _)| *held == hook) else { continue };
            let path = self.dir.join(hook.name());
            let held = self.held.get(at).and_then(|(_, held)| held.as_ref());
            match (self.attachment(hook, held, programs)?, held) {
                (Some(LinkFaultKind::OtherProgram { .. }), Some(held)) => {
                    sys::link_update(held.link.as_fd(), program)
                        .map_err(|source| ProgramError::Replace { path: path.clone(), source })?;
                }
                (Some(_), _) => {
                    let attach = |source| ProgramError::Attach { hook, cgroup: self.cgroup.clone(), source };
                    let link =
                        sys::link_create(program, group.as_fd(), hook.attach_type()).map_err(attach)?;
                    let held = HeldLink::new(link, &path)?;
                    if let Some(place) = self.held.get_mut(at) {
                        place.1 = Some(held);
                    }
                }
                (None, _) => {}
            }
            let held = self.held.get(at).and_then(|(_, held)| held.as_ref());
            if let (Some(_), Some(held)) = (self.pin(hook, held)?, held) {
                self.pin_again(held, &path)?;
            }
        }
        Ok(())
    }

    /// The programs of others at our hooks, on our cgroup or above it, in the order in which they run.
    ///
    /// # Errors
    /// The kernel would not say.
    pub fn others(&self, programs: &Programs) -> Result<Vec<OtherProgram>, ProgramError> {
        let group = open_cgroup(&self.cgroup)?;
        let mut others = Vec::new();
        for hook in Hook::ALL {
            let failed = |source| ProgramError::Cgroup { path: self.cgroup.clone(), source };
            let running = sys::effective_programs(group.as_fd(), hook.attach_type()).map_err(failed)?;
            let own = programs.id(hook);
            let place = running.iter().position(|program| Some(*program) == own);
            for (at, program) in running.iter().enumerate().filter(|(_, program)| Some(**program) != own) {
                let runs_before = place.is_none_or(|own| at < own);
                let name = sys::program_name(*program).unwrap_or_default();
                others.push(OtherProgram { hook, program: *program, name, runs_before });
            }
        }
        Ok(others)
    }

    fn attachment(
        &self,
        hook: Hook,
        held: Option<&HeldLink>,
        programs: &Programs,
    ) -> Result<Option<LinkFaultKind>, ProgramError> {
        let Some(held) = held else { return Ok(Some(LinkFaultKind::Detached)) };
        let read = ProgramError::pin("read the link", self.dir.join(hook.name()));
        let info = sys::link_info(held.link.as_fd()).map_err(read)?;
        Ok(if info.cgroup != self.cgroup_id {
            Some(LinkFaultKind::Detached)
        } else if Some(info.program) != programs.id(hook) {
            Some(LinkFaultKind::OtherProgram { program: info.program })
        } else {
            None
        })
    }

    fn pin(&self, hook: Hook, held: Option<&HeldLink>) -> Result<Option<LinkFaultKind>, ProgramError> {
        let Some(held) = held else { return Ok(None) };
        let path = self.dir.join(hook.name());
        let Some(pinned) = open_link(&path)? else { return Ok(Some(LinkFaultKind::NotPinned)) };
        match sys::link_info(pinned.as_fd()) {
            Ok(info) if info.id == held.id => Ok(None),
            Ok(_) => Ok(Some(LinkFaultKind::OtherPin)),
            // A map or a program, which describe themselves otherwise.
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => {
                Ok(Some(LinkFaultKind::OtherPin))
            }
            Err(source) => Err(ProgramError::pin("read the link", &path)(source)),
        }
    }

    /// The pin of something else goes; whoever made it keeps what it pinned.
    fn pin_again(&self, held: &HeldLink, path: &Path) -> Result<(), ProgramError> {
        std::fs::create_dir_all(&self.dir).map_err(ProgramError::pin("make the directory", &self.dir))?;
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(ProgramError::pin("remove", path)(e));
            }
            Ok(()) | Err(_) => {}
        }
        bpf::pin(held.link.as_fd(), path).map_err(ProgramError::pin("pin a link at", path))
    }
}

impl HeldLink {
    fn new(link: OwnedFd, path: &Path) -> Result<Self, ProgramError> {
        let info = sys::link_info(link.as_fd()).map_err(ProgramError::pin("read the link", path))?;
        Ok(Self { link, id: info.id })
    }
}

fn cgroup_id(cgroup: &Path) -> Result<u64, ProgramError> {
    let about = open_cgroup(cgroup)?.metadata();
    Ok(about.map_err(|source| ProgramError::Cgroup { path: cgroup.to_owned(), source })?.ino())
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hook = self.hook;
        match self.kind {
            LinkFaultKind::Detached => write!(f, "program {hook} was detached"),
            LinkFaultKind::OtherProgram { program } => {
                write!(f, "the link of {hook} runs program {program}, which is not ours")
            }
            LinkFaultKind::NotPinned => write!(f, "the link of {hook} is not pinned"),
            LinkFaultKind::OtherPin => write!(f, "something else is pinned in place of the link of {hook}"),
        }
    }
}

impl fmt::Display for OtherProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hook, program, name, runs_before } = self;
        write!(f, "program {program}")?;
        if !name.is_empty() {
            write!(f, " ({name})")?;
        }
        let place = if *runs_before { "before" } else { "after" };
        write!(f, " of somebody else runs {place} {hook}")
    }
}
