//! bpf(2) as far as links need it: aya has no update of a cgroup link and does not show what a link is attached to,
//! nor in which order programs run.

#![expect(unsafe_code, reason = "bpf(2) takes pointers; each attribute is laid out as the command takes it")]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use crate::bpf::{call, call_fd, info, number};

// Numbers of `enum bpf_cmd` of include/uapi/linux/bpf.h.
const PROG_GET_FD_BY_ID: u32 = 13;
const PROG_QUERY: u32 = 16;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
const LINK_DETACH: u32 = 34;

/// `BPF_LINK_TYPE_CGROUP` of include/uapi/linux/bpf.h.
const LINK_TYPE_CGROUP: u32 = 3;
/// `BPF_LINK_TYPE_TCX`.
const LINK_TYPE_TCX: u32 = 11;

/// What the kernel says about a cgroup link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkInfo {
    pub(super) id: u32,
    pub(super) program: u32,
    /// 0 once the cgroup is gone.
    pub(super) cgroup: u64,
    pub(super) attach_type: u32,
}

/// Attaches a program to a cgroup, beside what others attached there.
pub(super) fn link_create(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog_fd: u32,
        target_fd: u32,
        attach_type: u32,
        flags: u32,
    }
    let mut attr = Attr { prog_fd: number(program), target_fd: number(cgroup), attach_type, flags: 0 };
    // SAFETY: the attribute is this command's and has no pointers; it returns a new descriptor.
    unsafe { call_fd(LINK_CREATE, &mut attr) }
}

/// What the kernel says about a tcx link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcxLinkInfo {
    pub(super) program: u32,
    /// 0 once the interface is gone.
    pub(super) ifindex: u32,
    pub(super) attach_type: u32,
}

/// Whether the kernel has tcx (Linux 6.6).
pub(super) fn has_tcx() -> io::Result<bool> {
    /// `BPF_TCX_INGRESS` of include/uapi/linux/bpf.h.
    const INGRESS: u32 = 46;
    #[repr(C)]
    struct Attr {
        target_ifindex: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        prog_ids: u64,
        prog_cnt: u32,
        _pad: u32,
        prog_attach_flags: u64,
        link_ids: u64,
        link_attach_flags: u64,
        revision: u64,
    }
    let mut attr = Attr {
        target_ifindex: 0,
        attach_type: INGRESS,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: 0,
        prog_cnt: 0,
        _pad: 0,
        prog_attach_flags: 0,
        link_ids: 0,
        link_attach_flags: 0,
        revision: 0,
    };
    // SAFETY: the attribute is this command's; it has no room for numbers and says so.
    match unsafe { call(PROG_QUERY, &mut attr) } {
        Ok(_) => Ok(true),
        // There is no interface 0: the kernel knows what it was asked.
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Attaches a program to an interface of this thread's network namespace, after what others attached there.
pub(super) fn tcx_link_create(
    program: BorrowedFd<'_>,
    ifindex: u32,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog_fd: u32,
        target_ifindex: u32,
        attach_type: u32,
        flags: u32,
        relative: u32,
        _pad: u32,
        expected_revision: u64,
    }
    let mut attr = Attr {
        prog_fd: number(program),
        target_ifindex: ifindex,
        attach_type,
        flags: 0,
        relative: 0,
        _pad: 0,
        expected_revision: 0,
    };
    // SAFETY: the attribute is this command's and has no pointers; it returns a new descriptor.
    unsafe { call_fd(LINK_CREATE, &mut attr) }
}

/// `InvalidData` for a link of another kind.
pub(super) fn tcx_link_info(link: BorrowedFd<'_>) -> io::Result<TcxLinkInfo> {
    /// The head of `struct bpf_link_info`, with its `tcx` variant.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        kind: u32,
        id: u32,
        prog_id: u32,
        _pad: u32,
        ifindex: u32,
        attach_type: u32,
        _rest: [u32; 10],
    }
    // SAFETY: this is a head of `struct bpf_link_info`, integers without padding.
    let info: Info = unsafe { info(link) }?;
    if info.kind != LINK_TYPE_TCX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a link to an interface"));
    }
    Ok(TcxLinkInfo { program: info.prog_id, ifindex: info.ifindex, attach_type: info.attach_type })
}

