//! The programs on the node's devices and on the tunnel device, with maps filled by hand: what a pod and the world see of each
//! other, and what strangers cannot do.

#![expect(clippy::expect_used, reason = "a test says what it got by panicking")]

#[path = "kernel_pod_devices/net.rs"]
mod net;
#[path = "kernel_pod_devices/others.rs"]
mod others;
#[path = "kernel_pod_devices/tunnel.rs"]
mod tunnel;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, ensure};
use net::{NAT_PORTS, Net, PATIENCE, PORT, Small as _, lan, seen_by_tcp, seen_by_udp, udp_socket, world};
use nix::libc;
use portway_agent::maps::{KernelTables, PodTables};
use portway_agent::programs::{InterfacePrograms, PodProgram};
use portway_datapath::layout::PodSizes;
use portway_datapath::{Addr, Direction, IpcacheValue, NumericIdentity, Port, Reason};
use portway_tests::harness::mount::BpfMount;
use portway_tests::harness::probe::ping::ping;
use portway_tests::harness::wire::Wire;
use portway_tests::harness::{PREFIX, Server, eventually, frame, vm};

/// A protocol without ports.
const GRE: u8 = 47;

#[test]
fn a_pod_reaches_the_world_with_the_nodes_address() -> Result<()> {
    let net = Net::masquerading("reaches", PodSizes::DEFAULT_FOR_TESTS)?;
    let _server = Server::start(&net.world, "world", PORT)?;
    let (node, pod) = (&net.nodes[0], &net.nodes[0].pods[0]);
    for (at, server) in world(2).into_iter().enumerate() {
        let server = SocketAddr::new(server, PORT);
        let seen = seen_by_tcp(&pod.namespace, server)?;
        assert_eq!(seen.ip(), node.addresses()[at]);
        assert!(NAT_PORTS.contains(Port::new(seen.port())), "{seen}");
        let socket = udp_socket(&pod.namespace, pod.addresses[at], 0)?;
        let seen = seen_by_udp(&socket, server, 10)?;
        assert_eq!(seen, SocketAddr::new(node.addresses()[at], socket.local_addr()?.port()));
        pod.namespace.run(|| Ok(ping(server.ip(), 56)?))?;
    }
    Ok(())
}

#[test]
fn what_is_inside_sees_the_pods_own_address() -> Result<()> {
    let mut net = Net::masquerading("inside", PodSizes::DEFAULT_FOR_TESTS)?;
    let _server = Server::start(&net.router, "router", PORT)?;
    net.route_to_pods()?;
    let inside = IpcacheValue::new(NumericIdentity::UNKNOWN, None, IpcacheValue::INSIDE);
    let node = &mut net.nodes[0];
    node.ipcache.extend(lan(254).map(|addr| ((Addr::from(addr), 128), inside)));
    node.publish()?;
    let pod = &node.pods[0];
    for (at, server) in lan(254).into_iter().enumerate() {
        let server = SocketAddr::new(server, PORT);
        assert_eq!(seen_by_tcp(&pod.namespace, server)?.ip(), pod.addresses[at]);
        let socket = udp_socket(&pod.namespace, pod.addresses[at], 0)?;
        assert_eq!(seen_by_udp(&socket, server, 10)?, socket.local_addr()?);
    }
    Ok(())
}

#[test]
fn a_pod_answers_who_came_from_outside_with_its_own_address() -> Result<()> {
    let net = Net::masquerading("outside", PodSizes::DEFAULT_FOR_TESTS)?;
    net.route_to_pods()?;
    let pod = &net.nodes[0].pods[0];
    let _server = Server::start(&pod.namespace, "pod", PORT)?;
    for (at, client) in world(2).into_iter().enumerate() {
        let server = SocketAddr::new(pod.addresses[at], PORT);
        assert_eq!(seen_by_tcp(&net.world, server)?.ip(), client);
        let socket = udp_socket(&net.world, client, 0)?;
        assert_eq!(seen_by_udp(&socket, server, 10)?, socket.local_addr()?);
        net.world.run(|| Ok(ping(server.ip(), 56)?))?;
        // An error about it comes from the pod, too.
        let closed = SocketAddr::new(pod.addresses[at], 9);
        assert_eq!(refusal(&socket, closed)?, ErrorKind::ConnectionRefused);
    }
    Ok(())
}

