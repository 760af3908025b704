//! The operator as a command: what it says before it has anything to do with an API server. That these are tests of their
//! own makes cargo build the binary for the cluster tests.

#![expect(clippy::unwrap_used, reason = "where the binary cannot be run, the test has failed")]

use std::process::{Command, Output};

fn operator(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portway-operator"));
    // Nothing of who runs the tests.
    command.env_clear().args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn help_names_every_key_and_version_the_version() {
    let help = operator(&["--help"]);
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success(), "{}", said(&help));
    for key in
        ["leader-election-lease-duration", "identity-management-mode", "cluster-pool-ipv4-cidr", "plan"]
    {
        assert!(text.contains(key), "{key} is not in {text}");
    }
    let version = operator(&["--version"]);
    assert!(String::from_utf8_lossy(&version.stdout).contains(env!("CARGO_PKG_VERSION")), "{version:?}");
}

#[test]
fn a_configuration_that_cannot_be_used_ends_it_and_every_problem_is_named() {
    let ended = operator(&[
        "--leader-election-lease-duration=10s",
        "--leader-election-renew-deadline=10s",
        "--identity-management-mode=nobody",
        "--cluster-pool-ipv4-mask-size=99",
    ]);
    assert_eq!(ended.status.code(), Some(64), "{}", said(&ended));
    for key in ["leader-election-lease-duration", "identity-management-mode", "cluster-pool-ipv4-mask-size"] {
        assert!(said(&ended).contains(key), "{key} is not in {}", said(&ended));
    }
}

#[test]
fn a_plan_without_an_api_server_is_an_error_and_no_plan() {
    let ended = operator(&["plan", "--k8s-kubeconfig-path=/nowhere/kubeconfig"]);
    assert_eq!(ended.status.code(), Some(1), "{}", said(&ended));
    assert!(said(&ended).contains("/nowhere/kubeconfig"), "{}", said(&ended));
    assert!(ended.stdout.is_empty(), "{ended:?}");
}
