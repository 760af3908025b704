//! Everything at once, at random: objects that change without pause, an API server that misbehaves, an agent that is
//! ended and killed. What the kernel holds in the end is what the oracle makes of the API server's objects.
//!
//! 10 seeded runs and 5,000 changes; with `PORTWAY_LONG` 100 runs and 100,000 changes.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use portway_agent::maps::{KernelTables, MapReader};
use portway_model::tables::Row;
use portway_tests::comparison::{difference, expected_rows, manifest};
use portway_tests::harness::agent::Places;
use portway_tests::harness::cluster::{ApiClient, ControlPlane};
use portway_tests::harness::fault::Chaos;
use portway_tests::harness::manifest::{Endpoint, Service, Slice, TARGET, TCP};
use portway_tests::harness::{Agent, FaultProxy, World, eventually};
use portway_tests::oracle::random::{self, Random, THIS_NODE};
use portway_tests::oracle::world::{Kind, Mutation, World as Objects};
use portway_tests::oracle::{self, OracleConfig, oracle};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Longer than what one swapped event can cost, again and again: it waits for the next bookmark, a minute or a little more,
/// and then comes too late, so that the kind is listed again after up to half a minute; and one request in ten fails.
const SETTLED: Duration = Duration::from_secs(240);

/// Of one seed: time for some tries of each watch.
const RUN: Duration = Duration::from_secs(2);

fn long() -> bool {
    std::env::var_os("PORTWAY_LONG").is_some()
}

/// A cluster of random objects, and an agent of one of its nodes.
struct Stage {
    random: Random,
    /// What the API server has taken, as it was asked for.
    objects: Objects,
    taken: u64,
    refused: u64,
    places: Places,
    agent: Option<Agent>,
    proxy: FaultProxy,
}

impl Stage {
    fn set(world: &mut World, control_plane: &ControlPlane, seed: u64) -> Result<Self> {
        let shop = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
        control_plane.client().apply(&shop)?;
        let proxy = FaultProxy::start(control_plane)?;
        world.follow(proxy.kubeconfig());
        let places = Places { node_name: THIS_NODE.to_owned(), ..world.places() };
        let agent = Some(Agent::start(&places, &[])?);
        let (random, objects) = (Random::new(seed), Objects::default());
        Ok(Self { random, objects, taken: 0, refused: 0, places, agent, proxy })
    }

