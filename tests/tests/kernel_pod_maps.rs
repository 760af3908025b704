//! The maps of the pod network and programs at interfaces: made, taken over, replaced, healed, cleaned up. On links of own
//! namespaces; no agent runs.

#[path = "kernel_pod_maps/filters.rs"]
mod filters;
#[path = "kernel_pod_maps/pins.rs"]
mod pins;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use aya::programs::{SchedClassifier, TcAttachType};
use portway_agent::cleanup::cleanup;
use portway_agent::maps::{KernelTables, MapReader, Origin, PodMapId, PodTables, pod_pin_path};
use portway_agent::programs::{
    AttachedInterface, InterfaceChange, InterfaceHook, InterfacePrograms, Side, detach_interfaces,
    interface_dir,
};
use portway_datapath::layout::{LAYOUT_VERSION, PodSizes, Sizes};
use portway_datapath::{
    Addr, DeviceValue, EndpointValue, FlowKey, FlowMap, FlowValue, IpcacheValue, NetnsOptions, NodeNetwork,
    NumericIdentity, Port,
};
use portway_tests::harness::mount::BpfMount;
use portway_tests::harness::{Ending, Namespace, eventually, meanwhile};

const SMALL: PodSizes = PodSizes {
    endpoints: 64,
    ipcache: 256,
    conntrack: 256,
    conntrack_new: 128,
    nat: 256,
    nat_new: 128,
    fragments: 64,
    devices: 16,
};

/// What the audit's look takes at most.
const HEALED: Duration = Duration::from_secs(10);

const NONE: [Vec<u32>; 2] = [Vec::new(), Vec::new()];

/// A BPF file system with every map, and a node with a pod's link.
struct Node {
    dir: tempfile::TempDir,
    bpf: BpfMount,
    tables: PodTables,
    namespace: Namespace,
    pod: Namespace,
}

impl Node {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let root = dir.path().join("bpf");
        std::fs::create_dir(&root)?;
        let bpf = BpfMount::new(&root)?;
        KernelTables::open(bpf.path(), &Sizes::DEFAULT)?;
        let (tables, _) = PodTables::open(bpf.path(), &SMALL)?;
        let (namespace, pod) = (Namespace::new("node")?, Namespace::new("pod")?);
        namespace.add_veth("pwpod", &pod, "eth0")?;
        Ok(Self { dir, bpf, tables, namespace, pod })
    }

    fn root(&self) -> &Path {
        self.bpf.path()
    }

    /// An agent's programs, as its start loads them.
    fn programs(&self) -> Result<InterfacePrograms> {
        InterfacePrograms::load(self.root()).context("load the packet programs")
    }

    fn attach(&self, programs: &InterfacePrograms, interface: &str) -> Result<[InterfaceChange; 2]> {
        self.namespace.run(|| {
            let ifindex = nix::net::if_::if_nametoindex(interface)?;
            Ok(programs.attach(ifindex, interface, Side::Device)?)
        })
    }

    fn delete_link(&self, interface: &str) -> Result<()> {
        let done = self.namespace.command("ip").args(["link", "delete", interface]).status()?;
        ensure!(done.success(), "delete {interface}: {done}");
        Ok(())
    }

    /// The numbers of the programs that run at an interface by tcx, ours or not: ingress, egress.
    fn running(&self, interface: &str) -> Result<[Vec<u32>; 2]> {
        self.namespace.run(|| running(interface))
    }

    fn pin(&self, interface: &str, hook: InterfaceHook) -> PathBuf {
        interface_dir(self.root()).join(format!("{interface}-{hook}"))
    }
}

fn running(interface: &str) -> Result<[Vec<u32>; 2]> {
    let at = |hook| -> Result<Vec<u32>> {
        let (_, programs) = SchedClassifier::query_tcx(interface, hook)?;
        Ok(programs.iter().map(aya::programs::ProgramInfo::id).collect())
    };
    Ok([at(TcAttachType::Ingress)?, at(TcAttachType::Egress)?])
}

fn id(programs: &InterfacePrograms, name: &str) -> u32 {
    programs.loaded().iter().find(|program| program.name == name).map_or(0, |program| program.id)
}

