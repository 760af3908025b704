//! Writes into the kernel that fail: what is served goes on, what could not be written is named, and it is written
//! as soon as it can be.

#![expect(clippy::print_stdout, reason = "what was refused is part of the result")]

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::errno::Errno;
use portway_agent::api::Status;
use portway_agent::maps::{KernelTables, MapError, MapId, pin_dir};
use portway_agent::programs::Loader;
use portway_datapath::layout::Sizes;
use portway_model::loadbalancer::Config;
use portway_model::tables::{Row, TableOp, TableWriter, rows};
use portway_tests::comparison::Pipeline;
use portway_tests::comparison::lookups::check_bits;
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::{Endpoint, Service, TCP, endpoints};
use portway_tests::harness::mount::BpfMount;
use portway_tests::harness::world::NODE;
use portway_tests::harness::{Cgroup, PREFIX, Probe, Process, World, eventually, process};
use serde_json::Value;

/// As long as the longest pause before a retry, and some.
const HEALED: Duration = Duration::from_secs(40);

/// Where the agent says its metrics.
const METRICS: &str = "--prometheus-serve-addr=127.0.0.1:9962";

/// Services without backends, so that they need nothing but a service and a frontend each.
fn fill(services: u32) -> Vec<Value> {
    let at = |n: u32| std::net::Ipv4Addr::from([10, 98, (n / 250) as u8, (n % 250) as u8 + 1]).to_string();
    let service = |n| Service::new(&format!("fill-{n:04}"), &[&at(n)]).port("http", TCP, 80);
    (0..services).map(|n| service(n).into()).collect()
}

fn status(world: &World) -> Result<Status> {
    serde_json::from_str(&world.portway(&["status", "-o", "json"])?).context("read the status")
}

/// The lines of the metric `name`, without comments.
fn metric(world: &World, name: &str) -> Result<String> {
    let text = world.node().http_get("127.0.0.1:9962".parse()?, "/metrics")?;
    Ok(text.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>().join("\n"))
}

/// Waits until something is refused whose reason has the word `why`, and checks that everybody is told which.
fn wait_refused(world: &World, name: &str, why: &str, labels: &str) -> Result<()> {
    let refused = eventually(Duration::from_secs(20), "a refusal", || {
        let status = status(world)?;
        let found = status.writes.refused.iter().find(|reject| reject.name.starts_with(name)).cloned();
        let found = found.with_context(|| format!("{:?}", status.writes))?;
        ensure!(found.reason.contains(why), "{found}");
        ensure!(status.warnings.iter().any(|warning| warning.contains(why)), "{:?}", status.warnings);
        Ok(found)
    })?;
    let text = world.portway(&["status", "--verbose"])?;
    ensure!(text.contains("Not programmed") && text.contains(&refused.name), "{text}");
    let lines = metric(world, "portway_refused_writes")?;
    ensure!(lines.contains(labels), "{labels} is not in {lines:?}");
    println!("refused: {refused}\n{lines}");
    Ok(())
}

fn wait_healed(world: &World) -> Result<()> {
    eventually(HEALED, "everything to be written", || {
        let writes = status(world)?.writes;
        ensure!(writes.outstanding == 0 && writes.refused.is_empty(), "{writes:?}");
        ensure!(metric(world, "portway_refused_writes")?.is_empty(), "the metric has refusals");
        Ok(())
    })?;
    world.wait_programmed()
}

/// `web` serves, and its changes arrive.
fn assert_web_lives(world: &mut World, client: &mut Probe) -> Result<()> {
    let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
    for pods in [&[&a, &b][..], &[&b], &[&a]] {
        world.publish(&web(), endpoints(pods))?;
        let names: Vec<&str> = pods.iter().map(|pod| &*pod.name).collect();
        for to in WEB {
            client.wait_servers(to, &names)?;
        }
    }
    Ok(())
}

#[test]
fn a_full_map_refuses_what_does_not_fit_until_there_is_room() -> Result<()> {
    World::test("full", |world| {
        world.publish(&web(), [])?;
        world.start_agent(&["--bpf-lb-map-max=256", METRICS])?;
        let mut client = world.node_client()?;
        let (web_pod, mut load) = (world.serving_pod("stable")?, world.node_client()?);
        let stable = Service::new("stable", &["10.96.0.40"]).port("http", TCP, 80);
        world.publish(&stable, [web_pod.endpoint()])?;
        load.wait_servers("10.96.0.40:80", &["stable"])?;
        load.start_load(&["10.96.0.40:80".parse()?], 20, 200)?;
        world.manifests().put("fill", fill(300))?;
        wait_refused(world, "default/fill-", "raise bpf-lb-", "map_name=\"pw_services\",reason=\"full\"")?;
        // What fits is there.
        let held = world.portway(&["bpf", "lb", "list", "-o", "json"])?;
        ensure!(held.matches("default/fill-").count() > 200, "{held}");
        assert_web_lives(world, &mut client)?;
        // Room again: what was refused comes by itself.
        world.manifests().put("fill", fill(300).into_iter().skip(100).collect::<Vec<_>>())?;
        wait_healed(world)?;
        let tally = load.end_load()?;
        ensure!(tally.trouble().is_none(), "the clients noticed: {:?}", tally.trouble());
        Ok(())
    })
}

