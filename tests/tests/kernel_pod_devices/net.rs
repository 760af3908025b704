//! Nodes with their maps filled by hand: the programs and nothing else of the agent.
//!
//! ```text
//!  pods ── node 1 ──┐
//!                   ├── lan (172.30.0.0/24) ── router ── world (198.51.100.0/24)
//!  pods ── node 2 ──┘
//! ```
//!
//! The world has no way back to a pod unless a test gives it one.

use std::collections::BTreeMap;
use std::io::{BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::net::if_::if_nametoindex;
use portway_agent::maps::{KernelTables, PodTables};
use portway_agent::programs::{InterfacePrograms, Side};
use portway_datapath::layout::{PodSizes, Sizes};
use portway_datapath::nat::NatPorts;
use portway_datapath::{
    Addr, DeviceValue, Direction, EndpointId, EndpointValue, IpcacheValue, LocalAddress, NodeNetwork,
    NumericIdentity, Reason,
};
use portway_tests::harness::mount::BpfMount;
use portway_tests::harness::{Namespace, PREFIX};
use tempfile::TempDir;

pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
pub(crate) const TUNNEL_PORT: u16 = 8472;
/// Where servers listen.
pub(crate) const PORT: u16 = 8080;
/// [`NodeNetwork::nat_ports`].
pub(crate) const NAT_PORTS: NatPorts = NatPorts::new(32_768, 65_535);

/// Both families of an address that ends with `last`.
pub(crate) type Pair = [IpAddr; 2];

pub(crate) fn lan(last: u8) -> Pair {
    pair(&format!("172.30.0.{last}"), &format!("fd30::{last}"))
}

pub(crate) fn world(last: u8) -> Pair {
    pair(&format!("198.51.100.{last}"), &format!("2001:db8:100::{last}"))
}

fn pair(v4: &str, v6: &str) -> Pair {
    [v4, v6].map(|text| text.parse().expect("an address"))
}

pub(crate) struct Net {
    pub(crate) router: Namespace,
    pub(crate) world: Namespace,
    // Nodes hold maps and programs; the mount goes after them.
    pub(crate) nodes: Vec<Node>,
    _mount: BpfMount,
    _dir: TempDir,
}

pub(crate) struct Node {
    pub(crate) number: u8,
    pub(crate) namespace: Namespace,
    pub(crate) pods: Vec<Pod>,
    pub(crate) tables: PodTables,
    /// The maps of services, which no test here fills.
    _services: KernelTables,
    programs: Option<InterfacePrograms>,
    /// Devices have filters, as where the kernel has no tcx.
    filters: bool,
    pub(crate) ipcache: BTreeMap<(Addr, u8), IpcacheValue>,
    root: std::path::PathBuf,
    tunnel: bool,
}

pub(crate) struct Pod {
    pub(crate) namespace: Namespace,
    pub(crate) addresses: Pair,
    /// The MAC of the node's end.
    pub(crate) gateway: [u8; 6],
}

impl Net {
    pub(crate) fn new(name: &str, nodes: u8, sizes: PodSizes) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-{name}-", std::process::id()))
            .tempdir()
            .context("make a directory")?;
        let mount = BpfMount::new(dir.path())?;
        let (router, world_namespace) = (Namespace::new("router")?, Namespace::new("world")?);
        forward(&router)?;
        router.add_bridge("lan")?;
        router.set_up("lan")?;
        router.add_veth("gate", &world_namespace, "eth0")?;
        for (namespace, link, addresses) in
            [(&router, "lan", lan(254)), (&router, "gate", world(254)), (&world_namespace, "eth0", world(2))]
        {
            add_addresses(namespace, link, addresses)?;
        }
        for gateway in world(254) {
            world_namespace.add_default_route(gateway)?;
        }
        let mut net = Self { router, world: world_namespace, nodes: Vec::new(), _mount: mount, _dir: dir };
        for number in 1..=nodes {
            let root = net._dir.path().join(number.to_string());
            net.nodes.push(Node::join(&net.router, number, &root, sizes)?);
        }
        Ok(net)
    }

    /// Masquerading, without a tunnel.
    pub(crate) fn masquerading(name: &str, sizes: PodSizes) -> Result<Self> {
        let mut net = Self::new(name, 1, sizes)?;
        net.nodes[0].start()?;
        Ok(net)
    }

    /// Two nodes with a tunnel between them.
    pub(crate) fn tunnel(name: &str) -> Result<Self> {
        Self::tunnel_with(name, false)
    }

    /// The same, by `filters` or by tcx.
    pub(crate) fn tunnel_with(name: &str, filters: bool) -> Result<Self> {
        let mut net = Self::new(name, 2, PodSizes::DEFAULT_FOR_TESTS)?;
        for at in 0..2 {
            let other = net.nodes[1 - at].number;
            let node = &mut net.nodes[at];
            node.make_tunnel(other)?;
            node.filters = filters;
            node.start()?;
        }
        Ok(net)
    }

    /// Where traffic of the world to pods of the first node goes.
    pub(crate) fn route_to_pods(&self) -> Result<()> {
        let [v4, v6] = lan(1);
        ip(&self.router, &format!("route add 10.9.1.0/24 via {v4}"))?;
        ip(&self.router, &format!("-6 route add fd09:1::/64 via {v6}"))
    }
}

