//! The netlink side on the kernel, each test in a network namespace of its own, which ends with it.

use std::collections::BTreeSet;
use std::future::Future;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use portway_datapath::Addr;
use portway_model::node::{ClusterNode, Prefix};

use super::machine::{Machine, Netlink, Route, Way};
use super::sysctls::Sysctls;
use super::tunnel::{self, TunnelChange};

/// Runs `body` on a thread of a namespace with a device eth0 that has 192.0.2.1/24 and 2001:db8::1/64.
fn in_namespace<F: Future<Output = ()>>(body: impl FnOnce() -> F + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("tests of the kernel need root");
            for words in [
                "link set lo up",
                "link add eth0 type veth peer name far0",
                "link set far0 up",
                "link set eth0 up",
                "address add 192.0.2.1/24 dev eth0",
                "address add 2001:db8::1/64 dev eth0 nodad",
            ] {
                ip(words);
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(body());
        });
        thread.join().unwrap();
    });
}

/// The output of `ip WORDS` in the thread's namespace.
fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(super) fn addr(text: &str) -> Addr {
    Addr::from(text.parse::<std::net::IpAddr>().unwrap())
}

/// The node that a machine with the addresses of [`in_namespace`] is.
pub(super) fn this() -> ClusterNode {
    ClusterNode {
        name: "this".into(),
        created: None,
        addresses: [addr("192.0.2.1"), addr("2001:db8::1")].into(),
        other_addresses: Box::default(),
        pod_cidrs: Box::default(),
        health: Box::default(),
    }
}

fn out(machine: &Machine, prefix: &str, gateway: Option<&str>, mtu: Option<u32>) -> Route {
    let ifindex = machine.link("eth0").unwrap().index;
    let way = Way::Device { ifindex, gateway: gateway.map(addr), source: None, mtu };
    Route { prefix: Prefix::parse(prefix).unwrap(), way }
}

fn unreachable(prefix: &str) -> Route {
    Route { prefix: Prefix::parse(prefix).unwrap(), way: Way::Unreachable }
}

/// Sets routes, and reads them again.
async fn set(netlink: &Netlink, wanted: &[Route], sweeps: bool) -> Vec<String> {
    let machine = netlink.read().await.unwrap();
    let wanted: BTreeSet<Route> = wanted.iter().copied().collect();
    let changes = netlink.set_routes(&machine, &wanted, sweeps).await;
    let present = netlink.read().await.unwrap().own_routes;
    if changes.failed.is_empty() {
        let is_right = if sweeps { present == wanted } else { present.is_superset(&wanted) };
        assert!(is_right, "wanted {wanted:?}, there are {present:?}");
        // A second time there is nothing to do.
        let machine = netlink.read().await.unwrap();
        let again = netlink.set_routes(&machine, &wanted, sweeps).await;
        assert_eq!((again.added, again.removed), (0, 0));
    }
    changes.failed
}

#[test]
fn routes_of_either_family_come_change_and_go() {
    in_namespace(|| async {
        let netlink = Netlink::open().unwrap();
        let machine = netlink.read().await.unwrap();
        let nothing: Vec<String> = Vec::new();
        let first = [
            out(&machine, "10.0.2.0/24", None, Some(1450)),
            out(&machine, "fd00:2::/112", None, Some(1450)),
            unreachable("10.0.1.0/24"),
            unreachable("fd00:1::/112"),
        ];
        assert_eq!(set(&netlink, &first, true).await, nothing);
        // The same prefixes by another way, another MTU, and by none.
        let others = [
            out(&machine, "10.0.2.0/24", Some("192.0.2.2"), None),
            out(&machine, "fd00:2::/112", Some("2001:db8::2"), None),
            out(&machine, "10.0.1.0/24", None, Some(1350)),
            out(&machine, "fd00:1::/112", None, Some(1350)),
        ];
        assert_eq!(set(&netlink, &others, true).await, nothing);
        assert_eq!(set(&netlink, &first, true).await, nothing);
        // What is not known to be gone stays.
        assert_eq!(set(&netlink, &first[..1], false).await, nothing);
        assert_eq!(netlink.read().await.unwrap().own_routes.len(), 4);
        assert_eq!(set(&netlink, &[], true).await, nothing);
    });
}

#[test]
fn somebody_elses_route_stays_and_is_named() {
    in_namespace(|| async {
        for words in ["route add 10.0.2.0/24 via 192.0.2.9", "-6 route add fd00:2::/112 via 2001:db8::9"] {
            ip(words);
        }
        ip("route add 10.0.9.0/24 via 192.0.2.9 proto 81");
        let netlink = Netlink::open().unwrap();
        let machine = netlink.read().await.unwrap();
        let wanted = [out(&machine, "10.0.2.0/24", None, None), out(&machine, "10.0.3.0/24", None, None)];
        let failed = set(&netlink, &wanted, true).await;
        assert!(failed.len() == 1 && failed[0].contains("10.0.2.0/24"), "{failed:?}");
        assert!(ip("route").contains("10.0.2.0/24 via 192.0.2.9"), "{}", ip("route"));
        set(&netlink, &[], true).await;
        let left = ip("route");
        assert!(left.contains("10.0.9.0/24") && !left.contains("10.0.3.0/24"), "{left}");
        assert!(ip("-6 route").contains("fd00:2::/112 via 2001:db8::9"));
    });
}

