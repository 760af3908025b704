//! What `cargo xtask bench` measures: the figures of the README, each with its bar.
//!
//! A benchmark makes a [`crate::harness::World`], runs the real agent in it, and measures with clients that are
//! processes of their own ([`client`]). It gives [`Figure`]s; the caller prints them. Ratios are taken in one run with
//! rounds interleaved, since the speed of a machine drifts.

pub mod apilag;
pub mod churn;
pub mod client;
pub mod cluster;
pub mod connect;
pub mod hammer;
pub mod identity;
pub mod objects;
pub mod operator;
pub mod podadd;
pub mod podnet;
pub mod program;
pub mod report;
pub mod resources;
pub mod restart;

pub use report::Figure;

use anyhow::{Result, bail};

/// Every benchmark, in the order in which they are run.
pub const NAMES: [&str; 13] = [
    "connect", "program", "start", "restart", "memory", "envelope", "hammer", "apilag", "churn", "podadd",
    "podnet", "identity", "operator",
];

/// Runs one. `long`: the form whose figures are published.
pub fn run(name: &str, long: bool) -> Result<Vec<Figure>> {
    match name {
        "connect" => connect::run(long),
        "program" => program::run(long),
        "start" => resources::start(long),
        "restart" => restart::run(long),
        "memory" => resources::memory(),
        "envelope" => program::envelope(),
        "hammer" => hammer::run(long),
        "apilag" => apilag::run(long),
        "churn" => churn::run(long),
        "podadd" => podadd::run(long),
        "podnet" => podnet::run(long),
        "identity" => identity::run(long),
        "operator" => operator::run(long),
        other => bail!("no benchmark {other:?}: there are {}", NAMES.join(", ")),
    }
}
