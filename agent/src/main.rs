//! The Portway node agent.

use std::process::ExitCode;

fn main() -> ExitCode {
    portway_agent::command::main()
}
