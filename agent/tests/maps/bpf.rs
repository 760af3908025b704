//! bpf(2) without the code under test: maps of any layout, elements of any map.

#![expect(unsafe_code, reason = "bpf(2)")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::Path;

/// Type, key size, value size, entries and flags of a map, as in `union bpf_attr`.
pub(crate) type Info = [u32; 5];

/// Any map.
pub(crate) struct Raw(OwnedFd);

impl Raw {
    pub(crate) fn create(info: Info) -> io::Result<Self> {
        let mut attr = [0; 128];
        for (n, word) in info.into_iter().enumerate() {
            put32(&mut attr, n * 4, word);
        }
        // SAFETY: the command reads only the attribute.
        unsafe { bpf_fd(0, &mut attr) }.map(Self)
    }

    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mut attr = [0; 128];
        put64(&mut attr, 0, path.as_ptr() as u64);
        // SAFETY: the path outlives the call.
        unsafe { bpf_fd(7, &mut attr) }.map(Self)
    }

    pub(crate) fn pin(&self, path: &Path) -> io::Result<()> {
        pin(self.0.as_fd(), path)
    }

    pub(crate) fn info(&self) -> Info {
        // struct bpf_map_info: type, id, key size, value size, entries, flags.
        let mut info = [0_u32; 6];
        let mut attr = [0; 128];
        put32(&mut attr, 0, self.0.as_raw_fd().cast_unsigned());
        put32(&mut attr, 4, size_of_val(&info) as u32);
        put64(&mut attr, 8, info.as_mut_ptr() as u64);
        // SAFETY: the kernel writes as much as there is room for.
        unsafe { bpf(15, &mut attr) }.unwrap();
        let [kind, _, key, value, entries, flags] = info;
        [kind, key, value, entries, flags]
    }

    /// `value`: of every CPU in a per-CPU map.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let [_, key_size, value_size, ..] = self.info();
        assert_eq!(key.len(), key_size as usize);
        assert!(value.len() >= value_size as usize);
        let mut attr = self.element(key, value.as_ptr() as u64);
        // SAFETY: the kernel reads no more than the key and the value.
        unsafe { bpf(2, &mut attr) }.map(drop)
    }

    pub(crate) fn lookup(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        let [_, key_size, value_size, ..] = self.info();
        assert_eq!(key.len(), key_size as usize);
        let mut value = vec![0; value_size as usize];
        let mut attr = self.element(key, value.as_mut_ptr() as u64);
        // SAFETY: there is room for the value; not used on per-CPU maps.
        unsafe { bpf(1, &mut attr) }.map(|_| value)
    }

    fn element(&self, key: &[u8], value: u64) -> [u8; 128] {
        let mut attr = [0; 128];
        put32(&mut attr, 0, self.0.as_raw_fd().cast_unsigned());
        put64(&mut attr, 8, key.as_ptr() as u64);
        put64(&mut attr, 16, value);
        attr
    }
}

/// Pins a map or a program.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let mut attr = [0; 128];
    put64(&mut attr, 0, path.as_ptr() as u64);
    put32(&mut attr, 8, object.as_raw_fd().cast_unsigned());
    // SAFETY: the path outlives the call.
    unsafe { bpf(6, &mut attr) }.map(drop)
}

fn put32(attr: &mut [u8; 128], at: usize, word: u32) {
    attr[at..at + 4].copy_from_slice(&word.to_ne_bytes());
}

fn put64(attr: &mut [u8; 128], at: usize, word: u64) {
    attr[at..at + 8].copy_from_slice(&word.to_ne_bytes());
}

/// # Safety
///
/// As [`bpf`]; the command returns a descriptor.
unsafe fn bpf_fd(command: i32, attr: &mut [u8; 128]) -> io::Result<OwnedFd> {
    // SAFETY: the caller's.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd as i32)) }
}

/// # Safety
///
/// Pointers in `attr` are valid for what `command` reads and writes.
unsafe fn bpf(command: i32, attr: &mut [u8; 128]) -> io::Result<i64> {
    // SAFETY: the caller's.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), attr.len()) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}
