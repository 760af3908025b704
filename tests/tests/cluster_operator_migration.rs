//! From agents that make identities to an operator that does, and back, while pods come and go: `agent`, `both`,
//! `operator`, `both`, `agent`. Nobody gets a second identity, nobody is without one, and no connection notices.
//!
//! In each step the operator's new replica runs beside the old one, and agents are restarted one after the other; who goes
//! first differs from step to step.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::cluster::ApiClient;
use portway_tests::harness::cluster_net::churn::Churned;
use portway_tests::harness::cluster_net::cni::Runtime;
use portway_tests::harness::cluster_net::ipcache::Ipcache;
use portway_tests::harness::cluster_net::objects::create_pod;
use portway_tests::harness::cluster_net::{Pod, PodSpec, Routing};
use portway_tests::harness::operator::{Census, Places};
use portway_tests::harness::{Beside, ClusterNet, Ending, Operator, eventually};
use portway_tests::oracle::random::Random;

const ROUTING: Routing = Routing::Native;
const NODES: u8 = 3;
/// Of a debug build on a busy machine; a start's grace period is in it.
const SOON: Duration = Duration::from_secs(15);
/// Connections of each client, and new ones a second.
const HELD: u32 = 18;
const PER_SECOND: u32 = 30;
/// Label sets that pods share.
const SETS: u64 = 5;
/// `reserved:init`, and the first number of a pod.
const INIT: u32 = 5;
const FIRST_OF_PODS: u32 = 256;

/// Who is restarted first in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Operator,
    Agents,
    /// After the first agent.
    Between,
}

fn mode(name: &str) -> String {
    format!("--identity-management-mode={name}")
}

#[test]
fn identities_go_to_the_operator_and_back_and_nobody_notices() -> Result<()> {
    ClusterNet::test_on_api("migration", NODES, |net| {
        net.start_agents(ROUTING, &[&mode("agent")])?;
        let mut operator = operator(net, 1, "agent")?;
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for number in 1..=NODES {
            let spec = PodSpec::new(&format!("server-{number}")).labelled("app", &format!("set-{number}"));
            let server = net.make(number, &spec)?;
            net.serve(&server)?;
            servers.push(server);
            clients.push(
                net.make(number, &PodSpec::new(&format!("client-{number}")).labelled("app", "client"))?,
            );
        }
        let before = net.wait_agreement(SOON)?.addresses()?;
        let to: Vec<SocketAddr> =
            servers.iter().flat_map(|server| [server.socket(false), server.socket(true)]).collect();
        let mut loads = clients.iter().map(|client| net.client(client)).collect::<Result<Vec<_>>>()?;
        loads.iter_mut().try_for_each(|load| load.start_load(&to, HELD, PER_SECOND))?;
        let addresses: Vec<_> =
            servers.iter().chain(&clients).flat_map(|pod| [pod.v4.into(), pod.v6.into()]).collect();
        let watches: Vec<_> =
            net.nodes().iter().map(|node| node.watch_ipcache(addresses.clone())).collect::<Result<_>>()?;
        let census = Census::start(net.control_plane()?)?;
        let churn = Churn::start(net)?;
        let steps = [
            ("both", First::Operator),
            ("operator", First::Between),
            ("both", First::Agents),
            ("agent", First::Between),
        ];
        for (turn, (to, first)) in (0_u8..).zip(steps) {
            let begin = Instant::now();
            if first == First::Operator {
                operator = replace(net, operator, 2 - turn % 2, to)?;
            }
            for number in 1..=NODES {
                net.node_mut(number).stop_agent()?;
                net.node_mut(number).start_agent(ROUTING, &[&mode(to)])?;
                if number == 1 && first == First::Between {
                    operator = replace(net, operator, 2 - turn % 2, to)?;
                }
            }
            if first == First::Agents {
                operator = replace(net, operator, 2 - turn % 2, to)?;
            }
            // Pods come and go in the new mode for a while.
            std::thread::sleep(Duration::from_secs(2));
            println!("to {to}, {first:?} first: {:?}", begin.elapsed());
        }
        let churned = churn.end()?;
        let after = net.wait_agreement(SOON)?.addresses()?;
        for address in &addresses {
            assert_eq!(after.get(address), before.get(address), "{address}");
        }
        let versions = census.end()?;
        for watch in watches {
            for (addr, values) in watch.end()? {
                let values: Vec<_> = values.into_iter().map(|(_, value)| value).collect();
                assert_eq!(values, [before.get(&addr).copied()], "{addr} changed without a cause");
            }
        }
        let (mut held, mut new) = (0, 0);
        for load in &mut loads {
            let tally = load.end_load()?;
            ensure!(tally.trouble().is_none(), "the clients noticed: {:?}", tally.trouble());
            ensure!(tally.held == HELD && tally.exchanges.by_name.len() == servers.len(), "{tally:?}");
            held += tally.held;
            new += tally.new.answers();
        }
        ensure!(churned.made >= 20, "only {} pods came", churned.made);
        println!(
            "{} pods came and went, {} calls of the plugin were told to try again; {versions} versions of objects without a \
             duplicate; {held} connections held and {new} new ones, 0 lost",
            churned.made, churned.again
        );
        drop(operator);
        Ok(())
    })
}

