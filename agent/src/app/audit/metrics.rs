use std::time::Duration;

use portway_runtime::metrics::register;
use prometheus::{Gauge, GaugeVec, IntCounterVec, Opts, Registry};

/// What the audit counts.
#[derive(Clone)]
pub(in crate::app) struct AuditMetrics {
    divergence: IntCounterVec,
    repairs: IntCounterVec,
    oldest: Gauge,
    seconds: GaugeVec,
}

impl AuditMetrics {
    pub(in crate::app) fn new(registry: &Registry) -> anyhow::Result<Self> {
        let counters = |name, help, label| IntCounterVec::new(Opts::new(name, help), &[label]);
        Ok(Self {
            divergence: register(
                registry,
                counters(
                    "portway_audit_divergence_total",
                    "Differences that the audit found, by kind: program, pin, a map, plan, an object's kind",
                    "kind",
                )?,
            )?,
            repairs: register(
                registry,
                counters("portway_audit_repairs_total", "Differences that were put right, by kind", "what")?,
            )?,
            oldest: register(
                registry,
                Gauge::new(
                    "portway_audit_age_seconds",
                    "How long the oldest difference that is not put right has been known; 0 without one",
                )?,
            )?,
            seconds: register(
                registry,
                GaugeVec::new(
                    Opts::new("portway_audit_seconds", "What the last look or comparison took"),
                    &["scope"],
                )?,
            )?,
        })
    }

    pub(super) fn diverged(&self, kind: &str) {
        self.divergence.with_label_values(&[kind]).inc();
    }

    pub(super) fn repaired(&self, kind: &str) {
        self.repairs.with_label_values(&[kind]).inc();
    }

    pub(super) fn oldest(&self, age: Option<Duration>) {
        self.oldest.set(age.unwrap_or_default().as_secs_f64());
    }

    pub(super) fn took(&self, compared: bool, took: Duration) {
        let scope = if compared { "comparison" } else { "look" };
        self.seconds.with_label_values(&[scope]).set(took.as_secs_f64());
    }
}
