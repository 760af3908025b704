//! Prometheus metrics: one registry a process, made by the wiring and passed down.
//!
//! A metric that Cilium has too keeps Cilium's whole name (`cilium_bpf_map_pressure`), so that dashboards and alerts
//! carry over; everything else begins with `portway_`. Label values are closed sets, never names of objects.

mod of_process;

use prometheus::core::Collector;
use prometheus::{Encoder as _, Registry, TextEncoder};

/// A metric that cannot be registered or written: two of one name, or a label that does not fit.
#[derive(Debug, thiserror::Error)]
#[error("metric {name:?} cannot be registered: {source}")]
pub struct MetricsError {
    name: String,
    #[source]
    source: prometheus::Error,
}

/// Adds a metric and returns it: it is a handle to the one in the registry.
///
/// # Errors
/// The registry has a metric of this name.
pub fn register<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, MetricsError> {
    registry.register(Box::new(metric.clone())).map_err(|source| MetricsError {
        name: metric.desc().first().map(|desc| desc.fq_name.clone()).unwrap_or_default(),
        source,
    })?;
    Ok(metric)
}

pub use of_process::process;

/// The registry in Prometheus' text format.
///
/// # Errors
/// A metric without values for all its labels, which is a defect.
pub fn render(registry: &Registry) -> Result<String, prometheus::Error> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use prometheus::{IntCounterVec, Opts};

    use super::*;

    #[test]
    fn a_registered_metric_is_rendered_and_a_second_of_its_name_refused() {
        let registry = Registry::new();
        let counter =
            || IntCounterVec::new(Opts::new("portway_things_total", "things"), &["outcome"]).unwrap();
        let things = register(&registry, counter()).unwrap();
        things.with_label_values(&["success"]).inc();
        assert!(render(&registry).unwrap().contains("portway_things_total{outcome=\"success\"} 1"));
        let error = register(&registry, counter()).unwrap_err();
        assert!(error.to_string().contains("portway_things_total"), "{error}");
    }
}
