//! `sessionAffinity: ClientIP`: inside the cluster the client is a network namespace.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::endpoints;
use portway_tests::harness::{Pod, Probe, World};

fn four_pods(world: &mut World) -> Result<Vec<Pod>> {
    world.serving_pods(&["a", "b", "c", "d"])
}

/// The one server of 40 connects.
fn only_server(client: &mut Probe, to: &str) -> Result<String> {
    let servers: Vec<String> = client.servers(to)?.into_iter().collect();
    assert_eq!(servers.len(), 1, "{to}: {servers:?}");
    Ok(servers[0].clone())
}

#[test]
fn pain_13_by_socket_lb_alone_all_sockets_of_a_namespace_go_to_one_backend() -> Result<()> {
    World::test("affinity", |world| {
        let pods = four_pods(world)?;
        world.publish(&web().affinity(600), endpoints(&pods.iter().collect::<Vec<_>>()))?;
        world.start_agent(&[])?;
        let mut clients: Vec<Probe> = pods.iter().map(|pod| world.client(pod)).collect::<Result<_>>()?;
        clients.push(world.node_client()?);
        for to in WEB {
            for client in &mut clients {
                let server = only_server(client, to)?;
                assert_eq!(client.udp_servers(to)?.len(), 1, "{to}");
                // A second process of the same pod is the same client.
                assert_eq!(only_server(client, to)?, server);
            }
        }
        let mut second = world.client(&pods[0])?;
        assert_eq!(only_server(&mut second, WEB[0])?, only_server(&mut clients[0], WEB[0])?);
        Ok(())
    })
}

#[test]
fn affinity_lasts_while_it_is_used_and_ends_when_it_is_not() -> Result<()> {
    World::test("expiry", |world| {
        let pods = four_pods(world)?;
        world.publish(&web().affinity(1), endpoints(&pods.iter().collect::<Vec<_>>()))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        // 12 connects in 3 seconds: never a second without one.
        let tally = client.connects(&[WEB[0].parse()?], 12, 4)?;
        assert_eq!((tally.by_name.len(), tally.answers()), (1, 12), "{tally:?}");
        // After a second without, any backend will do: the same one ten times over comes once in 260,000.
        let mut servers = BTreeSet::new();
        for _ in 0..10 {
            servers.insert(client.tcp(WEB[0])?.unwrap().name);
            if servers.len() > 1 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1100));
        }
        panic!("still only {servers:?}");
    })
}

#[test]
fn a_client_gets_another_backend_when_its_own_is_removed() -> Result<()> {
    World::test("affinityremoved", |world| {
        let pods = four_pods(world)?;
        let service = web().affinity(600);
        world.publish(&service, endpoints(&pods.iter().collect::<Vec<_>>()))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        for to in WEB {
            let first = only_server(&mut client, to)?;
            let rest: Vec<&Pod> = pods.iter().filter(|pod| pod.name != first).collect();
            world.publish(&service, endpoints(&rest))?;
            let second =
                portway_tests::harness::eventually(Duration::from_secs(5), "another backend", || {
                    let server = client.tcp(to)?.unwrap().name;
                    anyhow::ensure!(server != first, "{server} still answers");
                    Ok(server)
                })?;
            assert_eq!(only_server(&mut client, to)?, second);
            // The first one's return does not move the client back.
            world.publish(&service, endpoints(&pods.iter().collect::<Vec<_>>()))?;
            world.wait_programmed()?;
            assert_eq!(only_server(&mut client, to)?, second);
        }
        Ok(())
    })
}

#[test]
fn affinity_that_is_switched_on_and_off_takes_hold_at_once() -> Result<()> {
    World::test("affinityswitch", |world| {
        let pods = four_pods(world)?;
        let all: Vec<&Pod> = pods.iter().collect();
        world.publish(&web(), endpoints(&all))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        client.wait_servers(WEB[0], &["a", "b", "c", "d"])?;
        world.publish(&web().affinity(600), endpoints(&all))?;
        portway_tests::harness::eventually(Duration::from_secs(5), "one server", || {
            let servers = client.servers(WEB[0])?;
            anyhow::ensure!(servers.len() == 1, "{servers:?}");
            Ok(())
        })?;
        world.publish(&web(), endpoints(&all))?;
        client.wait_servers(WEB[0], &["a", "b", "c", "d"])
    })
}
