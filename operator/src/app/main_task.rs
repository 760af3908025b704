//! The task that knows what the cluster is, and leads when it may.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use portway_runtime::kubernetes::{Client, Elector, EventRecorder, Leadership, Reporter};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::controllers::{self, Instruments};
use super::http::Question;
use super::metrics::Objects;
use crate::config::Config;
use crate::controller::Now;
use crate::definitions::Report;
use crate::executor::{self, Answered, Executor};
use crate::observed::{Kind, Observed};
use crate::watches::{self, Told, Watches};
use crate::{lead, status};

/// Events that are taken before what they mean is looked at.
const AT_ONCE: usize = 256;
/// Writes under way are waited for this long when the process ends; the lease is then left to run out.
const STOP_PATIENCE: Duration = Duration::from_millis(700);

/// What the task is made of.
pub(super) struct Inputs {
    pub(super) config: Arc<Config>,
    pub(super) instruments: Instruments,
    pub(super) written: executor::Metrics,
    pub(super) objects: Objects,
    pub(super) client: Client,
    pub(super) watches: Watches,
    pub(super) told: mpsc::Receiver<Told>,
    pub(super) elector: Elector,
    pub(super) asked: mpsc::Receiver<Question>,
    pub(super) started: Instant,
}

pub(super) struct MainTask {
    inputs: Inputs,
    leadership: watch::Receiver<Leadership>,
    observed: Observed,
    phase: Phase,
    /// Since when it is so.
    since: Instant,
}

/// What this replica does.
enum Phase {
    Standby,
    Leading(Term),
    /// It leads no more; writes under way go on to their answers.
    Stopping(Term),
}

struct Term {
    number: u32,
    executor: Executor,
    events: EventRecorder,
    definitions: tokio::task::JoinHandle<()>,
    defined: watch::Receiver<Report>,
}

impl Drop for Term {
    fn drop(&mut self) {
        self.definitions.abort();
    }
}

impl MainTask {
    pub(super) fn new(inputs: Inputs) -> Self {
        let leadership = inputs.elector.leadership();
        let observed = Observed::default();
        Self { inputs, leadership, observed, phase: Phase::Standby, since: Instant::now() }
    }

    /// Runs for ever.
    pub(super) async fn run(&mut self) {
        self.leadership.mark_changed();
        loop {
            let next = self.step();
            let now = self.now().monotonic;
            tokio::select! {
                Ok(()) = self.leadership.changed() => self.lead(),
                answered = answer(&mut self.phase) => self.take(answered),
                Some(told) = self.inputs.told.recv() => self.see(told),
                () = self.inputs.watches.found() => {}
                Some(question) = self.inputs.asked.recv() => self.answer(question),
                () = sleep(next.unwrap_or_default().saturating_sub(now)), if next.is_some() => {}
            }
        }
    }

    /// Ends the term, waits for its writes, and gives the lease back.
    pub(super) async fn stop(mut self) {
        let fence = self.inputs.elector.fence().clone();
        fence.close();
        self.end_term();
        let is_idle = timeout(STOP_PATIENCE, fence.idle()).await.is_ok();
        self.phase = Phase::Standby;
        if !is_idle {
            tracing::warn!("writes are still under way: the lease is left to run out");
            return;
        }
        let Inputs { elector, .. } = self.inputs;
        if elector.stop().await {
            tracing::info!("gave the lease back");
        }
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Now { wall, monotonic: self.inputs.started.elapsed() }
    }

    /// Does what is due; when to come again.
    fn step(&mut self) -> Option<Duration> {
        let now = self.now();
        match &mut self.phase {
            Phase::Leading(term) => term.executor.step(&self.observed, now),
            Phase::Stopping(term) if term.executor.is_idle() => {
                tracing::info!(term = term.number, "stood down: no write is under way");
                self.enter(Phase::Standby);
                // It may lead again by now.
                self.lead();
                Some(Duration::ZERO)
            }
            Phase::Stopping(_) | Phase::Standby => None,
        }
    }

    fn enter(&mut self, phase: Phase) {
        (self.phase, self.since) = (phase, Instant::now());
    }

    /// Does as the elector says.
    fn lead(&mut self) {
        let leadership = self.leadership.borrow_and_update().clone();
        lead::tell(&leadership);
        match (&self.phase, leadership) {
            (Phase::Standby, Leadership::Leading { term }) => self.begin_term(term),
            (Phase::Leading(of), Leadership::Leading { term }) if of.number == term => {}
            (Phase::Leading(_), _) => self.end_term(),
            (Phase::Standby | Phase::Stopping(_), _) => {}
        }
    }

