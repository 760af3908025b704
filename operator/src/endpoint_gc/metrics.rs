use prometheus::{IntCounterVec, Opts, Registry};

/// Handles to the metrics in the registry, under Cilium's names. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    objects: IntCounterVec,
}

impl Metrics {
    /// # Errors
    /// The registry has a metric of the name.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let help = "CiliumEndpoints without a pod that were to be deleted, by the outcome";
        let opts = Opts::new("cilium_operator_endpoint_gc_objects", help);
        let objects = IntCounterVec::new(opts, &["outcome"])?;
        registry.register(Box::new(objects.clone()))?;
        Ok(Self { objects })
    }

    pub(super) fn deleted(&self, is_done: bool) {
        self.objects.with_label_values(&[if is_done { "success" } else { "fail" }]).inc();
    }
}
