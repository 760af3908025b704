//! Kubernetes objects in, map operations out.
//!
//! ```text
//! bytes of a manifest, a watch event
//!    │ k8s            decode, default, validate: our types and a list of what was refused
//!    ▼
//! loadbalancer        apply(object) → the service ports and frontends it made dirty
//!    │ plan           dirty ones → TableOps, in an order that is right at every step
//!    ▼
//! tables              the operations, tables in memory, a dump, and the rows that people read
//!
//! labels              what of a pod, its namespace and its account makes its identity
//!    │ identity       a label set → a number that no other one has: the protocol of claims, garbage
//!    ▼
//! ipcache             who has which address, of all sources → the prefixes that a change concerns
//! ```
//!
//! Pure: no clock, no files, no environment, no kernel, no async. A change costs what changed.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod crd;
pub mod identity;
pub mod ipcache;
pub mod k8s;
pub mod labels;
pub mod loadbalancer;
pub mod node;
pub mod plan;
pub mod tables;
