//! A node as the agent runs it, without a kernel: objects in, maps in memory out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use portway_datapath::layout::Sizes;
use portway_datapath::{Addr, Client, Destination, NodeConfig, Port, Protocol, Settings, Verdict, translate};
use portway_model::k8s::{Change, Manifests, ObjectKind, Watched};
use portway_model::loadbalancer::{Config, Desired as _, Dirty, LoadBalancer, Restored, Union};
use portway_model::plan::{Options, Planner};
use portway_model::tables::{MemoryTables, TableOp, TableWriter, rows};

/// Tables that count what is written.
pub(crate) struct Counted {
    pub(crate) tables: MemoryTables,
    pub(crate) ops: Vec<TableOp>,
}

impl TableWriter for Counted {
    type Error = <MemoryTables as TableWriter>::Error;

    fn write(&mut self, op: &TableOp) -> Result<(), Self::Error> {
        self.tables.write(op)?;
        self.ops.push(op.clone());
        Ok(())
    }
}

pub(crate) struct Node {
    pub(crate) manifests: Manifests,
    pub(crate) balancer: LoadBalancer,
    pub(crate) planner: Planner,
    pub(crate) maps: Counted,
    /// What an earlier agent left, until every source has synced.
    pub(crate) restored: Restored,
    dirty: Dirty,
}

pub(crate) const SIZES: Sizes = Sizes { runs: 1 << 17, ..Sizes::DEFAULT };

impl Node {
    pub(crate) fn new() -> Self {
        let mut tables = MemoryTables::new(SIZES);
        tables.config = NodeConfig { host_netns: 1, settings: Settings::new().word() };
        let options = Options { sizes: SIZES, maglev: None };
        Self {
            manifests: Manifests::new(),
            balancer: LoadBalancer::new(Config::new("node-a")),
            planner: Planner::new(options),
            maps: Counted { tables, ops: Vec::new() },
            restored: Restored::default(),
            dirty: Dirty::default(),
        }
    }

    /// The agent ends and another one starts: only the maps live on.
    pub(crate) fn restart(self) -> Self {
        let mut next = Self { maps: self.maps, ..Self::new() };
        next.maps.ops.clear();
        let dump = next.maps.tables.dump();
        next.planner.restore(&dump);
        next.restored = Restored::new(&dump);
        next
    }

    pub(crate) fn take(&mut self, change: Change) {
        change.events.into_iter().for_each(|event| self.balancer.apply(event));
    }

    pub(crate) fn watch(&mut self, kind: ObjectKind, event: Watched<'_>) {
        let change = self.manifests.watched(kind, event);
        self.take(change);
    }

    /// A list of everything of a kind.
    pub(crate) fn list(&mut self, kind: ObjectKind, objects: &[String]) {
        self.watch(kind, Watched::ListBegins);
        objects.iter().for_each(|object| self.watch(kind, Watched::Listed(object)));
        self.watch(kind, Watched::ListEnds);
    }

    pub(crate) fn applied(&mut self, kind: ObjectKind, object: &str) {
        self.watch(kind, Watched::Applied(object));
    }

    pub(crate) fn file(&mut self, path: &str, text: &str) {
        let change = self.manifests.apply(Path::new(path), text.as_bytes());
        self.take(change);
    }

    /// Brings everything that was seen into the maps; waits for nothing.
    pub(crate) fn program(&mut self) {
        let mut dirty = self.balancer.take_dirty();
        self.restored.learn(&self.balancer, &mut dirty);
        self.dirty.merge(dirty);
        for _ in 0..10 {
            let desired = Union { balancer: &self.balancer, restored: &self.restored };
            let outcome = self.planner.reconcile(&desired, &mut self.dirty, &mut self.maps);
            assert!(outcome.failures.is_empty(), "{outcome:?}");
            while let Some(retired) = self.planner.take_retired() {
                self.planner.reclaim(retired);
            }
            if self.dirty.is_empty() {
                return;
            }
        }
        panic!("never settled: {:?}", self.dirty);
    }

    /// The directory has synced, whatever the API server owes.
    pub(crate) fn directory_synced(&mut self) {
        self.program();
        let dirty = self.restored.settle_files(&self.manifests);
        self.dirty.merge(dirty);
        self.program();
    }

