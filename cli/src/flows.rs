//! `portway bpf ct list` and `portway bpf nat list`: from the kernel's maps alone.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Context as _;
use portway_agent::conntrack::tick_time;
use portway_agent::maps::PodReader;
use portway_datapath::nat::NatMap;
use portway_datapath::{Addr, FlowKey, FlowMap, FlowValue, NatKey, NatValue, Port};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Format, print, print_json};

/// An entry of `pw_conntrack` or `pw_ct_new`.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Flow {
    protocol: String,
    /// `out` and `in` by who began, or `service`: which backend a flow to a frontend got.
    direction: &'static str,
    /// The pod of this node, `ip:port`; of ICMP the port is the echo identifier.
    endpoint: String,
    peer: String,
    /// The backend of a service entry; of another one the frontend that the pod dialled.
    #[serde(skip_serializing_if = "Option::is_none")]
    translated: Option<String>,
    /// Of a service entry: the port that packets leave from, where that is not the pod's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_port: Option<u16>,
    /// Of another one: the pod's own port, where packets leave from another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_port: Option<u16>,
    /// Both directions were seen and, of TCP, the handshake is over.
    established: bool,
    closed: bool,
    hairpin: bool,
    idle_seconds: u64,
    packets_out: u64,
    bytes_out: u64,
    packets_in: u64,
    bytes_in: u64,
    seen_out: Vec<&'static str>,
    seen_in: Vec<&'static str>,
    /// 0 where there is none.
    service_id: u32,
}

/// An entry of `pw_nat` or `pw_nat_new`.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Nat {
    protocol: String,
    /// `out`: from who sends to what it leaves with; `in`: back.
    direction: &'static str,
    source: String,
    destination: String,
    translated: String,
    established: bool,
    idle_seconds: u64,
    seen: Vec<&'static str>,
}

pub(crate) fn list_flows(bpf_root: &Path, format: Format) -> Result<(), Failure> {
    let flows = read(bpf_root, |maps, now| {
        let mut flows = Vec::new();
        for map in [FlowMap::Established, FlowMap::New] {
            maps.for_each_flow(map, |key, value| flows.push(flow(map, key, value, now)))?;
        }
        Ok(flows)
    })?;
    let order =
        |flow: &Flow| (flow.endpoint.clone(), flow.peer.clone(), flow.protocol.clone(), flow.direction);
    list(flows, order, format, Flow::line)
}

pub(crate) fn list_nat(bpf_root: &Path, format: Format) -> Result<(), Failure> {
    let halves = read(bpf_root, |maps, now| {
        let mut halves = Vec::new();
        for map in [NatMap::Established, NatMap::New] {
            maps.for_each_nat(map, |key, value| halves.push(nat(map, key, value, now)))?;
        }
        Ok(halves)
    })?;
    let order = |nat: &Nat| {
        (nat.direction == "in", nat.source.clone(), nat.destination.clone(), nat.protocol.clone())
    };
    list(halves, order, format, Nat::line)
}

fn read<T>(
    bpf_root: &Path,
    rows: impl FnOnce(&PodReader, u64) -> Result<T, portway_agent::maps::MapError>,
) -> Result<T, Failure> {
    let now = tick_time().context("reading the clock")?;
    let rows = PodReader::open(bpf_root).and_then(|maps| rows(&maps, now));
    Ok(rows.context("reading the kernel's maps")?)
}

fn list<T: Serialize + PartialEq, O: Ord>(
    mut rows: Vec<T>,
    order: impl Fn(&T) -> O,
    format: Format,
    line: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    rows.sort_by_cached_key(order);
    // An entry that moved under the reader may be there twice.
    rows.dedup();
    match format {
        Format::Json => print_json(&rows)?,
        Format::Text => print(&rows.iter().map(|row| line(row) + "\n").collect::<String>())?,
    }
    Ok(())
}

fn flow(map: FlowMap, key: &FlowKey, value: &FlowValue, now: u64) -> Flow {
    let direction = match key.kind {
        FlowKey::SERVICE => "service",
        _ if value.is(FlowValue::FROM_PEER) => "in",
        _ => "out",
    };
    let other_port =
        Some(value.other_local_port(key.local_port).get()).filter(|port| *port != key.local_port.get());
    let (source_port, own_port) =
        if key.kind == FlowKey::SERVICE { (other_port, None) } else { (None, other_port) };
    Flow {
        protocol: protocol(key.protocol),
        direction,
        endpoint: socket(key.local, key.local_port),
        peer: socket(key.peer, key.peer_port),
        translated: value.other().map(|(addr, port)| socket(addr, port)),
        source_port,
        own_port,
        established: map == FlowMap::Established,
        closed: value.is_closed(),
        hairpin: value.is(FlowValue::HAIRPIN),
        idle_seconds: idle(value.last_seen, now),
        packets_out: value.packets_out,
        bytes_out: value.bytes_out,
        packets_in: value.packets_in,
        bytes_in: value.bytes_in,
        seen_out: seen(value.seen_out),
        seen_in: seen(value.seen_in),
        service_id: value.service.get(),
    }
}

