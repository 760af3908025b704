//! Sockets whose backend is gone are closed, and only those. Names follow the rows of pains.md.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portway_agent::api::{StaleSockets, Status};
use portway_agent::maps::{MapId, pin_path};
use portway_datapath::{Addr, Port, ServiceIndex, SocketTranslation, Translation};
use portway_tests::harness::bpf::insert;
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::{Endpoint, Service, TARGET, TCP, UDP, endpoints};
use portway_tests::harness::probe::{Protocol, Socket};
use portway_tests::harness::{Pod, Probe, World, eventually};

/// [`web`]'s port 80 as a socket of IPv6 reaches IPv4.
const WEB_MAPPED: &str = "[::ffff:10.96.0.10]:80";
/// A UDP socket must be closed within this after the change (pains.md, 36).
const UDP_LIMIT: Duration = Duration::from_secs(1);
/// A TCP connection is closed when its backend has been nobody's for 10 s and two questions went unanswered.
const TCP_LIMIT: Duration = Duration::from_secs(16);
/// Longer than an idle connection to somebody who does not answer is left alone.
const IDLE: Duration = Duration::from_secs(14);
const KEEP: &str = "portway.io/keep-stale-sockets";

/// A connection that a test holds.
struct Held {
    what: &'static str,
    probe: Probe,
    socket: Socket,
}

impl Held {
    fn new(what: &'static str, mut probe: Probe, protocol: Protocol, to: &str) -> Result<Self> {
        let (socket, _) = probe.connect(protocol, to).context(what)?;
        Ok(Self { what, probe, socket })
    }

    fn start_hearing(&mut self) -> Result<()> {
        self.probe.start_hearing(self.socket, TCP_LIMIT * 2)
    }

    /// Waits until the connection ends, which must be by Portway's hand.
    fn is_closed(&mut self) -> Result<()> {
        let ended = self.probe.finish_hearing()?;
        ensure!(ended == Errno::ECONNABORTED, "{} ended with {ended:?}", self.what);
        Ok(())
    }

    fn start_staying(&mut self, time: Duration) -> Result<()> {
        self.probe.start_hearing(self.socket, time)
    }

    /// Waits for all of that time; the connection must not end in it.
    fn has_stayed(&mut self) -> Result<()> {
        let ended = self.probe.finish_hearing()?;
        ensure!(ended == Errno::EAGAIN, "{} ended with {ended:?}", self.what);
        Ok(())
    }

    /// The name of who answers on it.
    fn answers(&mut self) -> Result<String> {
        Ok(self.probe.again(self.socket)?.with_context(|| format!("{} is broken", self.what))?.name)
    }
}

/// A client of each sort: in a pod by each family and by a mapped address, and in the node's own namespace.
fn one_of_each(world: &World, pod: &Pod, protocol: Protocol) -> Result<Vec<Held>> {
    Ok(vec![
        Held::new("IPv4 in a pod", world.client(pod)?, protocol, WEB[0])?,
        Held::new("IPv6 in a pod", world.client(pod)?, protocol, WEB[1])?,
        Held::new("a mapped address in a pod", world.client(pod)?, protocol, WEB_MAPPED)?,
        Held::new("IPv4 on the node", world.node_client()?, protocol, WEB[0])?,
        Held::new("IPv6 on the node", world.node_client()?, protocol, WEB[1])?,
    ])
}

/// Waits for the end of all of them; none may take longer than `limit` from now.
fn all_closed_within(limit: Duration, held: &mut [Held], change: impl FnOnce() -> Result<()>) -> Result<()> {
    for held in &mut *held {
        held.start_hearing()?;
    }
    let start = Instant::now();
    change()?;
    for held in &mut *held {
        held.is_closed()?;
        let took = start.elapsed();
        ensure!(took <= limit, "{} was closed after {took:?}", held.what);
    }
    Ok(())
}

/// The pod's addresses are nobody's: what is sent there is dropped, and nobody says so.
fn vanish(pod: &Pod) -> Result<()> {
    pod.namespace.delete_address("eth0", pod.v4.into())?;
    pod.namespace.delete_address("eth0", pod.v6.into())
}

/// The node's link to the pod is gone, and the route with it: what is sent there is an error at once.
fn cut_off(world: &World, pod: &Pod) -> Result<()> {
    let gateways =
        [pod.v4.to_string(), pod.v6.to_string()].map(|addr| addr.strip_suffix('2').map(|a| format!("{a}1")));
    let link = format!("pod{}", pod.v4.octets()[2]);
    for gateway in gateways {
        world.node().delete_address(&link, gateway.context("a pod's address ends in 2")?.parse()?)?;
    }
    Ok(())
}

fn stale_sockets(world: &World) -> Result<StaleSockets> {
    let status: Status = serde_json::from_str(&world.portway(&["status", "-o", "json"])?)?;
    Ok(status.stale_sockets)
}

