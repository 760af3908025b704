//! The agent's metrics. Those that Cilium has too bear Cilium's names and labels, with `cilium_` in front
//! (Documentation/observability/metrics.rst of cilium/cilium); the others begin with `portway_`.

mod identities;
mod ipcache;
mod pods;

use std::sync::{Arc, OnceLock};

use portway_datapath::layout;
use portway_model::k8s::{Event, Object, ObjectKey, ObjectKind};
use portway_model::loadbalancer::LoadBalancer;
use portway_model::plan::Usage;
use portway_model::tables::{TableOp, TableWriter};
use portway_runtime::kubernetes::{ApiServerCollector, Told};
use portway_runtime::metrics::register;
use portway_runtime::readiness::Readiness;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::datapath::{Cause, Refused};
use super::watches::Watches;
use crate::endpoints::Endpoints;
use crate::identities::Census;
use crate::maps::{KernelTables, MapError, MapId, MapReader, PodMapId};
use crate::network::Flows;

/// From a change's sight to its last write: half a millisecond to 4 seconds.
const DELAY_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096];

/// Handles to the metrics in the registry. Cheap to clone.
#[derive(Clone)]
pub(super) struct Metrics {
    pub(super) registry: Registry,
    bootstrap: GaugeVec,
    services_events: IntCounterVec,
    terminating_endpoints: IntCounter,
    implementation_delay: HistogramVec,
    event_time: GaugeVec,
    map_ops: IntCounterVec,
    pub(super) write_failures: IntCounter,
    pub(super) grace_seconds: Histogram,
    objects: IntGaugeVec,
    pub(super) outstanding: IntGauge,
    refused: IntGaugeVec,
    maps: Arc<OnceLock<MapReader>>,
    /// Filled where there is a pod network.
    pub(super) flows: Arc<OnceLock<Flows>>,
}

/// What the owner counts after each batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tallies {
    pub(super) rejects: u64,
    pub(super) clashes: u64,
    pub(super) broken_files: u64,
    pub(super) local_addresses: u64,
    pub(super) usage: Usage,
}