/// What runs at a device: `pw_from_device` at ingress, `pw_to_device` at egress, nothing else.
fn ours(programs: &InterfacePrograms) -> [Vec<u32>; 2] {
    [vec![id(programs, "pw_from_device")], vec![id(programs, "pw_to_device")]]
}

fn pod(last: u8) -> Addr {
    Addr::v4([10, 1, 0, last])
}

fn endpoint(ifindex: u32) -> EndpointValue {
    EndpointValue { ifindex, id: 7, flags: 0, mac: [2; 6], node_mac: [4; 6] }
}

#[test]
fn programs_are_attached_once_and_replaced_by_the_next_agents() -> Result<()> {
    let node = Node::new()?;
    let first = node.programs()?;
    ensure!(first.has_tcx(), "this kernel has tcx");
    ensure!(node.attach(&first, "pwpod")? == [InterfaceChange::Attached; 2]);
    ensure!(node.attach(&first, "pwpod")? == [InterfaceChange::Unchanged; 2]);
    ensure!(node.running("pwpod")? == ours(&first));
    // Killed: nobody has a descriptor of theirs.
    let [from, to] = [id(&first, "pw_from_device"), id(&first, "pw_to_device")];
    drop(first);
    ensure!(node.running("pwpod")? == [vec![from], vec![to]], "they run on");
    let second = node.programs()?;
    let changes = node.attach(&second, "pwpod")?;
    let replaced = |old_program| InterfaceChange::Replaced { old_program };
    ensure!(changes == [replaced(from), replaced(to)], "{changes:?}");
    ensure!(node.running("pwpod")? == ours(&second));
    let attached = second.attached()?;
    let [AttachedInterface { interface, hook: InterfaceHook::Ingress, program, .. }, _] = &attached[..]
    else {
        anyhow::bail!("{attached:?}");
    };
    ensure!(interface == "pwpod" && *program == id(&second, "pw_from_device"), "{attached:?}");
    ensure!(second.detach("pwpod")? && !second.detach("pwpod")?);
    ensure!(node.running("pwpod")? == NONE && second.attached()?.is_empty());
    Ok(())
}

/// Two threads: one replaces the programs as restarts do, the other asks the kernel what runs.
#[test]
fn no_look_finds_none_or_two_programs_while_agents_replace_each_other() -> Result<()> {
    let node = Node::new()?;
    let agents = [node.programs()?, node.programs()?];
    node.attach(&agents[0], "pwpod")?;
    let look = |end: &Ending| {
        node.namespace.run(|| {
            let mut looks = 0_u64;
            while !end.has_come() {
                let found = running("pwpod")?;
                ensure!(found.iter().all(|programs| programs.len() == 1), "{found:?} at look {looks}");
                looks += 1;
            }
            Ok(looks)
        })
    };
    let replace = || {
        node.namespace.run(|| {
            let ifindex = nix::net::if_::if_nametoindex("pwpod")?;
            for agent in agents.iter().cycle().skip(1).take(2_000) {
                let changes = agent.attach(ifindex, "pwpod", Side::Device)?;
                ensure!(
                    changes.iter().all(|change| matches!(change, InterfaceChange::Replaced { .. })),
                    "{changes:?}"
                );
            }
            Ok(())
        })
    };
    let ((), looks) = meanwhile(replace, look)?;
    ensure!(looks > 100, "{looks} looks only");
    Ok(())
}

#[test]
fn what_somebody_else_took_away_is_seen_and_put_back() -> Result<()> {
    let node = Node::new()?;
    let programs = node.programs()?;
    node.attach(&programs, "pwpod")?;
    let is_attached = || {
        node.namespace.run(|| {
            let ifindex = nix::net::if_::if_nametoindex("pwpod")?;
            Ok(programs.is_attached(ifindex, "pwpod", Side::Device)?)
        })
    };
    ensure!(is_attached()?);
    std::fs::remove_file(node.pin("pwpod", InterfaceHook::Ingress))?;
    ensure!(!is_attached()?);
    // The kernel frees a link when it comes to it, and takes no second one of the same program until then.
    let changes = eventually(HEALED, "a program in its place", || node.attach(&programs, "pwpod"))?;
    ensure!(changes == [InterfaceChange::Attached, InterfaceChange::Unchanged], "{changes:?}");
    ensure!(is_attached()? && node.running("pwpod")? == ours(&programs));
    // Something that is no link in place of one.
    std::fs::remove_file(node.pin("pwpod", InterfaceHook::Egress))?;
    let map = MapData::from_pin(pod_pin_path(node.root(), PodMapId::Traffic))?;
    map.pin(node.pin("pwpod", InterfaceHook::Egress))?;
    ensure!(!is_attached()?);
    eventually(HEALED, "a program in its place", || node.attach(&programs, "pwpod"))?;
    ensure!(is_attached()? && node.running("pwpod")? == ours(&programs));
    Ok(())
}

