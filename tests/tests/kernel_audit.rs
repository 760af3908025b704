//! Foreign interference: whatever somebody else does to programs, pins and maps is noticed and put right within ten
//! seconds, and nobody else's connections notice (R19).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portway_agent::maps::{KernelTables, MapReader};
use portway_agent::programs::{Attached, attached};
use portway_datapath::layout::LAYOUT_VERSION;
use portway_datapath::{Addr, BackendSlot, FrontendKey, Port, Protocol as IpProtocol};
use portway_model::tables::TableDump;
use portway_tests::harness::agent::cli;
use portway_tests::harness::bpf::ATTACH_TYPES;
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::{Service, TCP, endpoints};
use portway_tests::harness::tamper::{self, Bystander};
use portway_tests::harness::{Probe, World, eventually};

/// What R19 allows from the interference to its repair.
const LIMIT: Duration = Duration::from_secs(10);
/// Where the load of other clients goes: one address of each family.
const OTHER: [&str; 2] = ["10.96.0.20:80", "[fd00:10:96::20]:80"];

fn other() -> Service {
    Service::new("other", &["10.96.0.20", "fd00:10:96::20"]).port("http", TCP, 80)
}

/// `web`, which is tampered with, `other`, which has the load, and the agent.
fn start(world: &mut World) -> Result<()> {
    let pods = world.serving_pods(&["a", "b", "c", "d"])?;
    let pods: Vec<_> = pods.iter().collect();
    let web = web().load_balancer(&["192.0.2.7"]).with("loadBalancerSourceRanges", vec!["10.0.0.0/8"]);
    world.publish(&web, endpoints(&pods))?;
    world.publish(&other(), endpoints(&pods))?;
    world.start_agent(&[])
}

fn maps(world: &World) -> PathBuf {
    world.bpf_root().join(format!("portway/v{LAYOUT_VERSION}/maps"))
}

fn links(world: &World) -> PathBuf {
    world.bpf_root().join(format!("portway/v{LAYOUT_VERSION}/links"))
}

fn reader(world: &World) -> Result<MapReader> {
    Ok(KernelTables::open_read_only(world.bpf_root())?)
}

/// 1,000 connects a second for longer than a repair may take.
fn load(world: &World, to: &[&str]) -> Result<Probe> {
    let mut probe = world.node_client()?;
    let to: Vec<_> = to.iter().map(|to| to.parse()).collect::<Result<_, _>>()?;
    probe.start_connects(&to, 11_000, 1000)?;
    Ok(probe)
}

fn nobody_noticed(mut load: Probe) -> Result<()> {
    let tally = load.finish_connects()?;
    ensure!((tally.answers(), tally.failures()) == (11_000, 0), "{tally:?}");
    Ok(())
}

/// The dump without what a service gets anew when its run was repaired: word, slots.
fn meaning(dump: &TableDump) -> Vec<String> {
    let services = dump.services.iter().map(|service| {
        let backends: Vec<_> = service
            .backends
            .iter()
            .map(|backend| format!("{}:{}", backend.addr, backend.port.get()))
            .collect();
        format!(
            "{:?} {}:{} {:?} {backends:?}",
            service.index, service.service, service.port_name, service.header
        )
    });
    let frontends = dump.frontends.iter().map(|(key, value)| format!("{key:?} {value:?}"));
    let ranges = dump.source_ranges.iter().map(|range| format!("{range:?}"));
    let slots = dump.backends.iter().filter(|(_, slot)| slot.members() != 0);
    let slots = slots.map(|(_, slot)| format!("{:?} {}", slot.service, slot.addr));
    let stray = dump.stray_names.iter().map(|index| format!("stray {index:?}"));
    services.chain(frontends).chain(ranges).chain(slots).chain(stray).collect()
}

