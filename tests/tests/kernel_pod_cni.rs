//! The CNI plugin against the agent, as a container runtime uses it.

#[path = "kernel_pod_cni/node.rs"]
mod node;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use portway_tests::harness::cluster_net::cni::Refused;
use portway_tests::harness::cluster_net::{ClusterNet, Pod, PodSpec, Routing};
use portway_tests::harness::{Agent, Namespace, eventually};
use serde_json::json;

use node::{in_pod, json_of, link_of, links, refused, traces};

/// What the plugin answers to CHECK of a pod that it does not know.
const UNKNOWN_CONTAINER: u32 = 3;
const INCOMPATIBLE_VERSION: u32 = 1;
const NOT_AVAILABLE: u32 = 50;
const CHANGED: u32 = 102;

/// The links and routes are those of pods alone.
const NO_HEALTH: &str = "--enable-health-checking=false";

fn one_node(name: &str, body: impl FnOnce(&mut ClusterNet) -> Result<()>) -> Result<()> {
    ClusterNet::test(name, 1, |net| {
        net.node_mut(1).start_agent(Routing::Native, &[NO_HEALTH])?;
        body(net)
    })
}

#[test]
fn a_pod_has_its_addresses_the_way_out_and_the_neighbours_and_del_leaves_no_trace() -> Result<()> {
    one_node("cni-add", |net| {
        let pod = net.pod(1, "web")?;
        let node = net.node(1);
        let addresses = in_pod(&pod, &["-brief", "address", "show", "eth0"])?;
        assert!(addresses.contains(&format!("{}/32", pod.v4)), "{addresses}");
        assert!(addresses.contains(&format!("{}/128", pod.v6)), "{addresses}");
        assert!(
            in_pod(&pod, &["route"])?.starts_with("default via 169.254.1.1 dev eth0"),
            "{}",
            in_pod(&pod, &["route"])?
        );
        assert!(
            in_pod(&pod, &["-6", "route"])?.contains("default via fe80::1 dev eth0"),
            "{}",
            in_pod(&pod, &["-6", "route"])?
        );
        let neighbours = in_pod(&pod, &["neigh"])?;
        assert_eq!(neighbours.matches("PERMANENT").count(), 2, "{neighbours}");
        let routes = node.ip(&["route", "get", &pod.v4.to_string()])?;
        assert!(routes.contains("dev pw"), "{routes}");
        assert_eq!(traces(node)?, [1, 2, 2, 2]);

        // Nothing is asked for on the link: the first packet gets there and back.
        let mut client = node.client()?;
        client.ping(pod.v4.into(), 56)?.map_err(anyhow::Error::from)?;
        client.ping(pod.v6.into(), 56)?.map_err(anyhow::Error::from)?;

        let listed = node.portway(&["endpoint", "list"])?;
        assert!(listed.contains("default/web") && listed.contains("ready"), "{listed}");
        let log = node.portway(&["endpoint", "log", "web"])?;
        assert!(log.contains("creating") && log.trim_end().ends_with("its pod can start"), "{log}");
        let got = node.portway(&["endpoint", "get", &pod.v6.to_string()])?;
        assert!(got.contains(&pod.spec.uid), "{got}");

        node.delete(&pod)?;
        node.delete(&pod)?;
        assert_eq!(traces(node)?, [0; 4]);
        Ok(())
    })
}

/// The kernel drops what is sent before it has noticed the carrier, and takes its time where many links come and go. A list
/// of all interfaces shows what it has noticed; asking for one would make it look.
#[test]
fn both_ends_of_a_link_carry_packets_when_the_plugin_answers() -> Result<()> {
    one_node("cni-carrier", |net| {
        let mut pods = Vec::new();
        for number in 1..=20 {
            let pod = net.pod(1, &format!("web-{number}"))?;
            let there = in_pod(&pod, &["-oneline", "link"])?;
            let here = net.node(1).ip(&["-oneline", "link"])?;
            pods.push(pod);
            let is_up = |links: &str, name: &str| {
                links.lines().any(|link| link.contains(name) && link.contains("state UP"))
            };
            assert!(is_up(&there, " eth0@"), "{there}");
            let ours: Vec<_> = here.lines().filter(|link| link.contains(": pw")).collect();
            assert_eq!(ours.len(), number, "{here}");
            assert!(ours.iter().all(|link| link.contains("state UP")), "{here}");
        }
        Ok(())
    })
}

