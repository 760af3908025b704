use super::{Invalid, Key, Kind, Origin, Problem, Problems, Said, Settings, Warning};

/// Parses values one by one and gathers what is wrong with them.
///
/// A getter whose value cannot be used records a problem and returns what the default means, so that the
/// rest can be checked too; [`Self::finish`] then keeps the result from being used.
pub struct Reader<'a> {
    settings: &'a Settings,
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(settings: &'a Settings, problems: Vec<Problem>, warnings: Vec<Warning>) -> Self {
        Self { settings, problems, warnings }
    }

    /// A value as text.
    pub fn text(&mut self, name: &'static str) -> String {
        self.parse(name, |value| Ok(value.to_owned())).unwrap_or_default()
    }

    pub fn bool(&mut self, name: &'static str) -> bool {
        self.parse(name, parse_bool).unwrap_or_default()
    }

    /// A number inside the bounds of the key.
    pub fn number<T: TryFrom<u64> + Default>(&mut self, name: &'static str) -> T {
        self.parse(name, |value| {
            let bad = || Invalid::new("", "write a decimal number");
            value.parse::<u64>().ok().and_then(|number| T::try_from(number).ok()).ok_or_else(bad)
        })
        .unwrap_or_default()
    }

    /// A value by the program's own parser; `None` only where the default itself does not parse.
    ///
    /// An [`Invalid`] without `allowed` gets that of the key's [`Kind`].
    pub fn parse<T>(&mut self, name: &'static str, parse: impl Fn(&str) -> Result<T, Invalid>) -> Option<T> {
        let Some(key) = self.settings.keys().iter().find(|key| key.name == name) else {
            self.problems.push(Problem {
                key: name.to_owned(),
                value: String::new(),
                origin: String::new(),
                allowed: "a key of the table".to_owned(),
                mend: "this is a defect: report it".to_owned(),
            });
            return None;
        };
        let said = self.settings.said(key);
        match check_kind(key, &said.value).and_then(|()| parse(&said.value)) {
            Ok(value) => Some(value),
            Err(mut invalid) => {
                if invalid.allowed.is_empty() {
                    invalid.allowed = key.kind.allowed();
                }
                self.problems.push(Problem::of(&said, invalid));
                parse(key.default).ok()
            }
        }
    }

    /// What was said about `name`, for a check of several keys together.
    pub fn said(&self, name: &'static str) -> Option<Said> {
        self.settings.keys().iter().find(|key| key.name == name).map(|key| self.settings.said(key))
    }

    /// Records that the values of `names` do not go together; not where each of them was found wrong before, for then
    /// it is the defaults that do not.
    pub fn refuse(&mut self, names: &[&'static str], allowed: impl Into<String>, mend: impl Into<String>) {
        if names.iter().all(|name| self.problems.iter().any(|problem| problem.key == *name)) {
            return;
        }
        let values: Vec<_> = names.iter().filter_map(|name| self.said(name)).collect();
        let join = |texts: Vec<String>| texts.join(" and ");
        self.problems.push(Problem {
            key: names.join(" and "),
            value: join(values.iter().map(|said| said.value.clone()).collect()),
            origin: join(values.iter().map(|said| said.origin.describe(&said.key)).collect()),
            allowed: allowed.into(),
            mend: mend.into(),
        });
    }

    pub fn warn(&mut self, name: &'static str, message: impl Into<String>) {
        let (key, origin) = self.said(name).map_or((name.to_owned(), Origin::Default), |s| (s.key, s.origin));
        self.warnings.push(Warning { key, origin, message: message.into() });
    }

    /// The configuration that the getters built, if nothing is wrong with it.
    ///
    /// # Errors
    /// Every problem that was found, in order of the keys.
    pub fn finish<T>(mut self, config: T) -> Result<(T, Vec<Warning>), Problems> {
        if self.problems.is_empty() {
            return Ok((config, self.warnings));
        }
        self.problems.sort_by(|a, b| a.key.cmp(&b.key));
        // A value that two getters read is one problem.
        self.problems.dedup();
        Err(Problems(self.problems))
    }
}

/// Whether a value has the form of its key.
fn check_kind(key: &Key, value: &str) -> Result<(), Invalid> {
    let use_default = || match key.default {
        "" => "leave it out".to_owned(),
        default => format!("use {default} (the default)"),
    };
    let ok = match key.kind {
        Kind::Bool => return parse_bool(value).map(|_| ()),
        Kind::Integer { min, max } => value.parse::<u64>().is_ok_and(|n| (min..=max).contains(&n)),
        Kind::OneOf(words) => words.contains(&value),
        Kind::Path => value.is_empty() || value.starts_with('/'),
        Kind::Text(_) => true,
    };
    if ok { Ok(()) } else { Err(Invalid::new("", use_default())) }
}

/// As Cilium reads switches (Go's `strconv.ParseBool`).
///
/// # Errors
/// Any other word.
pub fn parse_bool(value: &str) -> Result<bool, Invalid> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(Invalid::new("true or false", "write true or false")),
    }
}
