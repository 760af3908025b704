//! What somebody else changes in the maps is found, named and put right.

use portway_datapath::{
    BackendSlot, FrontendKind, FrontendValue, Record, RunOffset, ServiceIndex, ServiceWord,
};

use super::super::{Damage, Planner};
use super::shape::{from_scratch, shape};
use super::world::{Dice, OPTIONS, World, addr, frontend, key, service};
use crate::loadbalancer::{Desired as _, Dirty};
use crate::tables::{FaultyTables, MemoryTables, TableOp, TableWriter as _};

struct Run {
    planner: Planner,
    tables: MemoryTables,
    world: World,
    dirty: Dirty,
}

impl Run {
    fn new(world: World) -> Self {
        let mut run = Self {
            planner: Planner::new(OPTIONS),
            tables: MemoryTables::new(OPTIONS.sizes),
            dirty: world.everything(),
            world,
        };
        run.settle();
        run
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            if self.planner.reconcile(&self.world, &mut self.dirty, &mut self.tables).is_settled() {
                return;
            }
            if let Some(retired) = self.planner.take_retired() {
                self.planner.reclaim(retired);
            }
        }
        panic!("never settled");
    }

    fn damage(&self) -> Vec<Damage> {
        let mut from = ServiceIndex::new(0);
        let Ok(damage) = self.planner.damage(&self.tables, &mut from);
        assert_eq!(from, ServiceIndex::new(0), "all tables were looked at");
        damage
    }

    /// Repairs, and compares with what one plan from nothing makes.
    fn repair(&mut self) {
        let damage = self.damage();
        let failures = self.planner.repair(&damage, &mut self.dirty, &mut self.tables);
        assert!(failures.is_empty(), "{failures:?}");
        self.settle();
        assert_eq!(self.damage(), [], "after {damage:?}");
        assert_eq!(shape(&self.tables), from_scratch(&self.world, OPTIONS), "after {damage:?}");
    }
}

fn two_services() -> World {
    let (web, dns) = (key("ns/web", "http"), key("ns/dns", ""));
    let mut outside = service(&["10.1.0.1:80+l", "10.1.0.2:80"]);
    outside.reached_from_outside = true;
    outside.source_ranges = vec![(addr("192.168.0.0"), 112)];
    outside.flags = outside.flags.with(portway_datapath::ServiceFlags::SOURCE_RANGES);
    World::default()
        .with(web.clone(), outside)
        .with(dns.clone(), service(&["10.1.0.3:53"]))
        .at(frontend("10.96.0.1:80/TCP"), FrontendKind::LoadBalancer, &web)
        .at(frontend("10.96.0.2:53/TCP"), FrontendKind::ClusterIp, &dns)
}

#[test]
fn each_sort_of_damage_is_named_and_put_right() {
    let run = Run::new(two_services());
    let dump = run.tables.dump();
    let web = dump.services.iter().find(|s| s.service == "ns/web").unwrap().clone();
    let dns = dump.services.iter().find(|s| s.service == "ns/dns").unwrap().clone();
    let (http, other) = (frontend("10.96.0.1:80/TCP"), frontend("10.96.0.9:1/TCP"));
    let run_at = web.word.run().unwrap();
    let (slot_at, slot) = dump.backends[0];
    let range = dump.source_ranges[0];
    let garbage: Record = [7; 6];
    let free_slot = portway_datapath::BackendIndex::new(200);
    let name = |text: &str| Box::new(portway_datapath::ServiceName::new(text, "").unwrap());
    let cases: Vec<(TableOp, String)> = vec![
        (
            TableOp::Publish { service: web.index, word: dns.word },
            format!("service {} (ns/web:http): run", web.index.get()),
        ),
        (
            TableOp::Publish { service: web.index, word: ServiceWord::NONE },
            format!("service {} (ns/web:http): nothing, wanted run", web.index.get()),
        ),
        (TableOp::Publish { service: ServiceIndex::new(40), word: dns.word }, "service 40: run".to_owned()),
        (TableOp::WriteRun { at: run_at, records: vec![garbage] }, "run of service".to_owned()),
        (TableOp::WriteRun { at: run_at.plus(2), records: vec![garbage] }, "run of service".to_owned()),
        (
            TableOp::WriteMaglev { at: web.header.maglev_at + 3, slots: vec![9] },
            "Maglev tables of".to_owned(),
        ),
        (
            TableOp::WriteBackend {
                index: slot_at,
                slot: BackendSlot::new(99, 1, dns.index, addr("10.9.9.9"), slot.port),
            },
            format!("backend {}: 10.9.9.9:", slot_at.get()),
        ),
        (TableOp::StoreBackendState { index: slot_at, state: 0 }, format!("backend {}:", slot_at.get())),
        (TableOp::WriteBackend { index: free_slot, slot }, format!("backend {}: ", free_slot.get())),
        (TableOp::ForgetService { service: web.index }, "nothing, wanted ns/web:http".to_owned()),
        (
            TableOp::NameService { service: web.index, name: name("ns/evil") },
            "ns/evil, wanted ns/web".to_owned(),
        ),
        (
            TableOp::NameService { service: ServiceIndex::new(40), name: name("ns/evil") },
            "wanted nothing".to_owned(),
        ),
        (
            TableOp::DeleteSourceRange { service: range.0, addr: range.1, bits: range.2 },
            "nothing, wanted an entry".to_owned(),
        ),
        (
            TableOp::InsertSourceRange { service: web.index, addr: addr("10.0.0.0"), bits: 104 },
            "an entry, wanted nothing".to_owned(),
        ),
        (TableOp::DeleteFrontend { key: http }, "frontend 10.96.0.1:80/TCP: nothing, wanted".to_owned()),
        (
            TableOp::StoreFrontend {
                key: http,
                value: FrontendValue::new(&http, FrontendKind::NodePort, dns.index),
            },
            "frontend 10.96.0.1:80/TCP: NodePort of service".to_owned(),
        ),
        (
            TableOp::InsertFrontend {
                key: other,
                value: FrontendValue::new(&other, FrontendKind::ClusterIp, dns.index),
            },
            "frontend 10.96.0.9:1/TCP: ClusterIP of service".to_owned(),
        ),
    ];
    for (op, said) in cases {
        let mut run = Run::new(two_services());
        assert_eq!(run.damage(), []);
        run.tables.write(&op).unwrap();
        let damage: Vec<_> = run.damage().iter().map(ToString::to_string).collect();
        assert!(damage.len() == 1 && damage[0].contains(&said), "{op:?}: {damage:?} has no {said:?}");
        run.repair();
    }
}