/// Replaces the program of a link in one step: every call runs the old one or the new one.
pub(super) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attr {
        link_fd: u32,
        new_prog_fd: u32,
        flags: u32,
        old_prog_fd: u32,
    }
    let mut attr = Attr { link_fd: number(link), new_prog_fd: number(program), flags: 0, old_prog_fd: 0 };
    // SAFETY: the attribute is this command's and has no pointers.
    unsafe { call(LINK_UPDATE, &mut attr) }.map(drop)
}

/// Ends a link's work at once, whoever holds it. Where the cgroup is gone there is nothing to do.
pub(super) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut link = number(link);
    // SAFETY: the attribute is the link's number.
    unsafe { call(LINK_DETACH, &mut link) }.map(drop)
}

/// `InvalidData` for a link of another kind.
pub(super) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    /// The head of `struct bpf_link_info`, with its `cgroup` variant.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        kind: u32,
        id: u32,
        prog_id: u32,
        _pad: u32,
        cgroup_id: u64,
        attach_type: u32,
        _rest: [u32; 9],
    }
    // SAFETY: this is a head of `struct bpf_link_info`, integers without padding.
    let info: Info = unsafe { info(link) }?;
    if info.kind != LINK_TYPE_CGROUP {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a link to a cgroup"));
    }
    Ok(LinkInfo { id: info.id, program: info.prog_id, cgroup: info.cgroup_id, attach_type: info.attach_type })
}

/// The numbers of the programs that run at a hook for a cgroup, its ancestors' too, in the order in which they run.
pub(super) fn effective_programs(cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<Vec<u32>> {
    /// `BPF_F_QUERY_EFFECTIVE` of include/uapi/linux/bpf.h.
    const EFFECTIVE: u32 = 1;
    /// `BPF_CGROUP_MAX_PROGS` (include/linux/bpf-cgroup-defs.h) for each of a few levels.
    const MOST: usize = 256;
    #[repr(C)]
    struct Attr {
        target_fd: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        prog_ids: u64,
        prog_cnt: u32,
        _pad: u32,
        prog_attach_flags: u64,
    }
    let mut programs = vec![0_u32; MOST];
    let mut attr = Attr {
        target_fd: number(cgroup),
        attach_type,
        query_flags: EFFECTIVE,
        attach_flags: 0,
        prog_ids: programs.as_mut_ptr() as u64,
        prog_cnt: MOST as u32,
        _pad: 0,
        prog_attach_flags: 0,
    };
    // SAFETY: the attribute is this command's; there is room for as many numbers as it says.
    unsafe { call(PROG_QUERY, &mut attr) }?;
    programs.truncate(attr.prog_cnt as usize);
    Ok(programs)
}

/// The name of a program, which its owner gave it; at most 15 bytes.
pub(super) fn program_name(program: u32) -> io::Result<String> {
    #[repr(C)]
    struct Attr {
        prog_id: u32,
        next_id: u32,
        open_flags: u32,
    }
    /// The head of `struct bpf_prog_info`.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        kind: u32,
        id: u32,
        tag: [u8; 8],
        lengths: [u32; 2],
        pointers: [u64; 2],
        load_time: u64,
        created_by_uid: u32,
        nr_map_ids: u32,
        map_ids: u64,
        name: [u8; 16],
    }
    let mut attr = Attr { prog_id: program, next_id: 0, open_flags: 0 };
    // SAFETY: the attribute is this command's and has no pointers; it returns a new descriptor.
    let program = unsafe { call_fd(PROG_GET_FD_BY_ID, &mut attr) }?;
    // SAFETY: this is a head of `struct bpf_prog_info`, integers without padding. Its pointers and lengths are zero:
    // nothing is written through them.
    let info: Info = unsafe { info(program.as_fd()) }?;
    let name = info.name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Whether a directory lies in a cgroup v2 hierarchy.
pub(super) fn is_cgroup2(dir: BorrowedFd<'_>) -> io::Result<bool> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure if it returns 0.
    let magic = unsafe {
        if libc::fstatfs(dir.as_raw_fd(), stat.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        stat.assume_init().f_type
    };
    Ok(magic == libc::CGROUP2_SUPER_MAGIC)
}
