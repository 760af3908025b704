//! What the kernel programs and user space agree on: the layouts of all map keys and values, and the decisions
//! made from them.
//!
//! Keys and values are `repr(C)`, integers and byte arrays only, padding explicit and zero, sizes asserted at
//! compile time. The decisions ([`translate`]) are functions over the [`Tables`] trait: the eBPF programs run
//! them on real maps, tests and `portway plan` on tables in memory, `portway explain` on a dump.
//!
//! The crate deliberately has no `std`, no `alloc`, no clock and no maps of its own.

#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod addr;
mod affinity;
mod backend;
mod config;
mod conntrack;
mod endpoint;
mod exchange;
mod flow;
mod frontend;
mod identity;
mod ipcache;
pub mod layout;
pub mod maglev;
mod metrics;
mod name;
pub mod nat;
mod network;
pub mod packet;
mod packet_service;
mod packet_tables;
mod service;
mod socket;
mod source_range;
mod tables;
mod translate;
mod tunnel;
#[cfg(feature = "user")]
mod user;

pub use addr::{Addr, Family, Port, Protocol};
pub use affinity::{AffinityKey, AffinityValue};
pub use backend::{BackendIndex, BackendRef, BackendSlot, Membership};
pub use config::{NodeConfig, Settings};
pub use conntrack::Sighting;
pub use endpoint::{EndpointId, EndpointPolicy, EndpointValue, NetnsOptions};
pub use exchange::{ExchangeKey, ExchangeValue, ReplyKey, ReplyValue, UDP_IDLE_NS};
pub use flow::{FlowKey, FlowValue, FragmentKey, FragmentValue, NatKey, NatValue};
pub use frontend::{FrontendKey, FrontendKind, FrontendValue, LocalAddress};
pub use identity::{NumericIdentity, Scope};
pub use ipcache::IpcacheValue;
pub use metrics::Counter;
pub use name::{NAME_BYTES, NameTooLong, ServiceName};
pub use network::{CpuTraffic, DeviceValue, Direction, NodeNetwork, Reason, Traffic};
pub use packet_service::{
    Incoming, Outgoing, Quoted, ServiceDesk, answer_to_itself, incoming, outgoing, quoted_backend,
    quoted_frontend,
};
pub use packet_tables::{FlowMap, NetworkWord, PacketTables};
pub use service::{
    RECORD_WORDS, Record, RunBackend, RunHeader, RunOffset, ServiceFlags, ServiceIndex, ServiceWord,
};
pub use socket::SocketTranslation;
pub use source_range::SourceRange;
pub use tables::Tables;
pub use translate::{
    Client, Destination, PassReason, Translation, Verdict, bind_is_denied, connected_backend, original_peer,
    reply_source, translate, translate_datagram,
};
pub use tunnel::is_of_node;
