use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use memmap2::MmapRaw;

use super::wanted::SERVICES;

/// Which versions a connection may see, in memory that publisher and reader share.
///
/// Words: for each service the version whose publication has begun and the one that is done; then a stop flag and the
/// reader's count of failures.
#[derive(Debug)]
pub struct Window {
    memory: MmapRaw,
}

const WORDS: usize = SERVICES as usize * 2 + 2;
const STOP: usize = SERVICES as usize * 2;
const FAILURES: usize = STOP + 1;

impl Window {
    pub fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = file.with_context(|| format!("make {}", path.display()))?;
        file.set_len((WORDS * size_of::<u64>()) as u64)?;
        Ok(Self { memory: MmapRaw::map_raw(&file)? })
    }

    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Ok(Self { memory: MmapRaw::map_raw(&file.with_context(|| format!("open {}", path.display()))?)? })
    }

    pub fn begins(&self, service: u32, version: u64) {
        self.word(service as usize * 2).store(version, Ordering::SeqCst);
    }

    pub fn is_done(&self, service: u32, version: u64) {
        self.word(service as usize * 2 + 1).store(version, Ordering::SeqCst);
    }

    /// The newest version that may be seen.
    pub fn newest(&self, service: u32) -> u64 {
        self.word(service as usize * 2).load(Ordering::SeqCst)
    }

    /// The oldest version that may be seen.
    pub fn oldest(&self, service: u32) -> u64 {
        self.word(service as usize * 2 + 1).load(Ordering::SeqCst)
    }

    pub fn stop(&self) {
        self.word(STOP).store(1, Ordering::SeqCst);
    }

    pub fn is_stopped(&self) -> bool {
        self.word(STOP).load(Ordering::SeqCst) != 0
    }

    pub fn fail(&self) {
        self.word(FAILURES).fetch_add(1, Ordering::SeqCst);
    }

    pub fn failed(&self) -> bool {
        self.word(FAILURES).load(Ordering::SeqCst) != 0
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "the window has {WORDS} words");
        // SAFETY: the mapping is page-aligned, as long as WORDS words, lives as long as `self`, and both processes
        // access it only as atomics.
        unsafe { AtomicU64::from_ptr(self.memory.as_mut_ptr().cast::<u64>().add(index)) }
    }
}
