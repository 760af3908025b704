//! Which nodes are probed, and where.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use portway_datapath::{Addr, Family};
use portway_model::node::{ClusterNode, ClusterView};

use super::record::{NodeName, Target};

/// What of a node is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    pub ipv4: bool,
    pub ipv6: bool,
    /// Nodes have a health endpoint.
    pub endpoint: bool,
}

/// The nodes of the cluster; nobody is left out who may not answer.
pub(super) fn targets(view: &ClusterView, probed: Probed) -> BTreeMap<NodeName, Target> {
    let this = view.this.as_ref().map(|node| (node, true));
    let nodes = this.into_iter().chain(view.remote.values().map(|node| (node, false)));
    nodes.map(|(node, is_this_node)| (Arc::clone(&node.name), target(node, is_this_node, probed))).collect()
}

fn target(node: &ClusterNode, is_this_node: bool, probed: Probed) -> Target {
    let families = [(Family::V4, probed.ipv4), (Family::V6, probed.ipv6)];
    let on = families.into_iter().filter_map(|(family, on)| on.then_some(family));
    Target {
        is_this_node,
        node: on.filter_map(|family| node.address(family)).map(IpAddr::from).collect(),
        endpoint: endpoint_addresses(node, probed).map(IpAddr::from).collect(),
    }
}

/// Where a node's health endpoint is; nowhere where endpoints are not probed.
pub(crate) fn endpoint_addresses(node: &ClusterNode, probed: Probed) -> impl Iterator<Item = Addr> {
    node.health_addresses().filter(move |addr| {
        let is_on = match addr.family() {
            Family::V4 => probed.ipv4,
            Family::V6 => probed.ipv6,
        };
        is_on && probed.endpoint
    })
}

#[cfg(test)]
mod tests {
    use portway_model::node::Prefix;

    use super::*;

    fn node(name: &str, addresses: &[&str], pod_cidrs: &[&str], health: &[&str]) -> Arc<ClusterNode> {
        let addr = |text: &&str| Addr::from(text.parse::<IpAddr>().unwrap());
        Arc::new(ClusterNode {
            name: name.into(),
            created: None,
            addresses: addresses.iter().map(addr).collect(),
            other_addresses: Box::default(),
            pod_cidrs: pod_cidrs.iter().map(|text| Prefix::parse(text).unwrap()).collect(),
            health: health.iter().map(addr).collect(),
        })
    }

    fn view() -> ClusterView {
        let told = node("told", &["192.0.2.2"], &["10.0.2.0/24"], &["10.0.2.77"]);
        let bare = node("bare", &["2001:db8::3"], &[], &[]);
        ClusterView {
            this: Some(node(
                "me",
                &["192.0.2.9", "192.0.2.1", "2001:db8::1"],
                &["10.0.1.0/24", "10.9.1.0/24", "fd00:1::/64"],
                &[],
            )),
            remote: [told, bare].map(|node| (Arc::clone(&node.name), node)).into(),
            ..ClusterView::default()
        }
    }

    const ALL: Probed = Probed { ipv4: true, ipv6: true, endpoint: true };

    fn shown(probed: Probed) -> Vec<String> {
        let all =
            |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let targets = targets(&view(), probed);
        targets.iter().map(|(name, t)| format!("{name} {} {}", all(&t.node), all(&t.endpoint))).collect()
    }

    #[test]
    fn of_each_family_the_first_address_and_the_endpoint_of_the_first_prefix() {
        assert_eq!(
            shown(ALL),
            ["bare 2001:db8::3 ", "me 192.0.2.9,2001:db8::1 10.0.1.1,fd00:1::1", "told 192.0.2.2 10.0.2.77"]
        );
        assert!(targets(&view(), ALL).values().filter(|target| target.is_this_node).count() == 1);
    }

    #[test]
    fn what_is_off_is_not_probed() {
        assert_eq!(
            shown(Probed { ipv6: false, ..ALL }),
            ["bare  ", "me 192.0.2.9 10.0.1.1", "told 192.0.2.2 10.0.2.77"]
        );
        assert_eq!(
            shown(Probed { endpoint: false, ..ALL }),
            ["bare 2001:db8::3 ", "me 192.0.2.9,2001:db8::1 ", "told 192.0.2.2 "]
        );
    }

    #[test]
    fn a_prefix_of_one_address_has_no_room_for_an_endpoint() {
        let single = node("a", &[], &["10.0.1.0/32"], &[]);
        assert_eq!(endpoint_addresses(&single, ALL).next(), None);
    }
}
