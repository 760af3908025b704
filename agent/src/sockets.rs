//! Stale sockets: connections through a service to a backend that is gone.
//!
//! ```text
//! owner ── objects, "programmed" ──► thread "sockets"
//!                                      endpoints   what the slices say
//!                                      sweep       pw_sock against endpoints and maps ─► stale ones, dead entries
//!                                      namespaces  every network namespace of the node
//!                                      diag        finds them there by their cookie, and closes them
//!                                      life        asks backends whether they live
//! ```
//!
//! Level-based: each sweep compares everything that `pw_sock` remembers with the wanted state, so nothing depends on
//! having seen an event. A sweep comes after changes that may have made a socket stale, and every 30 s.
//!
//! What is stale:
//! - a connected UDP socket, at once, when no slice of the service that its frontend leads to has the backend as one
//!   that is ready or still serving. Hints, policies and terminating endpoints are choices for new connections;
//! - a TCP connection, when no slice of any service and no pod with host ports has had the backend's address for 10 s,
//!   ready or not, nothing came from there for 10 s, and the backend is gone. No slice says that it is: the pod may only
//!   have left its selectors. So the agent asks it, by a TCP connection to its address and port from the agent's own
//!   namespace. It lives if anything answers, also a refusal; it is gone when two questions in a row, 1.5 s each, had no
//!   answer or no way. One that lives is asked every 10 s as long as there are idle connections to it.
//!
//! A pod that a firewall hides from its clients' node seems gone; its connections are spared where it spoke on them since
//! it left the slices and never answered the agent. A backend that is a frontend, or has the number of a NodePort, cannot
//! be asked, and counts as alive.
//!
//! What is never touched: sockets that `pw_sock` does not have (clients that dial a pod themselves); services with the
//! annotation `portway.io/keep-stale-sockets: "true"`, as long as they exist; unconnected UDP sockets, whose next
//! datagram chooses anew. Nothing is closed before every source has spoken.

mod diag;
mod endpoints;
mod life;
mod namespaces;
mod status;
mod sweep;
mod tally;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use portway_datapath::Protocol;
use portway_model::k8s::Event;
use prometheus::Registry;

use crate::maps::SocketTable;
use diag::{Diag, DiagError};
pub use status::StaleSockets;
use sweep::Sweeper;
use tally::Tally;

/// Changes closer together than this are one sweep's, and a client that is connecting is there by then.
const PAUSE: Duration = Duration::from_millis(50);
/// Sweeps after changes are at least this far apart: a busy cluster costs two of them a second.
const SPACING: Duration = Duration::from_millis(500);
/// And at least this many times as far as the last one took: a tenth of a CPU at most, however many sockets there are.
const REST: u32 = 9;
/// Without any change.
const PERIOD: Duration = Duration::from_secs(30);

/// The owner's side of the thread that closes stale sockets. The thread ends with it.
pub struct Sockets {
    news: Option<Sender<News>>,
    thread: Option<JoinHandle<()>>,
    tally: Tally,
}

enum News {
    Changed(Vec<Event>),
    /// The maps hold what came before, all of it if `settled`.
    Programmed {
        settled: bool,
    },
}

impl Sockets {
    /// Starts the thread. It does nothing before [`Self::programmed`].
    ///
    /// # Errors
    /// No thread, or a metric that is there already.
    pub fn start(table: SocketTable, registry: &Registry) -> anyhow::Result<Self> {
        let (news, incoming) = channel();
        let tally = Tally::new(registry)?;
        let body = {
            let tally = tally.clone();
            move || follow(&incoming, table, tally)
        };
        let thread = std::thread::Builder::new().name("sockets".to_owned()).spawn(body);
        Ok(Self { news: Some(news), thread: Some(thread.context("cannot start a thread")?), tally })
    }

    /// Takes changes of objects, all at once: each message wakes the thread. O(1) here, O(the objects) there.
    pub fn changed(&self, events: Vec<Event>) {
        if !events.is_empty() {
            self.tell(News::Changed(events));
        }
    }

    /// The maps hold what was told before, but for what waits or failed if they are not `settled`. Not to be called
    /// before every source has spoken.
    pub fn programmed(&self, settled: bool) {
        self.tell(News::Programmed { settled });
    }

    /// What was done, for the status.
    pub fn status(&self) -> StaleSockets {
        self.tally.status()
    }

    fn tell(&self, news: News) {
        if self.news.as_ref().is_none_or(|to| to.send(news).is_err()) {
            self.tally.unsupported("the thread that closes stale sockets ended".to_owned());
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.news = None;
        if let Some(thread) = self.thread.take() {
            // It can only have panicked, which was printed.
            drop(thread.join());
        }
    }
}

fn follow(incoming: &Receiver<News>, table: SocketTable, tally: Tally) {
    let closes = match try_out() {
        Ok(()) => true,
        Err(error) => {
            let reason = format!("sockets of removed backends are not closed: {error}");
            tracing::warn!(
                reason,
                "this kernel cannot close sockets (CONFIG_INET_DIAG, CONFIG_INET_DIAG_DESTROY)"
            );
            tally.unsupported(reason);
            false
        }
    };
    let mut sweeper = Sweeper::new(table, tally, closes, Instant::now());
    // Something may have become stale that the maps do not show yet.
    let mut changed = false;
    let mut due: Option<Instant> = None;
    let mut not_before = Instant::now();
    loop {
        let wait = due.map(|due| due.max(not_before).saturating_duration_since(Instant::now()));
        // Before the first sync there is nothing to wait for but news.
        let news = match wait {
            Some(wait) => incoming.recv_timeout(wait),
            None => incoming.recv().map_err(RecvTimeoutError::from),
        };
        match news {
            Ok(News::Changed(events)) => {
                for event in events {
                    changed |= sweeper.endpoints.apply(event);
                }
            }
            Ok(News::Programmed { settled }) => {
                // The first time it is due whatever changed.
                if changed || due.is_none() {
                    let soon = Instant::now() + PAUSE;
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                    changed &= !settled;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let began = Instant::now();
                let next = sweeper.sweep();
                let now = Instant::now();
                not_before = now + SPACING.max((now - began) * REST);
                due = Some(next.map_or(now + PERIOD, |next| next.min(now + PERIOD)));
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn try_out() -> Result<(), DiagError> {
    let mut diag = Diag::open()?;
    diag.try_out(Protocol::TCP)?;
    diag.try_out(Protocol::UDP)
}