#[test]
fn too_many_source_ranges_close_nothing_that_is_open() -> Result<()> {
    World::test("ranges", |world| {
        let a = world.serving_pod("a")?;
        let ranges = |count: usize| -> Vec<String> {
            (0..count)
                .map(|n| format!("192.{}.{}.0/24", n / 250, n % 250))
                .chain(["172.16.0.0/12".to_owned()])
                .collect()
        };
        let service = |count| {
            Service::new("shop", &["10.96.0.50"])
                .port("http", TCP, 80)
                .load_balancer(&["203.0.113.5"])
                .with("loadBalancerSourceRanges", ranges(count))
        };
        world.publish(&service(10), [a.endpoint()])?;
        world.start_agent(&["--bpf-lb-source-range-map-max=256", METRICS])?;
        let mut client = world.node_client()?;
        client.wait_servers("203.0.113.5:80", &["a"])?;
        world.publish(&service(300), [a.endpoint()])?;
        wait_refused(
            world,
            "default/shop",
            "raise bpf-lb-source-range-map-max",
            "map_name=\"pw_source_ranges\",reason=\"full\"",
        )?;
        assert_eq!(client.servers("203.0.113.5:80")?, ["a".to_owned()].into());
        assert_web_lives(world, &mut client)?;
        world.publish(&service(200), [a.endpoint()])?;
        wait_healed(world)?;
        client.wait_servers("203.0.113.5:80", &["a"])
    })
}

/// A memory control group of the test, of whichever version this machine has.
struct MemoryGroup {
    dir: PathBuf,
    /// `memory.max` or `memory.limit_in_bytes`.
    limit: &'static str,
    usage: &'static str,
    unlimited: &'static str,
}

impl MemoryGroup {
    fn new(name: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
        let v1 = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, path, "cgroup", options, ..] = fields[..] else { return None };
            options.split(',').any(|option| option == "memory").then(|| PathBuf::from(path))
        });
        let (root, limit, usage, unlimited) = match v1 {
            Some(root) => (root, "memory.limit_in_bytes", "memory.usage_in_bytes", "-1"),
            None => {
                (portway_tests::harness::cgroup::unified_hierarchy()?, "memory.max", "memory.current", "max")
            }
        };
        let dir = root.join(format!("{PREFIX}{}-{name}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("make the control group {}", dir.display()))?;
        let group = Self { dir, limit, usage, unlimited };
        ensure!(group.dir.join(limit).exists(), "no memory controller in {}", root.display());
        Ok(group)
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        fs::write(self.dir.join(file), value).with_context(|| format!("write {value} to {file}"))
    }

    /// From here on nothing more is given to who is charged here.
    fn close(&self) -> Result<()> {
        eventually(Duration::from_secs(5), "the limit to be what is used", || {
            let used = fs::read_to_string(self.dir.join(self.usage))?;
            self.write(self.limit, used.trim())
        })
    }

    fn open(&self) -> Result<()> {
        self.write(self.limit, self.unlimited)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Whoever was in it has ended with the world.
        if let Err(error) = fs::remove_dir(&self.dir) {
            drop(writeln!(io::stderr(), "left behind: {}: {error}", self.dir.display()));
        }
    }
}

/// Makes the maps by an agent that is charged to `group`; from then on their elements are, too.
fn make_maps(world: &World, group: &Path) -> Result<()> {
    let places = world.places();
    let mut command = places.namespace.command(process::binary("portway-agent")?);
    Cgroup::place(&places.cgroup, &mut command)?;
    Cgroup::place(group, &mut command)?;
    command.args([
        format!("--source-dir={}", places.manifests.display()),
        format!("--cgroup-root={}", places.cgroup.display()),
        format!("--bpf-root={}", places.bpf_root.display()),
        format!("--state-dir={}", places.state.display()),
        format!("--socket-path={}", places.socket().display()),
        format!("--node-name={NODE}"),
    ]);
    command.stdin(Stdio::null());
    let mut agent = Process::spawn_logged("portway-agent", command)?;
    eventually(Duration::from_secs(20), "the first agent to be ready", || {
        let answer = world.node().http_get("127.0.0.1:9879".parse()?, "/healthz")?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}{}", agent.log());
        Ok(())
    })?;
    agent.stop(Duration::from_secs(10)).map(drop)
}

/// The kernel's own ENOMEM: elements of the maps are charged to the control group of who made the map.
#[test]
fn no_memory_for_an_element_stops_nothing_else_and_heals() -> Result<()> {
    World::test("enomem", |world| {
        let group = MemoryGroup::new("enomem")?;
        world.publish(&web(), [])?;
        make_maps(world, &group.dir)?;
        world.start_agent(&[METRICS])?;
        let mut client = world.node_client()?;
        group.close()?;
        world.manifests().put("fill", fill(6000))?;
        wait_refused(world, "default/fill-", "Cannot allocate memory", "reason=\"ENOMEM\"")?;
        assert_web_lives(world, &mut client)?;
        group.open()?;
        wait_healed(world)
    })
}