#[test]
fn pain_36_a_connected_udp_client_of_a_removed_backend_is_closed_in_every_namespace() -> Result<()> {
    World::test("stale-udp", |world| {
        let (a, b, c) = (world.serving_pod("a")?, world.serving_pod("b")?, world.pod("c")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut clients = one_of_each(world, &c, Protocol::Udp)?;
        let address = a.socket_v4(TARGET).to_string();
        let mut itself = Held::new("a client of the pod itself", world.client(&c)?, Protocol::Udp, &address)?;
        all_closed_within(UDP_LIMIT, &mut clients, || world.publish(&web(), endpoints(&[&b])))?;
        for client in &mut clients {
            let answer = client.probe.udp(WEB[0])?;
            assert_eq!(answer.map(|answer| answer.name).as_deref(), Ok("b"), "{}", client.what);
        }
        assert_eq!(itself.answers()?, "a");
        let status = stale_sockets(world)?;
        assert_eq!((status.closed_udp, status.closed_tcp, status.failed), (5, 0, 0), "{status:?}");
        Ok(())
    })
}

/// Whoever only follows events never hears of it.
#[test]
fn pain_37_what_became_stale_while_the_agent_was_down_or_stopped_is_closed() -> Result<()> {
    World::test("stale-down", |world| {
        let (a, b, c) = (world.serving_pod("a")?, world.serving_pod("b")?, world.pod("c")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut clients = one_of_each(world, &c, Protocol::Udp)?;
        world.kill_agent()?;
        world.publish(&web(), endpoints(&[&b]))?;
        for client in &mut clients {
            assert_eq!(client.answers()?, "a", "{}", client.what);
            client.start_hearing()?;
        }
        world.start_agent(&[])?;
        let ready = Instant::now();
        for client in &mut clients {
            client.is_closed()?;
        }
        ensure!(ready.elapsed() <= UDP_LIMIT, "closed {:?} after the agent was ready", ready.elapsed());

        let mut clients = one_of_each(world, &c, Protocol::Udp)?;
        let agent = Pid::from_raw(i32::try_from(world.agent.as_ref().context("no agent")?.id())?);
        kill(agent, Signal::SIGSTOP)?;
        world.publish(&web(), endpoints(&[&a]))?;
        for client in &mut clients {
            assert_eq!(client.answers()?, "b", "{}", client.what);
        }
        all_closed_within(UDP_LIMIT, &mut clients, || Ok(kill(agent, Signal::SIGCONT)?))
    })
}

#[test]
fn pain_38_a_udp_client_of_a_service_that_is_scaled_to_none_or_deleted_is_closed() -> Result<()> {
    World::test("stale-zero", |world| {
        let (a, c) = (world.serving_pod("a")?, world.pod("c")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut clients = one_of_each(world, &c, Protocol::Udp)?;
        all_closed_within(UDP_LIMIT, &mut clients, || world.publish(&web(), []))?;
        for client in &mut clients {
            let answer = client.probe.udp(WEB[0])?;
            assert_eq!(answer.map(|answer| answer.name), Err(Errno::ECONNREFUSED), "{}", client.what);
        }
        world.publish(&web(), endpoints(&[&a]))?;
        world.wait_programmed()?;
        let mut clients = one_of_each(world, &c, Protocol::Udp)?;
        all_closed_within(UDP_LIMIT, &mut clients, || world.manifests().remove("web"))
    })
}

/// Neither a restart nor anything that leaves the backend in the service, in whatever state it still serves.
#[test]
fn pain_39_a_udp_flow_stays_as_long_as_its_backend_is_valid() -> Result<()> {
    World::test("stale-valid", |world| {
        let (a, b, c) = (world.serving_pod("a")?, world.serving_pod("b")?, world.pod("c")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut clients = one_of_each(world, &c, Protocol::Udp)?;
        let mut port = 80;
        let mut assert_valid = |world: &World, when: &str| -> Result<()> {
            let swept = stale_sockets(world)?.sweeps;
            // Any change of a service makes a sweep due.
            port += 1;
            let any = Service::new("any", &["10.96.0.99"]).port("http", TCP, port);
            world.publish(&any, [])?;
            eventually(Duration::from_secs(5), "a sweep", || {
                ensure!(stale_sockets(world)?.sweeps > swept, "none");
                Ok(())
            })?;
            for client in &mut clients {
                assert_eq!(client.answers()?, "a", "{} {when}", client.what);
            }
            Ok(())
        };
        world.publish(&web(), endpoints(&[&a, &b]))?;
        world.wait_programmed()?;
        assert_valid(world, "beside a new one")?;
        world.kill_agent()?;
        world.start_agent(&[])?;
        assert_valid(world, "after a kill")?;
        world.agent.take().context("no agent")?.stop()?;
        world.start_agent(&[])?;
        assert_valid(world, "after a restart")?;
        let zones = |endpoint: Endpoint, zone| endpoint.for_zones(&[zone]);
        let node = serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {
            "name": portway_tests::harness::world::NODE, "labels": {"topology.kubernetes.io/zone": "here"}}});
        world.manifests().put("node", [node])?;
        let hinted = [
            zones(a.endpoint(), "there"),
            zones(a.endpoint_v6(), "there"),
            zones(b.endpoint(), "here"),
            zones(b.endpoint_v6(), "here"),
        ];
        world.publish(&web(), hinted)?;
        world.wait_programmed()?;
        assert_valid(world, "when hints send new ones elsewhere")?;
        let leaving =
            [a.endpoint().terminating(), a.endpoint_v6().terminating(), b.endpoint(), b.endpoint_v6()];
        world.publish(&web(), leaving)?;
        world.wait_programmed()?;
        assert_valid(world, "while it terminates")?;
        let status = stale_sockets(world)?;
        assert_eq!((status.closed_udp, status.closed_tcp), (0, 0), "{status:?}");
        Ok(())
    })
}

/// And the opposite: pain 10 and others, connections to a pod that lives are nobody's business.
#[test]
fn pain_44_an_idle_tcp_connection_to_a_pod_that_is_gone_is_closed_and_no_other() -> Result<()> {
    World::test("stale-tcp", |world| {
        let [a, cut, left, leaving, b] =
            world.serving_pods(&["a", "cut", "left", "leaving", "b"])?.try_into().unwrap();
        let c = world.pod("c")?;
        let service = |name, ip| Service::new(name, &[ip]).port("http", TCP, 80);
        let second = service("second", "10.96.0.20");
        let kept = service("kept", "10.96.0.30").annotated(KEEP, "true");
        let fourth = Service::new("fourth", &["10.96.0.60", "fd00:10:96::60"]).port("http", TCP, 80);
        world.publish(&web(), endpoints(&[&a]))?;
        world.publish(&kept, [a.endpoint()])?;
        world.publish(&second, [left.endpoint()])?;
        world.publish(&service("third", "10.96.0.40"), [left.endpoint()])?;
        world.publish(&service("drain", "10.96.0.50"), [leaving.endpoint()])?;
        world.publish(&fourth, endpoints(&[&cut]))?;
        world.start_agent(&[])?;
        let mut idle = one_of_each(world, &c, Protocol::Tcp)?;
        let tcp = |what, to: &str| Held::new(what, world.client(&c)?, Protocol::Tcp, to);
        idle.push(tcp("IPv4 to where no route leads", "10.96.0.60:80")?);
        idle.push(tcp("IPv6 to where no route leads", "[fd00:10:96::60]:80")?);
        let mut own = [
            tcp("a client of the pod itself", &a.socket_v4(TARGET).to_string())?,
            tcp("a client of the service with the annotation", "10.96.0.30:80")?,
        ];
        let mut others = [
            tcp("a client of a pod that left one of its services", "10.96.0.20:80")?,
            tcp("a client of a pod that terminates", "10.96.0.50:80")?,
        ];
        all_closed_within(TCP_LIMIT, &mut idle, || {
            // Nobody answers for the one; the node has no way to the other.
            vanish(&a)?;
            cut_off(world, &cut)?;
            world.publish(&web(), endpoints(&[&b]))?;
            world.publish(&kept, [b.endpoint()])?;
            world.publish(&second, [b.endpoint()])?;
            world.publish(&fourth, endpoints(&[&b]))?;
            world.publish(&service("drain", "10.96.0.50"), [leaving.endpoint().terminating(), b.endpoint()])
        })?;
        let names: Vec<String> = others.iter_mut().map(Held::answers).collect::<Result<_>>()?;
        assert_eq!(names, ["left", "leaving"]);
        for held in &mut own {
            held.start_staying(Duration::from_millis(100))?;
            held.has_stayed()?;
        }
        let status = stale_sockets(world)?;
        assert_eq!((status.closed_tcp, status.closed_udp, status.failed), (7, 0, 0), "{status:?}");
        assert_eq!(status.kept, 1, "{status:?}");
        Ok(())
    })
}

/// Relabelled for a look at it, say. Once it is gone its connections go, too, whether or not they spoke meanwhile.
#[test]
fn pain_07_an_idle_connection_to_a_pod_that_left_its_selector_stays() -> Result<()> {
    World::test("stale-left", |world| {
        let (a, b, c) = (world.serving_pod("a")?, world.serving_pod("b")?, world.pod("c")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut idle = one_of_each(world, &c, Protocol::Tcp)?;
        world.publish(&web(), endpoints(&[&b]))?;
        for held in &mut idle {
            held.start_staying(IDLE)?;
        }
        for held in &mut idle {
            held.has_stayed()?;
        }
        let status = stale_sockets(world)?;
        assert_eq!((status.closed_tcp, status.waiting, status.failed), (0, 5, 0), "{status:?}");
        for held in idle.iter_mut().take(2) {
            assert_eq!(held.answers()?, "a", "{}", held.what);
        }
        all_closed_within(TCP_LIMIT, &mut idle, || vanish(&a))
    })
}

#[test]
fn a_service_with_the_annotation_keeps_its_udp_clients_until_it_is_taken_away() -> Result<()> {
    World::test("stale-kept", |world| {
        let (a, b, c) = (world.serving_pod("a")?, world.serving_pod("b")?, world.pod("c")?);
        let kept = || web().annotated(KEEP, "true");
        let other = Service::new("other", &["10.96.0.20"]).port("quic", UDP, 80);
        world.publish(&kept(), endpoints(&[&a]))?;
        world.publish(&other, [a.endpoint()])?;
        world.start_agent(&[])?;
        let mut clients = one_of_each(world, &c, Protocol::Udp)?;
        let mut witness = [Held::new("without", world.client(&c)?, Protocol::Udp, "10.96.0.20:80")?];
        world.publish(&kept(), endpoints(&[&b]))?;
        world.wait_programmed()?;
        all_closed_within(UDP_LIMIT, &mut witness, || world.publish(&other, [b.endpoint()]))?;
        for client in &mut clients {
            assert_eq!(client.answers()?, "a", "{}", client.what);
        }
        assert_eq!(stale_sockets(world)?.kept, 5);
        all_closed_within(UDP_LIMIT, &mut clients, || world.publish(&web(), endpoints(&[&b])))
    })
}

/// Sockets of the kernel itself (NFS, SMB) end without `sock_release`, so their entries stay.
#[test]
fn entries_of_sockets_that_nobody_has_are_removed_and_others_stay() -> Result<()> {
    World::test("stale-entries", |world| {
        let (a, c) = (world.serving_pod("a")?, world.pod("c")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&["--bpf-sock-rev-map-max=1024"])?;
        let mut held = one_of_each(world, &c, Protocol::Tcp)?;
        held.extend(one_of_each(world, &c, Protocol::Udp)?);
        let translation = |backend: std::net::IpAddr| {
            let to = Translation {
                service: ServiceIndex::new(1),
                addr: Addr::from(backend),
                port: Port::new(TARGET),
            };
            let frontend = Addr::from("10.96.0.10".parse::<std::net::IpAddr>()?);
            let value = SocketTranslation::new(frontend, Port::new(80), portway_datapath::Protocol::UDP, &to);
            Ok::<_, anyhow::Error>(bytes(&value))
        };
        let map = pin_path(world.bpf_root(), MapId::Sock);
        let cookie = |n: u64| (u64::MAX - n).to_ne_bytes();
        // One that is stale, and then so many that the map is nearly full.
        let stale = translation("10.244.200.1".parse()?)?;
        insert(&map, &[(cookie(0), stale)])?;
        let forgotten = |number: u64| {
            eventually(Duration::from_secs(5), "dead entries to go", || {
                let status = stale_sockets(world)?;
                ensure!(status.forgotten == number, "{status:?}");
                Ok(())
            })
        };
        let any = |port| Service::new("any", &["10.96.0.99"]).port("http", TCP, port);
        world.publish(&any(80), [])?;
        forgotten(1)?;
        let valid = translation(a.v4.into())?;
        let dead: Vec<_> = (1..=920).map(|n| (cookie(n), valid)).collect();
        insert(&map, &dead)?;
        world.publish(&any(81), [])?;
        forgotten(921)?;
        for held in &mut held {
            assert_eq!(held.answers()?, "a", "{}", held.what);
        }
        let status = stale_sockets(world)?;
        assert_eq!((status.closed_tcp, status.closed_udp, status.failed), (0, 0, 0), "{status:?}");
        Ok(())
    })
}

/// As it lies in the map.
fn bytes(value: &SocketTranslation) -> [u8; 48] {
    let SocketTranslation { frontend, backend, frontend_port, backend_port, service, protocol, .. } = *value;
    let mut bytes = [0; 48];
    bytes[..16].copy_from_slice(&frontend.octets());
    bytes[16..32].copy_from_slice(&backend.octets());
    bytes[32..34].copy_from_slice(&frontend_port.get().to_be_bytes());
    bytes[34..36].copy_from_slice(&backend_port.get().to_be_bytes());
    bytes[36..40].copy_from_slice(&service.get().to_ne_bytes());
    bytes[40] = protocol;
    bytes
}
