//! What people and CI type: `cargo xtask setup|build-ebpf|crds|chart|demo|test|check|bench|ci`.
//!
//! Runs cargo, the package manager and the project's own binaries; holds the rules of the project as checks. It
//! uses none of the other crates, so that it compiles in seconds and works while they do not.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod chart;
mod check;
mod ci;
mod command;
mod crds;
mod demo;
pub mod ebpf;
mod setup;
mod suites;
mod workspace;

pub use args::Args;
use args::Verb;
pub use command::say;

/// Carries out one verb.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.verb {
        Verb::Setup { scope } => setup::run(scope),
        Verb::BuildEbpf => {
            setup::run(setup::Scope::Ebpf)?;
            demo::build_object()
        }
        Verb::Crds => crds::run(),
        Verb::Chart => chart::run(),
        Verb::Demo { keep } => demo::run(keep),
        Verb::Test { suite, filter, long } => suites::run(suite, filter.as_deref(), long),
        Verb::Check { only } => check::run(&only),
        Verb::Bench { names, json, long } => bench::run(&names, json, long),
        Verb::Ci => ci::run(),
    }
}
