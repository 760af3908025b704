//! Programs at interfaces: attached, replaced without a moment with none or two, detached.
//!
//! ```text
//! links    tcx: links, pinned by interface and hook, so that they outlive the agent
//! filters  of pods' links, and before Linux 6.6 of devices: filters of clsact with a fixed handle, which outlive the agent by
//!          themselves
//! pins     an interface and a hook as the name of a pin
//! ```
//!
//! [`InterfacePrograms::attach`] is level-based: called again it changes what is not as it should be and nothing else. So
//! a start, a restart and the audit call the same.

mod filters;
mod links;
mod netlink;
mod pins;

use std::fmt;
use std::path::{Path, PathBuf};

use super::error::ProgramError;
use super::load::LoadedProgram;
use super::pods::{PodProgram, PodPrograms};
use super::sys;
use crate::maps::pin_dir;
use crate::versions;

/// A hook of an interface, as tc(8) calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InterfaceHook {
    /// What the interface receives: at the node's end of a pod's link what the pod sends.
    Ingress,
    Egress,
}

/// What an interface leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The node's end of a pod's link.
    Pod,
    /// Out of the node.
    Device,
    /// The tunnel device.
    Tunnel,
}

/// What was done at a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceChange {
    /// Our program ran there.
    Unchanged,
    /// None of ours ran.
    Attached,
    /// Another one of ours ran, an earlier agent's: it was replaced in one step. Its number.
    Replaced { old_program: u32 },
    /// The link was to another interface (0: one that is gone).
    Moved { old_ifindex: u32 },
}

/// A program that runs at an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachedInterface {
    pub interface: String,
    pub hook: InterfaceHook,
    /// 0 where the interface is gone.
    pub ifindex: u32,
    /// The kernel's number, as `bpftool prog` shows it.
    pub program: u32,
}

/// The packet programs, and where they run. All calls may be made on any thread, one at a time.
#[derive(Debug)]
pub struct InterfacePrograms {
    programs: PodPrograms,
    dir: PathBuf,
    has_tcx: bool,
}

impl InterfaceHook {
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

impl Side {
    /// Hooks and programs in the order in which they are attached: what undoes a translation before what makes one.
    /// Detached in the reverse order.
    pub(super) const fn programs(self) -> [(InterfaceHook, PodProgram); 2] {
        match self {
            Self::Pod => {
                [(InterfaceHook::Egress, PodProgram::ToPod), (InterfaceHook::Ingress, PodProgram::FromPod)]
            }
            Self::Device => [
                (InterfaceHook::Ingress, PodProgram::FromDevice),
                (InterfaceHook::Egress, PodProgram::ToDevice),
            ],
            Self::Tunnel => [
                (InterfaceHook::Ingress, PodProgram::FromTunnel),
                (InterfaceHook::Egress, PodProgram::ToTunnel),
            ],
        }
    }
}

impl InterfacePrograms {
    /// Loads the packet programs onto the maps pinned under `bpf_root`, which must all be there
    /// ([`crate::maps::KernelTables::open`], [`crate::maps::PodTables::open`]). Attaches nothing.
    ///
    /// # Errors
    /// The agent was built without the object, or the kernel refuses a program.
    pub fn load(bpf_root: &Path) -> Result<Self, ProgramError> {
        Self::on(bpf_root, sys::has_tcx().map_err(ProgramError::pin("look for", "tcx"))?)
    }

    /// As [`Self::load`], with filters also where the kernel has tcx.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_for_filters(bpf_root: &Path) -> Result<Self, ProgramError> {
        Self::on(bpf_root, false)
    }

    fn on(bpf_root: &Path, has_tcx: bool) -> Result<Self, ProgramError> {
        let programs = PodPrograms::load(&pin_dir(bpf_root))?;
        Ok(Self { programs, dir: interface_dir(bpf_root), has_tcx })
    }

    /// Whether programs of devices are attached by tcx; else by filters.
    pub const fn has_tcx(&self) -> bool {
        self.has_tcx
    }

    /// Whether programs of a side are attached by tcx. Those of pods are not: with the first program of a hook tcx waits for
    /// a grace period while it holds the lock of all interfaces (`tcx_entry_sync`), 8 to 16 ms for each of the two, and so for
    /// each pod after the other. A filter makes the kernel hurry (`mini_qdisc_pair_swap`). A pod's link has links where
    /// somebody else's qdisc leaves no place for filters, and where it has settled ([`Self::settle`]).
    fn is_linked(&self, side: Side) -> bool {
        self.has_tcx && side != Side::Pod
    }

    /// What was loaded.
    pub fn loaded(&self) -> &[LoadedProgram] {
        self.programs.loaded()
    }

    /// Makes the programs of `side` run at an interface of this thread's network namespace. Programs of an earlier agent are
    /// replaced in one step, what is right is not touched.
    ///
    /// # Errors
    /// There is no such interface any more, or the kernel refuses; repeating the call goes on from there. `EEXIST`: the link
    /// lost its pin just now, and the kernel has not come to free it.
    pub fn attach(
        &self,
        ifindex: u32,
        interface: &str,
        side: Side,
    ) -> Result<[InterfaceChange; 2], ProgramError> {
        let mut changes = [InterfaceChange::Unchanged; 2];
        for ((hook, program), change) in side.programs().into_iter().zip(&mut changes) {
            let (fd, id) = self.programs.get(program)?;
            let (at, program) = ((ifindex, interface), (program.name(), fd, id));
            // What is linked stays so: a filter beside it would see each packet a second time.
            let is_linked = self.is_linked(side) || (self.has_tcx && links::is_linked(&self.dir, at, hook)?);
            if !is_linked {
                match filters::attach(at, hook, program) {
                    Err(ProgramError::Qdisc { .. }) if self.has_tcx => {}
                    other => {
                        *change = other?;
                        continue;
                    }
                }
            }
            *change = links::attach(&self.dir, at, hook, program)?;
            if side == Side::Pod {
                // Of an agent that ended while the link settled.
                filters::detach_from(at, hook)?;
            }
        }
        Ok(changes)
    }

