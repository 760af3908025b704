use std::fmt;

use super::{Origin, Said};

/// Why a parser refuses a value, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    pub allowed: String,
    pub mend: String,
}

impl Invalid {
    pub fn new(allowed: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { allowed: allowed.into(), mend: mend.into() }
    }
}

/// A value, or a combination of values, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// One key, or several joined by ` and `.
    pub key: String,
    pub value: String,
    /// Where it was said; "" where nothing was.
    pub origin: String,
    pub allowed: String,
    pub mend: String,
}

impl Problem {
    pub(super) fn of(said: &Said, invalid: Invalid) -> Self {
        Self {
            key: said.key.clone(),
            value: said.value.clone(),
            origin: said.origin.describe(&said.key),
            allowed: invalid.allowed,
            mend: invalid.mend,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, origin, allowed, mend } = self;
        write!(f, "{key}={value:?}")?;
        if !origin.is_empty() {
            write!(f, " ({origin})")?;
        }
        write!(f, ": allowed is {allowed}; {mend}")
    }
}

/// Everything that is wrong with a configuration, in order of the keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => writeln!(f, "the configuration has 1 problem:")?,
            n => writeln!(f, "the configuration has {n} problems:")?,
        }
        for (n, problem) in self.0.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            write!(f, "  {problem}")?;
        }
        Ok(())
    }
}

/// Something about a configuration that a person should know and the program can live with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub key: String,
    pub origin: Origin,
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.key, self.origin.describe(&self.key), self.message)
    }
}
