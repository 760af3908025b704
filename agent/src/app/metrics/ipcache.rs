//! The table of who is where, read at each scrape.

use std::sync::{Arc, OnceLock};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGauge, Opts};

use crate::ipcache::IpcacheStatus;
use crate::network::Flows;

/// What became of entries of `pw_ipcache`.
pub(super) struct IpcacheCollector {
    flows: Arc<OnceLock<Flows>>,
    events: IntCounterVec,
    errors: IntCounterVec,
    healed: IntCounterVec,
    entries: IntGauge,
    outstanding: IntGauge,
}

impl IpcacheCollector {
    pub(super) fn new(flows: Arc<OnceLock<Flows>>) -> prometheus::Result<Self> {
        let counter = |name, help, label| IntCounterVec::new(Opts::new(name, help), &[label]);
        Ok(Self {
            flows,
            events: counter(
                "cilium_ipcache_events_total",
                "Entries of the ipcache that were written",
                "type",
            )?,
            errors: counter(
                "cilium_ipcache_errors_total",
                "Entries of the ipcache that the kernel refused, each time it was tried",
                "error",
            )?,
            healed: counter(
                "portway_ipcache_healed_total",
                "Entries of the ipcache that were not as they had been written",
                "outcome",
            )?,
            entries: IntGauge::new("portway_ipcache_entries", "Entries of the ipcache")?,
            outstanding: IntGauge::new(
                "portway_ipcache_outstanding",
                "Entries of the ipcache that are not as wanted yet",
            )?,
        })
    }

    fn read(&self, status: &IpcacheStatus) {
        for (counter, label, number) in [
            (&self.events, "upsert", status.upserts),
            (&self.events, "delete", status.deletes),
            (&self.errors, "full", status.full),
            (&self.errors, "kernel", status.errors),
            (&self.healed, "success", status.healed),
        ] {
            let counter = counter.with_label_values(&[label]);
            counter.inc_by(number.saturating_sub(counter.get()));
        }
        self.entries.set(i64::try_from(status.entries).unwrap_or(i64::MAX));
        self.outstanding.set(i64::try_from(status.outstanding).unwrap_or(i64::MAX));
    }
}

impl Collector for IpcacheCollector {
    fn desc(&self) -> Vec<&Desc> {
        let Self { flows: _, events, errors, healed, entries, outstanding } = self;
        [events.desc(), errors.desc(), healed.desc(), entries.desc(), outstanding.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(flows) = self.flows.get() else { return Vec::new() };
        self.read(&flows.ipcache.status());
        let Self { flows: _, events, errors, healed, entries, outstanding } = self;
        [events.collect(), errors.collect(), healed.collect(), entries.collect(), outstanding.collect()]
            .concat()
    }
}
