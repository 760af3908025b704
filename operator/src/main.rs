//! The Portway cluster operator.

use std::process::ExitCode;

fn main() -> ExitCode {
    portway_operator::command::main()
}
