use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// Cilium's: operator/pkg/ciliumendpointslice/metrics.go.
const PER_SLICE: [f64; 8] = [1.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
const CHANGES: [f64; 9] = [1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const DELAYS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0];

/// Handles to the metrics in the registry, under Cilium's names. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    per_slice: Histogram,
    changes: HistogramVec,
    syncs: IntCounterVec,
    delay: HistogramVec,
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> prometheus::Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

impl Metrics {
    /// # Errors
    /// The registry has a metric of one of the names.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            HistogramOpts::new(format!("cilium_operator_{name}"), help).buckets(buckets.to_vec())
        };
        let per_slice =
            histogram("number_of_ceps_per_ces", "Endpoints of a slice after each write of it", &PER_SLICE);
        let changes = histogram(
            "number_of_cep_changes_per_ces",
            "Endpoints that a write of a slice has inserted or removed",
            &CHANGES,
        );
        let syncs = Opts::new("cilium_operator_ces_sync_total", "Writes of slices, by their outcome");
        let delay = histogram(
            "ces_queueing_delay_seconds",
            "Time from the moment when a slice was to be written until it was",
            &DELAYS,
        );
        Ok(Self {
            per_slice: register(registry, Histogram::with_opts(per_slice)?)?,
            changes: register(registry, HistogramVec::new(changes, &["opcode"])?)?,
            syncs: register(registry, IntCounterVec::new(syncs, &["outcome"])?)?,
            delay: register(registry, HistogramVec::new(delay, &["queue"])?)?,
        })
    }

    pub(super) fn changed(&self, inserted: usize, removed: usize, left: usize) {
        if left > 0 {
            self.per_slice.observe(left as f64);
        }
        for (opcode, count) in [("cepinserted", inserted), ("cepremoved", removed)] {
            if count > 0 {
                self.changes.with_label_values(&[opcode]).observe(count as f64);
            }
        }
    }

    pub(super) fn synced(&self, is_done: bool) {
        self.syncs.with_label_values(&[if is_done { "success" } else { "fail" }]).inc();
    }

    pub(super) fn waited(&self, has_priority: bool, time: Duration) {
        let queue = if has_priority { "fast" } else { "standard" };
        self.delay.with_label_values(&[queue]).observe(time.as_secs_f64());
    }
}
