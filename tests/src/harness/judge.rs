//! How a test on a world of its own ends: where it fails, with what helps to see why.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use anyhow::Result;

use super::complain;

/// Runs `body` on its world. Where it fails or panics, `report` says of the world what helps.
pub(super) fn judge<W>(
    mut world: W,
    body: impl FnOnce(&mut W) -> Result<()>,
    report: impl FnOnce(&W, &str),
) -> Result<()> {
    match catch_unwind(AssertUnwindSafe(|| body(&mut world))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            report(&world, &format!("{error:#}"));
            Err(error)
        }
        Err(panic) => {
            report(&world, "it panicked, see above");
            resume_unwind(panic)
        }
    }
}

/// Leaves the world up until Ctrl-C where `PORTWAY_TESTS_KEEP` asks for it.
pub(super) fn keep_if_asked() {
    if std::env::var_os("PORTWAY_TESTS_KEEP").is_some() {
        complain("left up until Ctrl-C (PORTWAY_TESTS_KEEP is set)");
        loop {
            std::thread::park();
        }
    }
    complain("set PORTWAY_TESTS_KEEP=1 to leave it up");
}
