//! One object: what kind it is, and its fields.

use portway_datapath::{Addr, Family, Port, Protocol};
use serde::Deserialize;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;

use super::document::{self, Head, Item, Said};
use super::field::{Refusals, Shape, mend, misfit};
use super::raw;
use super::{
    CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, CiliumNode, EndpointSlice, Format, ManifestError,
    Names, Namespace, Node, Object, ObjectKind, Pod, Reject, Service,
};

/// What a file has.
#[derive(Clone, Debug, Default)]
pub struct Decoded {
    /// In the order of the file. An object may be there twice.
    pub objects: Vec<Object>,
    pub rejects: Vec<Reject>,
}

/// Reads a file: several documents, lists (also `ServiceList` and the like, whose elements need no kind), and what
/// `kubectl get -o yaml` or `-o json` prints.
///
/// Fails only if the text is not YAML or JSON. O(file); 20,000 objects with 100,000 endpoints in 25 MB of JSON take
/// about a quarter of a second.
pub fn decode(bytes: &[u8], format: Format, names: &mut Names) -> Result<Decoded, ManifestError> {
    document::each(bytes, format, |items| {
        let mut decoded = Decoded::default();
        for item in items {
            decoded.objects.extend(object(&item, names, &mut decoded.rejects));
        }
        decoded
    })
}

/// A kind that Portway reads.
pub(super) trait Kind {
    type Raw<'a>: Deserialize<'a>;
    const KIND: ObjectKind;
    const API_VERSION: &'static str;
    const SHAPE: Shape;

    /// `None` if the object is refused.
    fn object(raw: Self::Raw<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Object>;
}

/// The object, unless it is refused or of a kind that is not read.
pub(super) fn object(item: &Item<'_>, names: &mut Names, rejects: &mut Vec<Reject>) -> Option<Object> {
    let (kind, api_version) = identify(item, rejects)?;
    of_the_kind(ObjectKind::named(kind)?, item.text, Some(api_version), names, rejects)
}

/// The object of a kind that is known, whatever it says itself where no `api_version` is given.
pub(super) fn of_the_kind(
    kind: ObjectKind,
    text: &str,
    api_version: Option<&str>,
    names: &mut Names,
    rejects: &mut Vec<Reject>,
) -> Option<Object> {
    let decode = match kind {
        ObjectKind::Service => of_kind::<Service>,
        ObjectKind::EndpointSlice => of_kind::<EndpointSlice>,
        ObjectKind::Pod => of_kind::<Pod>,
        ObjectKind::Namespace => of_kind::<Namespace>,
        ObjectKind::Node => of_kind::<Node>,
        ObjectKind::CiliumNode => of_kind::<CiliumNode>,
        ObjectKind::CiliumIdentity => of_kind::<CiliumIdentity>,
        ObjectKind::CiliumEndpoint => of_kind::<CiliumEndpoint>,
        ObjectKind::CiliumEndpointSlice => of_kind::<CiliumEndpointSlice>,
    };
    decode(text, api_version, names, rejects)
}

/// A CiliumIdentity as the API server writes it; as an element of a list it may lack its kind.
///
/// # Errors
/// What is wrong with it, field by field.
pub fn cilium_identity(text: &str) -> Result<Arc<CiliumIdentity>, Vec<Reject>> {
    let mut rejects = Vec::new();
    let object = of_kind::<CiliumIdentity>(text, None, &mut Names::default(), &mut rejects);
    object.and_then(Object::into_identity).ok_or(rejects)
}

fn identify<'i>(item: &'i Item<'_>, rejects: &mut Vec<Reject>) -> Option<(&'i str, &'i str)> {
    let Head { kind, api_version } = &item.head;
    let mut refuse = |field: &str, value: &str, reason: &str| {
        let said = match kind {
            Some(Said::Text(kind)) => kind.to_string(),
            Some(Said::Other(_)) | None => String::new(),
        };
        rejects.push(Reject {
            name: name_of(item.text, ObjectKind::named(&said).is_some_and(ObjectKind::is_namespaced)),
            kind: said,
            field: field.to_owned(),
            value: Reject::quote(value),
            reason: reason.to_owned(),
        });
    };
    if !item.text.starts_with('{') {
        refuse("", item.text, "is not an object with apiVersion, kind and metadata");
        return None;
    }
    let mut said = |value: &'i Option<Said<'_>>, field| match value {
        Some(Said::Text(text)) if !text.is_empty() => Some(text.as_ref()),
        Some(Said::Text(_)) => {
            refuse(field, "", "is empty: nobody can tell what this object is");
            None
        }
        Some(Said::Other(value)) => {
            refuse(field, value, "is not a string");
            None
        }
        None => {
            refuse(field, "", "is missing: nobody can tell what this object is");
            None
        }
    };
    Some((said(kind, "kind")?, said(api_version, "apiVersion")?))
}

