use crate::{Addr, FlowValue, NatKey, NatValue, Port, Reason};

use super::{Inserted, NatFlow, NatMap, NatTables, find, partner};

/// How many ports are tried for a flow. With half of the ports towards one peer taken, one flow in 2³² is refused.
pub(super) const ATTEMPTS: u32 = 32;

/// Steps through the ports. Primes above any number of ports, so that no port is tried twice; four of them, so that flows
/// that meet at one port part again.
const STEPS: [u64; 4] = [2_654_435_761, 3_266_489_917, 668_265_263, 374_761_393];

/// The ports that masquerading may choose: [`crate::NodeNetwork::nat_ports`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatPorts {
    first: u16,
    last: u16,
}

impl NatPorts {
    #[inline(always)]
    pub const fn new(first: u16, last: u16) -> Self {
        Self { first, last }
    }

    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self::new(word as u16, (word >> 32) as u16)
    }

    pub const fn word(self) -> u64 {
        self.first as u64 | (self.last as u64) << 32
    }

    #[inline(always)]
    pub const fn contains(self, port: Port) -> bool {
        self.first <= port.get() && port.get() <= self.last
    }

    /// The port to try at `attempt`: the flow's own where it is one of these, then a sequence that its hash decides.
    #[inline(always)]
    fn candidate(self, own: Port, hash: u32, attempt: u32) -> Port {
        if attempt == 0 && self.contains(own) {
            return own;
        }
        let size = (self.last.saturating_sub(self.first)) as u64 + 1;
        let step = match hash >> 30 {
            0 => STEPS[0],
            1 => STEPS[1],
            2 => STEPS[2],
            _ => STEPS[3],
        };
        let at = (hash as u64 + attempt as u64 * step) % size;
        Port::new(self.first.wrapping_add(at as u16))
    }
}

/// A source for a flow that has none, with both halves made for it.
///
/// # Errors
/// [`Reason::NoNatPort`].
#[inline(never)]
pub(super) fn choose<T: NatTables>(
    tables: &T,
    flow: &NatFlow,
    to: Addr,
    ports: NatPorts,
) -> Result<(Addr, Port), Reason> {
    let hash = flow.key(NatKey::OUT).tag();
    let attempts = if flow.fixed { 1 } else { ATTEMPTS };
    let mut closing: Option<Port> = None;
    for attempt in 0..attempts {
        let port = if flow.fixed { flow.local.1 } else { ports.candidate(flow.local.1, hash, attempt) };
        match find(tables, &half_in(flow, to, port)) {
            None => {
                if let Some(source) = take(tables, flow, to, port) {
                    return Ok(source);
                }
            }
            // The flow's own half, of which the other is gone.
            Some((_, value)) if (value.other, value.other_port) == flow.local => {
                if let Some(source) = finish(tables, flow, to, port) {
                    return Ok(source);
                }
            }
            Some((_, value)) => {
                if closing.is_none() && value.seen & (FlowValue::FIN | FlowValue::RST) != 0 {
                    closing = Some(port);
                }
            }
        }
    }
    // What has ended and only waits for its time makes room for what begins.
    match closing {
        Some(port) if free_ended(tables, &half_in(flow, to, port)) => {
            take(tables, flow, to, port).ok_or(Reason::NoNatPort)
        }
        Some(_) | None => Err(Reason::NoNatPort),
    }
}

#[inline(always)]
fn half_in(flow: &NatFlow, to: Addr, port: Port) -> NatKey {
    NatKey::new((to, port), flow.peer, flow.protocol, NatKey::IN)
}

/// Makes both halves; `None` where another CPU took the port meanwhile.
#[inline(never)]
fn take<T: NatTables>(tables: &T, flow: &NatFlow, to: Addr, port: Port) -> Option<(Addr, Port)> {
    let key = half_in(flow, to, port);
    let value = NatValue::new(&key, flow.local, 0, tables.nat_now());
    if tables.insert_nat(NatMap::New, &key, value) != Inserted::Done {
        return None;
    }
    // The port's flow may have moved between the look and the insert.
    if tables.nat(NatMap::Established, &key).is_some() {
        tables.delete_nat(NatMap::New, &key);
        return None;
    }
    finish(tables, flow, to, port)
}

/// Makes the half that the flow's next packets find. Where another CPU was faster with the same flow, its choice counts.
#[inline(never)]
fn finish<T: NatTables>(tables: &T, flow: &NatFlow, to: Addr, port: Port) -> Option<(Addr, Port)> {
    let key = flow.key(NatKey::OUT);
    let value = NatValue::new(&key, (to, port), flow.seen, tables.nat_now());
    match tables.insert_nat(NatMap::New, &key, value) {
        Inserted::Done => Some((to, port)),
        Inserted::Exists => {
            let value = tables.nat(NatMap::New, &key)?;
            if (value.other, value.other_port) != (to, port) {
                tables.delete_nat(NatMap::New, &half_in(flow, to, port));
            }
            Some((value.other, value.other_port))
        }
        Inserted::Full => {
            tables.delete_nat(NatMap::New, &half_in(flow, to, port));
            None
        }
    }
}

/// Deletes both halves of a flow that has ended: reset, or closed from both sides. False where it has not.
#[inline(never)]
fn free_ended<T: NatTables>(tables: &T, key: &NatKey) -> bool {
    let Some((map, value)) = find(tables, key) else { return true };
    let other = partner(key, &value);
    let local = (key.local, key.local_port);
    // A half whose flow was given another port belongs to no flow any more.
    let half = find(tables, &other).filter(|(_, half)| (half.other, half.other_port) == local);
    let out = match half {
        Some((_, half)) => half.seen,
        None => FlowValue::RST,
    };
    let ended = (value.seen | out) & FlowValue::RST != 0 || value.seen & out & FlowValue::FIN != 0;
    if ended {
        if let Some((map, _)) = half {
            tables.delete_nat(map, &other);
        }
        tables.delete_nat(map, key);
    }
    ended
}
