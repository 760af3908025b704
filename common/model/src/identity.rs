//! Which number a label set has: CiliumIdentities as observed, and the rules by which agents and the operator make,
//! choose and collect them without asking each other.
//!
//! * [`home`](home_of): where a label set's number is looked for first;
//! * [`Claim`]: the protocol of one label set, a state machine of requests;
//! * [`Identities`]: what a watch or a directory shows;
//! * [`cardinality`]: which labels make them many;
//! * [`garbage`]: when an identity that nobody uses goes;
//! * [`Numbering`]: numbers that this node gives alone to label sets, where there is no API server.

pub mod cardinality;
pub mod garbage;

mod claim;
mod home;
mod numbering;
mod seen;
mod store;

pub use claim::{Action, Claim, Outcome, Right};
pub use home::{NumberRange, home_of, numbers_from};
pub use numbering::Numbering;
pub use seen::{Seen, Standing, Version};
pub use store::Identities;

/// The annotation by which garbage collection marks an identity: since when nobody uses it (RFC 3339). Cilium's.
pub const HEARTBEAT: &str = "io.cilium.heartbeat";
/// The annotation of an identity that must not be used yet; see [`Claim`].
pub const CLAIM: &str = "portway.io/claim";