/// `namespace/name` as far as it can be made out.
fn name_of(text: &str, namespaced: bool) -> String {
    let metadata = serde_json::from_str::<raw::Named<'_>>(text).ok().and_then(|named| named.metadata);
    let namespace = metadata.as_ref().and_then(|m| m.namespace.as_deref());
    let name = metadata.as_ref().and_then(|m| m.name.as_deref()).unwrap_or("");
    match namespace.or(namespaced.then_some("default")) {
        Some(namespace) if !name.is_empty() => format!("{namespace}/{name}"),
        Some(_) | None => name.to_owned(),
    }
}

fn of_kind<K: Kind>(
    text: &str,
    api_version: Option<&str>,
    names: &mut Names,
    rejects: &mut Vec<Reject>,
) -> Option<Object> {
    let mut refusals = Refusals::new(K::KIND.name(), rejects);
    if let Some(api_version) = api_version.filter(|version| *version != K::API_VERSION) {
        // Another group's kind of the same name (a Knative Service) is another kind.
        let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
        let ours = group(api_version).is_none() || group(api_version) == group(K::API_VERSION);
        if ours {
            refusals.name = name_of(text, K::KIND.is_namespaced());
            refusals.push("apiVersion", api_version, format!("is not read; {} is", K::API_VERSION));
        }
        return None;
    }
    let first = match serde_json::from_str::<K::Raw<'_>>(text) {
        Ok(raw) => return K::object(raw, names, &mut refusals),
        Err(error) => error,
    };
    let mut value = match serde_json::from_str::<Value>(text) {
        Ok(value) => value,
        Err(error) => {
            refusals.push("", "", error.to_string());
            return None;
        }
    };
    let part = |key| value.pointer(key).and_then(Value::as_str);
    let name = part("/metadata/name").unwrap_or("");
    refusals.name = if K::KIND.is_namespaced() {
        format!("{}/{name}", part("/metadata/namespace").unwrap_or("default"))
    } else {
        name.to_owned()
    };
    let whole = |value: &Value| misfit::<K::Raw<'_>>(value);
    if whole(&value).is_none() {
        // A key that is there twice: `Value` has the last one, as the API server's decoder would.
        refusals.push("", "", format!("{first}; the last one counts"));
    }
    if !mend(&mut value, &K::SHAPE, whole, &mut refusals) {
        return None;
    }
    match K::Raw::deserialize(&value) {
        Ok(raw) => K::object(raw, names, &mut refusals),
        Err(error) => {
            refusals.push("", "", error.to_string());
            None
        }
    }
}

/// `namespace/name` of an object, checked; it becomes the name of what is refused of it.
pub(super) fn namespaced_name(
    metadata: Option<&raw::Metadata<'_>>,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Option<Arc<str>> {
    let namespace =
        metadata.and_then(|m| m.namespace.as_deref()).filter(|n| !n.is_empty()).unwrap_or("default");
    let name = metadata.and_then(|m| m.name.as_deref()).unwrap_or("");
    refusals.name.clear();
    refusals.name.push_str(namespace);
    refusals.name.push('/');
    refusals.name.push_str(name);
    let longest_namespace = 63;
    check_name("metadata.namespace", namespace, longest_namespace, refusals)?;
    check_name("metadata.name", name, LONGEST_NAME, refusals)?;
    Some(names.get(&refusals.name))
}

