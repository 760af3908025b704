//! On the kernel: node and pods are network namespaces, which end with the test.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use portway_cni::protocol::AttachmentId;

use super::super::State;
use super::super::record::link_name;
use super::*;

/// Runs `body` on a thread of a new namespace.
fn in_namespace<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("tests of the kernel need root");
            body()
        });
        thread.join().unwrap()
    })
}

fn namespace() -> OwnedFd {
    in_namespace(|| File::open("/proc/thread-self/ns/net").unwrap().into())
}

/// The output of `ip WORDS` in the thread's namespace.
fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn ip_in(netns: &OwnedFd, words: &str) -> String {
    inside(netns.as_fd(), || Ok(ip(words))).unwrap()
}

/// A pod's interface with these addresses, from the node that the thread is in.
fn connect(netns: &OwnedFd, interface: &str, addresses: &[&str]) -> Endpoint {
    let attachment = AttachmentId { container: "c".to_owned(), interface: interface.to_owned() };
    let link = Link {
        name: link_name(&attachment),
        ifindex: 0,
        node_mac: Mac([2, 0, 0, 0, 0, 1]),
        pod_mac: Mac([2, 0, 0, 0, 0, 2]),
        mtu: 1500,
        is_chained: false,
    };
    let ifindex = create(&link, netns.as_fd(), interface).unwrap();
    let endpoint = Endpoint {
        id: 2,
        attachment,
        network: "portway".to_owned(),
        pod: Default::default(),
        netns: String::new(),
        netns_cookie: 0,
        link: Link { ifindex, ..link },
        addresses: addresses.iter().map(|addr| addr.parse().unwrap()).collect(),
        socket_lb: true,
        identity: None,
        created: 0,
        state: State::Ready,
        log: Default::default(),
    };
    route(&endpoint).unwrap();
    configure_pod(&endpoint, netns.as_fd()).unwrap();
    endpoint
}

#[test]
fn a_second_interface_takes_no_way_out_from_the_first_and_neither_goes_with_the_other() {
    in_namespace(|| {
        let pod = namespace();
        let ways = || ["-4", "-6"].map(|family| ip_in(&pod, &format!("{family} route show default")));
        let gateway = || ip_in(&pod, "-6 route get fe80::1");
        let first = connect(&pod, "eth0", &["10.0.0.2", "fd00::2"]);
        let (before, gateway_before) = (ways(), gateway());
        assert!(before.iter().all(|way| way.contains("dev eth0")), "{before:?}");
        let second = connect(&pod, "eth1", &["10.0.0.3", "fd00::3"]);
        assert_eq!((ways(), gateway()), (before.clone(), gateway_before));
        for endpoint in [&first, &second] {
            assert_eq!(differences(endpoint, pod.as_fd()).unwrap(), Vec::<String>::new());
        }
        delete(&second.link.name).unwrap();
        assert_eq!(ways(), before);
        // One that is alone in a family has that family's way out.
        delete(&first.link.name).unwrap();
        connect(&pod, "eth0", &["10.0.0.4"]);
        connect(&pod, "eth1", &["10.0.0.5", "fd00::5"]);
        let [v4, v6] = ways();
        assert!(v4.contains("dev eth0") && !v4.contains("eth1") && v6.contains("dev eth1"), "{v4} {v6}");
    });
}

#[test]
fn a_route_that_was_lost_is_told_whichever_interface_it_is_of() {
    in_namespace(|| {
        let pod = namespace();
        let first = connect(&pod, "eth0", &["10.0.0.2"]);
        let second = connect(&pod, "eth1", &["10.0.0.3"]);
        ip_in(&pod, "route del default");
        for endpoint in [&first, &second] {
            let found = differences(endpoint, pod.as_fd()).unwrap();
            assert_eq!(found, ["the pod has lost its default route by 169.254.1.1"]);
        }
    });
}

#[test]
fn a_link_of_the_same_numbers_to_another_namespace_is_not_taken_for_a_pods() {
    in_namespace(|| {
        let [pod, third, other] = [namespace(), namespace(), namespace()];
        let path = |netns: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), netns.as_raw_fd());
        ip_in(&pod, "link add eth0 index 10 type veth peer name far0 index 20");
        ip_in(&pod, &format!("link set far0 netns {}", path(&third)));
        ip("link add near0 index 20 type veth peer name eth0 index 10");
        ip(&format!("link set eth0 netns {}", path(&other)));
        let taken = adopt(pod.as_fd(), "eth0");
        assert!(matches!(taken, Err(LinkError::NotVeth(_))), "{taken:?}");
        let adopted = adopt(other.as_fd(), "eth0").unwrap();
        assert_eq!((adopted.name.as_str(), adopted.ifindex), ("near0", 20));
    });
}