/// Every element of every map that user space writes, changed, removed or added.
#[test]
fn whatever_is_changed_in_a_map_by_hand_is_put_right_within_ten_seconds() -> Result<()> {
    World::test("audit-maps", |world| {
        start(world)?;
        let reader = reader(world)?;
        let (before, config, addresses) = (reader.dump()?, reader.config()?, reader.local_addresses()?);
        let of_web: Vec<_> =
            before.services.iter().filter(|service| service.service == "default/web").collect();
        let [first, second, ..] = of_web[..] else { panic!("{before:?}") };
        let load = load(world, &OTHER)?;
        let map = |name: &str| maps(world).join(name);
        let key = |addr: &str, port| {
            let addr: std::net::IpAddr = addr.parse().unwrap_or_else(|error| panic!("{addr}: {error}"));
            frontend_key(&FrontendKey::new(Addr::from(addr), Port::new(port), IpProtocol::TCP))
        };
        let began = Instant::now();
        // A frontend that goes, one that leads elsewhere, one that nobody wants.
        tamper::delete(&map("pw_frontends"), &key("10.96.0.10", 80))?;
        tamper::update(&map("pw_frontends"), &key("fd00:10:96::10", 80), &7_u64.to_ne_bytes())?;
        tamper::update(&map("pw_frontends"), &key("10.96.0.99", 99), &7_u64.to_ne_bytes())?;
        // The word of one service, the run of another, the word of none.
        tamper::update(
            &map("pw_services"),
            &first.index.get().to_ne_bytes(),
            &0xffff_ffff_u64.to_ne_bytes(),
        )?;
        let run = second.word.run().context("it is published")?.plus(2).get();
        tamper::update(&map("pw_runs"), &run.to_ne_bytes(), &[7; 24])?;
        tamper::update(&map("pw_services"), &60_000_u32.to_ne_bytes(), &77_u64.to_ne_bytes())?;
        // A slot in use, and a free one.
        let in_use = before.backends[0].0.get();
        tamper::update(&map("pw_backends"), &in_use.to_ne_bytes(), &[9; size_of::<BackendSlot>()])?;
        tamper::update(&map("pw_backends"), &200_000_u32.to_ne_bytes(), &[9; size_of::<BackendSlot>()])?;
        // A name, a source range, an address of the node, the settings.
        tamper::delete(&map("pw_service_names"), &second.index.get().to_ne_bytes())?;
        tamper::delete(&map("pw_source_ranges"), &source_range_key(&before)?)?;
        let node = addresses.keys().next().context("the node has addresses")?;
        tamper::delete(&map("pw_local_addresses"), &node.words().map(u32::to_ne_bytes).concat())?;
        tamper::update(&map("pw_config"), &[0; 4], &[0; 16])?;
        eventually(LIMIT, "everything to be as it was", || {
            let after = reader.dump()?;
            ensure!(meaning(&after) == meaning(&before), "before: {before:?}\nafter: {after:?}");
            ensure!(reader.config()? == config, "settings: {:?}", reader.config());
            ensure!(reader.local_addresses()? == addresses, "addresses: {:?}", reader.local_addresses());
            Ok(())
        })?;
        println!("all put right after {:?}", began.elapsed());
        let mut client = world.node_client()?;
        for to in WEB {
            client.wait_servers(to, &["a", "b", "c", "d"])?;
        }
        nobody_noticed(load)?;
        let status = world.portway(&["status", "-o", "json"])?;
        for kind in ["pw_frontends", "pw_services", "pw_runs", "pw_backends", "pw_config"] {
            ensure!(status.contains(&format!("\"{kind}\": ")), "{kind} is not counted: {status}");
        }
        world.wait_programmed()
    })
}

/// The bytes of a key of `pw_frontends`.
fn frontend_key(key: &FrontendKey) -> Vec<u8> {
    let mut bytes = key.addr.words().map(u32::to_ne_bytes).concat();
    bytes.extend(key.port.get().to_be_bytes());
    bytes.extend([key.protocol, 0]);
    bytes
}

