//! Any sequence of packets, answers, losses and time against the simplest description of what masquerading promises.

use std::collections::HashMap;
use std::vec::Vec;

use proptest::prelude::*;

use crate::FlowValue;
use crate::packet::{TcpFlags, protocol};

use super::super::choice::ATTEMPTS;
use super::super::nat_seen;
use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// A packet of the flow leaves; `flags` of TCP.
    Leave {
        flow: usize,
        flags: u8,
    },
    /// One comes back to the source that the flow has.
    Answer {
        flow: usize,
        flags: u8,
    },
    /// An entry is lost: the `at`th of all there are.
    Lose {
        at: usize,
    },
    Wait {
        milliseconds: u64,
    },
}

fn steps(losses: bool) -> impl Strategy<Value = Vec<Step>> {
    let flags = || prop_oneof![Just(2u8), Just(16), Just(16), Just(17)];
    let step = prop_oneof![
        4 => (0..48usize, flags()).prop_map(|(flow, flags)| Step::Leave { flow, flags }),
        4 => (0..48usize, flags()).prop_map(|(flow, flags)| Step::Answer { flow, flags }),
        (if losses { 2 } else { 0 }) => any::<usize>().prop_map(|at| Step::Lose { at }),
        1 => (0..3_000u64).prop_map(|milliseconds| Step::Wait { milliseconds }),
    ];
    prop::collection::vec(step, 1..200)
}

/// Flows of four pods and the node to two peers, TCP and UDP, with few ports: they collide.
fn flow(number: usize, flags: u8) -> NatFlow {
    let tcp = number.is_multiple_of(2);
    let owner = (number / 2 % 4) as u8;
    let peer = (number / 8 % 2) as u8;
    let port = 50_000 + (number / 16) as u16;
    NatFlow {
        local: (if owner == 3 { NODE } else { pod(owner) }, Port::new(port)),
        peer: (world(peer), Port::new(443)),
        protocol: if tcp { protocol::TCP } else { protocol::UDP },
        seen: if tcp { nat_seen(TcpFlags::new(flags)) } else { FlowValue::SEEN },
        fixed: false,
    }
}

type End = (Addr, Port, Addr, Port, u8);

fn end(flow: &NatFlow, source: (Addr, Port)) -> End {
    (source.0, source.1, flow.peer.0, flow.peer.1, flow.protocol)
}

