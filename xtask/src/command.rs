use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The one place where xtask talks to people.
#[expect(clippy::print_stderr, reason = "xtask is a command line tool and this is its output")]
pub fn say(text: impl AsRef<str>) {
    eprintln!("{}", text.as_ref());
}

/// A closing line, on standard output for whoever reads the log by machine.
#[expect(clippy::print_stdout, reason = "xtask is a command line tool and this is its output")]
pub(crate) fn close(text: impl AsRef<str>) {
    println!("{}", text.as_ref());
}

/// The command as one would type it, with the variables that it sets.
pub(crate) fn shown(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| {
        let (name, value) = (name.to_string_lossy(), value?.to_string_lossy());
        (name != "PATH").then(|| format!("{name}={}", quoted(&value)))
    });
    // Cargo names itself by its full path, which would only be noise.
    let program = Path::new(command.get_program());
    let program = program.file_name().filter(|name| *name == "cargo").unwrap_or(program.as_os_str());
    let words = std::iter::once(program).chain(command.get_args());
    set.chain(words.map(|word| quoted(&word.to_string_lossy()))).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

/// Shows the command, runs it and waits. Its output goes where ours goes; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    if succeeds(command)? { Ok(()) } else { bail!("failed: {}", shown(command)) }
}

/// As [`run`], but tells whether the command exited with 0.
pub(crate) fn succeeds(command: &mut Command) -> anyhow::Result<bool> {
    say(format!("$ {}", shown(command)));
    let status = command.stdin(Stdio::null()).status().with_context(|| cannot_start(command))?;
    Ok(status.success())
}

/// The standard output of a command that must succeed.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| cannot_start(command))?;
    if !output.status.success() {
        bail!("failed ({}): {}", output.status, shown(command));
    }
    String::from_utf8(output.stdout).with_context(|| format!("output of {} is not UTF-8", shown(command)))
}

/// The standard output of a command, `None` where it cannot be started or fails: a question, not a demand.
pub(crate) fn probe(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    if output.status.success() { String::from_utf8(output.stdout).ok() } else { None }
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start {}", shown(command))
}

/// Runs one step under a heading and tells how long it took.
pub(crate) fn timed<T>(
    name: &str,
    step: impl FnOnce() -> anyhow::Result<T>,
) -> (anyhow::Result<T>, Duration) {
    say(format!("\n==> {name}"));
    let start = Instant::now();
    let result = step();
    let took = start.elapsed();
    match &result {
        Ok(_) => say(format!("<== {name}: ok after {:.1} s", took.as_secs_f64())),
        Err(error) => say(format!("<== {name}: FAILED after {:.1} s: {error:#}", took.as_secs_f64())),
    }
    (result, took)
}
