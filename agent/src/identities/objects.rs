//! Objects that this agent keeps at the API server as it wants them, written only where they differ.
//!
//! What a watch tells never makes a write: where it is not what was seen last, the object is read first. Every write but a
//! creation names the UID of the object that it means, so that a late one cannot hit another object of the same name.
//!
//! ```text
//! set, remove ──► goal ┐
//! watch ──► doubt      ├─► step: get, create, patch, delete, nothing ──► answer ──► what is seen
//!          answers ──► ┘
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use axum::http::Method;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use portway_runtime::kubernetes::{Client, RequestError};
use serde_json::{Value, json};
use tokio::time::sleep;

const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A sort of objects that are kept.
pub(super) trait Kept {
    /// What an object shall be.
    type Goal;
    /// What is known of one that is there.
    type Seen: PartialEq;

    /// What is to be done where `seen` is there; `None`: none of this name is.
    fn step(goal: &Self::Goal, seen: Option<&Self::Seen>) -> Step;
    /// The path of the objects that it is among.
    fn collection(name: &str) -> String;
    /// The path of the object.
    fn path(name: &str) -> String;
    /// The whole object, to create it.
    fn body(goal: &Self::Goal) -> Value;
    /// A merge patch that makes what was seen what it shall be; `metadata.uid` is put in by the caller.
    fn patch(goal: &Self::Goal, seen: &Self::Seen) -> Value;
    /// From the text of an answer; `None` where it is none.
    fn read(text: &[u8]) -> Option<Self::Seen>;
    /// Where nothing is to be done, nothing is left to be kept.
    fn is_over(goal: &Self::Goal) -> bool;
}

/// What is done next to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Create,
    /// Of the object with this UID.
    Patch {
        uid: String,
    },
    Delete {
        uid: String,
    },
    /// Somebody else's object is there and stays: it is looked at again when something is told of it, or later.
    Wait {
        reason: String,
    },
}

/// Something became of an object that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `namespace/name`, or the name.
    pub name: String,
    pub news: News,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is as it shall be.
    Kept,
    /// Why it is not yet, for people. It is tried for ever.
    Obstacle(String),
}

/// Requests since the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    /// Those that failed or came too late, and were followed by others.
    pub retries: u64,
}

/// The objects of a sort that this agent keeps.
pub(super) struct Objects<K: Kept> {
    client: Client,
    kept: BTreeMap<String, Entry<K>>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    changes: VecDeque<Change>,
    counts: Counts,
    /// Tells one entry of a name from the next.
    serial: u64,
}

struct Entry<K: Kept> {
    goal: K::Goal,
    seen: Seen<K::Seen>,
    /// A request is under way, or a pause.
    is_busy: bool,
    /// It is the pause of [`Step::Wait`], which news end.
    is_waiting: bool,
    /// Something was told of it meanwhile.
    is_doubted: bool,
    /// Since it was last as it shall be.
    failures: u32,
    serial: u64,
    /// What was told last; `None`: nothing.
    told: Option<News>,
    /// What was asked for has been written, and nothing else was asked for since.
    is_written: bool,
}

impl<K: Kept> Entry<K> {
    /// The pause's end is another entry's, of the number before.
    fn end_wait(&mut self, serial: u64) {
        if std::mem::take(&mut self.is_waiting) {
            self.is_busy = false;
            self.serial = serial;
        }
    }
}

enum Seen<S> {
    Unknown,
    Absent,
    Object(S),
}

/// A request ended, or a pause.
struct Done {
    name: String,
    serial: u64,
    /// `None`: a pause.
    answer: Option<(Request, Result<Vec<u8>, RequestError>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Get,
    Create,
    Patch,
    Delete,
}

impl<K: Kept> Objects<K> {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            kept: BTreeMap::new(),
            running: FuturesUnordered::new(),
            changes: VecDeque::new(),
            counts: Counts::default(),
            serial: 0,
        }
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn goal(&self, name: &str) -> Option<&K::Goal> {
        self.kept.get(name).map(|entry| &entry.goal)
    }

