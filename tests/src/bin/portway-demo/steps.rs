//! What the demo shows, step by step. Each is checked.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portway_tests::harness::cluster_net::WORLD_V4;
use portway_tests::harness::demo::{endpoint_line, with_addresses};
use portway_tests::harness::manifest::TARGET;
use portway_tests::harness::{Answer, Errno, Outcome, Probe, Tally, eventually};

use crate::interrupt::Interrupt;
use crate::screen::Screen;
use crate::{Demo, portway};

const CART: &str = "10.96.0.20:80";

type Step = fn(&mut Demo, &mut Screen) -> Result<()>;

/// All of them, until one fails.
pub(crate) fn run(demo: &mut Demo, screen: &mut Screen, interrupt: &Interrupt) -> Result<()> {
    let steps: [(&str, Step); 12] = [
        ("pod to pod", pod_to_pod),
        ("the world", the_world),
        ("ClusterIP", cluster_ip),
        ("UDP", datagrams),
        ("NodePort", node_port),
        ("session affinity", affinity),
        ("no endpoints", no_endpoints),
        ("scale-up", scale_up),
        ("identities", identities),
        ("status", status),
        ("service list", service_list),
        ("how long a connect takes", cost),
    ];
    for (name, step) in steps {
        interrupt.check()?;
        step(demo, screen).context(name)?;
    }
    Ok(())
}

fn pod_to_pod(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    let mut client = demo.net.client(&demo.client)?;
    for (step, name, v6) in [
        ("pod on the same node", "web-1", false),
        ("pod on the other node", "web-2", false),
        ("… by IPv6", "web-2", true),
    ] {
        let to = demo.pod(name)?.socket(v6);
        let answer = reached(&to.to_string(), client.tcp(to)?)?;
        let own = demo.client.address(v6);
        ensure!(answer.client.ip() == own, "{name} sees {}, not {own}", answer.client);
        screen.passed(step, &to.to_string(), &said(&answer))?;
    }
    Ok(())
}

fn the_world(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    let mut client = demo.net.client(&demo.client)?;
    let to = SocketAddr::from((WORLD_V4, TARGET));
    let answer = reached(&to.to_string(), client.tcp(to)?)?;
    let node = demo.net.node(1).v4();
    ensure!(answer.client.ip() == node, "the world sees {}, not {node}", answer.client);
    screen.passed("the world", &to.to_string(), &format!("{}: the node's address", said(&answer)))
}

fn cluster_ip(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    let mut client = demo.net.client(&demo.client)?;
    for (family, to) in [("IPv4", "10.96.0.10:80"), ("IPv6", "[fd00:10:96::10]:80")] {
        let answer = reached(to, client.tcp(to)?)?;
        let share = spread(&mut client, to, &["web-1", "web-2"])?;
        screen.passed(&format!("ClusterIP {family}"), to, &format!("{}; {share}", said(&answer)))?;
    }
    Ok(())
}

fn datagrams(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    let mut client = demo.net.client(&demo.client)?;
    let to = "10.96.0.10:80";
    let socket = client.open_udp(false)?;
    let answer = reached(to, client.send_to(socket, to)?)?;
    let tally = client.send_many(socket, to, 100)?;
    ensure!(
        tally.by_name.get(&answer.name) == Some(&100),
        "100 datagrams of one socket were answered by {:?}, not by {} alone",
        tally.by_name,
        answer.name
    );
    screen.passed(
        "ClusterIP UDP",
        to,
        &format!("{}; one socket, one pod: 100 of 100 datagrams", said(&answer)),
    )
}

fn node_port(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    let (mut pod, mut node) = (demo.net.client(&demo.client)?, demo.net.node(1).client()?);
    let to = "172.18.0.11:30080";
    let answer = reached(to, pod.tcp(to)?)?;
    let share = spread(&mut pod, to, &["web-1", "web-2"])?;
    screen.passed("NodePort on the node", to, &format!("{}; {share}", said(&answer)))?;
    let to = "127.0.0.1:30080";
    let answer = reached(to, node.tcp(to)?)?;
    let share = spread(&mut node, to, &["web-1", "web-2"])?;
    screen.passed("NodePort on loopback", to, &format!("{}; {share}", said(&answer)))?;
    // A pod's loopback is its own.
    match pod.tcp(to)? {
        Err(Errno::ECONNREFUSED) => {
            screen.passed("… but not a pod's", to, "Connection refused, as it should be")
        }
        other => bail!("{to} from a pod: {other:?}, not ECONNREFUSED"),
    }
}

fn affinity(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    let mut client = demo.net.client(&demo.client)?;
    let to = "10.96.0.30:80";
    let answer = reached(to, client.tcp(to)?)?;
    let tally = connects(&mut client, to, 40)?;
    ensure!(
        tally.by_name.get(&answer.name) == Some(&40),
        "40 connects of one client were answered by {:?}, not by {} alone",
        tally.by_name,
        answer.name
    );
    screen.passed("session affinity", to, &format!("{}; 40 of 40 connects stay there", said(&answer)))
}

