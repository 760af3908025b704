use portway_agent::api::{Setting, path};

use crate::agent::Agent;
use crate::failure::Failure;
use crate::output::{Format, print, print_json};
use crate::table::Table;

/// Prints the agent's configuration; without `all` only what somebody has said.
pub(crate) fn run(agent: &Agent, all: bool, format: Format) -> Result<(), Failure> {
    let mut settings: Vec<Setting> = agent.get(path::CONFIG)?;
    if !all {
        settings.retain(|setting| setting.origin != "default");
    }
    match format {
        Format::Json => print_json(&settings)?,
        Format::Text if settings.is_empty() => print("every key has its default; --all shows them")?,
        Format::Text => print(&text(&settings))?,
    }
    Ok(())
}

fn text(settings: &[Setting]) -> String {
    let mut table = Table::new(&["Key", "Value", "Default", "From", "Class"]);
    for setting in settings {
        table.row([
            setting.key.as_str(),
            quoted(&setting.value),
            quoted(&setting.default),
            setting.origin.as_str(),
            setting.class.as_str(),
        ]);
    }
    table.to_string()
}

fn quoted(value: &str) -> &str {
    if value.is_empty() { "\"\"" } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_value_can_be_seen() {
        let setting = Setting {
            key: "node-port-range".to_owned(),
            value: "30000,32000".to_owned(),
            default: String::new(),
            origin: "flag".to_owned(),
            class: "honoured".to_owned(),
            help: String::new(),
        };
        assert_eq!(
            text(&[setting]),
            "Key               Value         Default   From   Class\n\
             node-port-range   30000,32000   \"\"        flag   honoured\n"
        );
    }
}
