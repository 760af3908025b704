//! The model beside the oracle: manifests through the agent's own path up to the tables, and what differs.

pub mod api;
pub mod lookups;
pub mod snapshot;
pub mod walk;

use std::fmt::Write as _;
use std::path::Path;

use portway_datapath::layout::Sizes;
use portway_datapath::{FrontendKey, Port, Protocol};
use portway_model::k8s::{Change, Manifests};
use portway_model::loadbalancer::{Config, Desired, Dirty, LoadBalancer};
use portway_model::plan::{Options, Outcome, Planner};
use portway_model::tables::{BackendSets, Row, TableWriter};

use crate::oracle::world::{Key, Object, World};
use crate::oracle::{OracleConfig, OracleRow};

/// Files in, map operations out: what the agent does between its directory and its maps.
pub struct Pipeline {
    pub manifests: Manifests,
    pub balancer: LoadBalancer,
    pub planner: Planner,
    /// What the maps may lack.
    pub dirty: Dirty,
}

impl Pipeline {
    pub fn new(config: Config) -> Self {
        Self::with_sizes(config, Sizes::DEFAULT)
    }

    pub fn with_sizes(config: Config, sizes: Sizes) -> Self {
        let options = Options { sizes, maglev: None };
        Self {
            manifests: Manifests::new(),
            balancer: LoadBalancer::new(config),
            planner: Planner::new(options),
            dirty: Dirty::default(),
        }
    }

    /// The text of a file; `None` where it is gone.
    pub fn file(&mut self, path: &Path, bytes: Option<&[u8]>) -> Change {
        let change = match bytes {
            Some(bytes) => self.manifests.apply(path, bytes),
            None => self.manifests.remove(path),
        };
        for event in &change.events {
            self.balancer.apply(event.clone());
        }
        self.dirty.merge(self.balancer.take_dirty());
        change
    }

    pub fn reconcile<W: TableWriter>(&mut self, tables: &mut W) -> Outcome<W::Error> {
        self.planner.reconcile(&self.balancer, &mut self.dirty, tables)
    }

    /// As if all programs that might still look at retired records had ended.
    pub fn pass_grace_period(&mut self) {
        if let Some(retired) = self.planner.take_retired() {
            self.planner.reclaim(retired);
        }
    }

    /// Until the maps are what is wanted. The error is what keeps them from it after `rounds` attempts.
    pub fn settle<W: TableWriter>(&mut self, tables: &mut W, rounds: usize) -> Result<(), String> {
        let mut last = String::new();
        for _ in 0..rounds {
            let outcome = self.reconcile(tables);
            if outcome.is_settled() && self.dirty.is_empty() {
                return Ok(());
            }
            last = format!("{:?}; waiting: {:?}", outcome.failures, outcome.waiting);
            self.pass_grace_period();
        }
        Err(format!("not settled after {rounds} rounds: {last}; dirty: {:?}", self.dirty))
    }
}

/// The same settings for the model.
pub fn model_config(config: &OracleConfig) -> Config {
    Config {
        enable_ipv4: config.enable_ipv4,
        enable_ipv6: config.enable_ipv6,
        service_proxy_name: config.k8s_service_proxy_name.clone(),
        source_range_check: config.enable_svc_source_range_check,
        source_range_all_types: config.bpf_lb_source_range_all_types,
        external_ips: config.enable_external_ips,
        host_port: config.enable_host_port,
        session_affinity: config.enable_session_affinity,
        topology: config.enable_service_topology,
        terminating_endpoint: config.enable_k8s_terminating_endpoint,
        ..Config::new(config.node.as_str())
    }
}

/// As `portway plan` has them.
pub fn expected_rows(rows: Vec<OracleRow>) -> Vec<Row> {
    let row = |row: OracleRow| Row {
        service: row.service,
        port_name: row.port_name,
        kind: row.kind.to_owned(),
        address: row.address.to_string(),
        port: row.port,
        protocol: row.protocol,
        backends: BackendSets { cluster: row.cluster, local: row.local },
        affinity_seconds: row.affinity_seconds,
        source_ranges: row.source_ranges,
        flags: row.flags.into_iter().map(str::to_owned).collect(),
    };
    rows.into_iter().map(row).collect()
}

/// Row by row, what each has that the other lacks. `None` where they are equal, order included.
pub fn difference(oracle: &[Row], model: &[Row]) -> Option<String> {
    if oracle == model {
        return None;
    }
    let mut text = String::new();
    let mut list = |who: &str, rows: &[Row], others: &[Row]| {
        for row in rows.iter().filter(|row| !others.contains(row)) {
            let json = serde_json::to_string(row).unwrap_or_else(|error| error.to_string());
            let _ = writeln!(text, "only the {who} has {json}");
        }
    };
    list("oracle", oracle, model);
    list("model", model, oracle);
    if text.is_empty() {
        text.push_str("the same rows in another order, or some twice\n");
    }
    Some(text)
}

/// Frontends whose owner in the tables is not the one that the load balancer wants: the planner is to blame there,
/// and for other differences whoever says what is wanted.
pub fn unplanned(balancer: &LoadBalancer, model: &[Row]) -> Vec<String> {
    let key_of = |row: &Row| {
        let addr: std::net::IpAddr = row.address.parse().ok()?;
        let protocol =
            [Protocol::TCP, Protocol::UDP, Protocol::SCTP].into_iter().find(|p| p.name() == row.protocol)?;
        Some(FrontendKey::new(addr.into(), Port::new(row.port), protocol))
    };
    let mut found = Vec::new();
    for row in model {
        let wanted = key_of(row).and_then(|key| balancer.frontend(&key));
        let name = wanted.as_ref().map(|wanted| wanted.service.service());
        if name != Some(row.service.as_str()) {
            found
                .push(format!("{}:{} belongs to {}, wanted: {wanted:?}", row.address, row.port, row.service));
        }
    }
    found
}

/// As a manifest: JSON, which is YAML too.
pub fn manifest(object: &Object) -> Vec<u8> {
    let json = match object {
        Object::Service(o) => serde_json::to_vec_pretty(o),
        Object::EndpointSlice(o) => serde_json::to_vec_pretty(o),
        Object::Pod(o) => serde_json::to_vec_pretty(o),
        Object::Node(o) => serde_json::to_vec_pretty(o),
    };
    json.unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}").into_bytes())
}

/// One file an object.
pub fn path(key: &Key) -> std::path::PathBuf {
    format!("{}_{}_{}.json", key.kind.name().to_lowercase(), key.namespace, key.name).into()
}

/// Everything, to be pasted into a directory of manifests.
pub fn describe(world: &World) -> String {
    let mut text = String::new();
    for object in world.objects.values() {
        let _ = writeln!(text, "---\n{}", String::from_utf8_lossy(&manifest(object)));
    }
    text
}
