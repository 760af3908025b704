//! A random history of nodes, namespaces and pods.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::objects::{namespace, node, node_named, pod, pod_named};
use crate::harness::cluster::ApiClient;
use crate::harness::{Beside, ControlPlane, Ending};
use crate::oracle::random::Random;

const NAMESPACES: [&str; 2] = ["default", "shop"];
const NODES: u32 = 8;
/// Names of pods of each namespace: the same ones come again.
const NAMES: u64 = 25;
const SETS: u64 = 12;

/// What there is, and what may come next.
#[derive(Debug)]
pub struct History {
    random: Random,
    nodes: BTreeSet<u32>,
    pods: BTreeMap<(&'static str, String), String>,
    /// Each node and each pod is a new one: none has the address of another before it.
    made: u32,
}

impl History {
    /// With the namespaces and the first nodes.
    pub fn begin(client: &ApiClient, seed: u64) -> Result<Self> {
        client.create(&namespace("shop", json!({"team": "0"})))?;
        let nodes = BTreeSet::from([1, 2, 3]);
        nodes.iter().try_for_each(|number| client.create(&node(*number)).map(drop))?;
        Ok(Self { random: Random::new(seed), nodes, pods: BTreeMap::new(), made: 0 })
    }

    /// One change.
    pub fn step(&mut self, client: &ApiClient) -> Result<()> {
        match self.random.below(100) {
            0..8 => self.node_comes(client),
            8..14 => self.node_goes(client),
            14..60 => self.pod_comes(client),
            60..82 => self.pod_goes(client),
            82..97 => self.pod_moves(client),
            _ => self.namespace_changes(client),
        }
    }

    fn node_comes(&mut self, client: &ApiClient) -> Result<()> {
        let free: Vec<u32> = (1..=NODES).filter(|number| !self.nodes.contains(number)).collect();
        let Some(_) = free.first() else { return Ok(()) };
        let number = *self.random.pick(&free);
        self.nodes.insert(number);
        client.create(&node(number)).map(drop)
    }

    fn node_goes(&mut self, client: &ApiClient) -> Result<()> {
        let there: Vec<u32> = self.nodes.iter().copied().collect();
        if there.len() < 3 {
            return Ok(());
        }
        let number = *self.random.pick(&there);
        self.nodes.remove(&number);
        client.delete(&node_named(number))
    }

    fn pod_comes(&mut self, client: &ApiClient) -> Result<()> {
        let namespace = *self.random.pick(&NAMESPACES);
        let name = format!("pod-{}", self.random.below(NAMES));
        if self.pods.contains_key(&(namespace, name.clone())) {
            return Ok(());
        }
        self.made += 1;
        let there: Vec<u32> = self.nodes.iter().copied().collect();
        let node = *self.random.pick(&there);
        let app = self.set();
        client.create(&pod(namespace, &name, node, self.made, &[("app", &app)]))?;
        self.pods.insert((namespace, name), app);
        Ok(())
    }

    fn set(&mut self) -> String {
        // One in ten is nobody else's.
        if self.random.chance(10) {
            format!("job-{}", self.made)
        } else {
            format!("set-{}", self.random.below(SETS))
        }
    }

    fn any_pod(&mut self) -> Option<(&'static str, String)> {
        let all: Vec<_> = self.pods.keys().cloned().collect();
        (!all.is_empty()).then(|| self.random.pick(&all).clone())
    }

    fn pod_goes(&mut self, client: &ApiClient) -> Result<()> {
        let Some((namespace, name)) = self.any_pod() else { return Ok(()) };
        self.pods.remove(&(namespace, name.clone()));
        client.delete(&pod_named(namespace, &name))
    }

    fn pod_moves(&mut self, client: &ApiClient) -> Result<()> {
        let Some((namespace, name)) = self.any_pod() else { return Ok(()) };
        let app = self.set();
        client.patch(&pod_named(namespace, &name), &json!({"metadata": {"labels": {"app": app}}}))?;
        self.pods.insert((namespace, name), app);
        Ok(())
    }

    fn namespace_changes(&mut self, client: &ApiClient) -> Result<()> {
        let team = self.random.below(3).to_string();
        client
            .patch(&namespace("shop", json!({})), &json!({"metadata": {"labels": {"team": team}}}))
            .map(drop)
    }
}

/// A thread that goes on with a history until its end.
#[derive(Debug)]
pub struct Churn(Beside<u32>);

impl Churn {
    /// A change every `apart`.
    pub fn start(control_plane: &ControlPlane, seed: u64, apart: Duration) -> Result<Self> {
        let client = control_plane.new_client()?;
        let mut history = History::begin(&client, seed)?;
        let work = move |end: &Ending| {
            let mut changes = 0;
            while !end.has_come() {
                history.step(&client)?;
                changes += 1;
                std::thread::sleep(apart);
            }
            Ok(changes)
        };
        Beside::start("history", work).map(Self)
    }

    /// How many changes there were.
    pub fn end(self) -> Result<u32> {
        self.0.end()
    }
}
