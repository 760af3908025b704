//! A client of the Kubernetes API server and watches that cannot die silently.
//!
//! Bytes go in and out: an object is JSON text here, whatever its kind. [`Client`] sends requests to one of several
//! servers within a rate limit; [`Watch`] follows one kind and tells it as [`WatchEvent`]s, whatever the API server
//! and the network do; [`each_page`] lists what is there, and [`object_versions`] its versions, for an audit;
//! [`EventRecorder`] writes Events. An [`Elector`] takes part in a leader election, and its [`Fence`] keeps a client from
//! writing without a lease.

mod client;
mod connection;
mod error;
mod events;
mod fence;
pub mod jitter;
mod lease;
mod ledger;
mod metrics;
mod options;
mod pages;
mod resources;
#[cfg(test)]
mod scripted;
mod servers;
mod status;
mod term;
mod throttle;
mod versions;
mod watch;

pub use client::{Client, ClientOptions, Deletion, PatchType};
pub use error::{ClientError, RequestError};
pub use events::{EventRecorder, EventType, RecorderStatus, Regarding, Reporter};
pub use fence::Fence;
pub use lease::{Elector, ElectorError, ElectorOptions, ElectorStatus, Leadership, LeaseTimes};
pub use ledger::ClientStatus;
pub use metrics::{ApiServerCollector, Told};
pub use pages::each_page;
pub use resources::resources;
pub use term::Term;
pub use versions::object_versions;
pub use watch::{Resource, Watch, WatchEvent, WatchOptions, WatchState, WatchStatus};
