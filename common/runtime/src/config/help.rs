use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Class, Key};

/// Columns of a line.
const WIDTH: usize = 100;
const INDENT: usize = 8;

/// The text of `--help`: what the program is, how to configure it, and every honoured key by group, in the order
/// of the table.
pub fn help(intro: &str, keys: &[Key]) -> String {
    let mut text = format!("{}\n\n", intro.trim_end());
    text.push_str(
        "Every key is a flag (--key=value), a variable (PORTWAY_KEY=value) or a file named after the key in\n\
         --config-dir (a mounted ConfigMap). A flag wins over a variable, a variable over a file.\n",
    );
    let mut seen = BTreeSet::new();
    let groups: Vec<_> = keys.iter().map(|key| key.group).filter(|group| seen.insert(*group)).collect();
    for group in groups {
        let honoured: Vec<_> = keys
            .iter()
            .filter(|key| key.group == group && key.class == Class::Honoured && !key.is_for_tests())
            .collect();
        if honoured.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{group}:");
        for key in honoured {
            write_key(&mut text, key);
        }
    }
    text
}

fn write_key(text: &mut String, key: &Key) {
    let default = if key.default.is_empty() { String::new() } else { format!(" [default: {}]", key.default) };
    let _ = writeln!(text, "  --{}{default}", key.name);
    let mut help = format!("{}. Allowed: {}.", key.help, key.kind.allowed());
    if !key.aliases.is_empty() {
        let _ = write!(help, " Also: {}.", key.aliases.join(", "));
    }
    let mut line = String::new();
    for word in help.split_whitespace() {
        if !line.is_empty() && INDENT + line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{:INDENT$}{line}", "");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{:INDENT$}{line}", "");
}
