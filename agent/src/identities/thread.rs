//! The loop: what the owner tells, what becomes of endpoints, what comes of claims.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use portway_claims::Allocator;
use portway_claims::config::IdentityScheme;
use portway_model::identity::Right;
use portway_model::ipcache::Source;
use portway_model::k8s::{Event, ObjectKind};
use portway_model::node::ClusterView;
use portway_runtime::kubernetes::{Client, EventRecorder, EventType, Regarding};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::follow::Follow;
use super::pods::{Pods, Trouble, Turn};
use super::show::{self, Question};
use super::writes::{Tried, Writes};
use super::{Census, FromOwner, Inputs, Told};
use crate::config::{Config, PodNetwork};
use crate::ipcache::Ipcache;

/// When what the kernel refused is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Until an error that no retry mends.
pub(super) async fn follow(inputs: Inputs) -> anyhow::Result<()> {
    let Inputs { config, network, owner, mut cluster, endpoints, ipcache, drain: _ } = inputs;
    let FromOwner { questions, mut told, census, recorder } = owner;
    let mut changes = endpoints.changes();
    let pods = Pods::new(endpoints, ipcache.clone(), network.identities.change_grace);
    let mut thread = Thread::start(&config, &network, pods, ipcache, census, recorder).await?;
    let mut asked = Some(questions);
    // What an earlier agent left has its identities from the first moment on.
    thread.see(&cluster.borrow_and_update());
    thread.turn();
    thread.synced(Source::LocalEndpoints);
    loop {
        let due = thread.due();
        tokio::select! {
            news = told.recv() => match news {
                Some(news) => {
                    if !thread.take(news) {
                        continue;
                    }
                }
                // The owner ended, and with it the agent.
                None => return pending().await,
            },
            Ok(()) = changes.changed() => {}
            change = thread.allocator.next() => thread.pods.told(change),
            tried = next_tried(&mut thread.writes) => thread.tried(&tried),
            Ok(()) = cluster.changed() => thread.see(&cluster.borrow_and_update()),
            question = next_question(&mut asked) => match question {
                Some(question) => {
                    thread.answer(question);
                    continue;
                }
                None => {
                    asked = None;
                    continue;
                }
            },
            () = until(due) => thread.retry(),
        }
        thread.turn();
    }
}

struct Thread {
    follow: Follow,
    allocator: Allocator,
    pods: Pods,
    /// Where there is an API server.
    writes: Option<Writes>,
    ipcache: Ipcache,
    census: Census,
    recorder: Option<EventRecorder>,
    /// Something was refused.
    retry_at: Option<Instant>,
    mode: &'static str,
}

impl Thread {
    async fn start(
        config: &Config,
        network: &PodNetwork,
        pods: Pods,
        ipcache: Ipcache,
        census: Census,
        recorder: Option<EventRecorder>,
    ) -> anyhow::Result<Self> {
        let IdentityScheme { mode, labels, cluster_name, cluster_id } = &network.identities.scheme;
        let (allocator, writes) = match &config.api_server {
            Some(api_server) => {
                // Requests of this thread's own: those of the watches wake at a pace.
                let client = Client::new(api_server.client_options_for_pods()).await;
                let client = client.context("cannot use what is configured for the API server")?;
                let right = if mode.agent_claims() { Right::Create } else { Right::Wait };
                let writes = Writes::new(&client, config, network);
                (Allocator::from_api(client, right, *cluster_id), Some(writes))
            }
            None => (Allocator::alone(*cluster_id), None),
        };
        let node = config.node_name.as_str().into();
        let follow = Follow::new(labels.clone(), cluster_name.clone(), node, config.api_server.is_some());
        Ok(Self {
            follow,
            allocator,
            pods,
            writes,
            ipcache,
            census,
            recorder,
            retry_at: None,
            mode: mode.name(),
        })
    }

