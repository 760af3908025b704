//! What it costs, counted: operations, questions and bytes, never time.

use std::cell::Cell;

use portway_datapath::FrontendKey;
use portway_model::k8s::ObjectKind::{EndpointSlice, Service};
use portway_model::k8s::{Manifests, Watched};
use portway_model::loadbalancer::{
    Config, Desired, DesiredFrontend, DesiredService, Dirty, LoadBalancer, ServicePortKey,
};
use portway_model::plan::{Options, Planner};
use portway_model::tables::MemoryTables;

use super::node::{Counted, SIZES, service, slice, tally};

/// A wanted state that counts how often it is asked.
struct Asked<'a> {
    balancer: &'a LoadBalancer,
    questions: Cell<usize>,
}

impl Asked<'_> {
    fn count(&self) {
        self.questions.set(self.questions.get() + 1);
    }
}

impl Desired for Asked<'_> {
    fn service(&self, key: &ServicePortKey) -> Option<DesiredService> {
        self.count();
        self.balancer.service(key)
    }

    fn frontend(&self, key: &FrontendKey) -> Option<DesiredFrontend> {
        self.count();
        self.balancer.frontend(key)
    }

    fn frontends_of(&self, key: &ServicePortKey) -> Vec<FrontendKey> {
        self.count();
        self.balancer.frontends_of(key)
    }

    fn everything(&self) -> Dirty {
        self.balancer.everything()
    }
}

fn cluster(services: usize) -> LoadBalancer {
    let mut manifests = Manifests::new();
    let mut balancer = LoadBalancer::new(Config::new("node-a"));
    for n in 0..services {
        let (a, b) = (n / 250, 1 + n % 250);
        let object = service(&format!("s{n}"), 1, &format!("10.96.{a}.{b}"), "");
        let endpoints = [&*format!("10.2.{a}.{b}"), &format!("10.3.{a}.{b}"), &format!("10.4.{a}.{b}")];
        let slice = slice(&format!("s{n}-x"), 2, &format!("s{n}"), &endpoints);
        for (kind, object) in [(Service, &object), (EndpointSlice, &slice)] {
            let change = manifests.watched(kind, Watched::Applied(object));
            change.events.into_iter().for_each(|event| balancer.apply(event));
        }
    }
    balancer
}

/// Questions and operations of a first plan; of a restart that finds the same; of one changed service among them.
fn costs(services: usize) -> [usize; 5] {
    let mut balancer = cluster(services);
    let options = Options { sizes: SIZES, maglev: None };
    let mut planner = Planner::new(options);
    let mut maps = Counted { tables: MemoryTables::new(SIZES), ops: Vec::new() };
    let mut dirty = balancer.take_dirty();
    let asked = Asked { balancer: &balancer, questions: Cell::new(0) };
    assert!(planner.reconcile(&asked, &mut dirty, &mut maps).is_settled());
    let first = (asked.questions.get(), maps.ops.len());
    let mut again = Planner::new(options);
    again.restore(&maps.tables.dump());
    let mut dirty = balancer.everything();
    let asked = Asked { balancer: &balancer, questions: Cell::new(0) };
    assert!(again.prune(&asked, &mut dirty, &mut maps).is_settled());
    assert_eq!(maps.ops.len(), first.1, "a restart that finds the same writes nothing");
    let restart = asked.questions.get();
    let mut manifests = Manifests::new();
    let change = manifests.watched(EndpointSlice, Watched::Applied(&slice("s7-x", 3, "s7", &["10.2.0.8"])));
    change.events.into_iter().for_each(|event| balancer.apply(event));
    let mut dirty = balancer.take_dirty();
    maps.ops.clear();
    let asked = Asked { balancer: &balancer, questions: Cell::new(0) };
    assert!(again.reconcile(&asked, &mut dirty, &mut maps).is_settled());
    assert_eq!(tally(&maps.ops), [("run", 1), ("publish", 1), ("state", 2)].into());
    [first.0, first.1, restart, asked.questions.get(), maps.ops.len()]
}

#[test]
fn pain_81_a_first_plan_of_six_thousand_services_is_linear_and_one_change_costs_one_service() {
    let (third, all) = (costs(2_000), costs(6_000));
    let [questions, operations, restart, change_questions, change_operations] = all;
    assert_eq!([third[0] * 3, third[1] * 3, third[2] * 3], [questions, operations, restart]);
    assert_eq!([third[3], third[4]], [change_questions, change_operations]);
    // Name, three slots, run, publication and frontend of each service.
    assert_eq!(operations, 6_000 * 7);
    assert!(questions <= 6_000 * 8 && restart <= 6_000 * 12 && change_questions <= 8, "{all:?}");
}
