//! Operators that are slowed down, cut off, frozen and killed while nodes, pods and namespaces come, go and change: no
//! exit, no write that counts without the lease, and in the end what the objects make of each other.
//!
//! The short forms are for every run; with `PORTWAY_LONG` cuts last a minute, and there are 100 freezes and 200 kills.

#![expect(clippy::print_stdout, reason = "the figures are part of the result")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use http::Method;
use portway_tests::harness::eventually;
use portway_tests::harness::fault::{Asked, FaultProxy, Reach, RequestFault, asker};
use portway_tests::harness::operator::history::{Churn, History};
use portway_tests::harness::operator::judge::{Verdict, judge};
use portway_tests::harness::operator::objects::{node, pod};
use portway_tests::harness::operator::replicas::{SHORT, SHORT_LEASE};
use portway_tests::harness::operator::{ALL_WORK, Census, Replicas, StandIn};
use portway_tests::oracle::random::Random;
use serde_json::json;

const DEFAULT_LEASE: Duration = Duration::from_secs(15);
const BEGIN: Duration = Duration::from_secs(20);
/// From the last change to where nothing is left to do.
const DONE: Duration = Duration::from_secs(60);
/// Between two changes of a history.
const APART: Duration = Duration::from_millis(50);

fn is_long() -> bool {
    std::env::var_os("PORTWAY_LONG").is_some()
}

fn flags(more: &[&'static str]) -> Vec<&'static str> {
    [&ALL_WORK, more].concat()
}

fn seed() -> u64 {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    seed
}

fn verdict(all: &Replicas, lease: Duration) -> Result<Verdict> {
    let verdict = judge(&all.control_plane().operator_writes()?, lease);
    println!(
        "{} writes by who held the lease, {} late ones refused, {} late ones went through; the lease changed hands {} \
         times",
        verdict.fenced,
        verdict.refused,
        verdict.unfenced.len(),
        verdict.holders.len().saturating_sub(1),
    );
    Ok(verdict)
}

fn nothing_unfenced(all: &Replicas, lease: Duration) -> Result<()> {
    let verdict = verdict(all, lease)?;
    ensure!(verdict.unfenced.is_empty(), "late writes went through: {:#?}", verdict.unfenced);
    ensure!(verdict.nameless.is_empty(), "these name no term: {:#?}", verdict.nameless);
    Ok(())
}

#[test]
fn no_operator_ends_because_the_api_server_is_slow_or_away() -> Result<()> {
    let (repeats, slow, cut) = if is_long() { (10, 30, 60) } else { (2, 8, 18) };
    Replicas::test("slow", 2, |all| {
        let churn = Churn::start(all.control_plane(), seed(), APART * 2)?;
        let agents = StandIn::start(all.control_plane())?;
        let census = Census::through(all.control_plane(), Duration::from_secs(slow + cut))?;
        for number in [1, 2] {
            all.start(number, &flags(&[]))?;
        }
        all.wait_leader(BEGIN)?;
        let health = all.watch_health()?;
        for turn in 0..repeats {
            for proxy in all.proxies() {
                proxy.on_requests(|_| RequestFault::Delay(Duration::from_secs(2)));
            }
            std::thread::sleep(Duration::from_secs(slow));
            all.ensure_running()?;
            let leaders = all.leaders()?;
            ensure!(leaders.len() < 2, "{leaders:?} lead");
            let reach = if turn % 2 == 0 { Reach::Silent } else { Reach::Refused };
            all.proxies().iter().for_each(|proxy| proxy.set_reach(reach));
            std::thread::sleep(Duration::from_secs(cut));
            all.ensure_running()?;
            assert_eq!(all.leaders()?, [0; 0], "without an API server");
            for proxy in all.proxies() {
                proxy.behave();
                proxy.set_reach(Reach::Up);
            }
            let begin = Instant::now();
            let leader = all.wait_leader(BEGIN * 2)?;
            println!(
                "slow for {slow} s, {reach:?} for {cut} s ({leaders:?} led): {leader} leads after {:?}",
                begin.elapsed()
            );
        }
        let changes = churn.end()?;
        all.wait_agreement(DONE)?;
        let (written, seen) = (agents.end()?, census.end()?);
        all.ensure_running()?;
        println!(
            "0 exits in {repeats} times; {changes} changes, {written} by agents, {seen} versions looked at; {} times healthy",
            health.end()?
        );
        nothing_unfenced(all, DEFAULT_LEASE)
    })
}

/// Everything that changes something but the lease and Events, which say what was so when they were made.
fn is_work(asked: &Asked) -> bool {
    let is_other = ["/leases", "/events"].iter().any(|kind| asked.path.contains(kind));
    asked.method != Method::GET && !is_other && !asked.query.contains("dryRun=All")
}

/// What is on its way.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Vec<Method>>>);

impl Held {
    fn methods(&self) -> Vec<Method> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// From now on what `proxy`'s replica writes stays on its way.
fn hold(proxy: &FaultProxy) -> Held {
    let held = Held::default();
    let of = held.clone();
    proxy.on_requests(move |asked| {
        if !is_work(asked) {
            return RequestFault::None;
        }
        of.0.lock().unwrap_or_else(PoisonError::into_inner).push(asked.method.clone());
        RequestFault::Hold
    });
    held
}

/// What everything that operators write is, and which version.
fn versions(all: &Replicas) -> Result<Vec<(String, String)>> {
    let mut versions = Vec::new();
    for kind in [
        "/apis/cilium.io/v2/ciliumidentities",
        "/apis/cilium.io/v2/ciliumendpoints",
        "/apis/cilium.io/v2/ciliumnodes",
        "/apis/cilium.io/v2alpha1/ciliumendpointslices",
        "/api/v1/nodes",
        "/api/v1/namespaces/kube-system/configmaps",
    ] {
        for object in all.client().list(kind)? {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            versions
                .push((format!("{kind}/{}/{}", text("namespace"), text("name")), text("resourceVersion")));
        }
    }
    Ok(versions)
}

#[test]
fn writes_that_arrive_when_another_replica_has_done_the_work_change_nothing() -> Result<()> {
    Replicas::test("late", 2, |all| late(all, true))
}

/// Their own preconditions hold: their objects are as they were seen, and their names are free.
#[test]
fn writes_that_arrive_when_another_replica_leads_and_has_done_nothing_change_nothing() -> Result<()> {
    Replicas::test("late-idle", 2, |all| late(all, false))
}

#[test]
fn where_there_is_no_policy_of_terms_an_operator_works_and_says_so() -> Result<()> {
    Replicas::test("no-policy", 1, |all| {
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "portway-operator-term"},
        });
        all.client().delete(&binding)?;
        all.client().create(&node(1))?;
        all.start(1, &flags(&[]))?;
        all.wait_leads(1, BEGIN)?;
        all.wait_agreement(DONE)?;
        eventually(BEGIN, "the operator to say what is missing", || {
            let status = all.operator(1)?.status()?;
            ensure!(status["leadership"]["earlier_terms"] == "taken", "{}", status["leadership"]);
            ensure!(
                status["warnings"].to_string().contains("portway-operator-term"),
                "{}",
                status["warnings"]
            );
            Ok(())
        })
    })
}