impl Metrics {
    pub(super) fn new(readiness: &Readiness) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let r = &registry;
        let counters = |name, help, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let version =
            register(r, GaugeVec::new(Opts::new("cilium_version", "1, by version"), &["version"])?)?;
        version.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        let (maps, flows) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        registry.register(Box::new(MapCollector::new(Arc::clone(&maps), Arc::clone(&flows))?))?;
        registry.register(Box::new(ReadyCollector::new(readiness.clone())?))?;
        let delay = HistogramOpts::new(
            "cilium_service_implementation_delay",
            "Seconds from the sight of a change to its last write into the kernel",
        );
        let grace =
            HistogramOpts::new("portway_grace_period_seconds", "Seconds that an RCU grace period took");
        let bootstrap = Opts::new(
            "cilium_agent_bootstrap_seconds",
            "Seconds from the agent's start until its programs served",
        );
        Ok(Self {
            bootstrap: register(r, GaugeVec::new(bootstrap, &["scope", "outcome"])?)?,
            services_events: register(
                r,
                counters("cilium_services_events_total", "Changes of Services seen", &["action"])?,
            )?,
            terminating_endpoints: register(
                r,
                IntCounter::new(
                    "cilium_k8s_terminating_endpoints_events_total",
                    "Terminating endpoints seen in changes of EndpointSlices",
                )?,
            )?,
            implementation_delay: register(
                r,
                HistogramVec::new(delay.buckets(DELAY_BUCKETS.to_vec()), &["action"])?,
            )?,
            event_time: register(
                r,
                GaugeVec::new(Opts::new("cilium_event_ts", "Unix time of the last event"), &["source"])?,
            )?,
            map_ops: register(
                r,
                counters(
                    "cilium_bpf_map_ops_total",
                    "Operations on kernel maps",
                    &["map_name", "operation", "outcome"],
                )?,
            )?,
            write_failures: register(
                r,
                IntCounter::new(
                    "portway_write_failures_total",
                    "Services and frontends that a write failed for",
                )?,
            )?,
            grace_seconds: register(r, Histogram::with_opts(grace.buckets(DELAY_BUCKETS.to_vec()))?)?,
            objects: register(
                r,
                IntGaugeVec::new(Opts::new("portway_objects", "What the agent holds, by kind"), &["kind"])?,
            )?,
            outstanding: register(
                r,
                IntGauge::new("portway_outstanding", "Services and frontends that are not as wanted yet")?,
            )?,
            refused: register(
                r,
                IntGaugeVec::new(
                    Opts::new(
                        "portway_refused_writes",
                        "Services and frontends whose last write failed, by map and by errno (or `full`)",
                    ),
                    &["map_name", "reason"],
                )?,
            )?,
            maps,
            flows,
            registry,
        })
    }

    /// From now on the maps are read at each scrape.
    pub(super) fn watch_maps(&self, reader: MapReader) {
        // A second reader of the same maps would say the same.
        let _ = self.maps.set(reader);
    }

    /// From now on the API server's watches are read at each scrape.
    pub(super) fn watch_api_server(&self, watches: Watches) -> prometheus::Result<()> {
        let told = move || Told {
            watches: watches.watch_status().collect(),
            client: watches.client_status(),
            events: Some(watches.events().status()),
        };
        self.registry.register(Box::new(ApiServerCollector::new(told)?))
    }

    /// From now on what the pod network counts is read at each scrape.
    pub(super) fn watch_pods(&self, endpoints: Arc<OnceLock<Endpoints>>) -> prometheus::Result<()> {
        self.registry.register(Box::new(pods::EndpointCollector::new(endpoints)?))?;
        self.registry.register(Box::new(ipcache::IpcacheCollector::new(Arc::clone(&self.flows))?))?;
        self.registry.register(Box::new(pods::TrafficCollector::new(Arc::clone(&self.flows))?))
    }

    /// From now on what is known of identities is read at each scrape.
    pub(super) fn watch_identities(&self, census: Census) -> prometheus::Result<()> {
        let flows = Arc::clone(&self.flows);
        self.registry.register(Box::new(identities::IdentityCollector::new(census, flows)?))
    }

    /// Counts an event that `balancer` has not applied yet.
    pub(super) fn object_changed(&self, event: &Event, source: &str, balancer: &LoadBalancer) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        self.event_time.with_label_values(&[source]).set(now.as_secs_f64());
        let action = match event {
            Event::Apply(Object::Service(service)) if balancer.has_service(&service.name) => "update",
            Event::Apply(Object::Service(_)) => "add",
            Event::Delete(ObjectKey { kind: ObjectKind::Service, .. }) => "delete",
            Event::Apply(Object::EndpointSlice(slice)) => {
                let terminating = slice.endpoints.iter().filter(|endpoint| endpoint.terminating).count();
                self.terminating_endpoints.inc_by(terminating as u64);
                return;
            }
            Event::Apply(
                Object::Pod(_)
                | Object::Namespace(_)
                | Object::Node(_)
                | Object::CiliumNode(_)
                | Object::CiliumIdentity(_)
                | Object::CiliumEndpoint(_)
                | Object::CiliumEndpointSlice(_),
            )
            | Event::Delete(_) => return,
        };
        self.services_events.with_label_values(&[action]).inc();
    }

    /// What the last reconcile could not program.
    pub(super) fn refused(&self, refused: &Refused) {
        self.refused.reset();
        for (Cause { map, reason }, number) in refused.by_cause() {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            self.refused.with_label_values(&[*map, reason.as_str()]).set(number);
        }
    }

    /// The start is over, `after` it began.
    pub(super) fn started(&self, after: std::time::Duration) {
        self.bootstrap.with_label_values(&["overall", "success"]).set(after.as_secs_f64());
    }

    pub(super) fn programmed(&self, delay: std::time::Duration) {
        self.implementation_delay.with_label_values(&["update"]).observe(delay.as_secs_f64());
    }

    pub(super) fn tally(&self, tallies: &Tallies) {
        let Tallies { rejects, clashes, broken_files, local_addresses, usage } = *tallies;
        for (kind, number) in [
            ("rejects", rejects),
            ("clashes", clashes),
            ("broken-files", broken_files),
            ("local-addresses", local_addresses),
            ("service-ports", u64::from(usage.services)),
            ("frontends", u64::from(usage.frontends)),
            ("backends", u64::from(usage.backends)),
        ] {
            self.objects.with_label_values(&[kind]).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }
}

/// Kernel maps whose operations are counted.
pub(super) struct Counted<'a> {
    pub(super) tables: &'a mut KernelTables,
    pub(super) metrics: &'a Metrics,
}

