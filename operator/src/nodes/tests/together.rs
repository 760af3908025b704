//! All that is written of nodes, together: two operators take turns in the lead, each with what it happened to see.

use portway_datapath::Family;

use super::*;
use crate::fake_api::Dice;
use crate::ipam::{self, Ipam, PATIENCE, Pool};

const TAINT: &str = "node.cilium.io/agent-not-ready";

fn controllers() -> Vec<Box<dyn Controller>> {
    let pools = vec![Pool::parse(Family::V4, "10.0.0.0/16", 24).unwrap()];
    let pools = ipam::Config { namespace: "kube-system".to_owned(), pools, workers: 10, patience: PATIENCE };
    let metrics = ipam::Metrics::new(&prometheus::Registry::new()).unwrap();
    let readiness = ReadinessConfig {
        agents: agents(),
        taint_key: TAINT.to_owned(),
        remove_taint: true,
        set_taint: true,
        set_condition: true,
        workers: 10,
    };
    vec![
        Box::new(discovery()),
        Box::new(Ipam::new(pools, metrics)),
        Box::new(Readiness::new(readiness)),
        Box::new(Gc::new(Duration::from_secs(60))),
    ]
}

struct Operator {
    replica: Replica,
    controllers: Vec<Box<dyn Controller>>,
}

impl Operator {
    fn new(api: &FakeApi) -> Self {
        Self { replica: Replica::new(api), controllers: controllers() }
    }

    /// Plans of all controllers, from what it has seen.
    fn plans(&mut self, api: &FakeApi) -> Vec<Write> {
        let observed = &self.replica.observed;
        self.controllers.iter_mut().flat_map(|controller| controller.plan(observed, at(api)).writes).collect()
    }
}

fn step(api: &mut FakeApi, dice: &mut Dice, operators: &mut [Operator; 2], late: &mut Vec<Write>) {
    let name = format!("n{}", dice.roll(4));
    api.clock += i64::try_from(dice.roll(20)).unwrap();
    let which = dice.roll(2);
    match dice.roll(12) {
        0 => {
            let taints = json!([{"key": TAINT, "effect": "NoSchedule"}]);
            let conditions = json!([{"type": "Ready", "status": "True"}]);
            api.put(
                Kind::Node,
                &name,
                json!({"spec": {"taints": taints}, "status": {"conditions": conditions}}),
            );
        }
        1 => node(api, &name),
        2 | 3 => agent(api, &name, dice.roll(2) == 0),
        4 => api.remove(Kind::Node, &name),
        5 => api.remove(Kind::Pod, &format!("kube-system/portway-{name}")),
        6 => api.remove(Kind::CiliumNode, &name),
        7 => {
            let kind = [Kind::Node, Kind::Pod, Kind::CiliumNode, Kind::ClusterPool][dice.roll(4)];
            operators[which].replica.follow(api, kind, 1 + dice.roll(10));
        }
        8 => operators[which] = Operator::new(api),
        9 if !late.is_empty() => drop(api.write(&late.swap_remove(dice.roll(late.len())))),
        _ => {
            for write in operators[which].plans(api) {
                if dice.roll(3) == 0 { late.push(write) } else { drop(api.write(&write)) }
            }
        }
    }
}

#[test]
fn every_history_ends_with_each_node_as_its_agent_is() {
    for seed in 0..200 {
        let (mut api, mut dice, mut late) = (FakeApi::default(), Dice(seed), Vec::new());
        let mut operators = [Operator::new(&api), Operator::new(&api)];
        for _ in 0..150 {
            step(&mut api, &mut dice, &mut operators, &mut late);
        }
        // Watches of all kinds tell something newer than any Node.
        for kind in [Kind::Node, Kind::Pod, Kind::CiliumNode] {
            api.put(kind, "last", json!({"spec": {}}));
        }
        let mut last = Operator::new(&api);
        let mut quiet = 0;
        while quiet < 40 {
            let writes = last.plans(&api);
            quiet = if writes.is_empty() { quiet + 1 } else { 0 };
            writes.iter().for_each(|write| drop(api.write(write)));
            last.replica.catch_up(&api);
            api.clock += 30;
        }
        check(&api, seed);
    }
}

fn check(api: &FakeApi, seed: u64) {
    for node in api.all(Kind::Node) {
        let name = node["metadata"]["name"].as_str().unwrap();
        let cilium_node = api.get(Kind::CiliumNode, name).unwrap();
        assert_eq!(cilium_node["spec"]["ipam"]["podCIDRs"].as_array().unwrap().len(), 1, "{seed} {name}");
        let pod = api.get(Kind::Pod, &format!("kube-system/portway-{name}"));
        let Some(ready) = pod.map(|pod| pod["status"]["conditions"][0]["status"] == "True") else { continue };
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let is_tainted = taints.filter(|taint| taint["key"] == TAINT).count() > 0;
        let reports = node["status"]["conditions"].as_array().into_iter().flatten();
        let reports = reports.filter(|condition| condition["type"] == "Ready").count() > 0;
        assert!(!(ready && is_tainted), "{seed} {name}: {node}");
        assert!(ready || is_tainted || !reports, "{seed} {name}: {node}");
    }
    let alone = api
        .all(Kind::CiliumNode)
        .filter(|of| api.get(Kind::Node, of["metadata"]["name"].as_str().unwrap()).is_none());
    assert_eq!(alone.count(), 0, "{seed}");
}