#[test]
fn the_pins_of_interfaces_that_are_gone_go_and_a_new_one_of_the_name_gets_programs() -> Result<()> {
    let node = Node::new()?;
    let programs = node.programs()?;
    // A bpf file system has no dots in names.
    node.namespace.add_veth("pw.100", &node.pod, "eth1")?;
    for interface in ["pwpod", "pw.100"] {
        node.attach(&programs, interface)?;
    }
    ensure!(programs.remove_gone()?.is_empty());
    node.delete_link("pw.100")?;
    node.delete_link("pwpod")?;
    node.namespace.add_veth("pwpod", &node.pod, "eth0")?;
    // Its pins are of the one that is gone.
    let changes = node.attach(&programs, "pwpod")?;
    ensure!(changes == [InterfaceChange::Moved { old_ifindex: 0 }; 2], "{changes:?}");
    ensure!(programs.remove_gone()? == ["pw.100"]);
    ensure!(programs.attached()?.len() == 2 && node.running("pwpod")? == ours(&programs));
    let error = programs.attach(u32::MAX / 2, "none", Side::Device).map_err(|error| error.to_string());
    ensure!(error.as_ref().is_err_and(|error| error.contains("at interface none")), "{error:?}");
    Ok(())
}

#[test]
fn what_another_layout_version_runs_is_replaced_where_it_is_wanted_and_ended_elsewhere() -> Result<()> {
    let node = Node::new()?;
    node.namespace.add_veth("pwother", &node.pod, "eth1")?;
    let first = node.programs()?;
    for interface in ["pwpod", "pwother"] {
        node.attach(&first, interface)?;
    }
    let (ours, other) = (interface_dir(node.root()), node.root().join("portway/v0/interfaces"));
    std::fs::create_dir_all(&other)?;
    for pin in std::fs::read_dir(&ours)? {
        let pin = pin?;
        std::fs::rename(pin.path(), other.join(pin.file_name()))?;
    }
    let second = node.programs()?;
    // A pod's link that settled under the other version is linked, too: no filter goes behind its link.
    let changes = node
        .namespace
        .run(|| Ok(second.attach(nix::net::if_::if_nametoindex("pwpod")?, "pwpod", Side::Pod)?))?;
    ensure!(changes.iter().all(|change| matches!(change, InterfaceChange::Replaced { .. })), "{changes:?}");
    let changes = node.attach(&second, "pwpod")?;
    ensure!(changes.iter().all(|change| matches!(change, InterfaceChange::Replaced { .. })), "{changes:?}");
    ensure!(second.retire_other_versions()? == ["v0"]);
    ensure!(node.running("pwother")? == NONE && second.attached()?.len() == 2);
    ensure!(!node.root().join("portway/v0").exists());
    Ok(())
}

#[test]
fn where_the_pod_network_is_switched_off_nothing_of_it_stays() -> Result<()> {
    let node = Node::new()?;
    let programs = node.programs()?;
    node.attach(&programs, "pwpod")?;
    ensure!(PodTables::are_pinned(node.root()));
    let detached = detach_interfaces(node.root())?;
    ensure!(detached == ["pwpod-egress", "pwpod-ingress"], "{detached:?}");
    let maps = PodTables::unpin(node.root())?;
    ensure!(maps.len() == PodMapId::ALL.len() && !PodTables::are_pinned(node.root()), "{maps:?}");
    ensure!(node.running("pwpod")? == NONE);
    // The services' maps are there still, and there is nothing to do a second time.
    MapReader::open(node.root())?;
    ensure!(detach_interfaces(node.root())?.is_empty() && PodTables::unpin(node.root())?.is_empty());
    Ok(())
}

