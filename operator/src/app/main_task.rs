//! The task that knows what the cluster is, and leads when it may.

mod phase;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use portway_claims::Change;
use portway_runtime::kubernetes::{Client, Elector, EventRecorder, Leadership, Reporter, WatchEvent};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};

use super::controllers::{self, Instruments};
use super::http::Question;
use super::metrics::Objects;
use crate::config::Config;
use crate::controller::Now;
use crate::definitions::Report;
use crate::executor::troubles::Told;
use crate::executor::{self, Answered, Executor};
use crate::identities::Identities;
use crate::observed::{Kind, Observed};
use crate::term::Guard;
use crate::watches::{self, Watches};
use crate::{lead, status, term};
use phase::{Happened, Phase, Term, happens, run_down};

/// Events that are taken before what they mean is looked at.
const AT_ONCE: usize = 256;

/// What the task is made of.
pub(super) struct Inputs {
    pub(super) config: Arc<Config>,
    pub(super) instruments: Instruments,
    pub(super) written: executor::Metrics,
    pub(super) objects: Objects,
    pub(super) client: Client,
    pub(super) watches: Watches,
    pub(super) told: mpsc::Receiver<watches::Told>,
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
    /// The elector's thread has ended, which is a defect: nobody knows who leads.
    is_orphan: bool,
}

impl MainTask {
    pub(super) fn new(inputs: Inputs) -> Self {
        let leadership = inputs.elector.leadership();
        let observed = Observed::default();
        Self { inputs, leadership, observed, phase: Phase::Standby, since: Instant::now(), is_orphan: false }
    }

