//! What the kernel has of BPF, asked without the code under test.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;

const BPF_MAP_CREATE: i64 = 0;
const BPF_MAP_UPDATE_ELEM: i64 = 2;
const BPF_OBJ_PIN: i64 = 6;
const BPF_OBJ_GET: i64 = 7;
const BPF_PROG_QUERY: i64 = 16;
const BPF_MAP_TYPE_HASH: u32 = 1;

/// The attach types of `linux/bpf.h` that Portway's programs use.
pub const ATTACH_TYPES: [(&str, u32); 11] = [
    ("connect4", 10),
    ("connect6", 11),
    ("post_bind4", 12),
    ("post_bind6", 13),
    ("sendmsg4", 14),
    ("sendmsg6", 15),
    ("recvmsg4", 19),
    ("recvmsg6", 20),
    ("getpeername4", 29),
    ("getpeername6", 30),
    ("sock_release", 34),
];

/// The programs attached to a control group itself, by id, for each of [`ATTACH_TYPES`] that has any.
pub fn attached(cgroup: &Path) -> Result<Vec<(&'static str, Vec<u32>)>> {
    let group = File::open(cgroup).with_context(|| format!("open {}", cgroup.display()))?;
    let mut found = Vec::new();
    for (name, attach_type) in ATTACH_TYPES {
        let mut ids = [0u32; 64];
        let mut attr = Query {
            target: group.as_raw_fd().cast_unsigned(),
            attach_type,
            flags: 0,
            attach_flags: 0,
            ids: ids.as_mut_ptr() as u64,
            count: 64,
            _rest: [0; 25],
        };
        bpf(BPF_PROG_QUERY, &mut attr).with_context(|| format!("ask for the {name} programs"))?;
        let ids: Vec<u32> = ids.iter().copied().take(attr.count as usize).collect();
        if !ids.is_empty() {
            found.push((name, ids));
        }
    }
    Ok(found)
}

/// Makes a hash map with keys of 4 bytes and values of 4, which no map of Portway has, and pins it at `path`.
pub fn pin_foreign_map(path: &Path) -> Result<()> {
    let mut attr = Create { kind: BPF_MAP_TYPE_HASH, key: 4, value: 4, entries: 16, _rest: [0; 28] };
    let fd = bpf(BPF_MAP_CREATE, &mut attr).context("make a map")?;
    // SAFETY: the kernel has just given us this descriptor.
    let map = unsafe { OwnedFd::from_raw_fd(fd) };
    let path_text = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    let fd = map.as_raw_fd().cast_unsigned();
    let mut attr = Pin { path: path_text.as_ptr() as u64, fd, _rest: [0; 29] };
    bpf(BPF_OBJ_PIN, &mut attr).with_context(|| format!("pin a map at {}", path.display()))?;
    Ok(())
}

/// Puts elements into a pinned map, as its programs would. Keys and values must have the map's sizes.
pub fn insert<const K: usize, const V: usize>(path: &Path, elements: &[([u8; K], [u8; V])]) -> Result<()> {
    let path_text = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    let mut attr = Pin { path: path_text.as_ptr() as u64, fd: 0, _rest: [0; 29] };
    let fd = bpf(BPF_OBJ_GET, &mut attr).with_context(|| format!("open {}", path.display()))?;
    // SAFETY: the kernel has just given us this descriptor.
    let map = unsafe { OwnedFd::from_raw_fd(fd) };
    let map_fd = map.as_raw_fd().cast_unsigned();
    for (key, value) in elements {
        let (key, value) = (key.as_ptr() as u64, value.as_ptr() as u64);
        let mut attr = Element { map_fd, _pad: 0, key, value, _rest: [0; 26] };
        bpf(BPF_MAP_UPDATE_ELEM, &mut attr).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

#[repr(C)]
struct Element {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    _rest: [u32; 26],
}

#[repr(C)]
struct Create {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    _rest: [u32; 28],
}

#[repr(C)]
struct Pin {
    path: u64,
    fd: u32,
    _rest: [u32; 29],
}

#[repr(C)]
struct Query {
    target: u32,
    attach_type: u32,
    flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    _rest: [u32; 25],
}

/// bpf(2) with one of the attributes above, which are all 128 bytes long, their unused tail zero.
fn bpf<T>(command: i64, attr: &mut T) -> Result<i32> {
    const { assert!(size_of::<T>() == 128) };
    // SAFETY: `attr` is a valid `bpf_attr` of its size for this command; the memory it points to outlives the call.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    Ok(i32::try_from(Errno::result(rc)?)?)
}
