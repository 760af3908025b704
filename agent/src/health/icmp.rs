//! ICMP echo, of both families.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, socket};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::ProbeError;

/// Requests until a path counts as broken, as Cilium's `health-check-icmp-failure-threshold`.
const ATTEMPTS: u16 = 3;
/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(1);

const HEADER: usize = 8;
/// Tells our answers from those to others, whoever chose the identifier.
const COOKIE: usize = 8;
/// An IPv4 header with all options, and the message.
const LARGEST: usize = 60 + HEADER + COOKIE;

/// Type of the request and of the reply (RFC 792, RFC 4443).
const ECHO_V4: (u8, u8) = (8, 0);
const ECHO_V6: (u8, u8) = (128, 129);

/// The round trip to `address`.
///
/// # Errors
/// None of three requests was answered within a second, or the kernel would not send one.
pub(super) async fn echo(address: IpAddr) -> Result<Duration, ProbeError> {
    let socket = Echo::open(address)?;
    let mut last = ProbeError::NoAnswer { within: PATIENCE };
    for sequence in 1..=ATTEMPTS {
        match timeout(PATIENCE, socket.round_trip(sequence)).await {
            Ok(Ok(took)) => return Ok(took),
            // A router or the neighbour's silence says so, and may say otherwise the next time.
            Ok(Err(error)) => last = ProbeError::Socket(error),
            Err(_) => {}
        }
    }
    Err(last)
}

/// A socket that hears one address alone.
struct Echo {
    /// An ICMP socket: sending to and hearing from one peer are the same calls.
    socket: UdpSocket,
    is_v6: bool,
    /// A raw IPv4 socket is given the IP header too.
    has_header: bool,
    cookie: [u8; COOKIE],
}

impl Echo {
    fn open(address: IpAddr) -> Result<Self, ProbeError> {
        let (family, protocol) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
            IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let raw = socket(family, SockType::Raw, flags, protocol);
        let (is_raw, opened) = match raw {
            // Without CAP_NET_RAW: what net.ipv4.ping_group_range allows.
            Err(Errno::EPERM | Errno::EACCES) => (false, socket(family, SockType::Datagram, flags, protocol)),
            raw => (true, raw),
        };
        let opened = opened.map_err(socket_error)?;
        let destination = SockaddrStorage::from(SocketAddr::new(address, 0));
        connect(opened.as_raw_fd(), &destination).map_err(socket_error)?;
        Ok(Self {
            socket: UdpSocket::from_std(opened.into()).map_err(ProbeError::Socket)?,
            is_v6: address.is_ipv6(),
            has_header: is_raw && address.is_ipv4(),
            cookie: RandomState::new().hash_one(address).to_ne_bytes(),
        })
    }

    async fn round_trip(&self, sequence: u16) -> io::Result<Duration> {
        let began = Instant::now();
        self.socket.send(&self.request(sequence)).await?;
        let mut packet = [0; LARGEST];
        loop {
            let length = self.socket.recv(&mut packet).await?;
            if packet.get(..length).is_some_and(|packet| self.answers(packet, sequence)) {
                return Ok(began.elapsed());
            }
        }
    }

    /// The kernel fills in the checksum of ICMPv6 itself, and where the socket is not raw the identifier.
    fn request(&self, sequence: u16) -> [u8; HEADER + COOKIE] {
        let mut request = [0; HEADER + COOKIE];
        let [c0, c1, ..] = self.cookie;
        let [s0, s1] = sequence.to_be_bytes();
        let kind = if self.is_v6 { ECHO_V6.0 } else { ECHO_V4.0 };
        let (header, cookie) = request.split_at_mut(HEADER);
        header.copy_from_slice(&[kind, 0, 0, 0, c0, c1, s0, s1]);
        cookie.copy_from_slice(&self.cookie);
        if !self.is_v6 {
            let [high, low] = checksum(&request).to_be_bytes();
            request[2] = high;
            request[3] = low;
        }
        request
    }

    fn answers(&self, packet: &[u8], sequence: u16) -> bool {
        let header = match packet.first() {
            Some(first) if self.has_header => usize::from(first & 0xf) * 4,
            Some(_) | None => 0,
        };
        let reply = if self.is_v6 { ECHO_V6.1 } else { ECHO_V4.1 };
        let [s0, s1] = sequence.to_be_bytes();
        match packet.get(header..) {
            Some([kind, 0, _, _, _, _, b0, b1, cookie @ ..]) => {
                (*kind, *b0, *b1) == (reply, s0, s1) && *cookie == self.cookie
            }
            Some(_) | None => false,
        }
    }
}

fn socket_error(errno: Errno) -> ProbeError {
    ProbeError::Socket(errno.into())
}

/// RFC 1071, of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| match word {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    });
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_families_are_answered_on_loopback() {
        for address in ["127.0.0.1", "::1"] {
            let took = echo(address.parse().unwrap()).await.unwrap();
            assert!(took < PATIENCE, "{address}: {took:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_to_somebody_else_is_none() {
        let socket = Echo::open("127.0.0.1".parse().unwrap()).unwrap();
        let answer = |kind, sequence: u16, cookie: [u8; COOKIE]| {
            let [s0, s1] = sequence.to_be_bytes();
            let message = [[kind, 0, 0, 0, 9, 9, s0, s1], cookie].concat();
            // Header with one word of options.
            if socket.has_header { [[0x46; 24].as_slice(), &message].concat() } else { message }
        };
        assert!(socket.answers(&answer(0, 2, socket.cookie), 2));
        // What a raw socket hears of its own requests to this machine.
        assert!(!socket.answers(&answer(8, 2, socket.cookie), 2));
        assert!(!socket.answers(&answer(0, 1, socket.cookie), 2), "an answer that comes late");
        assert!(!socket.answers(&answer(0, 2, [7; COOKIE]), 2));
        for length in 0..HEADER {
            assert!(!socket.answers(&answer(0, 2, socket.cookie)[..length], 2), "{length} bytes");
        }
    }

    #[test]
    fn the_checksum_of_a_message_with_its_checksum_is_zero() {
        // RFC 1071, section 3.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[0xff, 0xff, 0x80, 0x01, 0x7f, 0xfe]), 0);
    }
}
