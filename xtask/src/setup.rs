//! Installs what the verbs need: Debian packages and tools that cargo builds.
//!
//! What is there already is left alone, so that `setup` costs a fraction of a second when nothing is missing.

mod cluster;
mod go;
mod kernel;
mod packages;
mod tools;

use clap::ValueEnum;

use crate::command::say;
use cluster::Build;

/// What somebody wants to do; each needs less than everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scope {
    /// Everything below
    All,
    /// Compile the programs that run in the kernel
    Ebpf,
    /// Run the demo
    Demo,
    /// Run the unit and golden tests
    Unit,
    /// Run the kernel tests
    Kernel,
    /// Run every test
    Test,
    /// Run the benchmarks beside a real API server
    Bench,
    /// Check dependencies, licences and the chart
    Check,
}

/// A thing that must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// A compiler for bpfel-unknown-none, its sources, and a linker.
    EbpfToolchain,
    /// `ip`, for network namespaces.
    Namespaces,
    Nextest,
    Deny,
    /// A client that is not ours.
    HttpClient,
    /// `nft`, for rule sets that are not ours.
    RuleSets,
    /// The oldest supported kernel and a machine to run it in.
    OldKernel,
    /// etcd, kube-apiserver and their friends.
    ControlPlane,
    /// kubelet, containerd and what a lab's pods are made of.
    Nodes,
    /// What renders the chart.
    Helm,
    /// The Go that builds them, where they are not built.
    Go,
}

impl Scope {
    const fn needs(self) -> &'static [Need] {
        match self {
            Self::All => &[
                Need::EbpfToolchain,
                Need::Namespaces,
                Need::Nextest,
                Need::Deny,
                Need::HttpClient,
                Need::RuleSets,
                Need::OldKernel,
                Need::ControlPlane,
                Need::Nodes,
                Need::Helm,
            ],
            Self::Ebpf => &[Need::EbpfToolchain],
            Self::Demo => &[Need::EbpfToolchain, Need::Namespaces],
            Self::Unit => &[Need::Nextest],
            Self::Kernel => &[
                Need::EbpfToolchain,
                Need::Namespaces,
                Need::Nextest,
                Need::HttpClient,
                Need::RuleSets,
                Need::OldKernel,
            ],
            Self::Test => &[
                Need::EbpfToolchain,
                Need::Namespaces,
                Need::Nextest,
                Need::HttpClient,
                Need::RuleSets,
                Need::OldKernel,
                Need::ControlPlane,
                Need::Nodes,
                Need::Helm,
            ],
            Self::Bench => {
                &[Need::EbpfToolchain, Need::Namespaces, Need::HttpClient, Need::RuleSets, Need::ControlPlane]
            }
            Self::Check => &[Need::Deny, Need::Helm],
        }
    }
}

/// Makes sure that everything of `scope` is there.
pub(crate) fn run(scope: Scope) -> anyhow::Result<()> {
    let mut needs = scope.needs().to_vec();
    let builds: Vec<&Build> = cluster::missing(&needs);
    let go = !builds.is_empty() && go::find().is_none();
    if go {
        needs.push(Need::Go);
    }
    let packages = packages::missing(&needs);
    let tools = tools::missing(&needs)?;
    let kernel = needs.contains(&Need::OldKernel) && !kernel::is_there();
    if packages.is_empty() && tools.is_empty() && !kernel && builds.is_empty() {
        say(format!("setup: everything for `{}` is there", scope_name(scope)));
        return Ok(());
    }
    say(format!("setup: installing what `{}` needs:", scope_name(scope)));
    for package in &packages {
        say(format!("  {:<18} Debian package: {}", package.name, package.why));
    }
    for tool in &tools {
        say(format!("  {:<18} built by cargo, about {} s: {}", tool.krate, tool.build_seconds, tool.why));
    }
    if kernel {
        say("  Debian's 6.1 kernel, unpacked into .cache: the hook tests run on it in a virtual machine");
    }
    if go {
        say("  Go's toolchain as a Go module, 250 MB: builds the tests' control plane and helm");
    }
    for build in &builds {
        say(format!("  {}: built by Go once, {}, into the cache folder", build.what, build.takes));
    }
    packages::install(&packages)?;
    if kernel {
        kernel::install()?;
    }
    for tool in tools {
        tools::install(tool)?;
    }
    if !builds.is_empty() {
        cluster::build(&builds, &go::find_or_install()?)?;
    }
    Ok(())
}

fn scope_name(scope: Scope) -> String {
    scope.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_the_union_of_the_scopes() {
        for scope in Scope::value_variants() {
            for need in scope.needs() {
                assert!(Scope::All.needs().contains(need), "{scope:?} needs {need:?}");
            }
        }
    }

    #[test]
    fn unit_tests_and_checks_do_not_need_the_ebpf_toolchain() {
        assert!(!Scope::Unit.needs().contains(&Need::EbpfToolchain));
        assert!(!Scope::Check.needs().contains(&Need::EbpfToolchain));
    }
}
