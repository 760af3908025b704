//! The test suites, and which tests belong to which.

mod junit;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use clap::ValueEnum;

use crate::command::{close, say, succeeds, timed};
use crate::demo::{binaries, build_object, run_tests_as_root};
use crate::{setup, workspace};
pub(crate) use junit::Counts;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Everything that needs no privilege: unit and property tests, the oracle, bad values
    Unit,
    /// Manifests in, plan out: the cases of common/model/tests/golden
    Golden,
    /// Programs loaded for real, sockets through them, in namespaces and cgroups of the tests' own (as root)
    Kernel,
    /// Against a real API server
    Cluster,
    /// Cut, stalled and replayed connections to the API server
    Faults,
    /// The Kubernetes network suites
    Conformance,
}

/// Tests that need root: of the tests crate those named `kernel_*`, of the agent all that are not unit tests.
const KERNEL: &str = "(package(portway-tests) & binary(/^kernel_/)) | (package(portway-agent) & kind(test))";
const GOLDEN: &str = "package(portway-model) & binary(golden)";
const CLUSTER: &str = "package(portway-tests) & binary(/^cluster_/)";
const FAULTS: &str = "package(portway-tests) & binary(/^faults_/)";

/// What a suite is made of.
struct Plan {
    suite: Suite,
    /// Arguments of nextest that choose packages.
    packages: &'static [&'static str],
    filter: String,
    /// Needs root, the kernel programs and the binaries of agent and command.
    on_the_kernel: bool,
    /// Needs etcd, kube-apiserver and kube-controller-manager.
    control_plane: bool,
}

