//! Kubernetes Events: what a person sees below `kubectl describe`.
//!
//! Recording never waits. What repeats is one Event whose count grows ([`series`]); a task of its own writes them, with
//! a small share of the client's rate limit and only while nobody else waits for it. Events are a courtesy: what finds
//! no room, or no API server for minutes, is dropped and counted.

mod series;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::Method;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::client::Client;
use super::error::RequestError;
use super::jitter;
pub(super) use series::micro_time;
use series::{Series, Write};

/// Occurrences that wait to be looked at.
const QUEUE: usize = 256;
/// Of the client's requests, one in so many may be an Event's.
const SHARE: u32 = 5;
/// A write that found no server for so long is given up.
const WRITE_PATIENCE: Duration = Duration::from_secs(180);
/// How often a write looks whether the rate limit has room.
const ROOM_CHECK: Duration = Duration::from_millis(200);

/// The object that an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Regarding {
    pub api_version: String,
    pub kind: String,
    /// Empty for an object of the cluster; its Events are in `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    /// `kubectl describe` finds Events by it; empty: unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Kubernetes knows these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum EventType {
    Normal,
    Warning,
}

/// Who writes Events.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// `portway-agent`.
    pub controller: &'static str,
    /// The node's name; cut to 128 characters.
    pub instance: String,
    /// What was being done to the object: `Program`.
    pub action: &'static str,
}

/// What a recorder did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecorderStatus {
    pub recorded: u64,
    /// Events made and counts raised.
    pub written: u64,
    /// Occurrences or writes that were given up.
    pub dropped: u64,
    pub last_error: Option<String>,
}

/// Writes Events. Clones share one queue, which lives until the last of them is dropped.
#[derive(Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<Occurrence>,
    counts: Arc<Counts>,
    /// Held for its end.
    _task: Arc<Running>,
}

struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug, Default)]
struct Counts {
    recorded: AtomicU64,
    written: AtomicU64,
    dropped: AtomicU64,
    last_error: Mutex<Option<String>>,
}

/// Something that happened, once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Occurrence {
    regarding: Regarding,
    event_type: EventType,
    reason: &'static str,
    note: String,
}

impl EventRecorder {
    /// Spawns the task that writes. Must be called inside a tokio runtime.
    pub fn start(client: Client, reporter: Reporter) -> Self {
        let (queue, occurrences) = mpsc::channel(QUEUE);
        let counts = Arc::new(Counts::default());
        let spacing = Duration::from_secs(1) * SHARE / client.options().qps.max(1);
        let writer = Writer {
            client,
            reporter,
            spacing,
            counts: Arc::clone(&counts),
            series: Series::default(),
            next_write: Instant::now(),
        };
        Self { queue, counts, _task: Arc::new(Running(tokio::spawn(writer.run(occurrences)))) }
    }

    /// Takes note of something that happened to an object; never waits. `reason` is one word in CamelCase, `note` a
    /// sentence for people of at most 1 kB. False where the queue is full: it is not told then.
    pub fn record(
        &self,
        regarding: Regarding,
        event_type: EventType,
        reason: &'static str,
        note: String,
    ) -> bool {
        self.counts.recorded.fetch_add(1, Ordering::Relaxed);
        let is_queued = self.queue.try_send(Occurrence { regarding, event_type, reason, note }).is_ok();
        if !is_queued {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_queued
    }

    pub fn status(&self) -> RecorderStatus {
        RecorderStatus {
            recorded: self.counts.recorded.load(Ordering::Relaxed),
            written: self.counts.written.load(Ordering::Relaxed),
            dropped: self.counts.dropped.load(Ordering::Relaxed),
            last_error: self.counts.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

struct Writer {
    client: Client,
    reporter: Reporter,
    /// Between two writes.
    spacing: Duration,
    counts: Arc<Counts>,
    series: Series,
    next_write: Instant,
}

impl Writer {
    async fn run(mut self, mut occurrences: mpsc::Receiver<Occurrence>) {
        loop {
            let due = self.series.next_due();
            let occurrence = tokio::select! {
                occurrence = occurrences.recv() => match occurrence {
                    Some(occurrence) => Some(occurrence),
                    None => return,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => None,
            };
            if let Some(occurrence) = occurrence {
                self.series.observe(occurrence, Instant::now(), SystemTime::now());
            }
            while let Some(write) = self.series.take_due(Instant::now(), &self.reporter) {
                // What comes meanwhile counts before the next write.
                self.write(write).await;
                while let Ok(occurrence) = occurrences.try_recv() {
                    self.series.observe(occurrence, Instant::now(), SystemTime::now());
                }
            }
        }
    }

    /// Writes, or gives up after [`WRITE_PATIENCE`].
    async fn write(&mut self, write: Write) {
        let began = Instant::now();
        let mut wait = Duration::from_secs(1);
        let error = loop {
            sleep_until(self.next_write).await;
            while !self.client.has_spare_token() && began.elapsed() < WRITE_PATIENCE {
                sleep(ROOM_CHECK).await;
            }
            self.next_write = Instant::now() + self.spacing;
            let (method, path) = match &write {
                Write::Create { path, .. } => (Method::POST, path),
                Write::Count { path, .. } => (Method::PATCH, path),
            };
            match self.client.send(method, path, write.body().to_vec()).await {
                Ok(_) => {
                    self.counts.written.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Err(error) if is_final(&error) || began.elapsed() + wait > WRITE_PATIENCE => break error,
                Err(_) => {}
            }
            sleep(jitter::between(wait / 2, wait)).await;
            wait *= 2;
        };
        // Its Event has expired: the next occurrence makes a new one.
        self.series.forget(write.key());
        self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%error, "an Event was not written");
        *self.counts.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }
}

/// Whether the same write would be refused again.
fn is_final(error: &RequestError) -> bool {
    matches!(error.code(), Some(code) if (400..500).contains(&code) && code != 401 && code != 429)
}
