//! The state machine against an oracle that keeps every packet and reads the state from the whole history.

use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::packet_tables::memory::Memory;
use crate::{Direction, Reason};

const SECOND: u64 = 1_000_000_000;

const FIN: u8 = TcpFlags::FIN;
const SYN: u8 = TcpFlags::SYN;
const RST: u8 = TcpFlags::RST;
const ACK: u8 = TcpFlags::ACK;

#[derive(Clone, Copy, Debug)]
struct Event {
    flow: u16,
    direction: Direction,
    flags: u8,
    bytes: u32,
    /// Nanoseconds since the event before.
    after: u64,
}

fn key(flow: u16, protocol: u8) -> FlowKey {
    let local = (Addr::v4([10, 1, 0, 1]), Port::new(40_000 + flow));
    FlowKey::new(local, (Addr::v4([10, 1, 0, 2]), Port::new(80)), protocol, FlowKey::PLAIN)
}

/// As the programs do.
fn see(tables: &Memory, protocol: u8, event: &Event, now: u64) {
    let key = key(event.flow, protocol);
    let flags = TcpFlags::new(if protocol == protocol::TCP { event.flags } else { 0 });
    let sighting = Sighting { direction: event.direction, protocol, flags, bytes: event.bytes, now };
    match tables.flow(&key) {
        Some(flow) => {
            touch(tables, &key, flow, &sighting);
        }
        None => {
            begin(tables, &key, &sighting, &Translated::NOT);
        }
    }
}

/// What the history of a flow comes to.
#[derive(Debug, PartialEq, Eq)]
struct State {
    from_peer: bool,
    /// FIN, SYN, RST that were seen each way, and whether anything was.
    out: u8,
    into: u8,
    packets: (u64, u64),
    bytes: (u64, u64),
    established: bool,
}

/// The naive reading. A flow is what happened since the last SYN that came when everything before was over. It was established
/// once, in any of its lives, if the one who began answered an answer.
fn oracle(protocol: u8, history: &[Event]) -> State {
    let tcp = protocol == protocol::TCP;
    let mut lives: Vec<Vec<&Event>> = Vec::new();
    let seen = |life: &[&Event], way: Direction| {
        let of_way = life.iter().filter(|event| event.direction == way);
        of_way.fold(0, |bits, event| {
            bits | FlowValue::SEEN | if tcp { event.flags & (FIN | SYN | RST) } else { 0 }
        })
    };
    let over = |life: &[&Event]| {
        let (out, into) = (seen(life, Direction::Egress), seen(life, Direction::Ingress));
        (out | into) & RST != 0 || (out & FIN != 0 && into & FIN != 0)
    };
    for event in history {
        let opens = tcp && event.flags & (SYN | ACK | RST) == SYN;
        match lives.last_mut() {
            Some(life) if !(opens && over(life)) => life.push(event),
            Some(_) | None => lives.push(std::vec![event]),
        }
    }
    // Nobody begins with the answer to a SYN.
    let first = |life: &[&Event]| {
        let answers = tcp && life[0].flags & (SYN | ACK | RST) == SYN | ACK;
        match life[0].direction {
            Direction::Egress if answers => Direction::Ingress,
            Direction::Ingress if answers => Direction::Egress,
            direction @ (Direction::Egress | Direction::Ingress) => direction,
        }
    };
    let completed = |life: &Vec<&Event>| {
        let first = first(life);
        life.iter().enumerate().any(|(n, event)| {
            let before = &life[..=n];
            let both = seen(before, Direction::Egress) & seen(before, Direction::Ingress) != 0;
            let ends = event.flags & ACK != 0 && event.flags & (SYN | RST) == 0 && event.direction == first;
            both && (!tcp || ends)
        })
    };
    let life = lives.last().unwrap();
    let total = |way| {
        let of_way = history.iter().filter(move |event| event.direction == way);
        of_way.fold((0, 0), |(packets, bytes), event| (packets + 1, bytes + u64::from(event.bytes)))
    };
    let (out, into) = (total(Direction::Egress), total(Direction::Ingress));
    State {
        from_peer: first(life) == Direction::Ingress,
        out: seen(life, Direction::Egress),
        into: seen(life, Direction::Ingress),
        packets: (out.0, into.0),
        bytes: (out.1, into.1),
        established: lives.iter().any(completed),
    }
}

fn state(tables: &Memory, key: &FlowKey) -> State {
    let (map, value) = tables.entry(key).unwrap();
    State {
        from_peer: value.is(FlowValue::FROM_PEER),
        out: value.seen_out,
        into: value.seen_in,
        packets: (value.packets_out, value.packets_in),
        bytes: (value.bytes_out, value.bytes_in),
        established: map == FlowMap::Established,
    }
}

