use super::cilium_endpoint::{addresses, identity};
use super::decode::{self, Kind, LONGEST_NAME};
use super::field::{List, Refusals, Shape, misfit};
use super::{CiliumEndpointSlice, CoreEndpoint, Names, Object, ObjectKind, raw};

impl Kind for CiliumEndpointSlice {
    type Raw<'a> = raw::CiliumEndpointSlice<'a>;
    const KIND: ObjectKind = ObjectKind::CiliumEndpointSlice;
    const API_VERSION: &'static str = "cilium.io/v2alpha1";
    const SHAPE: Shape = Shape {
        lists: &[List {
            fields: &["created", "networking.addressing[]", "networking.node"],
            ..List::of(&["endpoints"], |v| misfit::<raw::CoreEndpoint<'_>>(v))
        }],
        fields: &[
            "endpoints",
            "metadata.annotations",
            "metadata.creationTimestamp",
            "metadata.labels",
            "metadata.namespace",
            "metadata.ownerReferences",
            "metadata.uid",
        ],
        never_absent: None,
    };

    fn object(
        mut raw: raw::CiliumEndpointSlice<'_>,
        names: &mut Names,
        refusals: &mut Refusals<'_>,
    ) -> Option<Object> {
        let common = raw.metadata.as_mut().map(raw::CiliumMetadata::take_common);
        let metadata = common.as_ref();
        let name = decode::own_name(metadata, LONGEST_NAME, refusals)?;
        let namespace = raw.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or("default");
        let longest_namespace = 63;
        decode::check_name("namespace", namespace, longest_namespace, refusals)?;
        let mut endpoints = Vec::new();
        for (n, endpoint) in raw.endpoints.iter().flatten().enumerate() {
            let field = format!("endpoints[{n}]");
            match endpoint {
                None => refusals.push_null(field),
                Some(raw) => endpoints.extend(endpoint_of(&field, namespace, raw, names, refusals)),
            }
        }
        let slice = Self {
            name: names.get(name),
            created: decode::created(metadata, refusals),
            endpoints: endpoints.into(),
        };
        Some(Object::CiliumEndpointSlice(slice.into()))
    }
}

fn endpoint_of(
    field: &str,
    namespace: &str,
    raw: &raw::CoreEndpoint<'_>,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Option<CoreEndpoint> {
    let name = raw.name.as_deref().unwrap_or("");
    decode::check_name(&format!("{field}.name"), name, LONGEST_NAME, refusals)?;
    Some(CoreEndpoint {
        name: names.get(&format!("{namespace}/{name}")),
        identity: identity(&format!("{field}.id"), raw.id, refusals),
        addresses: addresses(&format!("{field}.networking"), raw.networking.as_ref(), refusals),
        created: raw.created,
    })
}

#[cfg(test)]
mod tests {
    use crate::k8s::{Format, Names, Object, decode};

    #[test]
    fn the_endpoints_of_a_slice_are_read_and_bad_ones_left_out() {
        let text = r#"{"apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice", "metadata": {"name": "ces-x"},
            "namespace": "shop", "endpoints": [
                {"name": "web-0", "id": 4711, "created": 60, "networking": {"addressing": [{"ipv4": "10.0.1.2"}], "node": "192.0.2.1"}},
                {"name": "", "id": 4711}, null, 7,
                {"name": "web-1", "id": 4712, "networking": {"addressing": [9, {"ipv6": "fd00::2"}]}},
                {"name": "web-2", "id": 1, "created": "x", "networking": {"addressing": [{"ipv4": "10.0.1.3"}]}}]}"#;
        let decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
        let Object::CiliumEndpointSlice(slice) = &decoded.objects[0] else { panic!("{decoded:?}") };
        let endpoints = slice.endpoints.iter().map(|endpoint| {
            let addresses: Vec<_> = endpoint.addresses.iter().map(|addr| addr.to_string()).collect();
            (&*endpoint.name, endpoint.identity.get(), addresses.join(" "), endpoint.created)
        });
        let endpoints: Vec<_> = endpoints.collect();
        let expected = [
            ("shop/web-0", 4711, "10.0.1.2".to_owned(), Some(60)),
            ("shop/web-1", 4712, "fd00::2".to_owned(), None),
            ("shop/web-2", 0, "10.0.1.3".to_owned(), None),
        ];
        assert_eq!((&*slice.name, endpoints.as_slice()), ("ces-x", expected.as_slice()));
        let mut fields: Vec<_> = decoded.rejects.iter().map(|reject| reject.field.as_str()).collect();
        fields.sort_unstable();
        let expected = [
            "endpoints[1].name",
            "endpoints[2]",
            "endpoints[3]",
            "endpoints[4].networking.addressing[0]",
            "endpoints[5].created",
            "endpoints[5].id",
        ];
        assert_eq!(fields, expected);
    }
}
