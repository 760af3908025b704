use std::collections::BTreeMap;
use std::time::Duration;

use portway_runtime::kubernetes::jitter;

use super::refusals;
use crate::observed::Kind;
use crate::write::Write;

/// The first and the longest wait after a write that came too late: what it did not know is on its way.
const LATE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// After one that failed.
const FAILED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A server may ask to be left alone for no longer.
pub(super) const LONGEST_ASKED: Duration = Duration::from_secs(300);
/// Who was not written for so long after the end of its wait begins anew.
const FORGET: Duration = Duration::from_secs(120);

/// Objects whose last write did not succeed, and how long each is left alone.
#[derive(Debug, Default)]
pub(super) struct Backoff(BTreeMap<(Kind, String), Entry>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The upper end of the wait.
    wait: Duration,
    until: Duration,
    /// It was refused for who asked.
    is_refused: bool,
}

impl Backoff {
    /// Until when the object is left alone.
    pub(super) fn until(&self, write: &Write, now: Duration) -> Option<Duration> {
        let entry = self.0.get(&(write.kind, write.object.clone()))?;
        Some(entry.until).filter(|until| *until > now)
    }

    pub(super) fn late(&mut self, write: &Write, now: Duration) {
        self.push(write, LATE, Duration::ZERO, now);
    }

    pub(super) fn failed(&mut self, write: &Write, asked: Option<Duration>, now: Duration) {
        self.push(write, FAILED, asked.unwrap_or_default().min(LONGEST_ASKED), now);
    }

    /// It failed for who asks, and not for what it is; how often a kind is asked for then says [`refusals`].
    pub(super) fn refused(&mut self, write: &Write, asked: Option<Duration>, now: Duration) {
        self.push(write, refusals::PAUSE, asked.unwrap_or_default().min(LONGEST_ASKED), now);
        if let Some(entry) = self.0.get_mut(&(write.kind, write.object.clone())) {
            // Whom the server asks to wait waits.
            entry.is_refused = asked.is_none();
        }
    }

    /// Who asks for the kind is not refused any more: those that were are left alone no longer.
    pub(super) fn granted(&mut self, kind: Kind) {
        self.0.retain(|(of, _), entry| !(*of == kind && entry.is_refused));
    }

    fn push(
        &mut self,
        write: &Write,
        (shortest, longest): (Duration, Duration),
        least: Duration,
        now: Duration,
    ) {
        let key = (write.kind, write.object.clone());
        let before = self.0.get(&key).map_or(Duration::ZERO, |entry| entry.wait);
        let wait = (before * 2).clamp(shortest, longest);
        let until = now + least.max(jitter::between(wait / 2, wait));
        self.0.insert(key, Entry { wait, until, is_refused: false });
    }

    pub(super) fn done(&mut self, write: &Write) {
        self.0.remove(&(write.kind, write.object.clone()));
    }

    /// Forgets what is long over.
    pub(super) fn sweep(&mut self, now: Duration) {
        self.0.retain(|_, entry| entry.until + FORGET > now);
    }

    /// Objects that are left alone.
    pub(super) fn len(&self, now: Duration) -> usize {
        self.0.values().filter(|entry| entry.until > now).count()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_that_fails_is_left_alone_for_longer_each_time_and_its_neighbours_are_not() {
        let (bad, good) = (
            Write::create(Kind::CiliumNode, "bad", json!({}), "test"),
            Write::create(Kind::CiliumNode, "good", json!({}), "test"),
        );
        let mut backoff = Backoff::default();
        let mut now = Duration::from_secs(1000);
        for upper in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            backoff.failed(&bad, None, now);
            let wait = (backoff.until(&bad, now).unwrap() - now).as_secs_f64();
            assert!((upper / 2.0..=upper).contains(&wait), "{wait} of {upper}");
            assert_eq!(backoff.until(&good, now), None);
            now += Duration::from_secs_f64(wait);
            assert_eq!(backoff.until(&bad, now), None);
        }
        backoff.failed(&bad, Some(Duration::from_secs(200)), now);
        assert_eq!(backoff.until(&bad, now), Some(now + Duration::from_secs(200)));
        for upper in [1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0] {
            backoff.refused(&good, None, now);
            let wait = (backoff.until(&good, now).unwrap() - now).as_secs_f64();
            assert!((upper / 2.0..=upper).contains(&wait), "{wait} of {upper}");
        }
        backoff.granted(Kind::Node);
        assert!(backoff.until(&good, now).is_some());
        backoff.granted(Kind::CiliumNode);
        assert_eq!((backoff.until(&good, now), backoff.until(&bad, now).is_some()), (None, true));
        backoff.done(&bad);
        backoff.late(&bad, now);
        assert!(backoff.until(&bad, now).unwrap() <= now + Duration::from_millis(100));
        backoff.sweep(now + Duration::from_secs(121));
        assert_eq!(backoff.len(Duration::ZERO), 0);
    }
}
