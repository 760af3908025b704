use std::net::IpAddr;

use portway_datapath::{Addr, Family};

use super::decode::{self, Kind, LONGEST_NAME};
use super::field::{List, Refusals, Shape, misfit};
use super::node::{addresses, pod_cidrs};
use super::{CiliumNode, Names, Object, ObjectKind, raw};

impl Kind for CiliumNode {
    type Raw<'a> = raw::CiliumNode<'a>;
    const KIND: ObjectKind = ObjectKind::CiliumNode;
    const API_VERSION: &'static str = "cilium.io/v2";
    const SHAPE: Shape = Shape {
        lists: &[
            List::of(&["spec", "addresses"], |v| misfit::<raw::NodeAddress<'_>>(v)),
            List::of(&["spec", "ipam", "podCIDRs"], |v| misfit::<raw::Text<'_>>(v)),
        ],
        fields: &[
            "metadata.annotations",
            "metadata.creationTimestamp",
            "metadata.labels",
            "metadata.namespace",
            "metadata.uid",
            "spec.addresses",
            "spec.health",
            "spec.health.ipv4",
            "spec.health.ipv6",
            "spec.ipam",
            "spec.ipam.podCIDRs",
            "spec",
        ],
        never_absent: None,
    };

    fn object(raw: raw::CiliumNode<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Object> {
        let metadata = raw.metadata.as_ref();
        let name = decode::own_name(metadata, LONGEST_NAME, refusals)?;
        let spec = raw.spec.as_ref();
        let listed = spec.and_then(|spec| spec.addresses.as_deref()).unwrap_or_default();
        let ipam = spec.and_then(|spec| spec.ipam.as_ref());
        let cidrs = ipam.and_then(|ipam| ipam.pod_cidrs.as_deref()).unwrap_or_default();
        let node = Self {
            name: names.get(name),
            created: decode::created(metadata, refusals),
            addresses: addresses("spec.addresses", "ip", listed, refusals),
            pod_cidrs: pod_cidrs("spec.ipam.podCIDRs", cidrs, refusals),
            health: health(spec.and_then(|spec| spec.health.as_ref()), refusals),
        };
        Some(Object::CiliumNode(node.into()))
    }
}

fn health(raw: Option<&raw::CiliumNodeHealth<'_>>, refusals: &mut Refusals<'_>) -> Box<[Addr]> {
    let Some(raw) = raw else { return Box::default() };
    let fields = [("spec.health.ipv4", &raw.ipv4, Family::V4), ("spec.health.ipv6", &raw.ipv6, Family::V6)];
    let mut found = Vec::with_capacity(fields.len());
    for (field, text, family) in fields {
        let Some(text) = text.as_deref().filter(|text| !text.is_empty()) else { continue };
        let is_of_family = |ip: &IpAddr| Addr::from(*ip).family() == family;
        match text.parse::<IpAddr>() {
            Ok(ip) if !is_of_family(&ip) => {
                let family = decode::family_name(family);
                refusals.push(field, text, format!("is no {family} address; it is left out"));
            }
            Ok(_) | Err(_) => found.extend(decode::address(|| field.to_owned(), text, "address", refusals)),
        }
    }
    found.into()
}

#[cfg(test)]
mod tests {
    use crate::k8s::{Format, Names, Object, decode};

    #[test]
    fn a_cilium_node_is_read_and_what_cannot_be_used_of_it_is_named() {
        let text = r#"{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "a"},
            "spec": {"addresses": [{"type": "InternalIP", "ip": "192.0.2.1"}, {"type": "CiliumInternalIP", "ip": "10.0.1.9"},
                                   {"type": "InternalIP", "ip": "x"}, 7],
                     "health": {"ipv4": "10.0.1.5", "ipv6": "10.0.1.6"},
                     "ipam": {"podCIDRs": ["10.0.1.0/24", null, "y"]}}}"#;
        let decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
        let Object::CiliumNode(node) = &decoded.objects[0] else { panic!("{:?}", decoded.objects) };
        let addresses: Vec<_> = node.addresses.iter().map(|a| a.addr.to_string()).collect();
        let health: Vec<_> = node.health.iter().map(ToString::to_string).collect();
        let cidrs: Vec<_> = node.pod_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(
            (addresses, health, cidrs),
            (vec!["192.0.2.1".into()], vec!["10.0.1.5".into()], vec!["10.0.1.0/24".to_owned()])
        );
        let mut fields: Vec<_> = decoded.rejects.iter().map(|reject| reject.field.as_str()).collect();
        fields.sort_unstable();
        let expected = [
            "spec.addresses[2].ip",
            "spec.addresses[3]",
            "spec.health.ipv6",
            "spec.ipam.podCIDRs[1]",
            "spec.ipam.podCIDRs[2]",
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn an_ipam_that_is_no_object_leaves_the_addresses() {
        let text = r#"{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "a"},
            "spec": {"addresses": [{"type": "InternalIP", "ip": "192.0.2.1"}], "ipam": [], "health": {"ipv4": 1}}}"#;
        let decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
        let Object::CiliumNode(node) = &decoded.objects[0] else { panic!("{:?}", decoded.objects) };
        assert_eq!((node.addresses.len(), node.pod_cidrs.len()), (1, 0));
        let fields: Vec<_> = decoded.rejects.iter().map(|reject| reject.field.as_str()).collect();
        assert_eq!(fields.len(), 2, "{fields:?}");
    }
}