impl TableWriter for Counted<'_> {
    type Error = MapError;

    fn write(&mut self, op: &TableOp) -> Result<(), MapError> {
        let result = self.tables.write(op);
        let outcome = if result.is_ok() { "success" } else { "fail" };
        let (map, operation) = match op {
            TableOp::WriteRun { .. } => (layout::RUNS, "update"),
            TableOp::WriteMaglev { .. } => (layout::MAGLEV, "update"),
            TableOp::WriteBackend { .. } | TableOp::StoreBackendState { .. } => (layout::BACKENDS, "update"),
            TableOp::NameService { .. } => (layout::SERVICE_NAMES, "update"),
            TableOp::ForgetService { .. } => (layout::SERVICE_NAMES, "delete"),
            TableOp::InsertSourceRange { .. } => (layout::SOURCE_RANGES, "update"),
            TableOp::DeleteSourceRange { .. } => (layout::SOURCE_RANGES, "delete"),
            TableOp::Publish { .. } => (layout::SERVICES, "update"),
            TableOp::InsertFrontend { .. } | TableOp::StoreFrontend { .. } => (layout::FRONTENDS, "update"),
            TableOp::DeleteFrontend { .. } => (layout::FRONTENDS, "delete"),
        };
        self.metrics.map_ops.with_label_values(&[map, operation, outcome]).inc();
        result
    }
}

/// Sizes of the maps and counters of the programs, read at each scrape.
struct MapCollector {
    maps: Arc<OnceLock<MapReader>>,
    flows: Arc<OnceLock<Flows>>,
    /// The same under Cilium's name and under our own.
    pressure: [GaugeVec; 2],
    bytes: Gauge,
    events: IntGaugeVec,
}

impl MapCollector {
    fn new(maps: Arc<OnceLock<MapReader>>, flows: Arc<OnceLock<Flows>>) -> prometheus::Result<Self> {
        let pressure = |name| GaugeVec::new(Opts::new(name, "Used part of a map, 1 is full"), &["map_name"]);
        let bytes =
            Opts::new("cilium_bpf_maps_virtual_memory_max_bytes", "Kernel memory of the agent's maps");
        let events =
            Opts::new("portway_socket_events", "What the programs did since their maps were made, by event");
        Ok(Self {
            maps,
            flows,
            pressure: [pressure("cilium_bpf_map_pressure")?, pressure("portway_map_pressure")?],
            bytes: Gauge::with_opts(bytes)?,
            events: IntGaugeVec::new(events, &["event"])?,
        })
    }

    fn read(&self, maps: &MapReader) -> Result<(), MapError> {
        let facts = maps.facts()?;
        for fact in &facts {
            // Maps of a fixed size are full by nature: an alert on pressure must not fire for them.
            if let Some(used) = fact.used.filter(|_| !matches!(fact.id, MapId::Config | MapId::Metrics)) {
                let pressure = f64::from(used) / f64::from(fact.max.max(1));
                for gauge in &self.pressure {
                    gauge.with_label_values(&[fact.id.name()]).set(pressure);
                }
            }
        }
        let mut bytes = facts.iter().filter_map(|fact| fact.kernel_bytes).sum::<u64>();
        if let Some(flows) = self.flows.get() {
            let status = flows.conntrack.status();
            // The others make room by themselves.
            let learned =
                status.used.iter().filter(|(map, _)| matches!(map, PodMapId::Conntrack | PodMapId::Nat));
            let learned =
                learned.map(|(map, used)| (*map, *used, status.max.get(map).copied().unwrap_or_default()));
            let ipcache = flows.ipcache.status().entries;
            let max = u64::from(flows.reader.max(PodMapId::Ipcache));
            for (map, used, max) in learned.chain([(PodMapId::Ipcache, ipcache, max)]) {
                for gauge in &self.pressure {
                    gauge.with_label_values(&[map.name()]).set(used as f64 / max.max(1) as f64);
                }
            }
            bytes += flows.reader.facts().iter().filter_map(|fact| fact.kernel_bytes).sum::<u64>();
        }
        self.bytes.set(bytes as f64);
        for (counter, value) in maps.counters()? {
            self.events.with_label_values(&[counter.name()]).set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        Ok(())
    }
}

impl Collector for MapCollector {
    fn desc(&self) -> Vec<&Desc> {
        let [cilium, ours] = &self.pressure;
        [cilium.desc(), ours.desc(), self.bytes.desc(), self.events.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(maps) = self.maps.get() else { return Vec::new() };
        if let Err(error) = self.read(maps) {
            tracing::warn!(%error, "the kernel maps cannot be read for the metrics");
            return Vec::new();
        }
        let [cilium, ours] = &self.pressure;
        [cilium.collect(), ours.collect(), self.bytes.collect(), self.events.collect()].concat()
    }
}

/// 1 when nothing is waited for.
struct ReadyCollector {
    readiness: Readiness,
    ready: IntGauge,
}

impl ReadyCollector {
    fn new(readiness: Readiness) -> prometheus::Result<Self> {
        Ok(Self { readiness, ready: IntGauge::new("portway_ready", "1 when the agent waits for nothing")? })
    }
}

impl Collector for ReadyCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.ready.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.ready.set(self.readiness.is_ready().into());
        self.ready.collect()
    }
}
