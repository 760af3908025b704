use portway_datapath::{Addr, Family, NumericIdentity, Scope};

use super::decode::{self, Kind};
use super::field::{List, Refusals, Shape, misfit};
use super::{CiliumEndpoint, EndpointAddresses, Names, Object, ObjectKind, Uid, raw};

impl Kind for CiliumEndpoint {
    type Raw<'a> = raw::CiliumEndpoint<'a>;
    const KIND: ObjectKind = ObjectKind::CiliumEndpoint;
    const API_VERSION: &'static str = "cilium.io/v2";
    const SHAPE: Shape = Shape {
        lists: &[List {
            fields: &["ipv4", "ipv6"],
            ..List::of(&["status", "networking", "addressing"], |v| misfit::<raw::AddressPair<'_>>(v))
        }],
        fields: &[
            "metadata.annotations",
            "metadata.creationTimestamp",
            "metadata.labels",
            "metadata.ownerReferences",
            "metadata.uid",
            "status",
            "status.id",
            "status.identity",
            "status.identity.id",
            "status.networking",
            "status.networking.addressing",
            "status.networking.node",
            "status.state",
        ],
        never_absent: None,
    };

    fn object(
        mut raw: raw::CiliumEndpoint<'_>,
        names: &mut Names,
        refusals: &mut Refusals<'_>,
    ) -> Option<Object> {
        let common = raw.metadata.as_mut().map(raw::CiliumMetadata::take_common);
        let name = decode::namespaced_name(common.as_ref(), names, refusals)?;
        let metadata = raw.metadata.as_ref();
        let status = raw.status.as_ref();
        let id = status.and_then(|status| status.id);
        let number = status.and_then(|status| status.identity.as_ref()).and_then(|identity| identity.id);
        let networking = status.and_then(|status| status.networking.as_ref());
        let endpoint = Self {
            name,
            uid: Uid::new(metadata.and_then(|m| m.uid.as_deref()).unwrap_or("")),
            pod_uid: pod_uid(metadata),
            created: decode::created(common.as_ref(), refusals),
            identity: identity("status.identity.id", number, refusals),
            addresses: addresses("status.networking", networking, refusals),
            endpoint_id: id.and_then(|id| u16::try_from(id).ok()).unwrap_or(0),
            is_ready: status.and_then(|status| status.state.as_deref()) == Some("ready"),
        };
        Some(Object::CiliumEndpoint(endpoint.into()))
    }
}

/// Of the pod that owns the object.
fn pod_uid(metadata: Option<&raw::CiliumMetadata<'_>>) -> Uid {
    let owners = metadata.and_then(|m| m.owner_references.as_ref());
    let mut owners = owners.into_iter().flatten().flatten();
    let pod = owners.find(|owner| owner.kind.as_deref() == Some("Pod"));
    Uid::new(pod.and_then(|pod| pod.uid.as_deref()).unwrap_or(""))
}

/// A number of an identity; unknown where it is none, and where it is one that no endpoint has: an object must not make a
/// pod of the host.
pub(super) fn identity(field: &str, number: Option<i64>, refusals: &mut Refusals<'_>) -> NumericIdentity {
    let Some(number) = number else { return NumericIdentity::UNKNOWN };
    let identity = u32::try_from(number).ok().map(NumericIdentity::new);
    identity.filter(|identity| is_endpoints(*identity)).unwrap_or_else(|| {
        let why = "is no number that an endpoint's identity has; the endpoint has no identity";
        refusals.push(field, &number.to_string(), why);
        NumericIdentity::UNKNOWN
    })
}

/// Whether an object may say of an endpoint that it has this identity. Nodes and the world are no endpoints, and what only
/// one node has a number for means something else, or nothing, here.
fn is_endpoints(identity: NumericIdentity) -> bool {
    match identity.scope() {
        Scope::WellKnown | Scope::UserReserved | Scope::Cluster => true,
        Scope::Reserved => matches!(
            identity,
            NumericIdentity::UNKNOWN
                | NumericIdentity::UNMANAGED
                | NumericIdentity::HEALTH
                | NumericIdentity::INIT
                | NumericIdentity::INGRESS
        ),
        Scope::Local | Scope::RemoteNode | Scope::Invalid => false,
    }
}

/// The first address of each family, and the node's; `field` is the path of `raw`.
pub(super) fn addresses(
    field: &str,
    raw: Option<&raw::CiliumEndpointNetworking<'_>>,
    refusals: &mut Refusals<'_>,
) -> EndpointAddresses {
    let Some(raw) = raw else { return EndpointAddresses::default() };
    let mut found = EndpointAddresses::default();
    for (n, pair) in raw.addressing.iter().flatten().enumerate() {
        let Some(pair) = pair else {
            refusals.push_null(format!("{field}.addressing[{n}]"));
            continue;
        };
        for (family, text) in [(Family::V4, &pair.ipv4), (Family::V6, &pair.ipv6)] {
            let Some(text) = text.as_deref().filter(|text| !text.is_empty()) else { continue };
            let (word, place) = match family {
                Family::V4 => ("ipv4", &mut found.ipv4),
                Family::V6 => ("ipv6", &mut found.ipv6),
            };
            let path = || format!("{field}.addressing[{n}].{word}");
            match decode::address(path, text, "address", refusals) {
                Some(addr) if addr.family() == family => *place = place.or(Some(addr)),
                Some(_) => {
                    let family = decode::family_name(family);
                    refusals.push(path(), text, format!("is no {family} address; the address is left out"));
                }
                None => {}
            }
        }
    }
    found.node = node(field, raw, refusals);
    found
}

fn node(field: &str, raw: &raw::CiliumEndpointNetworking<'_>, refusals: &mut Refusals<'_>) -> Option<Addr> {
    let text = raw.node.as_deref().filter(|node| !node.is_empty())?;
    decode::address(|| format!("{field}.node"), text, "node's address", refusals)
}

#[cfg(test)]
mod tests {
    use portway_datapath::NumericIdentity;

