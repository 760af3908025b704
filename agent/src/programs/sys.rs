//! bpf(2) as far as links need it: aya has no update of a cgroup link and does not show what a link is attached to.

#![expect(unsafe_code, reason = "bpf(2) takes pointers; each attribute is laid out as the command takes it")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

// Numbers of `enum bpf_cmd` of include/uapi/linux/bpf.h.
const OBJ_PIN: u32 = 6;
const OBJ_GET: u32 = 7;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
const LINK_DETACH: u32 = 34;

/// `BPF_LINK_TYPE_CGROUP` of include/uapi/linux/bpf.h.
const LINK_TYPE_CGROUP: u32 = 3;

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
    unsafe { bpf_fd(LINK_CREATE, &mut attr) }
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
    unsafe { bpf(LINK_UPDATE, &mut attr) }.map(drop)
}

/// Ends a link's work at once, whoever holds it. Where the cgroup is gone there is nothing to do.
pub(super) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut link = number(link);
    // SAFETY: the attribute is the link's number.
    unsafe { bpf(LINK_DETACH, &mut link) }.map(drop)
}

pub(super) fn obj_pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attr = ObjAttr { pathname: path.as_ptr() as u64, bpf_fd: number(object), file_flags: 0 };
    // SAFETY: the attribute is this command's; the path is NUL-terminated and outlives the call.
    unsafe { bpf(OBJ_PIN, &mut attr) }.map(drop)
}

pub(super) fn obj_get(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attr = ObjAttr { pathname: path.as_ptr() as u64, bpf_fd: 0, file_flags: 0 };
    // SAFETY: as in `obj_pin`; it returns a new descriptor.
    unsafe { bpf_fd(OBJ_GET, &mut attr) }
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
    #[repr(C)]
    struct Attr {
        bpf_fd: u32,
        info_len: u32,
        info: u64,
    }
    let mut info = Info::default();
    let mut attr =
        Attr { bpf_fd: number(link), info_len: size_of::<Info>() as u32, info: (&raw mut info) as u64 };
    // SAFETY: the attribute is this command's; the kernel writes at most `info_len` bytes, any bytes are an `Info`.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr) }?;
    if info.kind != LINK_TYPE_CGROUP {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a link to a cgroup"));
    }
    Ok(LinkInfo { id: info.id, program: info.prog_id, cgroup: info.cgroup_id, attach_type: info.attach_type })
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

#[repr(C)]
struct ObjAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// # Safety
///
/// As [`bpf`]; the command returns a new file descriptor.
unsafe fn bpf_fd<A>(command: u32, attr: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the caller's; the descriptor is new and nobody else's.
    unsafe {
        let fd: RawFd = bpf(command, attr)?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// # Safety
///
/// `A` is `repr(C)` without implicit padding and is what `command` takes; its pointers are valid for what the command
/// reads and writes.
unsafe fn bpf<A>(command: u32, attr: &mut A) -> io::Result<i32> {
    // SAFETY: the caller's.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<A>()) };
    // The kernel returns an `int`.
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
