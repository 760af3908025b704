//! The CNI plugin (<https://www.cni.dev/docs/spec/>, version 1.1.0 and back to 0.3.1): a thin client of the agent.
//!
//! It reads what the runtime says, hands it with the pod's network namespace to the agent's socket, and says in the
//! specification's words what came of it. The agent makes the interface, so that one process knows them all.
//!
//! Every wait is bounded. An agent that restarts is waited for; DEL does not need one: where nobody answers it leaves a
//! note that the agent reads when it starts ([`deletions`]), and repeating it changes nothing.

#![deny(unsafe_code)]

pub mod client;
pub mod deletions;
pub mod failure;
pub mod invocation;
pub mod network_config;
pub mod plugin;
pub mod protocol;
pub mod result;
pub mod version;
