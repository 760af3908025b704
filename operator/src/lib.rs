//! The Portway cluster operator: what agents should not each do for themselves.
//!
//! ```text
//! watches ─► Observed ─► controllers' plans (pure) ─► executor ─► fenced client ─► API server
//!                ▲                                                                    │
//!                └────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! One replica leads: it alone plans and writes, and every write is refused by the client unless the lease is held
//! long enough for its answer. What must be unique is claimed by compare-and-swap all the same.

#![forbid(unsafe_code)]

pub mod app;
pub mod command;
pub mod config;
pub mod controller;
pub mod definitions;
pub mod discovery;
pub mod endpoint_gc;
pub mod executor;
#[cfg(test)]
mod fake_api;
pub mod identities;
pub mod identity_alarm;
pub mod identity_gc;
pub mod ipam;
pub mod lead;
pub mod nodes;
pub mod observed;
pub mod slices;
pub mod status;
pub mod term;
pub mod watches;
pub mod wishes;
pub mod write;
