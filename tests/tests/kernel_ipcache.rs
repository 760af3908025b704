//! The agent's table of who is where, at the size of a large cluster, on the kernel's real trie. No agent runs.

#[path = "kernel_ipcache/meanwhile.rs"]
mod meanwhile;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_agent::ipcache::Ipcache;
use portway_agent::maps::{KernelTables, PodTables};
use portway_datapath::layout::{PodSizes, Sizes};
use portway_datapath::{Addr, IpcacheValue, NumericIdentity};
use portway_model::ipcache::{EndpointAddress, EndpointSource, Options, Reach, Source, reach};
use portway_model::k8s::{Manifests, ObjectKind, Uid, Watched};
use portway_model::node::{ClusterNode, ClusterView, Prefix};
use portway_tests::harness::mount::BpfMount;
use portway_tests::harness::{Ending, meanwhile};

/// With two addresses for each pod 150,000 of them.
const NODES: u32 = 750;
const PODS_OF_A_NODE: u32 = 100;
const IDENTITIES: u32 = 10_000;

struct World {
    _dir: tempfile::TempDir,
    bpf: BpfMount,
    sizes: PodSizes,
}

impl World {
    fn new(ipcache: u32) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let root = dir.path().join("bpf");
        std::fs::create_dir(&root)?;
        let bpf = BpfMount::new(&root)?;
        KernelTables::open(bpf.path(), &Sizes::DEFAULT)?;
        let sizes = PodSizes {
            endpoints: 64,
            ipcache,
            conntrack: 256,
            conntrack_new: 128,
            nat: 256,
            nat_new: 128,
            fragments: 64,
            devices: 16,
        };
        Ok(Self { _dir: dir, bpf, sizes })
    }

    fn tables(&self) -> Result<PodTables> {
        Ok(PodTables::open(self.bpf.path(), &self.sizes)?.0)
    }
}

fn node_address(n: u32) -> Addr {
    let [_, _, high, low] = n.to_be_bytes();
    Addr::v4([172, 16, high, low])
}

fn pod_address(node: u32, pod: u32) -> Addr {
    let [_, _, high, low] = node.to_be_bytes();
    Addr::v4([10, high, low, pod as u8 + 2])
}

fn pod_address_v6(node: u32, pod: u32) -> Addr {
    let [_, _, high, low] = node.to_be_bytes();
    Addr::v6([0xfd, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, pod as u8 + 2])
}

fn identity(node: u32, pod: u32) -> NumericIdentity {
    NumericIdentity::new(256 + (node * PODS_OF_A_NODE + pod) % IDENTITIES)
}

/// The first `nodes`, of which the very first is this one.
fn nodes(nodes: u32) -> Result<Reach> {
    let node = |n: u32| -> Result<Arc<ClusterNode>> {
        let v4 = Prefix::new(pod_address(n, 0), 120).context("a prefix of pods")?;
        let v6 = Prefix::new(pod_address_v6(n, 0), 112).context("a prefix of pods")?;
        Ok(Arc::new(ClusterNode {
            name: format!("n{n:05}").into(),
            created: Some(1),
            addresses: [node_address(n)].into(),
            other_addresses: Box::default(),
            pod_cidrs: [v4, v6].into(),
            health: Box::default(),
        }))
    };
    let mut view = ClusterView { this: Some(node(0)?), knows_nodes: true, ..ClusterView::default() };
    for n in 1..nodes {
        let node = node(n)?;
        view.remote.insert(Arc::clone(&node.name), node);
    }
    let options = Options {
        tunnel: true,
        ipv4: true,
        ipv6: true,
        native_cidrs: Vec::new(),
        health_endpoints: true,
        prefixes_of: ObjectKind::Node,
    };
    Ok(reach(&view, &options))
}

/// A pod's CiliumEndpoint as an API server prints it.
fn endpoint_text(node: u32, pod: u32) -> String {
    let number = node * PODS_OF_A_NODE + pod;
    format!(
        r#"{{"apiVersion":"cilium.io/v2","kind":"CiliumEndpoint","metadata":{{"creationTimestamp":"2026-11-30T10:00:00Z",
        "generation":2,"labels":{{"app":"a{number}"}},"name":"deployment-{number}-7c9f7b6d5-x2x{pod}","namespace":"team-{}",
        "ownerReferences":[{{"apiVersion":"v1","kind":"Pod","name":"deployment-{number}","uid":"798c2fec-5eb1-4906-a301-{number:012}"}}],
        "resourceVersion":"{}","uid":"90b353f5-53a1-4d98-8204-{number:012}"}},"status":{{"id":{},"state":"ready",
        "identity":{{"id":{},"labels":["k8s:app=a{number}"]}},"networking":{{"addressing":[{{"ipv4":"{}","ipv6":"{}"}}],"node":"{}"}}}}}}"#,
        number % 97,
        number + 1,
        pod + 1,
        identity(node, pod),
        pod_address(node, pod),
        pod_address_v6(node, pod),
        node_address(node),
    )
}

