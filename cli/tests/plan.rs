//! The binary itself, where it needs neither a kernel nor an agent.

#![expect(clippy::unwrap_used, reason = "where the binary cannot be run, the test has failed")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/plan");

fn portway(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portway")).args(args).output().unwrap()
}

fn plan(more: &[&str]) -> (Vec<Value>, Vec<Value>) {
    let output =
        portway(&[&["plan", "--source-dir", SOURCE, "--node", "node-a", "-o", "json"], more].concat());
    assert!(output.status.success(), "{output:?}");
    let rejects = String::from_utf8(output.stderr).unwrap();
    let rejects = rejects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (serde_json::from_slice(&output.stdout).unwrap(), rejects)
}

#[test]
fn rows_go_to_stdout_and_refusals_to_stderr_and_that_is_no_failure() {
    let (rows, rejects) = plan(&[]);
    let frontends: Vec<_> =
        rows.iter().map(|row| format!("{} {} {}", row["type"], row["address"], row["port"])).collect();
    assert_eq!(
        frontends,
        [
            r#""NodePort" "0.0.0.0" 30080"#,
            r#""ClusterIP" "10.96.0.10" 80"#,
            r#""NodePort" "::" 30080"#,
            r#""ClusterIP" "fd00:96::10" 80"#
        ]
    );
    assert_eq!(rows[1]["backends"]["cluster"], serde_json::json!(["10.0.1.2:8080", "10.0.2.2:8080"]));
    assert_eq!(rows[1]["backends"]["local"], serde_json::json!(["10.0.1.2:8080"]));
    assert_eq!(
        (&rows[1]["affinitySeconds"], &rows[1]["flags"][0]),
        (&Value::from(10_800), &"eTP=Local".into())
    );
    assert_eq!(rejects.len(), 1, "{rejects:?}");
    assert_eq!((&rejects[0]["name"], &rejects[0]["value"]), (&"default/broken".into(), &"nonsense".into()));
}

#[test]
fn the_agents_configuration_keys_decide_what_is_planned() {
    let (rows, _) = plan(&["--k8s-service-proxy-name=other-proxy"]);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0]["service"], "default/other");
    let (rows, _) = plan(&["--enable-ipv6=false"]);
    assert!(rows.iter().all(|row| !row["address"].as_str().unwrap().contains(':')), "{rows:?}");
}

#[test]
fn a_value_that_is_not_allowed_is_named_with_what_is() {
    let output = portway(&["plan", "--source-dir", SOURCE, "--node", "a", "--bpf-lb-algorithm=best"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("bpf-lb-algorithm=\"best\"") && text.contains("random or maglev"), "{text}");
}

#[test]
fn a_directory_that_is_not_there_is_an_error() {
    let output = portway(&["plan", "--source-dir", "/proc/nothing", "--node", "a"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/proc/nothing"));
}

#[test]
fn an_agent_that_is_down_has_an_exit_code_of_its_own() {
    let output = portway(&["status", "--socket-path", "/proc/nothing/portway.sock"]);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_portway"))
        .args(["completion", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
