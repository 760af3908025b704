//! bpf(2) as far as maps need it. With [`super::mapped`] the only unsafe code of the maps.

#![expect(unsafe_code, reason = "bpf(2) takes pointers; each is made from a slice whose length was checked")]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::bpf::{c_path, call, call_fd, info, number, open_pin, pin};

// Numbers of `enum bpf_cmd` and flags of include/uapi/linux/bpf.h.
const MAP_CREATE: u32 = 0;
const MAP_LOOKUP_ELEM: u32 = 1;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const MAP_GET_NEXT_KEY: u32 = 4;
const PROG_TEST_RUN: u32 = 10;
const MAP_LOOKUP_BATCH: u32 = 24;
/// Open for lookups alone.
const F_RDONLY: u32 = 1 << 3;
/// Bytes of a map's name with its terminating NUL.
const OBJ_NAME_LEN: usize = 16;

/// What an update expects of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Expect {
    Any = 0,
    Absent = 1,
    Present = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    ReadOnly,
    ReadWrite,
}

/// What the kernel says about a map. Numbers as in include/uapi/linux/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapInfo {
    pub(super) kind: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) entries: u32,
    pub(super) flags: u32,
}

/// An open map. Keys and values are bytes; their lengths are checked against what the kernel said of the map, so
/// that it never reads or writes past a slice.
#[derive(Debug)]
pub(super) struct RawMap {
    fd: OwnedFd,
    info: MapInfo,
    value_bytes: usize,
}

impl RawMap {
    /// `inner`: the map that a map of maps takes its elements' layout from.
    pub(super) fn create(name: &str, info: MapInfo, inner: Option<&Self>) -> io::Result<Self> {
        #[repr(C)]
        struct Attr {
            map_type: u32,
            key_size: u32,
            value_size: u32,
            max_entries: u32,
            map_flags: u32,
            inner_map_fd: u32,
            numa_node: u32,
            map_name: [u8; OBJ_NAME_LEN],
            _tail: [u32; 5],
        }
        let mut map_name = [0; OBJ_NAME_LEN];
        // The kernel keeps 15 bytes and wants a NUL after them.
        for (to, from) in map_name.iter_mut().take(OBJ_NAME_LEN - 1).zip(name.bytes()) {
            *to = from;
        }
        let MapInfo { kind, key_size, value_size, entries, flags } = info;
        let mut attr = Attr {
            map_type: kind,
            key_size,
            value_size,
            max_entries: entries,
            map_flags: flags,
            inner_map_fd: inner.map_or(0, |map| number(map.fd())),
            numa_node: 0,
            map_name,
            _tail: [0; 5],
        };
        // SAFETY: MAP_CREATE reads only the attribute.
        Self::from_fd(unsafe { call_fd(MAP_CREATE, &mut attr) }?)
    }

    /// Opens a pin. [`io::ErrorKind::InvalidData`]: what is pinned there is not a map.
    pub(super) fn open(path: &Path, access: Access) -> io::Result<Self> {
        let file_flags = match access {
            Access::ReadOnly => F_RDONLY,
            Access::ReadWrite => 0,
        };
        Self::from_fd(open_pin(path, file_flags)?)
    }

    pub(super) fn pin(&self, path: &Path) -> io::Result<()> {
        pin(self.fd(), path)
    }

    /// The kernel's number of the map, as `bpftool map` shows it.
    pub(super) fn number(&self) -> io::Result<u32> {
        Ok(described(self.fd())?.id)
    }

    fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        // A pinned program or link opens just as well, and would describe itself in another structure.
        let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if target.as_os_str() != "anon_inode:bpf-map" {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a map"));
        }
        let info = map_info(fd.as_fd())?;
        let value_bytes = if super::layout::is_per_cpu(info.kind) {
            info.value_size.next_multiple_of(8) as usize * possible_cpus()?
        } else {
            info.value_size as usize
        };
        Ok(Self { fd, info, value_bytes })
    }

    pub(super) fn info(&self) -> MapInfo {
        self.info
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes that a lookup gives: all CPUs' values for a per-CPU map.
    pub(super) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Whether `key` exists; its value then is in `value`.
    pub(super) fn lookup(&self, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
        self.check(key.len(), self.info.key_size as usize)?;
        self.check(value.len(), self.value_bytes)?;
        let mut attr = self.element(key, value.as_mut_ptr() as u64, 0);
        // SAFETY: both slices are as long as the kernel takes them to be.
        found(unsafe { call(MAP_LOOKUP_ELEM, &mut attr) })
    }

    pub(super) fn update(&self, key: &[u8], value: &[u8], expect: Expect) -> io::Result<()> {
        self.check(key.len(), self.info.key_size as usize)?;
        self.check(value.len(), self.value_bytes)?;
        let mut attr = self.element(key, value.as_ptr() as u64, expect as u64);
        // SAFETY: both slices are as long as the kernel takes them to be, and only read.
        unsafe { call(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
    }

    /// Whether `key` existed.
    pub(super) fn delete(&self, key: &[u8]) -> io::Result<bool> {
        self.check(key.len(), self.info.key_size as usize)?;
        let mut attr = self.element(key, 0, 0);
        // SAFETY: the key is as long as the kernel takes it to be.
        found(unsafe { call(MAP_DELETE_ELEM, &mut attr) })
    }

    /// The key after `key`, or the first one; whether there is one.
    pub(super) fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<bool> {
        self.check(key.map_or(self.info.key_size as usize, <[u8]>::len), self.info.key_size as usize)?;
        self.check(next.len(), self.info.key_size as usize)?;
        let mut attr = ElementAttr {
            map_fd: number(self.fd()),
            _pad: 0,
            key: key.map_or(0, |key| key.as_ptr() as u64),
            value: next.as_mut_ptr() as u64,
            flags: 0,
        };
        // SAFETY: both slices are as long as the kernel takes them to be.
        found(unsafe { call(MAP_GET_NEXT_KEY, &mut attr) })
    }

    /// Elements of an array from `first` on, as many as there is room for.
    pub(super) fn read_array(&self, first: u32, values: &mut [u8]) -> io::Result<()> {
        let count = values.len() / self.value_bytes;
        self.check(values.len(), count * self.value_bytes)?;
        let before = first.wrapping_sub(1).to_ne_bytes();
        self.check(before.len(), self.info.key_size as usize)?;
        let mut keys = vec![0u8; count * before.len()];
        let mut last = before;
        let mut attr = BatchAttr {
            // The element before the first one, if there is one.
            in_batch: if first == 0 { 0 } else { before.as_ptr() as u64 },
            out_batch: last.as_mut_ptr() as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: count as u32,
            map_fd: number(self.fd()),
            elem_flags: 0,
            flags: 0,
        };
        if count == 0 {
            return Ok(());
        }
        // SAFETY: there is room for `count` keys and values and for a position.
        found(unsafe { call(MAP_LOOKUP_BATCH, &mut attr) })?;
        self.check(attr.count as usize, count)
    }

    /// Every element of a hash map, each at least once, in no order. One that exists all the while is given; one
    /// that comes or goes meanwhile may be.
    pub(super) fn for_each(&self, mut element: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        /// Elements a call; a bucket that is longer is ENOSPC, which a hash of a good seed never comes near.
        const BATCH: u32 = 4096;
        let (key_size, value_size) = (self.info.key_size as usize, self.value_bytes);
        let mut keys = vec![0; key_size * BATCH as usize];
        let mut values = vec![0; value_size * BATCH as usize];
        // A hash map's position is a bucket number; other kinds give a key. Room for either.
        let mut position = vec![0u8; key_size.max(8)];
        let mut next = position.clone();
        let mut first = true;
        loop {
            let mut attr = BatchAttr {
                in_batch: if first { 0 } else { position.as_ptr() as u64 },
                out_batch: next.as_mut_ptr() as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: BATCH,
                map_fd: number(self.fd()),
                elem_flags: 0,
                flags: 0,
            };
            // SAFETY: there is room for `count` keys and values and for a position.
            let more = found(unsafe { call(MAP_LOOKUP_BATCH, &mut attr) })?;
            let elements = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size));
            for (key, value) in elements.take(attr.count as usize) {
                element(key, value);
            }
            if !more {
                return Ok(());
            }
            std::mem::swap(&mut position, &mut next);
            first = false;
        }
    }

    fn element(&self, key: &[u8], value: u64, flags: u64) -> ElementAttr {
        ElementAttr { map_fd: number(self.fd()), _pad: 0, key: key.as_ptr() as u64, value, flags }
    }

    #[expect(clippy::unused_self, reason = "reads as a check of this map's element")]
    fn check(&self, len: usize, wanted: usize) -> io::Result<()> {
        if len == wanted { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

/// Runs a program once on `packet`; what it returned.
pub(super) fn run_program(program: BorrowedFd<'_>, packet: &[u8]) -> io::Result<u32> {
    #[repr(C)]
    struct Attr {
        prog_fd: u32,
        retval: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        ctx_size_in: u32,
        ctx_size_out: u32,
        ctx_in: u64,
        ctx_out: u64,
        flags: u32,
        cpu: u32,
        batch_size: u32,
        _pad: u32,
    }
    let mut attr = Attr {
        prog_fd: number(program),
        retval: 0,
        data_size_in: packet.len() as u32,
        data_size_out: 0,
        data_in: packet.as_ptr() as u64,
        data_out: 0,
        repeat: 1,
        duration: 0,
        ctx_size_in: 0,
        ctx_size_out: 0,
        ctx_in: 0,
        ctx_out: 0,
        flags: 0,
        cpu: 0,
        batch_size: 0,
        _pad: 0,
    };
    // SAFETY: the packet is as long as said and only read; nothing is written back but the attribute.
    unsafe { call(PROG_TEST_RUN, &mut attr) }?;
    Ok(attr.retval)
}

/// The bytes of a key or a value.
pub(super) fn bytes_of<T: aya::Pod>(value: &T) -> &[u8] {
    // SAFETY: `Pod` types of portway-datapath have no padding (sizes are asserted there), so every byte is set.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A key or a value from its bytes; `None` if there are too few or too many.
pub(super) fn from_bytes<T: aya::Pod>(bytes: &[u8]) -> Option<T> {
    // SAFETY: `Pod` types are integers and byte arrays, any bytes are one; the length is checked.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Whether a directory lies in a bpf file system.
pub(super) fn is_bpf_fs(dir: &Path) -> io::Result<bool> {
    let dir = c_path(dir)?;
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path is NUL-terminated; the kernel fills the structure if it returns 0.
    let magic = unsafe {
        if libc::statfs(dir.as_ptr(), stat.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        stat.assume_init().f_type
    };
    Ok(magic == libc::BPF_FS_MAGIC)
}

/// `membarrier(MEMBARRIER_CMD_GLOBAL)`: returns after an RCU grace period, where there is more than one CPU.
pub(super) fn membarrier_global() -> io::Result<()> {
    /// `enum membarrier_cmd` of include/uapi/linux/membarrier.h.
    const GLOBAL: libc::c_int = 1;
    // SAFETY: takes no pointers.
    match unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// CPUs that run at the moment.
pub(super) fn online_cpus() -> io::Result<usize> {
    cpus("/sys/devices/system/cpu/online")
}

/// CPUs that a per-CPU map has a value for.
fn possible_cpus() -> io::Result<usize> {
    cpus("/sys/devices/system/cpu/possible")
}

fn cpus(path: &str) -> io::Result<usize> {
    count_cpus(std::fs::read_to_string(path)?.trim())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path} is not a list of CPUs")))
}

/// Of `0-3,6`: 5.
fn count_cpus(list: &str) -> Option<usize> {
    list.split(',').try_fold(0, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(sum + last.checked_sub(first)? + 1)
    })
}

#[repr(C)]
struct ElementAttr {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// The head of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct Described {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    name: [u8; OBJ_NAME_LEN],
}

fn described(fd: BorrowedFd<'_>) -> io::Result<Described> {
    // SAFETY: `Described` is a head of `struct bpf_map_info`, integers without padding.
    unsafe { info(fd) }
}

fn map_info(fd: BorrowedFd<'_>) -> io::Result<MapInfo> {
    let Described { kind, id: _, key_size, value_size, max_entries, map_flags, name: _ } = described(fd)?;
    Ok(MapInfo { kind, key_size, value_size, entries: max_entries, flags: map_flags })
}

fn found(result: io::Result<i32>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-3,6"), Some(5));
        assert_eq!(count_cpus(""), None);
        assert_eq!(count_cpus("3-0"), None);
    }
}
