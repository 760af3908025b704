//! The kernel programs: loaded, attached, replaced, detached, and tried out at start.
//!
//! ```text
//! maps pinned (crate::maps) ─► Loader ─► selftest::run ─► Loader::load ─► Programs::attach ─► links pinned
//!                                         fresh maps, a                    a pinned link of the same cgroup has its
//!                                         cgroup of its own                program replaced, atomically
//! ```
//!
//! In: a directory with every map pinned under its name. Out: pinned links, one a hook, that keep the programs running
//! without the agent. Nothing here reads or writes a map that the agent uses.

mod btf;
mod error;
mod hook;
mod intact;
mod interface;
mod links;
mod load;
mod object;
mod pods;
pub mod selftest;
mod sys;

pub use error::ProgramError;
pub use hook::Hook;
pub use intact::{LinkFault, LinkFaultKind, Links, OtherProgram};
pub use interface::{
    AttachedInterface, InterfaceChange, InterfaceHook, InterfacePrograms, Side, detach_filters,
    detach_interfaces, detach_pinned, interface_dir,
};
pub use links::{Attached, Change, attached, detach, link_dir, of_other_versions, retire_other_versions};
pub use load::{LoadedProgram, Loader, Programs};
pub use object::{has_object, object, pods_object};
pub use pods::PodProgram;
