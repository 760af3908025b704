//! Who is at an address, and how it is reached: what programs know of addresses (`pw_ipcache`).
//!
//! ```text
//! nodes ─ reach ────────────┐
//! CiliumEndpoints and slices ┤ objects
//! this node's pods ─────────┤
//! API server, CIDRs ────────┼─► Ipcache ─► the entries that a change makes other ones
//! this node's addresses ────┤
//! what an earlier agent left┘
//! ```

mod endpoints;
mod local;
mod merge;
mod objects;
mod order;
mod prefixes;
mod reach;

pub use endpoints::{EndpointAddress, EndpointSource};
pub use local::{LocalIdentities, api_server_labels, cidr_label};
pub use merge::{EntryChange, Ipcache, NodesView, Source};
pub use objects::{AddressNews, AddressObjects};
pub use order::in_order;
pub use prefixes::Key;
pub use reach::{Options, Reach, RemotePrefix, reach};
