//! Of pods' links, and before Linux 6.6 of every interface: filters of `clsact`, with a fixed handle and the first of a few
//! priorities that is free, so that attaching again replaces.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::net::if_::if_nameindex;

use super::super::error::ProgramError;
use super::netlink::{Message, Route, TcTarget};
use super::{AttachedInterface, InterfaceChange, InterfaceHook};
use crate::bpf::number as descriptor;
use crate::netlink::{NLM_F_DUMP, attribute, number};

// include/uapi/linux/rtnetlink.h, netlink.h, pkt_sched.h, pkt_cls.h.
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_EXCL: u16 = 0x200;
/// Before Linux 6.7 who asks for a qdisc gets it with this alone.
const NLM_F_ECHO: u16 = 8;
const TC_H_CLSACT: u32 = 0xffff_fff1;
const TC_H_MIN_INGRESS: u32 = 0xffff_fff2;
const TC_H_MIN_EGRESS: u32 = 0xffff_fff3;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;

/// Ours is at the first that takes it: filters of one priority are of one kind and protocol.
const PRIORITIES: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
/// "PW".
const HANDLE: u32 = 0x5057;
/// What the names of our programs begin with, in every layout version.
const NAMES: &[u8] = b"pw_";

/// A filter of ours.
#[derive(Clone, Copy)]
struct Filter {
    priority: u32,
    /// The kernel's number.
    program: u32,
}

impl InterfaceHook {
    const fn parent(self) -> u32 {
        match self {
            Self::Ingress => TC_H_MIN_INGRESS,
            Self::Egress => TC_H_MIN_EGRESS,
        }
    }

    const fn target(self, ifindex: u32, priority: u32) -> TcTarget {
        // ETH_P_ALL in network order.
        let info = priority << 16 | (libc::ETH_P_ALL as u16).to_be() as u32;
        TcTarget { ifindex, handle: HANDLE, parent: self.parent(), info }
    }
}

/// # Errors
/// [`ProgramError::Qdisc`]: somebody else's qdisc is where clsact should be.
pub(super) fn attach(
    (ifindex, interface): (u32, &str),
    hook: InterfaceHook,
    (name, program, id): (&'static str, BorrowedFd<'_>, u32),
) -> Result<InterfaceChange, ProgramError> {
    let failed = |action| move |errno: Errno| ProgramError::interface(action, name, interface, errno.into());
    let mut route = Route::open().map_err(failed("attach"))?;
    let before = filters(&mut route, ifindex, hook).map_err(failed("look for"))?;
    let options = [
        (TCA_BPF_FD, descriptor(program).to_ne_bytes().to_vec()),
        (TCA_BPF_NAME, [name.as_bytes(), &[0]].concat()),
        (TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes().to_vec()),
    ];
    let set = |flags, priority| {
        let message = Message::new(RTM_NEWTFILTER, NLM_F_CREATE | flags, hook.target(ifindex, priority));
        message.text(TCA_KIND, "bpf").nested(TCA_OPTIONS, &options)
    };
    if let Some(Filter { priority, program: old_program }) = before.first().copied() {
        if old_program == id {
            return Ok(InterfaceChange::Unchanged);
        }
        // Without NLM_F_EXCL a filter of this handle is replaced, in one step (cls_bpf_change).
        route.ask(set(0, priority), |_| {}).map_err(failed("attach"))?;
        return Ok(InterfaceChange::Replaced { old_program });
    }
    match ensure_clsact(&mut route, ifindex).map_err(failed("attach"))? {
        None => {}
        Some(qdisc) => return Err(ProgramError::Qdisc { name, interface: interface.to_owned(), qdisc }),
    }
    let mut refused = Errno::EINVAL;
    for priority in PRIORITIES {
        match route.ask(set(NLM_F_EXCL, priority), |_| {}) {
            Ok(()) => return Ok(InterfaceChange::Attached),
            // Filters of another kind or protocol have the priority, or one of somebody else our handle.
            Err(errno @ (Errno::EINVAL | Errno::EEXIST)) => refused = errno,
            Err(errno) => return Err(failed("attach")(errno)),
        }
    }
    Err(failed("attach")(refused))
}

