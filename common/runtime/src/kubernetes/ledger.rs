use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::time::Instant;

use super::error::RequestError;

/// What a client did, for status and metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClientStatus {
    /// The server that is asked at the moment.
    pub server: String,
    /// Whether the last request reached a server that could answer it; none was sent yet: `None`.
    pub reachable: Option<bool>,
    /// Requests sent, one for each server that was tried.
    pub requests: u64,
    /// Answers by HTTP status.
    pub answers: BTreeMap<u16, u64>,
    /// Requests without a useful answer, by HTTP status or `unreachable`, `timeout`, `broken-answer`.
    pub failures: BTreeMap<String, u64>,
    /// Seconds that requests waited for the rate limit, added up.
    pub throttled_seconds: f64,
    /// How often files of credentials were read anew.
    pub reloads: u64,
    /// Why files of credentials that changed cannot be used; the old ones are in use.
    pub reload_error: Option<String>,
    pub last_error: Option<String>,
    /// Seconds since the last useful answer.
    pub last_success_age: Option<f64>,
}

#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    status: ClientStatus,
    last_success: Option<Instant>,
}

impl Ledger {
    pub(super) fn sent(&self) {
        self.lock().status.requests += 1;
    }

    /// An answer came. True if the server was not reachable before.
    pub(super) fn answered(&self, code: u16) -> bool {
        let mut entries = self.lock();
        *entries.status.answers.entry(code).or_default() += 1;
        entries.last_success = Some(Instant::now());
        entries.status.reachable.replace(true) == Some(false)
    }

    /// A watch told something: its server is there, whatever became of the last request.
    pub(super) fn lived(&self) {
        let mut entries = self.lock();
        entries.last_success = Some(Instant::now());
        entries.status.reachable = Some(true);
    }

    /// True if the server was not reachable before: a refusal is an answer, too.
    pub(super) fn failed(&self, error: &RequestError) -> bool {
        let status = &mut self.lock().status;
        *status.failures.entry(error.label()).or_default() += 1;
        if let Some(code) = error.code() {
            *status.answers.entry(code).or_default() += 1;
        }
        status.last_error = Some(error.to_string());
        if error.blames_server() {
            status.reachable = Some(false);
            false
        } else {
            error.code().is_some() && status.reachable.replace(true) == Some(false)
        }
    }

    pub(super) fn reloaded(&self, outcome: Result<(), String>) {
        let mut entries = self.lock();
        entries.status.reloads += u64::from(outcome.is_ok());
        entries.status.reload_error = outcome.err();
    }

    pub(super) fn status(&self) -> ClientStatus {
        let entries = self.lock();
        let last_success_age = entries.last_success.map(|at| at.elapsed().as_secs_f64());
        ClientStatus { last_success_age, ..entries.status.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Plain counters: a panic elsewhere leaves them usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
