//! A real cluster: what `kubectl get svc,endpointslices,pods,nodes -A -o yaml` printed on an API server 1.37
//! (`tests/real-input/make.sh`), unedited, as the agent's directory. HTTP and DNS clients reach every frontend.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use portway_model::tables::Row;
use portway_tests::comparison::{difference, expected_rows};
use portway_tests::harness::agent::Places;
use portway_tests::harness::backends;
use portway_tests::harness::probe::{Outcome, Protocol, Resolver};
use portway_tests::harness::{Agent, Backends, Errno, Namespace, Probe, World, process};
use portway_tests::oracle::{Objects, OracleConfig, oracle};
use serde::de::DeserializeOwned;
use serde_json::Value;

const FILE: &str = "cluster.yaml";
const CLUSTER: &str = include_str!("../real-input/cluster.yaml");
const NODE: &str = "node-a";
/// The addresses of that node in the file.
const NODE_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 11)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 0x11))];
/// The address of `infra/lb-proxy-mode`: with `ipMode: Proxy` the load balancer itself answers.
const LOAD_BALANCER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 14)), 80);
/// A set of three that is chosen from by chance is seen whole after 5.5 tries; after 200, one in 10^34 is not.
const TRIES: u32 = 200;

/// Kind, name and field of each object that is refused, and why it must be.
const EXPLAINED: [(&str, &str, &str, &str); 1] = [(
    "EndpointSlice",
    "batch/by-name-fqdn",
    "addressType",
    "it holds DNS names (FQDN), which kube-proxy does not serve either",
)];

fn explained() -> BTreeSet<[String; 3]> {
    EXPLAINED.iter().map(|&(kind, name, field, _why)| [kind, name, field].map(str::to_owned)).collect()
}

/// What `portway plan` says.
struct Plan {
    rows: Vec<Row>,
    /// Kind, name and field.
    rejects: BTreeSet<[String; 3]>,
}

impl Plan {
    fn of(directory: &Path) -> Result<Self> {
        let mut command = Command::new(process::binary("portway")?);
        command.arg("plan").arg("--source-dir").arg(directory).args(["--node", NODE, "-o", "json"]);
        let output = command.output().context("run portway plan")?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "portway plan: {}\n{stderr}", output.status);
        let reject = |line: &str| {
            let json: Value =
                serde_json::from_str(line).with_context(|| format!("standard error: {line:?}"))?;
            let text = |field: &str| {
                json[field].as_str().map(str::to_owned).with_context(|| format!("{field}: {line}"))
            };
            Ok([text("kind")?, text("name")?, text("field")?])
        };
        let rejects = stderr.lines().map(reject).collect::<Result<_>>()?;
        Ok(Self { rows: serde_json::from_slice(&output.stdout)?, rejects })
    }

    fn backends(&self) -> Result<BTreeSet<(Protocol, SocketAddr)>> {
        let mut all = BTreeSet::new();
        for row in &self.rows {
            let Some(protocol) = protocol(row) else { continue };
            for backend in row.backends.cluster.iter().chain(&row.backends.local) {
                all.insert((protocol, backend.parse()?));
            }
        }
        Ok(all)
    }
}

/// `None` for SCTP, which is listed and not served by a socket hook.
fn protocol(row: &Row) -> Option<Protocol> {
    match row.protocol.as_str() {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        _ => None,
    }
}

/// Read by another parser into the API's own types.
fn objects() -> Result<Objects> {
    let list: Value = serde_yaml_ng::from_str(CLUSTER)?;
    let mut objects = Objects::default();
    for item in list["items"].as_array().context("no items")? {
        match item["kind"].as_str() {
            Some("Service") => objects.services.push(typed(item)?),
            Some("EndpointSlice") => objects.slices.push(typed(item)?),
            Some("Pod") => objects.pods.push(typed(item)?),
            Some("Node") => objects.nodes.push(typed(item)?),
            kind => bail!("the kind {kind:?}"),
        }
    }
    Ok(objects)
}

fn typed<T: DeserializeOwned>(item: &Value) -> Result<T> {
    serde_json::from_value(item.clone()).with_context(|| item.to_string())
}

/// A DNS client asks where the port is one for DNS, an HTTP client everywhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Http,
    DnsOverTcp,
    DnsConnected,
    DnsUnconnected,
}

impl Question {
    fn for_row(row: &Row) -> &'static [Self] {
        match protocol(row) {
            Some(Protocol::Tcp) if row.port_name.starts_with("dns") => &[Self::DnsOverTcp],
            Some(Protocol::Tcp) => &[Self::Http],
            Some(Protocol::Udp) => &[Self::DnsConnected, Self::DnsUnconnected],
            None => &[],
        }
    }
}

/// What a client on the node must get.
enum Expected {
    OneOf(BTreeSet<String>),
    /// `ECONNREFUSED`: there is no backend.
    Refused,
    /// The answer of whoever has the address: a service may not take over an address that is not the cluster's.
    ItsOwner,
}