/// The kernel's maps, of which every operation from one on fails like this.
struct Failing {
    inner: KernelTables,
    /// Operations that still succeed; `None` is all.
    good: Option<usize>,
    errno: Errno,
}

impl TableWriter for Failing {
    type Error = MapError;

    fn write(&mut self, op: &TableOp) -> Result<(), MapError> {
        match &mut self.good {
            Some(0) => Err(MapError::Element {
                map: MapId::Frontends.into(),
                action: "insert",
                key: format!("{op:?}"),
                source: io::Error::from_raw_os_error(self.errno as i32),
            }),
            Some(good) => {
                *good -= 1;
                self.inner.write(op)
            }
            None => self.inner.write(op),
        }
    }
}

fn list(objects: Vec<Value>) -> Vec<u8> {
    serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string().into_bytes()
}

fn rows_of(tables: &Failing) -> Result<Vec<Row>> {
    Ok(rows(&tables.inner.dump()?))
}

/// One service changes its backends and its address, another comes: cut off after each operation by each errno.
#[test]
fn whichever_write_fails_the_others_live_and_it_is_named() -> Result<()> {
    const SIZES: Sizes =
        Sizes { frontends: 512, services: 256, runs: 4096, backends: 1024, ..Sizes::DEFAULT };
    let dir = tempfile::tempdir()?;
    let bpf = BpfMount::new(dir.path())?;
    let (mut inner, _) = KernelTables::open(bpf.path(), &SIZES)?;
    let programs = Loader::new()?.load(&pin_dir(bpf.path()))?;
    inner.set_store_program(programs.store_word())?;
    let mut tables = Failing { inner, good: None, errno: Errno::EBUSY };
    let mut pipeline = Pipeline::with_sizes(Config::new(NODE), SIZES);
    let pod = |n: u8| Endpoint::new([10, 244, 0, n]);
    let still = Service::new("still", &["10.96.0.1", "fd00:96::1"]).port("http", TCP, 80);
    pipeline.file(Path::new("still"), Some(&list(still.with_endpoints([pod(1), pod(2)]))));
    pipeline.settle(&mut tables, 5).map_err(|wrong| anyhow!(wrong))?;
    let states = [
        [
            list(
                Service::new("moves", &["10.96.0.2"])
                    .port("http", TCP, 80)
                    .affinity(60)
                    .with_endpoints([pod(1)]),
            ),
            list(vec![]),
        ],
        [
            list(
                Service::new("moves", &["10.96.0.3"]).port("http", TCP, 80).with_endpoints([pod(2), pod(3)]),
            ),
            list(Service::new("comes", &["10.96.0.2"]).port("http", TCP, 80).with_endpoints([pod(4)])),
        ],
    ];
    let is_still = |row: &&Row| row.service == "default/still";
    let (mut cases, mut operations) = (0, [0, 0]);
    for errno in [Errno::EBUSY, Errno::ENOMEM, Errno::E2BIG] {
        tables.errno = errno;
        for good in 0.. {
            // From the first state to the second and back.
            let mut cut_off = false;
            for (state, files) in states.iter().enumerate().rev() {
                for (name, text) in ["moves", "comes"].iter().zip(files) {
                    pipeline.file(Path::new(name), Some(text));
                }
                let before = rows_of(&tables)?;
                tables.good = Some(good);
                let outcome = pipeline.reconcile(&mut tables);
                let during = rows_of(&tables)?;
                ensure!(
                    before.iter().filter(is_still).eq(during.iter().filter(is_still)),
                    "{errno} after {good}: {before:?} became {during:?}"
                );
                for failure in &outcome.failures {
                    let text = failure.to_string();
                    let named = text.contains("default/moves")
                        || text.contains("default/comes")
                        || text.contains("10.96.0.");
                    let number = format!("os error {}", errno as i32);
                    ensure!(named && text.contains(&number), "{errno} after {good}: {text}");
                }
                cut_off |= !outcome.failures.is_empty();
                operations[state] = operations[state].max(good);
                // Room again.
                tables.good = None;
                pipeline.settle(&mut tables, 10).map_err(|wrong| anyhow!("{errno} after {good}: {wrong}"))?;
                pipeline.pass_grace_period();
                let dump = tables.inner.dump()?;
                check_bits(&dump).map_err(anyhow::Error::msg)?;
                let wanted: &[&str] = if state == 0 {
                    &["default/moves", "default/still"]
                } else {
                    &["default/comes", "default/moves", "default/still"]
                };
                let found: std::collections::BTreeSet<String> =
                    rows(&dump).into_iter().map(|row| row.service).collect();
                assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
                cases += 1;
            }
            if !cut_off {
                break;
            }
        }
    }
    ensure!(operations.iter().all(|operations| *operations > 4), "{operations:?}");
    println!("{cases} cases, cut off after 0 to {operations:?} operations: 0 wrong");
    Ok(())
}
