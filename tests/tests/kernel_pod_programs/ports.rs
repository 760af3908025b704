//! Connections from one port of a pod to one backend, by way of services and without.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use portway_tests::harness::{Namespace, Server, eventually, frame, process};

use super::errors::{Quote, quoted_by};
use super::frontends;
use super::pod_programs::{HAIRPIN_V4, HAIRPIN_V6, Node, PORT, Pod};

/// Longer than anything takes; shorter than a SYN that is sent again for the third time.
const PATIENCE: Duration = Duration::from_secs(3);

/// A connection from a port that others have too.
struct Held {
    to: SocketAddr,
    own: SocketAddr,
    stream: BufReader<TcpStream>,
    /// The client in the server's eyes.
    seen: SocketAddr,
}

impl Held {
    /// Connects, from `port`, and hears whom the server sees.
    fn dial(pod: &Pod, port: u16, to: SocketAddr, server: &str) -> Result<Self> {
        let own = SocketAddr::new(pod.sockets()[usize::from(to.is_ipv6())].ip(), port);
        let stream =
            pod.namespace.run(|| dial(own, to)).with_context(|| format!("connect from {own} to {to}"))?;
        let mut held = Self { to, own, stream: BufReader::new(stream), seen: own };
        held.seen = held.hear(server)?;
        Ok(held)
    }

    fn hear(&mut self, server: &str) -> Result<SocketAddr> {
        let Self { to, own, stream, .. } = self;
        let mut line = String::new();
        stream.read_line(&mut line).with_context(|| format!("{own} hears from {to}"))?;
        let (name, client) =
            line.trim().split_once(' ').with_context(|| format!("{own} to {to}: {line:?}"))?;
        ensure!(name == server, "{own} to {to}: {line:?}");
        Ok(client.parse()?)
    }

    /// Both directions work still, and lead to the same connection of the server's.
    fn goes_on(&mut self, server: &str) -> Result<()> {
        self.stream.get_mut().write_all(b"again").with_context(|| format!("{} to {}", self.own, self.to))?;
        let seen = self.hear(server)?;
        ensure!(seen == self.seen, "{} to {}: {seen}, not {}", self.own, self.to, self.seen);
        let peer = (self.stream.get_ref().local_addr()?, self.stream.get_ref().peer_addr()?);
        ensure!(peer == (self.own, self.to), "{peer:?}");
        Ok(())
    }
}

/// As a kernel does that gives one port to connections to different addresses.
fn dial(own: SocketAddr, to: SocketAddr) -> Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    let patience = TimeVal::seconds(PATIENCE.as_secs().try_into()?);
    setsockopt(&fd, sockopt::SendTimeout, &patience)?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &patience)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(own))?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(fd.into())
}

/// Two services at each family's address, by family.
fn services(node: &mut Node, backends: [SocketAddr; 2]) -> Result<[[SocketAddr; 2]; 2]> {
    let services = frontends().map(|frontend| [80, 81].map(|port| SocketAddr::new(frontend.ip(), port)));
    for (n, frontend) in services.into_iter().flatten().enumerate() {
        node.service(n as u32 + 1, frontend, &[backends[usize::from(frontend.is_ipv6())]])?;
    }
    Ok(services)
}

#[test]
fn connections_from_one_port_to_one_backend_are_all_made_and_none_breaks() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let services = services(&mut node, b.sockets())?;
    let mut held = Vec::new();
    for (family, direct) in b.sockets().into_iter().enumerate() {
        let [first, second] = services[family];
        // Whichever is there first has the port.
        for (n, order) in [[direct, first, second], [first, direct, second], [first, second, direct]]
            .into_iter()
            .enumerate()
        {
            for port in 0..3 {
                for (place, to) in order.into_iter().enumerate() {
                    let new = Held::dial(&a, 45_000 + n as u16 * 10 + port, to, "b")?;
                    ensure!((new.seen == new.own) == (place == 0), "{} to {to} is {}", new.own, new.seen);
                    ensure!(new.seen.ip() == new.own.ip(), "{} to {to} is {}", new.own, new.seen);
                    held.push(new);
                    held.iter_mut().try_for_each(|held| held.goes_on("b"))?;
                }
            }
        }
    }
    let seen: BTreeSet<_> = held.iter().map(|held| held.seen).collect();
    ensure!(seen.len() == held.len(), "{seen:?}");
    // Each of them ends alone.
    while let Some(gone) = held.pop() {
        drop(gone);
        held.iter_mut().try_for_each(|held| held.goes_on("b"))?;
    }
    Ok(())
}

