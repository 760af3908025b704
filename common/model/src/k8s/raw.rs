//! The objects as they are written, as far as they are read. Every field may be absent, and an element of a list may
//! be null: `field` puts null where it takes an unusable value out.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

mod cilium;
mod labels;
mod node;

pub(super) use cilium::{
    AddressPair, CiliumEndpoint, CiliumEndpointNetworking, CiliumEndpointSlice, CiliumIdentity,
    CiliumMetadata, CoreEndpoint,
};
pub(super) use labels::{AllLabels, LabelValue, LabelledMetadata, Namespace};
pub(super) use node::{CiliumNode, CiliumNodeHealth, Node, NodeAddress, Taint};

/// A string that is borrowed from the text unless it has escapes; serde's own `Cow` is borrowed only where it
/// stands directly in a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text<'a>(Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<Text<'a>> for Cow<'a, str> {
    fn from(text: Text<'a>) -> Self {
        text.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

/// A list whose unusable elements are null.
pub(super) type List<T> = Option<Vec<Option<T>>>;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct Metadata<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) namespace: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) uid: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) creation_timestamp: Option<Text<'a>>,
    /// Whether it is there is all that counts.
    pub(super) deletion_timestamp: Option<IgnoredAny>,
    #[serde(borrow)]
    pub(super) labels: Option<Labels<'a>>,
    #[serde(borrow)]
    pub(super) annotations: Option<Annotations<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct Annotations<'a> {
    #[serde(borrow, rename = "portway.io/keep-stale-sockets")]
    pub(super) keep_stale_sockets: Option<Text<'a>>,
    #[serde(borrow, rename = "portway.io/socket-lb")]
    pub(super) socket_lb: Option<Text<'a>>,
    #[serde(borrow, rename = "kubernetes.io/config.mirror")]
    pub(super) mirror: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct Labels<'a> {
    #[serde(borrow, rename = "service.kubernetes.io/service-proxy-name")]
    pub(super) proxy_name: Option<Text<'a>>,
    #[serde(borrow, rename = "service.kubernetes.io/headless")]
    pub(super) headless: Option<Text<'a>>,
    #[serde(borrow, rename = "kubernetes.io/service-name")]
    pub(super) service_name: Option<Text<'a>>,
    #[serde(borrow, rename = "topology.kubernetes.io/zone")]
    pub(super) zone: Option<Text<'a>>,
}

