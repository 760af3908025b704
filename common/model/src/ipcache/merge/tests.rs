mod random;

use std::net::IpAddr;
use std::sync::Arc;

use super::*;
use crate::ipcache::{Options, in_order, reach};
use crate::k8s::ObjectKind;
use crate::node::{ClusterNode, ClusterView, Prefix};

const UNKNOWN: NumericIdentity = NumericIdentity::UNKNOWN;

fn addr(text: &str) -> Addr {
    Addr::from(text.parse::<IpAddr>().unwrap())
}

fn key(text: &str) -> Key {
    let prefix = Prefix::parse(text).unwrap();
    (prefix.addr(), prefix.bits())
}

fn id(number: u32) -> NumericIdentity {
    NumericIdentity::new(number)
}

fn node(name: &str, address: &str, cidr: &str) -> Arc<ClusterNode> {
    Arc::new(ClusterNode {
        name: name.into(),
        created: Some(1),
        addresses: [addr(address)].into(),
        other_addresses: Box::default(),
        pod_cidrs: [Prefix::parse(cidr).unwrap()].into(),
        health: Box::default(),
    })
}

fn cluster(others: &[Arc<ClusterNode>]) -> ClusterView {
    ClusterView {
        this: Some(node("this", "192.0.2.1", "10.0.1.0/24")),
        remote: others.iter().map(|node| (Arc::clone(&node.name), Arc::clone(node))).collect(),
        knows_nodes: true,
        ..ClusterView::default()
    }
}

fn options(tunnel: bool, native: &[&str]) -> Options {
    Options {
        tunnel,
        ipv4: true,
        ipv6: false,
        native_cidrs: native.iter().map(|text| Prefix::parse(text).unwrap()).collect(),
        health_endpoints: true,
        prefixes_of: ObjectKind::Node,
    }
}

fn endpoint(address: &str, identity: u32, node: &str, uid: &str, created: i64) -> EndpointAddress {
    EndpointAddress {
        addr: addr(address),
        identity: id(identity),
        node: Some(addr(node)),
        uid: Uid::new(uid),
        created: Some(created),
    }
}

/// The model and the table that it is written to, change by change.
#[derive(Default)]
struct Written {
    ipcache: Ipcache,
    table: BTreeMap<Key, IpcacheValue>,
    /// The table after each single write of a change.
    steps: Vec<BTreeMap<Key, IpcacheValue>>,
}

impl Written {
    fn new(tunnel: bool) -> Self {
        Self { ipcache: Ipcache::new(tunnel, false), ..Self::default() }
    }

    /// An agent that finds a table.
    fn restarted(tunnel: bool, table: BTreeMap<Key, IpcacheValue>) -> Self {
        let mut ipcache = Ipcache::new(tunnel, false);
        ipcache.restore(table.clone().into_iter().collect());
        Self { ipcache, table, ..Self::default() }
    }

    fn write(&mut self, changes: impl IntoIterator<Item = EntryChange>) -> usize {
        let changes = in_order(changes);
        let before = self.table.clone();
        for EntryChange { key, value, replaces } in &changes {
            let (key, value, replaces) = (*key, *value, *replaces);
            let held = self.table.get(&key).copied();
            assert_ne!(held, value, "{key:?} is written though it is so");
            assert_eq!(held.is_some(), replaces, "{key:?}");
            match value {
                Some(value) => drop(self.table.insert(key, value)),
                None => drop(self.table.remove(&key)),
            }
            self.steps.push(self.table.clone());
        }
        self.check_steps(&before, &changes);
        changes.len()
    }

    /// After each single write every address finds what it found before them all or what it finds after.
    fn check_steps(&mut self, before: &BTreeMap<Key, IpcacheValue>, changes: &[EntryChange]) {
        let found = |table: &BTreeMap<Key, IpcacheValue>, addr: Addr| {
            let covering = table.iter().filter(|(key, _)| addresses(**key).contains(&addr));
            covering.max_by_key(|((_, bits), _)| *bits).map(|(_, value)| *value)
        };
        let ends = changes.iter().map(|change| addresses(change.key));
        for addr in ends.flat_map(|ends| [*ends.start(), *ends.end()]) {
            let may_be = [found(before, addr), found(&self.table, addr)];
            for step in &self.steps {
                let found = found(step, addr);
                assert!(may_be.contains(&found), "{addr}: {found:?} of {may_be:?} by {changes:?}");
            }
        }
        self.steps.clear();
    }

    fn nodes(&mut self, reach: &Reach, local: &[&str]) -> usize {
        let local = local.iter().map(|text| addr(text)).collect();
        let changes = self.ipcache.set_nodes(NodesView { reach, local: &local, knows: true });
        self.write(changes)
    }