/// Replica `number` in this mode, at the router.
fn operator(net: &ClusterNet, number: u8, to: &str) -> Result<Operator> {
    let kubeconfig = net.control_plane()?.kubeconfig_of("operator")?;
    let places = Places { namespace: net.router().clone(), number, kubeconfig };
    // Nodes have ranges of their own, which are in their objects.
    let mut operator =
        Operator::spawn(&places, &[&mode(to), "--ipam=kubernetes", "--cilium-endpoint-gc-interval=5s"])?;
    operator.wait_up()?;
    Ok(operator)
}

/// The new one runs beside the old one before that ends.
fn replace(net: &ClusterNet, old: Operator, number: u8, to: &str) -> Result<Operator> {
    let mut new = operator(net, number, to)?;
    old.stop()?;
    eventually(SOON, "the new operator to lead", || {
        ensure!(new.is_leading()?, "it does not");
        Ok(())
    })?;
    new.ensure_running()?;
    Ok(new)
}

/// A thread for each node, on which pods come and go until its end.
struct Churn(Vec<Beside<Churned>>);

/// A node as the thread that makes its pods has it.
struct Place {
    node: String,
    client: ApiClient,
    runtime: Runtime,
    ipcache: Ipcache,
    random: Random,
}

impl Churn {
    fn start(net: &ClusterNet) -> Result<Self> {
        let mut threads = Vec::new();
        for (seed, node) in (0..).zip(net.nodes()) {
            let place = Place {
                node: node.name().to_owned(),
                client: net.control_plane()?.new_client()?,
                runtime: node.runtime(),
                ipcache: node.ipcache()?,
                random: Random::new(u64::from(std::process::id()) + seed),
            };
            threads.push(Beside::start(format!("pods of {}", node.name()), move |end| place.churn(end))?);
        }
        Ok(Self(threads))
    }

    fn end(self) -> Result<Churned> {
        Ok(Beside::end_all(self.0)?.into_iter().sum())
    }
}

impl Place {
    fn churn(mut self, end: &Ending) -> Result<Churned> {
        let mut churned = Churned::default();
        while !end.has_come() {
            // One in three is somebody whom nobody has seen.
            let app = if self.random.chance(33) {
                format!("job-{}-{}", self.node, churned.made)
            } else {
                format!("set-{}", self.random.below(SETS))
            };
            // As of a StatefulSet: the same name again and again, each time another pod.
            let mut spec =
                PodSpec::new(&format!("churn-{}-{}", self.node, churned.made % 3)).labelled("app", &app);
            spec.uid = create_pod(&self.client, spec.object(&self.node, &[]))?;
            let pod = churned.insist("ADD", || self.runtime.add(&spec))?;
            self.judge(&pod)?;
            self.client.set_status(&spec.object(&self.node, &[pod.v4.into(), pod.v6.into()]))?;
            std::thread::sleep(Duration::from_millis(self.random.below(300)));
            churned.insist("DEL", || self.runtime.delete(&pod))?;
            self.client.delete(&spec.object(&self.node, &[]))?;
            churned.made += 1;
        }
        Ok(churned)
    }

    /// A pod that begins is somebody, on its own node, and its object says the same.
    fn judge(&self, pod: &Pod) -> Result<()> {
        let path = format!("/apis/cilium.io/v2/namespaces/default/ciliumendpoints/{}", pod.name());
        let object = self.client.get(&path)?;
        let said = object.pointer("/status/identity/id").and_then(serde_json::Value::as_u64);
        let said = u32::try_from(said.with_context(|| format!("no identity: {object}"))?)?;
        for addr in [std::net::IpAddr::from(pod.v4), pod.v6.into()] {
            let own = self.ipcache.identity(addr)?;
            ensure!(own != Some(INIT), "{} begins as nobody", pod.name());
            ensure!(
                own == Some(said) && said >= FIRST_OF_PODS,
                "{} begins as {own:?}, its object says {said}",
                pod.name()
            );
        }
        Ok(())
    }
}