/// An operation on something that the maps hold, or beside it.
fn tamper(run: &Run, dice: &mut Dice) -> Option<TableOp> {
    let dump = run.tables.dump();
    let service = dump.services.get(dice.below(dump.services.len().max(1)))?;
    let (at, slot) = *dump.backends.get(dice.below(dump.backends.len().max(1)))?;
    let (key, value) = *dump.frontends.get(dice.below(dump.frontends.len().max(1)))?;
    let number = dice.below(1 << 20) as u32;
    Some(match dice.below(8) {
        0 => TableOp::Publish {
            service: ServiceIndex::new(1 + number % 40),
            word: ServiceWord::new(RunOffset::new(number), number),
        },
        1 => {
            let at = service.word.run()?.plus(number % (2 + service.header.backends()));
            TableOp::WriteRun { at, records: vec![[number; 6]] }
        }
        2 => TableOp::StoreBackendState { index: at, state: u64::from(number) },
        3 => TableOp::WriteBackend {
            index: at,
            slot: BackendSlot::new(number, 3, slot.service, key.addr, slot.port),
        },
        4 => TableOp::DeleteFrontend { key },
        5 => {
            TableOp::StoreFrontend { key, value: FrontendValue::from_word(value.word() ^ u64::from(number)) }
        }
        6 => TableOp::ForgetService { service: service.index },
        _ if service.header.maglev_size != 0 => {
            TableOp::WriteMaglev { at: service.header.maglev_at, slots: vec![number as u16] }
        }
        _ => TableOp::InsertSourceRange { service: service.index, addr: key.addr, bits: 128 },
    })
}

#[test]
fn random_damage_is_put_right() {
    let mut dice = Dice(77);
    let mut run = Run::new(World::default());
    let (mut damaged, mut found) = (0, 0);
    for _ in 0..500 {
        let mut next = run.world.clone();
        next.mutate(&mut dice);
        run.dirty.merge(run.world.diff(&next));
        run.world = next;
        run.settle();
        assert_eq!(run.damage(), []);
        for _ in 0..=dice.below(3) {
            // A second one may go where the first one points: past the end of a map, which refuses it.
            let refused = tamper(&run, &mut dice).map(|op| run.tables.write(&op).is_err());
            damaged += usize::from(refused == Some(false));
        }
        found += run.damage().len();
        run.repair();
    }
    assert!(damaged > 500 && found > 500, "{damaged} changes, {found} found");
}

#[test]
fn maps_that_nobody_touched_are_intact_while_writes_fail() {
    let mut dice = Dice(5);
    let mut planner = Planner::new(OPTIONS);
    let mut tables = FaultyTables::new(MemoryTables::new(OPTIONS.sizes), 4, 9);
    let (mut world, mut dirty) = (World::default(), Dirty::default());
    for _ in 0..3000 {
        let mut next = world.clone();
        next.mutate(&mut dice);
        dirty.merge(world.diff(&next));
        world = next;
        let _ = planner.reconcile(&world, &mut dirty, &mut tables);
        let Ok(damage) = planner.damage(&tables.inner, &mut ServiceIndex::new(0));
        assert_eq!(damage, []);
        if dice.one_in(2)
            && let Some(retired) = planner.take_retired()
        {
            planner.reclaim(retired);
        }
    }
}
