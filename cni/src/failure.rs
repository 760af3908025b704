//! What goes wrong, in the specification's form.

use serde::{Deserialize, Serialize};

/// An error as the runtime gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{msg}{}{details}", if details.is_empty() { "" } else { "; " })]
pub struct Failure {
    /// One of [`code`].
    pub code: u32,
    /// What happened, in one line.
    pub msg: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

/// The specification's section "Error", and from 100 on our own.
pub mod code {
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    pub const UNSUPPORTED_FIELD: u32 = 2;
    pub const UNKNOWN_CONTAINER: u32 = 3;
    pub const INVALID_ENVIRONMENT: u32 = 4;
    pub const IO: u32 = 5;
    pub const DECODING: u32 = 6;
    pub const INVALID_CONFIG: u32 = 7;
    pub const TRY_AGAIN: u32 = 11;
    /// Of STATUS: no ADD can be served now; pods that are there are not affected.
    pub const NOT_AVAILABLE: u32 = 50;
    /// No address is left for the pod.
    pub const NO_ADDRESS: u32 = 100;
    /// The kernel refused a part of the pod's network.
    pub const KERNEL: u32 = 101;
    /// The interface is not as ADD left it.
    pub const CHANGED: u32 = 102;
}

impl Failure {
    pub fn new(code: u32, msg: impl Into<String>, details: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: details.into() }
    }
}
