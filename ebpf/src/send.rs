//! sendto(2) and sendmsg(2) with an address, of UDP sockets.

use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use portway_datapath::{Family, Protocol, Verdict, connected_backend, translate_datagram};

use crate::connected;
use crate::context::SockAddr;
use crate::earlier::BothTables;
use crate::maps::KernelTables;
use crate::outcome::{Error, Outcome, verdict};

/// Also sockets of IPv6 that send to a mapped address.
#[cgroup_sock_addr(sendmsg4)]
pub(crate) fn sendmsg4(ctx: SockAddrContext) -> i32 {
    verdict(try_send::<false>(&SockAddr::new(&ctx, Family::V4)))
}

#[cgroup_sock_addr(sendmsg4)]
pub(crate) fn sendmsg4_both(ctx: SockAddrContext) -> i32 {
    verdict(try_send::<true>(&SockAddr::new(&ctx, Family::V4)))
}

#[cgroup_sock_addr(sendmsg6)]
pub(crate) fn sendmsg6(ctx: SockAddrContext) -> i32 {
    verdict(try_send::<false>(&SockAddr::new(&ctx, Family::V6)))
}

#[cgroup_sock_addr(sendmsg6)]
pub(crate) fn sendmsg6_both(ctx: SockAddrContext) -> i32 {
    verdict(try_send::<true>(&SockAddr::new(&ctx, Family::V6)))
}

#[inline(always)]
fn try_send<const BOTH: bool>(ctx: &SockAddr<'_>) -> Result<Outcome, Error> {
    let Some(to) = ctx.destination() else { return Ok(Outcome::Proceed) };
    // The hook is UDP's and UDP-Lite's. An exchange is remembered under one protocol number.
    if to.protocol != Protocol::UDP {
        return Ok(Outcome::Proceed);
    }
    let cookie = ctx.socket_cookie();
    if let Some(translation) = connected::recall_connected::<BOTH>(ctx, cookie)
        && let Some((addr, port)) = connected_backend(translation, to)
    {
        ctx.set(addr, port);
        return Ok(Outcome::Proceed);
    }
    let verdict = if BOTH {
        translate_datagram(&BothTables, ctx.client(), cookie, to)
    } else {
        translate_datagram(&KernelTables, ctx.client(), cookie, to)
    };
    match verdict {
        Verdict::Translate(translation) => {
            ctx.set(translation.addr, translation.port);
            Ok(Outcome::Proceed)
        }
        Verdict::Pass(_) => Ok(Outcome::Proceed),
        Verdict::Refuse(_) => Ok(Outcome::Refuse),
    }
}
