//! Fields of the kernel's contexts.
//!
//! The verifier takes only loads and stores at a constant offset of the context, so each word is read on its own;
//! copying an array would make the compiler move the pointer ("dereference of modified ctx ptr").

use core::hint::black_box;
use core::ptr::{read_volatile, write_volatile};

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::helpers::{bpf_get_netns_cookie, bpf_get_socket_cookie};
use aya_ebpf::programs::{SockAddrContext, SockContext};
use portway_datapath::{Addr, Client, Destination, Family, Port, Protocol};

/// The address and port of a `bpf_sock_addr`: the destination of a connect or a send, the source of a receive, the
/// peer of a getpeername.
pub(crate) struct SockAddr<'a> {
    ctx: &'a SockAddrContext,
    /// Which of the two address fields the hook has. An IPv6 socket that sends to a mapped address comes by the IPv4
    /// hook, so this is the hook's family, not the socket's.
    family: Family,
}

impl<'a> SockAddr<'a> {
    #[inline(always)]
    pub(crate) fn new(ctx: &'a SockAddrContext, family: Family) -> Self {
        Self { ctx, family }
    }

    #[inline(always)]
    pub(crate) fn addr(&self) -> Addr {
        let sa = self.ctx.sock_addr;
        // SAFETY: the kernel gives programs of these hooks a valid `bpf_sock_addr`.
        unsafe {
            match self.family {
                Family::V4 => Addr::from_v4_word(read_volatile(&raw const (*sa).user_ip4)),
                Family::V6 => Addr::from_words([
                    read_volatile(&raw const (*sa).user_ip6[0]),
                    read_volatile(&raw const (*sa).user_ip6[1]),
                    read_volatile(&raw const (*sa).user_ip6[2]),
                    read_volatile(&raw const (*sa).user_ip6[3]),
                ]),
            }
        }
    }

    #[inline(always)]
    pub(crate) fn port(&self) -> Port {
        // SAFETY: as in `addr`.
        Port::from_network(unsafe { read_volatile(&raw const (*self.ctx.sock_addr).user_port) })
    }

    /// Writes another address and port. An IPv6 address into an IPv4 hook is not possible: a frontend and its
    /// backends are of one family.
    #[inline(always)]
    pub(crate) fn set(&self, addr: Addr, port: Port) {
        // A pointer that the compiler does not know: it would keep the addresses of the fields from the reads before,
        // and the verifier takes only constant offsets from the context itself.
        let sa = black_box(self.ctx.sock_addr);
        let [a, b, c, d] = addr.words();
        // SAFETY: as in `addr`; these fields are writable in all hooks that use this.
        unsafe {
            match self.family {
                Family::V4 => write_volatile(&raw mut (*sa).user_ip4, d),
                Family::V6 => {
                    write_volatile(&raw mut (*sa).user_ip6[0], a);
                    write_volatile(&raw mut (*sa).user_ip6[1], b);
                    write_volatile(&raw mut (*sa).user_ip6[2], c);
                    write_volatile(&raw mut (*sa).user_ip6[3], d);
                }
            }
            write_volatile(&raw mut (*sa).user_port, port.network());
        }
    }

    /// `None` for protocols that are not translated.
    #[inline(always)]
    pub(crate) fn protocol(&self) -> Option<Protocol> {
        // SAFETY: as in `addr`.
        Protocol::from_socket(unsafe { read_volatile(&raw const (*self.ctx.sock_addr).protocol) })
    }

    /// Where the socket wants to go; `None` for protocols that are not translated.
    #[inline(always)]
    pub(crate) fn destination(&self) -> Option<Destination> {
        let protocol = self.protocol()?;
        Some(Destination { addr: self.addr(), port: self.port(), protocol })
    }

    #[inline(always)]
    pub(crate) fn client(&self) -> Client {
        // SAFETY: the helper takes the context of this program.
        Client { netns: unsafe { bpf_get_netns_cookie(self.ctx.as_ptr()) } }
    }

    #[inline(always)]
    pub(crate) fn socket_cookie(&self) -> u64 {
        // SAFETY: the helper takes the context of this program.
        unsafe { bpf_get_socket_cookie(self.ctx.as_ptr()) }
    }

    /// The socket, as the storage helpers take it.
    #[inline(always)]
    pub(crate) fn socket(&self) -> *mut bpf_sock {
        // SAFETY: as in `addr`; the kernel's field is a pointer, never null.
        unsafe { read_volatile(&raw const (*self.ctx.sock_addr).__bindgen_anon_1.sk) }
    }

    /// The port that the socket is connected to; 0 where it is not connected.
    #[inline(always)]
    pub(crate) fn connected_port(&self) -> Port {
        // SAFETY: `dst_port` may be read from the socket that the context holds; 2 bytes in network order.
        Port::from_network(u32::from(unsafe { read_volatile(&raw const (*self.socket()).dst_port) }))
    }
}

/// What a `bpf_sock` of post_bind tells of the bind.
pub(crate) struct Bind {
    pub(crate) netns: u64,
    pub(crate) addr: Addr,
    pub(crate) port: Port,
    pub(crate) protocol: Protocol,
}

/// `None` for protocols that have no services.
#[inline(always)]
pub(crate) fn bind(ctx: &SockContext, family: Family) -> Option<Bind> {
    let sock = ctx.sock;
    // SAFETY: the kernel gives post_bind programs a valid `bpf_sock`; `src_ip4` is readable in post_bind4 alone, the
    // words of `src_ip6` in post_bind6 alone. `src_port` is in host order.
    unsafe {
        let protocol = Protocol::from_socket(read_volatile(&raw const (*sock).protocol))?;
        let addr = match family {
            Family::V4 => Addr::from_v4_word(read_volatile(&raw const (*sock).src_ip4)),
            Family::V6 => Addr::from_words([
                read_volatile(&raw const (*sock).src_ip6[0]),
                read_volatile(&raw const (*sock).src_ip6[1]),
                read_volatile(&raw const (*sock).src_ip6[2]),
                read_volatile(&raw const (*sock).src_ip6[3]),
            ]),
        };
        let port = Port::new(read_volatile(&raw const (*sock).src_port) as u16);
        Some(Bind { netns: bpf_get_netns_cookie(ctx.as_ptr()), addr, port, protocol })
    }
}
