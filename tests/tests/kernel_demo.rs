//! The demo works, and would not without the programs.

use std::process::{Command, Output};

use anyhow::Result;
use portway_tests::harness::cgroup::unified_hierarchy;

fn demo(args: &[&str]) -> Result<(Output, String)> {
    let child = Command::new(env!("CARGO_BIN_EXE_portway-demo")).args(args).output()?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    Ok((child, text))
}

#[test]
fn the_demo_shows_every_step_and_cleans_up() -> Result<()> {
    let (output, text) = demo(&[])?;
    assert!(output.status.success(), "{text}");
    for step in [
        "pod on the other node",
        "the world",
        "ClusterIP IPv4",
        "ClusterIP IPv6",
        "NodePort on loopback",
        "session affinity",
        "scale-up",
        "directly",
    ] {
        assert!(text.contains(step), "no {step} in\n{text}");
    }
    let left: Vec<_> = std::fs::read_dir(unified_hierarchy()?)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with("-demo"))
        .collect();
    // The other test of this file may be running.
    assert!(left.len() < 2, "{left:?}");
    Ok(())
}

#[test]
fn the_demo_fails_with_the_programs_detached() -> Result<()> {
    let (output, text) = demo(&["--without-programs"])?;
    assert_eq!(output.status.code(), Some(1), "{text}");
    // Pods of one node are still neighbours; what leaves it needs a program.
    assert!(text.contains("✗ pod to pod: connect to 10.244.2."), "{text}");
    Ok(())
}
