//! What a client may be told while the maps change: what it was told before, or what it is told after.

use std::collections::{BTreeMap, BTreeSet};

use portway_datapath::{
    Addr, Client, Destination, FrontendKey, Membership, PassReason, Port, Protocol, RunBackend, RunHeader,
    ServiceWord, Tables, Verdict, translate,
};
use portway_model::tables::{Row, TableDump, TableOp, TableWriter};

/// The network namespace of the node in these lookups; clients with affinity have others.
pub const HOST_NETNS: u64 = 1;

/// Addresses of the node, one of each family that no random object uses and one that external IPs and host IPs are.
pub const NODE_ADDRESSES: [&str; 4] = ["192.0.2.200", "192.0.2.7", "2001:db8:ffff::200", "2001:db8::1"];

/// What somebody who dials a frontend gets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    NoService,
    /// One of these; refused if there is none.
    Backends(BTreeSet<(Addr, Port)>),
}

/// What one attempt got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    NoService,
    Refused,
    Backend(Addr, Port),
}

impl Answer {
    fn has(&self, found: Found) -> bool {
        match (self, found) {
            (Self::NoService, Found::NoService) => true,
            (Self::Backends(set), Found::Refused) => set.is_empty(),
            (Self::Backends(set), Found::Backend(addr, port)) => set.contains(&(addr, port)),
            (Self::NoService, Found::Refused | Found::Backend(..))
            | (Self::Backends(_), Found::NoService) => false,
        }
    }
}

/// The answers of all that is or was dialled, each with all states since the maps were last what is wanted.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// By the address that is dialled: NodePorts are on each of [`NODE_ADDRESSES`].
    answers: BTreeMap<FrontendKey, Vec<Answer>>,
    /// How many states the answers are of.
    states: usize,
}

impl Allowed {
    /// One more state that the maps are on their way to.
    pub fn also(&mut self, rows: &[Row]) {
        let new = answers(rows);
        let before = self.states;
        for (key, answer) in &new {
            // Who was not there in earlier states had no service there.
            let all = self.answers.entry(*key).or_insert_with(|| vec![Answer::NoService; before.min(1)]);
            if !all.contains(answer) {
                all.push(answer.clone());
            }
        }
        for (key, all) in &mut self.answers {
            if !new.contains_key(key) && !all.contains(&Answer::NoService) {
                all.push(Answer::NoService);
            }
        }
        self.states += 1;
    }

