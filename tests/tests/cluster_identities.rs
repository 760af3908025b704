//! Identities of a real API server: what agents agree on without asking each other, and what others do to it.

#[path = "cluster_identities/api.rs"]
mod api;
#[path = "cluster_identities/ledger.rs"]
mod ledger;
#[path = "cluster_identities/node.rs"]
mod node;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use portway_claims::{Change, News, Place};
use portway_datapath::NumericIdentity;
use portway_model::identity::{HEARTBEAT, Standing, home_of, numbers_from};
use portway_model::k8s::{CiliumIdentity, Event, Object, ObjectKey, ObjectKind, Uid};
use portway_model::labels::{Label, Labels};
use portway_runtime::kubernetes::Client;
use portway_tests::harness::cluster::portway_client;
use portway_tests::harness::{ControlPlane, Namespace};
use serde_json::{Value, json};

use ledger::Ledger;
use node::Node;

const CLIENTS: usize = 8;
const ALLOCATIONS: usize = 1_000;
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(240);

fn labels(app: &str) -> Labels {
    labels_in("default", app)
}

fn labels_in(namespace: &str, app: &str) -> Labels {
    let namespace = Label::new("k8s", "io.kubernetes.pod.namespace", namespace);
    Labels::new([Label::new("k8s", "app", app), namespace])
}

/// A hundred, of which two each have the same home.
fn label_sets() -> Vec<Labels> {
    let mut homes: BTreeMap<NumericIdentity, Labels> = BTreeMap::new();
    let mut sets = Vec::new();
    for n in 0.. {
        let set = labels(&format!("app-{n}"));
        if let Some(other) = homes.insert(home_of(&set, 0), set.clone()) {
            sets.extend([set, other]);
        }
        if sets.len() == 100 {
            break;
        }
    }
    sets
}

/// Runs `work` on the sockets of `namespace`.
fn within<T: Send>(namespace: &Namespace, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
    namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { tokio::time::timeout(LIMIT, work()).await.context("it takes too long")? })
    })
}

fn cluster() -> Result<(Namespace, ControlPlane)> {
    let namespace = Namespace::new("identities")?;
    let control_plane = ControlPlane::start(&namespace)?;
    control_plane.install_crds()?;
    Ok((namespace, control_plane))
}

