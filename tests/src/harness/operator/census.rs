//! What must be true of objects at every moment: each change of them is looked at, in the order in which the API server
//! made them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portway_model::identity::CLAIM;
use serde_json::Value;

use crate::harness::cluster::ApiClient;
use crate::harness::{Beside, ControlPlane, Ending, eventually};

/// A watch that is quiet for so long is begun again where it was.
const PATIENCE: Duration = Duration::from_secs(1);

/// An endpoint that moves is added to a slice before another one is left by it: until then it is in both, at most for so
/// long. In that time a leader may be frozen, or killed, and another one begin.
const MOVE: Duration = Duration::from_secs(25);

/// A kind and what is wrong with its objects of one moment.
type Rule = (&'static str, fn(&Objects, &mut Memory) -> Result<Vec<String>>);
/// Since when endpoints are in several slices, and how long they may be.
struct Memory {
    since: BTreeMap<String, Instant>,
    limit: Duration,
}
/// By their names.
pub(super) type Objects = BTreeMap<String, Value>;

const RULES: [Rule; 3] = [
    ("/apis/cilium.io/v2/ciliumnodes", |nodes, _| overlapping_ranges(nodes)),
    ("/apis/cilium.io/v2/ciliumidentities", |identities, _| twins(identities)),
    ("/apis/cilium.io/v2alpha1/ciliumendpointslices", doubled_endpoints),
];

/// Looks at every version of all CiliumNodes, CiliumIdentities and CiliumEndpointSlices until its end.
#[derive(Debug)]
pub struct Census(Vec<Beside<Found>>);

/// What it has come to.
#[derive(Debug, Default)]
struct Found {
    changes: usize,
    wrong: Vec<String>,
}

impl Census {
    pub fn start(control_plane: &ControlPlane) -> Result<Self> {
        Self::through(control_plane, Duration::ZERO)
    }

    /// `outage`: what no operator can write in, at most.
    pub fn through(control_plane: &ControlPlane, outage: Duration) -> Result<Self> {
        let limit = MOVE + outage;
        let follow = |rule: Rule| {
            let client = control_plane.new_client()?;
            let memory = Memory { since: BTreeMap::new(), limit };
            Beside::start(format!("census of {}", rule.0), move |end| follow(&client, rule, memory, end))
        };
        RULES.into_iter().map(follow).collect::<Result<_>>().map(Self)
    }

    /// How many changes it has seen. Whatever was wrong at any moment is an error.
    pub fn end(self) -> Result<usize> {
        let (mut changes, mut wrong) = (0, Vec::new());
        for found in Beside::end_all(self.0)? {
            changes += found.changes;
            wrong.extend(found.wrong);
        }
        ensure!(wrong.is_empty(), "{} times in {changes} changes: {wrong:#?}", wrong.len());
        Ok(changes)
    }
}

fn follow(client: &ApiClient, (path, rule): Rule, mut memory: Memory, end: &Ending) -> Result<Found> {
    // An API server that has just begun may know the kind a moment later.
    let list = eventually(Duration::from_secs(20), &format!("a list of {path}"), || client.get(path))?;
    let mut version = text(&list, "/metadata/resourceVersion")?.to_owned();
    let mut objects = Objects::new();
    for object in list["items"].as_array().into_iter().flatten() {
        objects.insert(text(object, "/metadata/name")?.to_owned(), object.clone());
    }
    let mut found = Found { wrong: rule(&objects, &mut memory)?, ..Found::default() };
    loop {
        // Once more after it was told to end.
        let over = end.has_come();
        let watch = format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds=600");
        let Ok((lines, _)) = client.watch(&watch, PATIENCE) else {
            // The API server is away: it is asked again. Nothing changes meanwhile.
            if over {
                bail!("the watch of {path} cannot be begun again");
            }
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        for line in &lines {
            let event: Value = serde_json::from_str(line).with_context(|| format!("read {line}"))?;
            let (kind, object) = (text(&event, "/type")?, &event["object"]);
            ensure!(kind != "ERROR", "the watch of {path}: {object}");
            version = text(object, "/metadata/resourceVersion")?.to_owned();
            let name = text(object, "/metadata/name")?.to_owned();
            if kind == "DELETED" {
                objects.remove(&name);
            } else {
                objects.insert(name, object.clone());
            }
            found.changes += 1;
            let wrong = rule(&objects, &mut memory)?;
            found.wrong.extend(wrong.into_iter().map(|wrong| format!("at {version}: {wrong}")));
        }
        found.wrong.extend(rule(&objects, &mut memory)?);
        if over && lines.is_empty() {
            return Ok(found);
        }
    }
}

/// Nodes that have an address in common.
pub(super) fn overlapping_ranges(nodes: &Objects) -> Result<Vec<String>> {
    let mut ranges = Vec::new();
    for (name, node) in nodes {
        for range in node["spec"]["ipam"]["podCIDRs"].as_array().into_iter().flatten() {
            let range = range.as_str().context("a range that is no text")?;
            let (first, last) = ends(range)?;
            ranges.push((first, last, range, name));
        }
    }
    ranges.sort_unstable();
    let pairs = ranges.iter().zip(ranges.iter().skip(1));
    let overlap = pairs.filter(|((_, last, ..), (first, ..))| first <= last);
    Ok(overlap.map(|((.., a, node), (.., b, other))| format!("{node} has {a}, {other} has {b}")).collect())
}

/// The first and the last address of a prefix; of IPv4 as mapped ones.
fn ends(range: &str) -> Result<(u128, u128)> {
    let (addr, bits) = range.split_once('/').with_context(|| format!("{range} has no prefix"))?;
    let bits: u32 = bits.parse().with_context(|| format!("{range} has no prefix"))?;
    let (addr, host_bits) = match addr.parse().with_context(|| format!("{range} has no address"))? {
        std::net::IpAddr::V4(v4) => (u128::from(v4.to_ipv6_mapped()), 32_u32.checked_sub(bits)),
        std::net::IpAddr::V6(v6) => (u128::from(v6), 128_u32.checked_sub(bits)),
    };
    let host_bits = host_bits.with_context(|| format!("{range} has too long a prefix"))?;
    let hosts = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |count| count - 1);
    Ok((addr & !hosts, addr | hosts))
}

/// Label sets with two confirmed identities.
fn twins(identities: &Objects) -> Result<Vec<String>> {
    let mut by_labels: BTreeMap<String, &str> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (number, identity) in identities {
        if !identity["metadata"]["annotations"][CLAIM].is_null() {
            continue;
        }
        let labels = identity["security-labels"].to_string();
        if let Some(other) = by_labels.insert(labels.clone(), number) {
            wrong.push(format!("{other} and {number} are both of {labels}"));
        }
    }
    Ok(wrong)
}

/// Endpoints that stay in several slices, or are in one twice.
fn doubled_endpoints(slices: &Objects, memory: &mut Memory) -> Result<Vec<String>> {
    let mut seats: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, slice) in slices {
        let namespace = slice["namespace"].as_str().unwrap_or_default();
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            seats.entry(format!("{namespace}/{}", text(endpoint, "/name")?)).or_default().push(name);
        }
    }
    seats.retain(|_, slices| slices.len() > 1);
    memory.since.retain(|endpoint, _| seats.contains_key(endpoint));
    let mut wrong = Vec::new();
    for (endpoint, slices) in seats {
        let begin = *memory.since.entry(endpoint.clone()).or_insert_with(Instant::now);
        if slices.iter().zip(slices.iter().skip(1)).any(|(a, b)| a == b) {
            wrong.push(format!("{endpoint} is twice in one of {slices:?}"));
        } else if begin.elapsed() > memory.limit {
            wrong.push(format!("{endpoint} is in {slices:?} for {:?}", begin.elapsed()));
        }
    }
    Ok(wrong)
}

