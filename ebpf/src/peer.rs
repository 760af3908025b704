//! getpeername(2): a translated socket's peer is the frontend that it asked for.

use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use portway_datapath::{Family, original_peer};

use crate::connected;
use crate::context::SockAddr;
use crate::outcome::{Error, Outcome, verdict};

#[cgroup_sock_addr(getpeername4)]
pub(crate) fn getpeername4(ctx: SockAddrContext) -> i32 {
    verdict(try_get_peer::<false>(&SockAddr::new(&ctx, Family::V4)))
}

#[cgroup_sock_addr(getpeername4)]
pub(crate) fn getpeername4_both(ctx: SockAddrContext) -> i32 {
    verdict(try_get_peer::<true>(&SockAddr::new(&ctx, Family::V4)))
}

/// Also sockets of IPv6 that are connected to a mapped address.
#[cgroup_sock_addr(getpeername6)]
pub(crate) fn getpeername6(ctx: SockAddrContext) -> i32 {
    verdict(try_get_peer::<false>(&SockAddr::new(&ctx, Family::V6)))
}

#[cgroup_sock_addr(getpeername6)]
pub(crate) fn getpeername6_both(ctx: SockAddrContext) -> i32 {
    verdict(try_get_peer::<true>(&SockAddr::new(&ctx, Family::V6)))
}

#[inline(always)]
fn try_get_peer<const BOTH: bool>(ctx: &SockAddr<'_>) -> Result<Outcome, Error> {
    if let Some(translation) = connected::recall::<BOTH>(ctx.socket_cookie())
        && let Some((addr, port)) = original_peer(translation, ctx.addr(), ctx.port())
    {
        ctx.set(addr, port);
    }
    Ok(Outcome::Proceed)
}
