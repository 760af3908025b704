//! A node's agent, as far as identities are concerned: its pods come and go, and it crashes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use portway_claims::{Allocator, Change, News, Place};
use portway_datapath::NumericIdentity;
use portway_model::identity::Right;
use portway_model::k8s::{Manifests, ObjectKind, Watched};
use portway_model::labels::Labels;
use portway_runtime::kubernetes::{Client, Resource, Watch, WatchEvent, WatchOptions};
use portway_tests::oracle::random::Random;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::api::{self, IDENTITIES};
use super::ledger::Ledger;

/// Pods of a node at a time.
const PODS: usize = 12;
/// A pod's life in milliseconds, at most.
const LIFE: u64 = 60;

pub(crate) struct Node {
    name: String,
    client: Client,
    pub(crate) allocator: Allocator,
    news: Following,
    pods: Vec<Pod>,
    made: usize,
    random: Random,
    ledger: Arc<Mutex<Ledger>>,
}

/// What the API server shows.
struct Following {
    manifests: Manifests,
    told: mpsc::Receiver<(&'static str, WatchEvent)>,
    /// Held for its end.
    _watch: Watch,
}

struct Pod {
    name: String,
    labels: Labels,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Waits,
    Refers(NumericIdentity),
    Uses(NumericIdentity, Instant),
}

impl Node {
    pub(crate) fn new(name: &str, client: Client, seed: u64, ledger: Arc<Mutex<Ledger>>) -> Self {
        let allocator = Allocator::from_api(client.clone(), Right::Create, 0);
        let news = Following::new(&client);
        let random = Random::new(seed);
        Self { name: name.to_owned(), client, allocator, news, pods: Vec::new(), made: 0, random, ledger }
    }

    /// `count` pods with one of `sets` each come and go; crashes `crashes` times meanwhile.
    pub(crate) async fn live(&mut self, sets: &[Labels], count: usize, crashes: usize) -> Result<()> {
        let mut crashed = 0;
        // Its own clock: a wait that begins anew with every event would never end while the collector is busy.
        let mut step = interval(Duration::from_millis(2));
        step.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.made < count || !self.pods.is_empty() {
            tokio::select! {
                change = self.allocator.next() => self.follow(change).await?,
                told = self.news.told.recv() => {
                    let (_, event) = told.context("the watch ended")?;
                    self.news.take(&event, &mut self.allocator);
                }
                _ = step.tick() => {
                    self.end_pods().await?;
                    if self.made < count && self.pods.len() < PODS {
                        let labels = self.random.pick(sets).clone();
                        self.begin_pod(labels).await?;
                    }
                    if crashed < crashes && self.made > count * (crashed + 1) / (crashes + 1) {
                        crashed += 1;
                        self.crash().await?;
                    }
                }
            }
        }
        self.leave();
        Ok(())
    }

    async fn begin_pod(&mut self, labels: Labels) -> Result<()> {
        self.made += 1;
        let name = format!("{}-{}", self.name, self.made);
        self.allocator.hold(&labels, None);
        self.pods.push(Pod { name, labels, at: At::Waits });
        self.bring(self.pods.len() - 1).await
    }

    /// As an agent does: whatever was told, a pod goes on from where its label set's number is now.
    async fn bring(&mut self, index: usize) -> Result<()> {
        loop {
            let pod = &mut self.pods[index];
            match (pod.at, self.allocator.place(&pod.labels)) {
                (At::Uses(used, _), Some(Place::Settled(number) | Place::Held(number))) if used != number => {
                    bail!("{}: {} moves from {used} to {number}", self.name, pod.labels)
                }
                (At::Refers(referred), Some(Place::Held(number))) if referred == number => {
                    let until = Instant::now() + Duration::from_millis(1 + self.random.below(LIFE));
                    pod.at = At::Uses(number, until);
                    lock(&self.ledger).begin(&pod.name, &pod.labels, number);
                }
                (At::Refers(referred), Some(Place::Settled(number))) if referred == number => return Ok(()),
                (At::Waits | At::Refers(_), Some(Place::Settled(number) | Place::Held(number))) => {
                    api::refer(&self.client, &pod.name, number).await?;
                    pod.at = At::Refers(number);
                    self.allocator.referred(&pod.labels, number);
                }
                (At::Uses(..), _) | (_, Some(Place::Pending) | None) => return Ok(()),
            }
        }
    }

