//! An API server in memory: CiliumEndpoints, CiliumEndpointSlices and preconditions of writes.

use std::collections::{BTreeMap, BTreeSet};

use portway_model::crd::CoreCiliumEndpoint;
use serde_json::{Value, json};

use crate::observed::{Kind, Observed};
use crate::slices::plan::{Filling, Planned, plan};
use crate::write::{Change, Outcome, Write};

/// The same numbers for the same seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Default)]
pub(super) struct Api {
    version: u64,
    pub(super) namespaces: BTreeMap<String, Value>,
    pub(super) endpoints: BTreeMap<String, Value>,
    pub(super) slices: BTreeMap<String, Value>,
}

impl Api {
    pub(super) fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// A new CiliumEndpoint, in place of one that had the name.
    pub(super) fn make(&mut self, name: &str, identity: u32, address: &str) {
        let (namespace, pod) = name.split_once('/').unwrap();
        let version = self.next();
        let created =
            format!("2026-11-30T{:02}:{:02}:{:02}Z", version / 3600, version / 60 % 60, version % 60);
        let object = json!({
            "metadata": {
                "name": pod, "namespace": namespace, "uid": format!("uid-{version}"),
                "resourceVersion": version.to_string(), "creationTimestamp": created,
            },
            "status": {
                "identity": {"id": identity},
                "networking": {"addressing": [{"ipv4": address}], "node": "192.0.2.1"},
                "named-ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                "service-account": "default",
            },
        });
        self.endpoints.insert(name.to_owned(), object);
    }

    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let version = self.next();
        let Some(object) = self.endpoints.get_mut(name) else { return };
        change(&mut object["status"]);
        object["metadata"]["resourceVersion"] = Value::from(version.to_string());
    }

    /// A slice as somebody else has written it.
    pub(super) fn put_slice(&mut self, name: &str, namespace: &str, endpoints: Vec<Value>) {
        let version = self.next();
        let metadata =
            json!({"name": name, "uid": format!("uid-{version}"), "resourceVersion": version.to_string()});
        let slice = json!({"metadata": metadata, "namespace": namespace, "endpoints": endpoints});
        self.slices.insert(name.to_owned(), slice);
    }

    pub(super) fn write(&mut self, write: &Write) -> Outcome {
        assert_eq!(write.kind, Kind::CiliumEndpointSlice);
        let version = self.next();
        let found = self.slices.get_mut(&write.object);
        match (&write.change, found) {
            (Change::Create(_), Some(_)) => Outcome::Late,
            (Change::Create(body), None) => {
                let mut slice = body.clone();
                slice["metadata"]["uid"] = Value::from(format!("uid-{version}"));
                slice["metadata"]["resourceVersion"] = Value::from(version.to_string());
                self.slices.insert(write.object.clone(), slice);
                Outcome::Done { version }
            }
            (Change::Patch { .. } | Change::Delete { .. }, None) => Outcome::Late,
            (Change::Patch { body, .. }, Some(slice)) => {
                let is_it = |field: &str| {
                    !body["metadata"][field].is_null() && body["metadata"][field] == slice["metadata"][field]
                };
                if !is_it("uid") || !is_it("resourceVersion") {
                    return Outcome::Late;
                }
                slice["endpoints"] = body["endpoints"].clone();
                slice["metadata"]["resourceVersion"] = Value::from(version.to_string());
                Outcome::Done { version }
            }
            (Change::Delete { uid, version }, Some(slice)) => {
                let version = version.to_string();
                if slice["metadata"]["uid"] != **uid || slice["metadata"]["resourceVersion"] != version {
                    return Outcome::Late;
                }
                self.slices.remove(&write.object);
                Outcome::Done { version: 0 }
            }
        }
    }

    pub(super) fn observed(&self) -> Observed {
        let mut observed = Observed::fresh();
        for object in self.namespaces.values() {
            observed.namespaces.apply(&object.to_string());
        }
        for object in self.endpoints.values() {
            observed.endpoints.apply(&object.to_string());
        }
        for object in self.slices.values() {
            observed.slices.apply(&object.to_string());
        }
        observed
    }

    pub(super) fn plan(&self, filling: Filling) -> Vec<Planned> {
        plan(&self.observed(), filling, true, &|_| false)
    }

    /// Turns until nothing is left to do; how many.
    pub(super) fn settle(&mut self, filling: Filling) -> usize {
        for turn in 0..20 {
            let planned = self.plan(filling);
            if planned.is_empty() {
                return turn;
            }
            for planned in planned {
                assert!(matches!(self.write(&planned.write), Outcome::Done { .. }), "{:?}", planned.write);
            }
        }
        panic!("{:?}", self.plan(filling));
    }

    /// The elements of each slice, by its name: `namespace/pod`.
    pub(super) fn layout(&self) -> BTreeMap<String, Vec<String>> {
        let observed = self.observed();
        let names = |slice: &crate::observed::CiliumEndpointSlice| {
            slice.endpoints.iter().map(|element| format!("{}/{}", slice.of, element.name)).collect()
        };
        observed.slices.iter().map(|slice| (slice.meta.name.to_string(), names(slice))).collect()
    }

    /// All that slices say of an endpoint.
    pub(super) fn told(&self, name: &str) -> Vec<CoreCiliumEndpoint> {
        let (namespace, pod) = name.split_once('/').unwrap();
        let observed = self.observed();
        let slices = observed.slices.iter().filter(|slice| &*slice.of == namespace);
        slices.flat_map(|slice| slice.endpoints.iter()).filter(|e| e.name == pod).cloned().collect()
    }

    /// Endpoints of which some slice says what they are, and those of which any says anything.
    pub(super) fn known(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let observed = self.observed();
        let mut told: BTreeMap<String, Vec<&CoreCiliumEndpoint>> = BTreeMap::new();
        for slice in observed.slices.iter() {
            for element in &slice.endpoints {
                told.entry(format!("{}/{}", slice.of, element.name)).or_default().push(element);
            }
        }
        let is_right = |name: &&String| {
            observed.endpoints.get(name).is_some_and(|endpoint| told[*name].contains(&&endpoint.core))
        };
        let right = told.keys().filter(is_right).cloned().collect();
        (right, told.into_keys().collect())
    }
}