/// Only what names an object, for one that says no kind.
#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct Named<'a> {
    #[serde(borrow)]
    pub(super) metadata: Option<Metadata<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct Service<'a> {
    #[serde(borrow)]
    pub(super) metadata: Option<Metadata<'a>>,
    #[serde(borrow)]
    pub(super) spec: Option<ServiceSpec<'a>>,
    #[serde(borrow)]
    pub(super) status: Option<ServiceStatus<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct ServiceSpec<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) service_type: Option<Text<'a>>,
    #[serde(borrow, rename = "clusterIP")]
    pub(super) cluster_ip: Option<Text<'a>>,
    #[serde(borrow, rename = "clusterIPs")]
    pub(super) cluster_ips: List<Text<'a>>,
    #[serde(borrow)]
    pub(super) ports: List<ServicePort<'a>>,
    #[serde(borrow, rename = "externalIPs")]
    pub(super) external_ips: List<Text<'a>>,
    #[serde(borrow)]
    pub(super) load_balancer_source_ranges: List<Text<'a>>,
    #[serde(borrow)]
    pub(super) session_affinity: Option<Text<'a>>,
    pub(super) session_affinity_config: Option<AffinityConfig>,
    #[serde(borrow)]
    pub(super) internal_traffic_policy: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) external_traffic_policy: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct ServicePort<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) protocol: Option<Text<'a>>,
    pub(super) port: Option<i64>,
    pub(super) node_port: Option<i64>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct AffinityConfig {
    #[serde(rename = "clientIP")]
    pub(super) client_ip: Option<ClientIpConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct ClientIpConfig {
    pub(super) timeout_seconds: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct ServiceStatus<'a> {
    #[serde(borrow)]
    pub(super) load_balancer: Option<LoadBalancerStatus<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct LoadBalancerStatus<'a> {
    #[serde(borrow)]
    pub(super) ingress: List<Ingress<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct Ingress<'a> {
    #[serde(borrow)]
    pub(super) ip: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) ip_mode: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct EndpointSlice<'a> {
    #[serde(borrow)]
    pub(super) metadata: Option<Metadata<'a>>,
    #[serde(borrow)]
    pub(super) address_type: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) ports: List<SlicePort<'a>>,
    #[serde(borrow)]
    pub(super) endpoints: List<Endpoint<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct SlicePort<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) protocol: Option<Text<'a>>,
    pub(super) port: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct Endpoint<'a> {
    #[serde(borrow)]
    pub(super) addresses: List<Text<'a>>,
    pub(super) conditions: Option<Conditions>,
    #[serde(borrow)]
    pub(super) node_name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) hints: Option<Hints<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct Conditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct Hints<'a> {
    #[serde(borrow)]
    pub(super) for_zones: List<Hint<'a>>,
    #[serde(borrow)]
    pub(super) for_nodes: List<Hint<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct Hint<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct Pod<'a> {
    #[serde(borrow)]
    pub(super) metadata: Option<LabelledMetadata<'a>>,
    #[serde(borrow)]
    pub(super) spec: Option<PodSpec<'a>>,
    #[serde(borrow)]
    pub(super) status: Option<PodStatus<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct PodSpec<'a> {
    #[serde(borrow)]
    pub(super) node_name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) service_account_name: Option<Text<'a>>,
    pub(super) host_network: Option<bool>,
    #[serde(borrow)]
    pub(super) containers: List<Container<'a>>,
    #[serde(borrow)]
    pub(super) init_containers: List<Container<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct Container<'a> {
    #[serde(borrow)]
    pub(super) restart_policy: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) ports: List<ContainerPort<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct ContainerPort<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) protocol: Option<Text<'a>>,
    pub(super) container_port: Option<i64>,
    pub(super) host_port: Option<i64>,
    #[serde(borrow, rename = "hostIP")]
    pub(super) host_ip: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(super) struct PodStatus<'a> {
    #[serde(borrow)]
    pub(super) phase: Option<Text<'a>>,
    #[serde(borrow, rename = "podIP")]
    pub(super) pod_ip: Option<Text<'a>>,
    #[serde(borrow, rename = "podIPs")]
    pub(super) pod_ips: List<PodIp<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(super) struct PodIp<'a> {
    #[serde(borrow)]
    pub(super) ip: Option<Text<'a>>,
}

/// Gives a struct that derives with `remote = "Self"` its `Deserialize`: from an object alone. Serde's own also takes a
/// list of the values, without their keys.
macro_rules! only_from_objects {
    ($($name:ident $(<$lifetime:lifetime>)?),* $(,)?) => {$(
        impl<'de $(: $lifetime, $lifetime)?> Deserialize<'de> for $name $(<$lifetime>)? {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::deserialize(OnlyObjects(deserializer))
            }
        }
    )*};
}

use only_from_objects;

only_from_objects! {
    AffinityConfig, ClientIpConfig, Conditions, Metadata<'a>, Labels<'a>, Annotations<'a>, Named<'a>, Service<'a>, ServiceSpec<'a>, ServicePort<'a>, ServiceStatus<'a>, LoadBalancerStatus<'a>, Ingress<'a>, EndpointSlice<'a>, SlicePort<'a>, Endpoint<'a>, Hints<'a>, Hint<'a>, Pod<'a>, PodSpec<'a>, Container<'a>, ContainerPort<'a>, PodStatus<'a>, PodIp<'a>
}

struct OnlyObjects<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for OnlyObjects<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(ObjectVisitor(visitor))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct ObjectVisitor<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for ObjectVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(map)
    }
}
