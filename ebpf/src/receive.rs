//! The source address that recvfrom(2) and recvmsg(2) give: a reply of a backend comes from the frontend.

use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use portway_datapath::{Family, reply_source};

use crate::connected;
use crate::context::SockAddr;
use crate::earlier::BothTables;
use crate::maps::KernelTables;
use crate::outcome::{Error, Outcome, verdict};

#[cgroup_sock_addr(recvmsg4)]
pub(crate) fn recvmsg4(ctx: SockAddrContext) -> i32 {
    verdict(try_receive::<false>(&SockAddr::new(&ctx, Family::V4)))
}

#[cgroup_sock_addr(recvmsg4)]
pub(crate) fn recvmsg4_both(ctx: SockAddrContext) -> i32 {
    verdict(try_receive::<true>(&SockAddr::new(&ctx, Family::V4)))
}

/// Also sockets of IPv6 that receive from an IPv4 address, though their sends came by sendmsg4.
#[cgroup_sock_addr(recvmsg6)]
pub(crate) fn recvmsg6(ctx: SockAddrContext) -> i32 {
    verdict(try_receive::<false>(&SockAddr::new(&ctx, Family::V6)))
}

#[cgroup_sock_addr(recvmsg6)]
pub(crate) fn recvmsg6_both(ctx: SockAddrContext) -> i32 {
    verdict(try_receive::<true>(&SockAddr::new(&ctx, Family::V6)))
}

#[inline(always)]
fn try_receive<const BOTH: bool>(ctx: &SockAddr<'_>) -> Result<Outcome, Error> {
    let cookie = ctx.socket_cookie();
    let translation = connected::recall_connected::<BOTH>(ctx, cookie);
    let source = if BOTH {
        reply_source(&BothTables, cookie, translation, ctx.addr(), ctx.port())
    } else {
        reply_source(&KernelTables, cookie, translation, ctx.addr(), ctx.port())
    };
    if let Some((addr, port)) = source {
        ctx.set(addr, port);
    }
    Ok(Outcome::Proceed)
}
