use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts a request as long as it is under way.
pub(super) struct Asking<'a>(&'a AtomicUsize);

impl<'a> Asking<'a> {
    pub(super) fn new(asking: &'a AtomicUsize) -> Self {
        asking.fetch_add(1, Ordering::Relaxed);
        Self(asking)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
