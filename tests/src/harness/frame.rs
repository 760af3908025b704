//! Frames as a program with a raw socket would make them, right or wrong.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const ICMPV6: u8 = 58;

pub type Mac = [u8; 6];

/// Everybody on the link.
pub const BROADCAST: Mac = [0xff; 6];

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

/// The ones' complement sum of RFC 1071 over `data`, with `seed` added, complemented.
pub fn checksum(seed: u32, data: &[u8]) -> u16 {
    let words = data.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = words.fold(u64::from(seed), |sum, word| sum + u64::from(word));
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An Ethernet frame around a packet.
pub fn ethernet(source: Mac, destination: Mac, packet: &[u8]) -> Vec<u8> {
    let kind = if packet.first().is_some_and(|first| first >> 4 == 6) { IPV6 } else { IPV4 };
    framed(source, destination, kind, packet)
}

fn framed(source: Mac, destination: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&destination[..], &source[..], &kind.to_be_bytes(), payload].concat()
}

/// A packet of either family; both addresses are of one.
pub fn ip(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let len = (20 + payload.len()) as u16;
            packet.extend([0x45, 0]);
            packet.extend(len.to_be_bytes());
            packet.extend([0x12, 0x34, 0, 0, 64, protocol, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            let sum = checksum(0, &packet).to_be_bytes();
            packet[10..12].copy_from_slice(&sum);
        }
        (source, destination) => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend((payload.len() as u16).to_be_bytes());
            // Neighbour discovery wants 255, and nothing else minds.
            packet.extend([protocol, 255]);
            packet.extend(v6(source).octets());
            packet.extend(v6(destination).octets());
        }
    }
    packet.extend(payload);
    packet
}

fn v6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The sum of the header that upper layers count with their own.
fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u32 {
    let octets = |addr: IpAddr| match addr {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let sum = |data: &[u8]| u32::from(!checksum(0, data));
    sum(&octets(source)) + sum(&octets(destination)) + u32::from(protocol) + len as u32
}

/// A packet with a datagram of UDP.
pub fn udp(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let len = 8 + payload.len();
    let mut datagram = Vec::with_capacity(len);
    datagram.extend(source.port().to_be_bytes());
    datagram.extend(destination.port().to_be_bytes());
    datagram.extend((len as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    let sum = checksum(pseudo_header(source.ip(), destination.ip(), UDP, len), &datagram);
    // Zero would mean that there is none.
    datagram[6..8].copy_from_slice(&(if sum == 0 { 0xffff } else { sum }).to_be_bytes());
    ip(source.ip(), destination.ip(), UDP, &datagram)
}

/// A packet with a segment of TCP that has these flags and no payload.
pub fn tcp(source: SocketAddr, destination: SocketAddr, flags: u8) -> Vec<u8> {
    let mut segment = Vec::with_capacity(20);
    segment.extend(source.port().to_be_bytes());
    segment.extend(destination.port().to_be_bytes());
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    let sum = checksum(pseudo_header(source.ip(), destination.ip(), TCP, segment.len()), &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    ip(source.ip(), destination.ip(), TCP, &segment)
}

/// A packet with a message of ICMP or ICMPv6, whose checksum field is filled in.
pub fn icmp(source: IpAddr, destination: IpAddr, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let (protocol, seed) = match source {
        IpAddr::V4(_) => (ICMP, 0),
        IpAddr::V6(_) => (ICMPV6, pseudo_header(source, destination, ICMPV6, message.len())),
    };
    message[2..4].fill(0);
    let sum = checksum(seed, &message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    ip(source, destination, protocol, &message)
}

/// An ARP reply to everybody: `addr` is at `mac`.
pub fn arp_reply(frame_source: Mac, mac: Mac, addr: std::net::Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 2];
    packet.extend(mac);
    packet.extend(addr.octets());
    packet.extend(BROADCAST);
    packet.extend(addr.octets());
    framed(frame_source, BROADCAST, ARP, &packet)
}

/// A neighbour advertisement of `target` at `mac`, unsolicited and overriding, from `source` to all nodes.
pub fn neighbour_advertisement(source: Ipv6Addr, target: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(target.octets());
    message.extend([2, 1]);
    message.extend(mac);
    icmp(source.into(), ALL_NODES.into(), &message)
}

/// A router advertisement that wants to be everybody's default router for half an hour.
pub fn router_advertisement(source: Ipv6Addr) -> Vec<u8> {
    let message = [134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    icmp(source.into(), ALL_NODES.into(), &message)
}

pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What a VXLAN tunnel sends: its header with the network identifier, then a frame. To be the payload of UDP.
pub fn vxlan(vni: u32, inner: &[u8]) -> Vec<u8> {
    let vni = vni.to_be_bytes();
    let mut payload = vec![0x08, 0, 0, 0, vni[1], vni[2], vni[3], 0];
    payload.extend(inner);
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_with_its_checksums_sums_to_zero() {
        let (a, b): (SocketAddr, SocketAddr) =
            ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:53".parse().unwrap());
        let packet = udp(a, b, b"odd");
        assert_eq!(checksum(0, &packet[..20]), 0);
        assert_eq!(checksum(pseudo_header(a.ip(), b.ip(), UDP, 11), &packet[20..]), 0);
        let (a, b): (SocketAddr, SocketAddr) =
            ("[fd00::1]:1000".parse().unwrap(), "[fd00::2]:53".parse().unwrap());
        let packet = tcp(a, b, 2);
        assert_eq!(checksum(pseudo_header(a.ip(), b.ip(), TCP, 20), &packet[40..]), 0);
    }

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // RFC 1071, section 3.
        assert_eq!(checksum(0, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }
}
