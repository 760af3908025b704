use clap::{Parser, Subcommand};

use crate::check::Part;
use crate::setup::Scope;
use crate::suites::Suite;

/// Tasks of the Portway project
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
pub struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Install what the other verbs need, and say what and why; does nothing where it is there already
    Setup {
        /// Only what this purpose needs
        #[arg(value_enum, default_value_t = Scope::All)]
        scope: Scope,
    },
    /// Build the programs that run in the kernel
    BuildEbpf,
    /// Write deploy/crds: the CustomResourceDefinitions, from the types of common/model/src/crd
    Crds,
    /// Write tests/chart: what helm renders of deploy/portway for the sets of values there
    Chart,
    /// Watch services work without kube-proxy, in network namespaces of the demo's own (as root)
    Demo {
        /// Leave everything up afterwards, to play with
        #[arg(long)]
        keep: bool,
    },
    /// Run tests; without a suite all that exist but conformance
    Test {
        #[arg(value_enum)]
        suite: Option<Suite>,
        /// Run only tests whose name contains this
        filter: Option<String>,
        /// Run the long forms
        #[arg(long)]
        long: bool,
    },
    /// Check format, lints, docs, dependencies and the project's own rules
    Check {
        /// Only these parts
        #[arg(value_enum)]
        only: Vec<Part>,
    },
    /// Measure; prints each figure with its bar
    Bench {
        /// What to measure: connect, program, start, memory, envelope, hammer
        #[arg(required = true)]
        names: Vec<String>,
        /// One JSON object a line instead of a table
        #[arg(long)]
        json: bool,
        /// Run the long forms
        #[arg(long)]
        long: bool,
    },
    /// Everything that must pass before a change lands: check, test, demo
    Ci,
}
