//! Slices whose writes come to nothing while others' do: what is new goes elsewhere.

use std::collections::HashMap;

use crate::write::Outcome;

/// Failures in a row that a slice is forgiven.
const FORGIVEN: u32 = 3;

/// How writes of slices have failed lately.
#[derive(Debug, Default)]
pub(super) struct Refused {
    failures: HashMap<String, Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    in_a_row: u32,
    /// Another slice was written since the first of them: it is not the API server that is away.
    is_alone: bool,
}

impl Refused {
    pub(super) fn note(&mut self, slice: &str, outcome: &Outcome) {
        match outcome {
            Outcome::Done { .. } => {
                self.failures.remove(slice);
                self.failures.values_mut().for_each(|failures| failures.is_alone = true);
            }
            Outcome::Late => {}
            Outcome::Failed(_) => self.failures.entry(slice.to_owned()).or_default().in_a_row += 1,
        }
    }

    pub(super) fn is_avoided(&self, slice: &str) -> bool {
        self.failures.get(slice).is_some_and(|failures| failures.is_alone && failures.in_a_row >= FORGIVEN)
    }

    pub(super) fn forget_gone(&mut self, is_there: impl Fn(&str) -> bool) {
        self.failures.retain(|slice, _| is_there(slice));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_avoided_once_it_alone_fails_for_long() {
        let mut refused = Refused::default();
        let failed = || Outcome::Failed("422".to_owned());
        for _ in 0..10 {
            refused.note("a", &failed());
            refused.note("b", &failed());
        }
        assert!(!refused.is_avoided("a"), "the API server may be away");
        refused.note("b", &Outcome::Done { version: 7 });
        assert!(refused.is_avoided("a") && !refused.is_avoided("b"));
        refused.note("a", &Outcome::Done { version: 8 });
        assert!(!refused.is_avoided("a"));
        for _ in 0..FORGIVEN {
            refused.note("c", &failed());
        }
        refused.note("a", &Outcome::Done { version: 9 });
        assert!(refused.is_avoided("c"));
        refused.forget_gone(|name| name != "c");
        assert!(!refused.is_avoided("c"));
    }
}
