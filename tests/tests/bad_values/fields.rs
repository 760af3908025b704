//! Every field that is read, and what must not be in it.

use serde_json::{Value, json};

/// What a field holds, which says what is bad for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Address,
    /// 1 to 65535.
    Port,
    /// 1 to 65535, or 0 for none.
    OptionalPort,
    /// `10.0.0.0/8`.
    Prefix,
    /// 1 to 86400.
    Seconds,
    /// One of a closed set of words.
    Word,
    /// Any string of reasonable length.
    Text,
    /// A name of an object.
    Name,
    /// A name of a port.
    PortName,
    Bool,
    List,
    Map,
    Time,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) object: &'static str,
    /// JSON pointer into the object.
    pub(crate) pointer: &'static str,
    pub(crate) shape: Shape,
    /// Without it the object means nothing: absence and null are bad too.
    pub(crate) required: bool,
}

const fn field(object: &'static str, pointer: &'static str, shape: Shape, required: bool) -> Field {
    Field { object, pointer, shape, required }
}

use Shape::{
    Address, Bool, List, Map, Name, OptionalPort, Port, PortName, Prefix, Seconds, Text, Time, Word,
};

pub(crate) const FIELDS: &[Field] = &[
    field("service", "/metadata", Map, true),
    field("service", "/metadata/name", Name, true),
    field("service", "/metadata/namespace", Name, false),
    field("service", "/metadata/labels", Map, false),
    field("service", "/metadata/creationTimestamp", Time, false),
    field("service", "/spec", Map, false),
    field("service", "/spec/type", Word, false),
    field("one-address service", "/spec/clusterIP", Address, false),
    field("service", "/spec/clusterIPs", List, false),
    field("service", "/spec/clusterIPs/0", Address, true),
    field("service", "/spec/clusterIPs/1", Address, true),
    field("service", "/spec/externalIPs", List, false),
    field("service", "/spec/externalIPs/0", Address, true),
    field("service", "/spec/externalIPs/1", Address, true),
    field("service", "/spec/internalTrafficPolicy", Word, false),
    field("service", "/spec/externalTrafficPolicy", Word, false),
    field("service", "/spec/sessionAffinity", Word, false),
    field("service", "/spec/sessionAffinityConfig", Map, false),
    field("service", "/spec/sessionAffinityConfig/clientIP", Map, false),
    field("service", "/spec/sessionAffinityConfig/clientIP/timeoutSeconds", Seconds, false),
    field("service", "/spec/loadBalancerSourceRanges", List, false),
    field("service", "/spec/loadBalancerSourceRanges/0", Prefix, true),
    field("service", "/spec/loadBalancerSourceRanges/1", Prefix, true),
    field("service", "/spec/ports", List, false),
    field("service", "/spec/ports/0", Map, true),
    field("service", "/spec/ports/0/name", PortName, false),
    field("service", "/spec/ports/0/port", Port, true),
    field("service", "/spec/ports/0/protocol", Word, false),
    field("service", "/spec/ports/0/nodePort", OptionalPort, false),
    field("service", "/spec/ports/1/port", Port, true),
    field("service", "/status", Map, false),
    field("service", "/status/loadBalancer", Map, false),
    field("service", "/status/loadBalancer/ingress", List, false),
    field("service", "/status/loadBalancer/ingress/0", Map, true),
    field("service", "/status/loadBalancer/ingress/0/ip", Address, false),
    field("service", "/status/loadBalancer/ingress/0/ipMode", Word, false),
    field("slice", "/metadata", Map, true),
    field("slice", "/metadata/name", Name, true),
    field("slice", "/metadata/namespace", Name, false),
    field("slice", "/metadata/labels", Map, false),
    field("slice", "/metadata/labels/kubernetes.io~1service-name", Text, false),
    field("slice", "/addressType", Word, true),
    field("slice", "/ports", List, false),
    field("slice", "/ports/0", Map, true),
    field("slice", "/ports/0/name", PortName, false),
    field("slice", "/ports/0/port", Port, false),
    field("slice", "/ports/0/protocol", Word, false),
    field("slice", "/endpoints", List, false),
    field("slice", "/endpoints/0", Map, true),
    field("slice", "/endpoints/0/addresses", List, true),
    field("slice", "/endpoints/0/addresses/0", Address, true),
    field("slice", "/endpoints/1/addresses/0", Address, true),
    field("slice", "/endpoints/0/conditions", Map, false),
    field("slice", "/endpoints/0/conditions/ready", Bool, false),
    field("slice", "/endpoints/0/conditions/serving", Bool, false),
    field("slice", "/endpoints/0/conditions/terminating", Bool, false),
    field("slice", "/endpoints/0/nodeName", Text, false),
    field("slice", "/endpoints/0/hints", Map, false),
    field("slice", "/endpoints/0/hints/forZones", List, false),
    field("slice", "/endpoints/0/hints/forZones/0", Map, true),
    field("slice", "/endpoints/0/hints/forZones/0/name", Text, true),
    field("slice", "/endpoints/0/hints/forNodes", List, false),
    field("slice", "/endpoints/0/hints/forNodes/0", Map, true),
    field("slice", "/endpoints/0/hints/forNodes/0/name", Text, true),
    field("pod", "/metadata", Map, true),
    field("pod", "/metadata/name", Name, true),
    field("pod", "/metadata/uid", Text, false),
    field("pod", "/metadata/creationTimestamp", Time, false),
    field("pod", "/spec", Map, false),
    field("pod", "/spec/nodeName", Text, false),
    field("pod", "/spec/hostNetwork", Bool, false),
    field("pod", "/spec/containers", List, false),
    field("pod", "/spec/containers/0", Map, true),
    field("pod", "/spec/containers/0/ports", List, false),
    field("pod", "/spec/containers/0/ports/0", Map, true),
    field("pod", "/spec/containers/0/ports/0/containerPort", Port, true),
    field("pod", "/spec/containers/0/ports/0/hostPort", OptionalPort, false),
    field("pod", "/spec/containers/0/ports/0/hostIP", Address, false),
    field("pod", "/spec/containers/0/ports/0/protocol", Word, false),
    field("pod", "/spec/containers/0/ports/0/name", PortName, false),
    field("pod", "/status", Map, false),
    field("pod", "/status/phase", Text, false),
    field("one-address pod", "/status/podIP", Address, false),
    field("pod", "/status/podIPs", List, false),
    field("pod", "/status/podIPs/0", Map, true),
    field("pod", "/status/podIPs/0/ip", Address, true),
    field("node", "/metadata/name", Name, true),
    field("node", "/metadata/labels", Map, false),
    field("node", "/metadata/labels/topology.kubernetes.io~1zone", Text, false),
];

