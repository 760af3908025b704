//! Echo requests, as ping(8) sends them.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::conversation::PATIENCE;
use crate::harness::frame::checksum;

const ECHO_V4: (u8, u8) = (8, 0);
const ECHO_V6: (u8, u8) = (128, 129);

/// Sends one echo request with `bytes` of payload and waits for its reply from that very address with that payload.
pub fn ping(to: IpAddr, bytes: u16) -> io::Result<()> {
    static SEQUENCE: AtomicU16 = AtomicU16::new(1);
    let (family, protocol, (request, reply)) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, ECHO_V4),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, ECHO_V6),
    };
    // std's socket for its methods: the kernel looks at the protocol it was made with.
    let socket = UdpSocket::from(socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?);
    // A connected one hears nobody else, and has errors reported.
    socket.connect(SocketAddr::new(to, 0))?;
    let id = (std::process::id() as u16).to_be_bytes();
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let mut message = vec![request, 0, 0, 0, id[0], id[1], sequence[0], sequence[1]];
    message.extend((0..bytes).map(|n| n as u8));
    if to.is_ipv4() {
        let sum = checksum(0, &message).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
    }
    socket.send(&message)?;
    let deadline = Instant::now() + PATIENCE;
    let mut buffer = vec![0; 65_536];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let len = socket.recv(&mut buffer)?;
        // An IPv4 socket of this kind gives the header too.
        let header = if to.is_ipv4() { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
        let heard = buffer.get(header..len).unwrap_or_default();
        if heard.first() == Some(&reply) && heard.get(4..) == message.get(4..) {
            return Ok(());
        }
    }
}
