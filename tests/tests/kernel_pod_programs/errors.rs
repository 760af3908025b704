//! ICMP errors at a pod's link.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use portway_tests::harness::{eventually, frame};

use super::frontends;
use super::pod_programs::{HAIRPIN_V4, HAIRPIN_V6, Node};

/// The ICMP error that is a frame's packet.
pub(super) fn quoted_by(frame: &[u8]) -> Option<Quote> {
    let v6 = *frame.get(12)? == 0x86;
    let packet = frame.get(14..)?;
    let (header, addresses, protocol) =
        if v6 { (40, 8..40, packet.get(6)?) } else { (20, 12..20, packet.get(9)?) };
    let (protocol, unreachable) = (*protocol, if v6 { (frame::ICMPV6, 1) } else { (frame::ICMP, 3) });
    let message = packet.get(header..)?;
    if (protocol, *message.first()?) != unreachable {
        return None;
    }
    let ends = |packet: &[u8]| {
        let (source, destination) = packet[addresses.clone()].split_at(addresses.len() / 2);
        let addr = |bytes: &[u8]| match <[u8; 4]>::try_from(bytes) {
            Ok(v4) => IpAddr::from(v4),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
        };
        (addr(source), addr(destination))
    };
    let (source, destination) = ends(packet);
    let quoted = message.get(8..)?;
    let (from, to) = ends(quoted);
    let port = |at: usize| u16::from_be_bytes([quoted[header + at], quoted[header + at + 1]]);
    // The same message with its checksum computed is what it was.
    let right = frame::icmp(source, destination, message)[header..] == *message
        && (v6 || frame::checksum(0, &quoted[..header]) == 0 && frame::checksum(0, &packet[..header]) == 0);
    Some(Quote { ends: (source, destination), quoted: ((from, port(0)).into(), (to, port(2)).into()), right })
}

/// What an ICMP error that a port is closed says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Quote {
    pub(super) ends: (IpAddr, IpAddr),
    pub(super) quoted: (SocketAddr, SocketAddr),
    /// Its checksums are.
    pub(super) right: bool,
}

#[test]
fn an_error_of_a_client_about_an_answer_of_a_service_reaches_the_backend() -> Result<()> {
    const NOBODY: u16 = 7777;
    let mut node = Node::new()?;
    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let (wire, heard) = (a.wire()?, b.wire()?);
    for (n, frontend) in frontends().into_iter().enumerate() {
        let own = a.sockets()[n].ip();
        let hairpin = if n == 0 { IpAddr::V4(HAIRPIN_V4) } else { HAIRPIN_V6.into() };
        for (port, backend, client, at) in
            [(81, b.sockets()[n], own, &heard), (82, a.sockets()[n], hairpin, &wire)]
        {
            // Nobody has asked, so that the answer finds a closed port at the client.
            let frontend = SocketAddr::new(frontend.ip(), port);
            node.service(u32::from(port) % 80 + 4 * n as u32, frontend, &[backend])?;
            let ask = frame::udp((own, NOBODY).into(), frontend, b"who are you");
            wire.send(&frame::ethernet(a.mac, a.node_mac, &ask))?;
            let expected = Quote {
                ends: (client, backend.ip()),
                quoted: (backend, (client, NOBODY).into()),
                right: true,
            };
            let mut quotes = Vec::new();
            eventually(Duration::from_secs(5), "the backend hears of the closed port", || {
                quotes.extend(at.heard()?.iter().filter_map(|frame| quoted_by(frame)));
                ensure!(quotes.contains(&expected), "{expected:?} of {quotes:?}");
                Ok(())
            })?;
        }
    }
    Ok(())
}

#[test]
fn an_error_that_quotes_what_nobody_can_read_arrives_as_it_is() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let (wire, heard) = (a.wire()?, b.wire()?);
    for (from, to) in a.sockets().into_iter().zip(b.sockets()) {
        let mut message = vec![if from.is_ipv4() { 3 } else { 1 }, 0, 0, 0, 0, 0, 0, 0];
        message.extend(format!("a quote for {to}").into_bytes());
        let error = frame::icmp(from.ip(), to.ip(), &message);
        wire.send(&frame::ethernet(a.mac, a.node_mac, &error))?;
        eventually(Duration::from_secs(5), "the error arrives", || {
            ensure!(heard.has_heard(&message[8..])?, "for {to}");
            Ok(())
        })?;
    }
    Ok(())
}
