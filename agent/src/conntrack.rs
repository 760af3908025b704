//! Forgets flows and NAT entries that are over: programs make and refresh them, nothing else ends them.
//!
//! ```text
//! life   how long an idle entry may stay, by what was seen of it
//! pass   one look at all entries: what is over goes, a flow's two entries or halves together
//! pace   when the next one is due
//! ```
//!
//! A thread of its own: a pass over a full table takes some hundred milliseconds. Entries also go where their pod is gone
//! from `pw_endpoints` and, of UDP services, where their backend serves no more; both only once these are known to be whole.

mod life;
mod pace;
mod pass;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use portway_datapath::Addr;

use crate::config::FlowTimeouts;
use crate::maps::{MapError, MapReader, PodMapId, PodTables};
use pace::Pace;
pub use pass::{Collector, Ended, Passed, Trust};

/// The collector of flows of an agent that runs; its thread ends with the last clone.
#[derive(Clone, Debug)]
pub struct Conntrack {
    orders: Sender<Order>,
    status: Arc<Mutex<ConntrackStatus>>,
}

/// What was done so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConntrackStatus {
    pub passes: u64,
    pub failures: u64,
    /// Of the last pass.
    pub took: Duration,
    /// Until the next one.
    pub pause: Duration,
    /// Entries that were left, by map.
    pub used: BTreeMap<PodMapId, u64>,
    /// Entries that there is room for, by map.
    pub max: BTreeMap<PodMapId, u64>,
    /// Entries that were removed since the start, by map and reason.
    pub removed: BTreeMap<(PodMapId, Ended), u64>,
    /// Why the last pass ended early.
    pub trouble: Option<String>,
}

#[derive(Debug)]
enum Order {
    /// Endpoints that ended, and when.
    Forget(Vec<Addr>, u64),
    EndpointsAreKnown,
    ServicesAreKnown,
}

impl Conntrack {
    /// Begins to collect what is over by time.
    ///
    /// # Errors
    /// There is no thread to be had, or no coarse monotonic clock.
    pub fn start(tables: PodTables, services: MapReader, timeouts: FlowTimeouts) -> io::Result<Self> {
        tick_time()?;
        let (orders, ordered) = channel();
        let status = Arc::new(Mutex::new(ConntrackStatus::default()));
        let told = Arc::clone(&status);
        let collector = Collector::new(tables, services, timeouts);
        std::thread::Builder::new()
            .name("conntrack".to_owned())
            .spawn(move || run(collector, &ordered, &told))?;
        Ok(Self { orders, status })
    }

    /// Forgets the flows of pods that ended by now, at once or a moment after the last pass: a fifth of a second, or ten times
    /// what that took. Also where another pod gets an address of theirs: what it sends and receives is not touched.
    pub fn forget(&self, addrs: Vec<Addr>) {
        match tick_time() {
            Ok(now) => self.order(Order::Forget(addrs, now)),
            Err(error) => tracing::warn!(%error, "flows of pods that ended stay until they are too old"),
        }
    }

    /// `pw_endpoints` holds every pod of this node that lives: flows of others are over from now on.
    pub fn endpoints_are_known(&self) {
        self.order(Order::EndpointsAreKnown);
    }

    /// The maps of the services hold what the cluster says: UDP flows to backends that serve no more are over from now on.
    pub fn services_are_known(&self) {
        self.order(Order::ServicesAreKnown);
    }

    pub fn status(&self) -> ConntrackStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn order(&self, order: Order) {
        // The thread ends when all senders have.
        let _ = self.orders.send(order);
    }
}

fn run(mut collector: Collector, ordered: &Receiver<Order>, status: &Mutex<ConntrackStatus>) {
    let mut pace = Pace::new();
    let mut trust = Trust::default();
    let mut forgotten = BTreeMap::new();
    let (mut due, mut earliest) = (Instant::now() + pace.pause(), Instant::now());
    loop {
        // What comes until then is one pass.
        loop {
            match ordered.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Order::Forget(addrs, at)) => forgotten.extend(addrs.into_iter().map(|addr| (addr, at))),
                Ok(Order::EndpointsAreKnown) => trust.endpoints = true,
                Ok(Order::ServicesAreKnown) => trust.services = true,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
            due = due.min(earliest);
        }
        let began = Instant::now();
        let passed = tick_time().map_err(|error| error.to_string()).and_then(|now| {
            collector.pass(now, trust, &forgotten).map_err(|error: MapError| error.to_string())
        });
        let took = began.elapsed();
        let pause = match &passed {
            Ok(passed) => {
                forgotten.clear();
                pace.passed(passed, took)
            }
            // Who is to be forgotten still is.
            Err(_) => pace.failed(took),
        };
        let now = Instant::now();
        (due, earliest) = (now + pause, now + pace.asked());
        note(status, passed, took, pause);
    }
}

fn note(status: &Mutex<ConntrackStatus>, passed: Result<Passed, String>, took: Duration, pause: Duration) {
    let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
    status.passes += 1;
    (status.took, status.pause) = (took, pause);
    match passed {
        Ok(Passed { tables, removed }) => {
            for (map, table) in tables {
                status.used.insert(map, table.left);
                status.max.insert(map, table.max);
            }
            for (what, number) in removed {
                *status.removed.entry(what).or_default() += number;
            }
            status.trouble = None;
        }
        Err(trouble) => {
            status.failures += 1;
            if status.trouble.as_ref() != Some(&trouble) {
                tracing::warn!(trouble, "flows that are over cannot be removed; it is tried again");
            }
            status.trouble = Some(trouble);
        }
    }
}

/// Nanoseconds on the clock that programs read with `bpf_ktime_get_coarse_ns`: of the last tick, at a fifth of the cost.
pub fn tick_time() -> io::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE)?;
    let seconds = u64::try_from(now.tv_sec()).unwrap_or_default();
    Ok(seconds * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or_default())
}
