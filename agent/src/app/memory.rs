//! Keeping the process small: glibc keeps what a large batch freed unless it is told to give it back.

#![expect(unsafe_code, reason = "malloc's settings are C functions")]

/// One arena for all threads: each further one keeps freed memory of its own, and the owner allocates nearly all.
pub(super) fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers and changes how later allocations are made.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives freed memory back to the kernel. Takes milliseconds for tens of MiB.
pub(super) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number and touches only memory that nobody has.
    unsafe {
        libc::malloc_trim(0);
    }
}
