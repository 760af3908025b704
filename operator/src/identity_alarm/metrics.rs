use portway_runtime::metrics::register;
use prometheus::{IntGauge, Registry};

/// Of all times that this process led. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    count: IntGauge,
    capacity: IntGauge,
    alarm: IntGauge,
}

impl Metrics {
    /// # Errors
    /// Two metrics of one name.
    pub fn new(registry: &Registry) -> anyhow::Result<Self> {
        let gauge = |name, help| IntGauge::new(name, help);
        Ok(Self {
            count: register(
                registry,
                gauge("cilium_operator_identity_count", "CiliumIdentities that there are")?,
            )?,
            capacity: register(
                registry,
                gauge("portway_operator_identity_capacity", "Identities that there can be")?,
            )?,
            alarm: register(
                registry,
                gauge("portway_operator_identity_alarm", "1 while identities are about to run out")?,
            )?,
        })
    }

    pub(super) fn capacity(&self, count: u32) {
        self.capacity.set(count.into());
    }

    /// Of these there is one in the cluster: the leader's.
    pub(super) fn clear(&self) {
        [&self.count, &self.capacity, &self.alarm].into_iter().for_each(|gauge| gauge.set(0));
    }

    pub(super) fn show(&self, count: usize, is_alarm: bool) {
        self.count.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.alarm.set(is_alarm.into());
    }
}
