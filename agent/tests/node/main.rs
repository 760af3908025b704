//! Addresses and reserved ports of real network namespaces, each on a thread that is alone in a new one. Needs root.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test says what it got by panicking")]

use std::process::Command;
use std::time::{Duration, Instant};

use portway_agent::config::PortRange;
use portway_agent::node::{Addresses, LocalAddresses, ReservedPorts};

fn alone(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
        test();
    })
    .join()
    .unwrap();
}

fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    alone(|| {
        ip("link set lo up");
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    });
}

/// In the namespace of the calling thread.
fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn addresses(found: &LocalAddresses) -> Vec<String> {
    found
        .interfaces
        .iter()
        .flat_map(|i| i.addresses.iter().map(|a| format!("{} {a}", i.name)))
        .filter(|line| !line.contains("fe80"))
        .collect()
}

#[test]
fn addresses_are_listed_without_loopback_and_followed_within_milliseconds() {
    in_namespace(|| async {
        ip("link add eth0 type veth peer name peer0");
        ip("address add 192.0.2.1/24 dev eth0");
        ip("address add 2001:db8::1/64 dev eth0 nodad");
        ip("address add 198.51.100.7/32 dev lo");
        let mut follower = Addresses::open().unwrap();
        let found = follower.read().await.unwrap();
        assert_eq!(addresses(&found), ["eth0 192.0.2.1", "eth0 2001:db8::1", "lo 198.51.100.7"]);

        ip("address add 192.0.2.2/32 dev eth0");
        let changed = Instant::now();
        follower.changed().await.unwrap();
        let found = follower.read().await.unwrap();
        assert!(changed.elapsed() < Duration::from_millis(200), "{:?}", changed.elapsed());
        assert!(addresses(&found).contains(&"eth0 192.0.2.2".to_owned()), "{found:?}");

        ip("address del 192.0.2.1/24 dev eth0");
        ip("address del 192.0.2.2/32 dev eth0");
        while addresses(&follower.read().await.unwrap()).len() > 2 {
            follower.changed().await.unwrap();
        }
        let found = follower.read().await.unwrap();
        assert_eq!(addresses(&found), ["eth0 2001:db8::1", "lo 198.51.100.7"]);
    });
}

#[test]
fn a_point_to_point_address_is_the_nodes_own_end() {
    in_namespace(|| async {
        ip("link add eth0 type veth peer name peer0");
        ip("address add 192.0.2.1 peer 192.0.2.9 dev eth0");
        let found = Addresses::open().unwrap().read().await.unwrap();
        assert_eq!(addresses(&found), ["eth0 192.0.2.1"]);
    });
}

#[test]
fn the_kernel_takes_reserved_ports_and_gives_them_back() {
    const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
    alone(|| {
        let dir = tempfile::tempdir().unwrap();
        // `/proc/sys/net` shows the namespace of the thread that opens it.
        let ports = ReservedPorts::new(dir.path());
        let reserved = || std::fs::read_to_string(RESERVED).unwrap().trim().to_owned();
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "20000 40000").unwrap();
        std::fs::write(RESERVED, "25000").unwrap();
        let node_ports = PortRange { first: 30_000, last: 32_767 };
        assert_eq!(ports.protect(node_ports).unwrap().to_string(), "30000-32767");
        assert_eq!(reserved(), "25000,30000-32767");
        assert_eq!(ports.restore().unwrap().to_string(), "30000-32767");
        assert_eq!(reserved(), "25000");
    });
}
