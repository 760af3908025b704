//! Metrics of the process: watches, requests, leadership. Those that Cilium's operator has too bear its names, with
//! `cilium_operator_` in front; the others begin with `portway_`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portway_runtime::kubernetes::{Client, Elector, Fence, Leadership};
use portway_runtime::metrics::{process, register};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use tokio::sync::watch;

use crate::observed::Kind;
use crate::watches::Shown;

/// Objects by kind. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Objects(Arc<[AtomicU64; Kind::ALL.len()]>);

impl Objects {
    pub(super) fn set(&self, kind: Kind, number: usize) {
        let at = Kind::ALL.iter().position(|of| *of == kind).and_then(|at| self.0.get(at));
        if let Some(counter) = at {
            counter.store(number as u64, Ordering::Relaxed);
        }
    }
}

/// Read at each scrape.
pub(super) struct Metrics {
    client: Client,
    watches: Shown,
    leadership: watch::Receiver<Leadership>,
    fence: Fence,
    numbers: Objects,
    objects: IntGaugeVec,
    age: GaugeVec,
    events: IntCounterVec,
    relists: IntCounterVec,
    errors: IntCounterVec,
    requests: IntCounterVec,
    throttled: CounterVec,
    leading: IntGauge,
    fenced: IntCounterVec,
}

impl Metrics {
    /// Registers everything; gives what the main task counts objects by.
    pub(super) fn register(
        registry: &Registry,
        client: Client,
        watches: Shown,
        elector: &Elector,
    ) -> anyhow::Result<Objects> {
        process(registry)?;
        let version = Opts::new("cilium_operator_version", "1, by version");
        let version = register(registry, GaugeVec::new(version, &["version"])?)?;
        version.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        let numbers = Objects::default();
        let counter = |name, help, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let metrics = Self {
            client,
            watches,
            leadership: elector.leadership(),
            fence: elector.fence().clone(),
            numbers: numbers.clone(),
            objects: IntGaugeVec::new(
                Opts::new("portway_operator_objects", "Objects that are known, by kind"),
                &["kind"],
            )?,
            age: GaugeVec::new(
                Opts::new("portway_watch_age_seconds", "Seconds since a watch last showed that it lives"),
                &["kind"],
            )?,
            events: counter("portway_watch_events_total", "Events of watches", &["kind"])?,
            relists: counter("portway_watch_relists_total", "Lists after the first one", &["kind"])?,
            errors: counter(
                "portway_watch_errors_total",
                "What ended watches and lists, by reason",
                &["kind", "reason"],
            )?,
            requests: counter(
                "portway_kubernetes_requests_total",
                "Requests to the API server but those for the lease, by HTTP status or why there was none",
                &["code"],
            )?,
            throttled: CounterVec::new(
                Opts::new(
                    "portway_kubernetes_throttled_seconds_total",
                    "Seconds that requests waited for operator-k8s-client-qps",
                ),
                &[],
            )?,
            leading: IntGauge::new("portway_operator_leading", "1 on the replica that leads")?,
            fenced: counter(
                "portway_operator_fenced_writes_total",
                "Writes that the lease was asked for, by outcome: passed or refused",
                &["outcome"],
            )?,
        };
        registry.register(Box::new(metrics))?;
        Ok(numbers)
    }
}

/// Raises a counter to what was counted elsewhere.
fn set(counter: &IntCounterVec, labels: &[&str], number: u64) {
    let counter = counter.with_label_values(labels);
    counter.inc_by(number.saturating_sub(counter.get()));
}

impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        [
            self.objects.desc(),
            self.age.desc(),
            self.events.desc(),
            self.relists.desc(),
            self.errors.desc(),
            self.requests.desc(),
            self.throttled.desc(),
            self.leading.desc(),
            self.fenced.desc(),
        ]
        .concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (kind, number) in Kind::ALL.iter().zip(self.numbers.0.iter()) {
            let number = i64::try_from(number.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
            self.objects.with_label_values(&[kind.name()]).set(number);
        }
        for (_, status) in self.watches.status() {
            let kind = &[status.kind];
            self.age.with_label_values(kind).set(status.age_seconds);
            set(&self.events, kind, status.events);
            set(&self.relists, kind, status.relists);
            for (reason, number) in &status.errors {
                set(&self.errors, &[status.kind, reason], *number);
            }
        }
        let status = self.client.status();
        for (code, number) in &status.answers {
            set(&self.requests, &[&code.to_string()], *number);
        }
        // Failures with a status are among the answers.
        for (label, number) in status.failures.iter().filter(|(label, _)| label.parse::<u16>().is_err()) {
            set(&self.requests, &[label], *number);
        }
        let throttled = self.throttled.with_label_values::<&str>(&[]);
        throttled.inc_by((status.throttled_seconds - throttled.get()).max(0.0));
        self.leading.set(matches!(*self.leadership.borrow(), Leadership::Leading { .. }).into());
        set(&self.fenced, &["passed"], self.fence.passed());
        set(&self.fenced, &["refused"], self.fence.refused());
        [
            self.objects.collect(),
            self.age.collect(),
            self.events.collect(),
            self.relists.collect(),
            self.errors.collect(),
            self.requests.collect(),
            self.throttled.collect(),
            self.leading.collect(),
            self.fenced.collect(),
        ]
        .concat()
    }
}