/// A leader is frozen whose writes are on their way; they come when another leads, which `works` or whose own writes are
/// on their way still.
fn late(all: &mut Replicas, works: bool) -> Result<()> {
    let agents = StandIn::start(all.control_plane())?;
    let census = Census::start(all.control_plane())?;
    all.client().create_all((1..=4).map(node).collect())?;
    all.start(1, &flags(&SHORT_LEASE))?;
    all.wait_leads(1, BEGIN)?;
    all.wait_guarded(1, BEGIN)?;
    all.start(2, &flags(&SHORT_LEASE))?;
    all.wait_agreement(DONE)?;
    let held = hold(all.proxy(1));
    let held_of_other = (!works).then(|| hold(all.proxy(2)));
    // Objects to make, to change and to delete.
    for number in [1, 2] {
        all.client().delete(&node(number))?;
    }
    all.client().create_all((5..=9).map(node).collect())?;
    // An agent that was faster than the operator: its node lacks a CIDR, which is claimed in an object that is there.
    let agents_own = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "node-9"}, "spec": {}});
    all.client().create(&agents_own)?;
    let app = |number: u32| format!("set-{}", number % 10);
    let pods = (0..30).map(|number| {
        pod("default", &format!("pod-{number}"), 3 + number % 4, number, &[("app", &app(number))])
    });
    all.client().create_all(pods.collect())?;
    eventually(BEGIN, "the leader to write", || {
        let held = held.methods();
        for wanted in [Method::POST, Method::PATCH, Method::DELETE] {
            ensure!(held.contains(&wanted), "no {wanted} among {held:?}");
        }
        Ok(())
    })?;
    all.operator(1)?.freeze()?;
    all.wait_leads(2, SHORT + BEGIN)?;
    match &held_of_other {
        None => all.wait_agreement(DONE)?,
        Some(held) => eventually(BEGIN, "the other to write", || {
            ensure!(!held.methods().is_empty(), "none is on its way");
            Ok(())
        })?,
    }
    all.proxy(1).behave();
    let before = versions(all)?;
    let released = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    all.proxy(1).release();
    let late = eventually(BEGIN, "the late writes to arrive", || {
        let writes = all.control_plane().operator_writes()?;
        let late: Vec<_> = writes
            .into_iter()
            .filter(|write| write.from == Some(asker(1)) && write.resource != "leases")
            .filter(|write| write.received >= released)
            .collect();
        let wanted = held.methods().len();
        ensure!(late.len() >= wanted, "{} of {wanted} have arrived", late.len());
        Ok(late)
    })?;
    let after = versions(all)?;
    all.proxy(2).behave();
    all.proxy(2).release();
    all.operator(1)?.thaw()?;
    eventually(BEGIN, "one to lead", || {
        let leaders = all.leaders()?;
        ensure!(leaders == [2], "{leaders:?} lead");
        Ok(())
    })?;
    let through: Vec<_> = late.iter().filter(|write| write.is_done()).collect();
    let sorts: BTreeSet<_> = late.iter().map(|late| format!("{} {}", late.verb, late.resource)).collect();
    println!("{} late writes ({sorts:?}), {} went through", late.len(), through.len());
    ensure!(through.is_empty(), "{through:#?}");
    assert_eq!(after, before);
    nothing_unfenced(all, SHORT)?;
    all.wait_agreement(DONE)?;
    agents.end()?;
    census.end()?;
    all.ensure_running()
}