#[test]
fn every_version_gets_a_result_of_its_own_shape() -> Result<()> {
    one_node("cni-versions", |net| {
        let node = net.node(1);
        let (runtime, conf) = (node.runtime(), node.runtime().conf()?);
        for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let conf = conf.clone().speaking(version);
            let spec = PodSpec::new(&format!("v{version}"));
            let sandbox = Namespace::as_a_runtime_makes_it(&spec.name)?;
            let call = |command: &str| runtime.call_with(&conf, command, &spec, Some(&sandbox));
            let result = call("ADD")?.map_err(Refused::into_error)?;
            assert_eq!(result["cniVersion"], version);
            assert_eq!(result["ips"][0].get("version").is_some(), version < "1.0.0", "{result}");
            assert_eq!(result["interfaces"][1].get("mtu").is_some(), version == "1.1.0", "{result}");
            assert_eq!(result["ips"][0]["interface"], 1);
            let check = runtime.call_with(&conf.clone().after(&result), "CHECK", &spec, Some(&sandbox))?;
            match version {
                "0.3.1" => assert_eq!(refused(check)?.code, INCOMPATIBLE_VERSION),
                _ => drop(check.map_err(Refused::into_error)?),
            }
            call("DEL")?.map_err(Refused::into_error)?;
        }
        let old = runtime.call_with(
            &conf.speaking("0.2.0"),
            "ADD",
            &PodSpec::new("old"),
            Some(node.namespace()),
        )?;
        assert!(refused(old)?.details.contains("0.3.1, 0.4.0, 1.0.0, 1.1.0"));
        let version = runtime.call("VERSION", &PodSpec::new("any"), None)?.map_err(Refused::into_error)?;
        assert_eq!(version["supportedVersions"], json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"]));
        assert_eq!(traces(node)?, [0; 4]);
        Ok(())
    })
}

#[test]
fn check_says_what_has_changed() -> Result<()> {
    one_node("cni-check", |net| {
        let pod = net.pod(1, "web")?;
        let runtime = net.node(1).runtime();
        let check = || runtime.call("CHECK", &pod.spec, Some(&pod.namespace));
        check()?.map_err(Refused::into_error)?;
        in_pod(&pod, &["route", "del", "default"])?;
        let said = refused(check()?)?;
        assert!(said.code == CHANGED && said.msg.contains("default route by 169.254.1.1"), "{said:?}");
        in_pod(&pod, &["addr", "del", &format!("{}/128", pod.v6), "dev", "eth0"])?;
        let said = refused(check()?)?;
        assert!(said.msg.contains(&format!("has lost {}", pod.v6)), "{said:?}");
        net.node(1).delete(&pod)?;
        assert_eq!(refused(check()?)?.code, UNKNOWN_CONTAINER);
        Ok(())
    })
}

#[test]
fn the_nodes_own_namespace_is_not_taken_for_a_pods() -> Result<()> {
    one_node("cni-own", |net| {
        let node = net.node(1);
        let before = node.ip(&["-brief", "link"])?;
        let said = refused(node.runtime().call("ADD", &PodSpec::new("own"), Some(node.namespace()))?)?;
        assert!(said.msg.contains("node's own network namespace"), "{said:?}");
        assert_eq!(node.ip(&["-brief", "link"])?, before);
        Ok(())
    })
}

#[test]
fn a_sandbox_that_has_such_an_interface_already_is_refused_and_nothing_leaks() -> Result<()> {
    one_node("cni-exists", |net| {
        let node = net.node(1);
        let sandbox = Namespace::as_a_runtime_makes_it("taken")?;
        // A link goes with either of its ends.
        let other = Namespace::new("other")?;
        sandbox.add_veth("eth0", &other, "eth0")?;
        let said = refused(node.runtime().call("ADD", &PodSpec::new("taken"), Some(&sandbox))?)?;
        assert!(said.msg.contains("has an interface eth0 already"), "{said:?}");
        assert_eq!(traces(node)?, [0; 4]);
        Ok(())
    })
}