fn nat(map: NatMap, key: &NatKey, value: &NatValue, now: u64) -> Nat {
    let (local, peer) = (socket(key.local, key.local_port), socket(key.peer, key.peer_port));
    let (direction, source, destination) =
        if key.half == NatKey::OUT { ("out", local, peer) } else { ("in", peer, local) };
    Nat {
        protocol: protocol(key.protocol),
        direction,
        source,
        destination,
        translated: socket(value.other, value.other_port),
        established: map == NatMap::Established,
        idle_seconds: idle(value.last_seen, now),
        seen: seen(value.seen),
    }
}

impl Flow {
    /// `TCP OUT 10.1.0.7:40000 -> 10.1.0.9:80 …`, from who began to whom.
    fn line(&self) -> String {
        let Self { protocol, direction, endpoint, peer, translated, .. } = self;
        let mut line = match *direction {
            "in" => format!("{protocol} IN {peer} -> {endpoint}"),
            "service" => format!("{protocol} SVC {endpoint} -> {peer}"),
            _ => format!("{protocol} OUT {endpoint} -> {peer}"),
        };
        if let Some(translated) = translated {
            let what = if *direction == "service" { "Backend" } else { "Frontend" };
            line += &format!(" {what}={translated}");
        }
        for (what, port) in [("SourcePort", self.source_port), ("OwnPort", self.own_port)] {
            if let Some(port) = port {
                line += &format!(" {what}={port}");
            }
        }
        line += &format!(
            " Idle={}s Packets={}/{} Bytes={}/{} Seen={}/{}",
            self.idle_seconds,
            self.packets_out,
            self.packets_in,
            self.bytes_out,
            self.bytes_in,
            flags(&self.seen_out),
            flags(&self.seen_in)
        );
        if self.service_id != 0 {
            line += &format!(" Service={}", self.service_id);
        }
        let states = [(self.closed, "Closed"), (!self.established, "New"), (self.hairpin, "Hairpin")];
        for (_, name) in states.into_iter().filter(|(holds, _)| *holds) {
            line += &format!(" [{name}]");
        }
        line
    }
}

impl Nat {
    /// `TCP OUT 10.1.0.7:40000 -> 1.1.1.1:443 XLATE_SRC 192.0.2.1:40000 …`.
    fn line(&self) -> String {
        let Self { protocol, direction, source, destination, translated, established, idle_seconds, seen } =
            self;
        let (way, what) = if *direction == "out" { ("OUT", "XLATE_SRC") } else { ("IN", "XLATE_DST") };
        let state = if *established { "" } else { " [New]" };
        let seen = flags(seen);
        format!(
            "{protocol} {way} {source} -> {destination} {what} {translated} Idle={idle_seconds}s Seen={seen}{state}"
        )
    }
}

fn flags(seen: &[&str]) -> String {
    if seen.is_empty() { "-".to_owned() } else { seen.join(",") }
}

fn seen(bits: u8) -> Vec<&'static str> {
    [
        (FlowValue::SEEN, "any"),
        (FlowValue::SYN, "SYN"),
        (NatValue::ACK, "ACK"),
        (FlowValue::FIN, "FIN"),
        (FlowValue::RST, "RST"),
    ]
    .into_iter()
    .filter(|(bit, _)| bits & bit != 0)
    .map(|(_, name)| name)
    .collect()
}

/// Whole seconds; entries hold the time of the last second in which a packet came.
fn idle(last_seen: u64, now: u64) -> u64 {
    now.saturating_sub(last_seen) / 1_000_000_000
}

/// As in `cilium-dbg bpf ct list`.
fn protocol(number: u8) -> String {
    match number {
        1 => "ICMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        58 => "ICMPv6".to_owned(),
        132 => "SCTP".to_owned(),
        other => other.to_string(),
    }
}

