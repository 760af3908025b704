//! Metrics of the pod network, read at each scrape.

use std::sync::{Arc, OnceLock};

use portway_datapath::{Direction, Family, Reason};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntCounterVec, IntGauge, IntGaugeVec, Opts};

use crate::endpoints::{Endpoints, State};
use crate::maps::MapError;
use crate::network::Flows;

/// What the programs at the pods' links and at the node's devices count.
pub(super) struct TrafficCollector {
    flows: Arc<OnceLock<Flows>>,
    drops: [IntCounterVec; 2],
    forwards: [IntCounterVec; 2],
    entries: IntGaugeVec,
    removed: IntCounterVec,
    passes: IntCounterVec,
    pass_seconds: Gauge,
}

/// The endpoints and their addresses.
pub(super) struct EndpointCollector {
    endpoints: Arc<OnceLock<Endpoints>>,
    number: IntGauge,
    states: IntGaugeVec,
    addresses: IntGaugeVec,
    capacity: IntGaugeVec,
}

impl TrafficCollector {
    pub(super) fn new(flows: Arc<OnceLock<Flows>>) -> prometheus::Result<Self> {
        let counter = |name, help, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let drop_labels = ["reason", "direction"];
        Ok(Self {
            flows,
            drops: [
                counter("cilium_drop_count_total", "Packets that were dropped", &drop_labels)?,
                counter("cilium_drop_bytes_total", "Bytes of packets that were dropped", &drop_labels)?,
            ],
            forwards: [
                counter("cilium_forward_count_total", "Packets that were let through", &["direction"])?,
                counter(
                    "cilium_forward_bytes_total",
                    "Bytes of packets that were let through",
                    &["direction"],
                )?,
            ],
            entries: IntGaugeVec::new(
                Opts::new("portway_conntrack_entries", "Flows and masqueraded flows that are remembered"),
                &["map_name"],
            )?,
            removed: counter(
                "portway_conntrack_removed_total",
                "Flows that were forgotten, by what ended them",
                &["map_name", "reason"],
            )?,
            passes: counter("portway_conntrack_passes_total", "Looks at all flows", &["outcome"])?,
            pass_seconds: Gauge::new(
                "portway_conntrack_pass_seconds",
                "What the last look at all flows took",
            )?,
        })
    }

    fn read(&self, flows: &Flows) -> Result<(), MapError> {
        for counter in
            [&self.drops, &self.forwards].into_iter().flatten().chain([&self.removed, &self.passes])
        {
            counter.reset();
        }
        for ((reason, direction), traffic) in flows.reader.traffic()? {
            // Cilium's words.
            let direction = match direction {
                Direction::Egress => "EGRESS",
                Direction::Ingress => "INGRESS",
            };
            let [packets, bytes] = if reason == Reason::Forwarded {
                self.forwards.each_ref().map(|of| of.with_label_values(&[direction]))
            } else {
                self.drops.each_ref().map(|of| of.with_label_values(&[reason.name(), direction]))
            };
            packets.inc_by(traffic.packets);
            bytes.inc_by(traffic.bytes);
        }
        let status = flows.conntrack.status();
        for (map, used) in &status.used {
            self.entries.with_label_values(&[map.name()]).set(i64::try_from(*used).unwrap_or(i64::MAX));
        }
        for ((map, ended), number) in &status.removed {
            self.removed.with_label_values(&[map.name(), ended.name()]).inc_by(*number);
        }
        self.passes.with_label_values(&["success"]).inc_by(status.passes);
        self.passes.with_label_values(&["fail"]).inc_by(status.failures);
        self.pass_seconds.set(status.took.as_secs_f64());
        Ok(())
    }
}

impl Collector for TrafficCollector {
    fn desc(&self) -> Vec<&Desc> {
        let Self { flows: _, drops: [drops, drop_bytes], forwards: [forwards, forward_bytes], .. } = self;
        let Self { entries, removed, passes, pass_seconds, .. } = self;
        let counters = [drops, drop_bytes, forwards, forward_bytes, removed, passes];
        let counters = counters.into_iter().flat_map(Collector::desc);
        counters.chain(entries.desc()).chain(pass_seconds.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(flows) = self.flows.get() else { return Vec::new() };
        if let Err(error) = self.read(flows) {
            tracing::warn!(%error, "the maps of the pod network cannot be read for the metrics");
            return Vec::new();
        }
        let counters =
            [&self.drops, &self.forwards].into_iter().flatten().chain([&self.removed, &self.passes]);
        let counters = counters.flat_map(Collector::collect);
        counters.chain(self.entries.collect()).chain(self.pass_seconds.collect()).collect()
    }
}

impl EndpointCollector {
    pub(super) fn new(endpoints: Arc<OnceLock<Endpoints>>) -> prometheus::Result<Self> {
        let gauges = |name, help, label| IntGaugeVec::new(Opts::new(name, help), &[label]);
        Ok(Self {
            endpoints,
            number: IntGauge::new("cilium_endpoint", "Endpoints of this node")?,
            states: gauges("cilium_endpoint_state", "Endpoints of this node by state", "endpoint_state")?,
            addresses: gauges("cilium_ip_addresses", "Addresses that pods of this node have", "family")?,
            capacity: gauges("cilium_ipam_capacity", "Addresses that pods of this node may have", "family")?,
        })
    }

    fn read(&self, endpoints: &Endpoints) {
        let all = endpoints.list();
        let set = |gauge: &IntGauge, number: u128| gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        set(&self.number, all.len() as u128);
        for state in State::ALL {
            let number = all.iter().filter(|endpoint| endpoint.state == state).count();
            set(&self.states.with_label_values(&[state.name()]), number as u128);
        }
        let pools = endpoints.pools();
        for (family, name) in [(Family::V4, "ipv4"), (Family::V6, "ipv6")] {
            let of_family = || pools.iter().filter(|pool| pool.prefix.family() == family);
            let used = of_family().map(|pool| pool.used as u128).sum();
            let size = of_family().filter(|pool| !pool.is_retired).map(|pool| pool.size);
            set(&self.addresses.with_label_values(&[name]), used);
            set(&self.capacity.with_label_values(&[name]), size.fold(0, u128::saturating_add));
        }
    }
}

impl Collector for EndpointCollector {
    fn desc(&self) -> Vec<&Desc> {
        let Self { endpoints: _, number, states, addresses, capacity } = self;
        [number.desc(), states.desc(), addresses.desc(), capacity.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(endpoints) = self.endpoints.get() else { return Vec::new() };
        self.read(endpoints);
        let Self { endpoints: _, number, states, addresses, capacity } = self;
        [number.collect(), states.collect(), addresses.collect(), capacity.collect()].concat()
    }
}
