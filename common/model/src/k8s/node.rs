use std::net::IpAddr;

use portway_datapath::Addr;

use crate::node::Prefix;

use super::decode::{self, Kind, LONGEST_NAME};
use super::field::{List, Refusals, Shape, misfit};
use super::{Names, Node, NodeAddress, Object, ObjectKind, raw};

/// What Cluster Autoscaler sets before it deletes a node (cluster-autoscaler/utils/taints/taints.go).
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

impl Kind for Node {
    type Raw<'a> = raw::Node<'a>;
    const KIND: ObjectKind = ObjectKind::Node;
    const API_VERSION: &'static str = "v1";
    const SHAPE: Shape = Shape {
        lists: &[
            List::of(&["spec", "taints"], |v| misfit::<raw::Taint<'_>>(v)),
            List::of(&["spec", "podCIDRs"], |v| misfit::<raw::Text<'_>>(v)),
            List::of(&["status", "addresses"], |v| misfit::<raw::NodeAddress<'_>>(v)),
        ],
        fields: &[
            "metadata.annotations",
            "metadata.creationTimestamp",
            "metadata.uid",
            "metadata.namespace",
            "spec.podCIDR",
            "spec.podCIDRs",
            "spec.taints",
            "spec",
            "status",
        ],
        never_absent: None,
    };

    fn object(raw: raw::Node<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Object> {
        let metadata = raw.metadata.as_ref();
        let name = decode::own_name(metadata, LONGEST_NAME, refusals)?;
        let zone = metadata.and_then(|m| m.labels.as_ref()).and_then(|l| l.zone.as_deref());
        let zone = zone.filter(|zone| !zone.is_empty()).map(|zone| names.get(zone));
        let taints = raw.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let mut keys = taints.iter().flatten().filter_map(|taint| taint.key.as_deref());
        let is_deleted = metadata.is_some_and(|m| m.deletion_timestamp.is_some());
        let leaving = is_deleted || keys.any(|key| key == TO_BE_DELETED);
        let spec = raw.spec.as_ref();
        let listed = spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default();
        let single = spec.and_then(|spec| spec.pod_cidr.as_deref()).filter(|cidr| !cidr.is_empty());
        let pod_cidrs = match single {
            Some(cidr) if listed.is_empty() => pod_cidr("spec.podCIDR", cidr, refusals).into_iter().collect(),
            Some(_) | None => pod_cidrs("spec.podCIDRs", listed, refusals),
        };
        let listed = raw.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
        let node = Self {
            name: names.get(name),
            uid: metadata.and_then(|m| m.uid.as_deref()).unwrap_or("").into(),
            zone,
            leaving,
            created: decode::created(metadata, refusals),
            addresses: addresses("status.addresses", "address", listed, refusals),
            pod_cidrs,
        };
        Some(Object::Node(node.into()))
    }
}

/// The usable ones of a list of pod CIDRs.
pub(super) fn pod_cidrs(
    field: &str,
    listed: &[Option<raw::Text<'_>>],
    refusals: &mut Refusals<'_>,
) -> Box<[Prefix]> {
    let mut cidrs: Vec<Prefix> = Vec::with_capacity(listed.len());
    for (n, text) in listed.iter().enumerate() {
        let field = format!("{field}[{n}]");
        match text.as_deref() {
            None => refusals.push_null(field),
            Some(text) => cidrs.extend(pod_cidr(&field, text, refusals).filter(|cidr| !cidrs.contains(cidr))),
        }
    }
    cidrs.into()
}

/// A prefix that addresses of pods can be from.
fn pod_cidr(field: &str, text: &str, refusals: &mut Refusals<'_>) -> Option<Prefix> {
    let Some(cidr) = Prefix::parse(text.trim()) else {
        refusals.push(field, text, "is no prefix such as 10.0.1.0/24 or fd00:1::/112; it is left out");
        return None;
    };
    let first = IpAddr::from(cidr.addr());
    let problem = if cidr.family_bits() == 0 {
        "covers every address"
    } else if cidr.addr().is_loopback() || first.is_multicast() {
        "is no prefix of addresses that a pod can have"
    } else {
        return Some(cidr);
    };
    refusals.push(field, text, format!("{problem}; it is left out"));
    None
}

/// The InternalIPs and ExternalIPs of a list, each once. `key` is that of the address itself.
pub(super) fn addresses(
    field: &str,
    key: &str,
    listed: &[Option<raw::NodeAddress<'_>>],
    refusals: &mut Refusals<'_>,
) -> Box<[NodeAddress]> {
    let mut addresses: Vec<NodeAddress> = Vec::new();
    for (n, entry) in listed.iter().enumerate() {
        let Some(entry) = entry else {
            refusals.push_null(format!("{field}[{n}]"));
            continue;
        };
        // Others are names, or addresses that another agent gives itself.
        let external = match entry.address_type.as_deref() {
            Some("InternalIP") => false,
            Some("ExternalIP") => true,
            Some(_) | None => continue,
        };
        let text = entry.address.as_deref().unwrap_or("");
        let addr: Option<Addr> = decode::address(|| format!("{field}[{n}].{key}"), text, "address", refusals);
        let is_new = |addr: &Addr| addresses.iter().all(|known| known.addr != *addr);
        if let Some(addr) = addr.filter(is_new) {
            addresses.push(NodeAddress { external, addr });
        }
    }
    addresses.into()
}

#[cfg(test)]
mod tests {
    use crate::k8s::{Format, Names, Object, decode};

    #[test]
    fn a_node_that_is_about_to_go_is_known_by_its_deletion_or_the_autoscalers_taint() {
        let node = |metadata: &str, spec: &str| {
            let text = format!(
                r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"a"{metadata}}},"spec":{spec}}}"#
            );
            let decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
            let Object::Node(node) = &decoded.objects[0] else { panic!("{:?}", decoded.objects) };
            let fields: Vec<String> = decoded.rejects.iter().map(|reject| reject.field.clone()).collect();
            (node.leaving, fields)
        };
        assert_eq!(node("", r#"{"taints":[{"key":"node.kubernetes.io/unschedulable"}]}"#), (false, vec![]));
        assert_eq!(node(r#","deletionTimestamp":null"#, r#"{"taints":null}"#), (false, vec![]));
        assert_eq!(node(r#","deletionTimestamp":"2026-11-30T07:00:00Z""#, "{}"), (true, vec![]));
        let taints =
            r#"{"taints":[{"key":7},{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]}"#;
        assert_eq!(node("", taints), (true, vec!["spec.taints[0].key".to_owned()]));
    }

    #[test]
    fn addresses_and_pod_cidrs_that_cannot_be_used_are_named_and_the_rest_lives() {
        let text = r#"{"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "a", "uid": "u", "creationTimestamp": "1970-01-01T00:00:07Z"},
            "spec": {"podCIDR": "10.9.0.0/24",
                     "podCIDRs": ["10.0.1.0/24", "fd00:1::/112", "10.0.1.0", 7, "0.0.0.0/0", "127.0.0.0/8"]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "a"}, {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "ExternalIP", "address": "203.0.113.1"}, {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "InternalIP", "address": "a"}, {"type": "InternalIP"}, {"type": "InternalIP", "address": 1}]}}"#;
        let decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
        let Object::Node(node) = &decoded.objects[0] else { panic!("{:?}", decoded.objects) };
        let cidrs: Vec<String> = node.pod_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(
            (&*node.uid, node.created, cidrs),
            ("u", Some(7), vec!["10.0.1.0/24".to_owned(), "fd00:1::/112".to_owned()])
        );
        let addresses: Vec<_> = node.addresses.iter().map(|a| (a.addr.to_string(), a.external)).collect();
        assert_eq!(addresses, [("192.0.2.1".to_owned(), false), ("203.0.113.1".to_owned(), true)]);
        let mut fields: Vec<_> = decoded.rejects.iter().map(|reject| reject.field.as_str()).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "spec.podCIDRs[2]",
                "spec.podCIDRs[3]",
                "spec.podCIDRs[4]",
                "spec.podCIDRs[5]",
                "status.addresses[4].address",
                "status.addresses[5].address",
                "status.addresses[6].address",
            ]
        );
    }

    #[test]
    fn a_node_with_an_older_single_pod_cidr_has_it() {
        let text = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {"podCIDR": "10.9.0.0/24"}}"#;
        let decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
        let Object::Node(node) = &decoded.objects[0] else { panic!("{:?}", decoded.objects) };
        assert_eq!(node.pod_cidrs[0].to_string(), "10.9.0.0/24");
    }
}