    fn set(&mut self, told: &EndpointAddress) -> usize {
        let change = self.ipcache.set_endpoint(EndpointSource::Object, told);
        self.write(change)
    }

    fn remove(&mut self, told: &EndpointAddress) -> usize {
        let change = self.ipcache.remove_endpoint(EndpointSource::Object, told.addr, told.uid);
        self.write(change)
    }

    fn sync(&mut self, sources: &[Source]) -> usize {
        sources
            .iter()
            .map(|source| {
                let changes = self.ipcache.synced(*source);
                self.write(changes)
            })
            .sum()
    }

    /// `prefix identity flags tunnel`, a line each.
    fn lines(&self) -> Vec<String> {
        let line = |(key, value): (&Key, &IpcacheValue)| {
            let flags = [
                (IpcacheValue::INSIDE, "+inside"),
                (IpcacheValue::NODE, "+node"),
                (IpcacheValue::PODS, "+pods"),
            ];
            let flags: String =
                flags.iter().filter(|(flag, _)| value.is(*flag)).map(|(_, name)| *name).collect();
            let tunnel = value.tunnel().map(|node| format!(" by {node}")).unwrap_or_default();
            format!("{} {}{flags}{tunnel}", Prefix::new(key.0, key.1).unwrap(), value.identity)
        };
        self.table.iter().map(line).collect()
    }

    fn found(&self, address: &str) -> NumericIdentity {
        let addr = addr(address);
        let covering =
            self.table.iter().filter(|((first, bits), _)| Prefix::new(*first, *bits).unwrap().contains(addr));
        covering.max_by_key(|((_, bits), _)| *bits).map_or(UNKNOWN, |(_, value)| value.identity)
    }
}

const LATER: [Source; 3] = [Source::Endpoints, Source::LocalEndpoints, Source::ApiServer];

#[test]
fn every_kind_of_address_is_in_the_table_with_the_way_to_it() {
    let mut written = Written::new(true);
    let view = cluster(&[node("b", "192.0.2.2", "10.0.2.0/24"), node("c", "192.0.2.3", "10.0.3.0/24")]);
    let reach = reach(&view, &options(true, &["10.9.0.0/16"]));
    written.nodes(&reach, &["192.0.2.1", "172.17.0.1"]);
    written.set(&endpoint("10.0.2.7", 300, "192.0.2.2", "a", 1));
    written.set(&endpoint("10.0.1.7", 301, "192.0.2.1", "b", 1));
    // Of prefixes that no node has: the ways that the objects tell.
    written.set(&endpoint("10.7.0.1", 302, "192.0.2.3", "c", 1));
    written.set(&endpoint("10.7.0.2", 303, "192.0.2.1", "d", 1));
    let api = BTreeMap::from([("192.0.2.1", 1), ("192.0.2.3", 2), ("198.51.100.1", 3), ("10.0.2.7", 4)]);
    let api =
        api.into_iter().map(|(address, n)| (addr(address), id(NumericIdentity::LOCAL_FIRST + n))).collect();
    let changes = written.ipcache.set_api_server(api);
    written.write(changes);
    written.sync(&LATER);
    let local = NumericIdentity::LOCAL_FIRST + 3;
    assert_eq!(
        written.lines(),
        [
            "::/0 2".to_owned(),
            "0.0.0.0/0 2".to_owned(),
            "10.0.1.0/24 0+inside".to_owned(),
            "10.0.1.1/32 4+inside".to_owned(),
            "10.0.1.7/32 301+inside".to_owned(),
            "10.0.2.0/24 0+inside+pods by 192.0.2.2".to_owned(),
            "10.0.2.1/32 4+inside+pods by 192.0.2.2".to_owned(),
            "10.0.2.7/32 300+inside+pods by 192.0.2.2".to_owned(),
            "10.0.3.0/24 0+inside+pods by 192.0.2.3".to_owned(),
            "10.0.3.1/32 4+inside+pods by 192.0.2.3".to_owned(),
            "10.7.0.1/32 302+inside+pods by 192.0.2.3".to_owned(),
            "10.7.0.2/32 303+inside".to_owned(),
            "10.9.0.0/16 2+inside".to_owned(),
            "172.17.0.1/32 1".to_owned(),
            "192.0.2.1/32 1+inside".to_owned(),
            "192.0.2.2/32 6+inside+node by 192.0.2.2".to_owned(),
            "192.0.2.3/32 7+inside+node by 192.0.2.3".to_owned(),
            format!("198.51.100.1/32 {local}"),
        ]
    );
    assert_eq!(written.ipcache.entries().collect::<BTreeMap<_, _>>(), written.table);
    assert_eq!(written.ipcache.lookup(addr("10.0.2.9")).unwrap().0, key("10.0.2.0/24"));
}

