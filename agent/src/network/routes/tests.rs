use super::*;
use crate::network::machine::{Link, LinkAddress};
use crate::network::tests::{addr, this};

fn prefix(text: &str) -> Prefix {
    Prefix::parse(text).unwrap()
}

fn link(index: u32, name: &str, addresses: &[(&str, u8)]) -> Link {
    let address = |(text, bits): &(&str, u8)| LinkAddress { addr: addr(text), bits: *bits, is_usable: true };
    let addresses = addresses.iter().map(address).collect();
    Link { index, name: name.to_owned(), is_up: true, addresses, ..Link::default() }
}

fn machine(links: Vec<Link>) -> Machine {
    Machine { links: links.into_iter().map(|link| (link.index, link)).collect(), ..Machine::default() }
}

fn remote(text: &str, node: &str, address: &str) -> RemotePrefix {
    RemotePrefix { prefix: prefix(text), node: node.into(), address: Some(addr(address)) }
}

fn reach(remote: Vec<RemotePrefix>) -> Reach {
    Reach { remote, local: vec![prefix("10.0.1.0/24")], ..Reach::default() }
}

#[test]
fn in_tunnel_mode_each_prefix_is_behind_the_device_with_the_nodes_own_source() {
    let machine = machine(vec![link(2, "eth0", &[("192.0.2.1", 24)]), link(9, "pw_vxlan", &[])]);
    let reach =
        reach(vec![remote("10.0.2.0/24", "b", "192.0.2.2"), remote("fd00:2::/112", "b", "2001:db8::2")]);
    let wanted = wanted(&reach, &machine, Some(&this()), By::Tunnel { ifindex: 9 }, 1450, true);
    let out = |source| Way::Device { ifindex: 9, gateway: None, source, mtu: Some(1450) };
    let expected = [
        Route { prefix: prefix("10.0.1.0/24"), way: Way::Unreachable },
        Route { prefix: prefix("10.0.2.0/24"), way: out(Some(addr("192.0.2.1"))) },
        // The node's IPv6 address is on no link: the kernel would refuse it as a source.
        Route { prefix: prefix("fd00:2::/112"), way: out(None) },
    ];
    assert_eq!((wanted.routes, wanted.rejects), (expected.into(), vec![]));
}

#[test]
fn direct_routes_lead_to_nodes_on_a_link_of_this_one_and_others_are_named() {
    let machine = machine(vec![
        link(2, "eth0", &[("192.0.2.1", 24), ("2001:db8::1", 64)]),
        link(3, "eth1", &[("192.0.0.1", 8)]),
        Link { is_up: false, ..link(4, "eth2", &[("198.51.100.1", 24)]) },
    ]);
    let reach = reach(vec![
        remote("10.0.2.0/24", "b", "192.0.2.2"),
        remote("10.0.3.0/24", "c", "192.9.9.9"),
        remote("10.0.4.0/24", "d", "198.51.100.4"),
        RemotePrefix { address: None, ..remote("fd00:2::/112", "b", "192.0.2.2") },
    ]);
    let wanted = wanted(&reach, &machine, Some(&this()), By::Nodes, 1500, false);
    let via =
        |ifindex, gateway, source| Way::Device { ifindex, gateway: Some(addr(gateway)), source, mtu: None };
    let expected = [
        Route { prefix: prefix("10.0.2.0/24"), way: via(2, "192.0.2.2", Some(addr("192.0.2.1"))) },
        Route { prefix: prefix("10.0.3.0/24"), way: via(3, "192.9.9.9", None) },
    ];
    assert_eq!(wanted.routes, expected.into());
    let named: Vec<_> = wanted.rejects.iter().map(|r| (r.name.as_str(), r.reason.as_str())).collect();
    assert_eq!(named.len(), 2);
    assert_eq!(named[0].0, "d");
    assert!(named[0].1.contains("198.51.100.4 is on no link of this node"), "{named:?}");
    assert!(named[1].1.contains("no IPv6 address"), "{named:?}");
}

#[test]
fn the_network_needs_no_routes_of_ours() {
    let machine = machine(vec![link(2, "eth0", &[])]);
    let reach = reach(vec![remote("10.0.2.0/24", "b", "192.0.2.2")]);
    assert!(wanted(&reach, &machine, None, By::Network, 1500, false).routes.is_empty());
}