#[test]
fn no_address_left_is_said_with_what_to_do_and_one_that_is_freed_is_given_again() -> Result<()> {
    ClusterNet::test("cni-full", 1, |net| {
        let object = net.node(1).object_with(&["10.244.1.0/29".to_owned(), "fd00:10:244:1::/64".to_owned()]);
        net.manifests().put("node-1", [object])?;
        net.node_mut(1).start_agent(Routing::Native, &[NO_HEALTH])?;
        let pods: Vec<_> = (0..5).map(|n| net.pod(1, &format!("p{n}"))).collect::<Result<_>>()?;
        let node = net.node(1);
        let sandbox = Namespace::as_a_runtime_makes_it("sixth")?;
        let said = refused(node.runtime().call("ADD", &PodSpec::new("sixth"), Some(&sandbox))?)?;
        assert_eq!(said.code, Refused::NO_ADDRESS, "{said:?}");
        assert!(said.msg.contains("10.244.1.0/29 has 5 and all are in use"), "{said:?}");
        assert!(said.details.contains("maxPods"), "{said:?}");
        assert_eq!(traces(node)?, [5, 10, 10, 10]);
        node.delete(&pods[2])?;
        assert_eq!(node.add(&PodSpec::new("sixth"))?.v4, pods[2].v4);
        Ok(())
    })
}

#[test]
fn pods_that_ended_while_the_agent_was_down_are_gone_and_those_that_run_are_not_touched() -> Result<()> {
    one_node("cni-down", |net| {
        let pods: Vec<_> =
            ["kept", "deleted", "vanished"].iter().map(|name| net.pod(1, name)).collect::<Result<_>>()?;
        let [kept, deleted, vanished] = <[Pod; 3]>::try_from(pods).map_err(|_| anyhow!("not three"))?;
        let before = json_of(net.node(1), &["endpoint", "get", "kept"])?;
        let mut client = net.node(1).client()?;
        let link = link_of(net.node(1), &vanished)?;
        net.node_mut(1).kill_agent()?;

        // DEL does not need an agent; the sandbox stays a while, as with a runtime that is slow.
        net.node(1).delete(&deleted)?;
        net.node(1).ip(&["link", "delete", &link])?;
        // What an agent leaves that is killed in the middle of an ADD.
        net.node(1).namespace().add_veth("pw0123456789a", &Namespace::new("half")?, "eth0")?;
        client.ping(kept.v4.into(), 56)?.map_err(anyhow::Error::from)?;

        net.node_mut(1).start_agent(Routing::Native, &[NO_HEALTH])?;
        let node = net.node(1);
        assert_eq!(traces(node)?, [1, 2, 2, 2]);
        let after = json_of(node, &["endpoint", "get", "kept"])?;
        for field in ["id", "addresses", "link", "netnsCookie", "created"] {
            assert_eq!(after[field], before[field], "{field}");
        }
        assert_eq!(after["state"], "ready");
        client.ping(kept.v4.into(), 56)?.map_err(anyhow::Error::from)?;
        let other = net.pod(1, "other")?;
        assert!(![kept.v4, deleted.v4, vanished.v4].contains(&other.v4), "{} was just freed", other.v4);
        Ok(())
    })
}

#[test]
fn an_endpoint_goes_with_its_sandbox() -> Result<()> {
    one_node("cni-gone", |net| {
        let pod = net.pod(1, "web")?;
        assert_eq!(traces(net.node(1))?, [1, 2, 2, 2]);
        // The last handle: the kernel removes the namespace, and with it both ends of the link.
        drop(pod);
        eventually(Duration::from_secs(10), "the endpoint to be gone", || {
            let left = traces(net.node(1))?;
            ensure!(left == [0; 4], "there is {left:?}");
            Ok(())
        })
    })
}

