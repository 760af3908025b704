//! bind(2) in the node's namespace: a NodePort is not to be taken from the services.

use aya_ebpf::macros::cgroup_sock;
use aya_ebpf::programs::SockContext;
use portway_datapath::{Family, bind_is_denied};

use crate::context;
use crate::maps::KernelTables;
use crate::outcome::{Error, Outcome, verdict};

#[cgroup_sock(post_bind4)]
pub(crate) fn post_bind4(ctx: SockContext) -> i32 {
    verdict(try_bind(&ctx, Family::V4))
}

#[cgroup_sock(post_bind6)]
pub(crate) fn post_bind6(ctx: SockContext) -> i32 {
    verdict(try_bind(&ctx, Family::V6))
}

#[inline(always)]
fn try_bind(ctx: &SockContext, family: Family) -> Result<Outcome, Error> {
    let Some(bind) = context::bind(ctx, family) else { return Ok(Outcome::Proceed) };
    let denied = bind_is_denied(&KernelTables, bind.netns, bind.addr, bind.port, bind.protocol);
    Ok(if denied { Outcome::InUse } else { Outcome::Proceed })
}
