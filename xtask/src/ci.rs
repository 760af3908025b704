//! Everything that must pass before a change lands, with the time of each step and a closing line of counts.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::command::{close, output, run as run_command, say, timed};
use crate::suites::{Counts, run_suites};
use crate::{check, demo};

/// What a run from nothing leaves on the disk, control plane and its build cache included; measured, rounded up.
const DISK_GIB: u64 = 12;

/// A step counts as one of the closing line, except that the tests count one each.
pub(crate) fn run() -> anyhow::Result<()> {
    match free_disk_gib() {
        Ok(free) if free < DISK_GIB => {
            say(format!("only {free} GiB of disk are free here; a run from nothing takes up to {DISK_GIB}"));
        }
        Ok(_) => {}
        Err(error) => say(format!("cannot tell how much disk is free: {error:#}")),
    }
    let mut steps: Vec<(&str, bool, Duration)> = Vec::new();
    let mut counts = Counts::default();

    let (result, took) = timed("check", || check::run(&[]));
    counts.add(Counts::one(result.is_ok()));
    steps.push(("check", result.is_ok(), took));

    let (result, took) = timed("test", || run_suites(None, None, false));
    let passed = match &result {
        Ok(outcome) => {
            counts.add(outcome.counts);
            outcome.failed.is_empty()
        }
        Err(_) => {
            counts.add(Counts::one(false));
            false
        }
    };
    steps.push(("test", passed, took));

    let (result, took) = timed("demo", || run_command(&mut demo::prepare(false)?));
    counts.add(Counts::one(result.is_ok()));
    steps.push(("demo", result.is_ok(), took));

    say("");
    for (name, ok, took) in &steps {
        say(format!(
            "  {name:<6} {:<7} {:>7.1} s",
            if *ok { "passed" } else { "FAILED" },
            took.as_secs_f64()
        ));
    }
    close(format!("{} passed, {} failed", counts.passed, counts.failed));
    if steps.iter().all(|(_, ok, _)| *ok) {
        Ok(())
    } else {
        bail!("not everything passed: see the lines marked FAILED")
    }
}

fn free_disk_gib() -> anyhow::Result<u64> {
    let table = output(Command::new("df").args(["--output=avail", "--block-size=1G", "."]))?;
    let free = table.lines().nth(1).context("df printed no figure")?;
    free.trim().parse().with_context(|| format!("df printed {free:?}"))
}
