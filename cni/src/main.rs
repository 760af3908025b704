//! `portway-cni`: what a container runtime runs for each pod.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use portway_cni::invocation::Invocation;
use portway_cni::plugin;

fn main() -> ExitCode {
    let variable = |name: &str| std::env::var(name).ok();
    let mut out = std::io::stdout();
    if variable("CNI_COMMAND").is_none() && std::io::stdin().is_terminal() {
        let about = "a CNI plugin: container runtimes call it, see https://www.cni.dev/docs/spec/";
        let written = writeln!(out, "portway-cni {}: {about}", env!("CARGO_PKG_VERSION"));
        return if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let mut input = Vec::new();
    // What was read until it failed is no configuration, which the plugin then says.
    let _ = std::io::stdin().read_to_end(&mut input);
    let outcome = plugin::run(&Invocation::new(&variable), &input);
    let written = outcome.output.map_or(Ok(()), |output| writeln!(out, "{output}"));
    if outcome.failed || written.is_err() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
