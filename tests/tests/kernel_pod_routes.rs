//! What the agent has in its node's namespace for other nodes: the tunnel device, routes, settings, the table of devices.
//! It follows nodes and the machine, touches nothing of others, and cleanup leaves nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use portway_datapath::{Addr, IpcacheValue};
use portway_tests::harness::cluster_net::{Node, PodSpec, Routing};
use portway_tests::harness::{ClusterNet, eventually};

const LIMIT: Duration = Duration::from_secs(5);

/// The routes of our owner tag that lead to other nodes, as `ip` shows them, without what it adds by itself.
fn routes(node: &Node) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for family in ["-4", "-6"] {
        for line in node.ip(&[family, "route", "show", "proto", "80"])?.lines() {
            let words: Vec<_> = line.split_whitespace().take_while(|word| *word != "pref").collect();
            let line = words.join(" ").replace(" metric 1024", "").replace(" dev lo", "");
            // Of a pod's link; the health endpoint has one.
            if !line.contains(" dev pw") || line.contains(" dev pw_vxlan") {
                all.insert(line);
            }
        }
    }
    Ok(all)
}

fn wait_for_routes(node: &Node, wanted: &[&str]) -> Result<()> {
    let wanted: BTreeSet<String> = wanted.iter().map(|line| (*line).to_owned()).collect();
    eventually(LIMIT, "the routes to be those of the cluster", || {
        let found = routes(node)?;
        ensure!(found == wanted, "found {found:#?}\nwanted {wanted:#?}");
        Ok(())
    })
}

fn addr(text: &str) -> Addr {
    let parsed = text.parse::<IpAddr>();
    Addr::from(parsed.unwrap_or_else(|error| unreachable!("{text}: {error}")))
}

fn sysctl(node: &Node, name: &str) -> Result<String> {
    let name = name.to_owned();
    node.namespace().run(move || {
        let path = format!("/proc/sys/net/{name}");
        Ok(std::fs::read_to_string(&path).with_context(|| path)?.trim().to_owned())
    })
}

const OWN: [&str; 2] = ["unreachable 10.244.1.0/24", "unreachable fd00:10:244:1::/64"];
const TUNNEL_2: [&str; 2] = [
    "10.244.2.0/24 dev pw_vxlan src 172.18.0.11 mtu 1450",
    "fd00:10:244:2::/64 dev pw_vxlan src fd00:172:18::11 mtu 1450",
];
const TUNNEL_3: [&str; 2] = [
    "10.244.3.0/24 dev pw_vxlan src 172.18.0.11 mtu 1450",
    "fd00:10:244:3::/64 dev pw_vxlan src fd00:172:18::11 mtu 1450",
];

#[test]
fn nodes_come_change_and_go_and_the_tunnels_routes_with_them() -> Result<()> {
    ClusterNet::test("routes-tunnel", 3, |net| {
        net.node_mut(1).start_agent(Routing::Tunnel, &[])?;
        wait_for_routes(net.node(1), &[OWN, TUNNEL_2, TUNNEL_3].concat())?;
        let link = net.node(1).ip(&["-d", "link", "show", "pw_vxlan"])?;
        for what in ["mtu 1450", "NOARP", "external", "dstport 8472", "02:70:77:00:00:01"] {
            ensure!(link.contains(what), "no {what} in {link}");
        }
        let addresses = net.node(1).ip(&["address", "show", "pw_vxlan"])?;
        ensure!(!addresses.contains("inet"), "the tunnel device has an address: {addresses}");
        let ipcache = net.node(1).tables()?.ipcache()?;
        let pods = ipcache.get(&(addr("10.244.2.0"), 120)).context("no entry of the other node's pods")?;
        ensure!(pods.tunnel() == Some(addr("172.18.0.12")) && pods.is(IpcacheValue::PODS), "{pods:?}");
        // A node goes, another one gets another prefix.
        net.manifests().remove(net.node(3).name())?;
        let moved = net.node(2).object_with(&["10.244.9.0/24".to_owned()]);
        net.manifests().put(net.node(2).name(), [moved])?;
        let moved = ["10.244.9.0/24 dev pw_vxlan src 172.18.0.11 mtu 1450"];
        wait_for_routes(net.node(1), &[&OWN[..], &moved].concat())?;
        let ipcache = net.node(1).tables()?.ipcache()?;
        ensure!(!ipcache.contains_key(&(addr("10.244.2.0"), 120)), "the earlier prefix is still there");
        ensure!(!ipcache.contains_key(&(addr("172.18.0.13"), 128)), "the node that went is still there");
        Ok(())
    })
}

