//! The packet programs of the pod network: at both ends of each pod's link, on the node's devices, on the tunnel device.
//!
//! An object of its own, loaded where there is a pod network, onto the same maps of services as the socket programs.
//! Each program parses, asks a decision of `portway-datapath` over the BPF maps ([`maps::KernelTables`]) and does what it says.
//!
//! ```text
//! pw_from_pod      tcx ingress of the node's end of a pod's link: what the pod sends
//! pw_to_pod        egress of the same: what the node's stack sends to the pod
//! pw_from_device   tcx ingress of a node's device
//! pw_to_device     tcx egress of the same
//! pw_from_tunnel   tcx ingress of the tunnel device
//! pw_to_tunnel     tcx egress of the same
//! ```
//!
//! A packet that goes on, as it is or rewritten, is left to whose program comes next (`TC_ACT_UNSPEC`, of tcx the same number is
//! `TCX_NEXT`): these hooks are not ours alone. But for the links of pods that Portway made (`OWN_LINKS`).

#![cfg_attr(target_arch = "bpf", no_std)]
#![no_main]

mod deliver;
mod fragment;
mod from_device;
mod from_pod;
mod from_tunnel;
mod icmp;
mod maps;
mod nat;
mod parse;
mod policy;
mod quoted;
mod refuse;
mod rewrite;
#[path = "../maps.rs"]
#[expect(dead_code, reason = "the socket programs use the rest")]
mod service_maps;
mod source;
mod to_device;
mod to_pod;
mod to_tunnel;
mod tunnel_key;

/// The verifier lets only GPL-compatible programs call the helpers used here.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
