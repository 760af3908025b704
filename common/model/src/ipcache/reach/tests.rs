use std::net::IpAddr;

use super::*;

fn addr(text: &str) -> Addr {
    Addr::from(text.parse::<IpAddr>().unwrap())
}

fn prefix(text: &str) -> Prefix {
    Prefix::parse(text).unwrap()
}

fn node(name: &str, created: i64, addresses: &[&str], cidrs: &[&str]) -> Arc<ClusterNode> {
    Arc::new(ClusterNode {
        name: name.into(),
        created: (created != 0).then_some(created),
        addresses: addresses.iter().map(|text| addr(text)).collect(),
        other_addresses: Box::default(),
        pod_cidrs: cidrs.iter().map(|text| prefix(text)).collect(),
        health: Box::default(),
    })
}

fn view(nodes: &[Arc<ClusterNode>]) -> ClusterView {
    let mut view = ClusterView { knows_nodes: true, ..ClusterView::default() };
    for node in nodes {
        match &*node.name {
            "this" => view.this = Some(Arc::clone(node)),
            _ => drop(view.remote.insert(Arc::clone(&node.name), Arc::clone(node))),
        }
    }
    view
}

fn options(tunnel: bool) -> Options {
    Options {
        tunnel,
        ipv4: true,
        ipv6: true,
        native_cidrs: Vec::new(),
        health_endpoints: true,
        prefixes_of: ObjectKind::Node,
    }
}