    /// What is known to be there.
    pub(super) fn seen(&self, name: &str) -> Option<&K::Seen> {
        match &self.kept.get(name)?.seen {
            Seen::Object(seen) => Some(seen),
            Seen::Unknown | Seen::Absent => None,
        }
    }

    /// From now on the object shall be so. `presumed`: what is there, as far as anybody has told; the outer `None`:
    /// nobody has, so it is read first.
    pub(super) fn set(&mut self, name: &str, goal: K::Goal, presumed: Option<Option<K::Seen>>) {
        // What was not taken notice of yet is of what it was to be before.
        self.changes.retain(|change| change.name != name);
        if let Some(entry) = self.kept.get_mut(name) {
            entry.goal = goal;
            entry.told = None;
            entry.is_written = false;
            self.serial += 1;
            entry.end_wait(self.serial);
        } else {
            self.serial += 1;
            let seen = match presumed {
                None => Seen::Unknown,
                Some(None) => Seen::Absent,
                Some(Some(seen)) => Seen::Object(seen),
            };
            let entry = Entry {
                goal,
                seen,
                is_busy: false,
                is_waiting: false,
                is_doubted: false,
                failures: 0,
                serial: self.serial,
                told: None,
                is_written: false,
            };
            self.kept.insert(name.to_owned(), entry);
        }
        self.drive(name);
    }

    /// From now on nothing is done to the object.
    pub(super) fn forget(&mut self, name: &str) {
        self.changes.retain(|change| change.name != name);
        self.kept.remove(name);
    }

    /// The object is not what was seen last, as it seems: it is read before anything is written.
    pub(super) fn doubt(&mut self, name: &str) {
        let Some(entry) = self.kept.get_mut(name) else { return };
        self.serial += 1;
        entry.end_wait(self.serial);
        if entry.is_busy {
            entry.is_doubted = true;
        } else {
            entry.seen = Seen::Unknown;
            self.drive(name);
        }
    }

    /// The next change. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return change;
            }
            match self.running.next().await {
                Some(done) => self.done(done),
                None => std::future::pending().await,
            }
        }
    }

    fn done(&mut self, done: Done) {
        let Done { name, serial, answer } = done;
        let Some(entry) = self.kept.get_mut(&name).filter(|entry| entry.serial == serial) else { return };
        entry.is_busy = false;
        if std::mem::take(&mut entry.is_waiting) {
            entry.seen = Seen::Unknown;
        }
        if let Some((request, answer)) = answer {
            let (seen, mut problem) = outcome::<K>(request, answer);
            if entry.is_written && problem.is_none() && is_otherwise::<K>(&entry.goal, &seen) {
                problem = Some(Problem { text: KEPT_OTHERWISE.to_owned(), is_refusal: false });
            }
            entry.seen = if std::mem::take(&mut entry.is_doubted) { Seen::Unknown } else { seen };
            if let Some(problem) = problem {
                self.counts.retries += 1;
                entry.failures = entry.failures.saturating_add(1);
                // What came too late is looked at anew at once, the first time.
                if !problem.is_refusal || entry.failures > 1 {
                    self.pause(&name, problem.text);
                    return;
                }
            }
        }
        self.drive(&name);
    }

    /// Looks at it again after a while, and says why.
    fn pause(&mut self, name: &str, reason: String) {
        let Some(entry) = self.kept.get_mut(name) else { return };
        entry.is_busy = true;
        let (serial, pause) = (entry.serial, pause(entry.failures, entry.serial));
        self.tell(name, News::Obstacle(reason));
        let name = name.to_owned();
        self.running.push(Box::pin(async move {
            sleep(pause).await;
            Done { name, serial, answer: None }
        }));
    }

    /// Sends what is due.
    fn drive(&mut self, name: &str) {
        let Some(entry) = self.kept.get_mut(name).filter(|entry| !entry.is_busy) else { return };
        let step = match &entry.seen {
            Seen::Unknown => None,
            Seen::Absent => Some(K::step(&entry.goal, None)),
            Seen::Object(seen) => Some(K::step(&entry.goal, Some(seen))),
        };
        let (request, method, path, body) = match step {
            None => (Request::Get, Method::GET, K::path(name), Vec::new()),
            Some(Step::Nothing) => {
                entry.failures = 0;
                let is_over = K::is_over(&entry.goal);
                self.tell(name, News::Kept);
                if is_over {
                    self.kept.remove(name);
                }
                return;
            }
            Some(Step::Wait { reason }) => {
                entry.failures = entry.failures.saturating_add(1);
                entry.is_waiting = true;
                self.pause(name, reason);
                return;
            }
            Some(Step::Create) => {
                (Request::Create, Method::POST, K::collection(name), K::body(&entry.goal).to_string().into())
            }
            Some(Step::Patch { uid }) => {
                let Seen::Object(seen) = &entry.seen else { return };
                let mut patch = K::patch(&entry.goal, seen);
                patch["metadata"]["uid"] = uid.into();
                (Request::Patch, Method::PATCH, K::path(name), patch.to_string().into())
            }
            Some(Step::Delete { uid }) => {
                let options = json!({"preconditions": {"uid": uid}});
                (Request::Delete, Method::DELETE, K::path(name), options.to_string().into())
            }
        };
        entry.is_busy = true;
        entry.is_written = matches!(request, Request::Create | Request::Patch);
        let counted = if request == Request::Get { &mut self.counts.reads } else { &mut self.counts.writes };
        *counted += 1;
        let (client, name, serial) = (self.client.clone(), name.to_owned(), entry.serial);
        self.running.push(Box::pin(async move {
            let answer = client.send(method, &path, body).await.map(|text| text.to_vec());
            Done { name, serial, answer: Some((request, answer)) }
        }));
    }

    fn tell(&mut self, name: &str, news: News) {
        let Some(entry) = self.kept.get_mut(name) else { return };
        if entry.told.as_ref() != Some(&news) {
            entry.told = Some(news.clone());
            self.changes.push_back(Change { name: name.to_owned(), news });
        }
    }
}

