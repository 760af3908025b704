//! The socket path: what happens to a connect, a datagram, a reply, a bind.
//!
//! The order is that of `design.md`: namespace and opt-out → protocol (the caller's) → exact frontend → NodePort or host port
//! on an address of the node → external-IP guard → no backends → affinity → slot.
//!
//! Cost of a connect: one or two hash lookups for the frontend (two where it is not an exact one, plus one in
//! `pw_local_addresses`), then three array reads (word, header, backend). Affinity adds one LRU lookup and one or
//! two array reads. Nothing is allocated.

use crate::{
    Addr, AffinityKey, AffinityValue, BackendIndex, BackendRef, Counter, ExchangeKey, ExchangeValue,
    FrontendKey, FrontendKind, FrontendValue, Membership, Port, Protocol, ReplyKey, ReplyValue, RunBackend,
    RunHeader, RunOffset, ServiceIndex, Settings, SocketTranslation, Tables,
};

/// Who opens the connection.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The cookie of the socket's network namespace.
    pub netns: u64,
}

/// Where a socket wants to go.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    pub addr: Addr,
    pub port: Port,
    pub protocol: Protocol,
}

/// Where it goes instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    pub service: ServiceIndex,
    pub addr: Addr,
    pub port: Port,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Leave the socket alone.
    Pass(PassReason),
    /// The service has no backends: `ECONNREFUSED`.
    Refuse(ServiceIndex),
    Translate(Translation),
}

/// Why a destination is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassReason {
    /// Only the node's own namespace is served.
    OtherNamespace,
    /// The pod wants its packets translated, not its sockets.
    OptedOut,
    /// No service has this address, port and protocol.
    NoFrontend,
    /// An external IP that is not the node's.
    ExternalIpGuard,
    /// The maps contradict each other for a moment (a service that goes away) or for good (a defect; counted).
    Inconsistent,
}

/// The frontend that serves a destination.
#[derive(Clone, Copy)]
struct Hit {
    service: ServiceIndex,
    kind: FrontendKind,
}

/// A version of a service.
pub(crate) struct Version {
    pub(crate) service: ServiceIndex,
    first_backend: RunOffset,
    pub(crate) header: RunHeader,
    set: Membership,
}

impl Version {
    /// The position of the first backend of the set, and their number.
    #[inline(always)]
    pub(crate) const fn backends(&self) -> (RunOffset, u32) {
        let (start, len) = self.header.range(self.set);
        (self.first_backend.plus(start), len)
    }
}

/// What becomes of a `connect(2)`.
#[inline(always)]
pub fn translate<T: Tables>(tables: &T, client: Client, to: Destination) -> Verdict {
    let version = match lookup(tables, client, to) {
        Ok(version) => version,
        Err(verdict) => return verdict,
    };
    match choose(tables, affinity_key(client, &version), &version, || tables.random()) {
        Some((backend, _)) => {
            tables.count(Counter::Connects);
            Verdict::Translate(translation(&version, &backend))
        }
        None => inconsistent(tables),
    }
}

/// What becomes of a datagram that an unconnected UDP socket (`cookie`) sends.
///
/// A socket keeps its backend until it has been idle for [`crate::UDP_IDLE_NS`] or the backend has left the set.
#[inline(always)]
pub fn translate_datagram<T: Tables>(tables: &T, client: Client, cookie: u64, to: Destination) -> Verdict {
    let version = match lookup(tables, client, to) {
        Ok(version) => version,
        Err(verdict) => return verdict,
    };
    let key = ExchangeKey::new(cookie, to.addr, to.port);
    let now = tables.now();
    let kept = match tables.exchange(&key) {
        Some(value) if value.is_fresh(now) => serving(tables, BackendRef::from_word(value.backend), &version),
        Some(_) | None => None,
    };
    let (backend, reference) = match kept {
        Some(kept) => kept,
        None => match choose(tables, affinity_key(client, &version), &version, || tables.random()) {
            Some((backend, Some(reference))) => (backend, reference),
            Some((backend, None)) => (backend, reference(tables, backend.index)),
            None => return inconsistent(tables),
        },
    };
    tables.set_exchange(&key, ExchangeValue::new(reference, now));
    let reply = ReplyKey::new(cookie, backend.addr, backend.port);
    let frontend = ReplyValue::new(&reply, to.addr, to.port);
    if tables.reply(&reply) != Some(frontend) {
        tables.set_reply(&reply, frontend);
    }
    tables.count(Counter::Datagrams);
    Verdict::Translate(translation(&version, &backend))
}

