//! One kind of object, followed for as long as the process lives.
//!
//! The supervised watch: a paged list, then a watch from the list's version. A watch that says nothing for
//! [`WatchOptions::silence`] is dead, whatever the socket says. Whatever ends it, it is *resumed* from the last version
//! that was told, with backoff and jitter; only what makes that impossible lists again, and a list replaces what was
//! told before. Nothing here ever says that an object is gone because a server is.

mod backoff;
mod lines;
pub(super) mod list;
mod report;
mod supervise;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::client::Client;
use report::Report;
use supervise::Supervisor;

/// A kind and where to find it.
#[derive(Clone, Debug)]
pub struct Resource {
    /// `Service`.
    pub kind: &'static str,
    /// `/api/v1/services`.
    pub path: Cow<'static, str>,
    /// More of the query, percent-encoded: `fieldSelector=metadata.name%3Dnode-1`; empty: everything.
    pub selector: String,
}

impl Resource {
    /// A `key` of the query such as `labelSelector`, for [`Self::selector`]; `value` is encoded here.
    pub fn selecting(key: &str, value: &str) -> String {
        format!("{key}={}", list::encoded(value))
    }

    /// Its path with `query` and the selector.
    fn asking(&self, query: &str) -> String {
        let Self { path, selector, .. } = self;
        if selector.is_empty() { format!("{path}?{query}") } else { format!("{path}?{query}&{selector}") }
    }
}

/// What happened. Objects are JSON text; those of a list lack `kind` and `apiVersion`.
#[derive(Debug)]
pub enum WatchEvent {
    /// A list begins; what an unfinished one told is void.
    ListBegins,
    /// Objects of the list.
    Listed(Vec<Box<RawValue>>),
    /// The list is whole: what it did not name is gone.
    ListEnds {
        version: u64,
    },
    Applied {
        object: Box<RawValue>,
        version: u64,
    },
    Deleted {
        object: Box<RawValue>,
        version: u64,
    },
    /// Everything up to this version was told.
    Bookmark {
        version: u64,
    },
    /// The server does not know the kind of which it told a list before: its definition is gone. What was told is as it
    /// may have been; a list follows where the kind is made again.
    KindGone,
}

/// Limits of a watch. The defaults are right for a real API server.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// A watch that says nothing for so long is dead. The API server sends a bookmark each minute.
    pub silence: Duration,
    /// A kind that has had no event since the API server's start gets no bookmarks. The silence that is allowed to
    /// such a watch doubles up to this.
    pub longest_silence: Duration,
    /// Objects on a page of a list.
    pub page: u32,
    /// A longer event is a broken one. etcd takes objects of 1.5 MiB.
    pub max_line_bytes: usize,
    /// The first and the longest wait before a failed watch is tried again.
    pub shortest_backoff: Duration,
    pub longest_backoff: Duration,
    /// The longest wait before a kind is asked for again that the server does not know.
    pub longest_backoff_of_none: Duration,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(65),
            longest_silence: Duration::from_secs(600),
            page: 500,
            max_line_bytes: 16 << 20,
            shortest_backoff: Duration::from_millis(250),
            longest_backoff: Duration::from_secs(30),
            longest_backoff_of_none: Duration::from_secs(30),
        }
    }
}

/// What a watch does at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WatchState {
    #[default]
    Listing,
    Watching,
    /// Watching a kind of which nothing is ever heard: it is asked again after ever longer silences.
    Quiet,
    /// Waiting before the next try.
    Retrying,
    /// Nobody takes events any more.
    Ended,
}

/// A watch, for status and metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WatchStatus {
    pub kind: &'static str,
    pub state: WatchState,
    /// A list has been told to its end, and the server still knows the kind.
    pub synced: bool,
    /// Seconds since the server last showed that this watch lives: an answer, an event or a bookmark.
    pub age_seconds: f64,
    /// The last version that was told.
    pub version: u64,
    /// Events told after lists.
    pub events: u64,
    /// Lists after the first one.
    pub relists: u64,
    /// Watches begun where another ended.
    pub resumes: u64,
    /// Events dropped because their version had been told already.
    pub duplicates: u64,
    /// What ended watches and lists, by reason.
    pub errors: BTreeMap<String, u64>,
    pub last_error: Option<String>,
}

/// A watch that runs until it is dropped. Clones are of the same watch.
#[derive(Clone)]
pub struct Watch {
    task: Arc<Running>,
}

struct Running {
    report: Arc<Report>,
    relist: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Spawns the watch. Each event is sent to `to` with the resource's kind; a full channel holds the watch back, a
    /// closed one ends it, which its status says. Must be called inside a tokio runtime.
    pub fn start(
        client: Client,
        resource: Resource,
        options: WatchOptions,
        to: mpsc::Sender<(&'static str, WatchEvent)>,
    ) -> Self {
        let report = Arc::new(Report::new(resource.kind));
        let relist = Arc::new(Notify::new());
        let supervisor =
            Supervisor::new(client, resource, options, to, Arc::clone(&report), Arc::clone(&relist));
        let task = tokio::spawn(supervisor.run());
        Self { task: Arc::new(Running { report, relist, task }) }
    }

    pub fn status(&self) -> WatchStatus {
        self.task.report.status()
    }

    /// How long ago this watch was told something: an event, a bookmark, the end of a list. It is zero while a watch is
    /// open of a kind of which nothing is ever heard. `None`: no list has been told, or the server knows the kind no more.
    pub fn unheard(&self) -> Option<Duration> {
        self.task.report.unheard()
    }

    /// Lists again, soon: for whoever knows that what was told is not what is.
    pub fn relist(&self) {
        self.task.relist.notify_one();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
