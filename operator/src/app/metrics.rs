//! Metrics of the process: watches, requests, leadership. Those that Cilium's operator has too bear its names, with
//! `cilium_operator_` in front; the others begin with `portway_`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portway_runtime::kubernetes::{ApiServerCollector, Client, Elector, Fence, Leadership, Told};
use portway_runtime::metrics::{process, register};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
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
    leadership: watch::Receiver<Leadership>,
    fence: Fence,
    numbers: Objects,
    objects: IntGaugeVec,
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
        let told = move || Told {
            watches: watches.status().into_iter().map(|(_, status)| status).collect(),
            client: client.status(),
            events: None,
        };
        registry.register(Box::new(ApiServerCollector::new(told)?))?;
        let metrics = Self {
            leadership: elector.leadership(),
            fence: elector.fence().clone(),
            numbers: numbers.clone(),
            objects: IntGaugeVec::new(
                Opts::new("portway_operator_objects", "Objects that are known, by kind"),
                &["kind"],
            )?,
            leading: IntGauge::new("portway_operator_leading", "1 on the replica that leads")?,
            fenced: IntCounterVec::new(
                Opts::new(
                    "portway_operator_fenced_writes_total",
                    "Writes that the lease was asked for, by outcome: passed or refused",
                ),
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
        [self.objects.desc(), self.leading.desc(), self.fenced.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (kind, number) in Kind::ALL.iter().zip(self.numbers.0.iter()) {
            let number = i64::try_from(number.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
            self.objects.with_label_values(&[kind.name()]).set(number);
        }
        self.leading.set(matches!(*self.leadership.borrow(), Leadership::Leading { .. }).into());
        set(&self.fenced, &["passed"], self.fence.passed());
        set(&self.fenced, &["refused"], self.fence.refused());
        [self.objects.collect(), self.leading.collect(), self.fenced.collect()].concat()
    }
}
