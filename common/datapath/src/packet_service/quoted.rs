//! Services in the packets that ICMP errors quote.

use crate::packet::Tuple;
use crate::{Addr, FlowKey, PacketTables, Port};

/// What stands in a quoted packet instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// The other end.
    pub addr: Addr,
    pub port: Port,
    /// At the pod's end.
    pub own_port: Port,
}

/// Where a packet goes to in the eyes of the pod that gets an ICMP error about it: the frontend that it dialled, from its own
/// port. `quoted` is the packet as it left the pod. `None`: it dialled what it reached.
#[inline(never)]
pub fn quoted_frontend<T: PacketTables>(tables: &T, quoted: &Tuple) -> Option<Quoted> {
    translated(tables, &quoted.flow_of_source(FlowKey::PLAIN))
}

/// Who sent a packet that the pod got from a frontend, for who gets an ICMP error of the pod about it: the backend, to the port
/// that the pod has in its eyes. `quoted` is the packet as the pod got it. `None`: it came from whom it says.
#[inline(never)]
pub fn quoted_backend<T: PacketTables>(tables: &T, quoted: &Tuple) -> Option<Quoted> {
    translated(tables, &quoted.flow_of_destination(FlowKey::SERVICE))
}

#[inline(always)]
fn translated<T: PacketTables>(tables: &T, key: &FlowKey) -> Option<Quoted> {
    let value = tables.read_flow(tables.flow(key)?);
    let (addr, port) = value.other()?;
    Some(Quoted { addr, port, own_port: value.other_local_port(key.local_port) })
}