#[test]
fn a_thousand_allocations_by_eight_clients_with_crashes_and_a_collector_agree() -> Result<()> {
    let (namespace, control_plane) = cluster()?;
    let kubeconfig = control_plane.kubeconfig()?;
    let sets = label_sets();
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let began = Instant::now();
    let (deleted, left) = within(&namespace, async || {
        let mut nodes = Vec::new();
        for n in 0..CLIENTS {
            let client = portway_client(&kubeconfig, &format!("client-{n}")).await?;
            nodes.push(Node::new(&format!("client-{n}"), client, 7 + n as u64, Arc::clone(&ledger)));
        }
        let collector = portway_client(&kubeconfig, "collector").await?;
        let (mut deleted, mut rounds) = (0, 0);
        let collect = async {
            loop {
                deleted += api::collect(&collector).await?;
                rounds += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = {
            let lives = try_join_all(nodes.iter_mut().map(|node| node.live(&sets, ALLOCATIONS / CLIENTS, 3)));
            tokio::select! {
                result = lives => { result?; true }
                result = collect => return result,
                () = tokio::time::sleep(LIMIT / 2) => false,
            }
        };
        let unfinished: Vec<_> = nodes.iter().map(Node::unfinished).collect();
        ensure!(ended, "it takes too long:\n{}", unfinished.join("\n"));
        println!("{rounds} rounds of garbage collection deleted {deleted} identities");
        Ok((deleted, api::identities(&collector).await?))
    })?;
    let ledger = ledger.lock().unwrap();
    println!(
        "{} uses begun in {:.1} s, {} numbers claimed in {:.1} ms each, {} retries, {} crashes",
        ledger.begun,
        began.elapsed().as_secs_f64(),
        ledger.allocated,
        ledger.seconds * 1e3 / ledger.allocated.max(1) as f64,
        ledger.retries,
        ledger.crashes
    );
    ensure!(ledger.faults.is_empty(), "{:#?}", ledger.faults);
    ensure!(
        ledger.begun >= ALLOCATIONS && ledger.crashes == 3 * CLIENTS && deleted > 10,
        "nothing was tried"
    );
    let mut confirmed = BTreeMap::new();
    for identity in left.iter().filter(|identity| identity.claim.is_none()) {
        if let Some(other) = confirmed.insert(&identity.labels, identity.number) {
            anyhow::bail!("{} has {other} and {}", identity.labels, identity.number);
        }
    }
    Ok(())
}

/// Two clients that follow the API server.
async fn two_nodes(kubeconfig: &std::path::Path) -> Result<[Node; 2]> {
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let mut nodes = Vec::new();
    for (seed, name) in ["one", "two"].into_iter().enumerate() {
        let client = portway_client(kubeconfig, name).await?;
        nodes.push(Node::new(name, client, seed as u64, Arc::clone(&ledger)));
    }
    nodes.try_into().ok().context("two")
}

/// Waits until a number of `labels` is held; what comes before is answered as a node would.
async fn held(node: &mut Node, labels: &Labels) -> Result<NumericIdentity> {
    match node.allocator.hold(labels, None) {
        Place::Held(number) => return Ok(number),
        Place::Settled(number) => node.allocator.referred(labels, number),
        Place::Pending => {}
    }
    held_next(node, labels).await
}

async fn held_next(node: &mut Node, labels: &Labels) -> Result<NumericIdentity> {
    loop {
        match node.next().await? {
            Change { labels: of, news: News::Settled(number) } if of == *labels => {
                node.allocator.referred(labels, number);
            }
            Change { labels: of, news: News::Held(number) } if of == *labels => return Ok(number),
            _ => {}
        }
    }
}

fn object(number: u32, app: &str) -> Value {
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumIdentity",
        "metadata": {"name": number.to_string(), "labels": {"io.kubernetes.pod.namespace": "default"}},
        "security-labels": {"k8s:app": app, "k8s:io.kubernetes.pod.namespace": "default"},
    })
}

#[test]
fn identities_that_others_made_are_used_whatever_their_numbers() -> Result<()> {
    let (namespace, control_plane) = cluster()?;
    let kubeconfig = control_plane.kubeconfig()?;
    let admin = control_plane.client();
    admin.create(&object(41_000, "web"))?;
    // Creation times are of seconds.
    std::thread::sleep(Duration::from_millis(1100));
    // Somebody's second one, with a smaller number, and one that is going to be collected.
    admin.create(&object(40_000, "web"))?;
    let mut marked = object(50_000, "db");
    marked["metadata"]["annotations"] = json!({HEARTBEAT: "2026-11-30T00:00:00Z"});
    admin.create(&marked)?;
    within(&namespace, async || {
        for node in &mut two_nodes(&kubeconfig).await? {
            ensure!(held(node, &labels("web")).await?.get() == 41_000, "the older one counts");
            ensure!(held(node, &labels("db")).await?.get() == 50_000);
        }
        Ok(())
    })?;
    let after = admin.get(&format!("{}/50000", api::IDENTITIES))?;
    ensure!(after.pointer("/metadata/annotations").is_none(), "its mark is gone: {after}");
    ensure!(admin.list(api::IDENTITIES)?.len() == 3, "nobody made another one");
    Ok(())
}

/// Two nodes use the number 777 for `web`; it is not at home, so that nobody finds it by himself. `work` gets them and a
/// client that may do anything.
fn while_two_hold_777(work: impl AsyncFnOnce([Node; 2], Client) -> Result<()> + Send) -> Result<()> {
    let (namespace, control_plane) = cluster()?;
    let kubeconfig = control_plane.kubeconfig()?;
    let web = labels("web");
    control_plane.client().create(&object(777, "web"))?;
    let admin_config = control_plane.identity().kubeconfig("admin", &control_plane.url())?;
    within(&namespace, async || {
        let [mut one, mut two] = two_nodes(&kubeconfig).await?;
        ensure!(held(&mut one, &web).await?.get() == 777 && held(&mut two, &web).await?.get() == 777);
        work([one, two], portway_client(&admin_config, "admin").await?).await
    })
}