impl Suite {
    /// `None` where the suite is not built yet.
    fn plan(self) -> Option<Plan> {
        let (packages, filter): (&[_], _) = match self {
            // The default members: all but the kernel programs, which build for another target.
            Self::Unit => {
                (&[], format!("not ({KERNEL}) and not ({GOLDEN}) and not ({CLUSTER}) and not ({FAULTS})"))
            }
            Self::Golden => (&["--package", "portway-model"], GOLDEN.to_owned()),
            // The packages of the unit tests, so that what is built for those is not built again; and among them are
            // those whose binaries the tests run.
            Self::Kernel => (&[], KERNEL.to_owned()),
            Self::Cluster => (&[], CLUSTER.to_owned()),
            Self::Faults => (&[], FAULTS.to_owned()),
            Self::Conformance => return None,
        };
        let control_plane = matches!(self, Self::Cluster | Self::Faults);
        let on_the_kernel = self == Self::Kernel || control_plane;
        Some(Plan { suite: self, packages, filter, on_the_kernel, control_plane })
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What a run of suites came to.
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    /// Suites that failed, built nothing or ran no test.
    pub(crate) failed: Vec<String>,
}

/// `cargo xtask test`: an error where a test failed, or where a suite that was asked for does not exist.
pub(crate) fn run(suite: Option<Suite>, filter: Option<&str>, long: bool) -> anyhow::Result<()> {
    let outcome = run_suites(suite, filter, long)?;
    close(format!("{} passed, {} failed", outcome.counts.passed, outcome.counts.failed));
    if outcome.failed.is_empty() { Ok(()) } else { bail!("failed: {}", outcome.failed.join(", ")) }
}

pub(crate) fn run_suites(suite: Option<Suite>, filter: Option<&str>, long: bool) -> anyhow::Result<Outcome> {
    let plans = match suite {
        Some(suite) => {
            let Some(plan) = suite.plan() else {
                bail!("there is no suite `{}` yet: it comes with a later issue", suite.name());
            };
            vec![plan]
        }
        // All with the packages of the unit tests: one suite's choice would build dependencies with other features.
        None => {
            let plans = Suite::value_variants().iter().filter_map(|suite| suite.plan());
            plans.map(|plan| Plan { packages: &[], ..plan }).collect()
        }
    };
    setup::run(scope(&plans))?;
    let mut outcome = Outcome { counts: Counts::default(), failed: Vec::new() };
    let mut table = String::new();
    for plan in &plans {
        let name = format!("test {}", plan.suite.name());
        let (result, took) = timed(&name, || run_one(plan, filter, long));
        let counts = match result {
            Ok((counts, passed)) => {
                // A filter may well match nothing in one of several suites; a whole suite may not.
                let empty = counts.passed + counts.failed == 0 && (filter.is_none() || suite.is_some());
                if !passed || empty {
                    outcome.failed.push(if empty { format!("{name} (ran no test)") } else { name.clone() });
                }
                counts
            }
            Err(error) => {
                outcome.failed.push(format!("{name} ({error:#})"));
                Counts::one(false)
            }
        };
        outcome.counts.add(counts);
        writeln!(
            table,
            "  {name:<12} {:>5} passed {:>4} failed {:>7.1} s",
            counts.passed,
            counts.failed,
            took.as_secs_f64()
        )?;
    }
    say(format!("\n{}", table.trim_end()));
    Ok(outcome)
}

/// What `plans` need together.
fn scope(plans: &[Plan]) -> setup::Scope {
    if plans.iter().any(|plan| plan.control_plane) {
        setup::Scope::Test
    } else if plans.iter().any(|plan| plan.on_the_kernel) {
        setup::Scope::Kernel
    } else {
        setup::Scope::Unit
    }
}

/// The counts, and whether nextest was content.
fn run_one(plan: &Plan, filter: Option<&str>, long: bool) -> anyhow::Result<(Counts, bool)> {
    if plan.on_the_kernel {
        build_object()?;
    }
    let profile = if long { "long" } else { "default" };
    let report = workspace::root().join("target/nextest").join(profile).join("junit.xml");
    remove_if_there(&report)?;
    let mut nextest = nextest(plan, filter, long, profile)?;
    let passed = succeeds(&mut nextest)?;
    match std::fs::read_to_string(&report) {
        Ok(text) => {
            let mut counts = junit::counts(&text).with_context(|| format!("reading {}", report.display()))?;
            let mut all_passed = passed;
            if plan.suite == Suite::Unit && filter.is_none_or(|filter| "mutants".contains(filter)) {
                let caught = succeeds(&mut mutants(long))?;
                counts.add(Counts::one(caught));
                all_passed &= caught;
            }
            Ok((counts, all_passed))
        }
        // nextest writes no report where a build failed, and none where no test matched.
        Err(_) if !passed => bail!("the tests did not build, or none matched"),
        Err(error) => Err(error).with_context(|| format!("reading {}", report.display())),
    }
}

/// Lines of the model changed one at a time: the oracle must notice. Not a test of nextest's, since it builds copies of
/// the model; it counts as one. nextest has built it, with the tests of its package.
fn mutants(long: bool) -> Command {
    let mut mutants = Command::new(binaries().join("portway-mutants"));
    mutants.args(long.then_some("--long"));
    mutants
}

fn nextest(plan: &Plan, filter: Option<&str>, long: bool, profile: &str) -> anyhow::Result<Command> {
    let mut nextest = workspace::cargo()?;
    nextest.args(["nextest", "run", "--profile", profile, "--no-tests"]);
    nextest.arg(if filter.is_some() { "pass" } else { "fail" });
    nextest.args(plan.packages).args(["-E", &plan.filter]).args(filter);
    if long {
        nextest.env("PORTWAY_LONG", "1");
    }
    if plan.on_the_kernel {
        // Building the tests of a package builds its binaries too: agent, command and the tests' own.
        nextest.env("PORTWAY_BIN_DIR", binaries());
        run_tests_as_root(&mut nextest);
    }
    Ok(nextest)
}

fn remove_if_there(file: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", file.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_and_golden_tests_need_no_privilege() {
        for suite in [Suite::Unit, Suite::Golden] {
            let plan = suite.plan().unwrap();
            assert!(!plan.on_the_kernel && !plan.control_plane);
        }
    }

    #[test]
    fn only_suites_with_a_control_plane_wait_for_its_build() {
        let plans = |suites: &[Suite]| suites.iter().filter_map(|suite| suite.plan()).collect::<Vec<_>>();
        assert_eq!(scope(&plans(&[Suite::Golden, Suite::Unit])), setup::Scope::Unit);
        assert_eq!(scope(&plans(&[Suite::Unit, Suite::Kernel])), setup::Scope::Kernel);
        assert_eq!(scope(&plans(&[Suite::Faults, Suite::Unit])), setup::Scope::Test);
    }

    #[test]
    fn a_suite_that_does_not_exist_fails_when_asked_for() {
        let error = run(Some(Suite::Conformance), None, false).unwrap_err();
        assert!(error.to_string().contains("no suite `conformance` yet"), "{error}");
    }
}