/// The frontend that a datagram from `source` answers, for the socket `cookie`; `None` leaves the source alone.
#[inline(always)]
pub fn reply_source<T: Tables>(
    tables: &T,
    cookie: u64,
    connected: Option<&SocketTranslation>,
    source: Addr,
    port: Port,
) -> Option<(Addr, Port)> {
    if let Some(translation) = connected
        && let Some(frontend) = original_peer(translation, source, port)
    {
        return Some(frontend);
    }
    let key = ReplyKey::new(cookie, source, port);
    let value = tables.reply(&key)?;
    value.is_of(&key).then_some((value.addr, value.port))
}

/// The peer that a connected socket asked for, given the peer it has; `None` if that is not our translation.
#[inline(always)]
pub fn original_peer(translation: &SocketTranslation, peer: Addr, port: Port) -> Option<(Addr, Port)> {
    (peer == translation.backend && port == translation.backend_port)
        .then_some((translation.frontend, translation.frontend_port))
}

/// The backend of a connected UDP socket that sends to its peer by naming it: the socket takes answers from there alone.
/// `None` where it sends elsewhere.
#[inline(always)]
pub fn connected_backend(translation: &SocketTranslation, to: Destination) -> Option<(Addr, Port)> {
    (to.addr == translation.frontend && to.port == translation.frontend_port)
        .then_some((translation.backend, translation.backend_port))
}

/// Whether a bind to `port` in namespace `netns` would take a NodePort from the services (`EADDRINUSE`).
#[inline(always)]
pub fn bind_is_denied<T: Tables>(tables: &T, netns: u64, addr: Addr, port: Port, protocol: Protocol) -> bool {
    let config = tables.config();
    if !Settings::from_word(config.settings).protects(port.get()) || config.host_netns != netns {
        return false;
    }
    let is_node_port = |any| {
        let key = FrontendKey::new(any, port, protocol);
        matches!(frontend(tables, &key), Some(Hit { kind: FrontendKind::NodePort, .. }))
    };
    // A socket bound to `::` takes the IPv4 port too, unless it is IPV6_V6ONLY, which no hook tells.
    let denied = is_node_port(addr.any()) || (addr == Addr::ANY_V6 && is_node_port(Addr::ANY_V4));
    if denied {
        tables.count(Counter::DeniedBinds);
    }
    denied
}

/// Up to the version of the service that a client gets: everything but the choice of a backend.
#[inline(always)]
fn lookup<T: Tables>(tables: &T, client: Client, to: Destination) -> Result<Version, Verdict> {
    let config = tables.config();
    let settings = Settings::from_word(config.settings);
    let on_node = client.netns == config.host_netns;
    if settings.is_host_namespace_only() && !on_node {
        return Err(Verdict::Pass(PassReason::OtherNamespace));
    }
    if settings.allows_opt_outs()
        && !on_node
        && tables.netns(client.netns).is_some_and(|options| !options.translates_sockets())
    {
        return Err(Verdict::Pass(PassReason::OptedOut));
    }
    find_version(tables, settings, on_node, to)
}

/// From the destination to the version of its service. `on_node`: the client is in the node's own namespace.
#[inline(always)]
pub(crate) fn find_version<T: Tables>(
    tables: &T,
    settings: Settings,
    on_node: bool,
    to: Destination,
) -> Result<Version, Verdict> {
    let Some(hit) = find_frontend(tables, settings, on_node, to) else {
        return Err(Verdict::Pass(PassReason::NoFrontend));
    };
    if matches!(hit.kind, FrontendKind::ExternalIps)
        && settings.guards_external_ips()
        && tables.local_address(&to.addr).is_none()
    {
        tables.count(Counter::GuardedExternalIps);
        return Err(Verdict::Pass(PassReason::ExternalIpGuard));
    }
    // A frontend is deleted before its service's word: a client between the two sees no service.
    let Some(run) = tables.service(hit.service).and_then(crate::ServiceWord::run) else {
        return Err(Verdict::Pass(PassReason::Inconsistent));
    };
    let Some(record) = tables.record(run) else {
        return Err(inconsistent(tables));
    };
    let header = RunHeader::from_first(&record);
    let set = header.inside(hit.kind);
    if header.range(set).1 == 0 {
        tables.count(Counter::NoBackends);
        return Err(Verdict::Refuse(hit.service));
    }
    Ok(Version { service: hit.service, first_backend: run.plus(RunHeader::RECORDS), header, set })
}

