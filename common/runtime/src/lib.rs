//! Process plumbing of the agent and the operator: command line, configuration, logging, HTTP for people and probes, metrics,
//! readiness, shutdown, a directory of manifests that is followed live, and watches of the Kubernetes API server.
//!
//! Nothing here knows what is in a Kubernetes object, a service or a map: bytes and settings go in and out.

#![forbid(unsafe_code)]

pub mod admin;
pub mod command;
pub mod config;
pub mod directory;
pub mod kubernetes;
pub mod logging;
pub mod metrics;
pub mod readiness;
pub mod shutdown;
