use super::*;
use crate::config::{Invocation, load};
use crate::network::machine::LinkAddress;
use crate::network::tests::{addr, this};

fn network(arguments: &[&str]) -> PodNetwork {
    let all = ["--source-dir=/m", "--cgroup-root=/c", "--enable-pod-network=true"].iter().chain(arguments);
    let invocation = Invocation { arguments: all.map(Into::into).collect(), ..Invocation::default() };
    load(invocation).unwrap().config.pod_network.unwrap()
}

fn link(index: u32, name: &str, addresses: &[&str]) -> Link {
    let address = |text: &&str| {
        let (text, is_usable) = text.strip_suffix('!').map_or((*text, true), |text| (text, false));
        LinkAddress { addr: addr(text), bits: 24, is_usable }
    };
    Link {
        index,
        name: name.to_owned(),
        mtu: 1500,
        is_up: true,
        mac: Some([2; 6]),
        addresses: addresses.iter().map(address).collect(),
        ..Link::default()
    }
}

fn machine(links: Vec<Link>, default_devices: &[u32]) -> Machine {
    Machine {
        links: links.into_iter().map(|link| (link.index, link)).collect(),
        default_devices: default_devices.iter().copied().collect(),
        ..Machine::default()
    }
}

const NONE: BTreeMap<u32, DeviceValue> = BTreeMap::new();

fn names(devices: &Devices) -> Vec<&str> {
    devices.found.values().map(|device| device.name.as_str()).collect()
}

#[test]
fn devices_are_those_with_a_default_route_or_the_nodes_address() {
    let loopback = Link { is_loopback: true, ..link(1, "lo", &["192.0.2.1"]) };
    let port = Link { is_port: true, ..link(6, "eth5", &[]) };
    let links = vec![
        loopback,
        link(2, "eth0", &["198.51.100.7"]),
        link(3, "eth1", &["192.0.2.1"]),
        link(4, "eth2", &["203.0.113.1"]),
        link(5, "pw0123456789a", &[]),
        port,
        link(7, "pw_vxlan", &[]),
    ];
    let machine = machine(links, &[2, 5, 6, 7]);
    let choose = |arguments: &[&str]| Devices::choose(&machine, &network(arguments), Some(&this()), &NONE);
    assert_eq!(names(&choose(&[])), ["eth0", "eth1"]);
    assert_eq!(names(&choose(&["--devices=!eth0"])), ["eth1"]);
    assert_eq!(names(&choose(&["--devices=eth+,pw+"])), ["eth0", "eth1", "eth2", "eth5"]);
    assert_eq!(names(&choose(&["--devices=eth2", "--direct-routing-device=eth1"])), ["eth1", "eth2"]);
    // Before the node is known those with a default route.
    assert_eq!(names(&Devices::choose(&machine, &network(&[]), None, &NONE)), ["eth0"]);
}

#[test]
fn what_is_no_ethernet_is_named() {
    let machine = machine(vec![Link { mac: None, ..link(2, "wg0", &[]) }], &[2]);
    let devices = Devices::choose(&machine, &network(&[]), None, &NONE);
    assert_eq!((names(&devices), devices.unfit.as_slice()), (vec![], &["wg0".to_owned()][..]));
}

#[test]
fn masquerading_takes_the_nodes_address_else_the_devices_first_else_the_nodes_elsewhere() {
    let links = vec![
        link(2, "eth0", &["198.51.100.7", "192.0.2.1", "fe80::7!"]),
        link(3, "eth1", &["198.51.100.8!", "198.51.100.9", "2001:db8:1::9"]),
        // A secondary address that is the node's.
        link(4, "eth2", &["198.51.100.10", "192.0.2.1!"]),
    ];
    let machine = machine(links, &[2, 3, 4]);
    let table = Devices::choose(&machine, &network(&[]), Some(&this()), &NONE).table();
    assert_eq!(table[&2], DeviceValue { v4: addr("192.0.2.1"), v6: addr("2001:db8::1") });
    assert_eq!(table[&4].v4, addr("192.0.2.1"));
    assert_eq!(table[&3], DeviceValue { v4: addr("198.51.100.9"), v6: addr("2001:db8:1::9") });
    let table = Devices::choose(&machine, &network(&[]), None, &NONE).table();
    assert_eq!(table[&2].v6, Addr::ANY_V6);
}

#[test]
fn the_mtu_of_pods_is_the_least_of_the_devices_without_the_tunnels_part() {
    let jumbo = Link { mtu: 9000, ..link(3, "eth1", &[]) };
    let devices =
        Devices::choose(&machine(vec![link(2, "eth0", &[]), jumbo], &[2, 3]), &network(&[]), None, &NONE);
    assert_eq!(devices.pod_mtu(&network(&[])), 1450);
    assert_eq!(devices.pod_mtu(&network(&["--mtu=8950"])), 8900);
    let native =
        ["--routing-mode=native", "--enable-ipv4-masquerade=false", "--enable-ipv6-masquerade=false"];
    assert_eq!(devices.pod_mtu(&network(&native)), 1500);
    assert_eq!(Devices::default().pod_mtu(&network(&native)), 1500);
}

#[test]
fn a_device_stays_one_while_its_interface_is_there_and_nothing_excepts_it() {
    let short = Link { mtu: 1400, ..link(3, "eth1", &["203.0.113.1"]) };
    let port = Link { is_port: true, ..link(4, "eth2", &[]) };
    let machine = machine(vec![link(2, "eth0", &["192.0.2.1"]), short, port], &[]);
    let value = DeviceValue { v4: addr("203.0.113.9"), v6: Addr::ANY_V6 };
    let held: BTreeMap<_, _> = [3, 4, 5].map(|index| (index, value)).into();
    let node = this();
    let choose = |arguments: &[&str], this| Devices::choose(&machine, &network(arguments), this, &held);
    let devices = choose(&[], Some(&node));
    assert_eq!(names(&devices), ["eth0", "eth1"]);
    assert_eq!(devices.table()[&3].v4, addr("203.0.113.1"));
    assert_eq!(devices.pod_mtu(&network(&[])), 1350);
    assert_eq!(names(&choose(&["--devices=!eth1"], Some(&node))), ["eth0"]);
    assert_eq!(names(&choose(&["--devices=eth0"], Some(&node))), ["eth0"]);
    // Before the node is known also the addresses stay.
    let devices = choose(&[], None);
    assert_eq!((names(&devices), devices.table()[&3]), (vec!["eth1"], value));
    assert_eq!(devices.pod_mtu(&network(&[])), 1350);
}
