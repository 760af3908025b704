//! Numbers of identities that come to an end, on a real API server: what is said while there is time, what is said when there
//! are none left, and that nothing else suffers by it. Of 64 numbers one is kept for system namespaces.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::operator::objects::{namespace, node, pending, pod, pod_named};
use portway_tests::harness::{Replicas, eventually};
use serde_json::{Value, json};

const FLAGS: [&str; 9] = [
    "--identity-range-test-only=256-319",
    "--identity-management-mode=operator",
    "--identity-gc-interval=1s",
    "--identity-heartbeat-timeout=1s",
    "--identity-gc-rate-interval=1s",
    "--identity-gc-rate-limit=1000",
    "--ipam=cluster-pool",
    "--cluster-pool-ipv4-cidr=10.1.0.0/16",
    "--cluster-pool-ipv4-mask-size=24",
];
const NUMBERS: usize = 64;
/// Identities are counted every 10 s.
const SOON: Duration = Duration::from_secs(30);
const IDENTITIES: &str = "/apis/cilium.io/v2/ciliumidentities";
/// Of objects that have no namespace.
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// A pod with a label set of its own, in `batch`.
fn job(number: u32) -> Value {
    let value = number.to_string();
    pending(pod("batch", &format!("job-{number}"), 1, number, &[("app", "worker"), ("job", &value)]))
}

/// The numbers of `batch`, by the value of the label that makes them. Two of one label set are an error.
fn jobs(all: &Replicas) -> Result<BTreeMap<u32, u32>> {
    let mut jobs = BTreeMap::new();
    for identity in all.client().list(IDENTITIES)? {
        let number = identity["metadata"]["name"].as_str().context("no name")?.parse()?;
        ensure!((256..=319).contains(&number), "{number} is outside of the range");
        if let Some(job) = identity["security-labels"]["k8s:job"].as_str() {
            let other = jobs.insert(job.parse()?, number);
            ensure!(other.is_none(), "{number} and {other:?} are both of {job}");
        }
    }
    Ok(jobs)
}

/// What a controller says is wrong: the object, the reason and the message.
fn troubles(all: &Replicas, controller: &str) -> Result<Vec<(String, String, String)>> {
    let status = all.operator(1)?.status()?;
    let controllers = status["controllers"].as_array().context("no controllers")?;
    let found = controllers.iter().find(|of| of["name"] == controller);
    let troubles = found.with_context(|| format!("no {controller}: {status}"))?["troubles"].as_array();
    let text = |trouble: &Value, field: &str| trouble[field].as_str().unwrap_or_default().to_owned();
    let of = |trouble: &Value| (text(trouble, "object"), text(trouble, "reason"), text(trouble, "message"));
    Ok(troubles.into_iter().flatten().map(of).collect())
}

/// `controller` says this of `batch` and nothing else; each part stands in the message.
fn says(all: &Replicas, controller: &str, reason: &str, parts: &[&str]) -> Result<()> {
    let troubles = troubles(all, controller)?;
    let [(object, of, message)] = &troubles[..] else { anyhow::bail!("{controller} says {troubles:?}") };
    ensure!((object.as_str(), of.as_str()) == ("batch", reason), "{troubles:?}");
    let missing: Vec<_> = parts.iter().filter(|part| !message.contains(**part)).collect();
    ensure!(missing.is_empty(), "{message} lacks {missing:?}");
    Ok(())
}

/// There is one Event of this reason, on the Namespace `batch`, and each part stands in it.
fn event(all: &Replicas, reason: &str, parts: &[&str]) -> Result<()> {
    let events = all.client().list(EVENTS)?;
    let of: Vec<_> = events.iter().filter(|event| event["reason"] == reason).collect();
    let [event] = of[..] else { anyhow::bail!("{} Events of {reason}: {events:?}", of.len()) };
    let regarding = &event["regarding"];
    ensure!(regarding["kind"] == "Namespace" && regarding["name"] == "batch", "{event}");
    ensure!(event["type"] == "Warning", "{event}");
    let note = event["note"].as_str().unwrap_or_default();
    ensure!(parts.iter().all(|part| note.contains(part)), "{note}");
    Ok(())
}

/// The count of identities, and whether there is an alarm, as metrics say it.
fn shown(all: &Replicas) -> Result<(usize, bool)> {
    let metric = |name: &str| -> Result<f64> {
        let values = all.operator(1)?.metric(name)?;
        values.first().map(|(_, value)| *value).with_context(|| format!("no {name}"))
    };
    ensure!(metric("portway_operator_identity_capacity")? == NUMBERS as f64, "of how many?");
    let count = metric("cilium_operator_identity_count")?;
    Ok((count as usize, metric("portway_operator_identity_alarm")? != 0.0))
}

