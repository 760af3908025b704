//! The listeners that probes reach.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use tokio::time::sleep;

use super::hello;
use super::record::{Board, Problem};

/// Between two attempts to listen where another process does.
const RETRY: Duration = Duration::from_secs(10);
/// Connections that wait to be accepted: every node of a cluster may ask at once.
const QUEUE: i32 = 1024;

/// One for each family: whether an IPv6 listener takes IPv4 too depends on a sysctl.
pub(super) const fn wildcards(port: u16) -> [SocketAddr; 2] {
    [
        SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
        SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), port),
    ]
}

/// A listener in the calling thread's network namespace, where it stays. Does not block.
///
/// # Errors
/// The kernel's.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Stream, flags, None)?;
    if address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    // Connections to the agent before this one may linger.
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    nix::sys::socket::listen(&socket, Backlog::new(QUEUE)?)?;
    Ok(socket.into())
}

/// Answers on `address` of the node; as long as it cannot, `board` says why. A kernel without the family has no probes
/// of it either.
pub(super) async fn answer_on(address: SocketAddr, board: Board) {
    let about = if address.is_ipv4() { Problem::ListenV4 } else { Problem::ListenV6 };
    loop {
        match listen(address).and_then(tokio::net::TcpListener::from_std) {
            Ok(listener) => {
                board.set_problem(about, None);
                hello::answer(listener).await;
            }
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => return,
            Err(error) => board.set_problem(
                about,
                Some(format!(
                    "other nodes cannot probe this one on {address}: {error}; end the process that listens there, or set \
                     cluster-health-port on all nodes"
                )),
            ),
        }
        sleep(RETRY).await;
    }
}