fn event() -> impl Strategy<Value = Event> {
    let flags = prop_oneof![
        3 => Just(SYN),
        3 => Just(SYN | ACK),
        6 => Just(ACK),
        2 => Just(FIN | ACK),
        1 => Just(RST),
        1 => Just(RST | ACK),
        1 => any::<u8>().prop_map(|bits| bits & 0x1f),
    ];
    let way = prop_oneof![Just(Direction::Egress), Just(Direction::Ingress)];
    (0..3u16, way, flags, 60..1500u32, 0..2 * SECOND)
        .prop_map(|(flow, direction, flags, bytes, after)| Event { flow, direction, flags, bytes, after })
}

proptest! {
    #[test]
    fn every_history_is_read_as_the_oracle_reads_it(
        tcp in any::<bool>(),
        events in proptest::collection::vec(event(), 1..40),
    ) {
        let protocol = if tcp { protocol::TCP } else { protocol::UDP };
        let tables = Memory::new();
        let mut now = tables.now;
        let mut histories: BTreeMap<u16, Vec<Event>> = BTreeMap::new();
        let mut last: BTreeMap<u16, u64> = BTreeMap::new();
        for event in events {
            now += event.after;
            see(&tables, protocol, &event, now);
            let history = histories.entry(event.flow).or_default();
            history.push(event);
            last.insert(event.flow, now);
            let key = key(event.flow, protocol);
            prop_assert_eq!(state(&tables, &key), oracle(protocol, history), "after {:?}", history);
        }
        for (flow, last) in last {
            let (_, value) = tables.entry(&key(flow, protocol)).unwrap();
            prop_assert!(value.last_seen <= last && last - value.last_seen < SECOND);
        }
    }

    /// What finds no room goes on as it was, and asks again once a second.
    #[test]
    fn a_full_map_changes_nothing_but_where_flows_are(
        room in 0..3usize,
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let (mut small, large) = (Memory::new(), Memory::new());
        small.room = room;
        let mut now = large.now;
        for event in &events {
            now += event.after;
            for tables in [&small, &large] {
                see(tables, protocol::TCP, event, now);
            }
        }
        for flow in 0..3 {
            let key = key(flow, protocol::TCP);
            let Some((_, expected)) = large.entry(&key) else { continue };
            let (_, mut value) = small.entry(&key).unwrap();
            value.flags &= !FlowValue::REFUSED;
            prop_assert_eq!(value, expected);
        }
    }
}

#[test]
fn a_flow_that_found_no_room_asks_once_a_second() {
    let mut tables = Memory::new();
    tables.room = 0;
    let step = |tables: &Memory, direction, flags, now| {
        see(tables, protocol::TCP, &Event { flow: 0, direction, flags, bytes: 60, after: 0 }, now);
    };
    let start = tables.now;
    step(&tables, Direction::Egress, SYN, start);
    step(&tables, Direction::Ingress, SYN | ACK, start);
    for _ in 0..100 {
        step(&tables, Direction::Egress, ACK, start);
    }
    let full = |tables: &Memory| tables.dropped.borrow().get(&Reason::MapFull).copied().unwrap_or(0);
    assert_eq!(full(&tables), 1);
    step(&tables, Direction::Egress, ACK, start + SECOND);
    assert_eq!(full(&tables), 2);
    tables.room = 1;
    step(&tables, Direction::Egress, ACK, start + SECOND + 1);
    let key = key(0, protocol::TCP);
    assert_eq!(tables.entry(&key).unwrap().0, FlowMap::New);
    step(&tables, Direction::Egress, ACK, start + 2 * SECOND);
    let (map, value) = tables.entry(&key).unwrap();
    assert_eq!((map, value.is(FlowValue::REFUSED)), (FlowMap::Established, false));
}

#[test]
fn a_flood_of_syns_takes_no_room_from_what_is_established() {
    let tables = Memory::new();
    let now = tables.now;
    for flow in 0..1000 {
        for (direction, flags) in [(Direction::Ingress, SYN), (Direction::Egress, SYN | ACK)] {
            see(&tables, protocol::TCP, &Event { flow, direction, flags, bytes: 60, after: 0 }, now);
        }
        assert_eq!(tables.entry(&key(flow, protocol::TCP)).unwrap().0, FlowMap::New);
    }
}

#[test]
fn the_answer_to_a_syn_that_was_forgotten_says_who_began() {
    for (direction, other_way, from_peer) in
        [(Direction::Egress, Direction::Ingress, true), (Direction::Ingress, Direction::Egress, false)]
    {
        let tables = Memory::new();
        let event = |direction, flags| Event { flow: 0, direction, flags, bytes: 60, after: 0 };
        see(&tables, protocol::TCP, &event(direction, SYN | ACK), tables.now);
        let key = key(0, protocol::TCP);
        assert_eq!(tables.entry(&key).unwrap().1.is(FlowValue::FROM_PEER), from_peer, "{direction:?}");
        see(&tables, protocol::TCP, &event(other_way, ACK), tables.now);
        assert_eq!(tables.entry(&key).unwrap().0, FlowMap::Established, "{direction:?}");
    }
}