impl Expected {
    fn of(row: &Row) -> Result<Self> {
        if row.kind == "ExternalIPs" && !NODE_ADDRESSES.contains(&row.address.parse()?) {
            return Ok(Self::ItsOwner);
        }
        // The external policy is for clients from outside: kube-proxy's short circuit.
        let is_local = row.kind == "ClusterIP" && row.flags.iter().any(|flag| flag == "iTP=Local");
        let set = if is_local { &row.backends.local } else { &row.backends.cluster };
        Ok(if set.is_empty() { Self::Refused } else { Self::OneOf(set.iter().cloned().collect()) })
    }
}

struct Client {
    name: &'static str,
    probe: Probe,
    /// It is in the node's own namespace, so NodePorts answer on loopback too.
    is_on_node: bool,
    asked: BTreeMap<Question, u32>,
    /// Addresses and ports that were asked.
    reached: BTreeSet<(String, SocketAddr)>,
}

impl Client {
    fn new(name: &'static str, world: &World, namespace: &Namespace) -> Result<Self> {
        let probe = Probe::start(namespace, Some(world.cgroup().path()))?;
        let is_on_node = namespace.cookie()? == world.node().cookie()?;
        Ok(Self { name, probe, is_on_node, asked: BTreeMap::new(), reached: BTreeSet::new() })
    }

    fn ask(&mut self, question: Question, to: SocketAddr) -> Result<Outcome> {
        *self.asked.entry(question).or_default() += 1;
        match question {
            Question::Http => self.probe.http(to),
            Question::DnsOverTcp => self.probe.dns(Resolver::Tcp, to),
            Question::DnsConnected => self.probe.dns(Resolver::ConnectedUdp, to),
            Question::DnsUnconnected => self.probe.dns(Resolver::Udp, to),
        }
    }

    /// The name of the one that answers; whatever happens underneath, it seems to be `to`.
    fn answerer(&mut self, question: Question, to: SocketAddr) -> Result<String> {
        let answer = self.ask(question, to)?.map_err(|errno| anyhow!("{errno}"))?;
        ensure!(answer.peer == to, "the answer comes from {}", answer.peer);
        Ok(answer.name)
    }

    fn addresses(&self, row: &Row) -> Result<Vec<IpAddr>> {
        let address: IpAddr = row.address.parse()?;
        if !address.is_unspecified() {
            return Ok(vec![address]);
        }
        let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let own = loopback.iter().filter(|_| self.is_on_node).chain(&NODE_ADDRESSES);
        Ok(own.copied().filter(|own| own.is_ipv4() == address.is_ipv4()).collect())
    }

    fn check(&mut self, row: &Row) -> Result<()> {
        let expected = Expected::of(row)?;
        for address in self.addresses(row)? {
            let to = SocketAddr::new(address, row.port);
            for &question in Question::for_row(row) {
                self.check_at(row, &expected, question, to).with_context(|| {
                    format!("{} asks {to} ({question:?}): {}", self.name, serde_json::json!(row))
                })?;
                self.reached.insert((row.protocol.clone(), to));
            }
        }
        Ok(())
    }

    fn check_at(&mut self, row: &Row, expected: &Expected, question: Question, to: SocketAddr) -> Result<()> {
        match expected {
            Expected::OneOf(backends) if row.affinity_seconds > 0 => {
                let seen = (0..8).map(|_| self.answerer(question, to)).collect::<Result<BTreeSet<_>>>()?;
                ensure!(seen.len() == 1 && seen.is_subset(backends), "{seen:?} answer");
            }
            Expected::OneOf(backends) => {
                let mut seen = BTreeSet::new();
                for _ in 0..TRIES {
                    seen.insert(self.answerer(question, to)?);
                    ensure!(seen.is_subset(backends), "{seen:?} answer");
                    if seen == *backends {
                        return Ok(());
                    }
                }
                bail!("after {TRIES} tries only {seen:?} have answered");
            }
            Expected::Refused => {
                let outcome = self.ask(question, to)?;
                ensure!(outcome == Err(Errno::ECONNREFUSED), "{outcome:?}");
            }
            Expected::ItsOwner => {
                let owner = self.answerer(question, to)?;
                ensure!(owner == to.to_string(), "{owner} answers");
            }
        }
        Ok(())
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked: u32 = self.asked.values().sum();
        write!(f, "{}: {asked} connections and queries to {} addresses", self.name, self.reached.len())?;
        write!(f, " {:?}", self.asked)
    }
}

/// Pods of the cluster on the node's links.
struct Network {
    /// A pod for clients.
    pod: Namespace,
    _servers: [Backends; 2],
}

