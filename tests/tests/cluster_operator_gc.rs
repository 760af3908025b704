//! Label sets that live for a moment, ten times as many as there are numbers: garbage collection is as fast as creation,
//! and no pod waits for a number for long.
//!
//! The short form has 128 numbers; with `PORTWAY_LONG` there are 1,024.

use std::collections::BTreeMap;
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
use portway_tests::harness::operator::objects::{node, pending, pod};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const IDENTITIES: &str = "/apis/cilium.io/v2/ciliumidentities";
const ENDPOINTS: &str = "/apis/cilium.io/v2/namespaces/default/ciliumendpoints";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// A pod that waits longer is stuck.
const STUCK: Duration = Duration::from_secs(20);
/// More than all of it takes.
const LIMIT: Duration = Duration::from_secs(900);

/// Numbers, label sets, and pods at a time.
fn size() -> (u32, u32, u32) {
    if std::env::var_os("PORTWAY_LONG").is_some() { (1_024, 10_240, 128) } else { (128, 1_280, 32) }
}

#[test]
fn pain_67_label_sets_that_live_for_a_moment_find_numbers_for_ever() -> Result<()> {
    let (numbers, sets, together) = size();
    Replicas::test("collected", 1, |all| {
        all.client().create(&node(1))?;
        let range = format!("--identity-range-test-only=256-{}", 255 + numbers);
        all.start_direct(
            1,
            &[
                &range,
                "--identity-management-mode=operator",
                "--identity-gc-interval=1s",
                "--identity-heartbeat-timeout=1s",
                "--identity-gc-rate-interval=1s",
                "--identity-gc-rate-limit=1000000",
                "--operator-k8s-client-qps=2000",
                "--operator-k8s-client-burst=2000",
            ],
        )?;
        all.wait_leads(1, Duration::from_secs(20))?;
        let kubeconfig = all.control_plane().kubeconfig_of("admin")?;
        let begin = Instant::now();
        let counts = all.control_plane().namespace().run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let lives = live(&kubeconfig, sets, together);
            runtime.block_on(async { timeout(LIMIT, lives).await.context("it takes too long")? })
        })?;
        let took = begin.elapsed();
        all.ensure_running()?;
        let last = 255 + numbers;
        let mut waits = counts.waits;
        waits.sort_unstable();
        let at = |percent: usize| waits.get((waits.len().saturating_sub(1)) * percent / 100).copied();
        println!(
            "{sets} label sets in {numbers} numbers, {together} at a time, in {took:?} ({:.0} a second); a pod waited {:?} \
             (median), {:?} (p99), {:?} (longest) for its number; {} numbers were lost before they were used",
            f64::from(sets) / took.as_secs_f64(),
            at(50),
            at(99),
            at(100),
            counts.lost,
        );
        ensure!(counts.faults.is_empty(), "{:#?}", counts.faults);
        ensure!(waits.len() >= usize::try_from(sets)?, "only {} pods were served", waits.len());
        let (low, high) = counts.used.context("no number was used")?;
        ensure!(low >= 256 && high <= last, "numbers from {low} to {high} were used");
        Ok(())
    })
}

