//! The Portway node agent as a library: what the binary runs, what `portway` reads and cleans up with, and what
//! tests drive.

pub mod api;
pub mod app;
mod bpf;
pub mod cleanup;
mod cni;
pub mod command;
pub mod config;
pub mod conntrack;
pub mod endpoints;
pub mod health;
pub mod identities;
pub mod ipam;
pub mod ipcache;
pub mod lock;
pub mod maps;
mod netlink;
pub mod network;
pub mod node;
pub mod programs;
pub mod sockets;
mod thread;
mod versions;