    /// One random change. The API server refuses some: an address that is taken, a field that never changes.
    fn mutate(&mut self, api: &ApiClient) -> Result<()> {
        let mutation = random::mutation(&mut self.random, &self.objects);
        let done = match &mutation {
            Mutation::Put(object) => put(api, &fitting(&manifest(object))?),
            Mutation::Delete(key) => {
                let version = if key.kind == Kind::EndpointSlice { "discovery.k8s.io/v1" } else { "v1" };
                let metadata = json!({"name": key.name, "namespace": key.namespace});
                let object = json!({"apiVersion": version, "kind": key.kind.name(), "metadata": metadata});
                api.delete_if_there(&object)
            }
        };
        match done {
            Ok(()) => {
                self.taken += 1;
                self.objects.apply(&mutation);
            }
            Err(error) if is_refusal(&error) => {
                self.refused += 1;
                // It is gone, if it was there.
                if let Mutation::Put(object) = &mutation {
                    self.objects.apply(&Mutation::Delete(object.key()));
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn restart_agent(&mut self) -> Result<()> {
        let agent = self.agent.take().context("no agent")?;
        if self.random.chance(50) {
            agent.kill()?;
        } else {
            agent.stop()?;
        }
        self.agent = Some(Agent::spawn(&self.places, &[])?);
        Ok(())
    }

    /// An error with what the agent said last.
    fn explained<T>(&self, result: Result<T>) -> Result<T> {
        let said = || {
            let log = self.agent.as_ref().map(Agent::log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            format!("the agent said last:\n{}", lines.split_at(lines.len().saturating_sub(40)).1.join("\n"))
        };
        result.with_context(said)
    }

    /// Waits until the kernel holds what the oracle makes of the API server's objects; gives the number of frontends.
    fn settle(&self, world: &World, api: &ApiClient) -> Result<usize> {
        let config = OracleConfig::new(THIS_NODE);
        let objects = oracle::Objects {
            services: all(api, "/api/v1/services")?,
            slices: all(api, "/apis/discovery.k8s.io/v1/endpointslices")?,
            pods: all(api, "/api/v1/pods")?,
            nodes: all(api, "/api/v1/nodes")?,
        };
        let wanted = expected_rows(oracle(&objects, &config));
        eventually(SETTLED, "the kernel to hold what the objects say", || {
            let held: Vec<Row> = serde_json::from_str(&world.portway(&["bpf", "lb", "list", "-o", "json"])?)?;
            match difference(&wanted, &held) {
                None => Ok(()),
                Some(difference) => bail!("{difference}"),
            }
        })?;
        Ok(wanted.len())
    }
}

/// An object of the random ones, with what an API server wants beside what they have.
fn fitting(manifest: &[u8]) -> Result<Value> {
    let mut object: Value = serde_json::from_slice(manifest)?;
    for containers in ["/spec/containers", "/spec/initContainers"] {
        for container in object.pointer_mut(containers).and_then(Value::as_array_mut).into_iter().flatten() {
            container["image"] = "none".into();
        }
    }
    if object["kind"] == "Service" {
        fit_service(&mut object);
    }
    Ok(object)
}

/// The API server gives no address and no NodePort twice, so each service has its own.
fn fit_service(service: &mut Value) {
    let text = |pointer: &str| service.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let names = [
        "default/api",
        "default/dns",
        "default/web",
        "default/db",
        "shop/api",
        "shop/dns",
        "shop/web",
        "shop/db",
    ];
    let name = format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"));
    let number = names.iter().position(|other| *other == name).unwrap_or(names.len()) + 2;
    let is_external_name = text("/spec/type") == "ExternalName";
    let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        port.as_object_mut().map(|port| port.remove("nodePort"));
    }
    let own = |ip: &Value| match ip.as_str() {
        Some("None") | None => ip.clone(),
        Some(ip) if ip.contains(':') => format!("fd00:10:96::{number}").into(),
        Some(_) => format!("10.96.0.{number}").into(),
    };
    let ips: Vec<Value> =
        spec.get("clusterIPs").and_then(Value::as_array).into_iter().flatten().map(own).collect();
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        spec.remove(field);
    }
    if is_external_name || ips.is_empty() {
        return;
    }
    let family = |ip: &Value| if ip.as_str().is_some_and(|ip| ip.contains(':')) { "IPv6" } else { "IPv4" };
    if ips != ["None"] {
        spec.insert("ipFamilies".into(), ips.iter().map(family).collect());
    }
    spec.insert(
        "ipFamilyPolicy".into(),
        if ips.len() > 1 { "RequireDualStack" } else { "SingleStack" }.into(),
    );
    spec.insert("clusterIP".into(), ips.first().cloned().unwrap_or_default());
    spec.insert("clusterIPs".into(), ips.into());
}

/// Changes it or, where a field may not change, makes it anew.
fn put(api: &ApiClient, object: &Value) -> Result<()> {
    match api.apply(object) {
        Err(error) if is_refusal(&error) => {
            api.delete_if_there(object)?;
            api.apply(object).map(drop)
        }
        other => other.map(drop),
    }
}

/// Not an answer of this test's API server that it should not give. A port that changes its protocol where another has
/// the same NodePort is a 500 of its own: "duplicate nodePort".
fn is_refusal(error: &anyhow::Error) -> bool {
    [400, 404, 409, 422, 500]
        .into_iter()
        .any(|code| portway_tests::harness::cluster::api::has_code(error, code))
}

fn all<T: DeserializeOwned>(api: &ApiClient, path: &str) -> Result<Vec<T>> {
    api.list(path)?.into_iter().map(|item| Ok(serde_json::from_value(item)?)).collect()
}

#[test]
fn after_seeded_runs_of_misbehaviour_the_kernel_holds_what_the_objects_say() -> Result<()> {
    let runs = if long() { 100 } else { 10 };
    World::cluster("misbehave", |world, control_plane| {
        let mut stage = Stage::set(world, control_plane, 1)?;
        let (mut slowest, mut frontends) = (Duration::ZERO, 0);
        for seed in 1..=runs {
            Chaos { seed, requests: 30, events: 10, skips: false }.on(&stage.proxy);
            let begin = Instant::now();
            for part in 1..=RUN.as_millis() / 500 {
                // So that requests are made, too.
                stage.proxy.cut_watches();
                while begin.elapsed() < Duration::from_millis(500) * part as u32 {
                    stage.mutate(control_plane.client())?;
                }
            }
            stage.proxy.behave();
            let begin = Instant::now();
            frontends +=
                stage.settle(world, control_plane.client()).with_context(|| format!("seed {seed}"))?;
            slowest = slowest.max(begin.elapsed());
        }
        println!(
            "{runs} runs of misbehaviour: 0 differences; {} changes taken, {} refused by the API server, {frontends} \
             frontends compared; {} requests; the slowest settled after {:.1} s",
            stage.taken,
            stage.refused,
            stage.proxy.seen().len(),
            slowest.as_secs_f64()
        );
        ensure!(frontends > 0, "nothing was compared");
        Ok(())
    })
}

/// A service of one endpoint, which says how late the kernel is; reading all maps in a debug build is part of that.
struct Canary(u32);

impl Canary {
    /// Only its endpoints are here: 10.250.0.0/16.
    const ENDPOINTS: u32 = u32::from_be_bytes([10, 250, 0, 0]);

    fn set(api: &ApiClient) -> Result<Self> {
        api.apply(&Service::new("canary", &["10.96.200.1"]).port("http", TCP, 80).into())?;
        Ok(Self(0))
    }

    /// Changes the endpoint. From the API server's word that it is done to the kernel's having it.
    fn lag(&mut self, api: &ApiClient, kernel: &MapReader) -> Result<Duration> {
        self.0 += 1;
        let address = Ipv4Addr::from(Self::ENDPOINTS + self.0 % 0xffff);
        let slice = Slice::new("canary", "v4").port("http", TCP, TARGET).endpoint(Endpoint::new(address));
        api.apply(&slice.into())?;
        let begin = Instant::now();
        eventually(SETTLED, "the canary's new endpoint", || {
            let held = Self::held(kernel)?;
            ensure!(held == [IpAddr::V4(address)], "the kernel has {held:?}, not {address}");
            Ok(())
        })?;
        Ok(begin.elapsed())
    }

    /// The canary's endpoints in the maps.
    fn held(kernel: &MapReader) -> Result<Vec<IpAddr>> {
        let dump = kernel.dump()?;
        let backends = dump.services.iter().flat_map(|service| &service.backends);
        let addresses = backends.map(|backend| IpAddr::from(backend.addr));
        let mine =
            |addr: &IpAddr| matches!(addr, IpAddr::V4(v4) if u32::from(*v4) >> 16 == Self::ENDPOINTS >> 16);
        Ok(addresses.filter(mine).collect())
    }
}

#[test]
fn after_thousands_of_changes_with_restarts_and_faults_nothing_differs() -> Result<()> {
    let changes: u32 = if long() { 100_000 } else { 5_000 };
    World::cluster("chaos", |world, control_plane| {
        let api = control_plane.client();
        let mut stage = Stage::set(world, control_plane, 7)?;
        let kernel = KernelTables::open_read_only(world.bpf_root())?;
        let mut canary = Canary::set(api)?;
        let begin = Instant::now();
        // Lags of a quiet API server, and of one that misbehaves beside agents that end.
        let (mut quiet, mut hurt, mut restarts, mut frontends) = (Vec::new(), Vec::new(), 0, 0);
        for change in 1..=changes {
            let faults = change % 1_000 >= 500;
            match change % 1_000 {
                0 => {
                    stage.proxy.behave();
                    let settled = stage.settle(world, api).with_context(|| format!("change {change}"));
                    frontends += stage.explained(settled)?;
                    // The watches are back once this is there.
                    stage.explained(canary.lag(api, &kernel))?;
                }
                500 => {
                    // Faults of a hundredth: at more, watches only ever wait for their next try.
                    Chaos { seed: change.into(), requests: 10, events: 1, skips: false }.on(&stage.proxy);
                }
                600 | 800 => {
                    stage.restart_agent()?;
                    restarts += 1;
                }
                _ => {}
            }
            stage.mutate(api)?;
            if change % 20 == 0 {
                let lags = if faults { &mut hurt } else { &mut quiet };
                let lag = canary.lag(api, &kernel).with_context(|| format!("change {change}"));
                lags.push(stage.explained(lag)?);
            }
        }
        let took = begin.elapsed();
        println!(
            "{changes} changes in {:.0} s ({} refused by the API server) with {restarts} ends of the agent and {} \
             requests: 0 differences after each 1,000 over {frontends} frontends together; lag p50 {}, p99 {}, max {}; while the API server \
             misbehaves and agents end p50 {}, p99 {}, max {}",
            took.as_secs_f64(),
            stage.refused,
            stage.proxy.seen().len(),
            quantile(&mut quiet, 0.5)?,
            quantile(&mut quiet, 0.99)?,
            quantile(&mut quiet, 1.0)?,
            quantile(&mut hurt, 0.5)?,
            quantile(&mut hurt, 0.99)?,
            quantile(&mut hurt, 1.0)?,
        );
        ensure!(frontends > 0, "nothing was compared");
        Ok(())
    })
}

fn quantile(lags: &mut [Duration], q: f64) -> Result<String> {
    lags.sort_unstable();
    let at = ((lags.len() as f64 * q) as usize).min(lags.len().saturating_sub(1));
    Ok(format!("{:.0} ms", lags.get(at).context("no lag was measured")?.as_secs_f64() * 1000.0))
}
