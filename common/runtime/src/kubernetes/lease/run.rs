use std::pin::Pin;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Method;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::election::{Action, Answer, Election, Role, Step, Time};
use super::record::Record;
use super::{Elector, ElectorOptions, Leadership, LeaseTimes, Status};
use crate::kubernetes::client::{Client, ClientOptions, PatchType};
use crate::kubernetes::error::{ClientError, RequestError};
use crate::kubernetes::fence::Fence;
use crate::kubernetes::watch::{Resource, Watch, WatchEvent, WatchOptions};

/// Far more than an election needs, and little beside what a client has.
const QPS: u32 = 5;
const BURST: u32 = 10;
/// The watch of the lease tries again sooner than others: there is one of it.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// A release that takes longer is given up.
const RELEASE_PATIENCE: Duration = Duration::from_secs(3);

/// Set on what this writes.
const FIELD_MANAGER: &str = "fieldManager=portway-lease";

/// The thread's side of an [`Elector`].
pub(super) struct Run {
    client: Client,
    election: Election,
    times: LeaseTimes,
    base: Instant,
    namespace: String,
    name: String,
    told: mpsc::Receiver<(&'static str, WatchEvent)>,
    /// The Lease, if the list under way told one.
    listed: Option<Record>,
    _watch: Watch,
    leadership: watch::Sender<Leadership>,
    fence: Fence,
    status: Status,
    stop: oneshot::Receiver<oneshot::Sender<bool>>,
}

type Asking = Pin<Box<dyn Future<Output = Result<Answer, String>> + Send>>;

impl Run {
    pub(super) async fn new(options: ElectorOptions) -> Result<(Self, Elector), ClientError> {
        let client = ClientOptions { qps: QPS, burst: BURST, ..options.client.clone() };
        Ok(Self::over(Client::new(client).await?, options))
    }

    pub(super) fn over(client: Client, options: ElectorOptions) -> (Self, Elector) {
        let ElectorOptions { client: _, namespace, name, identity, times } = options;
        let resource = Resource {
            kind: "Lease",
            path: path(&namespace, "").into(),
            selector: Resource::selecting("fieldSelector", &format!("metadata.name={name}")),
        };
        let (to, told) = mpsc::channel(16);
        let watch_options = WatchOptions { longest_backoff: LONGEST_BACKOFF, ..WatchOptions::default() };
        let watch = Watch::start(client.clone(), resource, watch_options, to);
        let (leadership, published) = watch::channel(Leadership::Unknown);
        let fence = Fence::new(times.write_limit());
        let status = Status::default();
        status.change(|status| status.identity.clone_from(&identity));
        let (stop, stopped) = oneshot::channel();
        let elector = Elector {
            leadership: published,
            fence: fence.clone(),
            status: status.clone(),
            client: client.clone(),
            stop,
        };
        let run = Self {
            client,
            election: Election::new(identity, times),
            times,
            base: Instant::now(),
            namespace,
            name,
            told,
            listed: None,
            _watch: watch,
            leadership,
            fence,
            status,
            stop: stopped,
        };
        (run, elector)
    }

    pub(super) async fn run(mut self) {
        let mut asking: Option<Asking> = None;
        let stop = loop {
            let wake = match self.election.poll(self.now()) {
                Step::Ask(action) => {
                    asking = Some(self.ask(action));
                    continue;
                }
                Step::Wait(until) => until,
            };
            self.publish();
            let wake = self.base.checked_add(wake);
            tokio::select! {
                stop = &mut self.stop => break stop,
                answer = answer(&mut asking) => {
                    asking = None;
                    self.take(answer);
                }
                Some((_, event)) = self.told.recv() => self.see(event),
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            }
        };
        // Nobody writes any more. Where the elector was dropped nobody asked for the release.
        self.fence.close();
        if let Ok(done) = stop {
            let is_released = timeout(RELEASE_PATIENCE, self.release(asking)).await.unwrap_or(false);
            // Who asked may be gone.
            let _ = done.send(is_released);
        }
    }

    fn now(&self) -> Time {
        self.base.elapsed()
    }

    fn take(&mut self, answer: Result<Answer, String>) {
        let answer = answer.unwrap_or_else(|error| {
            let mut is_news = false;
            self.status.change(|status| {
                status.failures += 1;
                is_news = status.last_error.as_ref() != Some(&error);
                status.last_error = Some(error.clone());
            });
            if is_news {
                tracing::warn!(error, "a request for the lease failed");
            }
            Answer::Failed
        });
        self.election.answered(self.now(), answer);
    }