/// The exact frontend, or the one that answers on any address of the node.
#[inline(always)]
fn find_frontend<T: Tables>(tables: &T, settings: Settings, on_node: bool, to: Destination) -> Option<Hit> {
    // The kernel takes a connect to the unspecified address for one to loopback. In the table it would be the
    // NodePorts themselves, so it must not be looked up.
    let loopback = to.addr.is_loopback() || to.addr.is_unspecified();
    if !to.addr.is_unspecified() {
        let exact = frontend(tables, &FrontendKey::new(to.addr, to.port, to.protocol));
        if exact.is_some() {
            return exact;
        }
    }
    let serves_node_ports = if loopback {
        if !on_node {
            return None;
        }
        settings.serves_node_ports_on_loopback()
    } else {
        tables.local_address(&to.addr)?.serves_node_ports()
    };
    let hit = frontend(tables, &FrontendKey::new(to.addr.any(), to.port, to.protocol))?;
    match hit.kind {
        FrontendKind::NodePort => serves_node_ports.then_some(hit),
        FrontendKind::HostPort => Some(hit),
        FrontendKind::ClusterIp | FrontendKind::LoadBalancer | FrontendKind::ExternalIps => None,
    }
}

/// One lookup in `pw_frontends`; a second one where the element was reused for another key meanwhile.
#[inline(always)]
fn frontend<T: Tables>(tables: &T, key: &FrontendKey) -> Option<Hit> {
    let mut value = tables.frontend(key)?;
    if !value.is_of(key) {
        value = tables.frontend(key)?;
        if !value.is_of(key) {
            return None;
        }
    }
    hit(value)
}

#[inline(always)]
fn hit(value: FrontendValue) -> Option<Hit> {
    Some(Hit { service: value.service(), kind: value.kind()? })
}

#[inline(always)]
const fn affinity_key(client: Client, version: &Version) -> AffinityKey {
    AffinityKey::netns(client.netns, version.service)
}

/// A backend of `version` for the client of `key`: the one it is bound to, or the one that `draw` hits, 32 bits of which the
/// high ones count. The reference comes along where affinity had to look it up.
#[inline(always)]
pub(crate) fn choose<T: Tables>(
    tables: &T,
    key: AffinityKey,
    version: &Version,
    draw: impl FnOnce() -> u32,
) -> Option<(RunBackend, Option<BackendRef>)> {
    let seconds = version.header.affinity_seconds;
    if seconds == 0 {
        return Some((drawn_backend(tables, version, draw())?, None));
    }
    let now = tables.now();
    let bound = match tables.affinity(&key) {
        Some(value) if value.is_fresh(now, seconds) => {
            serving(tables, BackendRef::from_word(value.backend), version)
        }
        Some(_) | None => None,
    };
    let (backend, reference) = match bound {
        Some(bound) => bound,
        None => {
            let backend = drawn_backend(tables, version, draw())?;
            (backend, reference(tables, backend.index))
        }
    };
    tables.set_affinity(&key, AffinityValue::new(reference, now));
    Some((backend, Some(reference)))
}

#[inline(always)]
fn drawn_backend<T: Tables>(tables: &T, version: &Version, draw: u32) -> Option<RunBackend> {
    let (first, len) = version.backends();
    drawn_from(tables, first, len, draw)
}

/// The one of the `len` backends from `first` that `draw` falls on.
#[inline(always)]
pub(crate) fn drawn_from<T: Tables>(tables: &T, first: RunOffset, len: u32, draw: u32) -> Option<RunBackend> {
    let slot = (u64::from(draw) * u64::from(len)) >> 32;
    let record = tables.record(first.plus(slot as u32))?;
    Some(RunBackend::from_record(&record))
}

/// The backend that `reference` means, if `version`'s set has it now.
#[inline(always)]
pub(crate) fn serving<T: Tables>(
    tables: &T,
    reference: BackendRef,
    version: &Version,
) -> Option<(RunBackend, BackendRef)> {
    let slot = tables.backend(reference.index())?;
    slot.serves(reference, version.service, version.set)
        .then_some((RunBackend { addr: slot.addr, port: slot.port, index: reference.index() }, reference))
}

/// What to remember of a backend that was chosen from a run.
#[inline(always)]
pub(crate) fn reference<T: Tables>(tables: &T, index: BackendIndex) -> BackendRef {
    match tables.backend(index) {
        Some(slot) => BackendRef::new(index, slot.incarnation()),
        None => BackendRef::NONE,
    }
}

#[inline(always)]
fn translation(version: &Version, backend: &RunBackend) -> Translation {
    Translation { service: version.service, addr: backend.addr, port: backend.port }
}

#[inline(always)]
pub(crate) fn inconsistent<T: Tables>(tables: &T) -> Verdict {
    tables.count(Counter::Inconsistent);
    Verdict::Pass(PassReason::Inconsistent)
}
