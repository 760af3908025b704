//! bpf(2): the call itself, and what maps, programs and links share of it.

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

#[repr(C)]
struct ObjAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// Pins a map, a program or a link.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attr = ObjAttr { pathname: path.as_ptr() as u64, bpf_fd: number(object), file_flags: 0 };
    // SAFETY: the attribute is this command's; the path is NUL-terminated and outlives the call.
    unsafe { call(OBJ_PIN, &mut attr) }.map(drop)
}

/// Opens a pin, whatever is pinned there.
pub(crate) fn open_pin(path: &Path, file_flags: u32) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attr = ObjAttr { pathname: path.as_ptr() as u64, bpf_fd: 0, file_flags };
    // SAFETY: as in `pin`; it returns a new descriptor.
    unsafe { call_fd(OBJ_GET, &mut attr) }
}

/// Reads the head of what the kernel says about an object.
///
/// # Safety
///
/// `T` is `repr(C)` without implicit padding, any bytes are a `T`, and it is a head of the structure that describes
/// objects of this kind.
pub(crate) unsafe fn info<T: Default>(object: BorrowedFd<'_>) -> io::Result<T> {
    #[repr(C)]
    struct Attr {
        bpf_fd: u32,
        info_len: u32,
        info: u64,
    }
    let mut info = T::default();
    let mut attr =
        Attr { bpf_fd: number(object), info_len: size_of::<T>() as u32, info: (&raw mut info) as u64 };
    // SAFETY: the attribute is this command's; the kernel writes at most `info_len` bytes, and any are a `T`.
    unsafe { call(OBJ_GET_INFO_BY_FD, &mut attr) }?;
    Ok(info)
}

/// A descriptor as attributes hold it.
pub(crate) fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// # Errors
///
/// `InvalidInput` for a path with a NUL inside.
pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// # Safety
///
/// As [`call`]; the command returns a new file descriptor.
pub(crate) unsafe fn call_fd<A>(command: u32, attr: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the caller's; the descriptor is new and nobody else's.
    unsafe {
        let fd: RawFd = call(command, attr)?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// # Safety
///
/// `A` is `repr(C)` without implicit padding and is what `command` takes; its pointers are valid for what the command
/// reads and writes.
pub(crate) unsafe fn call<A>(command: u32, attr: &mut A) -> io::Result<i32> {
    // SAFETY: the caller's.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<A>()) };
    // The kernel returns an `int`.
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
