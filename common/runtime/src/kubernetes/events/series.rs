//! Occurrences of the same thing are one Event: made once, counted later, at most each [`COUNT_INTERVAL`].

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;

use super::{Occurrence, Reporter};
use crate::kubernetes::jitter;

/// Between two writes of one count.
pub(super) const COUNT_INTERVAL: Duration = Duration::from_secs(300);
/// A series that saw nothing for so long is over. The API server keeps an Event for an hour.
const SERIES_LENGTH: Duration = Duration::from_secs(1800);
/// More series than this are not held; the oldest is over then.
const MOST_SERIES: usize = 1024;
/// What the API allows: <https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/>.
const LONGEST_NOTE: usize = 1024;
const LONGEST_INSTANCE: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Series {
    series: BTreeMap<Occurrence, One>,
}

#[derive(Debug)]
struct One {
    /// The name of its Event.
    name: String,
    first: SystemTime,
    last: SystemTime,
    seen: Instant,
    count: u64,
    written: u64,
    due: Instant,
}

/// A request to be made.
#[derive(Debug)]
pub(super) enum Write {
    Create { key: Occurrence, path: String, body: Vec<u8> },
    Count { key: Occurrence, path: String, body: Vec<u8> },
}

impl Write {
    pub(super) fn key(&self) -> &Occurrence {
        match self {
            Self::Create { key, .. } | Self::Count { key, .. } => key,
        }
    }

    pub(super) fn body(&self) -> &[u8] {
        match self {
            Self::Create { body, .. } | Self::Count { body, .. } => body,
        }
    }
}

impl Series {
    pub(super) fn observe(&mut self, mut occurrence: Occurrence, now: Instant, clock: SystemTime) {
        cut(&mut occurrence.note, LONGEST_NOTE);
        self.series.retain(|_, one| one.count > one.written || now - one.seen < SERIES_LENGTH);
        if let Some(one) = self.series.get_mut(&occurrence) {
            one.count += 1;
            (one.last, one.seen) = (clock, now);
            return;
        }
        if self.series.len() >= MOST_SERIES {
            let oldest = self.series.iter().min_by_key(|(_, one)| one.seen).map(|(key, _)| key.clone());
            oldest.map(|key| self.series.remove(&key));
        }
        let unique = (jitter::fraction() * (1_u64 << 48) as f64) as u64;
        // A name of at most 253 bytes, of which the object's may be all.
        let mut name = occurrence.regarding.name.clone();
        cut(&mut name, 200);
        let name = format!("{}.{unique:012x}", name.trim_end_matches(['.', '-']));
        let one = One { name, first: clock, last: clock, seen: now, count: 1, written: 0, due: now };
        self.series.insert(occurrence, one);
    }

    /// When there will be something to write.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.series.values().filter(|one| one.count > one.written).map(|one| one.due).min()
    }

    /// What is to be written; it counts as written.
    pub(super) fn take_due(&mut self, now: Instant, reporter: &Reporter) -> Option<Write> {
        let due = self.series.iter_mut().filter(|(_, one)| one.count > one.written && one.due <= now);
        let (occurrence, one) = due.min_by_key(|(_, one)| one.due)?;
        let namespace = match occurrence.regarding.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        let events = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let is_new = one.written == 0;
        let mut instance = reporter.instance.clone();
        cut(&mut instance, LONGEST_INSTANCE);
        // A count of one is no series.
        let series = (one.count > 1).then(
            || json!({"count": one.count.min(i32::MAX as u64), "lastObservedTime": micro_time(one.last)}),
        );
        let key = occurrence.clone();
        one.written = one.count;
        one.due = now + COUNT_INTERVAL;
        if !is_new {
            let body = json!({ "series": series }).to_string().into_bytes();
            return Some(Write::Count { key, path: format!("{events}/{}", one.name), body });
        }
        let body = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": one.name, "namespace": namespace},
            "eventTime": micro_time(one.first),
            "reportingController": reporter.controller,
            "reportingInstance": instance,
            "action": reporter.action,
            "reason": occurrence.reason,
            "regarding": occurrence.regarding,
            "note": occurrence.note,
            "type": occurrence.event_type,
            "series": series,
        });
        Some(Write::Create { key, path: events, body: body.to_string().into_bytes() })
    }

    /// The Event is not there: another occurrence makes a new one.
    pub(super) fn forget(&mut self, key: &Occurrence) {
        self.series.remove(key);
    }
}

/// A `MicroTime`.
pub(in crate::kubernetes) fn micro_time(clock: SystemTime) -> String {
    let timestamp = Timestamp::try_from(clock).unwrap_or_default();
    format!("{timestamp:.6}")
}

/// Cuts between characters.
fn cut(text: &mut String, longest: usize) {
    if text.len() > longest {
        let end = text.floor_char_boundary(longest);
        text.truncate(end);
    }
}
