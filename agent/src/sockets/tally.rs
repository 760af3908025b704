use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use portway_datapath::Protocol;
use portway_runtime::metrics::register;
use prometheus::{Gauge, IntCounter, IntCounterVec, Opts, Registry};

use super::diag::DiagError;
use super::life::Outcome;
use super::status::StaleSockets;

/// What the sweeps did: metrics, and the same for the status. Cheap to clone.
#[derive(Clone)]
pub(super) struct Tally {
    closed: IntCounterVec,
    failed: IntCounterVec,
    asked: IntCounterVec,
    forgotten: IntCounter,
    sweeps: IntCounter,
    sweep_seconds: Gauge,
    status: Arc<Mutex<StaleSockets>>,
}

impl Tally {
    pub(super) fn new(registry: &Registry) -> anyhow::Result<Self> {
        let counters = |name, help, label| IntCounterVec::new(Opts::new(name, help), &[label]);
        let closed = counters(
            "portway_stale_sockets_closed_total",
            "Sockets that were closed because their backend is gone",
            "protocol",
        )?;
        let failed = counters(
            "portway_stale_sockets_failed_total",
            "Stale sockets, and namespaces that may have some, that could not be dealt with; they are tried again",
            "reason",
        )?;
        let asked = counters(
            "portway_stale_socket_probes_total",
            "Connections to backends whose address is in no slice, to find out whether they live",
            "outcome",
        )?;
        for outcome in Outcome::ALL {
            asked.with_label_values(&[outcome.label()]);
        }
        let forgotten = IntCounter::new(
            "portway_sockets_forgotten_total",
            "Entries of pw_sock that were removed because their socket is no more, which no program saw",
        )?;
        let sweeps =
            IntCounter::new("portway_socket_sweeps_total", "Comparisons of sockets with the wanted state")?;
        let sweep_seconds =
            Gauge::new("portway_socket_sweep_seconds", "Seconds that the last such comparison took")?;
        for protocol in [Protocol::TCP, Protocol::UDP] {
            closed.with_label_values(&[label(protocol)]);
        }
        Ok(Self {
            closed: register(registry, closed)?,
            failed: register(registry, failed)?,
            asked: register(registry, asked)?,
            forgotten: register(registry, forgotten)?,
            sweeps: register(registry, sweeps)?,
            sweep_seconds: register(registry, sweep_seconds)?,
            status: Arc::default(),
        })
    }

    pub(super) fn status(&self) -> StaleSockets {
        // Whole at every moment: each change is one of numbers.
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut StaleSockets)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn closed(&self, protocol: Protocol) {
        self.closed.with_label_values(&[label(protocol)]).inc();
        self.change(|status| {
            if protocol == Protocol::UDP {
                status.closed_udp += 1;
            } else {
                status.closed_tcp += 1;
            }
        });
    }

    pub(super) fn failed(&self, reason: &'static str, error: &impl ToString) {
        self.failed.with_label_values(&[reason]).inc();
        self.change(|status| {
            status.failed += 1;
            status.last_error = Some(error.to_string());
        });
    }

    pub(super) fn asked(&self, outcome: Outcome) {
        self.asked.with_label_values(&[outcome.label()]).inc();
    }

    pub(super) fn forgot(&self) {
        self.forgotten.inc();
        self.change(|status| status.forgotten += 1);
    }

    pub(super) fn unsupported(&self, reason: String) {
        self.change(|status| status.unsupported = Some(reason));
    }

    pub(super) fn swept(&self, took: Duration, tracked: u64, kept: u64, waiting: u64) {
        self.sweeps.inc();
        self.sweep_seconds.set(took.as_secs_f64());
        self.change(|status| {
            status.sweeps += 1;
            status.last_sweep_seconds = Some(took.as_secs_f64());
            status.tracked = tracked;
            status.kept = kept;
            status.waiting = waiting;
        });
    }
}

const fn label(protocol: Protocol) -> &'static str {
    if protocol.number() == Protocol::UDP.number() { "udp" } else { "tcp" }
}

/// The label of what kept a socket from being closed.
pub(super) const fn reason(error: &DiagError) -> &'static str {
    match error {
        DiagError::Refused(Errno::EPERM | Errno::EACCES) => "not-permitted",
        DiagError::Refused(Errno::EOPNOTSUPP) => "not-supported",
        DiagError::Refused(Errno::ENOENT | Errno::ESTALE) => "not-found",
        DiagError::Refused(_) | DiagError::Malformed => "other",
    }
}
