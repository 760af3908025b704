//! Completion scripts, asked by the shell that they are for.

#![expect(clippy::unwrap_used, reason = "where the binary or the shell cannot be run, the test has failed")]

use std::collections::BTreeSet;
use std::process::Command;

fn script(shell: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_portway")).args(["completion", shell]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What bash offers for the last of `words`.
fn offered(words: &[&str]) -> BTreeSet<String> {
    let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
    let last = words.len() - 1;
    let ask = format!(
        "{}\nCOMP_WORDS=({}) COMP_CWORD={last}\n_portway portway '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        script("bash"),
        quoted.join(" "),
        words[last],
        words[last - 1],
    );
    let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_values_and_keys() {
    assert!(offered(&["portway", "con"]).contains("config"));
    assert!(offered(&["portway", "bpf", "lb", "list", "--fr"]).contains("--frontends"));
    let classes = offered(&["portway", "config", "--class", ""]);
    assert!(classes.contains("dangerous") && classes.contains("operator"), "{classes:?}");
    // The keys of the agent that decide what is planned.
    let keys = offered(&["portway", "plan", "--bpf-lb-maglev"]);
    assert!(keys.contains("--bpf-lb-maglev-table-size"), "{keys:?}");
    assert_eq!(offered(&["portway", "no-such"]), [String::new()].into());
}

#[test]
fn zsh_and_fish_know_the_same_commands() {
    let (zsh, fish) = (script("zsh"), script("fish"));
    assert!(zsh.starts_with("#compdef portway"), "{zsh}");
    for word in ["config", "cleanup", "status", "bpf-lb-maglev-table-size", "dangerous"] {
        assert!(zsh.contains(word), "{word}");
        assert!(fish.contains(word), "{word}");
    }
}