    /// The maps are what is wanted: only this state is right from here on. Frontends that went away must stay away.
    pub fn only(&mut self, rows: &[Row]) {
        let gone: Vec<FrontendKey> = self.answers.keys().copied().collect();
        *self = Self::default();
        self.also(rows);
        for key in gone {
            self.answers.entry(key).or_insert_with(|| vec![Answer::NoService]);
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = &FrontendKey> {
        self.answers.keys()
    }

    /// Dials everything once. The error says which one gave what, and what it might.
    pub fn check(&self, mut ask: impl FnMut(Destination) -> Found) -> Result<u64, String> {
        for (key, all) in &self.answers {
            let Some(to) = destination(key) else { continue };
            let found = ask(to);
            if !all.iter().any(|answer| answer.has(found)) {
                return Err(format!("{} gave {found:?}; allowed: {all:?}", name(key)));
            }
        }
        Ok(self.answers.len() as u64)
    }

    /// Reads the whole set of every frontend: it must be one of the allowed sets, not just drawn from one.
    pub fn check_sets<T: Tables>(&self, tables: &T) -> Result<(), String> {
        for (key, all) in &self.answers {
            let answer = whole_set(tables, key)?;
            if !all.contains(&answer) {
                return Err(format!("{} has {answer:?}; allowed: {all:?}", name(key)));
            }
        }
        Ok(())
    }
}

fn name(key: &FrontendKey) -> String {
    let protocol = Protocol::from_number(key.protocol).map_or("?", Protocol::name);
    format!("{}/{protocol}", std::net::SocketAddr::new(key.addr.into(), key.port.get()))
}

fn destination(key: &FrontendKey) -> Option<Destination> {
    Some(Destination { addr: key.addr, port: key.port, protocol: Protocol::from_number(key.protocol)? })
}

/// The addresses of the node of the family of `any`.
fn node_addresses(any: Addr) -> impl Iterator<Item = Addr> {
    let parsed = NODE_ADDRESSES.iter().filter_map(|text| text.parse::<std::net::IpAddr>().ok());
    parsed.map(Addr::from).filter(move |addr| addr.any() == any)
}

/// What the datapath's own decision says.
pub fn ask<T: Tables>(tables: &T, netns: u64, to: Destination) -> Found {
    match translate(tables, Client { netns }, to) {
        Verdict::Translate(translation) => Found::Backend(translation.addr, translation.port),
        Verdict::Refuse(_) => Found::Refused,
        Verdict::Pass(PassReason::NoFrontend) => Found::NoService,
        // Between two operations of one writer nothing may be inconsistent: no allowed answer has this backend.
        Verdict::Pass(
            PassReason::OtherNamespace
            | PassReason::OptedOut
            | PassReason::ExternalIpGuard
            | PassReason::Inconsistent,
        ) => Found::Backend(Addr::ANY_V6, Port::new(0)),
    }
}

/// Every backend that a client on the node may get from what it dials: from the exact frontend, or on an address of
/// the node from the one on any address.
fn whole_set<T: Tables>(tables: &T, dialled: &FrontendKey) -> Result<Answer, String> {
    let mut key = *dialled;
    if tables.frontend(&key).is_none() && tables.local_address(&key.addr).is_some() {
        key.addr = key.addr.any();
    }
    let Some(value) = tables.frontend(&key) else { return Ok(Answer::NoService) };
    let of = name(dialled);
    let kind = value.kind().filter(|_| value.is_of(&key)).ok_or_else(|| format!("{of} has a bad value"))?;
    let run = tables
        .service(value.service())
        .and_then(ServiceWord::run)
        .ok_or_else(|| format!("{of} points at service {} without a version", value.service().get()))?;
    let record = |n: u32| tables.record(run.plus(n)).ok_or_else(|| format!("{of} has a run cut short"));
    let header = RunHeader::from_first(&record(0)?);
    let (start, len) = header.range(header.inside(kind));
    let mut set = BTreeSet::new();
    for n in start..start + len {
        let backend = RunBackend::from_record(&record(RunHeader::RECORDS + n)?);
        let slot = tables.backend(backend.index).ok_or_else(|| format!("{of} has a backend without slot"))?;
        if (slot.addr, slot.port, slot.service) != (backend.addr, backend.port, value.service()) {
            return Err(format!(
                "{of} has {}:{} in the slot of another: {slot:?}",
                backend.addr, backend.port
            ));
        }
        set.insert((backend.addr, backend.port));
    }
    Ok(Answer::Backends(set))
}

/// Once all is written: each slot has the bits of the sets that its backend is in, and slots of no run have none.
/// Before that a client may lose its affinity, but never keep a backend that is in neither set.
pub fn check_bits(dump: &TableDump) -> Result<(), String> {
    let mut wanted: BTreeMap<_, u32> = dump.backends.iter().map(|(index, _)| (*index, 0)).collect();
    for service in &dump.services {
        for set in [Membership::Cluster, Membership::Local] {
            let (start, len) = service.header.range(set);
            for backend in service.backends.iter().skip(start as usize).take(len as usize) {
                *wanted.entry(backend.index).or_default() |= set.bit();
            }
        }
    }
    for (index, slot) in &dump.backends {
        if wanted.get(index) != Some(&slot.members()) {
            return Err(format!("slot {} has the wrong bits, {wanted:?} is right: {slot:?}", index.get()));
        }
    }
    Ok(())
}

/// What a client on the node gets under each row: the internal policy rules the cluster address alone.
fn answers(rows: &[Row]) -> BTreeMap<FrontendKey, Answer> {
    let parse = |text: &String| text.parse::<std::net::SocketAddr>().ok();
    let mut all = BTreeMap::new();
    for row in rows {
        let Ok(addr) = row.address.parse::<std::net::IpAddr>() else { continue };
        let protocol = match row.protocol.as_str() {
            "TCP" => Protocol::TCP,
            "UDP" => Protocol::UDP,
            _ => Protocol::SCTP,
        };
        let is_local = row.kind == "ClusterIP" && row.flags.iter().any(|flag| flag == "iTP=Local");
        let set = if is_local { &row.backends.local } else { &row.backends.cluster };
        let backends =
            set.iter().filter_map(parse).map(|s| (Addr::from(s.ip()), Port::new(s.port()))).collect();
        let key = FrontendKey::new(addr.into(), Port::new(row.port), protocol);
        let dialled =
            if key.addr.is_unspecified() { node_addresses(key.addr).collect() } else { vec![key.addr] };
        for addr in dialled {
            let exact = addr == key.addr;
            let dialled = FrontendKey::new(addr, key.port, protocol);
            if exact || !all.contains_key(&dialled) {
                all.insert(dialled, Answer::Backends(BTreeSet::clone(&backends)));
            }
        }
    }
    all
}

/// Sees the tables after an operation that succeeded.
pub type Look<'a, W> = Box<dyn FnMut(&W, &TableOp) + 'a>;

/// A writer that has somebody look after every operation that changed something.
pub struct Watched<'a, W> {
    pub inner: W,
    pub look: Look<'a, W>,
}

impl<W: TableWriter> TableWriter for Watched<'_, W> {
    type Error = W::Error;

    fn write(&mut self, op: &TableOp) -> Result<(), Self::Error> {
        self.inner.write(op)?;
        (self.look)(&self.inner, op);
        Ok(())
    }
}
