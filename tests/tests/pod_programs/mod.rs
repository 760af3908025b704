//! A node whose maps the test writes itself, with the packet programs at the links of its pods: no agent, no plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result};
use portway_agent::maps::{KernelTables, PodTables};
use portway_agent::programs::{InterfacePrograms, Side};
use portway_datapath::layout::{PodSizes, Sizes};
use portway_datapath::{
    Addr, BackendIndex, BackendSlot, Direction, EndpointValue, FlowKey, FlowMap, FlowValue, FrontendKey,
    FrontendKind, FrontendValue, Membership, NodeNetwork, Port, Protocol, Reason, RunBackend, RunHeader,
    RunOffset, ServiceIndex, ServiceWord, Traffic,
};
use portway_model::tables::{TableOp, TableWriter as _};
use portway_tests::harness::frame::Mac;
use portway_tests::harness::mount::BpfMount;
use portway_tests::harness::wire::Wire;
use portway_tests::harness::{Namespace, Probe, Server, process};

/// What pods that reach themselves by a service see.
pub(crate) const HAIRPIN_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 42, 1);
pub(crate) const HAIRPIN_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 1);

pub(crate) const PORT: u16 = 8080;

const SIZES: Sizes = Sizes {
    frontends: 64,
    services: 32,
    runs: 1024,
    backends: 128,
    maglev: 1,
    affinity: 64,
    source_ranges: 16,
    local_addresses: 16,
    sockets: 64,
    exchanges: 64,
};

pub(crate) const POD_SIZES: PodSizes = PodSizes {
    endpoints: 64,
    ipcache: 64,
    conntrack: 256,
    conntrack_new: 1024,
    nat: 64,
    nat_new: 64,
    fragments: 64,
    devices: 16,
};

/// A pod and its link.
pub(crate) struct Pod {
    pub(crate) namespace: Namespace,
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
    pub(crate) mac: Mac,
    pub(crate) node_mac: Mac,
    _server: Server,
}

impl Pod {
    /// Its addresses, at the port that it serves.
    pub(crate) fn sockets(&self) -> [SocketAddr; 2] {
        [(self.v4, PORT).into(), (self.v6, PORT).into()]
    }

    pub(crate) fn v4_addr(&self) -> Addr {
        IpAddr::V4(self.v4).into()
    }

    pub(crate) fn client(&self) -> Result<Probe> {
        Probe::start(&self.namespace, None)
    }

    pub(crate) fn wire(&self) -> Result<Wire> {
        Wire::open(&self.namespace, "eth0")
    }
}

/// The node. Make it on the test's own thread.
pub(crate) struct Node {
    pub(crate) namespace: Namespace,
    pub(crate) tables: PodTables,
    services: KernelTables,
    frontends: BTreeSet<FrontendKey>,
    programs: InterfacePrograms,
    next_run: u32,
    next_backend: u32,
    next_pod: u8,
    bpf: BpfMount,
    _dir: tempfile::TempDir,
}