/// Of the maps of services.
pub(crate) const SERVICES: Sizes = Sizes {
    frontends: 16,
    services: 16,
    runs: 64,
    backends: 16,
    maglev: 1,
    affinity: 16,
    source_ranges: 16,
    local_addresses: 16,
    sockets: 16,
    exchanges: 16,
};

/// Small maps, as far as a test does not care.
pub(crate) trait Small {
    const DEFAULT_FOR_TESTS: Self;
}

impl Small for PodSizes {
    const DEFAULT_FOR_TESTS: Self = Self {
        endpoints: 64,
        ipcache: 64,
        conntrack: 4_096,
        conntrack_new: 4_096,
        nat: 4_096,
        nat_new: 4_096,
        fragments: 256,
        devices: 16,
    };
}

impl Node {
    fn join(router: &Namespace, number: u8, root: &Path, sizes: PodSizes) -> Result<Self> {
        let namespace = Namespace::new("node")?;
        forward(&namespace)?;
        router.add_veth(&format!("node{number}"), &namespace, "eth0")?;
        router.enslave(&format!("node{number}"), "lan")?;
        add_addresses(&namespace, "eth0", lan(number))?;
        for gateway in lan(254) {
            namespace.add_default_route(gateway)?;
        }
        std::fs::create_dir(root).with_context(|| format!("make {}", root.display()))?;
        let (mut services, _) = KernelTables::open(root, &SERVICES)?;
        services.set_local_addresses(
            &lan(number).map(|addr| (Addr::from(addr), LocalAddress::new(false))).into_iter().collect(),
        )?;
        let (tables, _) = PodTables::open(root, &sizes)?;
        let mut node = Self {
            number,
            namespace,
            pods: Vec::new(),
            tables,
            _services: services,
            programs: None,
            filters: false,
            ipcache: BTreeMap::new(),
            root: root.to_owned(),
            tunnel: false,
        };
        for last in 1..=2 {
            node.add_pod(last)?;
        }
        let inside = IpcacheValue::new(NumericIdentity::UNKNOWN, None, IpcacheValue::INSIDE);
        node.ipcache.insert((Addr::v4([10, 9, 0, 0]), 96 + 16), inside);
        let [_, v6] = pair("10.9.0.0", "fd09::");
        node.ipcache.insert((v6.into(), 16), inside);
        Ok(node)
    }

