//! One case of each hook in each family, on this kernel and on the oldest one that Portway supports.

#![expect(clippy::unwrap_used, reason = "a test says what it got by panicking")]

use anyhow::Result;
use portway_agent::maps::KernelTables;
use portway_datapath::Counter;
use portway_tests::harness::fixture::{NODE_PORT, node_port_web};
use portway_tests::harness::manifest::{Service, TCP, UDP, endpoints};
use portway_tests::harness::probe::{Protocol, ToAddress as _};
use portway_tests::harness::{Errno, World, mapped, vm};

#[test]
fn every_hook_serves_ipv4() -> Result<()> {
    every_hook("10.96.0.10:80", "10.96.0.99:80", &format!("0.0.0.0:{NODE_PORT}"), false)
}

#[test]
fn every_hook_serves_ipv6() -> Result<()> {
    every_hook("[fd00:10:96::10]:80", "[fd00:10:96::99]:80", &format!("[::]:{NODE_PORT}"), true)
}

#[test]
fn every_hook_serves_both_families_on_debian_6_1() -> Result<()> {
    vm::run(vm::DEBIAN_6_1, &["every_hook_serves_ipv4", "every_hook_serves_ipv6"])
}

/// `to` is a service with a backend, `empty` one without, `taken` the address of a NodePort.
fn every_hook(to: &str, empty: &str, taken: &str, v6: bool) -> Result<()> {
    World::test("hooks", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        let none = Service::new("empty", &["10.96.0.99", "fd00:10:96::99"])
            .port("http", TCP, 80)
            .port("quic", UDP, 80);
        world.manifests().put("empty", [none])?;
        world.start_agent(&[])?;
        let mut client = world.client(&a)?;
        let address = to.to_address()?;
        // connect, getpeername
        for answer in [client.tcp(to)?.unwrap(), client.udp(to)?.unwrap()] {
            assert_eq!((answer.name.as_str(), answer.peer), ("a", address));
        }
        // sendmsg, recvmsg
        let socket = client.open_udp(v6)?;
        let answer = client.send_to(socket, to)?.unwrap();
        assert_eq!((answer.name.as_str(), answer.peer), ("a", address));
        if !v6 {
            // A mapped address on an IPv6 socket: connect6, sendmsg4, recvmsg6.
            assert_eq!(client.tcp(mapped(address))?.unwrap().peer, mapped(address));
            let socket = client.open_udp(true)?;
            assert_eq!(client.send_to(socket, mapped(address))?.unwrap().peer, mapped(address));
        }
        // sock_release
        let reader = KernelTables::open_read_only(world.bpf_root())?;
        let releases =
            || -> Result<u64> { Ok(reader.counters()?.get(&Counter::Releases).copied().unwrap_or_default()) };
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let (socket, _) = client.connect(protocol, to)?;
            let before = releases()?;
            client.close(socket)?;
            assert_eq!(releases()?, before + 1, "{protocol:?}");
        }
        // The errno contract.
        assert_eq!(client.tcp(empty)?.unwrap_err(), Errno::ECONNREFUSED);
        assert_eq!(client.udp(empty)?.unwrap_err(), Errno::ECONNREFUSED);
        let socket = client.open_udp(v6)?;
        assert_eq!(client.send_to(socket, empty)?.unwrap_err(), Errno::ECONNREFUSED);
        // post_bind
        let mut node = world.node_client()?;
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            assert_eq!(node.bind(protocol, taken)?.unwrap_err(), Errno::EADDRINUSE);
            let socket = client.bind(protocol, taken)?.unwrap();
            client.close(socket)?;
        }
        Ok(())
    })
}