    fn see(&mut self, event: WatchEvent) {
        let read = |object: &RawValue| {
            let record = Record::read(object.get().as_bytes());
            record.inspect_err(|problem| tracing::warn!(problem, "the lease cannot be read")).ok()
        };
        let now = self.now();
        match event {
            WatchEvent::ListBegins => self.listed = None,
            WatchEvent::Listed(objects) => self.listed = objects.first().and_then(|object| read(object)),
            WatchEvent::ListEnds { version } => {
                let listed = self.listed.take();
                let version = listed.as_ref().map_or(version, |record| record.version);
                self.election.told(now, version, listed);
            }
            WatchEvent::Applied { object, version } => {
                if let Some(record) = read(&object) {
                    self.election.told(now, version, Some(record));
                }
            }
            WatchEvent::Deleted { version, .. } => self.election.told(now, version, None),
            WatchEvent::Bookmark { .. } | WatchEvent::KindGone => {}
        }
    }

    /// Tells everybody what is so now.
    fn publish(&self) {
        let new = match self.election.role(self.now()) {
            Role::Leading { term, until } => {
                match self.base.checked_add(until) {
                    Some(until) => self.fence.open_until(until),
                    None => self.fence.close(),
                }
                Leadership::Leading { term }
            }
            Role::Standby { leader } => {
                self.fence.close();
                Leadership::Standby { leader }
            }
            Role::Unknown => {
                self.fence.close();
                Leadership::Unknown
            }
        };
        self.leadership.send_if_modified(|old| {
            let is_news = *old != new;
            *old = new;
            is_news
        });
    }

    /// Sends a request; its answer, or why there is none.
    fn ask(&self, action: Action) -> Asking {
        let (client, status) = (self.client.clone(), self.status.clone());
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        let limit = self.times.request_limit();
        Box::pin(async move {
            let is_write = action != Action::Look;
            let asked = timeout(limit, send(&client, &namespace, &name, &action)).await;
            let text = match asked {
                Ok(Ok(text)) => text,
                Ok(Err(error)) => {
                    return match error.code() {
                        Some(404) => Ok(Answer::Absent),
                        Some(409) => Ok(Answer::Conflict),
                        _ => Err(error.to_string()),
                    };
                }
                Err(_) => return Err(format!("no answer within {limit:?}")),
            };
            let record = Record::read(&text)?;
            if is_write {
                status.change(|status| {
                    status.renewals += 1;
                    status.last_error = None;
                });
            }
            Ok(Answer::Lease(record))
        })
    }

    /// Gives the lease back.
    async fn release(&mut self, asking: Option<Asking>) -> bool {
        // What is under way would come after the release, and conflict with it.
        if let Some(asking) = asking {
            let answer = asking.await;
            self.take(answer);
        }
        for _ in 0..2 {
            let Some(action) = self.election.release() else { return false };
            match self.ask(action).await {
                Ok(Answer::Lease(_)) => return true,
                Ok(Answer::Conflict | Answer::Absent) => {
                    // Somebody changed it, maybe not who leads.
                    let Ok(answer) = self.ask(Action::Look).await else { return false };
                    self.election.looked(self.now(), answer);
                }
                Ok(Answer::Failed) | Err(_) => return false,
            }
        }
        false
    }
}

/// Waits for ever where nothing is asked.
async fn answer(asking: &mut Option<Asking>) -> Result<Answer, String> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

async fn send(client: &Client, namespace: &str, name: &str, action: &Action) -> Result<Bytes, RequestError> {
    let clock = SystemTime::now();
    match action {
        Action::Look => client.get(&path(namespace, name)).await,
        Action::Create(claim) => {
            let path = format!("{}?{FIELD_MANAGER}", path(namespace, ""));
            client.send(Method::POST, &path, claim.object(namespace, name, clock)).await
        }
        Action::Replace { version, claim } => {
            let path = format!("{}?{FIELD_MANAGER}", path(namespace, name));
            client.patch(&path, PatchType::Merge, claim.patch(*version, clock)).await
        }
    }
}

/// Of a Lease, or with an empty name of all of the namespace.
fn path(namespace: &str, name: &str) -> String {
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    if name.is_empty() { leases } else { format!("{leases}/{name}") }
}