/// The bytes of a key of `pw_source_ranges`: a prefix length, the service, the address.
fn source_range_key(dump: &TableDump) -> Result<Vec<u8>> {
    let (service, addr, bits) = dump.source_ranges.first().context("a source range")?;
    let mut bytes = (32 + u32::from(*bits)).to_ne_bytes().to_vec();
    bytes.extend(service.get().to_be_bytes());
    bytes.extend(addr.words().map(u32::to_ne_bytes).concat());
    Ok(bytes)
}

#[test]
fn pins_that_are_removed_come_back_and_lead_to_the_same_maps_and_programs() -> Result<()> {
    World::test("audit-pins", |world| {
        start(world)?;
        let before: Vec<Attached> = attached(&links(world))?;
        let names = |dir: PathBuf| -> Result<Vec<String>> {
            let mut names: Vec<_> = std::fs::read_dir(&dir)
                .with_context(|| format!("list {}", dir.display()))?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect::<Result<_>>()?;
            names.sort();
            Ok(names)
        };
        let pins = (names(maps(world))?, names(links(world))?);
        assert_eq!((pins.0.len(), pins.1.len()), (14, ATTACH_TYPES.len()));
        let load = load(world, &[WEB[0], WEB[1], OTHER[0]])?;
        let began = Instant::now();
        std::fs::remove_dir_all(world.bpf_root().join("portway"))?;
        eventually(LIMIT, "the pins to be back", || {
            ensure!((names(maps(world))?, names(links(world))?) == pins, "some are missing");
            Ok(())
        })?;
        println!("all back after {:?}", began.elapsed());
        assert_eq!(attached(&links(world))?, before, "the same links with the same programs");
        nobody_noticed(load)?;
        // The next agent takes them over.
        world.kill_agent()?;
        let mut client = world.node_client()?;
        assert!(client.tcp(WEB[0])?.is_ok(), "it serves without an agent");
        world.start_agent(&[])?;
        assert_eq!(
            attached(&links(world))?.iter().map(|link| link.link).collect::<Vec<_>>(),
            before.iter().map(|link| link.link).collect::<Vec<_>>()
        );
        Ok(())
    })
}

#[test]
fn a_program_that_was_detached_is_attached_again_within_ten_seconds() -> Result<()> {
    World::test("audit-detach", |world| {
        start(world)?;
        let mut client = world.node_client()?;
        // IPv6 has programs of its own.
        let load = load(world, &[WEB[1], OTHER[1]])?;
        let began = Instant::now();
        for hook in ["connect4", "getpeername4", "sendmsg4", "recvmsg4"] {
            tamper::detach(&links(world).join(hook))?;
        }
        assert!(client.tcp(WEB[0])?.is_err(), "nobody translates");
        eventually(LIMIT, "services of IPv4 to be back", || {
            ensure!(client.tcp(WEB[0])?.is_ok() && client.udp(WEB[0])?.is_ok(), "not yet");
            Ok(())
        })?;
        println!("back after {:?}", began.elapsed());
        nobody_noticed(load)?;
        let programs = portway_tests::harness::bpf::attached(world.cgroup().path())?;
        ensure!(programs.iter().all(|(_, ids)| ids.len() == 1), "{programs:?}");
        assert_eq!(attached(&links(world))?.len(), ATTACH_TYPES.len());
        Ok(())
    })
}

#[test]
fn other_programs_and_kube_proxys_rules_are_warned_of_and_left_alone() -> Result<()> {
    World::test("audit-others", |world| {
        let connect4 = 10;
        let in_front = Bystander::attach(world.cgroup().path(), connect4)?;
        start(world)?;
        let behind = Bystander::attach(world.cgroup().path(), 15)?;
        tamper::nft_table(world.node(), true)?;
        let warned = |world: &World, wanted: &[&str], gone: &[&str]| {
            eventually(LIMIT, "the warnings", || {
                let status = world.portway(&["status"])?;
                for text in wanted {
                    ensure!(status.contains(text), "no {text:?} in {status}");
                }
                for text in gone {
                    ensure!(!status.contains(text), "still {text:?} in {status}");
                }
                Ok(())
            })
        };
        let before = "(bystander) of somebody else runs before connect4";
        let after = "(bystander) of somebody else runs after sendmsg6";
        let rules = "kube-proxy's rules are there (nftables table kube-proxy)";
        warned(world, &[before, after, rules], &[])?;
        let mut client = world.node_client()?;
        client.wait_servers(WEB[0], &["a", "b", "c", "d"])?;
        drop((in_front, behind));
        tamper::nft_table(world.node(), false)?;
        warned(world, &[], &["bystander", "kube-proxy's rules"])
    })
}

