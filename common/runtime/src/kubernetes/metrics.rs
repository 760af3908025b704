use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, IntCounterVec, IntGauge, Opts};

use super::events::RecorderStatus;
use super::ledger::ClientStatus;
use super::watch::WatchStatus;

/// What there is to tell of an API server at the moment.
pub struct Told {
    pub watches: Vec<WatchStatus>,
    pub client: ClientStatus,
    /// Where Events are written.
    pub events: Option<RecorderStatus>,
}

/// Metrics of watches, requests and Events: what `told` tells at each scrape.
pub struct ApiServerCollector<F> {
    told: F,
    age: GaugeVec,
    relists: IntCounterVec,
    resumes: IntCounterVec,
    events: IntCounterVec,
    errors: IntCounterVec,
    requests: IntCounterVec,
    throttled: CounterVec,
    reachable: IntGauge,
    object_events: IntCounterVec,
}

impl<F: Fn() -> Told> ApiServerCollector<F> {
    /// # Errors
    /// None that a caller could make.
    pub fn new(told: F) -> prometheus::Result<Self> {
        let counter = |name, help, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        Ok(Self {
            told,
            age: GaugeVec::new(
                Opts::new("portway_watch_age_seconds", "Seconds since a watch last showed that it lives"),
                &["kind"],
            )?,
            relists: counter("portway_watch_relists_total", "Lists after the first one", &["kind"])?,
            resumes: counter(
                "portway_watch_resumes_total",
                "Watches that went on where another had ended",
                &["kind"],
            )?,
            events: counter("portway_watch_events_total", "Events of watches", &["kind"])?,
            errors: counter(
                "portway_watch_errors_total",
                "What ended watches and lists, by reason",
                &["kind", "reason"],
            )?,
            requests: counter(
                "portway_kubernetes_requests_total",
                "Requests to the API server, by HTTP status or why there was none",
                &["code"],
            )?,
            throttled: CounterVec::new(
                Opts::new(
                    "portway_kubernetes_throttled_seconds_total",
                    "Seconds that requests waited for the rate limit",
                ),
                &[],
            )?,
            object_events: counter(
                "portway_kubernetes_events_total",
                "Events on objects, by outcome: recorded, written or dropped",
                &["outcome"],
            )?,
            reachable: IntGauge::new(
                "portway_kubernetes_reachable",
                "1 unless the last request found no API server that could answer it",
            )?,
        })
    }

    fn read_watch(&self, status: &WatchStatus) {
        let kind = &[status.kind];
        self.age.with_label_values(kind).set(status.age_seconds);
        set(&self.relists, kind, status.relists);
        set(&self.resumes, kind, status.resumes);
        set(&self.events, kind, status.events);
        for (reason, number) in &status.errors {
            set(&self.errors, &[status.kind, reason], *number);
        }
    }

    fn all(&self) -> [&dyn Collector; 9] {
        [
            &self.age,
            &self.relists,
            &self.resumes,
            &self.events,
            &self.errors,
            &self.requests,
            &self.throttled,
            &self.reachable,
            &self.object_events,
        ]
    }

    fn read_client(&self, status: &ClientStatus) {
        for (code, number) in &status.answers {
            set(&self.requests, &[&code.to_string()], *number);
        }
        // Failures with a status are among the answers.
        let unanswered = status.failures.iter().filter(|(label, _)| label.parse::<u16>().is_err());
        for (label, number) in unanswered {
            set(&self.requests, &[label], *number);
        }
        let throttled = self.throttled.with_label_values::<&str>(&[]);
        throttled.inc_by((status.throttled_seconds - throttled.get()).max(0.0));
        self.reachable.set((status.reachable != Some(false)).into());
    }
}

/// Raises a counter to what was counted elsewhere.
fn set(counter: &IntCounterVec, labels: &[&str], number: u64) {
    let counter = counter.with_label_values(labels);
    counter.inc_by(number.saturating_sub(counter.get()));
}

impl<F: Fn() -> Told + Send + Sync> Collector for ApiServerCollector<F> {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Told { watches, client, events } = (self.told)();
        watches.iter().for_each(|status| self.read_watch(status));
        self.read_client(&client);
        if let Some(RecorderStatus { recorded, written, dropped, last_error: _ }) = events {
            for (outcome, number) in [("recorded", recorded), ("written", written), ("dropped", dropped)] {
                set(&self.object_events, &[outcome], number);
            }
        }
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}