/// The kind of the qdisc that is in the way, if one is.
fn ensure_clsact(route: &mut Route, ifindex: u32) -> Result<Option<String>, Errno> {
    let clsact = TcTarget { ifindex, handle: TC_H_CLSACT & 0xffff_0000, parent: TC_H_CLSACT, info: 0 };
    let qdisc = Message::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, clsact).text(TCA_KIND, "clsact");
    match route.ask(qdisc, |_| {}) {
        Ok(()) => return Ok(None),
        Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    // `ingress` has the same place and handle, but one block of filters: one for egress would run at ingress.
    let mut kind = Vec::new();
    route.ask(Message::new(RTM_GETQDISC, NLM_F_ECHO, clsact), |answer| {
        let name = attribute(answer.attributes, TCA_KIND).unwrap_or_default();
        kind = name.strip_suffix(&[0]).unwrap_or(name).to_vec();
    })?;
    Ok((kind != b"clsact").then(|| String::from_utf8_lossy(&kind).into_owned()))
}

/// Whether there were any. An interface that is gone has none.
pub(super) fn detach(interface: &str) -> Result<bool, ProgramError> {
    let Ok(ifindex) = nix::net::if_::if_nametoindex(interface) else { return Ok(false) };
    let mut found = false;
    for hook in InterfaceHook::ALL {
        found |= detach_from((ifindex, interface), hook)?;
    }
    Ok(found)
}

/// The same of one hook.
pub(super) fn detach_from(
    (ifindex, interface): (u32, &str),
    hook: InterfaceHook,
) -> Result<bool, ProgramError> {
    let failed = |errno: Errno| ProgramError::interface("detach", "filters", interface, errno.into());
    let mut route = Route::open().map_err(failed)?;
    let mut found = false;
    for Filter { priority, .. } in filters(&mut route, ifindex, hook).map_err(failed)? {
        let target = hook.target(ifindex, priority);
        match route.ask(Message::new(RTM_DELTFILTER, 0, target).text(TCA_KIND, "bpf"), |_| {}) {
            Ok(()) => found = true,
            Err(Errno::ENOENT | Errno::ENODEV) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(found)
}

pub(super) fn detach_all() -> Result<Vec<String>, ProgramError> {
    let mut detached = Vec::new();
    for (interface, _) in interfaces()? {
        if detach(&interface)? {
            detached.push(interface);
        }
    }
    Ok(detached)
}

pub(super) fn attached() -> Result<Vec<AttachedInterface>, ProgramError> {
    let mut found = Vec::new();
    for (interface, ifindex) in interfaces()? {
        found.extend(attached_to(ifindex, &interface)?);
    }
    found.sort();
    Ok(found)
}

pub(super) fn attached_to(ifindex: u32, interface: &str) -> Result<Vec<AttachedInterface>, ProgramError> {
    let failed = |errno: Errno| ProgramError::interface("look for", "filters", interface, errno.into());
    let mut route = Route::open().map_err(failed)?;
    let mut found = Vec::new();
    for hook in InterfaceHook::ALL {
        let filters = filters(&mut route, ifindex, hook).map_err(failed)?;
        found.extend(filters.into_iter().map(|Filter { program, .. }| AttachedInterface {
            interface: interface.to_owned(),
            hook,
            ifindex,
            program,
        }));
    }
    Ok(found)
}

/// Our filters, by handle and name; one, unless none.
fn filters(route: &mut Route, ifindex: u32, hook: InterfaceHook) -> Result<Vec<Filter>, Errno> {
    let mut filters = Vec::new();
    let target = TcTarget { handle: 0, info: 0, ..hook.target(ifindex, 0) };
    let result = route.ask(Message::new(RTM_GETTFILTER, NLM_F_DUMP, target), |answer| {
        let (found, attributes) = (answer.target, answer.attributes);
        let is_bpf = attribute(attributes, TCA_KIND).is_some_and(|kind| kind == b"bpf\0");
        let options = attribute(attributes, TCA_OPTIONS).unwrap_or_default();
        let has_name = attribute(options, TCA_BPF_NAME).is_some_and(|name| name.starts_with(NAMES));
        let program = attribute(options, TCA_BPF_ID).and_then(|id| number(id, 0));
        if let Some(program) = program.filter(|_| is_bpf && has_name)
            && (found.handle, found.ifindex) == (HANDLE, ifindex)
        {
            filters.push(Filter { priority: found.info >> 16, program });
        }
    });
    match result {
        // Of an interface without clsact; or it is gone.
        Err(Errno::EINVAL | Errno::ENOENT | Errno::ENODEV) => Ok(Vec::new()),
        Err(errno) => Err(errno),
        Ok(()) => Ok(filters),
    }
}

/// Names and numbers.
fn interfaces() -> Result<Vec<(String, u32)>, ProgramError> {
    let all = if_nameindex()
        .map_err(|errno| ProgramError::interface("look for", "filters", "any", errno.into()))?;
    Ok(all.iter().map(|one| (one.name().to_string_lossy().into_owned(), one.index())).collect())
}
