use std::process::Command;
use std::time::Instant;

use super::*;

/// Runs `test` on a thread that is alone in a new network namespace.
fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
        ip("link set lo up");
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    })
    .join()
    .unwrap();
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
fn node_ports_answer_where_the_prefixes_say() {
    let found = LocalAddresses {
        interfaces: vec![Interface {
            name: "eth0".to_owned(),
            addresses: vec![
                "10.0.0.1".parse().unwrap(),
                "192.0.2.1".parse().unwrap(),
                "fd00::1".parse().unwrap(),
            ],
        }],
    };
    let serving = |prefixes: &[&str]| -> Vec<String> {
        let arguments: Vec<_> = ["--source-dir=/m", "--cgroup-root=/c"]
            .into_iter()
            .map(str::to_owned)
            .chain([format!("--nodeport-addresses={}", prefixes.join(","))])
            .map(Into::into)
            .collect();
        let invocation = crate::config::Invocation { arguments, ..Default::default() };
        let config = crate::config::load(invocation).unwrap().config;
        let table = found.table(&config.node_port_addresses);
        assert_eq!(table.len(), 3);
        table.into_iter().filter(|(_, v)| v.serves_node_ports()).map(|(a, _)| a.to_string()).collect()
    };
    assert_eq!(serving(&[]), ["10.0.0.1", "192.0.2.1", "fd00::1"]);
    assert_eq!(serving(&["10.0.0.0/8", "fd00::/8"]), ["10.0.0.1", "fd00::1"]);
}