/// The exit code and what was printed.
fn run(world: &World, args: &[&str]) -> Result<(Option<i32>, String)> {
    let output = cli(&world.places(), args)?.output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn portway_audit_names_differences_and_puts_them_right_only_when_told_to() -> Result<()> {
    World::test("audit-cli", |world| {
        start(world)?;
        let (code, text) = run(world, &["audit"])?;
        assert_eq!(code, Some(0), "{text}");
        assert!(text.starts_with("no difference"), "{text}");
        let frontends = maps(world).join("pw_frontends");
        let key = frontend_key(&FrontendKey::new(Addr::v4([10, 96, 0, 10]), Port::new(80), IpProtocol::TCP));
        // The periodic look may be there first: then once more.
        let mut seen = None;
        for _ in 0..5 {
            tamper::delete(&frontends, &key)?;
            let (code, text) = run(world, &["audit"])?;
            if code == Some(1) {
                seen = Some(text);
                break;
            }
        }
        let text = seen.context("five looks in a row were quicker")?;
        assert!(
            text.contains("pw_frontends")
                && text.contains("frontend 10.96.0.10:80/TCP")
                && text.contains("nothing"),
            "{text}"
        );
        assert!(text.contains("`portway audit --fix`"), "{text}");
        let mut fixed = None;
        for _ in 0..5 {
            eventually(LIMIT, "the frontend", || {
                ensure!(
                    world.portway(&["bpf", "lb", "list"])?.contains("10.96.0.10:80/TCP"),
                    "it is missing"
                );
                Ok(())
            })?;
            tamper::delete(&frontends, &key)?;
            let (code, text) = run(world, &["audit", "--fix"])?;
            assert_eq!(code, Some(0), "{text}");
            if text.starts_with("Put right:") {
                fixed = Some(text);
                break;
            }
        }
        let text = fixed.context("five looks in a row were quicker")?;
        assert!(
            text.contains("frontend 10.96.0.10:80/TCP") && text.contains("1 difference, put right"),
            "{text}"
        );
        let (code, text) = run(world, &["audit"])?;
        assert_eq!(code, Some(0), "{text}");
        world.kill_agent()?;
        let (code, text) = run(world, &["audit"])?;
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("the agent is not reachable"), "{text}");
        Ok(())
    })
}

/// <https://github.com/projectcalico/calico/issues/13279>
#[test]
fn pain_14_after_each_pod_that_goes_the_maps_are_what_the_slices_say() -> Result<()> {
    World::test("pain14", |world| {
        let pods = world.serving_pods(&["a", "b", "c", "d", "e", "f"])?;
        let names = ["kubernetes", "dns", "web", "other"];
        let services: Vec<_> = (0..)
            .zip(names)
            .map(|(n, name)| Service::new(name, &[&format!("10.96.1.{n}")]).port("http", TCP, 80))
            .collect();
        for service in &services {
            world.publish(service, pods.iter().map(|pod| pod.endpoint()))?;
        }
        world.start_agent(&[])?;
        let mut random = 14_u64;
        for _ in 0..40 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Pods of a service come and go, each with a bit; slots and indices are given up and taken again.
            let (service, mask) = ((random >> 33) as usize % services.len(), random >> 40);
            let left = (0..).zip(&pods).filter(|(n, _)| mask >> n & 1 == 1).map(|(_, pod)| pod.endpoint());
            world.publish(&services[service], left)?;
            world.wait_programmed()?;
        }
        let audit = world.portway(&["audit"])?;
        assert!(audit.starts_with("no difference"), "{audit}");
        Ok(())
    })
}
