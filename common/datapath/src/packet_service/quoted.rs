//! Services in the packets that ICMP errors quote.

use crate::packet::Tuple;
use crate::{Addr, FlowKey, PacketTables, Port};

/// Where a packet comes from in the eyes of the pod that gets an ICMP error about it: the frontend that it dialled.
/// `quoted` is the packet as it left the pod. `None`: it dialled what it reached.
#[inline(never)]
pub fn quoted_frontend<T: PacketTables>(tables: &T, quoted: &Tuple) -> Option<(Addr, Port)> {
    let flow = tables.flow(&quoted.flow_of_source(FlowKey::PLAIN))?;
    tables.read_flow(flow).other()
}

/// Who sent a packet that the pod got from a frontend, for who gets an ICMP error of the pod about it: the backend. `quoted` is
/// the packet as the pod got it. `None`: it came from whom it says.
#[inline(never)]
pub fn quoted_backend<T: PacketTables>(tables: &T, quoted: &Tuple) -> Option<(Addr, Port)> {
    let flow = tables.flow(&quoted.flow_of_destination(FlowKey::SERVICE))?;
    tables.read_flow(flow).other()
}
