//! The end of a socket.

use aya_ebpf::macros::cgroup_sock;
use aya_ebpf::programs::SockContext;
use portway_datapath::{Counter, Tables as _};

use crate::maps::KernelTables;
use crate::outcome::{Error, Outcome, verdict};
use crate::storage;

#[cgroup_sock(sock_release)]
pub(crate) fn sock_release(ctx: SockContext) -> i32 {
    verdict(try_release(&ctx))
}

#[inline(always)]
fn try_release(ctx: &SockContext) -> Result<Outcome, Error> {
    if storage::recall(ctx.sock).is_some() {
        KernelTables.count(Counter::Releases);
    }
    Ok(Outcome::Proceed)
}
