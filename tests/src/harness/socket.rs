//! The socket options that std does not have.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

/// `SO_NETNS_COOKIE`: the number that programs know the socket's namespace by.
pub fn netns_cookie(socket: &impl AsFd) -> std::io::Result<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` and `len` outlive the call and `len` is the size of `cookie`.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if rc == 0 { Ok(cookie) } else { Err(std::io::Error::last_os_error()) }
}

/// Makes the close of a TCP socket send a reset: no `TIME_WAIT` is left, so many connects don't use up the ports.
pub fn reset_on_close(socket: &impl AsFd) -> std::io::Result<()> {
    Ok(setsockopt(socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?)
}

/// The same destination for an IPv6 socket: `::ffff:a.b.c.d`.
pub fn mapped(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(v4) => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into(),
        SocketAddr::V6(_) => addr,
    }
}

/// An IPv4 address for what is one, however a socket wrote it.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), addr.port()),
        IpAddr::V6(v6) => SocketAddr::new(v6.into(), addr.port()),
    }
}
