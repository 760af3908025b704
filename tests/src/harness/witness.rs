//! What reaches a namespace, whoever has asked for it: raw sockets get a copy.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::Namespace;

/// What a witness tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    /// An echo request.
    Echo,
    /// A datagram of UDP to this port.
    Datagram(u16),
}

/// Hears echo requests and datagrams to a namespace's own addresses, both families.
#[derive(Debug)]
pub struct Witness {
    icmp: UdpSocket,
    icmp_v6: UdpSocket,
    udp: UdpSocket,
    udp_v6: UdpSocket,
}

impl Witness {
    pub fn start(namespace: &Namespace) -> Result<Self> {
        namespace.run(|| {
            let open = |family, protocol| {
                let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
                    .context("make a raw socket (needs root)")?;
                let socket = UdpSocket::from(socket);
                socket.set_nonblocking(true)?;
                anyhow::Ok(socket)
            };
            Ok(Self {
                icmp: open(AddressFamily::Inet, SockProtocol::Icmp)?,
                icmp_v6: open(AddressFamily::Inet6, SockProtocol::IcmpV6)?,
                udp: open(AddressFamily::Inet, SockProtocol::Udp)?,
                udp_v6: open(AddressFamily::Inet6, SockProtocol::Udp)?,
            })
        })
    }

    /// What came since the last call, and from whom.
    pub fn heard(&self) -> Result<BTreeSet<(Heard, IpAddr)>> {
        let mut heard = BTreeSet::new();
        for (socket, request) in [(&self.icmp, 8), (&self.icmp_v6, 128)] {
            drain(socket, |packet| (packet.first() == Some(&request)).then_some(Heard::Echo), &mut heard)?;
        }
        for socket in [&self.udp, &self.udp_v6] {
            let port =
                |packet: &[u8]| Some(Heard::Datagram(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?])));
            drain(socket, port, &mut heard)?;
        }
        Ok(heard)
    }
}

fn drain(
    socket: &UdpSocket,
    what: impl Fn(&[u8]) -> Option<Heard>,
    heard: &mut BTreeSet<(Heard, IpAddr)>,
) -> Result<()> {
    let mut buffer = vec![0; 65_536];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((len, from)) => {
                // An IPv4 socket of this kind gives the header too.
                let header = if from.is_ipv4() { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
                let packet = buffer.get(header..len).unwrap_or_default();
                heard.extend(what(packet).map(|what| (what, from.ip())));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => bail!("hear a raw socket: {error}"),
        }
    }
}
