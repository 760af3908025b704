use crate::packet::{IcmpClass, TcpFlags, Tuple, icmp_class, protocol};
use crate::{
    Addr, DeviceValue, Family, FlowKey, FlowValue, IpcacheValue, NatKey, NodeNetwork, PacketTables, Port,
    Reason,
};

use super::{
    NatDesk, NatFlow, NatPorts, NatTables, choice, known, masquerade, nat_seen, related, unmasquerade,
};

/// What masquerading asks of the other maps.
pub trait NatFacts: NatTables {
    /// Whether this is an address of a pod of this node.
    fn is_pod(&self, addr: &Addr) -> bool;
    /// Whether an address is inside the cluster's network, so that what goes there keeps its source.
    fn is_inside(&self, addr: &Addr) -> bool;
    /// Whether the peer of the pod began this flow.
    fn began_outside(&self, key: &FlowKey) -> bool;
}

/// A packet on a device of the node, or one that an ICMP error there quotes.
#[derive(Clone, Copy, Debug)]
pub struct NatPacket<'a> {
    pub tuple: &'a Tuple,
    pub flags: TcpFlags,
    pub icmp_type: u8,
}

/// What the node is while a packet passes.
#[derive(Clone, Copy, Debug)]
pub struct NatNode {
    /// [`NodeNetwork::switches`].
    pub switches: u64,
    pub ports: NatPorts,
}

/// What becomes of a packet that leaves the node by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    Unchanged,
    /// Its source becomes [`NatDesk::result`]; of an echo the port is the identifier.
    Source,
    Drop(Reason),
}

/// What becomes of an ICMP error that leaves the node by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavingError {
    Unchanged,
    /// The destination of the packet that it quotes becomes [`NatDesk::result`], its own source that address where it is a
    /// pod's.
    About {
        from_pod: bool,
    },
    Drop(Reason),
}

/// What becomes of a packet that comes to the node by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arriving {
    Unchanged,
    /// Its destination becomes [`NatDesk::result`]; of an echo the port is the identifier.
    Destination,
}

/// How a protocol can be masqueraded.
enum Form {
    Ports {
        fixed: bool,
    },
    /// An echo with its identifier; `begins`: the request.
    Echo {
        begins: bool,
    },
    None,
}

#[inline(always)]
fn form(protocol: u8, icmp_type: u8) -> Form {
    match protocol {
        protocol::TCP | protocol::UDP | protocol::UDP_LITE => Form::Ports { fixed: false },
        // Its checksum is over the whole packet, but not over addresses.
        protocol::SCTP => Form::Ports { fixed: true },
        protocol::ICMP | protocol::ICMPV6 => match icmp_class(protocol, icmp_type) {
            IcmpClass::Echo => Form::Echo { begins: icmp_type == 8 || icmp_type == 128 },
            IcmpClass::Error | IcmpClass::Other => Form::None,
        },
        _ => Form::None,
    }
}

/// `device` has the addresses of the device by which the packet leaves. ICMP errors are [`error_leaving`]'s.
#[inline(always)]
pub fn leaving<T: NatFacts>(
    tables: &T,
    desk: &mut NatDesk,
    node: NatNode,
    device: &DeviceValue,
    packet: &NatPacket<'_>,
) -> Leaving {
    let tuple = packet.tuple;
    let family = tuple.source.family();
    if !masquerades(node.switches, family) {
        return Leaving::Unchanged;
    }
    let address = match family {
        Family::V4 => &device.v4,
        Family::V6 => &device.v6,
    };
    let is_pod = tuple.source != *address && tables.is_pod(&tuple.source);
    if !is_pod && tuple.source != *address && !tables.is_own_address(&tuple.source) {
        return Leaving::Unchanged;
    }
    if tables.is_inside(&tuple.destination) {
        return Leaving::Unchanged;
    }
    let (peer_port, fixed, answers) = match form(tuple.protocol, packet.icmp_type) {
        Form::Ports { fixed } => {
            let accepts = packet.flags.has(TcpFlags::SYN) && packet.flags.has(TcpFlags::ACK);
            (tuple.destination_port, fixed, accepts)
        }
        Form::Echo { begins } => (Port::new(0), false, !begins),
        Form::None if is_pod && !began_outside(tables, tuple) => {
            return Leaving::Drop(Reason::NatUnsupported);
        }
        Form::None => return Leaving::Unchanged,
    };
    desk.flow = NatFlow {
        local: (tuple.source, tuple.source_port),
        peer: (tuple.destination, peer_port),
        protocol: tuple.protocol,
        seen: nat_seen(packet.flags),
        fixed,
    };
    let found = if is_pod {
        if known(tables, desk, address) {
            Ok(())
        } else if answers || began_outside(tables, tuple) {
            return Leaving::Unchanged;
        } else if address.is_unspecified() {
            Err(Reason::NoNatAddress)
        } else {
            choice::choose(tables, desk, address, node.ports)
        }
    } else if answers || !(fixed || node.ports.contains(tuple.source_port)) {
        // Nobody else is given this port.
        return Leaving::Unchanged;
    } else {
        masquerade(tables, desk, &tuple.source, node.ports)
    };
    match found {
        Ok(()) if desk.is_unchanged() => Leaving::Unchanged,
        Ok(()) => Leaving::Source,
        Err(reason) => Leaving::Drop(reason),
    }
}

