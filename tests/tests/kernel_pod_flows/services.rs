//! The two entries of a flow to a service.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use portway_agent::conntrack::{Ended, Trust};
use portway_agent::maps::PodMapId;
use portway_datapath::{Addr, FlowKey, FlowValue, Port};

use super::{FRONTEND, Node, UDP, backend, plain, pod, unchanged};

#[test]
fn the_two_entries_of_a_flow_to_a_service_stay_and_go_together() -> Result<()> {
    let mut node = Node::small()?;
    let service = |port| FlowKey::new((pod(7), Port::new(port)), FRONTEND, UDP, FlowKey::SERVICE);
    let to = |peer: (Addr, Port)| move |value: &mut FlowValue| (value.other, value.other_port) = peer;
    // The client only listens: its entry under the frontend is old, answers keep coming.
    node.flow(service(1), 500, to(backend(1)))?;
    node.flow(plain(1, backend(1), UDP), 5, to(FRONTEND))?;
    // The same of a connection that leaves from another port than the client's own. Whose port it was goes alone.
    let from = |peer: (Addr, Port), port| {
        move |value: &mut FlowValue| {
            (value.other, value.other_port) = peer;
            value.other_local_port = Port::new(port);
        }
    };
    let stays = [
        node.flow(service(3), 500, from(backend(1), 1500))?,
        node.flow(plain(1500, backend(1), UDP), 5, from(FRONTEND, 3))?,
    ];
    node.flow(plain(3, backend(1), UDP), 70, unchanged)?;
    // What an earlier flow left says nothing of the one that has its port now: that is there, and this goes.
    node.flow(service(1501), 500, to(backend(2)))?;
    node.flow(plain(1501, backend(2), UDP), 5, unchanged)?;
    // Nothing either way.
    node.flow(service(2), 70, to(backend(1)))?;
    node.flow(plain(2, backend(1), UDP), 80, to(FRONTEND))?;
    let passed = node.pass(Trust::default())?;
    ensure!(passed.removed == BTreeMap::from([((PodMapId::Conntrack, Ended::Idle), 4)]), "{passed:?}");
    let left = node.flows()?;
    ensure!(left.contains(&service(1)) && left.contains(&plain(1, backend(1), UDP)), "{left:?}");
    ensure!(stays.iter().all(|key| left.contains(key)) && left.len() == 5, "{left:?}");
    Ok(())
}