#[test]
fn direct_routes_lead_by_nodes_on_the_link_and_others_are_named() -> Result<()> {
    ClusterNet::test("routes-native", 2, |net| {
        let mut far = net.node(2).object_with(&["10.244.7.0/24".to_owned()]);
        far["metadata"]["name"] = "far".into();
        far["status"]["addresses"] = serde_json::json!([{"type": "InternalIP", "address": "203.0.113.7"}]);
        net.manifests().put("far", [far])?;
        net.node_mut(1).start_agent(Routing::Native, &[])?;
        let direct = [
            "10.244.2.0/24 via 172.18.0.12 dev eth0 src 172.18.0.11",
            "fd00:10:244:2::/64 via fd00:172:18::12 dev eth0 src fd00:172:18::11",
        ];
        wait_for_routes(net.node(1), &[OWN, direct].concat())?;
        let said = net.node(1).agent.as_ref().context("no agent runs")?.log();
        ensure!(said.contains("203.0.113.7 is on no link of this node"), "{said}");
        ensure!(
            net.node(1).ip(&["link"])?.lines().all(|line| !line.contains("pw_vxlan")),
            "there is a tunnel"
        );
        Ok(())
    })
}

#[test]
fn what_an_earlier_agent_left_is_swept_and_what_others_have_stays() -> Result<()> {
    ClusterNet::test("routes-sweep", 3, |net| {
        let via = "172.18.0.1";
        for (prefix, protocol) in
            [("10.99.0.0/24", "80"), ("10.98.0.0/24", "81"), ("10.244.3.0/24", "static")]
        {
            net.node(1).ip(&["route", "add", prefix, "via", via, "proto", protocol])?;
        }
        net.node(1).ip(&["route", "add", "10.97.0.0/24", "via", via, "proto", "80", "table", "7"])?;
        net.node_mut(1).start_agent(Routing::Tunnel, &[])?;
        let wanted = [&OWN[..], &TUNNEL_2, &TUNNEL_3[1..]].concat();
        wait_for_routes(net.node(1), &wanted)?;
        let all = net.node(1).ip(&["route"])?;
        ensure!(all.contains("10.98.0.0/24") && all.contains("10.244.3.0/24 via 172.18.0.1"), "{all}");
        let said = net.node(1).agent.as_ref().context("no agent runs")?.log();
        ensure!(said.contains("10.244.3.0/24"), "the clash is not named: {said}");
        // With another routing the tunnel goes, and with it its routes.
        net.node_mut(1).stop_agent()?;
        net.node_mut(1).start_agent(Routing::Native, &[])?;
        eventually(LIMIT, "the tunnel device to go", || {
            ensure!(!net.node(1).ip(&["link"])?.contains("pw_vxlan"));
            Ok(())
        })?;
        // Without a pod network there are none at all.
        net.node_mut(1).stop_agent()?;
        net.node_mut(1).spawn_agent(Routing::Native, &["--enable-pod-network=false"])?;
        net.node_mut(1).agent.as_mut().context("no agent runs")?.wait_ready()?;
        wait_for_routes(net.node(1), &[])?;
        // Routes with our owner tag that come later are somebody else's.
        ensure!(!net.node(1).dir().join("state/pod-network").exists(), "the note of a pod network is left");
        Ok(())
    })
}

