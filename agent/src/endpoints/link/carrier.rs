//! Links that carry packets from the moment on that they are said to be there.

#![expect(unsafe_code, reason = "nix has no ioctl of ethtool's")]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use super::LinkError;

/// Of include/uapi/linux/sockios.h and include/uapi/linux/ethtool.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GLINK: u32 = 0x0a;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Makes the kernel take note that an interface of the thread's namespace has a carrier. It drops what is sent until it
/// has, and leaves that to a worker that waits for its turn at the lock of all interfaces: seconds where many pods start.
/// Asking for the link state does it at once (`ethtool_op_get_link` calls `linkwatch_sync_dev`, net/ethtool/ioctl.c).
pub(super) fn settle(interface: &str) -> Result<(), LinkError> {
    let failed = |source| LinkError::Io { action: format!("read the link state of {interface}"), source };
    let socket = any_socket().map_err(failed)?;
    let mut value = Value { command: ETHTOOL_GLINK, data: 0 };
    // SAFETY: all of `ifreq` may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().take(room).zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the descriptor is open; the request and the value that it points to outlive the call and have the layouts
    // that this command takes.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result == 0 { Ok(()) } else { Err(failed(io::Error::last_os_error())) }
}

/// What an ioctl needs. Of no address: a new namespace has none, not even of its loopback, which is down.
fn any_socket() -> io::Result<UdpSocket> {
    UdpSocket::bind("0.0.0.0:0").or_else(|_| UdpSocket::bind("[::]:0"))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn a_namespace_whose_loopback_is_down_has_a_socket_for_it_also_without_ipv6() {
        let body = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("tests of the kernel need root");
            // Where the kernel has no IPv6, nothing comes after this one.
            assert_eq!(any_socket().unwrap().local_addr().unwrap().ip(), Ipv4Addr::UNSPECIFIED);
            settle("lo").unwrap();
        };
        std::thread::spawn(body).join().unwrap();
    }
}