const KEPT_OTHERWISE: &str =
    "the API server keeps it otherwise than it was written: is its CustomResourceDefinition another one?";

/// Whether an answer's object needs another write.
fn is_otherwise<K: Kept>(goal: &K::Goal, seen: &Seen<K::Seen>) -> bool {
    match seen {
        Seen::Object(seen) => K::step(goal, Some(seen)) != Step::Nothing,
        Seen::Unknown | Seen::Absent => false,
    }
}

struct Problem {
    text: String,
    /// The object was not the one that the request was for.
    is_refusal: bool,
}

/// What is known after an answer, and what was wrong with it.
fn outcome<K: Kept>(
    request: Request,
    answer: Result<Vec<u8>, RequestError>,
) -> (Seen<K::Seen>, Option<Problem>) {
    let problem = |text: String, is_refusal| Some(Problem { text, is_refusal });
    match answer {
        Ok(_) if request == Request::Delete => (Seen::Absent, None),
        Ok(text) => match K::read(&text) {
            Some(seen) => (Seen::Object(seen), None),
            None => (Seen::Unknown, problem("the API server's answer is no such object".to_owned(), false)),
        },
        Err(error) => match (request, error.code()) {
            (Request::Get | Request::Delete, Some(404)) => (Seen::Absent, None),
            (Request::Patch, Some(404)) => (Seen::Absent, problem(error.to_string(), true)),
            (Request::Create | Request::Patch | Request::Delete, Some(409)) => {
                (Seen::Unknown, problem(error.to_string(), true))
            }
            // A write may have been done, or may still be.
            (Request::Get | Request::Create | Request::Patch | Request::Delete, _) => {
                (Seen::Unknown, problem(error.to_string(), false))
            }
        },
    }
}

/// After so many failures. Agents that failed together do not come back together.
fn pause(failures: u32, serial: u64) -> Duration {
    let pause = SHORTEST_PAUSE * (1 << failures.min(7).saturating_sub(1));
    let spread = u32::try_from(RandomState::new().hash_one(serial) % 100).unwrap_or(0);
    pause.min(LONGEST_PAUSE) * (50 + spread / 2) / 100
}