impl Node {
    pub(crate) fn new() -> Result<Self> {
        let dir = tempfile::tempdir().context("make a directory")?;
        let bpf = BpfMount::new(dir.path())?;
        let (services, _) = KernelTables::open(bpf.path(), &SIZES)?;
        let (tables, _) = PodTables::open(bpf.path(), &POD_SIZES)?;
        let network = NodeNetwork {
            switches: NodeNetwork::SERVICES | NodeNetwork::VERIFY_SOURCE | NodeNetwork::OWN_LINKS,
            tunnel: 0,
            nat_ports: 0,
            tcp_timeouts: 0,
            other_timeouts: 0,
            service_timeouts: 0,
            hairpin_v4: IpAddr::V4(HAIRPIN_V4).into(),
            hairpin_v6: IpAddr::V6(HAIRPIN_V6).into(),
        };
        tables.set_network(&network)?;
        let programs = InterfacePrograms::load(bpf.path())?;
        let namespace = Namespace::new("node")?;
        for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            namespace.sysctl(key, "1")?;
        }
        let (next_run, next_backend, next_pod) = (1, 1, 1);
        let _dir = dir;
        Ok(Self {
            namespace,
            tables,
            services,
            frontends: BTreeSet::new(),
            programs,
            next_run,
            next_backend,
            next_pod,
            bpf,
            _dir,
        })
    }

    /// A pod that answers TCP and UDP on [`PORT`], linked as the plugin links pods.
    pub(crate) fn pod(&mut self, name: &str) -> Result<Pod> {
        let n = self.next_pod;
        self.next_pod += 1;
        let (v4, v6) = (Ipv4Addr::new(10, 1, 0, n), Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, n.into()));
        let namespace = Namespace::new(name)?;
        let link = format!("pw{name}");
        self.namespace.add_veth(&link, &namespace, "eth0")?;
        let (node_end, pod_end) = (Wire::open(&self.namespace, &link)?, Wire::open(&namespace, "eth0")?);
        let (mac, node_mac) = (pod_end.mac(), node_end.mac());
        let text = |mac: Mac| mac.map(|byte| format!("{byte:02x}")).join(":");
        for (inside, lines) in [
            (
                &namespace,
                format!(
                    "addr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\n\
                     neigh add 169.254.1.1 lladdr {0} dev eth0 nud permanent\n\
                     neigh add fe80::1 lladdr {0} dev eth0 nud permanent\n\
                     route add default via 169.254.1.1 dev eth0 onlink\n\
                     route add default via fe80::1 dev eth0 onlink\n",
                    text(node_mac)
                ),
            ),
            (
                &self.namespace,
                format!(
                    "route add {v4}/32 dev {link} scope link\nroute add {v6}/128 dev {link}\n\
                     neigh add {v4} lladdr {0} dev {link} nud permanent\n\
                     neigh add {v6} lladdr {0} dev {link} nud permanent\n",
                    text(mac)
                ),
            ),
        ] {
            for line in lines.lines() {
                let arguments: Vec<&str> = line.split_whitespace().collect();
                let v6 = if line.contains("::") || line.contains("fd00") { "-6" } else { "-4" };
                process::output(inside.command("ip").arg(v6).args(arguments))?;
            }
        }
        let ifindex = self.namespace.run(|| {
            let ifindex = nix::net::if_::if_nametoindex(link.as_str())?;
            self.programs.attach(ifindex, &link, Side::Pod)?;
            Ok(ifindex)
        })?;
        let value = EndpointValue { ifindex, id: n.into(), flags: 0, mac, node_mac };
        for addr in [IpAddr::V4(v4), v6.into()] {
            self.tables.set_endpoint(addr.into(), value)?;
        }
        let _server = Server::start(&namespace, name, PORT)?;
        Ok(Pod { namespace, v4, v6, mac, node_mac, _server })
    }

    /// Lets a pod's link settle; with a filter behind the program's link, as an agent leaves it that ends before the filter goes.
    pub(crate) fn settle_beside_a_filter(&self, pod: &str) -> Result<()> {
        let link = format!("pw{pod}");
        self.namespace.run(|| {
            let ifindex = nix::net::if_::if_nametoindex(link.as_str())?;
            anyhow::ensure!(self.programs.settle(ifindex, &link)?, "{link} had settled");
            InterfacePrograms::load_for_filters(self.bpf.path())?.attach(ifindex, &link, Side::Pod)?;
            Ok(())
        })
    }

    /// A service of both protocols at `frontend` with these backends.
    pub(crate) fn service(
        &mut self,
        index: u32,
        frontend: SocketAddr,
        backends: &[SocketAddr],
    ) -> Result<()> {
        let service = ServiceIndex::new(index);
        let header = RunHeader { cluster_len: u32::try_from(backends.len())?, ..RunHeader::default() };
        let mut records = header.records().to_vec();
        for backend in backends {
            let (addr, port) = (Addr::from(backend.ip()), Port::new(backend.port()));
            let index = BackendIndex::new(self.next_backend);
            self.next_backend += 1;
            let slot = BackendSlot::new(index.get(), Membership::Cluster.bit(), service, addr, port);
            self.services.write(&TableOp::WriteBackend { index, slot })?;
            records.push(RunBackend { addr, port, index }.record());
        }
        let at = RunOffset::new(self.next_run);
        self.next_run += u32::try_from(records.len())?;
        self.services.write(&TableOp::WriteRun { at, records })?;
        self.services.write(&TableOp::Publish { service, word: ServiceWord::new(at, self.next_run) })?;
        for protocol in [Protocol::TCP, Protocol::UDP] {
            let key = FrontendKey::new(frontend.ip().into(), Port::new(frontend.port()), protocol);
            let value = FrontendValue::new(&key, FrontendKind::ClusterIp, service);
            // A second version of a service keeps its frontend.
            if self.frontends.insert(key) {
                self.services.write(&TableOp::InsertFrontend { key, value })?;
            }
        }
        Ok(())
    }

    /// Packets counted for a reason, both directions.
    pub(crate) fn counted(&self, reason: Reason) -> Result<u64> {
        let traffic: BTreeMap<(Reason, Direction), Traffic> = self.tables.reader().traffic()?;
        Ok(traffic.iter().filter(|((of, _), _)| *of == reason).map(|(_, traffic)| traffic.packets).sum())
    }

    /// The entries of flows whose local end is `local`.
    pub(crate) fn flows(&self, local: IpAddr) -> Result<Vec<(FlowMap, FlowKey, FlowValue)>> {
        let mut flows = Vec::new();
        for map in [FlowMap::Established, FlowMap::New] {
            self.tables.reader().for_each_flow(map, |key, value| {
                if key.local == local.into() {
                    flows.push((map, *key, *value));
                }
            })?;
        }
        Ok(flows)
    }
}
