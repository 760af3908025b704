//! Which controllers a leader has.

use portway_claims::config::IdentityScheme;
use prometheus::Registry;

use crate::config::{Config, Ipam};
use crate::controller::Controller;
use crate::endpoint_gc::{self, EndpointGc};
use crate::identities;
use crate::identity_alarm::{self, IdentityAlarm};
use crate::identity_gc::{self, IdentityGc};
use crate::ipam;
use crate::nodes::{Discovery, Gc, Readiness, Unmanaged, UnmanagedMetrics};
use crate::observed::Kind;
use crate::slices::{self, Slices};
use crate::wishes::Rules;

/// What controllers share over all times that this process leads: metrics, which can be registered only once.
#[derive(Clone)]
pub struct Instruments {
    slices: slices::Metrics,
    endpoint_gc: endpoint_gc::Metrics,
    pub(super) identities: identities::Metrics,
    identity_gc: identity_gc::Metrics,
    identity_alarm: identity_alarm::Metrics,
    ipam: ipam::Metrics,
    unmanaged: UnmanagedMetrics,
}

impl Instruments {
    /// # Errors
    /// Two metrics of one name.
    pub fn new(registry: &Registry) -> anyhow::Result<Self> {
        Ok(Self {
            slices: slices::Metrics::new(registry)?,
            endpoint_gc: endpoint_gc::Metrics::new(registry)?,
            identities: identities::Metrics::new(registry)?,
            identity_gc: identity_gc::Metrics::new(registry)?,
            identity_alarm: identity_alarm::Metrics::new(registry)?,
            ipam: ipam::Metrics::new(registry)?,
            unmanaged: UnmanagedMetrics::new(registry)?,
        })
    }
}

/// The controllers that the configuration asks for, new each time this process begins to lead. The order is that of
/// their turns.
pub fn all(config: &Config, instruments: &Instruments) -> Vec<Box<dyn Controller>> {
    let mut all: Vec<Box<dyn Controller>> = Vec::new();
    match &config.endpoints.slices {
        Some(config) => all.push(Box::new(Slices::new(config.clone(), instruments.slices.clone()))),
        None => all.push(Box::new(slices::Left::new(config.namespace.clone()))),
    }
    if !config.endpoints.gc_interval.is_zero() {
        let config = endpoint_gc::Config { interval: config.endpoints.gc_interval };
        all.push(Box::new(EndpointGc::new(config, instruments.endpoint_gc.clone())));
    }
    if let Some(gc) = identity_gc(config) {
        all.push(Box::new(IdentityGc::new(gc, instruments.identity_gc.clone())));
    }
    all.push(Box::new(IdentityAlarm::new(config.identities.range, instruments.identity_alarm.clone())));
    if let Some(config) = config.nodes.discovery {
        all.push(Box::new(Discovery::new(config)));
    }
    if let Ipam::ClusterPool(config) = &config.ipam {
        all.push(Box::new(ipam::Ipam::new(config.clone(), instruments.ipam.clone())));
    }
    if let Some(config) = &config.nodes.readiness {
        all.push(Box::new(Readiness::new(config.clone())));
    }
    if let Some(config) = &config.nodes.unmanaged {
        all.push(Box::new(Unmanaged::new(config.clone(), instruments.unmanaged.clone())));
    }
    if !config.nodes.gc_interval.is_zero() {
        all.push(Box::new(Gc::new(config.nodes.gc_interval)));
    }
    all
}

/// How identities are made, where the operator makes them.
pub fn identities(config: &Config) -> Option<identities::Config> {
    let IdentityScheme { mode, labels, cluster_name, cluster_id: _ } = &config.identities.scheme;
    mode.operator_claims().then(|| identities::Config {
        range: config.identities.range,
        rules: Rules {
            filter: labels.clone(),
            cluster_name: cluster_name.clone(),
            namespace: config.namespace.clone(),
        },
    })
}

fn identity_gc(config: &Config) -> Option<identity_gc::Config> {
    let of = &config.identities;
    (!of.gc_interval.is_zero()).then(|| identity_gc::Config {
        interval: of.gc_interval,
        timeout: of.heartbeat_timeout,
        rate_interval: of.gc_rate_interval,
        rate_limit: of.gc_rate_limit,
        range: of.range,
        rules: identities(config).map(|identities| identities.rules),
        has_slices: config.endpoints.slices.is_some(),
    })
}

/// The kinds that any of them looks at, without repetition.
pub fn kinds(config: &Config, instruments: &Instruments) -> Vec<Kind> {
    let controllers = all(config, instruments);
    let of_identities = if identities(config).is_some() { identities::KINDS } else { &[] };
    let looked_at = controllers.iter().flat_map(|controller| controller.kinds()).chain(of_identities);
    let mut kinds: Vec<Kind> = looked_at.copied().collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}
