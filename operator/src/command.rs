//! The command line of the operator: `--help`, `--version`, `plan`, or to run.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use portway_runtime::command::{fail, refuse, say};

use crate::app::{self, Format};
use crate::config::{self, Invocation};

const NAME: &str = "portway-operator";

/// What the process was asked for, done.
pub fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = env::args_os().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return say(&config::help());
    }
    if arguments.iter().any(|argument| argument == "--version" || argument == "-V") {
        return say(concat!("portway-operator ", env!("CARGO_PKG_VERSION"), "\n"));
    }
    let plans = arguments.first().is_some_and(|argument| argument == "plan");
    let mut format = Format::Text;
    if plans {
        arguments.remove(0);
        match take_format(&mut arguments) {
            Ok(taken) => format = taken,
            Err(problem) => return refuse(NAME, problem),
        }
    }
    let invocation = Invocation { arguments, environment: env::vars_os().collect() };
    let mut loaded = match config::load(invocation) {
        Ok(loaded) => loaded,
        Err(problems) => return refuse(NAME, problems),
    };
    if plans {
        // What is printed is what was asked for; problems alone go beside it.
        if loaded.config.log.filter == "info" {
            loaded.config.log.filter = "warn".to_owned();
        }
        return match app::plan(&loaded, format) {
            Ok(text) => say(&text),
            Err(error) => fail(NAME, error.as_ref()),
        };
    }
    match app::run(loaded) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(NAME, error.as_ref()),
    }
}

/// Takes `-o FORMAT` out of the arguments of `plan`: `-o json`, `-ojson`, `--output json` or `--output=json`.
fn take_format(arguments: &mut Vec<OsString>) -> Result<Format, String> {
    let mut format = Format::Text;
    let mut at = 0;
    while let Some(argument) = arguments.get(at).map(|argument| argument.to_string_lossy().into_owned()) {
        let inline = argument.strip_prefix("--output=").or_else(|| argument.strip_prefix("-o"));
        let word = match inline {
            Some(word) if !word.is_empty() => word.to_owned(),
            _ if argument == "-o" || argument == "--output" => {
                if at + 1 >= arguments.len() {
                    return Err(format!("{argument}: allowed is text or json"));
                }
                arguments.remove(at + 1).to_string_lossy().into_owned()
            }
            _ => {
                at += 1;
                continue;
            }
        };
        arguments.remove(at);
        format = match word.as_str() {
            "text" => Format::Text,
            "json" => Format::Json,
            other => return Err(format!("-o {other}: allowed is text or json")),
        };
    }
    Ok(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_of_a_plan_is_taken_out_of_its_arguments() {
        let take = |arguments: &[&str]| {
            let mut arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
            take_format(&mut arguments).map(|format| (format, arguments.len()))
        };
        assert_eq!(take(&["--debug"]), Ok((Format::Text, 1)));
        for json in [&["-o", "json"][..], &["-ojson"], &["--output", "json"], &["--output=json"]] {
            assert_eq!(take(json), Ok((Format::Json, 0)), "{json:?}");
        }
        assert_eq!(take(&["--a=b", "-o", "json", "--c"]), Ok((Format::Json, 2)));
        assert!(take(&["-o"]).unwrap_err().contains("text or json"));
        assert!(take(&["-o", "yaml"]).unwrap_err().contains("yaml"));
    }
}
