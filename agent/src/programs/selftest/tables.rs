//! What the maps of the self-test hold: one service without backends.

use std::net::IpAddr;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapError};
use portway_datapath::layout::{self, Sizes};
use portway_datapath::{
    Addr, FrontendKey, FrontendKind, FrontendValue, NodeConfig, Port, Protocol, Record, RunHeader, RunOffset,
    ServiceIndex, ServiceWord, Settings,
};

use super::check::{FREE_PORT, NODE_PORT, VIP_PORT, VIP_V4, VIP_V6};

/// Room for it.
pub(super) const SIZES: Sizes = Sizes {
    frontends: 16,
    services: 2,
    runs: 8,
    backends: 1,
    maglev: 1,
    affinity: 16,
    source_ranges: 1,
    local_addresses: 1,
    sockets: 16,
    exchanges: 16,
};

/// `netns`: the cookie of the namespace that stands for the node's.
pub(super) fn fill(ebpf: &mut Ebpf, netns: u64) -> Result<(), MapError> {
    let service = ServiceIndex::new(1);
    let run = RunOffset::new(1);
    let mut runs: Array<_, Record> = map(ebpf, layout::RUNS)?.try_into()?;
    for (n, record) in RunHeader::default().records().into_iter().enumerate() {
        runs.set(run.plus(n as u32).get(), record, 0)?;
    }
    let mut services: Array<_, u64> = map(ebpf, layout::SERVICES)?.try_into()?;
    services.set(service.get(), ServiceWord::new(run, 1).word(), 0)?;
    let mut frontends: HashMap<_, FrontendKey, u64> = map(ebpf, layout::FRONTENDS)?.try_into()?;
    for protocol in [Protocol::TCP, Protocol::UDP] {
        for (addr, port, kind) in [
            (Addr::from(IpAddr::from(VIP_V4)), VIP_PORT, FrontendKind::ClusterIp),
            (Addr::from(IpAddr::from(VIP_V6)), VIP_PORT, FrontendKind::ClusterIp),
            (Addr::ANY_V4, NODE_PORT, FrontendKind::NodePort),
            (Addr::ANY_V6, NODE_PORT, FrontendKind::NodePort),
        ] {
            let key = FrontendKey::new(addr, Port::new(port), protocol);
            frontends.insert(key, FrontendValue::new(&key, kind, service).word(), 0)?;
        }
    }
    let settings = Settings::new().protect_node_ports(NODE_PORT, FREE_PORT).word();
    let mut config: Array<_, NodeConfig> = map(ebpf, layout::CONFIG)?.try_into()?;
    config.set(0, NodeConfig { host_netns: netns, settings }, 0)
}

fn map<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Map, MapError> {
    ebpf.map_mut(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })
}
