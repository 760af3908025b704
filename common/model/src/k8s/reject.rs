use std::fmt;

use serde::{Deserialize, Serialize};

/// A part of an object that is not used, and why. Serialises to the object that goes to stderr, one a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Reject {
    /// `kind:` of the object; "" where it says none.
    pub kind: String,
    /// `namespace/name`; a Node's is its name.
    pub name: String,
    /// The path from the object's root, such as `spec.ports[1].port`; "" is the object itself.
    pub field: String,
    /// What the field holds: a string as it is, anything else as JSON. "" where it is absent.
    pub value: String,
    /// Why, what is allowed, and what became of the field.
    pub reason: String,
}

impl Reject {
    /// Bytes of a value that are quoted.
    const LONGEST_VALUE: usize = 256;

    /// `value` as [`Self::value`] quotes it: long ones are cut.
    pub(super) fn quote(value: &str) -> String {
        if value.len() <= Self::LONGEST_VALUE {
            return value.to_owned();
        }
        let end = (0..=Self::LONGEST_VALUE).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
        format!("{}…", value.get(..end).unwrap_or(""))
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, field, value, reason } = self;
        write!(f, "{kind} {name}: {field} {value:?}: {reason}")
    }
}
