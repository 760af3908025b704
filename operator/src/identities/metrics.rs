use std::time::Duration;

use portway_runtime::metrics::register;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

/// Of all times that this process led. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    events: IntCounterVec,
    latency: HistogramVec,
    wanted: IntGauge,
    waiting: IntGauge,
}

/// What Cilium calls the sort of items in the queue.
const RESOURCE: &str = "cid";

impl Metrics {
    /// # Errors
    /// Two metrics of one name.
    pub fn new(registry: &Registry) -> anyhow::Result<Self> {
        // A histogram called `…_event` would have a series of this name: there is none.
        let events = Opts::new(
            "cilium_operator_cid_controller_work_queue_event_count",
            "Claims of label sets to identities, by outcome: success, fail (it is tried again)",
        );
        let latency = HistogramOpts::new(
            "cilium_operator_cid_controller_work_queue_latency",
            "Seconds of a label set in the queue (enqueued), and of its claim (processing)",
        );
        let latency = latency.buckets(vec![0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0]);
        Ok(Self {
            events: register(registry, IntCounterVec::new(events, &["resource", "outcome"])?)?,
            latency: register(registry, HistogramVec::new(latency, &["resource", "phase"])?)?,
            wanted: register(
                registry,
                IntGauge::new("portway_operator_label_sets", "Label sets that pods have")?,
            )?,
            waiting: register(
                registry,
                IntGauge::new(
                    "portway_operator_label_sets_waiting",
                    "Label sets whose claims have not begun: others go first, or no number is free",
                )?,
            )?,
        })
    }

    pub(super) fn began(&self, waited: Duration) {
        self.latency.with_label_values(&[RESOURCE, "enqueued"]).observe(waited.as_secs_f64());
    }

    pub(super) fn held(&self, took: Duration) {
        self.latency.with_label_values(&[RESOURCE, "processing"]).observe(took.as_secs_f64());
        self.events.with_label_values(&[RESOURCE, "success"]).inc();
    }

    pub(super) fn failed(&self) {
        self.events.with_label_values(&[RESOURCE, "fail"]).inc();
    }

    pub(super) fn show(&self, wanted: usize, waiting: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.wanted.set(number(wanted));
        self.waiting.set(number(waiting));
    }
}
