//! Which of several operators leads, on a real API server: one at a time, soon after another has gone, and none that
//! cannot know that it does.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Method;
use portway_tests::harness::eventually;
use portway_tests::harness::fault::Reach;
use portway_tests::harness::fault::asker;
use portway_tests::harness::operator::agreement::of_nodes;
use portway_tests::harness::operator::judge::judge;
use portway_tests::harness::operator::objects::{node, pod};
use portway_tests::harness::operator::replicas::{SHORT, SHORT_LEASE};
use portway_tests::harness::operator::{ALL_WORK, Census, Replicas};
use serde_json::{Value, json};

/// Of the defaults: a lease of 15 s and a look every 2 s.
const AFTER_A_CRASH: Duration = Duration::from_secs(17);
const AFTER_A_RELEASE: Duration = Duration::from_secs(2);
const DEFAULT_LEASE: Duration = Duration::from_secs(15);
/// A start on a busy machine, in a debug build.
const BEGIN: Duration = Duration::from_secs(20);

fn flags(more: &[&'static str]) -> Vec<&'static str> {
    [&ALL_WORK, more].concat()
}

/// No more replicas than `most` say that they lead, at any time before `end`.
fn lead_at_most(all: &Replicas, most: usize, end: Instant) -> Result<()> {
    while Instant::now() < end {
        let leaders = all.leaders()?;
        ensure!(leaders.len() <= most, "{leaders:?} lead");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[test]
fn of_two_replicas_one_leads_and_the_other_follows_it_in_time() -> Result<()> {
    Replicas::test("leads", 2, |all| {
        all.client().create_all((1..=5).map(node).collect())?;
        let flags = flags(&[]);
        all.start(1, &flags)?;
        all.wait_leads(1, BEGIN)?;
        all.start(2, &flags)?;
        let health = all.watch_health()?;
        eventually(BEGIN, "nodes to have their ranges", || {
            let wrong = of_nodes(all.client())?;
            ensure!(wrong.is_empty(), "{wrong:#?}");
            Ok(())
        })?;
        assert_eq!(all.leaders()?, [1]);
        let holder = all.lease()?["spec"]["holderIdentity"].clone();
        let standby = all.control_plane().operator_writes()?;
        ensure!(standby.iter().any(|write| write.from == Some(asker(1))), "the leader wrote nothing");
        let standby: Vec<_> = standby.iter().filter(|write| write.from == Some(asker(2))).collect();
        ensure!(standby.is_empty(), "the standby wrote {standby:#?}");
        let looks = health.end()?;
        // Without a word: what the other can know is that the lease is not renewed.
        all.kill(1)?;
        let begin = Instant::now();
        all.wait_leads(2, AFTER_A_CRASH + BEGIN)?;
        let crash = begin.elapsed();
        assert_ne!(all.lease()?["spec"]["holderIdentity"], holder);
        all.start(1, &flags)?;
        let health = all.watch_health()?;
        eventually(BEGIN, "the standby to be up", || all.operator(1)?.healthy())?;
        assert_eq!(all.leaders()?, [2]);
        let looks = looks + health.end()?;
        let begin = Instant::now();
        let took = all.stop(2)?;
        all.wait_leads(1, AFTER_A_RELEASE + BEGIN)?;
        let release = begin.elapsed();
        let verdict = judge(&all.control_plane().operator_writes()?, DEFAULT_LEASE);
        println!(
            "leader killed: the other leads after {crash:?}; told to end: it ended after {took:?}, the other leads after \
             {release:?}; {looks} times healthy; {} writes by who held the lease, {} refused, {} unfenced",
            verdict.fenced,
            verdict.refused,
            verdict.unfenced.len(),
        );
        ensure!(verdict.unfenced.is_empty(), "{:#?}", verdict.unfenced);
        ensure!(crash <= AFTER_A_CRASH, "after a crash it took {crash:?}");
        ensure!(release <= AFTER_A_RELEASE, "after a clean end it took {release:?}");
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/17870>: two operators come up before the API server does.
#[test]
fn pain_76_of_replicas_that_start_before_the_api_server_one_leads() -> Result<()> {
    Replicas::test("before", 2, |all| {
        all.client().create_all((1..=5).map(node).collect())?;
        all.control_plane_mut().stop_api_server()?;
        let flags = flags(&SHORT_LEASE);
        all.start(1, &flags)?;
        all.start(2, &flags)?;
        let health = all.watch_health()?;
        // Longer than a lease: who took it for granted would lead by now.
        lead_at_most(all, 0, Instant::now() + SHORT + Duration::from_secs(1))?;
        all.control_plane_mut().start_api_server()?;
        let census = Census::start(all.control_plane())?;
        // The two have backed off meanwhile.
        let leader = all.wait_leader(BEGIN * 2)?;
        eventually(BEGIN, "nodes to have their ranges", || {
            let wrong = of_nodes(all.client())?;
            ensure!(wrong.is_empty(), "{wrong:#?}");
            Ok(())
        })?;
        assert_eq!(all.leaders()?, [leader]);
        let verdict = judge(&all.control_plane().operator_writes()?, SHORT);
        ensure!(verdict.unfenced.is_empty(), "{:#?}", verdict.unfenced);
        assert_eq!(verdict.holders, [asker(leader)]);
        let looks = health.end()?;
        println!("replica {leader} leads; {looks} times healthy; {} changes of objects", census.end()?);
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/17870>: what the API server has cannot be found out.
#[test]
fn pain_76_where_discovery_fails_there_are_not_two_leaders() -> Result<()> {
    Replicas::test("discovery", 2, |all| {
        all.client().create_all((1..=5).map(node).collect())?;
        for proxy in all.proxies() {
            proxy.on_requests(|asked| match asked.path.as_str() {
                "/api" | "/apis" | "/version" => fault::UNAVAILABLE,
                path if path.starts_with("/apis/") && path.matches('/').count() <= 3 && !asked.is_watch() => {
                    // `/apis/cilium.io/v2`; not the objects of a kind.
                    fault::UNAVAILABLE
                }
                path if path.contains("customresourcedefinitions") => fault::UNAVAILABLE,
                _ => fault::NONE,
            });
        }
        let flags = flags(&SHORT_LEASE);
        let census = Census::start(all.control_plane())?;
        all.start(1, &flags)?;
        all.start(2, &flags)?;
        let health = all.watch_health()?;
        lead_at_most(all, 1, Instant::now() + SHORT + Duration::from_secs(2))?;
        all.proxies().iter().for_each(|proxy| proxy.behave());
        let leader = all.wait_leader(BEGIN * 2)?;
        eventually(BEGIN * 2, "nodes to have their ranges", || {
            let wrong = of_nodes(all.client())?;
            ensure!(wrong.is_empty(), "{wrong:#?}");
            Ok(())
        })?;
        let verdict = judge(&all.control_plane().operator_writes()?, SHORT);
        ensure!(verdict.unfenced.is_empty(), "{:#?}", verdict.unfenced);
        assert_eq!(verdict.holders, [asker(leader)]);
        health.end()?;
        census.end()?;
        Ok(())
    })
}

mod fault {
    use portway_tests::harness::fault::RequestFault;

    pub(crate) const NONE: RequestFault = RequestFault::None;
    pub(crate) const UNAVAILABLE: RequestFault = RequestFault::Status(503, None);
}

#[test]
fn one_replica_alone_leads_steps_down_in_an_outage_and_leads_again() -> Result<()> {
    Replicas::test("alone", 1, |all| {
        all.client().create_all((1..=3).map(node).collect())?;
        all.start(1, &flags(&[]))?;
        all.wait_leads(1, BEGIN)?;
        let id = all.operator(1)?.id();
        let health = all.watch_health()?;
        let begin = Instant::now();
        all.proxy(1).set_reach(Reach::Silent);
        all.wait_no_leader(Duration::from_secs(15))?;
        let down = begin.elapsed();
        // What was to be done meanwhile is done later.
        all.client().create(&node(4))?;
        std::thread::sleep(Duration::from_secs(20).saturating_sub(begin.elapsed()));
        assert_eq!(all.leaders()?, [0; 0]);
        all.proxy(1).set_reach(Reach::Up);
        let begin = Instant::now();
        all.wait_leads(1, BEGIN * 2)?;
        let again = begin.elapsed();
        eventually(BEGIN, "the node that came meanwhile to have its range", || {
            let wrong = of_nodes(all.client())?;
            ensure!(wrong.is_empty(), "{wrong:#?}");
            Ok(())
        })?;
        assert_eq!(all.operator(1)?.id(), id);
        all.ensure_running()?;
        let looks = health.end()?;
        let verdict = judge(&all.control_plane().operator_writes()?, DEFAULT_LEASE);
        println!(
            "cut off: it leads no more after {down:?}, and again {again:?} after the cut; {looks} times healthy; \
             {} writes by who held the lease, {} unfenced",
            verdict.fenced,
            verdict.unfenced.len()
        );
        ensure!(verdict.unfenced.is_empty(), "{:#?}", verdict.unfenced);
        Ok(())
    })
}

#[test]
fn a_leader_whose_lease_somebody_takes_steps_down_and_waits_for_it() -> Result<()> {
    Replicas::test("taken", 1, |all| {
        all.client().create_all((1..=3).map(node).collect())?;
        all.start(1, &flags(&SHORT_LEASE))?;
        all.wait_leads(1, BEGIN)?;
        let health = all.watch_health()?;
        let id = all.operator(1)?.id();
        for turn in 1..=2 {
            eventually(BEGIN, "nodes to have their ranges", || {
                let wrong = of_nodes(all.client())?;
                ensure!(wrong.is_empty(), "{wrong:#?}");
                Ok(())
            })?;
            take(all, &format!("somebody-{turn}"))?;
            let taken = Instant::now();
            all.wait_no_leader(Duration::from_secs(3))?;
            let down = taken.elapsed();
            // Whoever takes it like that does not wait for what is under way.
            eventually(Duration::from_secs(3), "it to stand by", || {
                let state = all.operator(1)?.status()?["leadership"]["state"].clone();
                ensure!(state == "standby", "{state}");
                Ok(())
            })?;
            let before = all.control_plane().operator_writes()?.len();
            // The node that comes now waits: the lease is another's as long as it lasts.
            all.client().create(&node(10 + turn))?;
            lead_at_most(all, 0, taken + SHORT - Duration::from_secs(1))?;
            let writes = all.control_plane().operator_writes()?;
            let meanwhile: Vec<_> =
                writes.get(before..).into_iter().flatten().filter(|write| write.is_done()).collect();
            ensure!(meanwhile.is_empty(), "under another's lease it wrote {meanwhile:#?}");
            all.wait_leads(1, SHORT + BEGIN)?;
            println!("taken: it leads no more after {down:?}, and again after {:?}", taken.elapsed());
            eventually(BEGIN, "the node that came meanwhile to have its range", || {
                let wrong = of_nodes(all.client())?;
                ensure!(wrong.is_empty(), "{wrong:#?}");
                Ok(())
            })?;
        }
        assert_eq!(all.operator(1)?.id(), id);
        health.end()?;
        Ok(())
    })
}

/// Makes `holder` the holder of the lease from now on.
fn take(all: &Replicas, holder: &str) -> Result<()> {
    let lease = all.lease()?;
    let name = lease["metadata"]["name"].as_str().context("no name")?;
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}");
    let patch = json!({"spec": {"holderIdentity": holder}});
    all.client().request(Method::PATCH, &path, "application/merge-patch+json", Some(&patch)).map(drop)
}

/// <https://github.com/cilium/cilium/issues/24266>: a client that may ask once a second, and ten thousand events; with
/// `PORTWAY_LONG`, or else a quarter of them.
#[test]
fn pain_75_a_client_that_must_wait_does_not_keep_the_lease_waiting() -> Result<()> {
    const PODS: u32 = 200;
    let changes = if std::env::var_os("PORTWAY_LONG").is_some() { 10_000 } else { 2_500 };
    Replicas::test("starved", 1, |all| {
        let object = |number| {
            pod("default", &format!("pod-{number}"), 1, number, &[("app", &format!("set-{number}"))])
        };
        all.start(
            1,
            &flags(
                &[&SHORT_LEASE[..], &["--operator-k8s-client-qps=1", "--operator-k8s-client-burst=1"]]
                    .concat(),
            ),
        )?;
        // Its lists take their turn.
        all.wait_leads(1, BEGIN * 3)?;
        let health = all.watch_health()?;
        let transitions = all.lease()?["spec"]["leaseTransitions"].clone();
        let begin = Instant::now();
        let pods: Vec<Value> = (0..PODS).map(object).collect();
        all.client().create_all(pods.clone())?;
        let mut done = 2 * PODS;
        while done < changes || begin.elapsed() < SHORT * 2 {
            let patch = json!({"metadata": {"annotations": {"change": done.to_string()}}});
            all.client().patch_all(&pods, &patch)?;
            done += PODS;
            assert_eq!(all.leaders()?, [1], "after {done} events");
        }
        let lease = all.lease()?;
        assert_eq!(lease["spec"]["leaseTransitions"], transitions);
        all.ensure_running()?;
        health.end()?;
        let writes = all.control_plane().operator_writes()?;
        let leases: Vec<_> =
            writes.iter().filter(|write| write.resource == "leases" && write.is_done()).collect();
        let gap = leases.iter().zip(leases.iter().skip(1)).map(|(a, b)| b.received - a.received).max();
        let work = writes.len() - leases.len();
        let waited = all.operator(1)?.status()?["api_server"]["throttled_seconds"].as_f64();
        println!(
            "{done} events in {:?}: requests have waited for {waited:?} s, {work} writes, the lease renewed {} times, at \
             most {gap:?} apart",
            begin.elapsed(),
            leases.len()
        );
        ensure!(waited.is_some_and(|waited| waited > 10.0), "it did not wait: {waited:?} s");
        ensure!(gap.is_some_and(|gap| gap < SHORT), "renewals were {gap:?} apart");
        Ok(())
    })
}

/// What an operator of one replica more says: whoever asks learns who leads.
#[test]
fn a_replica_says_who_leads() -> Result<()> {
    Replicas::test("says", 2, |all| {
        all.start(1, &SHORT_LEASE)?;
        all.wait_leads(1, BEGIN)?;
        all.start(2, &SHORT_LEASE)?;
        let holder = all.lease()?["spec"]["holderIdentity"].clone();
        let holder: &Value = &holder;
        eventually(BEGIN, "both to name the leader", || {
            for number in [1, 2] {
                let status = all.operator(number)?.status()?;
                ensure!(status["leadership"]["holder"] == *holder, "replica {number}: {status}");
            }
            Ok(())
        })
    })
}