/// What every reader of the two maps sees of a port is one flow.
fn each_port_has_one_owner(tables: &Memory) -> Result<(), TestCaseError> {
    let mut owners: HashMap<NatKey, (Addr, Port)> = HashMap::new();
    for (map, key, value) in tables.entries() {
        prop_assert!(value.is_of(&key));
        if key.half == NatKey::IN {
            let other = (value.other, value.other_port);
            let first = *owners.entry(key).or_insert(other);
            prop_assert_eq!(first, other, "{:?} {:?}", map, key);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Without losses: a table from flow to source, a source for each flow while one is free, never two flows with one.
    #[test]
    fn without_losses_it_is_a_table(steps in steps(false), size in 1..ATTEMPTS as u16) {
        let ports = NatPorts::new(50_000, 50_000 + size - 1);
        let tables = Memory::default();
        let mut sources: HashMap<End, (Addr, Port)> = HashMap::new();
        let mut owners: HashMap<End, (Addr, Port)> = HashMap::new();
        let mut closed = false;
        for step in steps {
            match step {
                Step::Leave { flow: number, flags } => {
                    closed |= flags & 1 != 0;
                    let flow = flow(number, flags);
                    let own = end(&flow, flow.local);
                    let taken = owners.keys().filter(|(_, _, peer, port, protocol)| {
                        (*peer, *port, *protocol) == (flow.peer.0, flow.peer.1, flow.protocol)
                    }).count();
                    match masquerade(&tables, &flow, NODE, ports) {
                        Ok(source) => {
                            prop_assert!(ports.contains(source.1) && source.0 == NODE);
                            if let Some(known) = sources.get(&own) {
                                // A flow that has ended may have made room; then it has another source.
                                prop_assert!(closed || *known == source);
                            }
                            if ports.contains(flow.local.1) && !owners.contains_key(&end(&flow, (NODE, flow.local.1))) {
                                prop_assert!(sources.contains_key(&own) || source.1 == flow.local.1, "its own port is free");
                            }
                            let owner = owners.insert(end(&flow, source), flow.local);
                            prop_assert!(closed || owner.is_none_or(|owner| owner == flow.local));
                            sources.insert(own, source);
                        }
                        Err(reason) => {
                            prop_assert_eq!(reason, Reason::NoNatPort);
                            prop_assert!(closed || taken == usize::from(size), "{} of {} ports taken", taken, size);
                        }
                    }
                }
                Step::Answer { flow: number, flags } => {
                    closed |= flags & 1 != 0;
                    let flow = flow(number, flags);
                    let Some(source) = sources.get(&end(&flow, flow.local)) else { continue };
                    let back = NatFlow { local: *source, ..flow };
                    let owner = unmasquerade(&tables, &back);
                    prop_assert!(owner.is_some());
                    prop_assert!(closed || owner == Some(flow.local));
                }
                Step::Lose { .. } => {}
                Step::Wait { milliseconds } => tables.now.set(tables.now.get() + milliseconds * 1_000_000),
            }
            each_port_has_one_owner(&tables)?;
        }
    }

    /// With losses of any entry at any time: a port never has two owners, and an answer that is understood goes to the
    /// flow whose packet left last from there.
    #[test]
    fn with_losses_no_answer_goes_astray(steps in steps(true), size in 1..64u16) {
        let ports = NatPorts::new(50_000, 50_000 + size - 1);
        let tables = Memory::default();
        let mut last: HashMap<End, (Addr, Port)> = HashMap::new();
        let mut sources: HashMap<End, (Addr, Port)> = HashMap::new();
        for step in steps {
            match step {
                Step::Leave { flow: number, flags } => {
                    let flow = flow(number, flags);
                    if let Ok(source) = masquerade(&tables, &flow, NODE, ports) {
                        last.insert(end(&flow, source), flow.local);
                        sources.insert(end(&flow, flow.local), source);
                    }
                }
                Step::Answer { flow: number, flags } => {
                    let flow = flow(number, flags);
                    let Some(source) = sources.get(&end(&flow, flow.local)) else { continue };
                    let back = NatFlow { local: *source, ..flow };
                    if let Some(owner) = unmasquerade(&tables, &back) {
                        prop_assert_eq!(Some(&owner), last.get(&end(&flow, *source)));
                    }
                }
                Step::Lose { at } => {
                    let mut entries = tables.entries();
                    entries.sort_by_key(|(map, key, _)| {
                        (*map == NatMap::New, key.half, key.protocol, key.local, key.local_port, key.peer)
                    });
                    if let Some((map, key, _)) = entries.get(at % entries.len().max(1)) {
                        tables.delete_nat(*map, key);
                        if *map == NatMap::Established {
                            // Nothing but age takes these, and an old flow looks after its other half.
                            tables.now.set(tables.now.get() + SECOND);
                        }
                    }
                }
                Step::Wait { milliseconds } => tables.now.set(tables.now.get() + milliseconds * 1_000_000),
            }
            each_port_has_one_owner(&tables)?;
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// A flood of flows that nobody answers, far more than `pw_nat_new` holds, while `pw_nat` is full: established flows
    /// stay what they are and new ones are served.
    #[test]
    fn a_flood_breaks_no_established_flow_and_refuses_no_new_one(
        established in 1..20u16,
        room in 16..64usize,
        flood in prop::collection::vec((any::<u16>(), any::<u8>()), 200..400),
    ) {
        let ports = NatPorts::new(32_768, 65_535);
        let tables = Memory::default();
        tables.new_room.set(room);
        let open = |port: u16, peer: u8| NatFlow {
            local: (pod(1), Port::new(port)),
            peer: (world(peer), Port::new(80)),
            protocol: protocol::TCP,
            seen: nat_seen(TcpFlags::new(TcpFlags::SYN)),
            fixed: false,
        };
        let shake = |flow: &NatFlow| -> Result<(Addr, Port), TestCaseError> {
            let Ok(source) = masquerade(&tables, flow, NODE, ports) else {
                return Err(TestCaseError::fail("a new flow is refused"));
            };
            let back = NatFlow { local: source, seen: nat_seen(TcpFlags::new(18)), ..*flow };
            prop_assert_eq!(unmasquerade(&tables, &back), Some(flow.local));
            let third = NatFlow { seen: nat_seen(TcpFlags::new(TcpFlags::ACK)), ..*flow };
            prop_assert_eq!(masquerade(&tables, &third, NODE, ports), Ok(source));
            Ok(source)
        };
        let mut known = Vec::new();
        for port in 0..established {
            let flow = open(40_000 + port, 200);
            known.push((flow, shake(&flow)?));
        }
        tables.established_room.set(tables.entries().len());
        for (port, peer) in flood {
            prop_assert!(masquerade(&tables, &open(port, peer % 100), NODE, ports).is_ok());
            shake(&open(port, 201))?;
            tables.now.set(tables.now.get() + 100_000_000);
            for (flow, source) in &known {
                let data = NatFlow { seen: nat_seen(TcpFlags::new(TcpFlags::ACK)), ..*flow };
                prop_assert_eq!(masquerade(&tables, &data, NODE, ports), Ok(*source));
                let back = NatFlow { local: *source, ..data };
                prop_assert_eq!(unmasquerade(&tables, &back), Some(flow.local));
            }
        }
    }

    /// As long as no more than four fifths of the ports towards a peer are taken, fewer than one flow in a hundred is refused.
    #[test]
    fn ports_are_found_among_many_that_are_taken(seed in any::<u16>()) {
        let ports = NatPorts::new(32_768, 32_768 + 4_999);
        let tables = Memory::default();
        let mut refused = 0;
        for number in 0..4_000u16 {
            let flow = NatFlow {
                local: (pod((number % 200) as u8), Port::new(number.wrapping_mul(31).wrapping_add(seed))),
                ..flow(1, 0)
            };
            refused += u32::from(masquerade(&tables, &flow, NODE, ports).is_err());
        }
        prop_assert!(refused < 40, "{} of 4000 refused", refused);
    }
}