#[test]
fn two_pods_and_the_node_with_one_port_each_hear_their_own_answers() -> Result<()> {
    let net = Net::masquerading("collide", PodSizes::DEFAULT_FOR_TESTS)?;
    let _server = Server::start(&net.world, "world", PORT)?;
    let node = &net.nodes[0];
    for (at, server) in world(2).into_iter().enumerate() {
        let server = SocketAddr::new(server, PORT);
        let own = udp_socket(&node.namespace, node.addresses()[at], 45_000)?;
        let pods = node.pods.iter().map(|pod| udp_socket(&pod.namespace, pod.addresses[at], 45_000));
        let mut sockets = vec![own];
        sockets.extend(pods.collect::<Result<Vec<_>>>()?);
        let mut seen = Vec::new();
        for round in 0..3 {
            let now =
                sockets.iter().map(|socket| seen_by_udp(socket, server, 10)).collect::<Result<Vec<_>>>()?;
            assert!(now.iter().all(|seen| seen.ip() == node.addresses()[at]), "{now:?}");
            assert!(round == 0 || now == seen, "{seen:?}, then {now:?}");
            seen = now;
        }
        assert_eq!(seen[0].port(), 45_000, "the node was first");
        assert!(seen[1] != seen[2] && seen[0] != seen[1] && seen[0] != seen[2], "{seen:?}");
    }
    Ok(())
}

#[test]
fn a_datagram_in_pieces_passes_both_ways() -> Result<()> {
    let net = Net::masquerading("pieces", PodSizes::DEFAULT_FOR_TESTS)?;
    let pod = &net.nodes[0].pods[0];
    for (at, server) in world(2).into_iter().enumerate() {
        let echo = udp_socket(&net.world, server, PORT)?;
        let client = udp_socket(&pod.namespace, pod.addresses[at], 0)?;
        let sent: Vec<u8> = (0..5_000u32).map(|n| n as u8).collect();
        client.set_read_timeout(Some(PATIENCE))?;
        echo.set_read_timeout(Some(PATIENCE))?;
        client.send_to(&sent, echo.local_addr()?)?;
        let mut heard = vec![0; 65_536];
        let (len, from) = echo.recv_from(&mut heard).context("the world hears the pieces")?;
        assert!(heard[..len] == sent, "{len} bytes of {}", sent.len());
        assert_eq!(from.ip(), net.nodes[0].addresses()[at]);
        echo.send_to(&heard[..len], from)?;
        let (len, from) = client.recv_from(&mut heard).context("the pod hears the pieces")?;
        assert!(heard[..len] == sent && from == echo.local_addr()?, "{len} bytes of {from}");
        pod.namespace.run(|| Ok(ping(server, 4_000)?))?;
    }
    Ok(())
}