    fn begin_term(&mut self, number: u32) {
        let Inputs { config, instruments, written, client, elector, watches, .. } = &self.inputs;
        let client = client.fenced(elector.fence().clone());
        let instance = elector.status().identity;
        let reporter = Reporter { controller: "portway-operator", instance, action: "Reconcile" };
        let events = EventRecorder::start(client.clone(), reporter);
        let made = controllers::all(config, instruments);
        let executor =
            Executor::new(client.clone(), config.api_server.qps, made, events.clone(), written.clone());
        let (told, defined) = watch::channel(Report::default());
        let definitions = lead::definitions(client, config.skip_crds, watches.hurrier(), told);
        let definitions = tokio::spawn(definitions);
        self.enter(Phase::Leading(Term { number, executor, events, definitions, defined }));
    }

    fn end_term(&mut self) {
        if let Phase::Leading(mut term) = std::mem::replace(&mut self.phase, Phase::Standby) {
            tracing::warn!(term = term.number, "standing down: no write from now on");
            term.executor.stop();
            term.definitions.abort();
            self.enter(Phase::Stopping(term));
        }
    }

    fn take(&mut self, answered: Answered) {
        let now = self.now();
        if let Phase::Leading(term) | Phase::Stopping(term) = &mut self.phase {
            term.executor.take(answered, now);
        }
    }

    fn see(&mut self, told: Told) {
        let mut told = Some(told);
        let mut seen = 0;
        while let Some((name, event)) = told {
            if let Some(kind) = watches::kind(name) {
                self.observed.take(kind, event);
                if let Phase::Leading(term) = &mut self.phase {
                    term.executor.note(kind);
                }
                self.inputs.objects.set(kind, self.observed.len(kind));
            }
            seen += 1;
            told = (seen < AT_ONCE).then(|| self.inputs.told.try_recv().ok()).flatten();
        }
    }

    fn answer(&self, question: Question) {
        // Who asked may be gone.
        match question {
            Question::Ping(to) => drop(to.send(())),
            Question::Status(to) => drop(to.send(Box::new(self.status()))),
            Question::Dump(to) => drop(to.send(self.dump())),
        }
    }

    fn status(&self) -> status::Status {
        let Inputs { config, client, watches, started, .. } = &self.inputs;
        let (controllers, definitions, events) = match &self.phase {
            Phase::Leading(term) | Phase::Stopping(term) => {
                let definitions = term.defined.borrow().definitions.clone();
                (term.executor.status(self.now()), definitions, term.events.status())
            }
            Phase::Standby => Default::default(),
        };
        let shown = watches.shown().status().into_iter();
        let misfits = Kind::ALL.into_iter().map(|kind| (kind.name(), self.observed.misfits(kind)));
        let misfits = misfits.filter(|(_, misfits)| !misfits.is_empty());
        status::Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: started.elapsed().as_secs_f64(),
            leadership: self.leadership(),
            api_server: client.status(),
            watches: shown
                .map(|(kind, watch)| status::Watch { objects: self.observed.len(kind) as u64, watch })
                .collect(),
            missing_kinds: watches.missing().map(Kind::name).collect(),
            controllers,
            definitions,
            misfits: misfits.map(|(kind, of)| (kind, of.into_iter().cloned().collect())).collect(),
            events,
            warnings: config.warnings.clone(),
        }
    }

    fn leadership(&self) -> status::Leadership {
        let elector = &self.inputs.elector;
        let fence = elector.fence();
        let status = elector.status();
        let leadership = self.leadership.borrow().clone();
        let (state, term) = match (&self.phase, &leadership) {
            (Phase::Leading(term), _) => ("leading", Some(term.number)),
            (Phase::Stopping(term), _) => ("stopping", Some(term.number)),
            (Phase::Standby, Leadership::Unknown) => ("unknown", None),
            (Phase::Standby, _) => ("standby", None),
        };
        let holder = match leadership {
            Leadership::Unknown => None,
            Leadership::Standby { leader } => leader,
            Leadership::Leading { .. } => Some(status.identity.clone()),
        };
        status::Leadership {
            state,
            since_seconds: self.since.elapsed().as_secs_f64(),
            holder,
            term,
            lease: format!("{}/{}", self.inputs.config.namespace, lead::LEASE),
            elector: status,
            writes_passed: fence.passed(),
            writes_refused: fence.refused(),
            writes_under_way: fence.under_way(),
        }
    }

    fn dump(&self) -> BTreeMap<&'static str, status::Dump> {
        let dump = |kind: Kind| status::Dump {
            synced: self.observed.is_synced(kind),
            version: self.observed.version(kind),
            objects: self.observed.metas(kind).iter().map(|meta| (meta.full_name(), meta.version)).collect(),
        };
        Kind::ALL.into_iter().map(|kind| (kind.name(), dump(kind))).collect()
    }
}

async fn answer(phase: &mut Phase) -> Answered {
    match phase {
        Phase::Leading(term) | Phase::Stopping(term) => term.executor.answer().await,
        Phase::Standby => std::future::pending().await,
    }
}
