//! The kernel maps as the agent opens, writes and reads them. Needs root, and fails without.

#![expect(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod bpf;
mod fixture;
mod grace;
mod layout;
mod opening;
mod reading;
mod writing;
