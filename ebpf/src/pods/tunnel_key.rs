//! The outer header of the tunnel, as the VXLAN device and its programs pass it to each other.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{
    BPF_F_TUNINFO_IPV6, BPF_F_ZERO_CSUM_TX, bpf_tunnel_key, bpf_tunnel_key__bindgen_ty_1,
};
use aya_ebpf::helpers::{bpf_skb_get_tunnel_key, bpf_skb_set_tunnel_key};
use aya_ebpf::programs::TcContext;
use portway_datapath::{Addr, Family, NumericIdentity, Reason};

/// Hop limit of the outer header.
const HOPS: u8 = 64;

const SIZE: u32 = size_of::<bpf_tunnel_key>() as u32;

/// The node that sent the packet; `None` where it did not come through a tunnel.
#[inline(always)]
pub(crate) fn remote(ctx: &TcContext) -> Option<Addr> {
    let mut key = MaybeUninit::<bpf_tunnel_key>::zeroed();
    let skb = ctx.skb.skb;
    // SAFETY: the helper fills at most `SIZE` bytes; all fields are integers, so zeroed memory is a key.
    unsafe {
        if bpf_skb_get_tunnel_key(skb, key.as_mut_ptr(), SIZE, 0) == 0 {
            let word = (*key.as_ptr()).__bindgen_anon_1.remote_ipv4;
            return Some(Addr::from_v4_word(word.to_be()));
        }
        if bpf_skb_get_tunnel_key(skb, key.as_mut_ptr(), SIZE, u64::from(BPF_F_TUNINFO_IPV6)) == 0 {
            return Some(Addr::from_words((*key.as_ptr()).__bindgen_anon_1.remote_ipv6));
        }
    }
    None
}

/// Sends the packet to the node `to`. Its VNI says who sent it, so that the other node need not look it up.
#[inline(always)]
pub(crate) fn set_remote(ctx: &TcContext, to: Addr, sender: NumericIdentity) -> Result<(), Reason> {
    let (remote, flags) = match to.family() {
        // The inner packet has a checksum of its own.
        Family::V4 => {
            (bpf_tunnel_key__bindgen_ty_1 { remote_ipv4: u32::from_be(to.words()[3]) }, BPF_F_ZERO_CSUM_TX)
        }
        // A UDP packet without a checksum is not received in IPv6 (RFC 8200, section 8.1).
        Family::V6 => (bpf_tunnel_key__bindgen_ty_1 { remote_ipv6: to.words() }, BPF_F_TUNINFO_IPV6),
    };
    let mut key = MaybeUninit::<bpf_tunnel_key>::zeroed();
    // SAFETY: as in `remote`; the helper reads `SIZE` bytes, all of which are written.
    let result = unsafe {
        let at = key.as_mut_ptr();
        (*at).tunnel_id = sender.on_the_wire().get();
        (*at).tunnel_ttl = HOPS;
        (*at).__bindgen_anon_1 = remote;
        bpf_skb_set_tunnel_key(ctx.skb.skb, at, SIZE, u64::from(flags))
    };
    if result == 0 { Ok(()) } else { Err(Reason::KernelError) }
}