    /// Moves the program that sees what a pod sends from its filter to a link, which costs each packet a tenth of a microsecond
    /// less. Waits for a grace period while it holds the lock of all interfaces: for a quiet time, and for links that are
    /// the pod network's own (`NodeNetwork::OWN_LINKS`), where what goes on is not looked at by a filter behind the
    /// link. Whether there was something to move.
    ///
    /// # Errors
    /// There is no such interface any more, or the kernel refuses; then the filter does its work, or both are there and the
    /// link alone does.
    pub fn settle(&self, ifindex: u32, interface: &str) -> Result<bool, ProgramError> {
        let (at, hook, program) = ((ifindex, interface), InterfaceHook::Ingress, PodProgram::FromPod);
        if !self.has_tcx || links::is_linked(&self.dir, at, hook)? {
            return Ok(false);
        }
        let (fd, id) = self.programs.get(program)?;
        links::attach(&self.dir, at, hook, (program.name(), fd, id))?;
        filters::detach_from(at, hook)?;
        Ok(true)
    }

    /// Ends our programs at an interface, which may be gone. Whether there were any.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn detach(&self, interface: &str) -> Result<bool, ProgramError> {
        let linked = links::detach(&self.dir, interface)?;
        // A pod's link may have either, a device one of them.
        Ok(filters::detach(interface)? || linked)
    }

    /// What runs where, as the pins (or filters) of this and of earlier agents say; sorted.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn attached(&self) -> Result<Vec<AttachedInterface>, ProgramError> {
        let mut found = filters::attached()?;
        if self.has_tcx {
            found.extend(links::attached(&self.dir)?);
        }
        found.sort();
        Ok(found)
    }

    /// Whether the programs of `side` run at an interface. Costs a few system calls.
    ///
    /// # Errors
    /// The kernel would not say.
    pub fn is_attached(&self, ifindex: u32, interface: &str, side: Side) -> Result<bool, ProgramError> {
        let mut found = if self.has_tcx { links::attached_to(&self.dir, interface)? } else { Vec::new() };
        if !self.is_linked(side) {
            found.extend(filters::attached_to(ifindex, interface)?);
        }
        for (hook, program) in side.programs() {
            let (_, id) = self.programs.get(program)?;
            let runs = |at: &AttachedInterface| at.hook == hook && at.program == id && at.ifindex == ifindex;
            if !found.iter().any(runs) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends what programs of other layout versions do at interfaces where ours are not, and removes what is left of these
    /// versions. For when our programs are where they shall be and the services' too. The names of the versions.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn retire_other_versions(&self) -> Result<Vec<String>, ProgramError> {
        let Some(version) = self.dir.parent() else { return Ok(Vec::new()) };
        for other in versions::others(version).map_err(ProgramError::pin("read the directory", version))? {
            links::detach_all(&versions::interfaces(&other))?;
        }
        super::links::retire_other_versions(&versions::links(version))
    }

    /// Removes the pins that interfaces left which are gone. Their names.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_gone(&self) -> Result<Vec<String>, ProgramError> {
        let mut gone = Vec::new();
        for at in links::attached(&self.dir)?.into_iter().filter(|at| at.ifindex == 0) {
            links::remove(&self.dir.join(pins::name(&at.interface, at.hook)))?;
            gone.push(at.interface);
        }
        gone.dedup();
        Ok(gone)
    }
}

/// The directory of the pins of links to interfaces, of this layout version.
pub fn interface_dir(bpf_root: &Path) -> PathBuf {
    let maps = pin_dir(bpf_root);
    maps.parent().map_or_else(|| maps.clone(), versions::interfaces)
}

/// Detaches everything that is pinned in a directory of [`interface_dir`]'s sort, and removes it. The pins' names; none
/// where there is no such directory.
pub fn detach_pinned(dir: &Path) -> Result<Vec<String>, ProgramError> {
    links::detach_all(dir)
}

/// Detaches everything at interfaces that agents of any layout version pinned. The pins' names.
pub fn detach_interfaces(bpf_root: &Path) -> Result<Vec<String>, ProgramError> {
    let dir = interface_dir(bpf_root);
    let mut detached = links::detach_all(&dir)?;
    let Some(version) = dir.parent() else { return Ok(detached) };
    for other in versions::others(version).map_err(ProgramError::pin("read the directory", version))? {
        detached.extend(links::detach_all(&versions::interfaces(&other))?);
    }
    Ok(detached)
}

/// Removes the filters of the pod network from every interface of this thread's network namespace. The interfaces' names.
pub fn detach_filters() -> Result<Vec<String>, ProgramError> {
    filters::detach_all()
}

impl fmt::Display for InterfaceHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for PodProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
