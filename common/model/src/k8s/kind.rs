/// The kinds that Portway reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    Service,
    EndpointSlice,
    Pod,
    Namespace,
    Node,
    CiliumNode,
    CiliumIdentity,
    CiliumEndpoint,
    CiliumEndpointSlice,
}

impl ObjectKind {
    const ALL: [Self; 9] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Pod,
        Self::Namespace,
        Self::Node,
        Self::CiliumNode,
        Self::CiliumIdentity,
        Self::CiliumEndpoint,
        Self::CiliumEndpointSlice,
    ];

    /// Whether objects of the kind are in a namespace.
    pub const fn is_namespaced(self) -> bool {
        match self {
            Self::Service | Self::EndpointSlice | Self::Pod | Self::CiliumEndpoint => true,
            Self::Namespace
            | Self::Node
            | Self::CiliumNode
            | Self::CiliumIdentity
            | Self::CiliumEndpointSlice => false,
        }
    }

    /// As `kind:` says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Pod => "Pod",
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::CiliumNode => "CiliumNode",
            Self::CiliumIdentity => "CiliumIdentity",
            Self::CiliumEndpoint => "CiliumEndpoint",
            Self::CiliumEndpointSlice => "CiliumEndpointSlice",
        }
    }

    /// The kind of a [`Self::name`].
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