impl Network {
    /// One namespace has all addresses of the backends but the node's own, and those of `outsiders`.
    fn new(world: &World, plan: &Plan, outsiders: &[SocketAddr]) -> Result<Self> {
        let node = world.node();
        for address in NODE_ADDRESSES {
            node.add_address("eth0", address, if address.is_ipv4() { 32 } else { 128 })?;
        }
        let (pod, _) = link(node, "client", 1)?;
        let (others, gateways) = link(node, "backends", 2)?;
        let (here, mut elsewhere): (BTreeSet<_>, BTreeSet<_>) =
            plan.backends()?.into_iter().partition(|(_, backend)| NODE_ADDRESSES.contains(&backend.ip()));
        elsewhere.extend(outsiders.iter().map(|&outsider| (Protocol::Tcp, outsider)));
        let addresses = elsewhere.iter().map(|(_, backend)| backend.ip()).collect();
        backends::own(&others, &addresses, &[(node, gateways)])?;
        let start = |namespace: &Namespace, backends: BTreeSet<(Protocol, SocketAddr)>| {
            Backends::start(
                namespace,
                &backends.iter().map(|(protocol, at)| (*protocol, at.port())).collect(),
            )
        };
        Ok(Self { pod, _servers: [start(node, here)?, start(&others, elsewhere)?] })
    }
}

/// A namespace behind `node`, and its addresses on the link between them, which no pod of the file has.
fn link(node: &Namespace, name: &str, number: u8) -> Result<(Namespace, [IpAddr; 2])> {
    let namespace = Namespace::new(name)?;
    node.add_veth(name, &namespace, "eth0")?;
    let address = |host: u8| -> [IpAddr; 2] {
        let v6 = Ipv6Addr::new(0xfd00, 0x10, 0x245, number.into(), 0, 0, 0, host.into());
        [Ipv4Addr::new(10, 245, number, host).into(), v6.into()]
    };
    for (end, link, addresses) in [(node, name, address(1)), (&namespace, "eth0", address(2))] {
        for (address, prefix) in addresses.into_iter().zip([24, 64]) {
            end.add_address(link, address, prefix)?;
        }
    }
    for gateway in address(1) {
        namespace.add_default_route(gateway)?;
    }
    Ok((namespace, address(2)))
}

#[test]
fn the_plan_of_a_real_cluster_is_the_oracles_and_every_reject_is_explained() -> Result<()> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join(FILE), CLUSTER)?;
    let plan = Plan::of(directory.path())?;
    let wanted = expected_rows(oracle(&objects()?, &OracleConfig::new(NODE)));
    ensure!(wanted.len() > 100, "only {} rows: the oracle did not understand the file", wanted.len());
    if let Some(difference) = difference(&wanted, &plan.rows) {
        panic!("{difference}");
    }
    assert_eq!(plan.rejects, explained());
    Ok(())
}

#[test]
fn http_and_dns_clients_reach_every_frontend_of_a_real_cluster() -> Result<()> {
    World::test("realinput", |world| {
        world.manifests().put_text(FILE, CLUSTER)?;
        let plan = Plan::of(world.manifests().path())?;
        let mut outsiders = vec![LOAD_BALANCER];
        for row in &plan.rows {
            if let Expected::ItsOwner = Expected::of(row)? {
                outsiders.push(SocketAddr::new(row.address.parse()?, row.port));
            }
        }
        let network = Network::new(world, &plan, &outsiders)?;
        let mut clients =
            [Client::new("a pod", world, &network.pod)?, Client::new("the node", world, world.node())?];
        let ipv4_first = plan.rows.iter().find(|row| row.kind == "ClusterIP" && row.protocol == "TCP");
        let cluster_ip = ipv4_first.context("no ClusterIP")?;
        for client in &mut clients {
            let error = client.check(cluster_ip).expect_err("without an agent nobody has that address");
            assert!(format!("{error:#}").contains("ENETUNREACH"), "{error:#}");
        }

        let places = Places { node_name: NODE.to_owned(), ..world.places() };
        world.agent = Some(Agent::start(&places, &[])?);
        let begin = Instant::now();
        for client in &mut clients {
            for row in &plan.rows {
                client.check(row)?;
            }
            let owner = client.answerer(Question::Http, LOAD_BALANCER)?;
            assert_eq!(owner, LOAD_BALANCER.to_string(), "{}", client.name);
        }
        let took = begin.elapsed();

        let kernel: Vec<Row> = serde_json::from_str(&world.portway(&["bpf", "lb", "list", "-o", "json"])?)?;
        assert_eq!(kernel, plan.rows);
        let status: Value = serde_json::from_str(&world.portway(&["status", "-o", "json"])?)?;
        assert_eq!(status["counts"]["rejects"], Value::from(plan.rejects.len()), "{status:#}");
        let kinds = plan.rows.iter().fold(BTreeMap::<_, u32>::new(), |mut kinds, row| {
            *kinds.entry(format!("{} {}", row.kind, row.protocol)).or_default() += 1;
            kinds
        });
        let unexplained = plan.rejects.difference(&explained()).count();
        println!(
            "real input: {} frontends {kinds:?}; {} backends; {}; {}; {took:.1?}; rejects: {} explained, {unexplained} unexplained",
            plan.rows.len(),
            plan.backends()?.len(),
            clients[0],
            clients[1],
            plan.rejects.len() - unexplained
        );
        Ok(())
    })
}
