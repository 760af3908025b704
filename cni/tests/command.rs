//! The plugin as a runtime starts it. That this is a test of its own makes cargo build the binary for the kernel tests.

use std::io::Write as _;
use std::process::{Command, Stdio};

#[test]
fn the_binary_says_which_versions_it_speaks() -> std::io::Result<()> {
    let mut plugin = Command::new(env!("CARGO_BIN_EXE_portway-cni"));
    plugin.env_clear().env("CNI_COMMAND", "VERSION").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = plugin.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(br#"{"cniVersion": "1.1.0"}"#)?;
    }
    let output = child.wait_with_output()?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert!(output.status.success(), "{answer}");
    assert_eq!(answer["cniVersion"], "1.1.0");
    assert!(answer["supportedVersions"].as_array().unwrap().contains(&"1.0.0".into()), "{answer}");
    Ok(())
}