#[test]
fn an_add_while_the_agent_restarts_waits_for_it() -> Result<()> {
    one_node("cni-restart", |net| {
        let runtime = net.node(1).runtime();
        net.node_mut(1).kill_agent()?;
        let adding = std::thread::spawn(move || runtime.add(&PodSpec::new("waiting")));
        net.node_mut(1).start_agent(Routing::Native, &[NO_HEALTH])?;
        let pod = adding.join().map_err(|_| anyhow!("it panicked"))??.map_err(Refused::into_error)?;
        let mut client = net.node(1).client()?;
        client.ping(pod.v6.into(), 56)?.map_err(anyhow::Error::from)?;
        Ok(())
    })
}

#[test]
fn status_and_gc_are_answered() -> Result<()> {
    one_node("cni-gc", |net| {
        let pods: Vec<_> = ["a", "b"].iter().map(|name| net.pod(1, name)).collect::<Result<_>>()?;
        let spec = PodSpec::new("any");
        {
            let runtime = net.node(1).runtime();
            runtime.call("STATUS", &spec, None)?.map_err(Refused::into_error)?;
            let conf = runtime.conf()?.valid([&pods[1].spec]);
            runtime.call_with(&conf, "GC", &spec, None)?.map_err(Refused::into_error)?;
            assert_eq!(traces(net.node(1))?, [1, 2, 2, 2]);
            assert!(net.node(1).portway(&["endpoint", "list"])?.contains("default/b"));
        }
        net.node_mut(1).kill_agent()?;
        let said = refused(net.node(1).runtime().call("STATUS", &spec, None)?)?;
        assert_eq!(said.code, NOT_AVAILABLE);
        assert!(said.details.contains("start portway-agent"), "{said:?}");
        Ok(())
    })
}

#[test]
fn a_pod_opts_out_of_socket_lb_by_its_annotation_until_it_says_otherwise() -> Result<()> {
    one_node("cni-opt-out", |net| {
        let spec = PodSpec::new("vm").without_socket_lb();
        let pod = net.make(1, &spec)?;
        let cookie = pod.namespace.cookie()?;
        let node = net.node(1);
        let opted_out = || -> Result<Option<bool>> {
            Ok(node.tables()?.netns()?.get(&cookie).map(|options| !options.translates_sockets()))
        };
        eventually(Duration::from_secs(2), "the pod to have opted out", || {
            let found = opted_out()?;
            ensure!(found == Some(true), "{found:?}");
            Ok(())
        })?;
        let mut object = spec.object(node.name(), &[pod.v4.into()]);
        object["metadata"]["annotations"] = json!({});
        net.manifests().put("pod-vm", [object])?;
        eventually(Duration::from_secs(2), "the pod to have opted in", || {
            let found = opted_out()?;
            ensure!(found.is_none(), "{found:?}");
            Ok(())
        })
    })
}

#[test]
fn a_link_that_another_plugin_made_is_taken_over_and_left_to_it() -> Result<()> {
    ClusterNet::test("cni-chained", 1, |net| {
        let conf = net.node(1).conf_path();
        let socket = net.node(1).dir().join("state/cni.sock");
        let list = json!({
            "cniVersion": "1.0.0", "name": "chained",
            "plugins": [{"type": "portway-cni", "socket-path": socket}],
        });
        std::fs::write(&conf, list.to_string())?;
        net.node_mut(1).start_agent(Routing::Native, &["--cni-chaining-mode=generic-veth", NO_HEALTH])?;
        let node = net.node(1);
        let spec = PodSpec::new("chained");
        let sandbox = Namespace::as_a_runtime_makes_it(&spec.name)?;
        node.namespace().add_veth("other0", &sandbox, "eth0")?;
        let addr: IpAddr = "10.244.1.77".parse()?;
        sandbox.add_address("eth0", addr, 32)?;
        let runtime = node.runtime();
        let said = refused(runtime.call("ADD", &spec, Some(&sandbox))?)?;
        assert!(said.details.contains("before portway-cni"), "{said:?}");
        let previous = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "other0"}, {"name": "eth0", "sandbox": sandbox.path()}],
            "ips": [{"address": format!("{addr}/32"), "interface": 1}],
            "routes": [], "dns": {},
        });
        let chained = runtime.conf()?.after(&previous);
        let result =
            runtime.call_with(&chained, "ADD", &spec, Some(&sandbox))?.map_err(Refused::into_error)?;
        assert_eq!(
            (&result["ips"], &result["interfaces"][0]),
            (&previous["ips"], &previous["interfaces"][0])
        );
        runtime
            .call_with(&runtime.conf()?.after(&result), "CHECK", &spec, Some(&sandbox))?
            .map_err(Refused::into_error)?;
        let held = node.tables()?.endpoints()?;
        let value = held.get(&addr.into()).context("no entry")?;
        let index = node.ip(&["-oneline", "link", "show", "other0"])?;
        assert!(index.starts_with(&format!("{}:", value.ifindex)), "{value:?}: {index}");
        runtime.call_with(&chained, "DEL", &spec, Some(&sandbox))?.map_err(Refused::into_error)?;
        assert!(!node.tables()?.endpoints()?.contains_key(&addr.into()));
        assert!(node.ip(&["link", "show", "other0"]).is_ok(), "it is the other plugin's");
        Ok(())
    })
}