/// What came of the lives of all pods.
#[derive(Debug, Default)]
struct Counts {
    /// Of each pod for a number.
    waits: Vec<Duration>,
    lost: u32,
    /// The lowest and the highest number.
    used: Option<(u32, u32)>,
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

async fn live(kubeconfig: &Path, sets: u32, together: u32) -> Result<Counts> {
    let options = ClientOptions {
        kubeconfig: Some(kubeconfig.to_owned()),
        servers: Vec::new(),
        qps: 50_000,
        burst: 50_000,
        heartbeat: Duration::from_secs(30),
        user_agent: "pods".to_owned(),
    };
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
    let next = Arc::new(Mutex::new(0..sets));
    let lives = (0..together).map(|_| {
        let (client, known, next) = (client.clone(), Arc::clone(&known), Arc::clone(&next));
        async move {
            while let Some(number) = { lock(&next).next() } {
                life(&client, &known, number).await.with_context(|| format!("pod {number}"))?;
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

/// A pod comes, has its number, is what its agent makes of it, and goes.
async fn life(client: &Client, known: &Known, number: u32) -> Result<()> {
    let (job, name) = (format!("job-{number}"), format!("pod-{number}"));
    let object = pending(pod("default", &name, 1, number, &[("job", &job)]));
    let created = send(client, Method::POST, PODS, &object).await?;
    let uid = created["metadata"]["uid"].as_str().context("no uid")?.to_owned();
    let begin = Instant::now();
    let identity = loop {
        let identity = known.wait(&job, STUCK.saturating_sub(begin.elapsed())).await?;
        let endpoint = json!({
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumEndpoint",
            "metadata": {
                "name": name,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}],
            },
            "status": {"identity": {"id": identity}},
        });
        send(client, Method::POST, ENDPOINTS, &endpoint).await?;
        // As an agent: is it still there after it was referred to?
        if is_held(client, identity, &job).await? {
            break identity;
        }
        lock(&known.counts).lost += 1;
        remove(client, &format!("{ENDPOINTS}/{name}")).await?;
        known.forget(&job, identity);
    };
    {
        let mut counts = lock(&known.counts);
        counts.waits.push(begin.elapsed());
        let (low, high) = counts.used.unwrap_or((identity, identity));
        counts.used = Some((low.min(identity), high.max(identity)));
        if let Some(other) = lock(&known.in_use).insert(identity, job.clone()) {
            counts.faults.push(format!("{identity} is of {other} and {job}"));
        }
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    lock(&known.in_use).remove(&identity);
    remove(client, &format!("{PODS}/{name}")).await?;
    remove(client, &format!("{ENDPOINTS}/{name}")).await
}

/// Whether the number is of the label set now; a mark of the collector's is removed.
async fn is_held(client: &Client, number: u32, job: &str) -> Result<bool> {
    let path = format!("{IDENTITIES}/{number}");
    let identity = match client.get(&path).await {
        Ok(text) => serde_json::from_slice::<Value>(&text)?,
        Err(error) if error.code() == Some(404) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if identity["security-labels"]["k8s:job"] != job {
        return Ok(false);
    }
    if identity["metadata"]["annotations"][HEARTBEAT].is_null() {
        return Ok(true);
    }
    let metadata = &identity["metadata"];
    let unmark = json!({"metadata": {
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
        "annotations": {HEARTBEAT: null},
    }});
    match client.send(Method::PATCH, &path, unmark.to_string().into_bytes()).await {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn send(client: &Client, method: Method, path: &str, object: &Value) -> Result<Value> {
    let answer = client.send(method, path, object.to_string().into_bytes()).await;
    Ok(serde_json::from_slice(&answer.with_context(|| path.to_owned())?)?)
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
                let (job, number, _) = read(object.get())?;
                self.forget(&job, number);
            }
        }
        self.changes.send_modify(|changes| *changes += 1);
        Ok(())
    }

    fn there(&self, text: &str) -> Result<()> {
        let (job, number, is_confirmed) = read(text)?;
        if !is_confirmed {
            return Ok(());
        }
        let mut numbers = lock(&self.numbers);
        match numbers.insert(job.clone(), number) {
            Some(other) if other != number => {
                lock(&self.counts).faults.push(format!("{other} and {number} are both of {job}"));
            }
            _ => {}
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

/// The pods' label, the number, and whether it can be used.
fn read(text: &str) -> Result<(String, u32, bool)> {
    let object: Value = serde_json::from_str(text)?;
    let job = object["security-labels"]["k8s:job"].as_str().unwrap_or_default().to_owned();
    let number = object["metadata"]["name"].as_str().and_then(|name| name.parse().ok());
    let is_confirmed = object["metadata"]["annotations"][CLAIM].is_null();
    Ok((job, number.context("an identity without a number")?, is_confirmed))
}

/// After a panic elsewhere the test has failed anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