/// `prefix flags tunnel`, a line each.
fn lines(reach: &Reach) -> Vec<String> {
    let line = |(key, value): (&(Addr, u8), &IpcacheValue)| {
        let flags =
            [(IpcacheValue::INSIDE, "inside"), (IpcacheValue::NODE, "node"), (IpcacheValue::PODS, "pods")];
        let flags: Vec<_> = flags.iter().filter(|(flag, _)| value.is(*flag)).map(|(_, name)| *name).collect();
        let tunnel = value.tunnel().map(|node| format!(" by {node}")).unwrap_or_default();
        format!("{} {}{tunnel}", Prefix::new(key.0, key.1).unwrap(), flags.join("+"))
    };
    let mut lines: Vec<_> = reach.ipcache.iter().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn in_tunnel_mode_pods_and_nodes_are_behind_their_nodes_address() {
    let nodes = [
        node("this", 1, &["192.0.2.1", "2001:db8::1"], &["10.0.1.0/24", "fd00:1::/112"]),
        node("b", 2, &["192.0.2.2", "2001:db8::2"], &["10.0.2.0/24", "fd00:2::/112"]),
    ];
    let reach = reach(&view(&nodes), &options(true));
    assert_eq!(
        lines(&reach),
        [
            "10.0.1.0/24 inside",
            "10.0.2.0/24 inside+pods by 192.0.2.2",
            "192.0.2.1/32 inside",
            "192.0.2.2/32 inside+node by 192.0.2.2",
            "2001:db8::1/128 inside",
            "2001:db8::2/128 inside+node by 192.0.2.2",
            "fd00:1::/112 inside",
            "fd00:2::/112 inside+pods by 192.0.2.2",
        ]
    );
    assert_eq!(reach.local, [prefix("10.0.1.0/24"), prefix("fd00:1::/112")]);
    let remote: Vec<_> =
        reach.remote.iter().map(|r| (r.prefix.to_string(), r.address.unwrap().to_string())).collect();
    let expected = [("10.0.2.0/24", "192.0.2.2"), ("fd00:2::/112", "2001:db8::2")];
    let expected = expected.map(|(prefix, node)| (prefix.to_owned(), node.to_owned()));
    assert_eq!(remote.len(), 2);
    assert!(expected.iter().all(|line| remote.contains(line)), "{remote:?}");
    assert_eq!(reach.rejects, []);
}

#[test]
fn in_native_mode_there_is_no_tunnel_and_what_is_off_is_left_out() {
    let nodes = [
        node("this", 1, &["192.0.2.1"], &["10.0.1.0/24"]),
        node("b", 2, &["192.0.2.2", "2001:db8::2"], &["10.0.2.0/24", "fd00:2::/112"]),
    ];
    let options = Options {
        ipv6: false,
        native_cidrs: vec![prefix("10.0.0.0/8"), prefix("fd00::/16")],
        ..options(false)
    };
    assert_eq!(
        lines(&reach(&view(&nodes), &options)),
        [
            "10.0.0.0/8 inside",
            "10.0.1.0/24 inside",
            "10.0.2.0/24 inside+pods",
            "192.0.2.1/32 inside",
            "192.0.2.2/32 inside+node",
        ]
    );
}

#[test]
fn of_overlapping_prefixes_the_older_node_keeps_its_own_and_the_other_is_named() {
    let nodes = [
        node("a", 9, &["192.0.2.2"], &["10.0.0.0/16", "10.5.0.0/24"]),
        node("b", 3, &["192.0.2.3"], &["10.0.7.0/24", "10.6.0.0/24"]),
        // No time of creation: the newest.
        node("c", 0, &["192.0.2.4"], &["10.6.0.128/25"]),
        node("this", 5, &["192.0.2.1"], &["10.0.7.0/25"]),
    ];
    let reach = reach(&view(&nodes), &options(false));
    let prefixes: Vec<_> = reach.remote.iter().map(|r| (&*r.node, r.prefix.to_string())).collect();
    let expected = [("b", "10.0.7.0/24"), ("a", "10.5.0.0/24"), ("b", "10.6.0.0/24")];
    assert_eq!(prefixes, expected.map(|(node, prefix)| (node, prefix.to_owned())));
    assert_eq!(reach.local, []);
    let refused: Vec<_> = reach.rejects.iter().map(|r| (r.name.as_str(), r.value.as_str())).collect();
    assert_eq!(refused, [("this", "10.0.7.0/25"), ("a", "10.0.0.0/16"), ("c", "10.6.0.128/25")]);
    assert!(reach.rejects[1].to_string().contains("10.0.7.0/24 of node b"), "{}", reach.rejects[1]);
    // What is left of the prefix around b's is not the world; b's stays b's, also where others wanted a part of it.
    assert_eq!(reach.unreached, [prefix("10.0.0.0/16")]);
    assert!(lines(&reach).contains(&"10.0.0.0/16 inside+pods".to_owned()), "{:?}", lines(&reach));
}

#[test]
fn one_nodes_prefixes_may_lie_within_each_other() {
    let nodes = [
        node("a", 1, &["192.0.2.2"], &["10.0.0.0/16", "10.0.0.0/24", "10.0.9.0/24"]),
        node("b", 2, &["192.0.2.3"], &["10.0.200.0/24", "10.1.0.0/16"]),
    ];
    let reach = reach(&view(&nodes), &options(false));
    let refused: Vec<_> = reach.rejects.iter().map(|r| (r.name.as_str(), r.value.as_str())).collect();
    assert_eq!(refused, [("b", "10.0.200.0/24")]);
    assert_eq!(reach.remote.len(), 4);
}

#[test]
fn an_address_has_one_node_and_this_ones_are_nobody_elses() {
    let nodes = [
        node("a", 1, &["192.0.2.1", "192.0.2.9"], &[]),
        node("b", 2, &["192.0.2.9", "192.0.2.3"], &[]),
        node("this", 7, &["192.0.2.1"], &[]),
    ];
    let reach = reach(&view(&nodes), &options(true));
    assert_eq!(
        lines(&reach),
        [
            "192.0.2.1/32 inside",
            "192.0.2.3/32 inside+node by 192.0.2.9",
            "192.0.2.9/32 inside+node by 192.0.2.1",
        ]
    );
    let refused: Vec<_> = reach.rejects.iter().map(|r| (r.name.as_str(), r.value.as_str())).collect();
    assert_eq!(refused, [("a", "192.0.2.1"), ("b", "192.0.2.9")]);
}

#[test]
fn at_a_nodes_other_addresses_is_the_node_but_no_way_leads_there() {
    let with = |node: Arc<ClusterNode>, others: &[&str]| {
        let others = others.iter().map(|text| addr(text)).collect();
        Arc::new(ClusterNode { other_addresses: others, ..ClusterNode::clone(&node) })
    };
    let nodes = [
        with(node("this", 1, &["192.0.2.1"], &[]), &["203.0.113.1"]),
        // Shared behind a translation; and one that another node is reached at, or that is inside.
        with(node("b", 2, &["192.0.2.2"], &[]), &["203.0.113.1", "203.0.113.2", "192.0.2.1", "10.0.0.9"]),
    ];
    let options = Options { native_cidrs: vec![prefix("10.0.0.0/8")], ..options(true) };
    let reach = reach(&view(&nodes), &options);
    let identities: Vec<_> =
        reach.ipcache.iter().map(|((addr, _), value)| (addr.to_string(), value.identity.get())).collect();
    let expected = [
        ("10.0.0.0", 0),
        ("10.0.0.9", 6),
        ("192.0.2.1", 1),
        ("192.0.2.2", 6),
        ("203.0.113.1", 1),
        ("203.0.113.2", 6),
    ];
    assert_eq!(identities, expected.map(|(addr, identity)| (addr.to_owned(), identity)));
    for line in ["10.0.0.9/32 inside", "192.0.2.1/32 inside", "203.0.113.1/32 ", "203.0.113.2/32 "] {
        assert!(lines(&reach).contains(&line.to_owned()), "{line}: {:?}", lines(&reach));
    }
    assert_eq!(reach.rejects, []);
}

#[test]
fn a_node_that_the_tunnel_cannot_reach_is_named() {
    let nodes = [node("b", 1, &["2001:db8::2"], &["fd00:2::/112"])];
    let reach = reach(&view(&nodes), &options(true));
    assert_eq!((reach.remote.len(), reach.rejects.len()), (0, 1));
    assert!(reach.rejects[0].reason.contains("fd00:2::/112"), "{}", reach.rejects[0]);
    // Its pods are of nobody that is known, and not of the world: nor is there a way to them.
    assert_eq!(lines(&reach), ["2001:db8::2/128 inside+node", "fd00:2::/112 inside+pods"]);
    assert_eq!(reach.pod_prefixes().collect::<Vec<_>>(), [prefix("fd00:2::/112")]);
    assert!(reach.health.contains(&addr("fd00:2::1")));
}

#[test]
fn a_node_has_no_health_endpoint_in_a_prefix_that_it_does_not_get() {
    let mut told = ClusterNode::clone(&node("c", 3, &["192.0.2.4"], &["10.7.0.0/24"]));
    told.health = [addr("10.5.0.9"), addr("fd00::9")].into();
    let nodes = [
        node("a", 1, &["192.0.2.2"], &["10.5.0.0/16"]),
        node("b", 2, &["192.0.2.3"], &["10.5.7.0/24", "10.6.0.0/24"]),
        Arc::new(told),
    ];
    let reach = reach(&view(&nodes), &options(false));
    // Those of b and c would be addresses of a's pods.
    assert_eq!(reach.health, [addr("10.5.0.1"), addr("fd00::9")].into());
}

#[test]
fn all_of_ipv6_inside_says_nothing_of_ipv4() {
    let options = Options { native_cidrs: vec![prefix("::/0")], ..options(false) };
    let reach = reach(&ClusterView::default(), &options);
    assert!(reach.ipcache[&(Addr::ANY_V6, 0)].is(IpcacheValue::INSIDE));
    assert!(!reach.ipcache[&(Addr::ANY_V4, 96)].is(IpcacheValue::INSIDE));
}