#[test]
fn a_restart_changes_no_route_and_cleanup_leaves_none() -> Result<()> {
    ClusterNet::test("routes-restart", 2, |net| {
        let before = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"].map(|name| sysctl(net.node(1), name));
        let before: Vec<String> = before.into_iter().collect::<Result<_>>()?;
        ensure!(before == ["0", "0"], "{before:?}");
        // A link that is no device learns its routes from routers, too.
        net.node(1).ip(&["link", "add", "eth9", "type", "veth", "peer", "name", "far9"])?;
        let router = "ipv6/conf/eth9/accept_ra";
        ensure!(sysctl(net.node(1), router)? == "1");
        net.node_mut(1).start_agent(Routing::Tunnel, &[])?;
        let wanted = [OWN, TUNNEL_2].concat();
        wait_for_routes(net.node(1), &wanted)?;
        ensure!(sysctl(net.node(1), "ipv4/ip_forward")? == "1");
        ensure!(sysctl(net.node(1), router)? == "2", "routers of eth9 are not listened to any more");
        ensure!(sysctl(net.node(1), "ipv6/conf/lo/accept_ra")? == "1");
        let index = net.node(1).ip(&["-o", "link", "show", "pw_vxlan"])?;
        let monitor = net
            .node(1)
            .namespace()
            .command("ip")
            .args(["monitor", "route", "link"])
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        net.node_mut(1).kill_agent()?;
        net.node_mut(1).start_agent(Routing::Tunnel, &[])?;
        wait_for_routes(net.node(1), &wanted)?;
        let said = finish(monitor)?;
        let touched: Vec<_> =
            said.lines().filter(|line| line.contains("pw_vxlan") || line.contains("unreachable")).collect();
        ensure!(touched.is_empty(), "a restart touched {touched:#?}");
        ensure!(
            index == net.node(1).ip(&["-o", "link", "show", "pw_vxlan"])?,
            "the tunnel device was made anew"
        );
        net.node_mut(1).stop_agent()?;
        let state = net.node(1).dir().join("state").display().to_string();
        let done = net.node(1).portway(&["cleanup", "--yes", "--state-dir", &state])?;
        ensure!(done.contains("removed pw_vxlan"), "{done}");
        ensure!(routes(net.node(1))?.is_empty(), "{:?}", routes(net.node(1))?);
        let after = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"].map(|name| sysctl(net.node(1), name));
        ensure!(
            after.into_iter().collect::<Result<Vec<_>>>()? == before,
            "forwarding is not put back: {done}"
        );
        ensure!(sysctl(net.node(1), router)? == "1", "accept_ra is not put back: {done}");
        Ok(())
    })
}

/// What a process has said by now; it ends.
fn finish(mut process: std::process::Child) -> Result<String> {
    process.kill()?;
    Ok(String::from_utf8_lossy(&process.wait_with_output()?.stdout).into_owned())
}

#[test]
fn the_devices_follow_the_machine() -> Result<()> {
    ClusterNet::test("routes-devices", 2, |net| {
        net.node_mut(1).start_agent(Routing::Tunnel, &[])?;
        let node = net.node(1);
        let masquerades = |wanted: &str| {
            eventually(LIMIT, &format!("{wanted} to be what masquerading takes"), || {
                let devices = node.tables()?.devices()?;
                ensure!(devices.len() == 1, "{devices:?}");
                ensure!(devices.values().all(|device| device.v4 == addr(wanted)), "{devices:?}");
                Ok(())
            })
        };
        masquerades("172.18.0.11")?;
        // The node's link gets shorter, and what goes through the tunnel with it.
        node.namespace().set_mtu("eth0", 1400)?;
        eventually(LIMIT, "the tunnel's MTU to follow", || {
            let link = node.ip(&["link", "show", "pw_vxlan"])?;
            ensure!(link.contains("mtu 1350"), "{link}");
            ensure!(routes(node)?.iter().any(|line| line.contains("mtu 1350")), "{:?}", routes(node)?);
            Ok(())
        })?;
        // The node's address moves: while the object has the old one, masquerading takes what the device has.
        node.namespace().add_address("eth0", "172.19.0.77".parse()?, 24)?;
        node.namespace().delete_address("eth0", node.v4().into())?;
        masquerades("172.19.0.77")
    })
}

#[test]
fn a_taken_tunnel_port_keeps_no_pod_from_being_served() -> Result<()> {
    ClusterNet::test("routes-refused", 2, |net| {
        net.node(1).ip(&["link", "add", "other", "type", "vxlan", "external", "dstport", "8472"])?;
        net.node(1).ip(&["link", "set", "other", "up"])?;
        net.node_mut(1).start_agent(Routing::Tunnel, &[])?;
        let said = net.node(1).agent.as_ref().context("no agent runs")?.log();
        ensure!(said.contains("UDP port 8472"), "the taken port is not named: {said}");
        let pod = net.node(1).add(&PodSpec::new("first"))?;
        net.node(1).delete(&pod)?;
        let unreachable = ["unreachable 10.244.2.0/24", "unreachable fd00:10:244:2::/64"];
        wait_for_routes(net.node(1), &[OWN, unreachable].concat())?;
        // As soon as the port is free the tunnel is there.
        net.node(1).ip(&["link", "delete", "other"])?;
        wait_for_routes(net.node(1), &[OWN, TUNNEL_2].concat())
    })
}
