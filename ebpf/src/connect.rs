//! connect(2) of TCP and UDP sockets.

use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use portway_datapath::{Family, Protocol, SocketTranslation, Verdict, translate};

use crate::connected;
use crate::context::SockAddr;
use crate::earlier::BothTables;
use crate::maps::KernelTables;
use crate::outcome::{Error, Outcome, verdict};

#[cgroup_sock_addr(connect4)]
pub(crate) fn connect4(ctx: SockAddrContext) -> i32 {
    verdict(try_connect::<false>(&SockAddr::new(&ctx, Family::V4)))
}

#[cgroup_sock_addr(connect4)]
pub(crate) fn connect4_both(ctx: SockAddrContext) -> i32 {
    verdict(try_connect::<true>(&SockAddr::new(&ctx, Family::V4)))
}

/// Also sockets of IPv6 that connect to a mapped address.
#[cgroup_sock_addr(connect6)]
pub(crate) fn connect6(ctx: SockAddrContext) -> i32 {
    verdict(try_connect::<false>(&SockAddr::new(&ctx, Family::V6)))
}

#[cgroup_sock_addr(connect6)]
pub(crate) fn connect6_both(ctx: SockAddrContext) -> i32 {
    verdict(try_connect::<true>(&SockAddr::new(&ctx, Family::V6)))
}

#[inline(always)]
fn try_connect<const BOTH: bool>(ctx: &SockAddr<'_>) -> Result<Outcome, Error> {
    let Some(to) = ctx.destination() else { return Ok(Outcome::Proceed) };
    let verdict = if BOTH {
        translate(&BothTables, ctx.client(), to)
    } else {
        translate(&KernelTables, ctx.client(), to)
    };
    match verdict {
        Verdict::Translate(translation) => {
            ctx.set(translation.addr, translation.port);
            let memory = SocketTranslation::new(to.addr, to.port, to.protocol, &translation);
            connected::remember(ctx.socket_cookie(), &memory)?;
            Ok(Outcome::Proceed)
        }
        Verdict::Pass(_) => {
            // A UDP socket may have been connected to a service before. (A TCP socket that failed to reach one may be
            // used again, too; what is remembered of that names another peer, so it says nothing of this one, and the
            // lookup would cost every connect that is none of ours.)
            if to.protocol == Protocol::UDP {
                connected::forget::<BOTH>(ctx.socket_cookie());
            }
            Ok(Outcome::Proceed)
        }
        Verdict::Refuse(_) => Ok(Outcome::Refuse),
    }
}
