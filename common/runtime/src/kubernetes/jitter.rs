//! Chance, so that processes that fail together do not come back together.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

/// A number of [0, 1) that differs between processes and calls: the hash keys of the standard library come from the
/// kernel's random numbers. Good enough to keep a cluster's agents from acting in step.
pub(super) fn fraction() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 11;
    // 53 bits are what an f64 holds exactly.
    bits as f64 / (1_u64 << 53) as f64
}

/// A duration of [`from`, `to`).
pub fn between(from: Duration, to: Duration) -> Duration {
    from + to.saturating_sub(from).mul_f64(fraction())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_spreads_over_its_whole_range() {
        let drawn: Vec<f64> = (0..1000).map(|_| fraction()).collect();
        assert!(drawn.iter().all(|value| (0.0..1.0).contains(value)));
        for tenth in 0..10 {
            let range = f64::from(tenth) / 10.0..f64::from(tenth + 1) / 10.0;
            let hits = drawn.iter().filter(|value| range.contains(value)).count();
            assert!((40..200).contains(&hits), "{hits} of 1000 in {range:?}");
        }
    }
}