/// Whether the peer of the packet's source began their flow.
#[inline(never)]
fn began_outside<T: NatFacts>(tables: &T, tuple: &Tuple) -> bool {
    tables.began_outside(&tuple.flow_of_source(FlowKey::PLAIN))
}

/// An ICMP error with the ends `outer` about a packet that came for a pod: its peer knows the flow by the node's address.
#[inline(always)]
pub fn error_leaving<T: NatFacts>(
    tables: &T,
    desk: &mut NatDesk,
    node: NatNode,
    outer: &Tuple,
    quoted: &NatPacket<'_>,
) -> LeavingError {
    if !masquerades(node.switches, outer.source.family()) {
        return LeavingError::Unchanged;
    }
    let tuple = quoted.tuple;
    let peer_port = match form(tuple.protocol, quoted.icmp_type) {
        Form::Ports { .. } => tuple.source_port,
        Form::Echo { .. } | Form::None => Port::new(0),
    };
    let local = (tuple.destination, tuple.destination_port);
    desk.key = NatKey::new(local, (tuple.source, peer_port), tuple.protocol, NatKey::OUT);
    let from_pod = tables.is_pod(&outer.source);
    if related(tables, desk) {
        return if desk.result() == local {
            LeavingError::Unchanged
        } else {
            LeavingError::About { from_pod }
        };
    }
    if !from_pod || tables.is_inside(&outer.destination) || began_outside(tables, &tuple.reversed()) {
        return LeavingError::Unchanged;
    }
    LeavingError::Drop(Reason::NatUnsupported)
}

/// The packet's destination is no address of a pod. ICMP errors are [`error_arriving`]'s.
#[inline(always)]
pub fn arriving<T: NatTables>(
    tables: &T,
    desk: &mut NatDesk,
    node: NatNode,
    packet: &NatPacket<'_>,
) -> Arriving {
    let tuple = packet.tuple;
    if !masquerades(node.switches, tuple.destination.family()) {
        return Arriving::Unchanged;
    }
    let peer_port = match form(tuple.protocol, packet.icmp_type) {
        Form::Ports { fixed } if fixed || node.ports.contains(tuple.destination_port) => tuple.source_port,
        Form::Echo { begins: false } => Port::new(0),
        Form::Ports { .. } | Form::Echo { begins: true } | Form::None => return Arriving::Unchanged,
    };
    desk.flow = NatFlow {
        local: (tuple.destination, tuple.destination_port),
        peer: (tuple.source, peer_port),
        protocol: tuple.protocol,
        seen: nat_seen(packet.flags),
        fixed: false,
    };
    if unmasquerade(tables, desk) && !desk.is_unchanged() {
        Arriving::Destination
    } else {
        Arriving::Unchanged
    }
}

/// An ICMP error to `destination` about a packet that left with the node's address, from whoever could not carry it. Whether
/// that was a pod's: then the source of the quoted packet becomes [`NatDesk::result`], and the error's destination that address.
#[inline(always)]
pub fn error_arriving<T: NatTables>(
    tables: &T,
    desk: &mut NatDesk,
    node: NatNode,
    destination: Addr,
    quoted: &NatPacket<'_>,
) -> bool {
    let tuple = quoted.tuple;
    // Who quotes a packet of somebody else's tells us nothing.
    if !masquerades(node.switches, destination.family()) || tuple.source != destination {
        return false;
    }
    let peer_port = match form(tuple.protocol, quoted.icmp_type) {
        Form::Ports { .. } => tuple.destination_port,
        Form::Echo { begins: true } => Port::new(0),
        Form::Echo { begins: false } | Form::None => return false,
    };
    let local = (tuple.source, tuple.source_port);
    desk.key = NatKey::new(local, (tuple.destination, peer_port), tuple.protocol, NatKey::IN);
    related(tables, desk) && desk.result() != local
}

#[inline(always)]
fn masquerades(switches: u64, family: Family) -> bool {
    let switch = match family {
        Family::V4 => NodeNetwork::MASQUERADE_V4,
        Family::V6 => NodeNetwork::MASQUERADE_V6,
    };
    switches & switch != 0
}

impl<T: PacketTables + NatTables> NatFacts for T {
    #[inline(always)]
    fn is_pod(&self, addr: &Addr) -> bool {
        self.endpoint(addr).is_some()
    }

    #[inline(always)]
    fn is_inside(&self, addr: &Addr) -> bool {
        self.ipcache(addr).is_some_and(|value| value.is(IpcacheValue::INSIDE))
    }

    #[inline(always)]
    fn began_outside(&self, key: &FlowKey) -> bool {
        self.flow(key).is_some_and(|flow| self.read_flow(flow).flags & FlowValue::FROM_PEER != 0)
    }
}