#[test]
fn a_leader_that_is_frozen_past_its_lease_writes_nothing_that_counts() -> Result<()> {
    let freezes = if is_long() { 100 } else { 5 };
    Replicas::test("frozen", 2, |all| {
        let seed = seed();
        let mut random = Random::new(seed);
        let churn = Churn::start(all.control_plane(), seed, APART)?;
        let agents = StandIn::start(all.control_plane())?;
        let census = Census::start(all.control_plane())?;
        for number in [1, 2] {
            all.start(number, &flags(&SHORT_LEASE))?;
        }
        let leader = all.wait_leader(BEGIN)?;
        all.wait_guarded(leader, BEGIN)?;
        let mut held = 0;
        for turn in 0..freezes {
            let leader = all.wait_leader(BEGIN)?;
            let other = 3 - leader;
            // Every other time what it has just written is on its way still.
            let late = (turn % 2 == 0).then(|| hold(all.proxy(leader)));
            std::thread::sleep(Duration::from_millis(random.below(700)));
            all.operator(leader)?.freeze()?;
            all.wait_leads(other, SHORT + BEGIN)?;
            std::thread::sleep(Duration::from_millis(2000 + random.below(1000)));
            if random.chance(50) {
                all.proxy(leader).release();
            }
            all.operator(leader)?.thaw()?;
            all.proxy(leader).behave();
            all.proxy(leader).release();
            held += late.map_or(0, |late| late.methods().len());
            eventually(BEGIN, "the old leader to know", || {
                let leaders = all.leaders()?;
                ensure!(leaders == [other], "{leaders:?} lead");
                Ok(())
            })?;
        }
        let changes = churn.end()?;
        all.wait_agreement(DONE)?;
        let (written, seen) = (agents.end()?, census.end()?);
        all.ensure_running()?;
        println!(
            "{freezes} freezes of a leader with a lease of {SHORT:?}: {changes} changes, {written} by agents, {held} writes \
             held; {seen} versions looked at, none with a duplicate"
        );
        let verdict = verdict(all, SHORT)?;
        ensure!(verdict.unfenced.is_empty(), "late writes went through: {:#?}", verdict.unfenced);
        // Half of them is held when the leader writes little; all of those came late.
        ensure!(verdict.refused >= freezes / 2, "only {} late writes came", verdict.refused);
        ensure!(verdict.holders.len() >= freezes, "the lease changed hands {} times", verdict.holders.len());
        Ok(())
    })
}

#[test]
fn an_operator_that_is_killed_at_any_instant_is_followed_by_one_that_ends_its_work() -> Result<()> {
    let kills = if is_long() { 200 } else { 15 };
    Replicas::test("killed", 1, |all| {
        let seed = seed();
        let mut random = Random::new(seed);
        let agents = StandIn::start(all.control_plane())?;
        let census = Census::start(all.control_plane())?;
        let mut history = History::begin(all.client(), seed)?;
        let (mut changes, mut led) = (0, 0);
        for _ in 0..kills {
            all.start(1, &flags(&SHORT_LEASE))?;
            // Some end before they lead.
            if random.chance(90) {
                all.wait_leads(1, BEGIN)?;
                led += 1;
            }
            for _ in 0..random.below(20) {
                history.step(all.client())?;
                changes += 1;
            }
            std::thread::sleep(Duration::from_micros(random.below(200_000)));
            all.kill(1)?;
            release(all)?;
        }
        all.start(1, &flags(&SHORT_LEASE))?;
        all.wait_leads(1, BEGIN)?;
        all.wait_agreement(DONE)?;
        let (written, seen) = (agents.end()?, census.end()?);
        all.wait_agreement(DONE)?;
        eventually(DONE, "nothing to be left to do", || {
            let plan = all.plan(&flags(&[]))?;
            ensure!(plan.is_empty(), "there is: {plan:#?}");
            Ok(())
        })?;
        println!(
            "killed {kills} times, {led} of them as leader, in {changes} changes, {written} by agents; {seen} versions \
             looked at, none with a duplicate; nothing is left to do"
        );
        Ok(())
    })
}

/// Nobody waits for a lease whose holder is dead.
fn release(all: &Replicas) -> Result<()> {
    let Ok(lease) = all.lease() else { return Ok(()) };
    let name = lease["metadata"]["name"].as_str().context("no name")?;
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}");
    let patch = json!({"spec": {"holderIdentity": ""}});
    all.client().request(Method::PATCH, &path, "application/merge-patch+json", Some(&patch)).map(drop)
}
