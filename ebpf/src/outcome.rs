//! What a program comes to, and the one place that makes it a verdict of the kernel's.

use aya_ebpf::helpers::bpf_set_retval;
use portway_datapath::{Counter, Tables as _};

use crate::maps::KernelTables;

/// `ECONNREFUSED` and `EADDRINUSE` of every architecture that Linux's generic errno.h serves.
const ECONNREFUSED: i32 = 111;
const EADDRINUSE: i32 = 98;

/// The verdicts of the kernel: go on, or fail the call.
const PROCEED: i32 = 1;
const DENY: i32 = 0;

/// What becomes of a call.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    Proceed,
    /// The service has no backends.
    Refuse,
    /// The port belongs to a service.
    InUse,
}

/// What a program could not do. None of it stops the call.
#[derive(Clone, Copy)]
pub(crate) enum Error {
    /// The socket goes to its backend, but the kernel had no memory to remember the frontend: its peer name will be
    /// the backend's.
    Unremembered,
}

/// The verdict. A denied call has its errno set: the kernel's own would be `EPERM`.
#[inline(always)]
pub(crate) fn verdict(result: Result<Outcome, Error>) -> i32 {
    match result {
        Ok(Outcome::Proceed) => PROCEED,
        Ok(Outcome::Refuse) => deny(ECONNREFUSED),
        Ok(Outcome::InUse) => deny(EADDRINUSE),
        Err(Error::Unremembered) => {
            KernelTables.count(Counter::Unremembered);
            PROCEED
        }
    }
}

#[inline(always)]
fn deny(errno: i32) -> i32 {
    // SAFETY: all programs that can deny are of hooks that have this helper (Linux 5.18).
    unsafe { bpf_set_retval(-errno) };
    DENY
}
