//! An array map: mapped where this process may write it, read by system calls where it may not.

use std::io;

use super::mapped::MappedArray;
use super::sys::{Access, RawMap};

/// Elements that one step of a scan copies.
const CHUNK: u32 = 4096;

/// An array whose elements are whole 8-byte words.
#[derive(Debug)]
pub(super) enum Array {
    Mapped(MappedArray),
    /// The kernel maps no array for a descriptor that was opened for reading alone: a shared mapping of one counts
    /// as private (`do_mmap`), and `bpf_map_mmap` refuses those.
    Called(RawMap),
}

impl Array {
    pub(super) fn new(map: RawMap, access: Access) -> io::Result<Self> {
        match access {
            Access::ReadOnly => Ok(Self::Called(map)),
            Access::ReadWrite => MappedArray::new(map).map(Self::Mapped),
        }
    }

    pub(super) fn map(&self) -> &RawMap {
        match self {
            Self::Mapped(array) => array.map(),
            Self::Called(map) => map,
        }
    }

    pub(super) fn entries(&self) -> u32 {
        self.map().info().entries
    }

    /// Words of an element.
    pub(super) fn stride(&self) -> usize {
        self.map().info().value_size.div_ceil(8) as usize
    }

    /// The first word of an element. What was written before it was stored is seen after.
    pub(super) fn word(&self, element: u32) -> io::Result<u64> {
        match self {
            Self::Mapped(array) => array.word(element).ok_or_else(|| io::ErrorKind::InvalidInput.into()),
            Self::Called(_) => {
                self.read(element, 1)?.first().copied().ok_or_else(|| io::ErrorKind::InvalidData.into())
            }
        }
    }

    /// The words of `count` elements from `first` on.
    pub(super) fn read(&self, first: u32, count: u32) -> io::Result<Vec<u64>> {
        match self {
            Self::Mapped(array) => array
                .read(first, count)
                .map(Iterator::collect)
                .ok_or_else(|| io::ErrorKind::InvalidInput.into()),
            Self::Called(map) => {
                let mut bytes = vec![0; count as usize * map.value_bytes()];
                map.read_array(first, &mut bytes)?;
                Ok(words(&bytes))
            }
        }
    }

    /// The words of one element, into `to`.
    pub(super) fn copy(&self, element: u32, to: &mut [u64]) -> io::Result<()> {
        match self {
            Self::Mapped(array) => {
                let words = array.read(element, 1).ok_or(io::ErrorKind::InvalidInput)?;
                to.iter_mut().zip(words).for_each(|(to, word)| *to = word);
            }
            Self::Called(_) => {
                to.iter_mut().zip(self.read(element, 1)?).for_each(|(to, word)| *to = word);
            }
        }
        Ok(())
    }

    /// Every element's words, in order.
    pub(super) fn scan(&self, mut element: impl FnMut(u32, &[u64])) -> io::Result<()> {
        let mut first = 0;
        while first < self.entries() {
            let count = CHUNK.min(self.entries() - first);
            for (n, words) in (first..).zip(self.read(first, count)?.chunks_exact(self.stride())) {
                element(n, words);
            }
            first += count;
        }
        Ok(())
    }

    /// As [`MappedArray::write`].
    pub(super) fn write(&self, first: u32, skip: usize, words: &[u64]) -> io::Result<()> {
        self.writable()?.write(first, skip, words)
    }

    /// As [`MappedArray::store`].
    pub(super) fn store(&self, element: u32, at: usize, word: u64) -> io::Result<()> {
        self.writable()?.store(element, at, word)
    }

    fn writable(&self) -> io::Result<&MappedArray> {
        match self {
            Self::Mapped(array) => Ok(array),
            Self::Called(_) => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// Words from the bytes of values, as they lie in memory.
pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(size_of::<u64>())
        .filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes))
        .collect()
}