#[test]
fn the_tunnel_device_is_made_once_and_put_right() {
    in_namespace(|| async {
        let netlink = Netlink::open().unwrap();
        let ensure = async |port, mtu| {
            let machine = netlink.read().await.unwrap();
            netlink.ensure_tunnel(&machine, port, mtu).await.unwrap()
        };
        assert_eq!(ensure(8472, 1450).await, TunnelChange::Made);
        assert_eq!(ensure(8472, 1450).await, TunnelChange::Nothing);
        let shown = ip("-d link show pw_vxlan");
        for what in ["mtu 1450", "NOARP", "external", "dstport 8472", "02:70:77:00:00:01"] {
            assert!(shown.contains(what), "no {what} in {shown}");
        }
        assert!(!ip("address show pw_vxlan").contains("inet"), "{}", ip("address show pw_vxlan"));
        for words in ["mtu 1300", "address 02:00:00:00:00:09", "arp on", "down"] {
            ip(&format!("link set pw_vxlan {words}"));
            assert_eq!(ensure(8472, 1450).await, TunnelChange::Adjusted, "{words}");
            assert_eq!(ensure(8472, 1450).await, TunnelChange::Nothing, "{words}");
        }
        assert_eq!(ensure(4789, 1450).await, TunnelChange::MadeAnew);
        // Another one has the port.
        ip("link add other type vxlan external dstport 8472");
        ip("link set other up");
        let machine = netlink.read().await.unwrap();
        let refused = netlink.ensure_tunnel(&machine, 8472, 1450).await.unwrap_err().to_string();
        assert!(refused.contains("UDP port 8472"), "{refused}");
        let machine = netlink.read().await.unwrap();
        netlink.remove_tunnel(&machine).await.unwrap();
        assert!(netlink.read().await.unwrap().link(tunnel::NAME).is_none());
    });
}

#[test]
fn the_machine_is_read_and_a_change_of_it_is_told() {
    in_namespace(|| async {
        ip("route add default via 192.0.2.254");
        ip("link add pw0123456789a type bridge");
        let mut netlink = Netlink::open().unwrap();
        let machine = netlink.read().await.unwrap();
        let eth0 = machine.link("eth0").unwrap();
        let addresses: Vec<_> =
            eth0.addresses.iter().map(|own| (own.addr.to_string(), own.bits, own.is_usable)).collect();
        assert!(addresses.contains(&("192.0.2.1".to_owned(), 24, true)), "{addresses:?}");
        assert!(addresses.contains(&("2001:db8::1".to_owned(), 64, true)), "{addresses:?}");
        let link_local = eth0.addresses.iter().find(|own| own.addr.to_string().starts_with("fe80"));
        assert!(link_local.is_none_or(|own| !own.is_usable), "{link_local:?}");
        assert!(eth0.is_up && eth0.mac.is_some() && eth0.mtu == 1500);
        assert_eq!(machine.default_devices, [eth0.index].into());
        assert!(machine.link("lo").unwrap().is_loopback && machine.link("pw0123456789a").is_none());
        let limit = Duration::from_secs(10);
        ip("address add 192.0.2.7/24 dev eth0");
        tokio::time::timeout(limit, netlink.changed()).await.unwrap().unwrap();
        let machine = netlink.read().await.unwrap();
        assert!(machine.link_of(addr("192.0.2.7")).is_some());
    });
}

#[test]
fn after_a_reading_that_took_long_the_next_one_waits_and_no_change_is_lost() {
    in_namespace(|| async {
        let mut netlink = Netlink::open().unwrap();
        let machine = netlink.read_after(&Machine::default()).await.unwrap();
        let began = Instant::now();
        netlink.last_read = (began, Duration::from_millis(30));
        ip("address add 192.0.2.7/24 dev eth0");
        // Whoever waits is called away in the meantime.
        tokio::time::timeout(Duration::from_millis(200), netlink.changed()).await.unwrap_err();
        tokio::time::timeout(Duration::from_secs(10), netlink.changed()).await.unwrap().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
        let machine = netlink.read_after(&machine).await.unwrap();
        assert!(machine.link_of(addr("192.0.2.7")).is_some());
    });
}

#[test]
fn what_the_kernel_changes_along_with_forwarding_is_put_back() {
    in_namespace(|| async {
        ip("link add pw0123456789a type bridge");
        let path = |name: &str| format!("/proc/sys/net/{name}");
        let read = |name: &str| std::fs::read_to_string(path(name)).unwrap().trim().to_owned();
        let ones = ["ipv4/conf/far0/forwarding", "ipv6/conf/far0/forwarding"];
        let zeros = [
            "ipv4/ip_forward",
            "ipv4/conf/all/accept_redirects",
            "ipv4/conf/eth0/forwarding",
            "ipv4/conf/default/forwarding",
            "ipv6/conf/all/forwarding",
            "ipv6/conf/default/forwarding",
            "ipv6/conf/eth0/forwarding",
        ];
        ones.iter().for_each(|name| std::fs::write(path(name), "1").unwrap());
        zeros.iter().for_each(|name| std::fs::write(path(name), "0").unwrap());
        ones.iter().for_each(|name| std::fs::write(path(name), "1").unwrap());
        let dir = tempfile::tempdir().unwrap();
        // The second start finds everything as the first one left it.
        for _ in 0..2 {
            Sysctls::new(dir.path()).forward(true, true, std::iter::empty()).unwrap();
        }
        assert_eq!(["ipv4/ip_forward", "ipv6/conf/eth0/forwarding"].map(read), ["1", "1"]);
        let noted = std::fs::read_to_string(dir.path().join("changed-sysctls")).unwrap();
        assert!(!noted.contains("pw0123456789a"), "{noted}");
        // Somebody wants this one by now.
        std::fs::write(path("ipv4/conf/lo/forwarding"), "0").unwrap();
        Sysctls::new(dir.path()).restore().unwrap();
        ones.iter().for_each(|name| assert_eq!(read(name), "1", "{name}"));
        zeros.iter().for_each(|name| assert_eq!(read(name), "0", "{name}"));
    });
}
