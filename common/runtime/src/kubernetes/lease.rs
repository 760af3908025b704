//! Leader election on a Lease `coordination.k8s.io/v1`.
//!
//! An [`Elector`] has a thread, connections and a rate limit of its own: a client that is throttled or a task that is
//! busy cannot keep it from renewing. [`election`] says who leads; here its requests are sent, and what it decides is
//! published: as [`Leadership`] for people and for whoever begins and ends work, and as the [`Fence`] of every write.
//!
//! Requests: GET, PATCH and watch of the one Lease, and create of Leases in its namespace.

mod election;
mod record;
mod run;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{oneshot, watch};

use super::client::{Client, ClientOptions};
use super::error::ClientError;
use super::fence::Fence;
use super::ledger::ClientStatus;
use run::Run;

/// What a write's answer may be late by, beyond its limit, before another leads.
const SPARE: Duration = Duration::from_secs(1);

/// How long what takes, of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// How long others wait for a leader of which nothing is heard.
    pub duration: Duration,
    /// How long a leader leads that cannot renew.
    pub renew: Duration,
    /// Between two renewals, and between two tries of anything else.
    pub retry: Duration,
}

impl LeaseTimes {
    /// How long a leader leads after it sent its last renewal: `renew`, but so much less than the duration that clocks
    /// may go 5 % wrong.
    pub const fn hold(&self) -> Duration {
        let most = self.duration.saturating_sub(Duration::from_millis(self.duration.as_millis() as u64 / 10));
        if self.renew.as_nanos() < most.as_nanos() { self.renew } else { most }
    }

    /// How long a write may take: less than there is between the end of one leader and the beginning of the next, and so
    /// little that writes pass for half of the time that a lease is held after a renewal.
    pub const fn write_limit(&self) -> Duration {
        let between = self.duration.saturating_sub(self.hold());
        let limit = between.saturating_sub(SPARE);
        // Of short leases, which tests have.
        let limit = if limit.is_zero() { half(between) } else { limit };
        if limit.as_nanos() < half(self.hold()).as_nanos() { limit } else { half(self.hold()) }
    }

    /// Between two renewals: `retry`, but so often that one may be missed before writes are refused.
    pub(super) const fn period(&self) -> Duration {
        let most = half(self.hold().saturating_sub(self.write_limit()));
        if self.retry.as_nanos() < most.as_nanos() { self.retry } else { most }
    }

    /// How long a request for the lease may take, so that there can be another before the deadline.
    const fn request_limit(&self) -> Duration {
        half(self.hold())
    }
}

const fn half(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64 / 2)
}

/// Which lease, and who wants it.
#[derive(Clone, Debug)]
pub struct ElectorOptions {
    /// Of the elector's own client; its rate is set here.
    pub client: ClientOptions,
    pub namespace: String,
    pub name: String,
    /// No other process may have it, not even the one that this one replaces.
    pub identity: String,
    pub times: LeaseTimes,
}

/// Who leads, as this process sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Leadership {
    /// Nothing was seen of the lease yet.
    #[default]
    Unknown,
    /// Another one leads, or nobody.
    Standby { leader: Option<String> },
    /// This process, until it says otherwise.
    Leading { term: u32 },
}

/// An elector, for status.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ElectorStatus {
    pub identity: String,
    /// Renewals that were answered.
    pub renewals: u64,
    /// Requests for the lease that were not.
    pub failures: u64,
    pub last_error: Option<String>,
    pub client: ClientStatus,
}

/// The elector could not begin.
#[derive(Debug, thiserror::Error)]
pub enum ElectorError {
    #[error("cannot start the thread of the leader election: {0}")]
    Thread(#[source] std::io::Error),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the thread of the leader election ended")]
    Ended,
}

/// Takes part in an election until it is dropped; the lease is released by [`Elector::stop`] alone.
pub struct Elector {
    leadership: watch::Receiver<Leadership>,
    fence: Fence,
    status: Status,
    client: Client,
    stop: oneshot::Sender<oneshot::Sender<bool>>,
}

/// What the thread writes and everybody reads.
#[derive(Clone, Debug, Default)]
struct Status(Arc<Mutex<ElectorStatus>>);

impl Status {
    fn change(&self, change: impl FnOnce(&mut ElectorStatus)) {
        // Plain numbers: a panic elsewhere leaves them usable.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Elector {
    /// Starts the thread. Makes no request before it returns: an API server that is down is no error.
    ///
    /// # Errors
    /// What is configured for the API server cannot be used, or there can be no thread.
    pub async fn start(options: ElectorOptions) -> Result<Self, ElectorError> {
        let (started, result) = oneshot::channel();
        let body = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                // The receiver waits for one or the other.
                Err(error) => return drop(started.send(Err(ElectorError::Thread(error)))),
            };
            runtime.block_on(async {
                match Run::new(options).await {
                    Ok((run, elector)) => {
                        drop(started.send(Ok(elector)));
                        run.run().await;
                    }
                    Err(error) => drop(started.send(Err(error.into()))),
                }
            });
        };
        std::thread::Builder::new().name("lease".to_owned()).spawn(body).map_err(ElectorError::Thread)?;
        result.await.map_err(|_| ElectorError::Ended)?
    }

    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// The fence of every write that a leader makes.
    pub const fn fence(&self) -> &Fence {
        &self.fence
    }

    pub fn status(&self) -> ElectorStatus {
        let status = self.status.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ElectorStatus { client: self.client.status(), ..status }
    }

    /// Closes the fence, gives the lease back where it is held, and ends the thread. Whether it was given back; it takes a
    /// few seconds at most.
    pub async fn stop(self) -> bool {
        self.fence.close();
        let (done, is_released) = oneshot::channel();
        self.stop.send(done).is_ok() && is_released.await.unwrap_or(false)
    }
}
