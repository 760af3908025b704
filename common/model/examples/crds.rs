//! Writes the CustomResourceDefinitions to a directory: `crds DIR`. `cargo xtask crds` runs it for `deploy/crds`.

#![expect(clippy::print_stderr, reason = "a tool for people")]

use std::path::PathBuf;
use std::process::ExitCode;

use portway_model::crd::definitions;

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: crds DIR");
        return ExitCode::FAILURE;
    };
    match write(&dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

fn write(dir: &std::path::Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    for (file, definition) in definitions() {
        let yaml = serde_yaml_ng::to_string(&definition).map_err(std::io::Error::other)?;
        let text = format!("# Written by `cargo xtask crds` from common/model/src/crd.\n{yaml}");
        std::fs::write(dir.join(file), text)?;
    }
    Ok(())
}