fn socket(addr: Addr, port: Port) -> String {
    SocketAddr::new(IpAddr::from(addr), port.get()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(last: u8, port: u16) -> (Addr, Port) {
        (Addr::v4([10, 1, 0, last]), Port::new(port))
    }

    #[test]
    fn a_flow_is_a_line_from_who_began_to_whom() {
        let key = FlowKey::new(at(7, 40_000), at(9, 80), 6, FlowKey::PLAIN);
        let mut value = FlowValue::new(&key, 0, 5 * SECOND);
        (value.packets_out, value.bytes_out, value.packets_in, value.bytes_in) = (3, 180, 2, 120);
        value.seen_out = FlowValue::SEEN | FlowValue::SYN;
        let shown = flow(FlowMap::Established, &key, &value, 17 * SECOND);
        assert_eq!(
            shown.line(),
            "TCP OUT 10.1.0.7:40000 -> 10.1.0.9:80 Idle=12s Packets=3/2 Bytes=180/120 Seen=any,SYN/-"
        );
        value.flags = FlowValue::FROM_PEER;
        (value.seen_out, value.seen_in) = (FlowValue::FIN, FlowValue::FIN);
        let shown = flow(FlowMap::New, &key, &value, 0);
        assert_eq!(
            shown.line(),
            "TCP IN 10.1.0.9:80 -> 10.1.0.7:40000 Idle=0s Packets=3/2 Bytes=180/120 Seen=FIN/FIN [Closed] [New]"
        );
    }

    #[test]
    fn a_service_entry_shows_its_backend_and_the_flow_its_frontend() {
        let key = FlowKey::new(at(7, 40_000), at(96, 53), 17, FlowKey::SERVICE);
        let mut value = FlowValue::new(&key, 0, 0);
        (value.other, value.other_port) = at(9, 5353);
        value.service = portway_datapath::ServiceIndex::new(4);
        let line = flow(FlowMap::Established, &key, &value, 0).line();
        assert!(
            line.starts_with("UDP SVC 10.1.0.7:40000 -> 10.1.0.96:53 Backend=10.1.0.9:5353 Idle=0s "),
            "{line}"
        );
        assert!(line.ends_with(" Service=4"), "{line}");
        let key = FlowKey::new(at(7, 40_000), at(9, 5353), 17, FlowKey::PLAIN);
        (value.other, value.other_port) = at(96, 53);
        let line = flow(FlowMap::Established, &key, &value, 0).line();
        assert!(
            line.starts_with("UDP OUT 10.1.0.7:40000 -> 10.1.0.9:5353 Frontend=10.1.0.96:53 Idle="),
            "{line}"
        );
    }

    #[test]
    fn a_connection_that_leaves_from_another_port_shows_both() {
        let key = FlowKey::new(at(7, 40_000), at(96, 80), 6, FlowKey::SERVICE);
        let mut value = FlowValue::new(&key, 0, 0);
        (value.other, value.other_port) = at(9, 8080);
        value.other_local_port = Port::new(1500);
        let shown = flow(FlowMap::Established, &key, &value, 0);
        let line = shown.line();
        assert!(
            line.starts_with(
                "TCP SVC 10.1.0.7:40000 -> 10.1.0.96:80 Backend=10.1.0.9:8080 SourcePort=1500 Idle="
            ),
            "{line}"
        );
        assert_eq!((shown.source_port, shown.own_port), (Some(1500), None));
        let key = FlowKey::new(at(7, 1500), at(9, 8080), 6, FlowKey::PLAIN);
        (value.other, value.other_port) = at(96, 80);
        value.other_local_port = Port::new(40_000);
        let shown = flow(FlowMap::Established, &key, &value, 0);
        let line = shown.line();
        assert!(
            line.starts_with(
                "TCP OUT 10.1.0.7:1500 -> 10.1.0.9:8080 Frontend=10.1.0.96:80 OwnPort=40000 Idle="
            ),
            "{line}"
        );
        assert_eq!((shown.source_port, shown.own_port), (None, Some(40_000)));
    }

    #[test]
    fn the_halves_of_a_masqueraded_flow_read_as_packets_go() {
        let out = NatKey::new(at(7, 40_000), (Addr::v4([1, 1, 1, 1]), Port::new(443)), 6, NatKey::OUT);
        let value = NatValue::new(&out, (Addr::v4([192, 0, 2, 1]), Port::new(1024)), FlowValue::SEEN, 0);
        assert_eq!(
            nat(NatMap::Established, &out, &value, SECOND).line(),
            "TCP OUT 10.1.0.7:40000 -> 1.1.1.1:443 XLATE_SRC 192.0.2.1:1024 Idle=1s Seen=any"
        );
        let back = NatKey::new(
            (Addr::v4([192, 0, 2, 1]), Port::new(1024)),
            (Addr::v4([1, 1, 1, 1]), Port::new(443)),
            6,
            NatKey::IN,
        );
        let value = NatValue::new(&back, at(7, 40_000), 0, 0);
        assert_eq!(
            nat(NatMap::New, &back, &value, 0).line(),
            "TCP IN 1.1.1.1:443 -> 192.0.2.1:1024 XLATE_DST 10.1.0.7:40000 Idle=0s Seen=- [New]"
        );
    }
}