#[test]
fn a_node_that_moves_takes_its_pods_with_it_and_a_cidr_leaves_the_way_alone() {
    let mut written = Written::new(true);
    let view = cluster(&[node("b", "192.0.2.2", "10.0.2.0/24")]);
    written.nodes(&reach(&view, &options(true, &["10.9.0.0/16"])), &[]);
    written.set(&endpoint("10.0.2.7", 300, "192.0.2.2", "a", 1));
    let view = cluster(&[node("b", "192.0.2.9", "10.0.2.0/24")]);
    written.nodes(&reach(&view, &options(true, &["10.9.0.0/16"])), &[]);
    assert!(
        written.lines().contains(&"10.0.2.7/32 300+inside+pods by 192.0.2.9".to_owned()),
        "{:?}",
        written.lines()
    );
    let changes = written.ipcache.set_cidr(key("10.0.0.0/8"), Some(id(0x0100_0001)));
    written.write(changes);
    let changes = written.ipcache.set_cidr(key("10.9.7.0/24"), Some(id(0x0100_0002)));
    written.write(changes);
    let lines = written.lines();
    for line in [
        "10.0.0.0/8 16777217",
        "10.9.0.0/16 16777217+inside",
        "10.9.7.0/24 16777218+inside",
        "10.0.2.0/24 0+inside+pods by 192.0.2.9",
    ] {
        assert!(lines.contains(&line.to_owned()), "{line}: {lines:?}");
    }
    let changes = written.ipcache.set_cidr(key("10.0.0.0/8"), None);
    written.write(changes);
    assert_eq!(written.ipcache.entries().collect::<BTreeMap<_, _>>(), written.table);
}

#[test]
fn addresses_of_pods_are_never_of_the_world() {
    let mut written = Written::new(false);
    // Before nodes are known any address may be a pod's.
    let reach = reach(&cluster(&[]), &options(false, &["10.0.0.0/8"]));
    let none = BTreeSet::new();
    let changes = written.ipcache.set_nodes(NodesView { reach: &reach, local: &none, knows: false });
    written.write(changes);
    assert_eq!(written.found("10.5.0.1"), UNKNOWN);
    assert_eq!(written.found("198.51.100.1"), UNKNOWN);
    written.nodes(&reach, &[]);
    assert_eq!(written.found("10.5.0.1"), NumericIdentity::WORLD);
    assert_eq!(written.found("10.0.1.9"), UNKNOWN, "this node's pods");
}

#[test]
fn an_address_that_leaves_this_node_is_not_this_nodes_any_more_though_nodes_are_not_known() {
    let mut written = Written::new(true);
    let none = Reach::default();
    for (local, identity) in
        [(BTreeSet::from([addr("192.0.2.1")]), NumericIdentity::HOST), (BTreeSet::new(), UNKNOWN)]
    {
        let view = NodesView { reach: &none, local: &local, knows: false };
        let changes = written.ipcache.set_nodes(view);
        written.write(changes);
        assert_eq!(written.found("192.0.2.1"), identity);
    }
}

#[test]
fn over_a_restart_nothing_is_removed_and_no_identity_changes_before_all_have_spoken() {
    let view = cluster(&[node("b", "192.0.2.2", "10.0.2.0/24")]);
    let reach = reach(&view, &options(true, &[]));
    let mut first = Written::new(true);
    let pods =
        [endpoint("10.0.2.7", 300, "192.0.2.2", "a", 1), endpoint("10.0.2.8", 301, "192.0.2.2", "b", 1)];
    let api = BTreeMap::from([(addr("192.0.2.2"), id(0x0100_0005)), (addr("198.51.100.1"), id(0x0100_0006))]);
    first.nodes(&reach, &["192.0.2.1"]);
    assert_eq!(pods.iter().map(|pod| first.set(pod)).sum::<usize>(), 2);
    let changes = first.ipcache.set_api_server(api.clone());
    first.write(changes);
    first.sync(&LATER);
    let before = first.table;

    let mut second = Written::restarted(true, before.clone());
    assert_eq!(second.sync(&[Source::LocalEndpoints]), 0);
    // The owner before, whose object is still there, is read first.
    let old = endpoint("10.0.2.7", 309, "192.0.2.2", "old", 0);
    assert_eq!(second.set(&old), 0);
    assert_eq!(second.nodes(&reach, &["192.0.2.1"]), 0);
    assert_eq!(second.set(&pods[0]), 0);
    assert_eq!(second.sync(&[Source::Endpoints]), 0);
    assert_eq!(second.table, before);
    let changes = second.ipcache.set_api_server(api);
    assert_eq!(second.write(changes), 0);
    // Now everything is known: one pod is gone.
    assert_eq!(second.sync(&[Source::ApiServer]), 1);
    assert!(!second.table.contains_key(&key("10.0.2.8/32")));
    assert_eq!(second.ipcache.entries().collect::<BTreeMap<_, _>>(), second.table);
    assert_eq!(second.remove(&pods[0]), 1);
    assert_eq!(second.found("10.0.2.7"), id(309));
}

