//! Of pods' links, and before Linux 6.6 of every interface: filters of `clsact`, with a fixed priority and handle, so that attaching again replaces.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::net::if_::if_nameindex;

use super::super::error::ProgramError;
use super::netlink::{Message, Route, TcTarget, attribute, number};
use super::{AttachedInterface, InterfaceChange, InterfaceHook};
use crate::bpf::number as descriptor;

// include/uapi/linux/rtnetlink.h, netlink.h, pkt_sched.h, pkt_cls.h.
const RTM_NEWQDISC: u16 = 36;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_DUMP: u16 = 0x300;
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

/// First of all; who has another filter there has another handle.
const PRIORITY: u32 = 1;
/// "PW".
const HANDLE: u32 = 0x5057;

impl InterfaceHook {
    const fn parent(self) -> u32 {
        match self {
            Self::Ingress => TC_H_MIN_INGRESS,
            Self::Egress => TC_H_MIN_EGRESS,
        }
    }

    const fn target(self, ifindex: u32) -> TcTarget {
        // A priority, and ETH_P_ALL in network order.
        let info = PRIORITY << 16 | (libc::ETH_P_ALL as u16).to_be() as u32;
        TcTarget { ifindex, handle: HANDLE, parent: self.parent(), info }
    }
}

pub(super) fn attach(
    (ifindex, interface): (u32, &str),
    hook: InterfaceHook,
    (name, program, id): (&'static str, BorrowedFd<'_>, u32),
) -> Result<InterfaceChange, ProgramError> {
    let failed = |action| move |errno: Errno| ProgramError::interface(action, name, interface, errno.into());
    let mut route = Route::open().map_err(failed("attach"))?;
    let before = filter(&mut route, ifindex, hook).map_err(failed("look for"))?;
    if before == Some(id) {
        return Ok(InterfaceChange::Unchanged);
    }
    let clsact = TcTarget { ifindex, handle: TC_H_CLSACT & 0xffff_0000, parent: TC_H_CLSACT, info: 0 };
    let qdisc = Message::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, clsact).text(TCA_KIND, "clsact");
    match route.ask(qdisc, |_| {}) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(failed("attach")(errno)),
    }
    let options = [
        (TCA_BPF_FD, descriptor(program).to_ne_bytes().to_vec()),
        (TCA_BPF_NAME, [name.as_bytes(), &[0]].concat()),
        (TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes().to_vec()),
    ];
    // Without NLM_F_EXCL a filter of this handle is replaced, in one step (cls_bpf_change).
    let message = Message::new(RTM_NEWTFILTER, NLM_F_CREATE, hook.target(ifindex));
    route
        .ask(message.text(TCA_KIND, "bpf").nested(TCA_OPTIONS, &options), |_| {})
        .map_err(failed("attach"))?;
    Ok(before.map_or(InterfaceChange::Attached, |old_program| InterfaceChange::Replaced { old_program }))
}

/// Whether there were any. An interface that is gone has none.
pub(super) fn detach(interface: &str) -> Result<bool, ProgramError> {
    let Ok(ifindex) = nix::net::if_::if_nametoindex(interface) else { return Ok(false) };
    let failed = |errno: Errno| ProgramError::interface("detach", "filters", interface, errno.into());
    let mut route = Route::open().map_err(failed)?;
    let mut found = false;
    for hook in InterfaceHook::ALL {
        if filter(&mut route, ifindex, hook).map_err(failed)?.is_some() {
            let message = Message::new(RTM_DELTFILTER, 0, hook.target(ifindex)).text(TCA_KIND, "bpf");
            match route.ask(message, |_| {}) {
                Ok(()) => found = true,
                Err(Errno::ENOENT | Errno::ENODEV) => {}
                Err(errno) => return Err(failed(errno)),
            }
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
        let program = filter(&mut route, ifindex, hook).map_err(failed)?;
        found.extend(program.map(|program| AttachedInterface {
            interface: interface.to_owned(),
            hook,
            ifindex,
            program,
        }));
    }
    Ok(found)
}

/// The program of our filter, if there is one.
fn filter(route: &mut Route, ifindex: u32, hook: InterfaceHook) -> Result<Option<u32>, Errno> {
    let mut program = None;
    let target = TcTarget { handle: 0, info: 0, ..hook.target(ifindex) };
    let result = route.ask(Message::new(RTM_GETTFILTER, NLM_F_DUMP, target), |answer| {
        let (found, attributes) = (answer.target, answer.attributes);
        let is_ours = found.handle == HANDLE && found.info >> 16 == PRIORITY;
        let is_bpf = attribute(attributes, TCA_KIND).is_some_and(|kind| kind == b"bpf\0");
        if is_ours && is_bpf && found.ifindex == ifindex {
            let options = attribute(attributes, TCA_OPTIONS).unwrap_or_default();
            program = attribute(options, TCA_BPF_ID).and_then(|id| number(id, 0));
        }
    });
    match result {
        // Of an interface without clsact; or it is gone.
        Err(Errno::EINVAL | Errno::ENOENT | Errno::ENODEV) => Ok(None),
        Err(errno) => Err(errno),
        Ok(()) => Ok(program),
    }
}

/// Names and numbers.
fn interfaces() -> Result<Vec<(String, u32)>, ProgramError> {
    let all = if_nameindex()
        .map_err(|errno| ProgramError::interface("look for", "filters", "any", errno.into()))?;
    Ok(all.iter().map(|one| (one.name().to_string_lossy().into_owned(), one.index())).collect())
}
