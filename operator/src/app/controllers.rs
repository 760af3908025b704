//! Which controllers a leader has.

use prometheus::Registry;

use crate::config::Config;
use crate::controller::Controller;
use crate::observed::Kind;

/// What controllers share over all times that this process leads: metrics, which can be registered only once.
#[derive(Clone)]
pub struct Instruments {}

impl Instruments {
    /// # Errors
    /// Two metrics of one name.
    pub fn new(_registry: &Registry) -> anyhow::Result<Self> {
        Ok(Self {})
    }
}

/// The controllers that the configuration asks for, new each time this process begins to lead. The order is that of
/// their turns.
pub fn all(_config: &Config, _instruments: &Instruments) -> Vec<Box<dyn Controller>> {
    Vec::new()
}

/// The kinds that any of them looks at, without repetition.
pub fn kinds(config: &Config, instruments: &Instruments) -> Vec<Kind> {
    let controllers = all(config, instruments);
    let looked_at = controllers.iter().flat_map(|controller| controller.kinds());
    let mut kinds: Vec<Kind> = looked_at.copied().collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}
