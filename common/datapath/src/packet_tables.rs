#[cfg(test)]
pub(crate) mod memory;

use crate::{
    Addr, BackendRef, DeviceValue, Direction, EndpointValue, Family, FlowKey, FlowValue, FragmentKey,
    FragmentValue, IpcacheValue, Port, Reason, ServiceIndex, Tables,
};

/// The maps of the pod network as the decisions see them, beside those of the services.
///
/// Entries of flows are found once and then read and changed through [`Self::Flow`], a pointer in the kernel. What is
/// stored through it is one aligned word each, but for [`Self::set_other`].
pub trait PacketTables: Tables {
    /// An entry of `pw_conntrack` or `pw_ct_new`.
    type Flow: Copy;

    /// A word of `pw_network`.
    fn network(&self, word: NetworkWord) -> u64;
    /// What a pod that reaches itself by a service sees as its peer.
    fn hairpin(&self, family: Family) -> Addr;
    /// `pw_endpoints`.
    fn endpoint(&self, addr: &Addr) -> Option<&EndpointValue>;
    /// `pw_ipcache`: of the longest prefix that holds `addr`.
    fn ipcache(&self, addr: &Addr) -> Option<IpcacheValue>;
    /// `pw_devices`.
    fn device(&self, ifindex: u32) -> Option<DeviceValue>;
    /// `pw_fragments`.
    fn fragment(&self, key: &FragmentKey) -> Option<FragmentValue>;
    /// Changes an entry in place, or makes it. A full map loses its least recently used entry.
    fn set_fragment(&self, key: &FragmentKey, value: FragmentValue);

    /// The entry of a flow: of `pw_conntrack`, else of `pw_ct_new`. An element that was reused for another key
    /// ([`FlowValue::tag`]) is none.
    fn flow(&self, key: &FlowKey) -> Option<Self::Flow>;
    /// As [`Self::flow`], but may miss an entry that moves to `pw_conntrack` at this moment: for who looks again before
    /// anything comes of that.
    fn flow_or_moving(&self, key: &FlowKey) -> Option<Self::Flow>;
    /// Where the entry is.
    fn flow_map(&self, flow: Self::Flow) -> FlowMap;
    fn read_flow(&self, flow: Self::Flow) -> FlowValue;
    /// Counts a packet.
    fn count_flow(&self, flow: Self::Flow, direction: Direction, bytes: u32);
    fn set_last_seen(&self, flow: Self::Flow, now: u64);
    /// Stores `seen_out` (egress) or `seen_in`.
    fn set_seen(&self, flow: Self::Flow, direction: Direction, seen: u8);
    /// Stores [`FlowValue::flags`].
    fn set_flags(&self, flow: Self::Flow, flags: u16);
    /// Stores [`FlowValue::other`], its port, [`FlowValue::other_local_port`], the service and the backend. Not at once: what another CPU reads meanwhile may be
    /// a mixture, so that of TCP it is only for who begins; of datagrams an answer to the one before may be lost.
    fn set_other(
        &self,
        flow: Self::Flow,
        other: (Addr, Port),
        other_local_port: Port,
        service: ServiceIndex,
        backend: BackendRef,
    );
    /// Makes an entry in `pw_ct_new`, which loses its least recently used entry where it is full. An entry that is there
    /// already stays. `None` if the kernel refused, which is counted ([`Reason::MapFull`]).
    ///
    /// `write` writes the whole entry, in place: on a program's stack it would take a sixth of the room.
    fn insert_flow(&self, key: &FlowKey, write: impl FnOnce(&mut FlowValue)) -> Option<Self::Flow>;
    /// Moves an entry from `pw_ct_new` to `pw_conntrack`, and says where it is afterwards: where there is no room, which is
    /// counted ([`Reason::MapFull`]), it stays.
    fn establish_flow(&self, key: &FlowKey, flow: Self::Flow) -> Self::Flow;

    /// Counts a packet in `pw_traffic`.
    fn count_packet(&self, reason: Reason, direction: Direction, bytes: u32);
}

/// Where the entry of a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowMap {
    /// `pw_conntrack`.
    Established,
    /// `pw_ct_new`.
    New,
}

/// The words of [`crate::NodeNetwork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkWord {
    Switches,
    Tunnel,
    NatPorts,
    TcpTimeouts,
    OtherTimeouts,
    ServiceTimeouts,
}
