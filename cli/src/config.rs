use clap::builder::PossibleValue;
use portway_agent::api::{Setting, path};
use portway_runtime::config::Class;

use crate::agent::Agent;
use crate::failure::Failure;
use crate::output::{Format, print, print_json};
use crate::table::Table;

/// What `--class` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted(pub(crate) Class);

/// Prints the agent's configuration; without `all` and without a class only what somebody has said.
pub(crate) fn run(agent: &Agent, all: bool, class: Option<Wanted>, format: Format) -> Result<(), Failure> {
    let mut settings: Vec<Setting> = agent.get(path::CONFIG)?;
    settings.retain(|setting| match class {
        Some(Wanted(class)) => setting.class == class.name(),
        None => all || setting.origin != "default",
    });
    match (format, class) {
        (Format::Json, _) => print_json(&settings)?,
        (Format::Text, Some(Wanted(class))) if settings.is_empty() => {
            print(&format!("no key of class {}", class.name()))?;
        }
        (Format::Text, None) if settings.is_empty() => print("every key has its default; --all shows them")?,
        (Format::Text, Some(_)) => print(&explained(&settings))?,
        (Format::Text, None) => print(&text(&settings))?,
    }
    Ok(())
}

impl clap::ValueEnum for Wanted {
    fn value_variants<'a>() -> &'a [Self] {
        const {
            &[
                Self(Class::Honoured),
                Self(Class::NotOffered),
                Self(Class::Dangerous),
                Self(Class::Retired),
                Self(Class::Operator),
                Self(Class::Unknown),
            ]
        }
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            Class::Honoured => "does what it says",
            Class::NotOffered => "a feature that is missing: a warning",
            Class::Dangerous => "a feature that must not be missing unnoticed: an error",
            Class::Retired => "without effect",
            Class::Operator => "the operator's",
            Class::Unknown => "nobody's: a warning",
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}

/// With what there is to say of each key, in place of its class.
fn explained(settings: &[Setting]) -> String {
    let mut table = Table::new(&["Key", "Value", "From", "About"]);
    for setting in settings {
        table.row([
            setting.key.as_str(),
            quoted(&setting.value),
            setting.origin.as_str(),
            setting.help.as_str(),
        ]);
    }
    table.to_string()
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
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_class_can_be_asked_for() {
        for class in Class::ALL {
            assert!(Wanted::from_str(class.name(), false).is_ok(), "{}", class.name());
        }
        assert_eq!(Wanted::value_variants().len(), Class::ALL.len());
    }

    #[test]
    fn a_class_is_listed_with_what_there_is_to_say() {
        let setting = Setting {
            key: "enable-ipsec".to_owned(),
            value: "false".to_owned(),
            default: "false".to_owned(),
            origin: "default".to_owned(),
            class: "dangerous".to_owned(),
            help: "set it to false".to_owned(),
        };
        assert_eq!(
            explained(&[setting]),
            "Key            Value   From      About\n\
             enable-ipsec   false   default   set it to false\n"
        );
    }

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