    async fn follow(&mut self, Change { labels, news }: Change) -> Result<()> {
        let pods: Vec<usize> = (0..self.pods.len()).filter(|pod| self.pods[*pod].labels == labels).collect();
        match news {
            News::Settled(_) | News::Held(_) => {}
            News::Lost(number) => {
                for pod in &pods {
                    match self.pods[*pod].at {
                        // Before anybody used it: another one comes.
                        At::Refers(referred) if referred == number => self.pods[*pod].at = At::Waits,
                        At::Uses(used, _) if used == number => bail!("{}: {labels} lost {number}", self.name),
                        At::Waits | At::Refers(_) | At::Uses(..) => {}
                    }
                }
            }
            News::Obstacle(reason) => bail!("{}: {labels}: {reason}", self.name),
        }
        for pod in pods {
            self.bring(pod).await?;
        }
        Ok(())
    }

    /// What has not come to an end, for people.
    pub(crate) fn unfinished(&self) -> String {
        let pods = self.pods.iter();
        let lines = pods.map(|pod| {
            let place = self.allocator.place(&pod.labels);
            format!(
                "{}: {} of {} pods; {} {:?}, its labels' number {place:?}",
                self.name,
                self.made,
                self.pods.len(),
                pod.name,
                pod.at
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    async fn end_pods(&mut self) -> Result<()> {
        let now = Instant::now();
        while let Some(index) =
            self.pods.iter().position(|pod| matches!(pod.at, At::Uses(_, until) if until <= now))
        {
            let pod = self.pods.swap_remove(index);
            if let At::Uses(number, _) = pod.at {
                lock(&self.ledger).end(&pod.labels, number);
            }
            api::unrefer(&self.client, &pod.name).await?;
            self.allocator.release(&pod.labels);
        }
        Ok(())
    }

    /// `kill -9` and a new start: pods that run go on, those that had not started yet are gone, and so is what their agent
    /// was about to do.
    async fn crash(&mut self) -> Result<()> {
        self.leave();
        lock(&self.ledger).crashes += 1;
        self.allocator = Allocator::from_api(self.client.clone(), Right::Create, 0);
        self.news = Following::new(&self.client);
        let (running, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pods).into_iter().partition(|pod| matches!(pod.at, At::Uses(..)));
        self.pods = running;
        for pod in &self.pods {
            if let At::Uses(number, _) = pod.at {
                self.allocator.hold(&pod.labels, Some(number));
            }
        }
        self.made -= gone.len();
        for pod in gone {
            api::unrefer(&self.client, &pod.name).await?;
        }
        // Their names are given once more.
        self.name.push('x');
        Ok(())
    }

    fn leave(&self) {
        let counts = self.allocator.counts();
        let mut ledger = lock(&self.ledger);
        ledger.retries += counts.retries;
        ledger.allocated += counts.allocated;
        ledger.seconds += counts.seconds;
    }

    /// What is told next of a label set, meanwhile following the API server.
    pub(crate) async fn next(&mut self) -> Result<Change> {
        loop {
            tokio::select! {
                change = self.allocator.next() => return Ok(change),
                told = self.news.told.recv() => {
                    let (_, event) = told.context("the watch ended")?;
                    self.news.take(&event, &mut self.allocator);
                }
            }
        }
    }
}

impl Following {
    fn new(client: &Client) -> Self {
        let (to, told) = mpsc::channel(64);
        let resource = Resource { kind: "CiliumIdentity", path: IDENTITIES.into(), selector: String::new() };
        let watch = Watch::start(client.clone(), resource, WatchOptions::default(), to);
        Self { manifests: Manifests::default(), told, _watch: watch }
    }

    fn take(&mut self, event: &WatchEvent, allocator: &mut Allocator) {
        let mut one = |watched: Watched<'_>| {
            let change = self.manifests.watched(ObjectKind::CiliumIdentity, watched);
            change.events.iter().for_each(|event| allocator.observe(event));
        };
        match event {
            WatchEvent::ListBegins => one(Watched::ListBegins),
            WatchEvent::Listed(objects) => {
                objects.iter().for_each(|object| one(Watched::Listed(object.get())))
            }
            WatchEvent::ListEnds { .. } => {
                one(Watched::ListEnds);
                allocator.set_synced();
            }
            WatchEvent::Applied { object, .. } => one(Watched::Applied(object.get())),
            WatchEvent::Deleted { object, .. } => one(Watched::Deleted(object.get())),
            WatchEvent::Bookmark { .. } | WatchEvent::KindGone => {}
        }
    }
}

/// After a panic elsewhere the test has failed anyway.
fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}