#[test]
fn a_source_that_stays_silent_holds_up_only_what_it_knows_better() {
    let old = IpcacheValue::new(id(300), None, IpcacheValue::INSIDE | IpcacheValue::PODS);
    let with = |identity| IpcacheValue { identity, ..old };
    let table = BTreeMap::from([
        (key("10.0.2.7/32"), old),
        // Pods' prefixes were outside, and pods' addresses are nodes' now.
        (key("10.0.2.0/24"), with(NumericIdentity::WORLD)),
        (key("192.0.2.2/32"), old),
        (key("192.0.2.3/32"), with(NumericIdentity::KUBE_APISERVER)),
    ]);
    let mut written = Written::restarted(false, table);
    let view = cluster(&[node("b", "192.0.2.2", "10.0.2.0/24"), node("c", "192.0.2.3", "10.0.3.0/24")]);
    let found = |written: &Written| {
        ["10.0.2.7", "10.0.2.8", "192.0.2.2", "192.0.2.3"].map(|address| written.found(address).get())
    };
    written.set(&endpoint("10.0.2.7", 301, "192.0.2.2", "a", 1));
    assert_eq!(found(&written), [300, 2, 300, 7]);
    written.nodes(&reach(&view, &options(false, &[])), &[]);
    assert_eq!(found(&written), [300, 0, 6, 7], "an endpoint may be another one's still");
    written.sync(&[Source::LocalEndpoints, Source::Endpoints]);
    assert_eq!(found(&written), [301, 0, 6, 7]);
    written.set(&endpoint("10.0.2.7", 302, "192.0.2.2", "b", 2));
    assert_eq!(found(&written), [302, 0, 6, 7]);
    written.sync(&[Source::ApiServer]);
    assert_eq!(found(&written), [302, 0, 6, 6]);
}

#[test]
fn while_others_are_silent_this_nodes_pods_and_new_ways_are_written() {
    let old = IpcacheValue::new(id(300), Some(addr("192.0.2.2")), IpcacheValue::INSIDE | IpcacheValue::PODS);
    let mut table = BTreeMap::from([
        (key("10.0.2.7/32"), old),
        (key("10.0.1.7/32"), IpcacheValue { identity: id(301), ..old }),
    ]);
    table.insert(key("10.0.2.0/24"), IpcacheValue { identity: UNKNOWN, ..old });
    let mut written = Written::restarted(true, table);
    let view = cluster(&[node("b", "192.0.2.9", "10.0.2.0/24")]);
    written.nodes(&reach(&view, &options(true, &[])), &[]);
    let local = endpoint("10.0.1.7", 302, "192.0.2.1", "a", 1);
    let change = written.ipcache.set_endpoint(EndpointSource::Local, &local);
    written.write(change);
    let lines = written.lines();
    for line in ["10.0.2.7/32 300+inside+pods by 192.0.2.9", "10.0.1.7/32 302+inside"] {
        assert!(lines.contains(&line.to_owned()), "{line}: {lines:?}");
    }
}

#[test]
fn an_earlier_version_that_knew_no_identities_says_nothing_of_them() {
    let old = IpcacheValue::new(UNKNOWN, None, IpcacheValue::INSIDE);
    let mut written = Written::restarted(false, BTreeMap::from([(key("192.0.2.2/32"), old)]));
    written.nodes(&reach(&cluster(&[node("b", "192.0.2.2", "10.0.2.0/24")]), &options(false, &[])), &[]);
    assert_eq!(written.found("192.0.2.2"), NumericIdentity::REMOTE_NODE);
}

#[test]
fn what_somebody_else_changed_in_the_table_is_found() {
    let mut written = Written::new(false);
    written.nodes(&reach(&cluster(&[]), &options(false, &[])), &[]);
    written.set(&endpoint("10.0.1.7", 300, "192.0.2.1", "a", 1));
    let found = |written: &Written| -> Vec<_> { written.table.clone().into_iter().collect() };
    assert_eq!(written.ipcache.differences(&found(&written)), []);
    let whole = written.table.clone();
    written.table.remove(&key("10.0.1.7/32"));
    written.table.insert(key("10.0.0.0/8"), IpcacheValue::new(id(2), None, 0));
    if let Some(value) = written.table.get_mut(&key("192.0.2.1/32")) {
        value.identity = NumericIdentity::WORLD;
    }
    let differences = written.ipcache.differences(&found(&written));
    assert_eq!(differences.len(), 3);
    written.write(differences);
    assert_eq!(written.table, whole);
}