    /// Runs for ever.
    pub(super) async fn run(&mut self) {
        self.leadership.mark_changed();
        loop {
            let next = self.step();
            let now = self.now().monotonic;
            tokio::select! {
                changed = self.leadership.changed(), if !self.is_orphan => match changed {
                    Ok(()) => self.lead(),
                    Err(_) => self.orphan(),
                },
                happened = happens(&mut self.phase, self.inputs.elector.fence()) => match happened {
                    Happened::Answered(answered) => self.take(*answered),
                    Happened::Claimed(change) => self.claimed(change),
                    Happened::Guarded | Happened::Idle => {}
                },
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
        self.end_term();
        let idle = async {
            tokio::select! {
                () = fence.idle() => {}
                () = run_down(&mut self.phase) => {}
            }
        };
        // No write lasts longer than the fence's limit; to leave the lease to run out would take others longer.
        let is_idle = timeout(fence.limit(), idle).await.is_ok();
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
        self.hear(now);
        match &mut self.phase {
            Phase::Leading(term) if !term.is_working() => None,
            Phase::Leading(term) => {
                let next = term.executor.step(&self.observed, now);
                let Some(identities) = &mut term.identities else { return next };
                let of_identities = identities.step(&self.observed, now);
                if let Some(troubles) = identities.untold() {
                    term.told.tell(troubles, &term.events);
                }
                [next, of_identities].into_iter().flatten().min()
            }
            Phase::Stopping(term)
                if term.executor.is_idle() && self.inputs.elector.fence().under_way() == 0 =>
            {
                tracing::info!(term = term.number, "stood down: no write is under way");
                self.enter(Phase::Standby);
                // It may lead again by now.
                self.lead();
                Some(Duration::ZERO)
            }
            Phase::Stopping(_) | Phase::Standby => None,
        }
    }

    /// Takes note of when the watches were told something.
    fn hear(&mut self, now: Now) {
        for (kind, unheard) in self.inputs.watches.shown().unheard() {
            let is_fresh_again = self.observed.hear(kind, now.monotonic.saturating_sub(unheard), now);
            if is_fresh_again && let Phase::Leading(term) = &mut self.phase {
                term.executor.note(kind);
            }
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
        let fence = elector.fence().of_term();
        let (client, before) = term::clients(client, &fence, number);
        let (guarded, guard) = watch::channel(None);
        let guarding = tokio::spawn(term::watch(client.clone(), before, guarded));
        let instance = elector.status().identity;
        let reporter = Reporter { controller: "portway-operator", instance, action: "Reconcile" };
        let events = EventRecorder::start(client.clone(), reporter);
        let made = controllers::all(config, instruments);
        let executor =
            Executor::new(client.clone(), config.api_server.qps, made, events.clone(), written.clone());
        let identities = controllers::identities(config)
            .map(|of| Identities::new(of, client.clone(), instruments.identities.clone()));
        let (told, defined) = watch::channel(Report::default());
        let redefine = Arc::new(Notify::new());
        let again = Arc::clone(&redefine);
        let definitions = lead::definitions(client, config.skip_crds, again, watches.hurrier(), told);
        let mut begun = guard.clone();
        let definitions = tokio::spawn(async move {
            if begun.wait_for(Option::is_some).await.is_ok() {
                definitions.await;
            }
        });
        self.enter(Phase::Leading(Term {
            number,
            fence,
            executor,
            identities,
            told: Told::default(),
            events,
            is_stopping: false,
            definitions,
            redefine,
            defined,
            guard,
            guarding,
        }));
    }

    fn end_term(&mut self) {
        if let Phase::Leading(mut term) = std::mem::replace(&mut self.phase, Phase::Standby) {
            tracing::warn!(term = term.number, "standing down: no write from now on");
            term.is_stopping = true;
            term.fence.end();
            // Dry runs do nothing that there is to wait for.
            term.guarding.abort();
            term.executor.stop();
            term.identities.iter_mut().for_each(Identities::stop);
            // What makes definitions is refused from now on, and has its last answer before it ends with the term.
            self.enter(Phase::Stopping(term));
        }
    }

    /// Nobody renews the lease or tells who leads: whoever probes the process ends it.
    fn orphan(&mut self) {
        self.is_orphan = true;
        tracing::error!("the leader election ended, which is a defect; /healthz fails from now on");
        self.end_term();
    }

    fn take(&mut self, answered: Answered) {
        let now = self.now();
        if let Phase::Leading(term) | Phase::Stopping(term) = &mut self.phase {
            term.executor.take(answered, now);
        }
    }

    fn claimed(&mut self, change: Change) {
        let now = self.now();
        if let Phase::Leading(term) | Phase::Stopping(term) = &mut self.phase
            && let Some(identities) = &mut term.identities
        {
            identities.take(change, now);
        }
    }

    fn see(&mut self, told: watches::Told) {
        let mut told = Some(told);
        let mut seen = 0;
        while let Some((name, event)) = told {
            if let Some(kind) = watches::kind(name) {
                let is_change = !matches!(event, WatchEvent::Bookmark { .. });
                if matches!(event, WatchEvent::KindGone) {
                    self.inputs.watches.lost(kind);
                    if let Phase::Leading(term) = &self.phase {
                        term.redefine.notify_one();
                    }
                }
                self.observed.take(kind, event);
                if is_change && let Phase::Leading(term) = &mut self.phase {
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
            Question::Ping(_) if self.is_orphan => {}
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
                let mut controllers = term.executor.status(self.now());
                controllers.extend(term.identities.as_ref().map(Identities::status));
                (controllers, definitions, term.events.status())
            }
            Phase::Standby => Default::default(),
        };
        let warning = self.guard().and_then(|guard| guard.warning());
        let shown = watches.shown().status().into_iter();
        let misfits = Kind::ALL.into_iter().map(|kind| (kind.name(), self.observed.misfits(kind)));
        let misfits = misfits.filter(|(_, misfits)| !misfits.is_empty());
        status::Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: started.elapsed().as_secs_f64(),
            leadership: self.leadership(),
            api_server: client.status(),
            watches: shown
                .map(|(kind, watch)| {
                    let (objects, fresh) =
                        (self.observed.len(kind) as u64, self.observed.is_fresh(kind, self.now()));
                    status::Watch { objects, fresh, watch }
                })
                .collect(),
            missing_kinds: watches.missing().map(Kind::name).collect(),
            controllers,
            definitions,
            misfits: misfits.map(|(kind, of)| (kind, of.into_iter().cloned().collect())).collect(),
            events,
            warnings: config.warnings.iter().cloned().chain(watches.problems()).chain(warning).collect(),
        }
    }

    /// What becomes of writes of earlier terms, where this replica leads and knows.
    fn guard(&self) -> Option<Guard> {
        match &self.phase {
            Phase::Leading(term) => term.guard.borrow().clone(),
            Phase::Standby | Phase::Stopping(_) => None,
        }
    }

    fn leadership(&self) -> status::Leadership {
        let elector = &self.inputs.elector;
        let fence = elector.fence();
        let status = elector.status();
        let leadership = self.leadership.borrow().clone();
        let (state, term) = match (&self.phase, &leadership) {
            (Phase::Leading(term), _) if !term.is_working() => ("beginning", Some(term.number)),
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
            guard: self.guard(),
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