#[test]
fn cleanup_takes_programs_off_interfaces_and_leaves_no_pin() -> Result<()> {
    let node = Node::new()?;
    let programs = node.programs()?;
    node.attach(&programs, "pwpod")?;
    let done =
        node.namespace.run(|| Ok(cleanup(node.root(), node.root(), &node.dir.path().join("socket"))?))?;
    for what in ["detached pwpod-ingress", "detached pwpod-egress", "unpinned pw_conntrack"] {
        let what = what.replacen(' ', &format!(" v{LAYOUT_VERSION}/"), 1);
        ensure!(done.contains(&what), "{what} is not in {done:?}");
    }
    ensure!(node.running("pwpod")? == NONE);
    ensure!(!node.root().join("portway").exists());
    Ok(())
}

#[test]
fn a_map_of_another_size_keeps_what_was_written_and_what_was_learned() -> Result<()> {
    let node = Node::new()?;
    let network = NodeNetwork {
        switches: NodeNetwork::TUNNEL,
        tunnel: 8472 << 32 | 3,
        nat_ports: 1,
        tcp_timeouts: 2,
        other_timeouts: 3,
        service_timeouts: 4,
        hairpin_v4: pod(1),
        hairpin_v6: pod(2),
    };
    let inside = IpcacheValue::new(NumericIdentity::UNKNOWN, Some(pod(9)), IpcacheValue::INSIDE);
    let wanted = BTreeMap::from([((pod(0), 120), inside), ((Addr::v6([1; 16]), 64), inside)]);
    let device = BTreeMap::from([(3, DeviceValue { v4: pod(3), v6: Addr::ANY_V6 })]);
    node.tables.set_endpoint(pod(7), endpoint(5))?;
    node.tables.set_netns(77, NetnsOptions::new(false))?;
    for (prefix, value) in &wanted {
        node.tables.change_ipcache(*prefix, Some(value))?;
    }
    node.tables.set_devices(&device)?;
    node.tables.set_network(&network)?;
    let flows = |n| FlowKey::new((pod(7), Port::new(n)), (pod(8), Port::new(80)), 6, FlowKey::PLAIN);
    insert_flow(&pod_pin_path(node.root(), PodMapId::Conntrack), &flows(1))?;
    let larger = PodSizes { endpoints: 128, ipcache: 512, conntrack: 512, devices: 32, ..SMALL };
    // An agent that is killed before its programs are in place, and the next one.
    let (_, opening) = PodTables::open(node.root(), &larger)?;
    ensure!(matches!(opening.origins[&PodMapId::Conntrack], Origin::Replaced(_)), "{opening:?}");
    ensure!(opening.origins[&PodMapId::Nat] == Origin::Reused, "{opening:?}");
    let (tables, opening) = PodTables::open(node.root(), &larger)?;
    ensure!(opening.origins.values().all(|origin| *origin == Origin::Reused), "{opening:?}");
    ensure!(!opening.earlier.is_empty(), "the flows are still in the map of the first agent");
    ensure!(tables.endpoints()? == BTreeMap::from([(pod(7), endpoint(5))]));
    let reader = tables.reader();
    ensure!(reader.netns()? == BTreeMap::from([(77, NetnsOptions::new(false))]));
    ensure!(reader.ipcache()? == wanted && reader.devices()? == device && reader.network()? == network);
    // Before the programs are replaced, and after.
    let first = opening.earlier.adopt(&tables)?;
    ensure!((first.copied, first.lost) == (1, 0), "{first}");
    let old = pod_pin_path(node.root(), PodMapId::Conntrack).with_file_name("pw_conntrack_old");
    insert_flow(&old, &flows(2))?;
    let second = opening.earlier.adopt(&tables)?;
    ensure!((second.copied, second.known) == (1, 1), "{second}");
    opening.earlier.forget()?;
    ensure!(!old.exists() && tables.sizes() == larger);
    let mut found = 0;
    reader.for_each_flow(FlowMap::Established, |key, _| {
        found += u32::from(*key == flows(1) || *key == flows(2))
    })?;
    ensure!(found == 2, "{found} flows");
    Ok(())
}

/// As a program would.
fn insert_flow(pin: &Path, key: &FlowKey) -> Result<()> {
    let mut map: HashMap<_, FlowKey, FlowValue> = Map::HashMap(MapData::from_pin(pin)?).try_into()?;
    Ok(map.insert(key, FlowValue::new(key, 0, 0), 0)?)
}
