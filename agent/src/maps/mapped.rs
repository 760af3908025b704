//! An array map in this process' memory.

#![expect(
    unsafe_code,
    reason = "mmap(2); the mapping lives as long as its owner and is read as atomics only"
)]

use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::sys::RawMap;

/// A mapped array. Programs, other processes and other threads may look at any time, so all access goes through
/// 8-byte atomics; values are whole multiples of that.
#[derive(Debug)]
pub(super) struct MappedArray {
    map: RawMap,
    base: NonNull<AtomicU64>,
    words: usize,
    /// Words an element.
    stride: usize,
}

// SAFETY: the mapping belongs to this value alone and is only read and written as atomics.
unsafe impl Send for MappedArray {}
// SAFETY: as above.
unsafe impl Sync for MappedArray {}

impl MappedArray {
    /// Maps an array that was made with `BPF_F_MMAPABLE`.
    pub(super) fn new(map: RawMap) -> io::Result<Self> {
        let info = map.info();
        // The kernel rounds elements up to 8 bytes.
        let stride = info.value_size.div_ceil(8) as usize;
        let words = stride * info.entries as usize;
        // SAFETY: a new mapping at an address of the kernel's choice; it fails if it were longer than the array's
        // pages.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                words * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.fd().as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { map, base, words, stride })
    }

    pub(super) fn map(&self) -> &RawMap {
        &self.map
    }

    /// The first word of an element. What was written before it was stored is seen after.
    pub(super) fn word(&self, element: u32) -> Option<u64> {
        self.words().get(element as usize * self.stride).map(|word| word.load(Ordering::Acquire))
    }

    /// The words of `count` elements from `first` on, each element's padded to 8 bytes.
    pub(super) fn read(&self, first: u32, count: u32) -> Option<impl Iterator<Item = u64>> {
        let start = first as usize * self.stride;
        let words = self.words().get(start..start.checked_add(count as usize * self.stride)?)?;
        Some(words.iter().map(|word| word.load(Ordering::Relaxed)))
    }

    /// Copies `words` over elements from `first` on, beginning with word `skip`; whatever is stored later is seen
    /// after it.
    pub(super) fn write(&self, first: u32, skip: usize, words: &[u64]) -> io::Result<()> {
        let start = first as usize * self.stride + skip;
        for (to, from) in self.writable(start, words.len())?.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
        fence(Ordering::Release);
        Ok(())
    }

    /// One aligned 8-byte store: word `at` of an element.
    pub(super) fn store(&self, element: u32, at: usize, word: u64) -> io::Result<()> {
        for to in self.writable(element as usize * self.stride + at, 1)? {
            to.store(word, Ordering::Release);
        }
        Ok(())
    }

    fn writable(&self, start: usize, len: usize) -> io::Result<&[AtomicU64]> {
        self.words().get(start..start + len).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `words` words, is page-aligned and stays until `drop`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: the whole of what `new` mapped; no borrow of it outlives `self`. It can fail only for an address
        // that is not page-aligned.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.words * 8) };
    }
}
