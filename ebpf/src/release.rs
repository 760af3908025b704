//! The end of a socket.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_socket_cookie;
use aya_ebpf::macros::cgroup_sock;
use aya_ebpf::programs::SockContext;
use portway_datapath::{Counter, Tables as _};

use crate::connected;
use crate::maps::KernelTables;
use crate::outcome::{Error, Outcome, verdict};

#[cgroup_sock(sock_release)]
pub(crate) fn sock_release(ctx: SockContext) -> i32 {
    verdict(try_release::<false>(&ctx))
}

#[cgroup_sock(sock_release)]
pub(crate) fn sock_release_both(ctx: SockContext) -> i32 {
    verdict(try_release::<true>(&ctx))
}

#[inline(always)]
fn try_release<const BOTH: bool>(ctx: &SockContext) -> Result<Outcome, Error> {
    // SAFETY: the helper takes the context of this program.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    if connected::forget::<BOTH>(cookie) {
        KernelTables.count(Counter::Releases);
    }
    Ok(Outcome::Proceed)
}
