use crate::{Addr, FlowValue, NatKey, NatValue, Port, Reason};

use super::{Inserted, NatDesk, NatMap, NatTables, find};

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

/// The search for a port. What the kernel's verifier does not know it need not walk through for each value: so all that
/// changes from turn to turn is here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    to: Addr,
    ports: NatPorts,
    /// Of the flow.
    hash: u32,
    attempt: u32,
    /// 1 and the port above 16 bits: one that a flow has which may have ended. 0 while there is none.
    closing: u32,
}

impl Search {
    pub(super) const EMPTY: Self =
        Self { to: Addr::ANY_V6, ports: NatPorts::new(0, 0), hash: 0, attempt: 0, closing: 0 };
}

/// Decides on a source for the flow on the desk, which has none, and makes both its halves.
///
/// # Errors
/// [`Reason::NoNatPort`].
#[inline(never)]
pub(super) fn choose<T: NatTables>(
    tables: &T,
    desk: &mut NatDesk,
    to: &Addr,
    ports: NatPorts,
) -> Result<(), Reason> {
    desk.look_at(NatKey::OUT);
    desk.search = Search { to: *to, ports, hash: desk.key.tag(), ..Search::EMPTY };
    for _ in 0..ATTEMPTS {
        if try_next_port(tables, desk) {
            return Ok(());
        }
        if desk.flow.fixed {
            break;
        }
    }
    // What has ended and only waits for its time makes room for what begins.
    if desk.search.closing != 0 {
        let port = Port::new((desk.search.closing >> 16) as u16);
        look_at_candidate(desk, port);
        if free_ended(tables, desk) {
            look_at_candidate(desk, port);
            if take(tables, desk) && finish(tables, desk) {
                return Ok(());
            }
        }
    }
    Err(Reason::NoNatPort)
}

/// Tries one port for the flow on the desk.
#[inline(never)]
fn try_next_port<T: NatTables>(tables: &T, desk: &mut NatDesk) -> bool {
    let Search { ports, hash, attempt, .. } = desk.search;
    desk.search.attempt = attempt + 1;
    let own = desk.flow.local.1;
    let port = if desk.flow.fixed { own } else { ports.candidate(own, hash, attempt) };
    look_at_candidate(desk, port);
    let found = find(tables, &desk.other_key, &mut desk.other_value).is_some();
    // Free, or the flow's own half, of which the other is gone.
    if !found || desk.is_pair() {
        return (found || take(tables, desk)) && finish(tables, desk);
    }
    if desk.search.closing == 0 && desk.other_value.seen & (FlowValue::FIN | FlowValue::RST) != 0 {
        desk.search.closing = u32::from(port.get()) << 16 | 1;
    }
    false
}

/// Of the flow with this source: its IN half, and in `value` what its OUT half would be.
#[inline(always)]
fn look_at_candidate(desk: &mut NatDesk, port: Port) {
    desk.look_at(NatKey::OUT);
    desk.value = NatValue::new(&desk.key, (desk.search.to, port), desk.flow.seen, 0);
    desk.look_at_other();
}

/// Makes the IN half; false where another CPU took the port meanwhile.
#[inline(never)]
fn take<T: NatTables>(tables: &T, desk: &mut NatDesk) -> bool {
    desk.other_value = NatValue::new(&desk.other_key, desk.flow.local, 0, tables.nat_now());
    if tables.insert_nat(NatMap::New, &desk.other_key, &desk.other_value) != Inserted::Done {
        return false;
    }
    // The port's flow may have moved between the look and the insert.
    if tables.nat(NatMap::Established, &desk.other_key, &mut desk.other_value) {
        tables.delete_nat(NatMap::New, &desk.other_key);
        return false;
    }
    true
}

/// Makes the OUT half, which the flow's next packets find. Where another CPU was faster with the same flow, its choice counts.
#[inline(never)]
fn finish<T: NatTables>(tables: &T, desk: &mut NatDesk) -> bool {
    desk.value.last_seen = tables.nat_now();
    match tables.insert_nat(NatMap::New, &desk.key, &desk.value) {
        Inserted::Done => true,
        Inserted::Exists => {
            let known = tables.nat(NatMap::New, &desk.key, &mut desk.value);
            if !known
                || desk.value.other_port != desk.other_key.local_port
                || desk.value.other != desk.other_key.local
            {
                tables.delete_nat(NatMap::New, &desk.other_key);
            }
            known
        }
        Inserted::Full => {
            tables.delete_nat(NatMap::New, &desk.other_key);
            false
        }
    }
}

/// Deletes both halves of the flow that has the IN half `other_key`, if it has ended: reset, or closed from both sides.
#[inline(never)]
fn free_ended<T: NatTables>(tables: &T, desk: &mut NatDesk) -> bool {
    desk.key = desk.other_key;
    let Some(map) = find(tables, &desk.key, &mut desk.value) else { return true };
    desk.look_at_other();
    // A half whose flow was given another port belongs to no flow any more.
    let other = find(tables, &desk.other_key, &mut desk.other_value).filter(|_| desk.is_pair());
    let out = if other.is_some() { desk.other_value.seen } else { FlowValue::RST };
    let back = desk.value.seen;
    let ended = (back | out) & FlowValue::RST != 0 || back & out & FlowValue::FIN != 0;
    if ended {
        if let Some(map) = other {
            tables.delete_nat(map, &desk.other_key);
        }
        tables.delete_nat(map, &desk.key);
    }
    ended
}
