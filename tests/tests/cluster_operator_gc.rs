//! Label sets that live for a moment, more of them than there are numbers: garbage collection is as fast as creation, and
//! no pod waits for a number for long.
//!
//! | form | numbers | label sets | nobody uses one before its mark, and then its delete |
//! |---|---|---|---|
//! | every run | 1,024, by a key for tests | 10,240 | for a second |
//! | `PORTWAY_LONG` | 65,280, all there are | 70,000 of 128 namespaces | for a minute, the least that can be configured |

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::try_join_all;
use http::Method;
use portway_model::identity::{CLAIM, HEARTBEAT};
use portway_runtime::kubernetes::{
    Client, ClientOptions, RequestError, Resource, Watch, WatchEvent, WatchOptions,
};
use portway_tests::harness::Replicas;
use portway_tests::harness::operator::objects::{namespace, node, pending, pod};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const IDENTITIES: &str = "/apis/cilium.io/v2/ciliumidentities";
/// A pod that waits longer is stuck.
const STUCK: Duration = Duration::from_secs(20);
const FIRST: u32 = 256;

/// How much of it there is.
struct Form {
    last: u32,
    sets: u32,
    /// Pods at a time.
    together: u32,
    namespaces: u32,
    flags: &'static [&'static str],
    /// So many different numbers are used, at least: the whole range, by the chance of homes.
    different: usize,
    /// More than all of it takes.
    limit: Duration,
}

impl Form {
    const fn numbers(&self) -> u32 {
        self.last - FIRST + 1
    }
}

const SHORT: Form = Form {
    last: 1_279,
    sets: 10_240,
    together: 128,
    namespaces: 1,
    flags: &[
        "--identity-range-test-only=256-1279",
        "--identity-gc-interval=1s",
        "--identity-heartbeat-timeout=1s",
        "--identity-gc-rate-interval=1s",
        "--identity-gc-rate-limit=1000000",
        "--operator-k8s-client-qps=2000",
        "--operator-k8s-client-burst=2000",
    ],
    different: 1_000,
    limit: Duration::from_secs(420),
};

/// Of 65,280 homes 70,000 label sets have 42,900 different ones, by expectation.
const LONG: Form = Form {
    last: 65_535,
    sets: 70_000,
    together: 128,
    namespaces: 128,
    flags: &[
        "--identity-gc-interval=5s",
        "--identity-heartbeat-timeout=1m",
        "--identity-gc-rate-interval=1s",
        "--identity-gc-rate-limit=1000",
        "--operator-k8s-client-qps=2000",
        "--operator-k8s-client-burst=2000",
    ],
    different: 40_000,
    limit: Duration::from_secs(2_400),
};

#[test]
fn pain_67_label_sets_that_live_for_a_moment_find_numbers_for_ever() -> Result<()> {
    let form = if std::env::var_os("PORTWAY_LONG").is_some() { LONG } else { SHORT };
    Replicas::test("collected", 1, |all| {
        all.client().create(&node(1))?;
        for number in 0..form.namespaces {
            all.client().create(&namespace(&namespace_of(number), json!({})))?;
        }
        let mut flags = vec!["--identity-management-mode=operator"];
        flags.extend(form.flags);
        all.start_direct(1, &flags)?;
        all.wait_leads(1, Duration::from_secs(20))?;
        let kubeconfig = all.control_plane().kubeconfig_of("admin")?;
        let begin = Instant::now();
        let mut counts = all.control_plane().namespace().run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let lives = live(&kubeconfig, &form);
            runtime.block_on(async { timeout(form.limit, lives).await.context("it takes too long")? })
        })?;
        println!("{}", figures(&form, &mut counts, begin.elapsed()));
        all.ensure_running()?;
        judge(&form, &counts)
    })
}

/// For people.
fn figures(form: &Form, counts: &mut Counts, took: Duration) -> String {
    let Counts { waits, lost, used, fullest, .. } = counts;
    waits.sort_unstable();
    let at = |percent: usize| waits.get((waits.len().saturating_sub(1)) * percent / 100);
    format!(
        "{} label sets in {} numbers, {} at a time, in {took:?} ({:.0} a second); a pod waited {:?} (median), {:?} (p99), \
         {:?} (longest) for its number; {} different numbers were used, {fullest} were taken at once, {lost} were lost \
         before they were used",
        form.sets,
        form.numbers(),
        form.together,
        f64::from(form.sets) / took.as_secs_f64(),
        at(50),
        at(99),
        at(100),
        used.len(),
    )
}