fn text<'a>(object: &'a Value, pointer: &str) -> Result<&'a str> {
    object.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer}: {object}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objects(all: &[(&str, Value)]) -> Objects {
        all.iter().map(|(name, object)| ((*name).to_owned(), object.clone())).collect()
    }

    #[test]
    fn ranges_that_overlap_are_found() {
        let node = |ranges: &[&str]| json!({"spec": {"ipam": {"podCIDRs": ranges}}});
        let apart =
            [("a", node(&["10.0.0.0/24", "fd00::/64"])), ("b", node(&["10.0.1.0/24"])), ("c", json!({}))];
        assert_eq!(overlapping_ranges(&objects(&apart)).unwrap(), Vec::<String>::new());
        for range in ["10.0.0.0/24", "10.0.0.128/25", "10.0.0.0/16", "fd00::/112"] {
            let mut all = apart.to_vec();
            all.push(("d", node(&[range])));
            assert!(!overlapping_ranges(&objects(&all)).unwrap().is_empty(), "{range}");
        }
    }

    #[test]
    fn only_confirmed_identities_are_twins() {
        let identity = |claim: Value| json!({"metadata": {"annotations": {CLAIM: claim}}, "security-labels": {"k8s:app": "web"}});
        let one = identity(Value::Null);
        let claimed = [("300", one.clone()), ("301", identity(json!("new")))];
        assert!(twins(&objects(&claimed)).unwrap().is_empty());
        assert_eq!(twins(&objects(&[("300", one.clone()), ("301", one)])).unwrap().len(), 1);
    }

    #[test]
    fn an_endpoint_on_its_way_to_another_slice_is_not_doubled_for_a_while() {
        let slice = |names: &[&str]| {
            let endpoints: Vec<_> = names.iter().map(|name| json!({"name": name, "id": 300})).collect();
            json!({"namespace": "shop", "endpoints": endpoints})
        };
        let mut memory = Memory { since: BTreeMap::new(), limit: MOVE };
        let both = objects(&[("a", slice(&["web-1"])), ("b", slice(&["web-1"]))]);
        assert!(doubled_endpoints(&both, &mut memory).unwrap().is_empty());
        memory.since.insert("shop/web-1".to_owned(), Instant::now() - MOVE * 2);
        assert_eq!(doubled_endpoints(&both, &mut memory).unwrap().len(), 1);
        let one = objects(&[("a", slice(&["web-1"]))]);
        assert!(doubled_endpoints(&one, &mut memory).unwrap().is_empty() && memory.since.is_empty());
        assert_eq!(doubled_endpoints(&objects(&[("a", slice(&["x", "x"]))]), &mut memory).unwrap().len(), 1);
    }
}
