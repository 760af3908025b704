//! `cargo xtask`: see the library for what each verb does.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match xtask::run(xtask::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            xtask::say(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
