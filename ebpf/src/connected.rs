//! `pw_sock`: what a connected socket was translated to, by the socket's cookie.
//!
//! An entry comes with the connect and goes with the socket: cookies are never given twice, and `sock_release` runs for
//! every socket of user space. (Socket storage would go by itself, but its first allocation takes three quarters of a
//! connect's program time: 1.4 µs against 0.5.)

use aya_ebpf::bindings::{BPF_ANY, BPF_F_NO_PREALLOC};
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use portway_datapath::SocketTranslation;
use portway_datapath::layout::Sizes;

use crate::context::SockAddr;
use crate::earlier;
use crate::outcome::Error;

#[map(name = "pw_sock")]
static SOCKETS: HashMap<u64, SocketTranslation> =
    HashMap::with_max_entries(Sizes::DEFAULT.sockets, BPF_F_NO_PREALLOC);

/// Remembers the translation of a socket, over one of an earlier connect: no other socket reads the entry.
#[inline(always)]
pub(crate) fn remember(cookie: u64, translation: &SocketTranslation) -> Result<(), Error> {
    SOCKETS.insert(cookie, translation, u64::from(BPF_ANY)).map_err(|_| Error::Unremembered)
}

/// Forgets the translation of a socket; whether there was one. `BOTH`: also an earlier agent's.
#[inline(always)]
pub(crate) fn forget<const BOTH: bool>(cookie: u64) -> bool {
    // The earlier one first: whoever copies it looks whether it is still there afterwards, and takes the copy back.
    let earlier = BOTH && earlier::forget(cookie);
    // Deleting locks the bucket, also for nothing; looking doesn't.
    let own = recall::<false>(cookie).is_some() && SOCKETS.remove(cookie).is_ok();
    earlier || own
}

/// The translation of a socket; `None` where it was never translated. `BOTH`: also an earlier agent's.
#[inline(always)]
pub(crate) fn recall<'a, const BOTH: bool>(cookie: u64) -> Option<&'a SocketTranslation> {
    // SAFETY: a value of the map. It is written in the socket's connect and removed in its release, which the kernel
    // does not run beside another call on the socket.
    let own = unsafe { SOCKETS.get(cookie) };
    if BOTH { own.or_else(|| earlier::recall(cookie)) } else { own }
}

/// The translation of a UDP socket that is connected now.
///
/// connect(2) with `AF_UNSPEC` dissolves a socket's association without passing a hook: the entry counts only while the
/// socket is connected to what it tells.
#[inline(always)]
pub(crate) fn recall_connected<'a, const BOTH: bool>(
    ctx: &SockAddr<'_>,
    cookie: u64,
) -> Option<&'a SocketTranslation> {
    recall::<BOTH>(cookie).filter(|translation| translation.backend_port == ctx.connected_port())
}
