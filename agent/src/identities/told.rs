//! What the owner of the objects tells the thread of identities.

use portway_model::k8s::{Event, Object, ObjectKind};

/// Where the EndpointSlices of the API server are. One that is another Service's now was perhaps the API server's before,
/// and of one that is deleted only the name is said, which may be any.
const API_SERVER_NAMESPACE: &str = "default/";

/// Changes in the order in which they were seen, and what is known after them.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) events: Vec<Event>,
    pub(crate) synced: Synced,
}

/// Kinds of which every source has told everything. What is not watched has told everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Synced {
    pub(crate) namespaces: bool,
    /// Of this node.
    pub(crate) pods: bool,
    /// Nodes and CiliumNodes.
    pub(crate) nodes: bool,
    pub(crate) identities: bool,
    /// The version of the last list of CiliumIdentities.
    pub(crate) identities_listed: Option<u64>,
    /// CiliumEndpoints and CiliumEndpointSlices.
    pub(crate) endpoints: bool,
    /// The endpoints of the API server.
    pub(crate) api_server: bool,
}

/// Whether identities or the ipcache are made of what changed.
pub(crate) fn is_of_matter(event: &Event) -> bool {
    match event {
        Event::Apply(object) => match object {
            Object::Pod(_)
            | Object::Namespace(_)
            | Object::Node(_)
            | Object::CiliumNode(_)
            | Object::CiliumIdentity(_)
            | Object::CiliumEndpoint(_)
            | Object::CiliumEndpointSlice(_) => true,
            Object::EndpointSlice(slice) => slice.name.starts_with(API_SERVER_NAMESPACE),
            Object::Service(_) => false,
        },
        Event::Delete(key) => match key.kind {
            ObjectKind::Pod
            | ObjectKind::Namespace
            | ObjectKind::Node
            | ObjectKind::CiliumNode
            | ObjectKind::CiliumIdentity
            | ObjectKind::CiliumEndpoint
            | ObjectKind::CiliumEndpointSlice => true,
            ObjectKind::EndpointSlice => key.name.starts_with(API_SERVER_NAMESPACE),
            ObjectKind::Service => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use portway_model::k8s::{Format, Names, ObjectKey, decode};

    use super::*;

    #[test]
    fn a_slice_that_was_the_api_servers_is_of_matter_when_it_goes_or_becomes_anothers() {
        let applied = |namespace: &str, service: &str| {
            let text = format!(
                r#"{{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {{"name": "any", "namespace": "{namespace}",
                    "labels": {{"kubernetes.io/service-name": "{service}"}}}},
                "endpoints": [{{"addresses": ["192.0.2.1"]}}]}}"#
            );
            let mut decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
            is_of_matter(&Event::Apply(decoded.objects.remove(0)))
        };
        let deleted = |name: &str| {
            let kind = ObjectKind::EndpointSlice;
            is_of_matter(&Event::Delete(ObjectKey { kind, name: name.into(), uid: "".into() }))
        };
        assert!(applied("default", "kubernetes") && applied("default", "web") && deleted("default/any"));
        assert!(!applied("shop", "kubernetes") && !deleted("shop/any"));
    }
}
