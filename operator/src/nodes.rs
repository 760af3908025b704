//! Nodes: their CiliumNodes, their taint and condition, and pods that were there before the network.
//!
//! Who writes what of a CiliumNode, so that nobody undoes another's work:
//!
//! | field | agent of the node | operator |
//! |---|---|---|
//! | the object, `metadata.ownerReferences` | creates it where it is missing, keeps the owner | creates it where it is missing ([`Discovery`]), deletes it without Node ([`Gc`]) |
//! | `spec.addresses`, InternalIP and ExternalIP | keeps them those of the Node | writes them where the object has none of them: what the agent would write |
//! | `spec.addresses` of other types | leaves them | leaves them |
//! | `spec.health`, `spec.bootid` | keeps them | never |
//! | `spec.ipam.podCIDRs` | with `ipam=kubernetes`: keeps those of the Node | with `ipam=cluster-pool`: adds to them ([`crate::ipam`]); with `kubernetes` in the creation alone |
//! | `status.ipam.operator-status`, the annotation of [`crate::ipam`] | never | keeps them |
//!
//! Of a Node the operator writes `status.conditions[NetworkUnavailable]` and takes out or adds one taint ([`Readiness`]).

mod agents;
mod discovery;
mod gc;
mod readiness;
mod selector;
#[cfg(test)]
mod tests;
mod unmanaged;

pub use agents::Agents;
pub use discovery::{Config as DiscoveryConfig, Discovery};
pub use gc::Gc;
pub use readiness::{Config as ReadinessConfig, Readiness};
pub use selector::{Selector, SelectorError};
pub use unmanaged::{Config as UnmanagedConfig, Metrics as UnmanagedMetrics, Unmanaged};