/// The name of an object that is in no namespace, checked; it becomes the name of what is refused of it.
pub(super) fn own_name<'m>(
    metadata: Option<&'m raw::Metadata<'_>>,
    longest: usize,
    refusals: &mut Refusals<'_>,
) -> Option<&'m str> {
    let name = metadata.and_then(|m| m.name.as_deref()).unwrap_or("");
    refusals.name = name.to_owned();
    check_name("metadata.name", name, longest, refusals)?;
    Some(name)
}

/// Bytes of an object's name (Kubernetes: a DNS subdomain).
pub(super) const LONGEST_NAME: usize = 253;

/// Refuses what is no Kubernetes name: lower-case letters, digits, `-` and `.`.
pub(super) fn check_name(field: &str, name: &str, longest: usize, refusals: &mut Refusals<'_>) -> Option<()> {
    if name.is_empty() {
        refusals.push(field, "", "is missing");
        return None;
    }
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    if name.len() > longest || !name.bytes().all(allowed) {
        refusals.push(
            field,
            name,
            format!("is no name: it may have up to {longest} lower-case letters, digits, `-` and `.`"),
        );
        return None;
    }
    Some(())
}

/// `metadata.creationTimestamp`.
pub(super) fn created(metadata: Option<&raw::Metadata<'_>>, refusals: &mut Refusals<'_>) -> Option<i64> {
    let text = metadata?.creation_timestamp.as_deref()?;
    let seconds = super::time::parse(text);
    if seconds.is_none() {
        refusals.push(
            "metadata.creationTimestamp",
            text,
            "is no RFC 3339 time such as 2026-11-30T02:15:46Z; the object counts as created when it was first seen",
        );
    }
    seconds
}

/// Bytes of a port's name.
const LONGEST_PORT_NAME: usize = 63;

/// A port's name; "" where it has none.
pub(super) fn port_name(
    field: &str,
    name: Option<&str>,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Option<Arc<str>> {
    let name = name.unwrap_or("");
    if name.len() > LONGEST_PORT_NAME {
        refusals.push(
            format!("{field}.name"),
            name,
            format!("is longer than {LONGEST_PORT_NAME} bytes; the port is left out"),
        );
        return None;
    }
    Some(names.get(name))
}

/// A protocol; TCP where none is said.
pub(super) fn protocol(field: &str, text: Option<&str>, refusals: &mut Refusals<'_>) -> Option<Protocol> {
    match text {
        None | Some("TCP") => Some(Protocol::TCP),
        Some("UDP") => Some(Protocol::UDP),
        Some("SCTP") => Some(Protocol::SCTP),
        Some(other) => {
            refusals.push(
                format!("{field}.protocol"),
                other,
                "is none of TCP, UDP and SCTP; the port is left out",
            );
            None
        }
    }
}

/// A port number; `what` says what is left out if it is none.
pub(super) fn port(
    field: impl FnOnce() -> String,
    number: Option<i64>,
    what: &str,
    refusals: &mut Refusals<'_>,
) -> Option<Port> {
    let Some(number) = number else {
        refusals.push_missing(field(), format!("is missing; the {what} is left out"));
        return None;
    };
    match u16::try_from(number) {
        Ok(port) if port != 0 => Some(Port::new(port)),
        Ok(_) | Err(_) => {
            refusals.push(
                field(),
                &number.to_string(),
                format!("is not in 1 to 65535; the {what} is left out"),
            );
            None
        }
    }
}

/// An address that packets can be sent to.
pub(super) fn address(
    field: impl FnOnce() -> String,
    text: &str,
    what: &str,
    refusals: &mut Refusals<'_>,
) -> Option<Addr> {
    let Ok(ip) = text.parse::<IpAddr>() else {
        refusals.push(field(), text, format!("is no IP address; the {what} is left out"));
        return None;
    };
    let addr = Addr::from(ip);
    let ip = IpAddr::from(addr);
    let problem = if ip.is_unspecified() {
        "is the unspecified address"
    } else if addr.is_loopback() {
        "is a loopback address"
    } else if ip.is_multicast() || ip == IpAddr::from([255; 4]) {
        "is a multicast or broadcast address"
    } else {
        return Some(addr);
    };
    refusals.push(field(), text, format!("{problem}; the {what} is left out"));
    None
}

/// `IPv4` or `IPv6`.
pub(super) const fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

#[cfg(test)]
mod tests;