/// A value and what it is called in a report.
#[derive(Clone, Debug)]
pub(crate) struct Bad {
    pub(crate) what: &'static str,
    /// `None` takes the field away.
    pub(crate) value: Option<Value>,
}

/// What must be refused in `field`, which holds `good`.
pub(crate) fn bad_values(field: &Field, good: &Value) -> Vec<Bad> {
    let mut bad: Vec<(&'static str, Value)> = vec![];
    let strings = [("empty", json!("")), ("huge string", json!("x".repeat(100_000)))];
    let wrong_for_text = [
        ("number for text", json!(7)),
        ("bool for text", json!(true)),
        ("list for text", json!([])),
        ("map for text", json!({})),
    ];
    let wrong_for_number = [
        ("text for number", json!("80")),
        ("bool for number", json!(true)),
        ("list for number", json!([80])),
        ("map for number", json!({"a": 1})),
        ("fraction", json!(1.5)),
        ("negative", json!(-1)),
        ("64 bits", json!(9_223_372_036_854_775_807_i64)),
        ("past 64 bits", json!(1e30)),
    ];
    match field.shape {
        Address => {
            bad.extend(wrong_for_text);
            bad.push(("huge string", json!("1".repeat(100_000))));
            for (what, ip) in [
                ("three octets", "10.0.0"),
                ("octet 256", "10.0.0.256"),
                ("hostname", "not-an-ip"),
                ("bad IPv6", "fd00::zz"),
                ("prefix for address", "10.0.0.1/24"),
                ("leading blank", " 10.0.0.1"),
                ("scope", "fe80::1%eth0"),
                ("NUL", "10.0.0.1\u{0}"),
            ] {
                bad.push((what, json!(ip)));
            }
        }
        Port | OptionalPort => {
            bad.extend(wrong_for_number);
            bad.push(("65536", json!(65_536)));
            bad.push(("16 bits of it would do", json!(65_536 + 80)));
            if field.shape == Port {
                bad.push(("zero", json!(0)));
            }
        }
        Seconds => {
            bad.extend(wrong_for_number);
            bad.push(("zero", json!(0)));
            bad.push(("86401", json!(86_401)));
        }
        Prefix => {
            bad.extend(wrong_for_text);
            bad.extend(strings);
            for (what, range) in [
                ("no length", "10.0.0.0"),
                ("33 bits", "10.0.0.0/33"),
                ("129 bits", "fd00::/129"),
                ("negative bits", "10.0.0.0/-1"),
                ("mask", "10.0.0.0/255.0.0.0"),
                ("words", "everyone"),
                ("only a slash", "/"),
                ("no address", "/8"),
            ] {
                bad.push((what, json!(range)));
            }
        }
        Word => {
            bad.extend(wrong_for_text);
            bad.push(("unknown word", json!("Sideways")));
            bad.push(("known word in small letters", json!("tcp")));
            bad.push(("huge string", json!("x".repeat(100_000))));
        }
        Text => bad.extend(wrong_for_text),
        Name | PortName => {
            bad.extend(wrong_for_text);
            bad.push(("huge string", json!("x".repeat(100_000))));
            if field.shape == Name {
                bad.push(("slash", json!("a/b")));
            }
        }
        Time => {
            bad.extend(wrong_for_text);
            bad.push(("words", json!("yesterday")));
            bad.push(("day 32", json!("2026-01-32T00:00:00Z")));
            bad.push(("no zone", json!("2026-01-02T00:00:00")));
        }
        Bool => {
            bad.extend([("text for bool", json!("true")), ("number for bool", json!(1))]);
            bad.extend([("list for bool", json!([])), ("map for bool", json!({}))]);
        }
        List => {
            bad.extend([("map for list", json!({"a": 1})), ("text for list", json!("a"))]);
            bad.extend([("number for list", json!(7)), ("bool for list", json!(false))]);
            bad.push(("list of lists", json!([[[]]])));
        }
        Map => {
            bad.extend([("text for map", json!("a")), ("number for map", json!(7))]);
            bad.extend([("list for map", json!([1])), ("bool for map", json!(true))]);
            let values = good.as_object().into_iter().flat_map(|map| map.values().cloned()).collect();
            bad.push(("values without keys", Value::Array(values)));
        }
    }
    if field.required {
        bad.push(("null", Value::Null));
    }
    let mut all: Vec<Bad> = bad.into_iter().map(|(what, value)| Bad { what, value: Some(value) }).collect();
    let is_element = field.pointer.rsplit('/').next().is_some_and(|last| last.parse::<usize>().is_ok());
    if field.required && !is_element {
        all.push(Bad { what: "missing", value: None });
    }
    all
}
