use std::time::Duration;

use portway_runtime::metrics::register;
use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry};

/// Of all times that this process led. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    entries: IntGaugeVec,
    runs: IntCounterVec,
    latency: GaugeVec,
}

/// Where identities are: Cilium knows a key-value store, too.
const TYPE: &str = "crd";

impl Metrics {
    /// # Errors
    /// Two metrics of one name.
    pub fn new(registry: &Registry) -> anyhow::Result<Self> {
        let entries = Opts::new(
            "cilium_operator_identity_gc_entries",
            "Identities after the last round (alive), and those that it deleted (deleted)",
        );
        let runs = Opts::new("cilium_operator_identity_gc_runs", "Rounds of garbage collection, by outcome");
        let latency = Opts::new(
            "cilium_operator_identity_gc_latency",
            "Seconds that the last round of an outcome took",
        );
        Ok(Self {
            entries: register(registry, IntGaugeVec::new(entries, &["status", "identity_type"])?)?,
            runs: register(registry, IntCounterVec::new(runs, &["outcome", "identity_type"])?)?,
            latency: register(registry, GaugeVec::new(latency, &["outcome", "identity_type"])?)?,
        })
    }

    /// Of this there is one in the cluster: the leader's.
    pub(super) fn clear(&self) {
        self.entries.reset();
    }

    /// A round has ended.
    pub(super) fn ended(&self, alive: usize, deleted: u64, is_success: bool, took: Duration) {
        let outcome = if is_success { "success" } else { "fail" };
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.entries.with_label_values(&["alive", TYPE]).set(number(alive as u64));
        self.entries.with_label_values(&["deleted", TYPE]).set(number(deleted));
        self.runs.with_label_values(&[outcome, TYPE]).inc();
        self.latency.with_label_values(&[outcome, TYPE]).set(took.as_secs_f64());
    }
}