#[test]
fn an_identity_that_vanishes_in_use_is_made_again_with_its_number() -> Result<()> {
    while_two_hold_777(async |[mut one, mut two], admin| {
        let path = format!("{}/777", api::IDENTITIES);
        admin.send(http::Method::DELETE, &path, Vec::new()).await?;
        let is_there = async {
            loop {
                let identities = api::identities(&admin).await?;
                if identities.iter().any(|identity| identity.number.get() == 777 && identity.claim.is_none())
                {
                    return anyhow::Ok(identities);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let identities = tokio::select! {
            identities = is_there => identities?,
            change = one.next() => anyhow::bail!("the first client's pods notice: {change:?}"),
            change = two.next() => anyhow::bail!("the second client's pods notice: {change:?}"),
        };
        ensure!(identities.len() == 1, "{identities:?}");
        Ok(())
    })
}

#[test]
fn when_all_numbers_are_taken_it_is_said_and_the_first_that_is_free_is_kube_systems() -> Result<()> {
    let (namespace, control_plane) = cluster()?;
    let kubeconfig = control_plane.kubeconfig()?;
    let (web, dns) = (labels("web"), labels_in("kube-system", "dns"));
    within(&namespace, async || {
        let [mut node, _] = two_nodes(&kubeconfig).await?;
        // As a watch would show them; to make them takes a minute.
        for number in numbers_from(home_of(&dns, 0)) {
            let identity = CiliumIdentity {
                name: number.to_string().into(),
                number,
                uid: Uid::NONE,
                version: 1,
                created: None,
                labels: labels(&format!("other-{number}")),
                heartbeat: None,
                claim: None,
            };
            node.allocator.observe(&Event::Apply(Object::CiliumIdentity(identity.into())));
        }
        for (labels, said) in
            [(&web, "65,280 numbers of identities are taken but at most 1,020"), (&dns, "65,280")]
        {
            ensure!(node.allocator.hold(labels, None) == Place::Pending);
            let Change { news: News::Obstacle(reason), .. } = node.allocator.next().await else {
                anyhow::bail!("it is not said")
            };
            ensure!(reason.contains(said), "{reason}");
        }
        let gone = ObjectKey { kind: ObjectKind::CiliumIdentity, name: "4711".into(), uid: "".into() };
        node.allocator.observe(&Event::Delete(gone));
        let change = node.allocator.next().await;
        let settled = News::Settled(NumericIdentity::new(4711));
        ensure!(change == Change { labels: dns.clone(), news: settled }, "{change:?}");
        Ok(())
    })?;
    let made = control_plane.client().get(&format!("{}/4711", api::IDENTITIES))?;
    ensure!(made.pointer("/security-labels/k8s:app") == Some(&json!("dns")), "{made}");
    ensure!(
        Standing::read(made.pointer("/metadata/annotations/portway.io~1claim").and_then(Value::as_str))
            == Standing::Confirmed
    );
    Ok(())
}

#[test]
fn a_number_that_means_something_else_is_given_up_and_another_one_is_claimed() -> Result<()> {
    let web = labels("web");
    while_two_hold_777(async |nodes, admin| {
        let patch = json!({"security-labels": {"k8s:app": "db"}}).to_string().into_bytes();
        admin.send(http::Method::PATCH, &format!("{}/777", api::IDENTITIES), patch).await?;
        for mut node in nodes {
            let lost = node.next().await?;
            ensure!(lost.news == News::Lost(NumericIdentity::new(777)), "{lost:?}");
            ensure!(node.allocator.place(&web) == Some(Place::Pending));
            ensure!(held_next(&mut node, &web).await? == home_of(&web, 0));
        }
        Ok(())
    })
}