    fn add_pod(&mut self, last: u8) -> Result<()> {
        let number = self.number;
        let namespace = Namespace::new("pod")?;
        let addresses = pair(&format!("10.9.{number}.{last}"), &format!("fd09:{number}::{last}"));
        let link = format!("pw{last}");
        self.namespace.add_veth(&link, &namespace, "eth0")?;
        let (mac, node_mac) = ([2, 0, 0, number, 1, last], [2, 0, 0, number, 2, last]);
        ip(&namespace, &format!("link set eth0 address {}", text(mac)))?;
        ip(&self.namespace, &format!("link set {link} address {}", text(node_mac)))?;
        for (address, gateway, bits, family) in
            [(addresses[0], "169.254.1.1", 32, "-4"), (addresses[1], "fe80::1", 128, "-6")]
        {
            namespace.add_address("eth0", address, bits)?;
            let node_mac = text(node_mac);
            ip(&namespace, &format!("neigh replace {gateway} lladdr {node_mac} dev eth0 nud permanent"))?;
            ip(&namespace, &format!("{family} route add default via {gateway} dev eth0 onlink"))?;
            ip(&self.namespace, &format!("{family} route add {address}/{bits} dev {link}"))?;
            let mac = text(mac);
            ip(&self.namespace, &format!("neigh replace {address} lladdr {mac} dev {link} nud permanent"))?;
        }
        let ifindex = index(&self.namespace, &link)?;
        for address in addresses {
            let id = EndpointId::FIRST.get() + u16::from(last);
            let value = EndpointValue { ifindex, id, flags: 0, mac, node_mac };
            self.tables.set_endpoint(address.into(), value)?;
        }
        self.pods.push(Pod { namespace, addresses, gateway: node_mac });
        Ok(())
    }

    /// The device and what the other node, `other`, is reached by.
    fn make_tunnel(&mut self, other: u8) -> Result<()> {
        ip(
            &self.namespace,
            &format!("link add pw_vxlan type vxlan external dstport {TUNNEL_PORT} nolearning"),
        )?;
        ip(
            &self.namespace,
            &format!("link set pw_vxlan address {} arp off mtu 1450 up", text(NodeNetwork::TUNNEL_MAC)),
        )?;
        let behind = Addr::from(lan(other)[0]);
        let pods = IpcacheValue::new(
            NumericIdentity::UNKNOWN,
            Some(behind),
            IpcacheValue::INSIDE | IpcacheValue::PODS,
        );
        let node = IpcacheValue::new(
            NumericIdentity::UNKNOWN,
            Some(behind),
            IpcacheValue::INSIDE | IpcacheValue::NODE,
        );
        let [v4, v6] = pair(&format!("10.9.{other}.0"), &format!("fd09:{other}::"));
        self.ipcache.extend([((v4.into(), 96 + 24), pods), ((v6.into(), 64), pods)]);
        let [v4, v6] = lan(other);
        self.ipcache.extend([((v4.into(), 128), node), ((v6.into(), 128), node)]);
        self.tunnel = true;
        Ok(())
    }

    /// Fills the maps and attaches the programs.
    fn start(&mut self) -> Result<()> {
        self.publish()?;
        let load = if self.filters { InterfacePrograms::load_for_filters } else { InterfacePrograms::load };
        let programs = load(&self.root)?;
        self.namespace.run(|| {
            for last in 1..=self.pods.len() {
                let link = format!("pw{last}");
                programs.attach(if_nametoindex(link.as_str())?, &link, Side::Pod)?;
            }
            programs.attach(if_nametoindex("eth0")?, "eth0", Side::Device)?;
            if self.tunnel {
                programs.attach(if_nametoindex("pw_vxlan")?, "pw_vxlan", Side::Tunnel)?;
            }
            Ok(())
        })?;
        self.programs = Some(programs);
        Ok(())
    }

    pub(crate) fn publish(&mut self) -> Result<()> {
        let held = self.tables.reader().ipcache()?;
        for prefix in held.keys().filter(|prefix| !self.ipcache.contains_key(prefix)) {
            self.tables.change_ipcache(*prefix, None)?;
        }
        for (prefix, value) in &self.ipcache {
            self.tables.change_ipcache(*prefix, Some(value))?;
        }
        self.publish_devices()?;
        let tunnel = if self.tunnel {
            u64::from(index(&self.namespace, "pw_vxlan")?) | u64::from(TUNNEL_PORT) << 32
        } else {
            0
        };
        let masquerade = NodeNetwork::MASQUERADE_V4 | NodeNetwork::MASQUERADE_V6;
        let tunnel_switch = if self.tunnel { NodeNetwork::TUNNEL } else { 0 };
        self.tables.set_network(&NodeNetwork {
            switches: masquerade | tunnel_switch | NodeNetwork::VERIFY_SOURCE,
            tunnel,
            nat_ports: NAT_PORTS.word(),
            tcp_timeouts: 3_600 | 60 << 32,
            other_timeouts: 10 | 60 << 32,
            service_timeouts: 3_600 | 60 << 32,
            hairpin_v4: Addr::v4([169, 254, 1, 2]),
            hairpin_v6: Addr::ANY_V6,
        })?;
        Ok(())
    }

