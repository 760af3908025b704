//! What the owner of the objects tells the thread of identities.

use portway_model::k8s::{Event, Object, ObjectKind};

/// The Service whose endpoints are the API server.
const API_SERVER: &str = "default/kubernetes";

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
            Object::EndpointSlice(slice) => &*slice.service == API_SERVER,
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
            // Which Service it was of is not said.
            ObjectKind::EndpointSlice => key.name.starts_with(API_SERVER),
            ObjectKind::Service => false,
        },
    }
}
