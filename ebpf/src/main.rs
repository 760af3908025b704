//! The kernel programs: sockets are translated to backends as they connect, send, receive, ask for their peer and
//! bind.
//!
//! Each program reads its context, asks a decision of `portway-datapath` over the BPF maps ([`maps::KernelTables`])
//! and writes the answer back. Nothing is decided here, so that user space decides alike. An entry point alone turns
//! an outcome into a verdict: no path through it denies a call without an errno of our own, because the kernel's
//! would be EPERM.
//!
//! ```text
//! connect4, connect6          destination -> backend; remembered in pw_sock
//! sendmsg4, sendmsg6          the same for an unconnected UDP socket; remembered in pw_sock_udp, pw_sock_replies
//! recvmsg4, recvmsg6          source of a datagram: backend -> frontend
//! getpeername4, getpeername6  peer: backend -> frontend
//! post_bind4, post_bind6      denies a bind that would take a NodePort
//! sock_release                counts translated sockets that end
//! …_both                      the same on the maps of an earlier agent too, while a new one takes over ([`earlier`])
//! pw_store_word               never attached; user space runs it to change a hash map's element in place
//! ```

#![cfg_attr(target_arch = "bpf", no_std)]
#![no_main]

mod bind;
mod connect;
mod connected;
mod context;
mod earlier;
mod maps;
mod outcome;
mod peer;
mod receive;
mod release;
mod send;
mod store_word;

/// The verifier lets only GPL-compatible programs call the helpers used here.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