#[test]
fn a_pod_learns_from_a_third_router_that_its_packets_are_too_large() -> Result<()> {
    let net = Net::masquerading("mtu", PodSizes::DEFAULT_FOR_TESTS)?;
    net.router.set_mtu("gate", 1_300)?;
    let pod = &net.nodes[0].pods[0];
    // The port is none that the node gives, so that the quoted one has to be translated back.
    for (at, server) in world(2).into_iter().enumerate() {
        let echo = udp_socket(&net.world, server, PORT)?;
        let client = udp_socket(&pod.namespace, pod.addresses[at], 700)?;
        client.connect(echo.local_addr()?)?;
        do_not_fragment(&client, at == 1)?;
        eventually(PATIENCE, "the pod to learn the path's MTU", || {
            // What the kernel knows already fails here; what it does not, a router's answer tells.
            if let Err(error) = client.send(&[0; 1_350]) {
                ensure!(error.raw_os_error() == Some(libc::EMSGSIZE), "{error}");
            }
            let mtu = path_mtu(&client, at == 1)?;
            ensure!(mtu == 1_300, "it is {mtu}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_pod_hears_that_a_port_is_closed_and_so_does_its_peer() -> Result<()> {
    let net = Net::masquerading("refused", PodSizes::DEFAULT_FOR_TESTS)?;
    let pod = &net.nodes[0].pods[0];
    for (at, server) in world(2).into_iter().enumerate() {
        let client = udp_socket(&pod.namespace, pod.addresses[at], 701)?;
        assert_eq!(refusal(&client, SocketAddr::new(server, 9))?, ErrorKind::ConnectionRefused);

        let peer = udp_socket(&net.world, server, PORT)?;
        let client = udp_socket(&pod.namespace, pod.addresses[at], 702)?;
        client.send_to(b"hello", peer.local_addr()?)?;
        peer.set_read_timeout(Some(PATIENCE))?;
        let (_, seen) = peer.recv_from(&mut [0; 16])?;
        drop(client);
        assert_eq!(refusal(&peer, seen)?, ErrorKind::ConnectionRefused, "the answer came too late");
    }
    Ok(())
}

/// How the kernel tells a socket that nobody is at `to`.
fn refusal(socket: &UdpSocket, to: SocketAddr) -> Result<ErrorKind> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    socket.send(b"anybody?")?;
    match socket.recv(&mut [0; 16]) {
        Ok(len) => anyhow::bail!("{len} bytes from a closed port"),
        Err(error) => Ok(error.kind()),
    }
}

fn do_not_fragment(socket: &UdpSocket, v6: bool) -> Result<()> {
    let (level, option) = if v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
    };
    // The same number in both families.
    let value: libc::c_int = libc::IP_PMTUDISC_DO;
    // SAFETY: `value` outlives the call and the length is its size.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    ensure!(rc == 0, "forbid fragments: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Of a connected socket.
fn path_mtu(socket: &UdpSocket, v6: bool) -> Result<i32> {
    let (level, option) =
        if v6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both outlive the call; the length is that of `value`.
    let rc =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) };
    ensure!(rc == 0, "ask for the MTU: {}", std::io::Error::last_os_error());
    Ok(value)
}

#[test]
fn full_maps_break_no_flow_and_refuse_no_new_one() -> Result<()> {
    let sizes = PodSizes { nat: 20, nat_new: 512, ..PodSizes::DEFAULT_FOR_TESTS };
    let net = Net::masquerading("full", sizes)?;
    let _server = Server::start(&net.world, "world", PORT)?;
    let (node, pod) = (&net.nodes[0], &net.nodes[0].pods[0]);
    let server = SocketAddr::new(world(2)[0], PORT);
    let open = || -> Result<_> {
        let socket = udp_socket(&pod.namespace, pod.addresses[0], 0)?;
        let seen = seen_by_udp(&socket, server, 10)?;
        Ok((socket, seen))
    };
    let established = (0..10).map(|_| open()).collect::<Result<Vec<_>>>()?;
    // Far more flows that nobody answers than there is room for.
    let flood = udp_socket(&pod.namespace, pod.addresses[0], 0)?;
    for port in 10_000..12_000 {
        flood.send_to(b"nobody", SocketAddr::new(world(77)[0], port))?;
    }
    let mut refused = 0;
    for _ in 0..100 {
        refused += i32::from(open().is_err());
        flood.send_to(b"nobody", SocketAddr::new(world(77)[0], 9))?;
    }
    assert!(refused <= 1, "{refused} of 100 new flows refused");
    assert!(node.counted(Reason::MapFull, Direction::Egress)? > 0, "the map was never full");
    for (socket, seen) in &established {
        assert_eq!(seen_by_udp(socket, server, 10)?, *seen);
    }
    Ok(())
}

#[test]
fn what_cannot_be_masqueraded_does_not_leave_with_a_pods_address() -> Result<()> {
    let net = Net::masquerading("gre", PodSizes::DEFAULT_FOR_TESTS)?;
    let (node, pod) = (&net.nodes[0], &net.nodes[0].pods[0]);
    let wire = Wire::open(&pod.namespace, "eth0")?;
    for (source, destination) in pod.addresses.into_iter().zip(world(2)) {
        let before = node.counted(Reason::NatUnsupported, Direction::Egress)?;
        wire.send(&frame::ethernet(wire.mac(), pod.gateway, &frame::ip(source, destination, GRE, &[0; 8])))?;
        eventually(PATIENCE, "the packet to be dropped", || {
            ensure!(node.counted(Reason::NatUnsupported, Direction::Egress)? == before + 1, "it was not");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn by_a_device_without_an_entry_nothing_leaves_with_a_pods_address_and_known_flows_go_on() -> Result<()> {
    let mut net = Net::masquerading("entry", PodSizes::DEFAULT_FOR_TESTS)?;
    net.route_to_pods()?;
    let _servers = [Server::start(&net.world, "world", PORT)?, Server::start(&net.router, "router", PORT)?];
    let inside = IpcacheValue::new(NumericIdentity::UNKNOWN, None, IpcacheValue::INSIDE);
    let node = &mut net.nodes[0];
    node.ipcache.extend(lan(254).map(|addr| ((Addr::from(addr), 128), inside)));
    node.publish()?;
    let pod = &node.pods[0];
    for (at, server) in world(2).into_iter().enumerate() {
        let server = SocketAddr::new(server, PORT);
        let known = udp_socket(&pod.namespace, pod.addresses[at], 0)?;
        let own = udp_socket(&node.namespace, node.addresses()[at], 0)?;
        let seen = seen_by_udp(&known, server, 10)?;
        node.tables.set_devices(&BTreeMap::new())?;
        let before = node.counted(Reason::NoNatAddress, Direction::Egress)?;
        let new = udp_socket(&pod.namespace, pod.addresses[at], 0)?;
        new.send_to(b"hello", server)?;
        eventually(PATIENCE, "the packet to be dropped", || {
            ensure!(node.counted(Reason::NoNatAddress, Direction::Egress)? == before + 1, "it was not");
            Ok(())
        })?;
        assert_eq!(seen_by_udp(&known, server, 10)?, seen, "a flow that has its address");
        assert_eq!(seen_by_udp(&own, server, 10)?, own.local_addr()?, "the node's own");
        let inside = SocketAddr::new(lan(254)[at], PORT);
        assert_eq!(seen_by_udp(&new, inside, 10)?, new.local_addr()?, "inside");
        node.publish_devices()?;
        assert_eq!(seen_by_udp(&new, server, 10)?.ip(), node.addresses()[at]);
    }
    Ok(())
}

#[test]
fn the_verifier_takes_every_program() -> Result<()> {
    let dir =
        tempfile::Builder::new().prefix(&format!("{PREFIX}{}-verifier-", std::process::id())).tempdir()?;
    let mount = BpfMount::new(dir.path())?;
    let _services = KernelTables::open(mount.path(), &net::SERVICES)?;
    let _pods = PodTables::open(mount.path(), &PodSizes::DEFAULT_FOR_TESTS)?;
    let programs = InterfacePrograms::load(mount.path())?;
    assert_eq!(programs.loaded().len(), PodProgram::ALL.len());
    Ok(())
}

#[test]
fn the_verifier_of_debian_6_1_takes_every_program() -> Result<()> {
    vm::run(vm::DEBIAN_6_1, &["the_verifier_takes_every_program"])
}