#[test]
fn numbers_that_run_out_are_told_with_their_cause_and_only_who_needs_a_new_one_waits() -> Result<()> {
    Replicas::test("alarm", 1, |all| {
        all.client().create_all(vec![node(1), namespace("batch", json!({}))])?;
        all.start(1, &FLAGS)?;
        all.wait_leads(1, Duration::from_secs(20))?;

        all.client().create_all((0..31).map(job).collect())?;
        eventually(SOON, "31 of 64 to be counted", || {
            ensure!(shown(all)? == (31, false), "{:?}", shown(all)?);
            Ok(())
        })?;
        ensure!(troubles(all, "identity-alarm")?.is_empty(), "{:?}", troubles(all, "identity-alarm")?);

        // Four fifths and more: what to do about it is known before any pod waits.
        all.client().create_all((31..60).map(job).collect())?;
        let cause = ["label k8s:job has", "without it there would be 1", "!job", "namespace batch"];
        eventually(SOON, "an alarm at 60 of 64", || {
            ensure!(shown(all)? == (60, true), "{:?}", shown(all)?);
            says(all, "identity-alarm", "IdentitiesRunOut", &[&cause[..], &["60 of 64"]].concat())?;
            event(all, "IdentitiesRunOut", &cause)
        })?;
        ensure!(troubles(all, "identities")?.is_empty(), "{:?}", troubles(all, "identities")?);
        let before = jobs(all)?;

        // Two find none: the last one is the system's.
        all.client().create_all((60..65).map(job).collect())?;
        let what = ["2 label sets of its pods wait for a free number", "`labels` says which labels count"];
        eventually(SOON, "two label sets to wait", || {
            ensure!(jobs(all)?.len() == NUMBERS - 1, "{} have numbers", jobs(all)?.len());
            says(all, "identities", "IdentitiesExhausted", &what)?;
            event(all, "IdentitiesExhausted", &["wait for a free number", what[1]])
        })?;

        // Who has a number keeps it, the cluster's own pods start, and other work goes on.
        let dns = pending(pod("kube-system", "dns", 1, 100, &[("app", "dns")]));
        let second = pending(pod("batch", "second", 1, 101, &[("app", "worker"), ("job", "0")]));
        all.client().create_all(vec![dns, second, node(2)])?;
        eventually(SOON, "what needs no number, or the last one", || {
            let identities = all.client().list(IDENTITIES)?;
            let of_dns = |identity: &&Value| identity["security-labels"]["k8s:app"] == "dns";
            ensure!(identities.iter().find(of_dns).is_some(), "{} identities", identities.len());
            let node = all.client().get("/apis/cilium.io/v2/ciliumnodes/node-2")?;
            ensure!(node["spec"]["ipam"]["podCIDRs"][0].is_string(), "{node}");
            Ok(())
        })?;
        let (full, stuck) = (jobs(all)?, troubles(all, "identities")?);
        let moved: Vec<_> = before.iter().filter(|(job, number)| full.get(job) != Some(number)).collect();
        ensure!(moved.is_empty(), "{moved:?} had numbers");
        ensure!(stuck.iter().any(|(_, _, message)| message.contains("(0 are free")), "{stuck:?}");
        ensure!(all.leaders()? == [1], "{:?} lead", all.leaders()?);
        all.operator(1)?.healthy()?;

        // Numbers that come back are who waits for them's, and the alarm ends.
        let waiting: Vec<u32> = (60..65).filter(|job| !full.contains_key(job)).collect();
        ensure!(waiting.len() == 2, "{waiting:?} wait");
        (1..4).try_for_each(|number| all.client().delete(&pod_named("batch", &format!("job-{number}"))))?;
        eventually(SOON, "those that waited to have numbers", || {
            let jobs = jobs(all)?;
            ensure!(waiting.iter().all(|job| jobs.contains_key(job)), "{waiting:?} of {jobs:?}");
            let troubles = troubles(all, "identities")?;
            ensure!(troubles.is_empty(), "{troubles:?}");
            Ok(())
        })?;
        (4..55).try_for_each(|number| all.client().delete(&pod_named("batch", &format!("job-{number}"))))?;
        eventually(SOON, "the alarm to end", || {
            let (count, is_alarm) = shown(all)?;
            ensure!(!is_alarm && count < NUMBERS / 2, "{count} identities, alarm: {is_alarm}");
            let troubles = troubles(all, "identity-alarm")?;
            ensure!(troubles.is_empty(), "{troubles:?}");
            Ok(())
        })?;
        all.ensure_running()
    })
}
