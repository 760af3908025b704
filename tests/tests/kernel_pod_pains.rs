//! What hurt users of other systems: a test for each class of `pains.md` that the pods' packets are about, named after
//! its number.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::cluster_net::{PodSpec, Routing, WORLD_V4, WORLD_V6};
use portway_tests::harness::fixture::{WEB, WEB_V4, WEB_V6, web};
use portway_tests::harness::frame::{ethernet, tcp};
use portway_tests::harness::manifest::{Endpoint, Service, TCP};
use portway_tests::harness::probe::{Protocol, ToAddress as _};
use portway_tests::harness::transfer::{Sink, send};
use portway_tests::harness::witness::{Heard, Witness};
use portway_tests::harness::{ClusterNet, Errno, Probe, eventually};

/// Where sinks listen.
const SINK: u16 = 5000;
/// What is far more than a window, so that full packets are sent.
const MANY: usize = 1 << 20;

/// <https://github.com/cilium/cilium/issues/23761>
#[test]
fn pain_07_a_backend_that_leaves_its_service_keeps_its_connections() -> Result<()> {
    ClusterNet::test("pain07", 2, |net| {
        net.start_agents(Routing::Native, &[])?;
        let (near, far) = (net.serving_pod(1, "near")?, net.serving_pod(2, "far")?);
        for leaving in [&near, &far] {
            let staying = if leaving.name() == "near" { &far } else { &near };
            net.publish(&web(), leaving.endpoints())?;
            net.node(1).wait_programmed()?;
            let raw = net.make(1, &PodSpec::new("raw").without_socket_lb())?;
            let mut client = net.client(&raw)?;
            let mut held = Vec::new();
            for to in WEB {
                let (socket, answer) = client.connect(Protocol::Tcp, to)?;
                assert_eq!(answer.name, leaving.name());
                held.push(socket);
            }
            net.publish(&web(), staying.endpoints())?;
            net.node(1).wait_programmed()?;
            for to in WEB {
                client.wait_servers(to, &[staying.name()])?;
            }
            // Also with nobody behind the service.
            net.publish(&web(), [])?;
            net.node(1).wait_programmed()?;
            for socket in held {
                for _ in 0..20 {
                    assert_eq!(client.again(socket)?.unwrap().name, leaving.name());
                }
            }
            drop(client);
            net.remove(&raw)?;
        }
        Ok(())
    })
}

/// <https://github.com/antrea-io/antrea/issues/3131>
#[test]
fn pain_17_routes_of_what_went_while_the_agent_was_down_go_with_its_start() -> Result<()> {
    for routing in Routing::BOTH {
        ClusterNet::test("pain17", 3, |net| {
            net.start_agents(routing, &[])?;
            let (gone, stays) = (net.pod(1, "gone")?, net.pod(1, "stays")?);
            let node = net.node(1);
            let state = || -> Result<String> {
                let commands: [&[&str]; 6] = [
                    &["-4", "route", "show", "table", "all"],
                    &["-6", "route", "show", "table", "all"],
                    &["-4", "rule"],
                    &["-6", "rule"],
                    &["neigh", "show", "nud", "permanent"],
                    &["-o", "link", "show", "type", "veth"],
                ];
                commands.iter().map(|args| node.ip(args)).collect()
            };
            let of_gone = [gone.v4.to_string(), gone.v6.to_string()];
            // Somebody else's, which look like the agent's.
            node.ip(&["route", "add", "10.244.99.0/24", "via", "172.18.0.13", "proto", "static"])?;
            node.ip(&[
                "-6",
                "route",
                "add",
                "fd00:10:244:99::/64",
                "via",
                "fd00:172:18::13",
                "proto",
                "static",
            ])?;
            for addr in &of_gone {
                ensure!(state()?.contains(addr), "nothing leads to {addr} in\n{}", state()?);
            }
            if routing == Routing::Native {
                for cidr in net.node(2).pod_cidrs() {
                    ensure!(state()?.contains(&cidr), "nothing leads to {cidr} in\n{}", state()?);
                }
            }
            net.node_mut(1).stop_agent()?;
            // The runtime calls DEL and hears that nobody is there; it removes the sandbox all the same.
            net.forget(&gone)?;
            drop(gone);
            net.manifests().remove("node-2")?;
            net.node_mut(1).start_agent(routing, &[])?;
            let node = net.node(1);
            eventually(Duration::from_secs(5), "what is gone to be forgotten", || {
                let mut state = String::new();
                for args in
                    [&["-4", "route", "show", "table", "all"], &["-6", "route", "show", "table", "all"]]
                {
                    state += &node.ip(args)?;
                }
                state += &node.ip(&["neigh", "show", "nud", "permanent"])?;
                for cidr in net.node(2).pod_cidrs().iter().chain(&of_gone) {
                    // An address is the beginning of another one.
                    let left = state.split_whitespace().any(|word| word == cidr);
                    ensure!(!left, "{cidr} is left in\n{state}");
                }
                for kept in
                    ["10.244.99.0/24", "fd00:10:244:99::/64", &stays.v4.to_string(), &stays.v6.to_string()]
                {
                    ensure!(state.split_whitespace().any(|word| word == kept), "{kept} is lost in\n{state}");
                }
                if routing == Routing::Native {
                    for cidr in net.node(3).pod_cidrs() {
                        ensure!(
                            state.split_whitespace().any(|word| word == cidr),
                            "{cidr} is lost in\n{state}"
                        );
                    }
                }
                Ok(())
            })?;
            let tables = node.tables()?;
            let has = |addr: IpAddr| -> Result<bool> { Ok(tables.endpoints()?.contains_key(&addr.into())) };
            for addr in &of_gone {
                ensure!(!has(addr.parse()?)?, "{addr} is in the endpoints still");
            }
            ensure!(has(stays.v4.into())? && has(stays.v6.into())?, "the pod that stayed is forgotten");
            Ok(())
        })?;
    }
    Ok(())
}