fn no_endpoints(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    let mut client = demo.net.client(&demo.client)?;
    let to = "10.96.0.40:80";
    let start = Instant::now();
    match client.tcp(to)? {
        Err(Errno::ECONNREFUSED) => {
            let answer = format!("Connection refused, at once ({} µs)", start.elapsed().as_micros());
            screen.passed("no endpoints", to, &answer)
        }
        other => bail!("{to}: {other:?}, not ECONNREFUSED"),
    }
}

fn scale_up(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    let mut client = demo.net.client(&demo.client)?;
    let before = spread(&mut client, CART, &["cart-1"])?;
    let pod = demo.net.serving_pod(1, "cart-2")?;
    let old = with_addresses(include_str!("../../../demo/cart.yaml"), &demo.pods);
    let start = Instant::now();
    demo.net.manifests().put_text("cart.yaml", &format!("{old}{}", endpoint_line(&pod, false)))?;
    let (answer, took) = eventually(Duration::from_secs(1), "cart-2 to answer", || {
        let answer = reached(CART, client.tcp(CART)?)?;
        ensure!(answer.name == "cart-2", "{} answers", answer.name);
        Ok((answer, start.elapsed()))
    })?;
    let after = spread(&mut client, CART, &["cart-1", "cart-2"])?;
    let seen = format!("{} {} ms after the change; {before} → {after}", said(&answer), took.as_millis());
    screen.passed("scale-up", CART, &seen)
}

/// A pod's labels have a number, and the kernel knows it at the pod's address.
fn identities(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    let by_label = ["identity", "list", "--by-label=app=web"];
    let list = portway(&demo.net, &by_label)?;
    let is_one = |line: &&str| line.contains("cluster");
    let line = list.lines().find(is_one).with_context(|| format!("no identity of the cluster:\n{list}"))?;
    let number = line.split_whitespace().next().unwrap_or_default();
    screen.block(&format!("portway {}", by_label.join(" ")), &list)?;
    let addr = demo.pod("web-1")?.address(false).to_string();
    let node = demo.net.node(1).places();
    let root = format!("--bpf-root={}", node.bpf_root.display());
    let entry = portway(&demo.net, &["bpf", "ipcache", "get", &addr, &root])?;
    ensure!(
        entry.split_whitespace().any(|word| word == number),
        "the kernel does not say that {addr} is identity {number}:\n{entry}"
    );
    screen.block(&format!("portway bpf ipcache get {addr}"), &entry)
}

fn status(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    screen.block("portway status", &portway(&demo.net, &["status"])?)
}

fn service_list(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    let list = portway(&demo.net, &["service", "list"])?;
    for text in [CART, "0.0.0.0:30080", "[fd00:10:96::10]:80"] {
        ensure!(list.contains(text), "the list lacks {text}:\n{list}");
    }
    screen.block("portway service list", &list)
}

fn cost(demo: &mut Demo, screen: &mut Screen) -> Result<()> {
    const ROUNDS: usize = 20;
    const CONNECTS: u32 = 100;
    let mut client = demo.net.client(&demo.client)?;
    // Both pods of this service are on the client's node.
    let (direct, service) = (demo.pod("cart-1")?.socket(false), CART.parse()?);
    let (mut through, mut straight) = (Tally::default(), Tally::default());
    // In turns, so that what else the machine does falls on both.
    for _ in 0..ROUNDS {
        for (to, sum) in [(service, &mut through), (direct, &mut straight)] {
            let tally = client.connects(&[to], CONNECTS, 0)?;
            ensure!(tally.failures() == 0, "connects to {to} failed: {:?}", tally.errors);
            sum.connect_ns.extend(tally.connect_ns);
        }
    }
    let micros =
        |tally: &Tally| tally.median_ns().map(|ns| ns as f64 / 1000.0).context("no connect was timed");
    let (through, straight) = (micros(&through)?, micros(&straight)?);
    screen.line("")?;
    let count = ROUNDS * CONNECTS as usize;
    screen.passed(
        "a connect takes",
        "median",
        &format!("{through:.1} µs through the service, {straight:.1} µs directly ({count} of each)"),
    )
}

fn reached(to: &str, outcome: Outcome) -> Result<Answer> {
    outcome.with_context(|| format!("connect to {to}"))
}

/// The pod's own words.
fn said(answer: &Answer) -> String {
    format!("\"I am {}, you are {}\"", answer.name, answer.client)
}

fn connects(client: &mut Probe, to: &str, count: u32) -> Result<Tally> {
    let tally = client.connects(&[to.parse()?], count, 0)?;
    ensure!(tally.failures() == 0, "connects to {to} failed: {:?}", tally.errors);
    Ok(tally)
}

/// Who answers 40 connects, which must be exactly `pods`: `web-1 ×19, web-2 ×21`.
fn spread(client: &mut Probe, to: &str, pods: &[&str]) -> Result<String> {
    let tally = connects(client, to, 40)?;
    let names: BTreeSet<&str> = tally.by_name.keys().map(String::as_str).collect();
    ensure!(names == pods.iter().copied().collect(), "{to} is answered by {names:?}, not by {pods:?}");
    let parts: Vec<String> = tally.by_name.iter().map(|(name, count)| format!("{name} ×{count}")).collect();
    Ok(parts.join(", "))
}
