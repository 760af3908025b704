//! The watches of all kinds that controllers look at. They run on standby too, so that a new leader knows everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portway_runtime::kubernetes::{Client, Resource, Watch, WatchEvent, WatchOptions, WatchStatus};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::discovery::{self, Discovery, Problems};
use crate::ipam;
use crate::observed::Kind;

/// Events that wait for the main task, a page of a list counting as one.
const WAITING: usize = 1024;

/// Between tries of a watch that is refused, or whose kind is not there, at most: a role that is granted late is noticed
/// by then.
const LONGEST_BACKOFF: Duration = Duration::from_secs(20);

/// What a watch tells, with its kind's name.
pub type Told = (&'static str, WatchEvent);

/// Starts watches as their kinds are found.
pub struct Watches {
    client: Client,
    namespace: String,
    shown: Shown,
    to: mpsc::Sender<Told>,
    found: mpsc::Receiver<Kind>,
    /// Kinds that discovery is to look for.
    lost: mpsc::UnboundedSender<Kind>,
    hurry: Arc<Notify>,
    missing: BTreeSet<Kind>,
    problems: watch::Receiver<Problems>,
    discovery: JoinHandle<()>,
}

/// The watches, for status and metrics. Cheap to clone.
#[derive(Clone, Default)]
pub struct Shown(Arc<Mutex<BTreeMap<Kind, Watch>>>);

impl Shown {
    /// How long ago each of them was told something; see [`Watch::unheard`].
    pub fn unheard(&self) -> Vec<(Kind, Duration)> {
        let watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watches.iter().filter_map(|(kind, watch)| Some((*kind, watch.unheard()?))).collect()
    }

    /// In the order of the kinds.
    pub fn status(&self) -> Vec<(Kind, WatchStatus)> {
        let watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watches.iter().map(|(kind, watch)| (*kind, watch.status())).collect()
    }
}

impl Watches {
    /// Starts those of `kinds` that Kubernetes brings, and looks for the others.
    pub fn start(client: Client, namespace: &str, kinds: &[Kind]) -> (Self, mpsc::Receiver<Told>) {
        let (built_in, others): (Vec<Kind>, Vec<Kind>) =
            kinds.iter().copied().partition(|kind| discovery::is_built_in(*kind));
        Self::begin_with(client, namespace, &built_in, others.into_iter().collect())
    }

    /// Starts those of `kinds`, all of which the API server knows.
    pub fn of_known(client: Client, namespace: &str, kinds: &[Kind]) -> (Self, mpsc::Receiver<Told>) {
        Self::begin_with(client, namespace, kinds, BTreeSet::new())
    }

    fn begin_with(
        client: Client,
        namespace: &str,
        known: &[Kind],
        missing: BTreeSet<Kind>,
    ) -> (Self, mpsc::Receiver<Told>) {
        let (to, told) = mpsc::channel(WAITING);
        let (finds, found) = mpsc::channel(Kind::ALL.len());
        let (lost, to_be_found) = mpsc::unbounded_channel();
        let hurry = Arc::new(Notify::new());
        let (tells, problems) = watch::channel(Problems::new());
        let discovery = Discovery {
            client: client.clone(),
            lost: to_be_found,
            found: finds,
            hurry: Arc::clone(&hurry),
            problems: tells,
        };
        let discovery = tokio::spawn(discovery.run());
        let (shown, namespace) = (Shown::default(), namespace.to_owned());
        let wanted = BTreeSet::new();
        let mut watches =
            Self { client, namespace, shown, to, found, lost, hurry, missing: wanted, problems, discovery };
        known.iter().for_each(|kind| watches.begin(*kind));
        missing.into_iter().for_each(|kind| watches.look_for(kind));
        (watches, told)
    }

    fn begin(&mut self, kind: Kind) {
        self.missing.remove(&kind);
        let mut shown = self.shown.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = shown.get(&kind) {
            watch.relist();
            return;
        }
        let resource = resource(kind, &self.namespace);
        let options = WatchOptions {
            longest_backoff: LONGEST_BACKOFF,
            longest_backoff_of_none: LONGEST_BACKOFF,
            ..WatchOptions::default()
        };
        shown.insert(kind, Watch::start(self.client.clone(), resource, options, self.to.clone()));
    }

    fn look_for(&mut self, kind: Kind) {
        // The task lives as long as this; one that has ended is a defect that status shows as a missing kind.
        if self.missing.insert(kind) && self.lost.send(kind).is_err() {
            tracing::error!(kind = kind.name(), "nobody looks for kinds any more, which is a defect");
        }
    }

    /// The API server does not know a kind any more: it is looked for.
    pub fn lost(&mut self, kind: Kind) {
        if !discovery::is_built_in(kind) {
            tracing::warn!(kind = kind.name(), "the API server does not know this kind any more");
            self.look_for(kind);
        }
    }

    /// Why looks for missing kinds fail.
    pub fn problems(&self) -> Vec<String> {
        let problems = self.problems.borrow();
        let of = |(version, problem): (&&str, &String)| {
            format!("the API server does not say which kinds of {version} it knows: {problem}")
        };
        problems.iter().map(of).collect()
    }

    /// Starts the watch of a kind that was found; waits for ever where none is missing. Cancel safe.
    pub async fn found(&mut self) {
        match self.found.recv().await {
            Some(kind) => self.begin(kind),
            None => std::future::pending().await,
        }
    }

    /// Asks for a look for missing kinds at once, where somebody made them.
    pub fn hurrier(&self) -> Arc<Notify> {
        Arc::clone(&self.hurry)
    }

    pub fn missing(&self) -> impl Iterator<Item = Kind> {
        self.missing.iter().copied()
    }

    pub fn shown(&self) -> Shown {
        self.shown.clone()
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.discovery.abort();
    }
}

/// The kind of a name that a watch tells.
pub fn kind(name: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.name() == name)
}

/// Where the objects of a kind are.
pub fn resource(kind: Kind, namespace: &str) -> Resource {
    let (path, selector) = match kind {
        Kind::ClusterPool => {
            let name = Resource::selecting("fieldSelector", &format!("metadata.name={}", ipam::OBJECT));
            (kind.path(&format!("{namespace}/")), name)
        }
        Kind::Pod
        | Kind::Namespace
        | Kind::Node
        | Kind::CiliumNode
        | Kind::CiliumIdentity
        | Kind::CiliumEndpoint
        | Kind::CiliumEndpointSlice => (kind.path(""), String::new()),
    };
    Resource { kind: kind.name(), path: path.into(), selector }
}