/// <https://github.com/cilium/cilium/issues/33041>
#[test]
fn pain_26_a_client_by_packets_hears_that_nobody_is_behind_a_service() -> Result<()> {
    ClusterNet::test("pain26", 1, |net| {
        net.publish(&web(), [])?;
        net.start_agents(Routing::Native, &[])?;
        let raw = net.make(1, &PodSpec::new("raw").without_socket_lb())?;
        let mut client = net.client(&raw)?;
        for to in WEB {
            let start = Instant::now();
            assert_eq!(client.tcp(to)?.unwrap_err(), Errno::ECONNREFUSED, "TCP {to}");
            assert_eq!(client.udp(to)?.unwrap_err(), Errno::ECONNREFUSED, "UDP {to}");
            let took = start.elapsed();
            ensure!(took < Duration::from_millis(500), "{to}: it took {took:?}");
        }
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/47755>
#[test]
fn pain_45_a_client_of_a_service_by_packets_learns_the_mtu_of_the_way_to_the_backend() -> Result<()> {
    for routing in Routing::BOTH {
        ClusterNet::test("pain45", 1, |net| {
            net.narrow(1300)?;
            let outside = Service::new("outside", &[WEB_V4, WEB_V6]).port_to("sink", TCP, 80, SINK);
            net.publish(&outside, [Endpoint::new(WORLD_V4), Endpoint::new(WORLD_V6)])?;
            net.start_agents(routing, &[])?;
            let _sink = Sink::start(net.world(), SINK)?;
            // Its sockets are in no control group that a program sees.
            let pod = net.pod(1, "pod")?;
            net.node(1).wait_programmed()?;
            for (to, vip) in [(WEB[0], WEB_V4), (WEB[1], WEB_V6)] {
                send(&pod.namespace, to.to_address()?, MANY)?;
                let known = portway_tests::harness::process::output(
                    pod.namespace.command("ip").args(["route", "get", vip]),
                )?;
                ensure!(known.contains("mtu 1300"), "the pod knows of {vip}: {known}");
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// <https://github.com/cilium/cilium/issues/32601>: what a tunnel adds is no surprise to a full packet.
#[test]
fn pain_46_full_packets_fit_whatever_the_way_adds() -> Result<()> {
    for (routing, mtu) in [(Routing::Native, 1500), (Routing::Tunnel, 1450)] {
        ClusterNet::test("pain46", 2, |net| {
            net.start_agents(routing, &[])?;
            let (a, b) = (net.serving_pod(1, "a")?, net.serving_pod(2, "b")?);
            let links = portway_tests::harness::process::output(
                a.namespace.command("ip").args(["link", "show", "dev", "eth0"]),
            )?;
            ensure!(links.contains(&format!("mtu {mtu} ")), "{links}");
            let _sink = Sink::start(&b.namespace, SINK)?;
            let mut client = net.client(&a)?;
            for v6 in [false, true] {
                let headers = if v6 { 48 } else { 28 };
                // The nodes ask for each other's link addresses first, and again after a second (RFC 4861, RETRANS_TIMER).
                eventually(Duration::from_secs(5), "the nodes to know each other", || {
                    Ok(client.ping(b.address(v6), 8)??)
                })?;
                for bytes in [mtu - headers - 1, mtu - headers, mtu - headers + 1, 1472, 1500, 3000] {
                    client.ping(b.address(v6), bytes)?.with_context(|| format!("{bytes} bytes, v6: {v6}"))?;
                }
                send(&a.namespace, SocketAddr::new(b.address(v6), SINK), MANY)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// <https://github.com/cilium/cilium/issues/16036>
#[test]
fn pain_48_pieces_of_a_large_ping_and_of_a_large_datagram_arrive() -> Result<()> {
    for routing in Routing::BOTH {
        ClusterNet::test("pain48", 2, |net| {
            net.start_agents(routing, &[])?;
            let pod = net.pod(1, "pod")?;
            let (near, far) = (net.serving_pod(1, "near")?, net.serving_pod(2, "far")?);
            let raw = net.make(1, &PodSpec::new("raw").without_socket_lb())?;
            net.publish(&web(), far.endpoints())?;
            net.node(1).wait_programmed()?;
            let mut client = net.client(&pod)?;
            let world = Witness::start(net.world())?;
            for v6 in [false, true] {
                let outside = if v6 { IpAddr::from(WORLD_V6) } else { WORLD_V4.into() };
                for (whose, addr) in
                    [("near", near.address(v6)), ("far", far.address(v6)), ("the world's", outside)]
                {
                    for bytes in [2000, 4000, 30_000] {
                        client
                            .ping(addr, bytes)?
                            .with_context(|| format!("{bytes} bytes to {whose} {addr}"))?;
                    }
                }
                let node = if v6 { IpAddr::from(net.node(1).v6()) } else { net.node(1).v4().into() };
                assert_eq!(world.heard()?, [(Heard::Echo, node)].into(), "who the world heard");
            }
            // A datagram to a service, by packets.
            let mut client = net.client(&raw)?;
            for to in WEB {
                for bytes in [2000, 4000] {
                    let answer = client.udp_large(to, bytes)?;
                    assert_eq!(answer.unwrap().name, "far", "{bytes} bytes to {to}");
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// <https://github.com/cilium/cilium/issues/26193>
#[test]
fn pain_49_a_pod_learns_the_mtu_of_the_way_to_the_world_from_a_router() -> Result<()> {
    for routing in Routing::BOTH {
        ClusterNet::test("pain49", 1, |net| {
            net.narrow(1300)?;
            net.start_agents(routing, &[])?;
            let _sink = Sink::start(net.world(), SINK)?;
            let pod = net.pod(1, "pod")?;
            for addr in [IpAddr::from(WORLD_V4), WORLD_V6.into()] {
                send(&pod.namespace, SocketAddr::new(addr, SINK), MANY)?;
                let addr = addr.to_string();
                let known = portway_tests::harness::process::output(
                    pod.namespace.command("ip").args(["route", "get", &addr]),
                )?;
                ensure!(known.contains("mtu 1300"), "the pod knows of {addr}: {known}");
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// <https://github.com/cilium/cilium/issues/37669>
#[test]
fn pain_86_clients_that_no_socket_program_sees_reach_services() -> Result<()> {
    ClusterNet::test("pain86", 2, |net| {
        net.start_agents(Routing::Tunnel, &[])?;
        let (near, far) = (net.serving_pod(1, "near")?, net.serving_pod(2, "far")?);
        net.publish(&web(), near.endpoints().into_iter().chain(far.endpoints()))?;
        let pod = net.pod(1, "vm")?;
        net.node(1).wait_programmed()?;
        // As gVisor or a virtual machine: its calls are no calls of this kernel.
        let mut guest = Probe::start(&pod.namespace, None)?;
        for to in WEB {
            let own = pod.address(to.starts_with('['));
            assert_eq!(guest.servers(to)?, ["far".to_owned(), "near".to_owned()].into(), "TCP {to}");
            assert_eq!(guest.udp_servers(to)?, ["far".to_owned(), "near".to_owned()].into(), "UDP {to}");
            for answer in [guest.tcp(to)?.unwrap(), guest.udp(to)?.unwrap()] {
                assert_eq!((answer.client.ip(), answer.peer), (own, to.to_address()?));
            }
        }
        // As a tap device: frames, and no socket at all.
        let (wire, gateway) = (pod.wire()?, pod.gateway_mac()?);
        for to in WEB {
            let to = to.to_address()?;
            let from = SocketAddr::new(pod.address(to.is_ipv6()), 40_000);
            let syn = tcp(from, to, 2);
            eventually(Duration::from_secs(2), &format!("{to} to answer a frame"), || {
                wire.send(&ethernet(wire.mac(), gateway, &syn))?;
                // Ports are the first four bytes of the answer's TCP header: the service's, then the client's.
                let ports = [to.port().to_be_bytes(), from.port().to_be_bytes()].concat();
                ensure!(wire.has_heard(&ports)?, "it does not");
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/17738>: `bpf-lb-sock-hostns-only`, for all pods of the node.
#[test]
fn pain_86_where_only_the_nodes_own_sockets_are_translated_pods_are_by_packets() -> Result<()> {
    ClusterNet::test("pain86-hostns", 2, |net| {
        net.start_agents(Routing::Native, &["--bpf-lb-sock-hostns-only=true"])?;
        let (near, far) = (net.serving_pod(1, "near")?, net.serving_pod(2, "far")?);
        net.publish(&web(), near.endpoints().into_iter().chain(far.endpoints()))?;
        net.node(1).wait_programmed()?;
        let pod = net.pod(1, "pod")?;
        let (mut client, mut node) = (net.client(&pod)?, net.node(1).client()?);
        for to in WEB {
            let both = ["far".to_owned(), "near".to_owned()].into();
            assert_eq!(client.servers(to)?, both, "TCP {to}");
            assert_eq!(client.udp_servers(to)?, both, "UDP {to}");
            assert_eq!(node.servers(to)?, both, "TCP {to} from the node");
        }
        let flows = net.node(1).portway(&["bpf", "ct", "list"])?;
        for vip in [WEB_V4, WEB_V6] {
            ensure!(flows.contains(vip), "{vip} is in no flow:\n{flows}");
        }
        Ok(())
    })
}
