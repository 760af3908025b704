//! The kernel maps as the agent opens, writes and reads them. Needs root, and fails without.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod adopting;
mod bpf;
mod fixture;
mod grace;
mod layout;
mod opening;
mod reading;
mod writing;
