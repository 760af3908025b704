use std::time::Duration;

use portway_runtime::metrics::register;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// What controllers did, over all times that this process led. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    plan_seconds: HistogramVec,
    writes: IntCounterVec,
}

impl Metrics {
    /// # Errors
    /// Two metrics of one name.
    pub fn new(registry: &Registry) -> anyhow::Result<Self> {
        let plan_seconds = HistogramOpts::new(
            "portway_operator_plan_seconds",
            "Seconds that a controller's plan took; their number is that of its turns",
        );
        let plan_seconds = plan_seconds.buckets(vec![0.0001, 0.001, 0.01, 0.1, 1.0, 10.0]);
        let writes = Opts::new(
            "portway_operator_writes_total",
            "Writes of controllers, by outcome: done, late (the object was not what was seen), failed, fenced (the lease \
             was not held)",
        );
        Ok(Self {
            plan_seconds: register(registry, HistogramVec::new(plan_seconds, &["controller"])?)?,
            writes: register(registry, IntCounterVec::new(writes, &["controller", "outcome"])?)?,
        })
    }

    pub(super) fn planned(&self, controller: &str, took: Duration) {
        self.plan_seconds.with_label_values(&[controller]).observe(took.as_secs_f64());
    }

    pub(super) fn wrote(&self, controller: &str, outcome: &str) {
        self.writes.with_label_values(&[controller, outcome]).inc();
    }
}