#[test]
fn cleanup_takes_the_configuration_and_the_pods_links_away() -> Result<()> {
    one_node("cni-cleanup", |net| {
        let pod = net.pod(1, "web")?;
        net.node_mut(1).stop_agent()?;
        let node = net.node(1);
        assert!(node.conf_path().exists() && links(node)?.len() == 1);
        let state = node.places().state.display().to_string();
        let done = node.portway(&["cleanup", "--yes", "--state-dir", &state])?;
        assert!(done.contains("05-portway.conflist") && done.contains("removed the pod's link pw"), "{done}");
        assert!(!node.conf_path().exists() && links(node)?.is_empty());
        assert!(!node.places().state.join("endpoints").exists());
        drop(pod);
        Ok(())
    })
}

#[test]
fn an_agent_without_a_pod_network_takes_the_configuration_of_one_with_it_away() -> Result<()> {
    one_node("cni-off", |net| {
        net.node_mut(1).stop_agent()?;
        let node = net.node(1);
        assert!(node.conf_path().exists());
        let conf = format!("--write-cni-conf-when-ready={}", node.conf_path().display());
        let flags = ["--enable-pod-network=false", conf.as_str()];
        let agent = Agent::start(&node.places(), &flags)?;
        assert!(!node.conf_path().exists());
        agent.stop()
    })
}

#[test]
fn a_hundred_and_ten_pods_at_once_have_an_address_each_and_go_without_a_trace() -> Result<()> {
    one_node("cni-many", |net| {
        let node = net.node(1);
        let specs: Vec<_> = (0..110).map(|n| PodSpec::new(&format!("p{n}"))).collect();
        let sandboxes: Vec<_> =
            specs.iter().map(|spec| Namespace::as_a_runtime_makes_it(&spec.name)).collect::<Result<_>>()?;
        let runtime = node.runtime();
        let began = Instant::now();
        let pods: Vec<Pod> = std::thread::scope(|scope| {
            let all: Vec<_> = specs
                .iter()
                .zip(&sandboxes)
                .map(|(spec, sandbox)| scope.spawn(|| runtime.add_to(spec, sandbox)))
                .collect();
            let joined = all
                .into_iter()
                .map(|one| one.join().map_err(|_| anyhow!("it panicked"))??.map_err(Refused::into_error));
            joined.collect::<Result<_>>()
        })?;
        let took = began.elapsed();
        let addresses: BTreeSet<IpAddr> =
            pods.iter().flat_map(|pod| [pod.address(false), pod.address(true)]).collect();
        assert_eq!(addresses.len(), 220);
        assert_eq!(traces(node)?, [110, 220, 220, 220]);
        // The bar of 2 s is the bench's, on an agent built for speed.
        ensure!(took < Duration::from_secs(20), "110 pods took {took:?}");
        println!("110 pods at once: the last after {took:?}");
        std::thread::scope(|scope| {
            let all: Vec<_> = pods.iter().map(|pod| scope.spawn(|| runtime.delete(pod))).collect();
            all.into_iter().try_for_each(|one| {
                one.join().map_err(|_| anyhow!("it panicked"))??.map_err(Refused::into_error)
            })
        })?;
        assert_eq!(traces(node)?, [0; 4]);
        Ok(())
    })
}