#[test]
fn a_pod_that_reaches_itself_by_two_services_from_one_port_has_two_connections() -> Result<()> {
    let mut node = Node::new()?;
    let a = node.pod("a")?;
    let services = services(&mut node, a.sockets())?;
    for (frontends, hairpin) in services.into_iter().zip([IpAddr::from(HAIRPIN_V4), HAIRPIN_V6.into()]) {
        let mut held = Vec::new();
        for to in frontends {
            held.push(Held::dial(&a, 45_000, to, "a")?);
            held.iter_mut().try_for_each(|held| held.goes_on("a"))?;
        }
        ensure!(held.iter().all(|held| held.seen.ip() == hairpin));
        ensure!(held[0].seen.port() == 45_000 && held[1].seen.port() != 45_000);
    }
    Ok(())
}

#[test]
fn errors_about_a_connection_that_leaves_from_another_port_name_the_port_that_each_end_knows() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let services = services(&mut node, b.sockets())?;
    for (family, backend) in b.sockets().into_iter().enumerate() {
        let [first, second] = services[family];
        let _first = Held::dial(&a, 45_000, first, "b")?;
        for to in [second, backend] {
            let mut held = Held::dial(&a, 45_000, to, "b")?;
            ensure!(held.seen != held.own);
            // Of the backend, about what the client sent; and of the client, about what the backend sent.
            for (from, wire, heard, quoted, expected) in [
                (&b, b.wire()?, a.wire()?, (held.seen, backend), (held.own, to)),
                (&a, a.wire()?, b.wire()?, (to, held.own), (backend, held.seen)),
            ] {
                let (source, target) = (from.sockets()[family].ip(), quoted.0.ip());
                let mut message = vec![if family == 0 { 3 } else { 1 }, 0, 0, 0, 0, 0, 0, 0];
                // An ACK of nothing that was said, so that nobody takes the error for more than a remark.
                message.extend(frame::tcp(quoted.0, quoted.1, 16));
                let error = frame::icmp(source, target, &message);
                wire.send(&frame::ethernet(from.mac, from.node_mac, &error))?;
                let ends = (expected.1.ip(), expected.0.ip());
                let expected = Quote { ends, quoted: expected, right: true };
                let mut quotes = Vec::new();
                eventually(Duration::from_secs(5), "the error arrives", || {
                    quotes.extend(heard.heard()?.iter().filter_map(|frame| quoted_by(frame)));
                    ensure!(quotes.contains(&expected), "{expected:?} of {quotes:?}");
                    Ok(())
                })?;
            }
            held.goes_on("b")?;
        }
    }
    Ok(())
}

/// A packet that goes on would be seen again by the filter: as the pod's own dial of the backend, from a port that is taken.
#[test]
fn a_link_and_a_filter_behind_it_see_a_packet_once() -> Result<()> {
    let mut node = Node::new()?;
    let a = node.pod("a")?;
    let outside = Namespace::new("outside")?;
    node.namespace.add_veth("out", &outside, "eth0")?;
    node.namespace.add_address("out", Ipv4Addr::new(10, 9, 0, 1).into(), 24)?;
    outside.add_address("eth0", Ipv4Addr::new(10, 9, 0, 2).into(), 24)?;
    process::output(outside.command("ip").args(["route", "add", "default", "via", "10.9.0.1"]))?;
    let _server = Server::start(&outside, "outside", PORT)?;
    let [frontend, _] = frontends();
    node.service(1, frontend, &[SocketAddr::from((Ipv4Addr::new(10, 9, 0, 2), PORT))])?;
    node.settle_beside_a_filter("a")?;
    for port in 45_000..45_010 {
        let mut held = Held::dial(&a, port, frontend, "outside")?;
        ensure!(held.seen == held.own, "{} is {} outside", held.own, held.seen);
        held.goes_on("outside")?;
    }
    Ok(())
}