    use crate::k8s::{Decoded, Format, Names, Object, Uid, decode};

    fn read(text: &str) -> Decoded {
        decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap()
    }

    #[test]
    fn what_counts_of_an_endpoint_is_read() {
        let decoded = read(
            r#"{"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint",
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "798c2fec-5eb1-4906-a301-517607560d90",
                "creationTimestamp": "1970-01-01T00:01:00Z", "labels": {"app": "web"},
                "ownerReferences": [{"apiVersion": "x/v1", "kind": "X", "name": "x", "uid": "1"},
                    {"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "90b353f5-53a1-4d98-8204-8adf1156ecec"}]},
            "status": {"id": 211, "state": "ready", "identity": {"id": 48861, "labels": ["k8s:app=web"]},
                "external-identifiers": {"pod-name": "shop/web-0"}, "policy": {"egress": {"state": "<status disabled>"}},
                "networking": {"addressing": [{"ipv4": "10.0.1.200", "ipv6": "fd00::c8"}], "node": "192.0.2.1"}}}"#,
        );
        let Object::CiliumEndpoint(endpoint) = &decoded.objects[0] else { panic!("{decoded:?}") };
        assert_eq!(&*endpoint.name, "shop/web-0");
        assert_eq!(endpoint.uid, Uid::new("798c2fec-5eb1-4906-a301-517607560d90"));
        assert_eq!(endpoint.pod_uid, Uid::new("90b353f5-53a1-4d98-8204-8adf1156ecec"));
        assert_eq!((endpoint.created, endpoint.identity), (Some(60), NumericIdentity::new(48861)));
        assert_eq!((endpoint.endpoint_id, endpoint.is_ready), (211, true));
        let addresses: Vec<_> = endpoint.addresses.iter().map(|addr| addr.to_string()).collect();
        assert_eq!(addresses, ["10.0.1.200", "fd00::c8"]);
        assert_eq!(endpoint.addresses.node.unwrap().to_string(), "192.0.2.1");
        assert_eq!(decoded.rejects, []);
    }

    #[test]
    fn an_endpoint_that_waits_has_no_identity_yet() {
        let decoded = read(
            r#"{"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": {"name": "a"},
            "status": {"state": "waiting-for-identity"}}"#,
        );
        let Object::CiliumEndpoint(endpoint) = &decoded.objects[0] else { panic!("{decoded:?}") };
        assert_eq!((endpoint.identity, endpoint.is_ready), (NumericIdentity::UNKNOWN, false));
        assert_eq!(endpoint.addresses.iter().count(), 0);
    }

    #[test]
    fn no_object_makes_a_pod_of_the_host_or_of_the_world() {
        let told = |id: u32| {
            let decoded = read(&format!(
                r#"{{"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": {{"name": "a"}},
                "status": {{"identity": {{"id": {id}}}}}}}"#
            ));
            let Object::CiliumEndpoint(endpoint) = &decoded.objects[0] else { panic!("{decoded:?}") };
            let fields: Vec<_> = decoded.rejects.iter().map(|reject| reject.field.clone()).collect();
            (endpoint.identity.get(), fields)
        };
        for id in [1, 2, 6, 7, 9, 10, 11, 12, 99, 0x0100_0000, 0x0100_0001, 0x0200_0001, u32::MAX] {
            assert_eq!(told(id), (0, vec!["status.identity.id".to_owned()]), "{id}");
        }
        for id in [0, 3, 4, 5, 8, 100, 128, 256, 0x00ff_ffff] {
            assert_eq!(told(id), (id, vec![]), "{id}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_and_the_rest_lives() {
        let decoded = read(
            r#"{"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint",
            "metadata": {"name": "a", "ownerReferences": 7},
            "status": {"identity": {"id": -1}, "id": "x", "networking": {"node": [],
                "addressing": [{"ipv4": "fd00::1", "ipv6": 7}, 8, {"ipv4": "10.0.0.1"}, {"ipv6": "y"}]}}}"#,
        );
        let Object::CiliumEndpoint(endpoint) = &decoded.objects[0] else { panic!("{decoded:?}") };
        let addresses: Vec<_> = endpoint.addresses.iter().map(|addr| addr.to_string()).collect();
        assert_eq!((endpoint.identity, addresses), (NumericIdentity::UNKNOWN, vec!["10.0.0.1".to_owned()]));
        let mut fields: Vec<_> = decoded.rejects.iter().map(|reject| reject.field.as_str()).collect();
        fields.sort_unstable();
        let expected = [
            "metadata.ownerReferences",
            "status.id",
            "status.identity.id",
            "status.networking.addressing[0].ipv4",
            "status.networking.addressing[0].ipv6",
            "status.networking.addressing[1]",
            "status.networking.addressing[3].ipv6",
            "status.networking.node",
        ];
        assert_eq!(fields, expected);
    }
}
