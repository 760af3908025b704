//! How many identities there are, and how they come to their numbers; read at each scrape.

use std::sync::{Arc, OnceLock};

use portway_datapath::NumericIdentity;
use portway_model::labels::{Labels, SOURCE_RESERVED, SOURCES};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, IntCounter, IntGauge, IntGaugeVec, Opts};

use crate::identities::{Census, Counts, Tally};
use crate::network::Flows;

/// Numbers below it may be reserved ones.
const RESERVED_END: u32 = 100;

/// The identities that the node knows.
pub(super) struct IdentityCollector {
    census: Census,
    /// For those of CIDRs.
    flows: Arc<OnceLock<Flows>>,
    by_type: IntGaugeVec,
    by_source: IntGaugeVec,
    allocations: IntCounter,
    allocation_seconds: Counter,
    retries: IntCounter,
    /// Of the cluster's, in the range of its id.
    capacity: IntGauge,
}

impl IdentityCollector {
    pub(super) fn new(census: Census, flows: Arc<OnceLock<Flows>>) -> prometheus::Result<Self> {
        let gauges = |name, help, label| IntGaugeVec::new(Opts::new(name, help), &[label]);
        let (first, last) = NumericIdentity::of_cluster(0);
        let capacity =
            IntGauge::new("portway_identity_capacity", "Identities that the cluster may have, by its id")?;
        capacity.set(i64::from(last.get() - first.get()) + 1);
        Ok(Self {
            census,
            flows,
            by_type: gauges("cilium_identity", "Identities that the agent knows", "type")?,
            by_source: gauges(
                "cilium_identity_label_sources",
                "Identities that have a label of the source",
                "source",
            )?,
            allocations: IntCounter::new(
                "portway_identity_allocations_total",
                "Label sets of this node's pods that came to their numbers by requests",
            )?,
            allocation_seconds: Counter::new(
                "portway_identity_allocation_seconds_total",
                "Seconds that those waited for their numbers, added up",
            )?,
            retries: IntCounter::new(
                "portway_identity_allocation_retries_total",
                "Requests for a number that failed or came too late and were followed by others",
            )?,
            capacity,
        })
    }

    fn read(&self) {
        let Tally { cluster, by_source, allocation } = self.census.tally();
        let local = self.flows.get().map(|flows| flows.ipcache.local_identities()).unwrap_or_default();
        let reserved = (1..RESERVED_END).map(NumericIdentity::new);
        let reserved = reserved.filter(|number| number.reserved_name().is_some()).count();
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        for (kind, count) in
            [("cluster_local", cluster), ("node_local", local.len() as u64), ("reserved", reserved as u64)]
        {
            self.by_type.with_label_values(&[kind]).set(number(count));
        }
        self.by_source.reset();
        for (source, count) in by_source {
            self.by_source.with_label_values(&[source]).set(number(count));
        }
        for source in SOURCES {
            let has = |(_, labels): &&(_, Labels)| labels.iter().any(|label| &*label.source == source);
            let reserved = if source == SOURCE_RESERVED { reserved } else { 0 };
            let count = local.iter().filter(has).count() + reserved;
            if count > 0 {
                self.by_source.with_label_values(&[source]).add(number(count as u64));
            }
        }
        let Counts { allocated, seconds, retries } = allocation;
        self.allocations.inc_by(allocated.saturating_sub(self.allocations.get()));
        self.retries.inc_by(retries.saturating_sub(self.retries.get()));
        self.allocation_seconds.inc_by((seconds - self.allocation_seconds.get()).max(0.0));
    }
}

impl Collector for IdentityCollector {
    fn desc(&self) -> Vec<&Desc> {
        let Self { census: _, flows: _, by_type, by_source, .. } = self;
        let Self { allocations, allocation_seconds, retries, capacity, .. } = self;
        let gauges = [by_type.desc(), by_source.desc(), capacity.desc()].concat();
        [gauges, allocations.desc(), allocation_seconds.desc(), retries.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        let Self { census: _, flows: _, by_type, by_source, .. } = self;
        let Self { allocations, allocation_seconds, retries, capacity, .. } = self;
        let gauges = [by_type.collect(), by_source.collect(), capacity.collect()].concat();
        [gauges, allocations.collect(), allocation_seconds.collect(), retries.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use portway_model::k8s::{Event, Format, Names, decode};
    use prometheus::{Registry, TextEncoder};

    use super::*;

    #[test]
    fn identities_are_shown_by_type_and_by_source_under_ciliums_names() {
        let census = Census::default();
        let registry = Registry::new();
        let collector = IdentityCollector::new(census.clone(), Arc::default()).unwrap();
        registry.register(Box::new(collector)).unwrap();
        let text = r#"{"apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": {"name": "300"},
            "security-labels": {"k8s:app": "web"}}"#;
        let identity =
            decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap().objects.remove(0);
        census.observe(&Event::Apply(identity));
        // Twice: nothing adds up from scrape to scrape.
        registry.gather();
        let shown = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            "cilium_identity{type=\"cluster_local\"} 1",
            "cilium_identity{type=\"node_local\"} 0",
            "cilium_identity{type=\"reserved\"} 11",
            "cilium_identity_label_sources{source=\"k8s\"} 1",
            "cilium_identity_label_sources{source=\"reserved\"} 11",
            "portway_identity_capacity 65280",
            "portway_identity_allocations_total 0",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
        }
    }
}