fn judge(form: &Form, counts: &Counts) -> Result<()> {
    let Counts { waits, used, faults, .. } = counts;
    ensure!(faults.is_empty(), "{faults:#?}");
    ensure!(waits.len() == usize::try_from(form.sets)?, "{} pods were served", waits.len());
    let outside: Vec<_> = used.iter().filter(|number| !(FIRST..=form.last).contains(number)).collect();
    ensure!(outside.is_empty(), "numbers outside of the range were used: {outside:?}");
    ensure!(used.len() >= form.different, "only {} numbers were used", used.len());
    let again = waits.len() - used.len();
    let least = form.sets - form.numbers();
    ensure!(again >= usize::try_from(least)?, "numbers were used again only {again} times");
    Ok(())
}

/// What came of the lives of all pods.
#[derive(Debug, Default)]
struct Counts {
    /// Of each pod for a number.
    waits: Vec<Duration>,
    lost: u32,
    /// Every number that a pod had.
    used: HashSet<u32>,
    /// Label sets that had a number at one time, at most.
    fullest: usize,
    /// What must never be.
    faults: Vec<String>,
}

/// What is known of identities, by the value of the pods' one label.
struct Known {
    numbers: Mutex<BTreeMap<String, u32>>,
    changes: watch::Sender<u64>,
    /// Who uses a number.
    in_use: Mutex<BTreeMap<u32, String>>,
    counts: Mutex<Counts>,
}

async fn live(kubeconfig: &Path, form: &Form) -> Result<Counts> {
    let options =
        ClientOptions { kubeconfig: Some(kubeconfig.to_owned()), ..ClientOptions::unlimited("pods") };
    let client = Client::new(options).await.context("make a client")?;
    let known = Arc::new(Known {
        numbers: Mutex::default(),
        changes: watch::Sender::new(0),
        in_use: Mutex::default(),
        counts: Mutex::default(),
    });
    let (to, mut told) = mpsc::channel(64);
    let resource = Resource { kind: "CiliumIdentity", path: IDENTITIES.into(), selector: String::new() };
    let _watch = Watch::start(client.clone(), resource, WatchOptions::default(), to);
    let follow = async {
        while let Some((_, event)) = told.recv().await {
            known.take(&event)?;
        }
        bail!("the watch ended")
    };
    let next = Arc::new(Mutex::new(0..form.sets));
    let lives = (0..form.together).map(|_| {
        let (client, known, next) = (client.clone(), Arc::clone(&known), Arc::clone(&next));
        async move {
            while let Some(number) = { lock(&next).next() } {
                let namespace = namespace_of(number % form.namespaces);
                life(&client, &known, &namespace, number).await.with_context(|| format!("pod {number}"))?;
            }
            anyhow::Ok(())
        }
    });
    tokio::select! {
        done = try_join_all(lives) => drop(done?),
        ended = follow => return ended,
    }
    Ok(std::mem::take(&mut *lock(&known.counts)))
}

fn namespace_of(number: u32) -> String {
    format!("jobs-{number}")
}

/// A pod comes, has its number, is what its agent makes of it, and goes.
async fn life(client: &Client, known: &Known, namespace: &str, number: u32) -> Result<()> {
    let (job, name) = (format!("job-{number}"), format!("pod-{number}"));
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let endpoints = format!("/apis/cilium.io/v2/namespaces/{namespace}/ciliumendpoints");
    let created = send(client, &pods, &pending(pod(namespace, &name, 1, number, &[("job", &job)]))).await?;
    let created: Object = serde_json::from_slice(created.as_ref())?;
    let begin = Instant::now();
    let identity = loop {
        let identity = known.wait(&job, STUCK.saturating_sub(begin.elapsed())).await?;
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": created.metadata.uid});
        let endpoint = json!({
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumEndpoint",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "status": {"identity": {"id": identity}},
        });
        send(client, &endpoints, &endpoint).await?;
        // As an agent: is it still there after it was referred to?
        if is_held(client, identity, &job).await? {
            break identity;
        }
        lock(&known.counts).lost += 1;
        remove(client, &format!("{endpoints}/{name}")).await?;
        known.forget(&job, identity);
    };
    {
        let mut counts = lock(&known.counts);
        counts.waits.push(begin.elapsed());
        counts.used.insert(identity);
        if let Some(other) = lock(&known.in_use).insert(identity, job.clone()) {
            counts.faults.push(format!("{identity} is of {other} and {job}"));
        }
    }
    remove(client, &format!("{pods}/{name}")).await?;
    // Its endpoint names the number as long as it is there.
    lock(&known.in_use).remove(&identity);
    remove(client, &format!("{endpoints}/{name}")).await
}

