use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portway_runtime::kubernetes::jitter;

use crate::observed::Kind;
use crate::write::Write;

/// So many objects are refused in a row before it is their kind's fault: of fewer each is its own.
const MANY: usize = 3;
/// The first and the longest pause of a kind.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(20));

/// Kinds whose every write is refused for who asks and not for what it is: a role that is missing, credentials that are
/// void, too many requests. One write in a while then asks for all of them.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<Kind, Refusal>);

#[derive(Debug, Default)]
struct Refusal {
    /// Those that were refused since one was not, at most [`MANY`].
    objects: BTreeSet<String>,
    /// The upper end of the pause.
    pause: Duration,
    until: Duration,
    error: String,
}

/// How many writes of a kind may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Any,
    One,
    NoneUntil(Duration),
}

impl Refusals {
    pub(super) fn refused(&mut self, write: &Write, error: &str, asked: Option<Duration>, now: Duration) {
        let refusal = self.0.entry(write.kind).or_default();
        error.clone_into(&mut refusal.error);
        if refusal.objects.len() < MANY {
            refusal.objects.insert(write.object.clone());
        }
        if refusal.objects.len() < MANY {
            return;
        }
        // What was sent together is refused together.
        if now >= refusal.until {
            refusal.pause = (refusal.pause * 2).clamp(PAUSE.0, PAUSE.1);
            refusal.until = now + jitter::between(refusal.pause / 2, refusal.pause);
        }
        let asked = asked.unwrap_or_default().min(super::backoff::LONGEST_ASKED);
        refusal.until = refusal.until.max(now + asked);
    }

    /// Another answer came for a write of the kind. True if the kind was refused, and not single objects of it.
    pub(super) fn taken(&mut self, kind: Kind) -> bool {
        self.0.remove(&kind).is_some_and(|refusal| refusal.objects.len() == MANY)
    }

    pub(super) fn room(&self, kind: Kind, now: Duration) -> Room {
        match self.0.get(&kind) {
            Some(refusal) if refusal.until > now => Room::NoneUntil(refusal.until),
            Some(refusal) if refusal.objects.len() == MANY => Room::One,
            Some(_) | None => Room::Any,
        }
    }

    /// The last errors of the kinds that are refused.
    pub(super) fn errors(&self) -> BTreeMap<&'static str, String> {
        let refused = self.0.iter().filter(|(_, refusal)| refusal.objects.len() == MANY);
        refused.map(|(kind, refusal)| (kind.name(), refusal.error.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kind_is_asked_for_ever_more_rarely_and_one_object_is_no_kind() {
        let write = |name: &str| Write::create(Kind::CiliumNode, name, json!({}), "test");
        let mut refusals = Refusals::default();
        let mut now = Duration::from_secs(1000);
        for _ in 0..9 {
            refusals.refused(&write("bad"), "403", None, now);
        }
        assert_eq!(refusals.room(Kind::CiliumNode, now), Room::Any);
        assert!(!refusals.taken(Kind::CiliumNode), "the one waits for itself");
        for upper in [1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0] {
            // A turn of many is one refusal.
            ["a", "b", "c", "d"].iter().for_each(|name| refusals.refused(&write(name), "403", None, now));
            let Room::NoneUntil(until) = refusals.room(Kind::CiliumNode, now) else { panic!("{refusals:?}") };
            let wait = (until - now).as_secs_f64();
            assert!((upper / 2.0..=upper).contains(&wait), "{wait} of {upper}");
            now = until;
            assert_eq!(refusals.room(Kind::CiliumNode, now), Room::One);
        }
        assert_eq!(refusals.errors(), [("CiliumNode", "403".to_owned())].into());
        assert_eq!(refusals.room(Kind::Node, now), Room::Any);
        refusals.refused(&write("a"), "429", Some(Duration::from_secs(100)), now);
        assert_eq!(
            refusals.room(Kind::CiliumNode, now),
            Room::NoneUntil(now + Duration::from_secs(100)),
            "as long as it asks"
        );
        assert!(refusals.taken(Kind::CiliumNode));
        assert_eq!((refusals.room(Kind::CiliumNode, now), refusals.errors().len()), (Room::Any, 0));
    }
}
