//! What hurt users of other systems at restarts and at scale: a test for each class of `pains.md`, named after its
//! number. `kernel_pains` has the others of the socket path.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_agent::maps::KernelTables;
use portway_datapath::{
    Addr, BackendIndex, BackendSlot, FrontendKey, FrontendKind, FrontendValue, Membership, Port, Protocol,
    RunBackend, RunHeader, RunOffset, ServiceIndex, ServiceName, ServiceWord,
};
use portway_model::tables::{TableOp, TableWriter as _};
use portway_tests::harness::fixture::{NODE_PORT, WEB, WEB_V4, node_port_web, web};
use portway_tests::harness::manifest::{Endpoint, Service, Slice, TARGET, TCP, endpoints};
use portway_tests::harness::probe::Protocol as Transport;
use portway_tests::harness::world::{NODE_V4, NODE_V6};
use portway_tests::harness::{World, process};
use serde_json::Value;

/// Nobody's address.
const STRANGER: [u8; 4] = [1, 2, 3, 4];

/// What a run that was cut off, or another program, may have left: a slot of no run, a backend in a service's run, a
/// service that nobody knows.
fn leave_strangers(world: &World) -> Result<()> {
    let sizes = KernelTables::open_read_only(world.bpf_root())?.sizes();
    let (mut tables, _) = KernelTables::open(world.bpf_root(), &sizes)?;
    let dump = tables.dump()?;
    let (addr, port) = (Addr::v4(STRANGER), Port::new(80));
    let slot = |at: u32, service| {
        let slot = BackendSlot::new(at, Membership::Cluster.bit(), service, addr, port);
        TableOp::WriteBackend { index: BackendIndex::new(at), slot }
    };
    let stranger = |at: u32| RunBackend { addr, port, index: BackendIndex::new(at) };
    let publish = |service, at: u32, generation, header: RunHeader, backends: Vec<RunBackend>| {
        let records = header.records().into_iter().chain(backends.iter().map(RunBackend::record)).collect();
        let at = RunOffset::new(at);
        [
            TableOp::WriteRun { at, records },
            TableOp::Publish { service, word: ServiceWord::new(at, generation) },
        ]
    };
    let known = dump.services.iter().find(|service| service.service == "default/web").context("no web")?;
    let ghost = ServiceIndex::new(sizes.services - 1);
    let key = FrontendKey::new(Addr::v4([10, 96, 0, 99]), Port::new(80), Protocol::TCP);
    let mut ops = vec![slot(sizes.backends - 1, known.index), slot(sizes.backends - 2, known.index)];
    let longer = RunHeader { cluster_len: known.header.cluster_len + 1, ..known.header };
    let backends = known.backends.iter().copied().chain([stranger(sizes.backends - 2)]).collect();
    ops.extend(publish(known.index, sizes.runs - 100, known.word.generation() + 1, longer, backends));
    ops.push(slot(sizes.backends - 3, ghost));
    let name = ServiceName::new("default/ghost", "http")?;
    ops.push(TableOp::NameService { service: ghost, name: Box::new(name) });
    let header = RunHeader { cluster_len: 1, ..RunHeader::default() };
    ops.extend(publish(ghost, sizes.runs - 50, 1, header, vec![stranger(sizes.backends - 3)]));
    let value = FrontendValue::new(&key, FrontendKind::ClusterIp, ghost);
    ops.push(TableOp::InsertFrontend { key, value });
    for op in &ops {
        tables.write(op)?;
    }
    Ok(())
}

/// How often the maps lead to [`STRANGER`]: active slots, and backends of runs.
fn strangers(world: &World) -> Result<(usize, usize)> {
    let dump = KernelTables::open_read_only(world.bpf_root())?.dump()?;
    let addr = Addr::v4(STRANGER);
    let slots = dump.backends.iter().filter(|(_, slot)| slot.addr == addr && slot.members() != 0);
    let in_runs = dump.services.iter().flat_map(|service| &service.backends);
    Ok((slots.count(), in_runs.filter(|backend| backend.addr == addr).count()))
}

/// <https://github.com/cilium/cilium/issues/45441>
#[test]
fn pain_02_a_backend_that_nobody_knows_is_gone_after_a_restart() -> Result<()> {
    World::test("pain02", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        world.kill_agent()?;
        leave_strangers(world)?;
        assert_eq!(strangers(world)?, (3, 2));
        world.start_agent(&[])?;
        // No event comes for any of them.
        assert_eq!(strangers(world)?, (0, 0));
        world.wait_programmed()?;
        let mut client = world.node_client()?;
        for to in WEB {
            assert_eq!(client.servers(to)?, ["a".to_owned()].into());
        }
        assert_eq!(client.servers("10.96.0.99:80")?, ["ENETUNREACH".to_owned()].into());
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/pull/26912>
#[test]
fn pain_03_a_restart_keeps_the_backends_of_a_slice_that_has_not_been_seen_yet() -> Result<()> {
    World::test("pain03", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let slice = |suffix: &str, endpoint: Endpoint| -> Value {
            Slice::new("web", suffix).port("http", TCP, TARGET).endpoint(endpoint).into()
        };
        let service = Service::new("web", &[WEB_V4]).port("http", TCP, 80);
        world.manifests().put("web", [service.into(), slice("one", a.endpoint())])?;
        world.manifests().put("two", [slice("two", b.endpoint())])?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        client.wait_servers(WEB[0], &["a", "b"])?;
        // A stream to each.
        let mut streams = Vec::new();
        while streams.iter().filter(|(_, name)| name == "b").count() < 5 {
            let (socket, answer) = client.connect(Transport::Tcp, WEB[0])?;
            streams.push((socket, answer.name));
        }
        world.kill_agent()?;
        world.manifests().put_text("two.json", "{\"kind\": \"List\", \"items\": [{")?;
        world.start_agent(&[])?;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            assert_eq!(client.servers(WEB[0])?, ["a".to_owned(), "b".to_owned()].into());
        }
        for (socket, name) in streams {
            assert_eq!(client.again(socket)?.unwrap().name, name);
        }
        // Once it has spoken, it counts.
        world.manifests().put::<Value>("two", [])?;
        client.wait_servers(WEB[0], &["a"])
    })
}