    /// Whether a pod of this node may be another one by it.
    fn take(&mut self, told: Told) -> bool {
        let Told { events, synced } = told;
        let mut is_news = synced != self.follow.synced;
        for event in &events {
            is_news |= self.follow.apply(event) | !is_of_endpoints(event);
            self.allocator.observe(event);
            self.census.observe(event);
            if let Some(writes) = &mut self.writes {
                writes.observe(event);
            }
            if let Err(error) = self.ipcache.apply(event) {
                tracing::debug!(%error, "an address is not in pw_ipcache yet");
                self.fail();
            }
        }
        let before = std::mem::replace(&mut self.follow.synced, synced);
        if synced.identities && !before.identities {
            self.allocator.set_synced();
        }
        if let Some(version) = synced.identities_listed.filter(|_| synced != before) {
            self.allocator.told_up_to(version);
        }
        if let Some(writes) = self.writes.as_mut().filter(|_| synced.endpoints && !before.endpoints) {
            writes.set_synced();
        }
        for (is_synced, source) in [
            (synced.endpoints && !before.endpoints, Source::Endpoints),
            (synced.api_server && !before.api_server, Source::ApiServer),
        ] {
            if is_synced {
                self.synced(source);
            }
        }
        is_news
    }

    fn see(&mut self, view: &ClusterView) {
        if let Some(writes) = &mut self.writes {
            writes.follow(view);
        }
    }

    fn tried(&mut self, tried: &Tried) {
        if let Some(trouble) = self.pods.tried(tried, &mut self.allocator) {
            self.tell(&trouble);
        }
    }

    fn synced(&mut self, source: Source) {
        if let Err(error) = self.ipcache.synced(source) {
            tracing::warn!(%error, ?source, "pw_ipcache is not as it should be yet");
            self.fail();
        }
    }

    fn turn(&mut self) {
        let Turn { failed, troubles } =
            self.pods.turn(&mut self.follow, &mut self.allocator, &mut self.writes, Instant::now());
        self.census.set_node(self.allocator.given(), self.allocator.counts());
        if failed {
            self.fail();
        }
        for trouble in troubles {
            self.tell(&trouble);
        }
    }

    /// Tells a Pod why it waits.
    fn tell(&self, trouble: &Trouble) {
        let Trouble { pod, reason } = trouble;
        tracing::warn!(pod = %pod.name, reason, "a pod's identity");
        let Some(recorder) = &self.recorder else { return };
        let (namespace, name) = pod.name.split_once('/').unwrap_or(("", &pod.name));
        let regarding = Regarding {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: pod.uid.to_string(),
        };
        recorder.record(regarding, EventType::Warning, "IdentityDelayed", reason.clone());
    }

    fn fail(&mut self) {
        self.retry_at.get_or_insert_with(|| Instant::now() + RETRY);
    }

    fn retry(&mut self) {
        if self.retry_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.retry_at = None;
        if self.ipcache.is_behind()
            && let Err(error) = self.ipcache.retry()
        {
            tracing::debug!(%error, "pw_ipcache is not as it should be yet");
            self.fail();
        }
    }

    fn due(&self) -> Option<Instant> {
        self.retry_at.into_iter().chain(self.pods.due()).min()
    }

    fn answer(&self, question: Question) {
        let users: BTreeMap<_, _> = self.pods.users();
        match question {
            // Nobody takes the answer where the request was given up.
            Question::List(to) => drop(to.send(show::list(&self.allocator, &self.ipcache, &users))),
            Question::Status(to) => {
                let mut waiting = self.pods.waiting();
                waiting.extend(self.writes.iter().flat_map(Writes::obstacles));
                drop(to.send(show::status(
                    self.mode,
                    &self.allocator,
                    self.writes.as_ref(),
                    waiting,
                    &users,
                )));
            }
        }
    }
}

/// Those of all nodes come here; none of them makes a pod of this node another one.
fn is_of_endpoints(event: &Event) -> bool {
    let kind = match event {
        Event::Apply(object) => object.kind(),
        Event::Delete(key) => key.kind,
    };
    matches!(kind, ObjectKind::CiliumEndpoint | ObjectKind::CiliumEndpointSlice)
}

async fn next_question(asked: &mut Option<mpsc::Receiver<Question>>) -> Option<Question> {
    match asked {
        Some(asked) => asked.recv().await,
        None => pending().await,
    }
}

async fn next_tried(writes: &mut Option<Writes>) -> Tried {
    match writes {
        Some(writes) => writes.next().await,
        None => pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}
