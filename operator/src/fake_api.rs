//! An API server of unit tests: objects with UIDs and versions, writes with their preconditions, and watches that lag.

use std::collections::BTreeMap;

use portway_model::k8s::time_of;
use portway_runtime::kubernetes::WatchEvent;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::observed::{Kind, Observed};
use crate::write::{Change, Outcome, Patch, Write};

/// 2026-01-01, seconds since 1970: when [`FakeApi::clock`] began.
pub(crate) const DAY: u64 = 1_767_225_600;

/// What the API server holds, and all that has happened.
#[derive(Default)]
pub(crate) struct FakeApi {
    objects: BTreeMap<(Kind, String), Value>,
    log: Vec<Happened>,
    /// The version of the newest change; every kind shares it, as in etcd.
    revision: u64,
    uids: u64,
    /// Seconds since [`DAY`], for what is created from now on.
    pub(crate) clock: i64,
}

struct Happened {
    kind: Kind,
    version: u64,
    object: Value,
    is_gone: bool,
}

impl FakeApi {
    pub(crate) fn get(&self, kind: Kind, object: &str) -> Option<&Value> {
        self.objects.get(&(kind, object.to_owned()))
    }

    /// All objects of a kind, in the order of their names.
    pub(crate) fn all(&self, kind: Kind) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((of, _), _)| *of == kind).map(|(_, object)| object)
    }

    /// Somebody creates an object, or changes it as a merge patch says, its status too.
    pub(crate) fn put(&mut self, kind: Kind, object: &str, fields: Value) {
        let mut next = self.get(kind, object).cloned().unwrap_or_else(|| self.new_object(object));
        merge(&mut next, &fields);
        self.store(kind, object, next);
    }

    /// Somebody deletes an object, if it is there.
    pub(crate) fn remove(&mut self, kind: Kind, object: &str) {
        if let Some(gone) = self.objects.remove(&(kind, object.to_owned())) {
            self.revision += 1;
            self.log.push(Happened { kind, version: self.revision, object: gone, is_gone: true });
        }
    }

    /// A write of the operator, as the API server takes it.
    pub(crate) fn write(&mut self, write: &Write) -> Outcome {
        let Write { kind, object, change, .. } = write;
        let is_meant = |seen: &Value, uid: &str, version: Option<u64>| {
            let of = &seen["metadata"];
            of["uid"] == uid
                && version.is_none_or(|version| of["resourceVersion"].as_str() == Some(&*version.to_string()))
        };
        match change {
            Change::Create(_) if self.get(*kind, object).is_some() => return Outcome::Late,
            Change::Create(body) => {
                let mut next = self.new_object(object);
                merge(&mut next, body);
                self.store(*kind, object, next);
            }
            Change::Patch { patch, subresource, body } => {
                let metadata = &body["metadata"];
                let version = metadata["resourceVersion"].as_str().map(|text| text.parse().unwrap());
                let Some(seen) = self.get(*kind, object) else { return Outcome::Late };
                if !is_meant(seen, metadata["uid"].as_str().unwrap(), version) {
                    return Outcome::Late;
                }
                let mut body = body.clone();
                body["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .retain(|key, _| !["uid", "resourceVersion"].contains(&&**key));
                // What is of the other half is passed over.
                match subresource {
                    Some(name) => body = json!({*name: body[*name]}),
                    None => drop(body.as_object_mut().unwrap().remove("status")),
                }
                if *patch == Patch::Strategic {
                    merge_conditions(seen, &mut body);
                }
                let mut next = seen.clone();
                merge(&mut next, &body);
                self.store(*kind, object, next);
            }
            Change::Delete { uid, version } => {
                match self.get(*kind, object) {
                    Some(seen) if is_meant(seen, uid, Some(*version)) => {}
                    Some(_) | None => return Outcome::Late,
                }
                self.remove(*kind, object);
                return Outcome::Done { version: 0 };
            }
        }
        let version =
            self.get(*kind, object).unwrap()["metadata"]["resourceVersion"].as_str().unwrap().parse();
        Outcome::Done { version: version.unwrap() }
    }

    fn new_object(&mut self, object: &str) -> Value {
        self.uids += 1;
        let (namespace, name) = object.split_once('/').unwrap_or(("", object));
        let mut metadata =
            json!({"name": name, "uid": format!("uid-{}", self.uids), "creationTimestamp": time(self.clock)});
        if !namespace.is_empty() {
            metadata["namespace"] = json!(namespace);
        }
        json!({"metadata": metadata})
    }

    fn store(&mut self, kind: Kind, object: &str, mut next: Value) {
        let key = (kind, object.to_owned());
        if self.objects.get(&key) == Some(&next) {
            return;
        }
        self.revision += 1;
        next["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.log.push(Happened { kind, version: self.revision, object: next.clone(), is_gone: false });
        self.objects.insert(key, next);
    }
}

/// What one operator knows.
pub(crate) struct Replica {
    pub(crate) observed: Observed,
    /// How much of the log each kind's watch has told.
    told: BTreeMap<Kind, usize>,
}

impl Replica {
    /// It lists everything.
    pub(crate) fn new(api: &FakeApi) -> Self {
        let mut observed = Observed::fresh();
        for kind in Kind::ALL {
            observed.take(kind, WatchEvent::ListBegins);
            observed.take(kind, WatchEvent::Listed(api.all(kind).map(raw).collect()));
            observed.take(kind, WatchEvent::ListEnds { version: api.revision });
        }
        Self { observed, told: Kind::ALL.map(|kind| (kind, api.log.len())).into() }
    }

    /// Its watch of a kind tells what happened next, at most `count` changes of any kind.
    pub(crate) fn follow(&mut self, api: &FakeApi, kind: Kind, count: usize) {
        let from = self.told.get(&kind).copied().unwrap_or(0);
        let to = from.saturating_add(count).min(api.log.len());
        for Happened { version, object, is_gone, .. } in api.log[from..to].iter().filter(|of| of.kind == kind)
        {
            let (object, version) = (raw(object), *version);
            self.observed.take(
                kind,
                if *is_gone {
                    WatchEvent::Deleted { object, version }
                } else {
                    WatchEvent::Applied { object, version }
                },
            );
        }
        self.told.insert(kind, to);
    }

    /// All of its watches tell everything.
    pub(crate) fn catch_up(&mut self, api: &FakeApi) {
        for kind in Kind::ALL {
            self.follow(api, kind, usize::MAX);
        }
    }
}

/// The same numbers each time.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Below `sides`. SplitMix64.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % u64::try_from(sides).unwrap()).unwrap()
    }
}

fn raw(object: &Value) -> Box<RawValue> {
    RawValue::from_string(object.to_string()).unwrap()
}

/// RFC 7396.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let fields = into.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// The one list that a strategic patch of ours merges: `status.conditions`, by their types.
fn merge_conditions(seen: &Value, body: &mut Value) {
    let Some(new) = body.pointer("/status/conditions").and_then(Value::as_array).cloned() else { return };
    let mut conditions =
        seen.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    for condition in new {
        conditions.retain(|old| old["type"] != condition["type"]);
        conditions.push(condition);
    }
    body["status"]["conditions"] = json!(conditions);
}

fn time(clock: i64) -> String {
    time_of(i64::try_from(DAY).unwrap() + clock)
}
