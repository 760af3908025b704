use std::sync::Arc;

use portway_datapath::Family;

use super::decode::{self, Kind};
use super::field::{List, Refusals, Shape, misfit};
use super::{Endpoint, EndpointSlice, Hints, Names, Object, ObjectKind, SlicePort, raw};

impl Kind for EndpointSlice {
    type Raw<'a> = raw::EndpointSlice<'a>;
    const KIND: ObjectKind = ObjectKind::EndpointSlice;
    const API_VERSION: &'static str = "discovery.k8s.io/v1";
    const SHAPE: Shape = Shape {
        lists: &[
            List { read_on: &[""], ..List::of(&["ports"], |v| misfit::<raw::SlicePort<'_>>(v)) },
            List { fields: &["hints"], ..List::of(&["endpoints"], |v| misfit::<raw::Endpoint<'_>>(v)) },
        ],
        fields: &["metadata.annotations", "metadata.creationTimestamp", "metadata.uid"],
        never_absent: None,
    };

    fn object(raw: raw::EndpointSlice<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Object> {
        slice(&raw, names, refusals).map(|slice| Object::EndpointSlice(slice.into()))
    }
}

fn slice(
    raw: &raw::EndpointSlice<'_>,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Option<EndpointSlice> {
    let metadata = raw.metadata.as_ref();
    let name = decode::namespaced_name(metadata, names, refusals)?;
    let family = family(raw, refusals)?;
    let labels = metadata.and_then(|m| m.labels.as_ref());
    let Some(service) = labels.and_then(|l| l.service_name.as_deref()).filter(|name| !name.is_empty()) else {
        refusals.push(
            "metadata.labels[kubernetes.io/service-name]",
            "",
            "is missing: nobody can tell whose endpoints these are",
        );
        return None;
    };
    let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
    let service = names.get(&format!("{namespace}/{service}"));
    Some(EndpointSlice {
        service,
        proxy_name: labels.and_then(|l| l.proxy_name.as_deref()).map(|name| names.get(name)),
        labelled_headless: labels.is_some_and(|l| l.headless.is_some()),
        family,
        ports: ports(raw, names, refusals),
        endpoints: endpoints(raw, family, names, refusals),
        name,
    })
}

fn family(raw: &raw::EndpointSlice<'_>, refusals: &mut Refusals<'_>) -> Option<Family> {
    match raw.address_type.as_deref() {
        Some("IPv4") => Some(Family::V4),
        Some("IPv6") => Some(Family::V6),
        other => {
            refusals.push(
                "addressType",
                other.unwrap_or(""),
                "is none of IPv4 and IPv6; the slice is left out",
            );
            None
        }
    }
}

fn ports(raw: &raw::EndpointSlice<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Box<[SlicePort]> {
    let mut ports = Vec::with_capacity(raw.ports.as_ref().map_or(0, Vec::len));
    for (n, port) in raw.ports.iter().flatten().enumerate() {
        let field = format!("ports[{n}]");
        match port {
            None => refusals.push_null(field),
            Some(port) => ports.extend(slice_port(&field, port, names, refusals)),
        }
    }
    ports.into()
}

fn slice_port(
    field: &str,
    raw: &raw::SlicePort<'_>,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Option<SlicePort> {
    // All of them before the first `?`: every bad one is named.
    let name = decode::port_name(field, raw.name.as_deref(), names, refusals);
    let protocol = decode::protocol(field, raw.protocol.as_deref(), refusals);
    let port = decode::port(|| format!("{field}.port"), raw.port, "port", refusals);
    if refusals.is_spoiled(field) {
        return None;
    }
    Some(SlicePort { name: name?, protocol: protocol?, port: port? })
}

fn endpoints(
    raw: &raw::EndpointSlice<'_>,
    family: Family,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Box<[Endpoint]> {
    let mut endpoints = Vec::with_capacity(raw.endpoints.as_ref().map_or(0, Vec::len));
    for (n, raw) in raw.endpoints.iter().flatten().enumerate() {
        match raw {
            None => refusals.push_null(format!("endpoints[{n}]")),
            Some(raw) => endpoints.extend(endpoint(n, raw, family, names, refusals)),
        }
    }
    endpoints.into()
}

fn endpoint(
    n: usize,
    raw: &raw::Endpoint<'_>,
    family: Family,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Option<Endpoint> {
    let field = || format!("endpoints[{n}].addresses[0]");
    let Some(text) = raw.addresses.as_ref().and_then(|a| a.first()).and_then(Option::as_deref) else {
        refusals.push(field(), "", "is missing; the endpoint is left out");
        return None;
    };
    let addr = decode::address(field, text, "endpoint", refusals)?;
    if addr.family() != family {
        let family = decode::family_name(family);
        refusals.push(
            field(),
            text,
            format!("is no {family} address, as addressType says; the endpoint is left out"),
        );
        return None;
    }
    let condition = |of: fn(&raw::Conditions) -> Option<bool>| raw.conditions.as_ref().and_then(of);
    Some(Endpoint {
        addr,
        node: raw.node_name.as_deref().map(|name| names.get(name)),
        hints: raw.hints.as_ref().and_then(|hints| self::hints(n, hints, names, refusals)),
        ready: condition(|c| c.ready).unwrap_or(true),
        serving: condition(|c| c.serving).unwrap_or(true),
        terminating: condition(|c| c.terminating).unwrap_or(false),
    })
}

fn hints(
    n: usize,
    raw: &raw::Hints<'_>,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Option<Box<Hints>> {
    let mut list = |what: &str, hints: &raw::List<raw::Hint<'_>>| -> Box<[Arc<str>]> {
        let mut named = Vec::new();
        for (m, hint) in hints.iter().flatten().enumerate() {
            match hint.as_ref().and_then(|hint| hint.name.as_deref()).filter(|name| !name.is_empty()) {
                Some(name) => named.push(names.get(name)),
                None => refusals.push(format!("endpoints[{n}].hints.{what}[{m}].name"), "", "is missing"),
            }
        }
        named.into()
    };
    let hints = Hints { zones: list("forZones", &raw.for_zones), nodes: list("forNodes", &raw.for_nodes) };
    (!hints.zones.is_empty() || !hints.nodes.is_empty()).then(|| Box::new(hints))
}
