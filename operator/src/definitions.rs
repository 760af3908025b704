//! CustomResourceDefinitions of Portway's kinds: made where they are missing, replaced where they are older, and never
//! touched where they are newer.
//!
//! How new a definition is says its label [`SCHEMA_VERSION_LABEL`], as Cilium does it (pkg/k8s/apis/crdhelpers); one
//! without it is older than all. A cluster that had Cilium keeps Cilium's.

mod install;
mod plan;
mod version;

use std::fmt;

use portway_model::crd::SCHEMA_VERSION_LABEL;
use serde::Serialize;

pub use install::{install, preview};
pub use plan::{Step, plan};
pub use version::Version;

/// How far the definitions are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order of their names.
    pub definitions: Vec<Definition>,
}

/// A definition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Definition {
    /// `ciliumnodes.cilium.io`.
    pub name: String,
    /// The schema version that is installed; "" where there is none, or it is not known.
    pub version: String,
    /// The API server serves its kind.
    pub is_established: bool,
    /// What this replica has done to it.
    pub done: Option<Done>,
    /// Why it is not as it should be; it is tried again.
    pub problem: Option<String>,
}

/// What was done to a definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Done {
    Created,
    Replaced { was: String },
}

impl Report {
    /// All of them are served.
    pub fn is_whole(&self) -> bool {
        self.definitions.iter().all(Definition::is_whole)
    }
}

impl Definition {
    /// It is served, and as it should be.
    fn is_whole(&self) -> bool {
        self.is_established && self.problem.is_none()
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Created => f.write_str("created"),
            Self::Replaced { was } if was.is_empty() => write!(f, "replaced, had no {SCHEMA_VERSION_LABEL}"),
            Self::Replaced { was } => write!(f, "replaced, was of version {was}"),
        }
    }
}

#[cfg(test)]
mod tests;
