use super::*;
use crate::k8s::{Manifests, Watched};

struct Told {
    manifests: Manifests,
    cluster: Cluster,
}

impl Told {
    fn new(from: PodCidrs) -> Self {
        Self { manifests: Manifests::new(), cluster: Cluster::new("a".into(), from) }
    }

    fn tell(&mut self, kind: ObjectKind, watched: Watched<'_>) -> bool {
        let change = self.manifests.watched(kind, watched);
        assert_eq!(change.rejects, []);
        change.events.iter().fold(false, |news, event| self.cluster.apply(event) | news)
    }

    fn node(&mut self, name: &str, cidrs: &str, addresses: &str) -> bool {
        let node = format!(
            r#"{{"metadata": {{"name": "{name}"}}, "spec": {{"podCIDRs": [{cidrs}]}}, "status": {{"addresses": [{addresses}]}}}}"#
        );
        self.tell(ObjectKind::Node, Watched::Applied(&node))
    }

    fn cilium_node(&mut self, name: &str, cidrs: &str, addresses: &str) -> bool {
        let node = format!(
            r#"{{"metadata": {{"name": "{name}"}}, "spec": {{"addresses": [{addresses}], "ipam": {{"podCIDRs": [{cidrs}]}}}}}}"#
        );
        self.tell(ObjectKind::CiliumNode, Watched::Applied(&node))
    }

    fn pod(&mut self, name: &str, uid: u8, node: &str, annotations: &str) -> bool {
        let pod = pod(name, uid, node, annotations);
        self.tell(ObjectKind::Pod, Watched::Applied(&pod))
    }

    fn uids(&self) -> Vec<&str> {
        self.cluster.view().pods.keys().map(|uid| uid.get(34..).unwrap_or_default()).collect()
    }
}

fn pod(name: &str, uid: u8, node: &str, annotations: &str) -> String {
    format!(
        r#"{{"metadata": {{"namespace": "n", "name": "{name}", "uid": "00000000-0000-0000-0000-0000000000{uid:02x}",
             "annotations": {{{annotations}}}}}, "spec": {{"nodeName": "{node}"}}}}"#
    )
}

const INTERNAL: &str = r#"{"type": "InternalIP", "address": "192.0.2.1"}"#;

#[test]
fn nodes_come_change_and_go_and_only_that_is_news() {
    let mut told = Told::new(PodCidrs::Node);
    assert!(told.node("a", r#""10.0.1.0/24""#, INTERNAL) && told.node("b", r#""10.0.2.0/24""#, INTERNAL));
    assert!(!told.node("b", r#""10.0.2.0/24""#, INTERNAL));
    // What the pool says is nothing here.
    assert!(!told.cilium_node("b", r#""10.9.0.0/24""#, ""));
    let view = told.cluster.view();
    assert_eq!(view.this.as_ref().unwrap().pod_cidrs[0].to_string(), "10.0.1.0/24");
    assert_eq!(view.remote["b"].pod_cidrs[0].to_string(), "10.0.2.0/24");
    assert!(told.node("b", "", INTERNAL));
    let gone = |name: &str| format!(r#"{{"metadata": {{"name": "{name}"}}}}"#);
    assert!(told.tell(ObjectKind::Node, Watched::Deleted(&gone("b"))));
    // This one is made anew while its agent runs.
    assert!(!told.tell(ObjectKind::Node, Watched::Deleted(&gone("a"))));
    assert!(told.cluster.view().remote.is_empty() && told.cluster.view().this.is_some());
}

#[test]
fn with_a_pool_the_cilium_node_says_the_prefixes_and_addresses() {
    let mut told = Told::new(PodCidrs::CiliumNode);
    told.node("b", r#""10.0.2.0/24""#, INTERNAL);
    let view = |told: &Told| {
        let node = &told.cluster.view().remote["b"];
        (node.pod_cidrs.iter().map(ToString::to_string).collect(), node.addresses[0].to_string())
    };
    let of = |cidrs: &[&str], addr: &str| -> (Vec<String>, String) {
        (cidrs.iter().map(ToString::to_string).collect(), addr.to_owned())
    };
    assert_eq!(view(&told), of(&[], "192.0.2.1"));
    assert!(told.cilium_node("b", r#""10.9.0.0/24""#, ""));
    assert_eq!(view(&told), of(&["10.9.0.0/24"], "192.0.2.1"));
    assert!(told.cilium_node("b", r#""10.9.0.0/24""#, r#"{"type": "InternalIP", "ip": "192.0.2.9"}"#));
    assert_eq!(view(&told), of(&["10.9.0.0/24"], "192.0.2.9"));
}

#[test]
fn a_node_is_reached_at_its_internal_addresses_or_for_lack_of_them_at_the_external_ones() {
    let mut told = Told::new(PodCidrs::Node);
    let both = r#"{"type": "ExternalIP", "address": "203.0.113.1"}, {"type": "InternalIP", "address": "192.0.2.1"},
                  {"type": "ExternalIP", "address": "2001:db8::1"}"#;
    told.node("b", "", both);
    let view = told.cluster.view();
    let texts = |all: &[Addr]| -> Vec<_> { all.iter().map(ToString::to_string).collect() };
    assert_eq!(texts(&view.remote["b"].addresses), ["192.0.2.1", "2001:db8::1"]);
    // Who is at the others is known all the same.
    assert_eq!(texts(&view.remote["b"].other_addresses), ["203.0.113.1"]);
}

#[test]
fn pods_are_those_of_this_node_by_uid_with_their_annotations() {
    let mut told = Told::new(PodCidrs::Node);
    assert!(told.pod("p", 1, "a", r#""portway.io/socket-lb": "false", "other": "x""#));
    assert!(!told.pod("q", 2, "b", ""));
    let uid = "00000000-0000-0000-0000-000000000001";
    let seen = &told.cluster.view().pods[uid];
    assert_eq!((&*seen.namespace, &*seen.name), ("n", "p"));
    assert_eq!(
        seen.annotations.iter().map(|(k, v)| (&**k, &**v)).collect::<Vec<_>>(),
        [("portway.io/socket-lb", "false")]
    );
    // Another pod of the same name takes its place; late news of the first change nothing.
    assert!(told.pod("p", 3, "a", ""));
    assert_eq!(told.uids(), ["03"]);
    let late = ObjectKey { kind: ObjectKind::Pod, name: "n/p".into(), uid: uid.into() };
    assert!(!told.cluster.apply(&Event::Delete(late)));
    let gone = pod("p", 3, "a", "");
    assert!(told.tell(ObjectKind::Pod, Watched::Deleted(&gone)));
    assert!(told.uids().is_empty());
}

#[test]
fn what_is_known_is_news_once() {
    let mut told = Told::new(PodCidrs::Node);
    assert!(
        told.cluster.knows(true, false) && !told.cluster.knows(true, false) && told.cluster.knows(true, true)
    );
    assert!(told.cluster.view().knows_nodes && told.cluster.view().knows_pods);
}