/// <https://github.com/cilium/cilium/issues/27215>
#[test]
fn pain_04_no_service_goes_before_every_source_has_spoken() -> Result<()> {
    World::test("pain04", |world| {
        const SERVICES: u8 = 250;
        let a = world.serving_pod("a")?;
        let service =
            |n: u8| Service::new(&format!("s-{n:03}"), &[&format!("10.97.0.{n}")]).port("http", TCP, 80);
        let services = |from: u8| (from..=SERVICES).map(move |n| Value::from(service(n)));
        let slices = (1..=SERVICES).map(|n| {
            Slice::new(&format!("s-{n:03}"), "one").port("http", TCP, TARGET).endpoint(a.endpoint())
        });
        world.manifests().put("services", services(1))?;
        world.manifests().put("slices", slices)?;
        world.start_agent(&[])?;
        let held = world.portway(&["bpf", "lb", "list", "-o", "json"])?;
        assert_eq!(held.matches("default/s-").count(), usize::from(SERVICES));
        world.kill_agent()?;
        // Slices are there, services are not yet.
        world.manifests().put_text("services.json", "kind: List\nitems: [")?;
        world.start_agent(&[])?;
        let to: Vec<SocketAddr> = (1..=SERVICES).map(|n| ([10, 97, 0, n], 80).into()).collect();
        let tally = world.node_client()?.connects(&to, 1000, 0)?;
        assert_eq!((tally.answers(), tally.failures()), (1000, 0), "{:?}", tally.errors);
        assert_eq!(world.portway(&["bpf", "lb", "list", "-o", "json"])?, held);
        world.manifests().put("services", services(2))?;
        world.wait_programmed()?;
        assert_eq!(world.node_client()?.servers("10.97.0.1:80")?, ["ENETUNREACH".to_owned()].into());
        Ok(())
    })
}

/// <https://github.com/projectcalico/calico/issues/12192>
#[test]
fn pain_15_no_node_port_connection_is_refused_while_the_agent_starts() -> Result<()> {
    World::test("pain15", |world| {
        let pods = world.serving_pods(&["a", "b", "c", "d"])?;
        world.publish(&node_port_web(), endpoints(&pods.iter().collect::<Vec<_>>()))?;
        world.start_agent(&[])?;
        let to: Vec<SocketAddr> = vec![(NODE_V4, NODE_PORT).into(), (NODE_V6, NODE_PORT).into()];
        let mut load = [world.node_client()?, world.client(&pods[0])?];
        for probe in &mut load {
            probe.start_load(&to, 0, 1000)?;
        }
        for _ in 0..5 {
            world.kill_agent()?;
            world.start_agent(&[])?;
        }
        for probe in &mut load {
            let tally = probe.end_load()?;
            ensure!(tally.trouble().is_none(), "{:?}", tally.trouble());
            ensure!(tally.new.by_name.len() == 4 && tally.new.answers() > 1000, "{:?}", tally.new);
            println!("{} connections in {} ms, none refused", tally.new.answers(), tally.took_ms);
        }
        Ok(())
    })
}

/// Tables of others, in all the shapes that `nft` has crashed on elsewhere.
const FOREIGN_TABLES: &str = r#"
table inet foreign {
  set verdicts {
    typeof ip saddr . tcp dport . meta l4proto
    flags interval, timeout
    comment "a comment is user data"
    elements = { 10.0.0.0/8 . 80-90 . tcp timeout 1h comment "and so is this" }
  }
  map odd {
    type ipv6_addr . inet_service : verdict
    flags interval
    elements = { fd00::/8 . 1-65535 : accept }
  }
  chain services {
    type nat hook output priority -100; policy accept;
    ip daddr 10.96.0.10 tcp dport 9 dnat to 192.0.2.1:9
  }
  chain filter {
    type filter hook forward priority 0; policy accept;
    ip saddr . tcp dport . meta l4proto @verdicts counter accept
  }
}
table ip kube-proxy {
  chain services { comment "left by another"; }
}
"#;

/// <https://github.com/kubernetes/kubernetes/issues/136786>
#[test]
fn pain_84_rule_sets_of_others_stop_nothing() -> Result<()> {
    World::test("pain84", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let file = world.places().state.join("foreign.nft");
        std::fs::write(&file, FOREIGN_TABLES)?;
        let node = world.node().clone();
        let nft = |args: &[&str]| process::output(node.command("nft").args(args));
        nft(&["-f", &file.display().to_string()])?;
        let before = nft(&["list", "ruleset"])?;
        ensure!(before.contains("set verdicts") && before.contains("kube-proxy"), "{before}");
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        for pod in [&b, &a, &b] {
            world.publish(&web(), endpoints(&[pod]))?;
            for to in WEB {
                client.wait_servers(to, &[&pod.name])?;
            }
            world.kill_agent()?;
            world.start_agent(&[])?;
        }
        world.agent.take().context("no agent runs")?.stop()?;
        // Nothing of it was touched either.
        let uncounted = |text: &str| {
            text.lines()
                .map(|line| line.split(" expires ").next().unwrap_or(line).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(uncounted(&nft(&["list", "ruleset"])?), uncounted(&before));
        Ok(())
    })
}