/// Whether the number is of the label set now; a mark of the collector's is removed.
async fn is_held(client: &Client, number: u32, job: &str) -> Result<bool> {
    let path = format!("{IDENTITIES}/{number}");
    let identity: Object = match client.get(&path).await {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(error) if is_gone(&error) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if identity.job() != job {
        return Ok(false);
    }
    let metadata = &identity.metadata;
    if !metadata.annotations.contains_key(HEARTBEAT) {
        return Ok(true);
    }
    let unmark = json!({"metadata": {
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "annotations": {HEARTBEAT: null},
    }});
    match client.send(Method::PATCH, &path, unmark.to_string().into_bytes()).await {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes an object; gives it as it is then.
async fn send(client: &Client, path: &str, object: &Value) -> Result<impl AsRef<[u8]> + use<>> {
    let answer = client.send(Method::POST, path, object.to_string().into_bytes()).await;
    answer.with_context(|| path.to_owned())
}

async fn remove(client: &Client, path: &str) -> Result<()> {
    let options = json!({"gracePeriodSeconds": 0}).to_string().into_bytes();
    match client.send(Method::DELETE, path, options).await {
        // The operator was faster: its pod is gone.
        Err(error) if is_gone(&error) => Ok(()),
        other => other.map(drop).with_context(|| path.to_owned()),
    }
}

fn is_gone(error: &RequestError) -> bool {
    error.code() == Some(404)
}

impl Known {
    fn take(&self, event: &WatchEvent) -> Result<()> {
        match event {
            WatchEvent::ListBegins
            | WatchEvent::ListEnds { .. }
            | WatchEvent::Bookmark { .. }
            | WatchEvent::KindGone => {}
            WatchEvent::Listed(objects) => objects.iter().try_for_each(|object| self.there(object.get()))?,
            WatchEvent::Applied { object, .. } => self.there(object.get())?,
            WatchEvent::Deleted { object, .. } => {
                let identity: Object = serde_json::from_str(object.get())?;
                self.forget(identity.job(), identity.number()?);
            }
        }
        self.changes.send_modify(|changes| *changes += 1);
        Ok(())
    }

    fn there(&self, text: &str) -> Result<()> {
        let identity: Object = serde_json::from_str(text)?;
        if identity.metadata.annotations.contains_key(CLAIM) {
            return Ok(());
        }
        let number = identity.number()?;
        let mut numbers = lock(&self.numbers);
        let before = numbers.insert(identity.job().to_owned(), number);
        let mut counts = lock(&self.counts);
        counts.fullest = counts.fullest.max(numbers.len());
        if let Some(other) = before.filter(|other| *other != number) {
            counts.faults.push(format!("{other} and {number} are both of {}", identity.job()));
        }
        Ok(())
    }

    fn forget(&self, job: &str, number: u32) {
        let mut numbers = lock(&self.numbers);
        if numbers.get(job) == Some(&number) {
            numbers.remove(job);
        }
    }

    /// Until `job` has a number.
    async fn wait(&self, job: &str, limit: Duration) -> Result<u32> {
        let mut changes = self.changes.subscribe();
        let wait = async {
            loop {
                if let Some(number) = lock(&self.numbers).get(job) {
                    return Ok(*number);
                }
                changes.changed().await?;
            }
        };
        timeout(limit, wait).await.with_context(|| format!("{job} is stuck"))?
    }
}

/// An identity, or as much of another object.
#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    #[serde(default, rename = "security-labels")]
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    uid: String,
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Object {
    /// The pods' own label.
    fn job(&self) -> &str {
        self.labels.get("k8s:job").map_or("", String::as_str)
    }

    fn number(&self) -> Result<u32> {
        let name = &self.metadata.name;
        name.parse().with_context(|| format!("{name} is no number of an identity"))
    }
}

/// After a panic elsewhere the test has failed anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
