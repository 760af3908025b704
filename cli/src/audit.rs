use std::process::ExitCode;
use std::time::Duration;

use portway_agent::api::{Audit, Difference, counted, path};

use crate::agent::Agent;
use crate::failure::{FAILED, Failure};
use crate::output::{Format, print, print_json};
use crate::table::Table;

/// A comparison with the API server lists everything there.
const PATIENCE: Duration = Duration::from_secs(120);

/// Has the agent compare everything, and with `fix` put it right. The exit code tells whether a difference remains.
pub(crate) fn run(agent: &Agent, fix: bool, format: Format) -> Result<ExitCode, Failure> {
    let agent = agent.patient(PATIENCE);
    let audit: Audit = if fix { agent.post(path::AUDIT)? } else { agent.get(path::AUDIT)? };
    match format {
        Format::Json => print_json(&audit)?,
        Format::Text => print(&text(&audit, fix))?,
    }
    Ok(if audit.remaining.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn text(audit: &Audit, fix: bool) -> String {
    let Audit { found, remaining, warnings, skipped, seconds } = audit;
    let mut text = String::new();
    let fixed: Vec<&Difference> = found.iter().filter(|difference| !remaining.contains(difference)).collect();
    if !fixed.is_empty() {
        text.push_str(&format!("Put right:\n{}\n", table(&fixed)));
    }
    if !remaining.is_empty() {
        let heading = if fix { "Not put right (the agent tries again)" } else { "Differences" };
        text.push_str(&format!("{heading}:\n{}\n", table(&remaining.iter().collect::<Vec<_>>())));
    }
    for (heading, lines) in [("Warnings", warnings), ("Not compared", skipped)] {
        if !lines.is_empty() {
            let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
            text.push_str(&format!("{heading}:\n{lines}\n"));
        }
    }
    let number = |of: usize| counted(of as u64, "difference", "differences");
    let summary = match (found.len(), remaining.len()) {
        (0, 0) => "no difference".to_owned(),
        (found, 0) => format!("{}, put right", number(found)),
        (_, remaining) if fix => format!("{} not put right", number(remaining)),
        (_, remaining) => format!("{}; `portway audit --fix` puts them right", number(remaining)),
    };
    text.push_str(&format!("{summary} ({seconds:.2} s)\n"));
    text
}

fn table(differences: &[&Difference]) -> String {
    let mut table = Table::new(&["Kind", "What", "Held", "Wanted"]);
    for Difference { kind, what, held, wanted } in differences {
        table.row([kind, what, held, wanted].map(String::as_str));
    }
    table.to_string().lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(what: &str) -> Difference {
        Difference {
            kind: "pw_frontends".to_owned(),
            what: format!("frontend {what}"),
            held: "nothing".to_owned(),
            wanted: "ClusterIP of service 3".to_owned(),
        }
    }

    #[test]
    fn each_difference_is_a_row_and_what_mends_it_is_said() {
        let found = vec![difference("10.96.0.1:80/TCP")];
        let audit = Audit {
            remaining: found.clone(),
            found,
            warnings: vec!["beware".to_owned()],
            ..Audit::default()
        };
        assert_eq!(
            text(&audit, false),
            "Differences:\n\
             \x20 Kind           What                        Held      Wanted\n\
             \x20 pw_frontends   frontend 10.96.0.1:80/TCP   nothing   ClusterIP of service 3\n\
             \nWarnings:\n  beware\n\
             \n1 difference; `portway audit --fix` puts them right (0.00 s)\n"
        );
    }

    #[test]
    fn what_was_put_right_is_told_apart_from_what_remains() {
        let (fixed, left) = (difference("10.96.0.1:80/TCP"), difference("10.96.0.2:80/TCP"));
        let audit = Audit { found: vec![fixed, left.clone()], remaining: vec![left], ..Audit::default() };
        let text = text(&audit, true);
        let (right, wrong) = text.split_once("Not put right (the agent tries again):").unwrap();
        assert!(right.contains("10.96.0.1:80") && !right.contains("10.96.0.2:80"), "{text}");
        assert!(
            wrong.contains("10.96.0.2:80") && wrong.ends_with("1 difference not put right (0.00 s)\n"),
            "{text}"
        );
    }

    #[test]
    fn nothing_to_say_is_said() {
        assert_eq!(text(&Audit::default(), true), "no difference (0.00 s)\n");
    }
}