    /// Every source has synced.
    pub(crate) fn synced(&mut self) {
        self.program();
        self.restored.clear();
        self.dirty.merge(self.balancer.everything());
        for _ in 0..3 {
            let outcome = self.planner.prune(&self.balancer, &mut self.dirty, &mut self.maps);
            assert!(outcome.failures.is_empty(), "{outcome:?}");
            while let Some(retired) = self.planner.take_retired() {
                self.planner.reclaim(retired);
            }
        }
        assert!(self.dirty.is_empty());
        let found = self.planner.differences(&self.balancer, &self.dirty, true);
        assert_eq!(found, []);
    }

    /// `service address:port → backends`, as the maps hold it.
    pub(crate) fn rows(&self) -> Vec<String> {
        let rows = rows(&self.maps.tables.dump());
        let text = |row: &portway_model::tables::Row| {
            format!("{} {}:{} → {}", row.service, row.address, row.port, row.backends.cluster.join(" "))
        };
        rows.iter().map(text).collect()
    }

    /// Backends of the frontend `address`:80 of TCP, as many connections get them; `None` where nobody answers.
    pub(crate) fn backends(&self, address: &str) -> Option<BTreeSet<String>> {
        let addr: Addr = address.parse::<std::net::IpAddr>().unwrap().into();
        let to = Destination { addr, port: Port::new(80), protocol: Protocol::TCP };
        let mut got = BTreeSet::new();
        for _ in 0..200 {
            match translate(&self.maps.tables, Client { netns: 2 }, to) {
                Verdict::Translate(t) => {
                    got.insert(format!("{}:{}", std::net::IpAddr::from(t.addr), t.port.get()));
                }
                // ECONNREFUSED: the one errno there is.
                Verdict::Refuse(_) => return Some(BTreeSet::new()),
                Verdict::Pass(_) => return None,
            }
        }
        Some(got)
    }
}

/// A Service of one port 80. `more` of its spec begins with a comma.
pub(crate) fn service(name: &str, version: u64, address: &str, more: &str) -> String {
    format!(
        r#"{{"metadata": {{"namespace": "ns", "name": "{name}", "resourceVersion": "{version}"}},
            "spec": {{"clusterIPs": ["{address}"], "ports": [{{"port": 80}}]{more}}}}}"#
    )
}

/// A slice of ready endpoints `10.1.x.y` at port 8080; ` -` after one: terminating, ` @node`: where it is.
pub(crate) fn slice(name: &str, version: u64, of: &str, endpoints: &[&str]) -> String {
    let endpoints: Vec<_> = endpoints.iter().map(|text| endpoint(text, "")).collect();
    slice_of(name, version, of, &endpoints)
}

/// As [`slice`] of endpoints as JSON.
pub(crate) fn slice_of(name: &str, version: u64, of: &str, endpoints: &[String]) -> String {
    format!(
        r#"{{"metadata": {{"namespace": "ns", "name": "{name}", "resourceVersion": "{version}",
            "labels": {{"kubernetes.io/service-name": "{of}"}}}}, "addressType": "IPv4",
            "ports": [{{"port": 8080}}], "endpoints": [{}]}}"#,
        endpoints.join(", ")
    )
}

pub(crate) fn endpoint(text: &str, more: &str) -> String {
    let (text, node) = text.split_once(" @").unwrap_or((text, "node-b"));
    let (address, terminating) = match text.strip_suffix(" -") {
        Some(address) => (address, true),
        None => (text, false),
    };
    let ready = !terminating;
    format!(
        r#"{{"addresses": ["{address}"], "nodeName": "{node}"{more},
            "conditions": {{"ready": {ready}, "serving": true, "terminating": {terminating}}}}}"#
    )
}

pub(crate) fn set(backends: &[&str]) -> Option<BTreeSet<String>> {
    Some(backends.iter().map(|b| format!("{b}:8080")).collect())
}

/// How many operations of each sort.
pub(crate) fn tally(ops: &[TableOp]) -> BTreeMap<&'static str, usize> {
    let mut tally = BTreeMap::new();
    for op in ops {
        let name = match op {
            TableOp::WriteRun { .. } => "run",
            TableOp::WriteMaglev { .. } => "maglev",
            TableOp::WriteBackend { .. } => "backend",
            TableOp::StoreBackendState { .. } => "state",
            TableOp::NameService { .. } => "name",
            TableOp::ForgetService { .. } => "forget",
            TableOp::InsertSourceRange { .. } | TableOp::DeleteSourceRange { .. } => "range",
            TableOp::Publish { .. } => "publish",
            TableOp::InsertFrontend { .. } => "insert",
            TableOp::StoreFrontend { .. } => "store",
            TableOp::DeleteFrontend { .. } => "delete",
        };
        *tally.entry(name).or_default() += 1;
    }
    tally
}