    pub(crate) fn publish_devices(&self) -> Result<()> {
        let [v4, v6] = lan(self.number).map(Addr::from);
        let device = DeviceValue { v4, v6 };
        self.tables.set_devices(&BTreeMap::from([(index(&self.namespace, "eth0")?, device)]))?;
        Ok(())
    }

    /// Packets that were dropped, or forwarded, for a reason.
    pub(crate) fn counted(&self, reason: Reason, direction: Direction) -> Result<u64> {
        let traffic = self.tables.reader().traffic()?;
        Ok(traffic.get(&(reason, direction)).map_or(0, |traffic| traffic.packets))
    }

    pub(crate) fn addresses(&self) -> Pair {
        lan(self.number)
    }
}

/// What a server of the harness says to a TCP client of `from`: whom it sees.
pub(crate) fn seen_by_tcp(from: &Namespace, server: SocketAddr) -> Result<SocketAddr> {
    from.run(|| {
        let mut stream =
            TcpStream::connect_timeout(&server, PATIENCE).with_context(|| format!("connect to {server}"))?;
        ensure!(stream.peer_addr()? == server, "connected to {} instead of {server}", stream.peer_addr()?);
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let first = line(&mut reader)?;
        stream.write_all(b"again\n")?;
        let second = line(&mut reader)?;
        ensure!(first == second, "first {first:?}, then {second:?}");
        client_in(&first)
    })
}

/// The same of a datagram from `socket`.
pub(crate) fn seen_by_udp(socket: &UdpSocket, server: SocketAddr, bytes: usize) -> Result<SocketAddr> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(&vec![b'x'; bytes], server).with_context(|| format!("send to {server}"))?;
    let mut answer = vec![0; 65_536];
    let (len, from) = socket.recv_from(&mut answer).with_context(|| format!("hear {server}"))?;
    ensure!(from == server, "an answer of {from} instead of {server}");
    client_in(std::str::from_utf8(&answer[..len])?)
}

pub(crate) fn udp_socket(namespace: &Namespace, addr: IpAddr, port: u16) -> Result<UdpSocket> {
    namespace.run(|| UdpSocket::bind((addr, port)).with_context(|| format!("bind {addr} port {port}")))
}

fn line(reader: &mut impl std::io::BufRead) -> Result<String> {
    let mut text = String::new();
    reader.read_line(&mut text).context("hear the server")?;
    Ok(text)
}

/// The address in `<name> <client address>`.
fn client_in(answer: &str) -> Result<SocketAddr> {
    let client = answer.split_whitespace().nth(1).with_context(|| format!("an answer of {answer:?}"))?;
    client.parse().with_context(|| format!("the client in {answer:?}"))
}

fn index(namespace: &Namespace, link: &str) -> Result<u32> {
    namespace.run(|| if_nametoindex(link).with_context(|| format!("find {link}")))
}

fn forward(namespace: &Namespace) -> Result<()> {
    for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        namespace.sysctl(key, "1")?;
    }
    Ok(())
}

fn add_addresses(namespace: &Namespace, link: &str, [v4, v6]: Pair) -> Result<()> {
    namespace.add_address(link, v4, 24)?;
    namespace.add_address(link, v6, 64)
}

/// ip(8) inside a namespace of the test's.
pub(crate) fn ip(namespace: &Namespace, arguments: &str) -> Result<()> {
    let output = namespace.command("ip").args(arguments.split_whitespace()).output().context("run ip")?;
    ensure!(
        output.status.success(),
        "ip {arguments} in {}: {}",
        namespace.name(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