/// Everything that an agent holds of the objects: what decodes them, and the table.
struct Agent {
    manifests: Manifests,
    ipcache: Ipcache,
}

impl Agent {
    fn new() -> Self {
        Self { manifests: Manifests::new(), ipcache: Ipcache::new(true, true) }
    }

    /// Lists the objects of all pods, as a watch begins.
    fn list(&mut self) -> Result<()> {
        let kind = ObjectKind::CiliumEndpoint;
        self.tell(kind, Watched::ListBegins)?;
        // Pods of a namespace are on many nodes.
        for pod in 0..PODS_OF_A_NODE {
            for node in 0..NODES {
                self.tell(kind, Watched::Listed(&endpoint_text(node, pod)))?;
            }
        }
        self.tell(kind, Watched::ListEnds)
    }

    fn tell(&mut self, kind: ObjectKind, watched: Watched<'_>) -> Result<()> {
        for event in self.manifests.watched(kind, watched).events {
            self.ipcache.apply(&event)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        for source in [Source::Endpoints, Source::LocalEndpoints, Source::ApiServer] {
            self.ipcache.synced(source)?;
        }
        Ok(())
    }
}

/// Of this process, in bytes.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

#[test]
fn a_large_clusters_addresses_are_held_in_60_mib_and_are_there_again_two_seconds_after_a_restart()
-> Result<()> {
    let world = World::new(PodSizes::DEFAULT.ipcache)?;
    let tables = world.tables()?;
    let reach = nodes(NODES)?;
    let own = BTreeSet::from([node_address(0)]);
    let before = resident()?;
    let mut agent = Agent::new();
    agent.ipcache.attach(tables.clone())?;
    agent.ipcache.set_nodes(&reach, &own, true)?;
    agent.list()?;
    agent.sync()?;
    let held = resident()?.saturating_sub(before);
    let addresses = NODES * PODS_OF_A_NODE * 2;
    let wanted = tables.reader().ipcache()?;
    ensure!(wanted.len() > addresses as usize, "{} entries", wanted.len());
    println!(
        "{} entries: {} KiB, {} bytes an address",
        wanted.len(),
        held / 1024,
        held / u64::from(addresses)
    );
    ensure!(held <= 60 << 20, "{held} bytes for {addresses} addresses");
    drop(agent);

    let began = Instant::now();
    let mut again = Agent::new();
    again.ipcache.attach(tables.clone())?;
    let read = began.elapsed();
    again.list()?;
    again.ipcache.set_nodes(&reach, &own, true)?;
    again.sync()?;
    let took = began.elapsed();
    let status = again.ipcache.status();
    println!("rebuilt in {took:?}, of which {read:?} for what is there; {} written", status.upserts);
    ensure!((status.upserts, status.deletes, status.errors) == (0, 0, 0), "{status:?}");
    ensure!(tables.reader().ipcache()? == wanted);
    let began = Instant::now();
    ensure!(again.ipcache.compare(true)?.differences.is_empty());
    println!("compared in {:?}", began.elapsed());
    // A debug build takes twenty times as long, and the machine is shared then.
    ensure!(cfg!(debug_assertions) || took <= Duration::from_secs(2), "rebuilt in {took:?}");
    Ok(())
}

/// An agent is killed and begins anew, while pods have come, gone, moved and become others. A reader looks at every address
/// all the time.
#[test]
fn over_a_restart_no_address_has_another_identity_than_before_or_after() -> Result<()> {
    const FEW: u32 = 20;
    let world = World::new(65_536)?;
    let tables = world.tables()?;
    let (reach, own) = (nodes(FEW)?, BTreeSet::from([node_address(0)]));
    let told = |node: u32, pod: u32, identity: u32, uid: &str, created: i64| EndpointAddress {
        addr: pod_address(node, pod),
        identity: NumericIdentity::new(identity),
        node: Some(node_address(node)),
        uid: Uid::new(&format!("{node}-{pod}-{uid}")),
        created: Some(created),
    };
    let all = || (0..FEW).flat_map(|node| (0..PODS_OF_A_NODE).map(move |pod| (node, pod)));
    let upsert = |ipcache: &Ipcache, told: &EndpointAddress| ipcache.upsert(EndpointSource::Object, told);
    let sync = |ipcache: &Ipcache| -> Result<()> {
        for source in [Source::LocalEndpoints, Source::ApiServer, Source::Endpoints] {
            ipcache.synced(source)?;
        }
        Ok(())
    };
    let first = Ipcache::new(true, false);
    first.attach(tables.clone())?;
    first.set_nodes(&reach, &own, true)?;
    for (node, pod) in all() {
        upsert(&first, &told(node, pod, 300, "old", 1))?;
    }
    sync(&first)?;
    drop(first);

    let reader = tables.reader();
    let look = |end: &Ending| {
        let mut looks = 0;
        while !end.has_come() {
            for (node, pod) in all() {
                let found = reader.ipcache_of(pod_address(node, pod))?.context("no entry at all")?;
                let may_be: &[u32] = match pod % 4 {
                    // It stays as it is, though an older owner of its address is still told of.
                    0 => &[300],
                    // It became another one.
                    1 => &[300, 301],
                    // It went: then its address is nobody's, and never the world's.
                    2 => &[300, 0],
                    // Its address went to a pod that is newer.
                    _ => &[300, 302],
                };
                ensure!(may_be.contains(&found.identity.get()), "{node} {pod}: {found:?}");
                looks += 1;
            }
        }
        Ok(looks)
    };
    let restart = || {
        (0..10).try_for_each(|_| -> Result<()> {
            let again = Ipcache::new(true, false);
            again.attach(tables.clone())?;
            for (node, pod) in all() {
                match pod % 4 {
                    0 => {
                        upsert(&again, &told(node, pod, 309, "older", 0))?;
                        upsert(&again, &told(node, pod, 300, "old", 1))?;
                    }
                    1 => upsert(&again, &told(node, pod, 301, "old", 1))?,
                    2 => {}
                    _ => {
                        upsert(&again, &told(node, pod, 302, "new", 2))?;
                        upsert(&again, &told(node, pod, 300, "old", 1))?;
                    }
                }
            }
            again.set_nodes(&reach, &own, true)?;
            sync(&again)?;
            ensure!(again.status().outstanding == 0);
            // As it was before, for the next one; not as an agent does it.
            for (node, pod) in all() {
                let held = reader.ipcache_of(pod_address(node, pod))?.context("no entry at all")?;
                let value = IpcacheValue { identity: NumericIdentity::new(300), ..held };
                tables.change_ipcache((pod_address(node, pod), 128), Some(&value))?;
            }
            Ok(())
        })
    };
    let ((), looks) = meanwhile(restart, look)?;
    ensure!(looks > 10_000, "{looks} looks only");
    Ok(())
}

#[test]
fn what_a_full_map_refuses_is_told_and_written_when_there_is_room() -> Result<()> {
    let world = World::new(16)?;
    let tables = world.tables()?;
    let ipcache = Ipcache::new(true, false);
    ipcache.attach(tables.clone())?;
    ipcache.set_nodes(&nodes(2)?, &BTreeSet::new(), true)?;
    let room = 16 - tables.reader().ipcache()?.len() as u32;
    let told = |pod: u32| EndpointAddress {
        addr: pod_address(1, pod),
        identity: NumericIdentity::new(300 + pod),
        node: Some(node_address(1)),
        uid: Uid::new(&pod.to_string()),
        created: None,
    };
    for pod in 0..room {
        ipcache.upsert(EndpointSource::Object, &told(pod))?;
    }
    let error = ipcache.upsert(EndpointSource::Object, &told(room)).map_err(|error| error.to_string());
    ensure!(error == Err("pw_ipcache is full at 16 entries".to_owned()), "{error:?}");
    let status = ipcache.status();
    ensure!((status.full, status.outstanding) == (1, 1) && ipcache.is_behind(), "{status:?}");
    // Whoever tells of it again waits for it: that it is known already is no reason to go on.
    let again = ipcache.upsert(EndpointSource::Object, &told(room)).map_err(|error| error.to_string());
    ensure!(again == error, "{again:?}");
    ensure!(ipcache.retry().is_err() && ipcache.is_behind());
    ipcache.remove(EndpointSource::Object, told(0).addr, told(0).uid)?;
    ipcache.retry()?;
    ensure!(!ipcache.is_behind());
    let found = tables.reader().ipcache_of(told(room).addr)?.context("no entry")?;
    ensure!(found.identity == told(room).identity, "{found:?}");
    Ok(())
}

#[test]
fn what_somebody_else_changed_is_put_right() -> Result<()> {
    let world = World::new(256)?;
    let tables = world.tables()?;
    let ipcache = Ipcache::new(true, false);
    ipcache.attach(tables.clone())?;
    ipcache.set_nodes(&nodes(3)?, &BTreeSet::new(), true)?;
    ensure!(ipcache.compare(true)?.differences.is_empty());
    let whole: BTreeMap<_, _> = tables.reader().ipcache()?;
    let world_value = IpcacheValue::new(NumericIdentity::WORLD, None, 0);
    tables.change_ipcache((node_address(1), 128), Some(&world_value))?;
    tables.change_ipcache((node_address(2), 128), None)?;
    tables.change_ipcache((Addr::v4([10, 9, 9, 9]), 128), Some(&world_value))?;
    let seen = ipcache.compare(false)?.differences;
    ensure!(seen.len() == 3 && seen.iter().all(|difference| !difference.is_pending), "{seen:?}");
    ensure!(ipcache.compare(true)?.differences == seen, "looking alone changes nothing");
    ensure!(ipcache.compare(true)?.differences.is_empty());
    ensure!(tables.reader().ipcache()? == whole && ipcache.status().healed == 3);
    Ok(())
}
