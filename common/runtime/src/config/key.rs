use super::parse_bool;

/// What becomes of a key that someone sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Does what it says.
    Honoured,
    /// Accepted without effect: one debug line.
    Retired,
    /// A feature that Portway lacks and that may be ignored: a warning and a line in the status.
    NotOffered,
    /// A feature that Portway lacks and that must not be ignored: an error with the way out.
    Dangerous,
    /// Another program's key of the same ConfigMap: accepted without a word.
    Operator,
    /// Nobody's key: a warning with the nearest known one.
    Unknown,
}

impl Class {
    /// In the order of the text that explains them.
    pub const ALL: [Self; 6] =
        [Self::Honoured, Self::Retired, Self::NotOffered, Self::Dangerous, Self::Operator, Self::Unknown];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Honoured => "honoured",
            Self::Retired => "retired",
            Self::NotOffered => "not-offered",
            Self::Dangerous => "dangerous",
            Self::Operator => "operator",
            Self::Unknown => "unknown",
        }
    }
}

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`, or their older spellings; a flag without a value is `true`.
    Bool,
    /// A decimal number, both ends included.
    Integer {
        min: u64,
        max: u64,
    },
    OneOf(&'static [&'static str]),
    /// An absolute path, or "".
    Path,
    /// Anything else; the text says what, and the program's own parser decides.
    Text(&'static str),
}

impl Kind {
    /// What is allowed, for a message and the help.
    pub fn allowed(self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Integer { min, max } => format!("a number from {min} to {max}"),
            Self::OneOf(words) => match words {
                [] => "nothing".to_owned(),
                [one] => (*one).to_owned(),
                [first @ .., last] => format!("{} or {last}", first.join(", ")),
            },
            Self::Path => "an absolute path".to_owned(),
            Self::Text(what) => what.to_owned(),
        }
    }
}

/// The values at which a key of a feature that is not offered asks for nothing; any other one gets the warning or the
/// error of the key's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// The default alone.
    Default,
    /// Each of these. For a switch, however it is spelled.
    At(&'static [&'static str]),
    /// Every value: the key details a feature that another key switches on.
    Always,
}

/// A key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As in Cilium's ConfigMap, without dashes in front.
    pub name: &'static str,
    /// Older names of the same key. A value under `name` wins.
    pub aliases: &'static [&'static str],
    pub class: Class,
    pub kind: Kind,
    pub default: &'static str,
    /// Of no matter for [`Class::Honoured`], [`Class::Retired`] and [`Class::Operator`].
    pub off: Off,
    /// One sentence without its end. For [`Class::NotOffered`] it says what is missing, for [`Class::Dangerous`] it is the
    /// way out.
    pub help: &'static str,
    /// Heading in the help.
    pub group: &'static str,
}

/// A key that does what it says.
pub const fn honoured(
    group: &'static str,
    name: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> Key {
    Key { name, aliases: &[], class: Class::Honoured, kind, default, off: Off::Default, help, group }
}

/// A switch that does what it says.
pub const fn switch(
    group: &'static str,
    name: &'static str,
    default: &'static str,
    help: &'static str,
) -> Key {
    honoured(group, name, Kind::Bool, default, help)
}

impl Key {
    /// How many keys the tables have together.
    pub const fn count(tables: &[&[Self]]) -> usize {
        let mut count = 0;
        let mut table = 0;
        while table < tables.len() {
            count += tables[table].len();
            table += 1;
        }
        count
    }

    /// The keys of all tables in their order; `N` is their [`Self::count`]. The first table must not be empty.
    pub const fn all<const N: usize>(tables: &[&[Self]]) -> [Self; N] {
        let mut all = [tables[0][0]; N];
        let (mut table, mut at) = (0, 0);
        while table < tables.len() {
            let mut row = 0;
            while row < tables[table].len() {
                all[at] = tables[table][row];
                row += 1;
                at += 1;
            }
            table += 1;
        }
        all
    }

    /// Whether a value asks for a feature that is not offered.
    pub fn asks(&self, value: &str) -> bool {
        let same = |off: &str| match self.kind {
            Kind::Bool => parse_bool(off).is_ok_and(|off| parse_bool(value) == Ok(off)),
            Kind::Integer { .. } | Kind::OneOf(_) | Kind::Path | Kind::Text(_) => off == value,
        };
        match self.off {
            Off::Default => !same(self.default),
            Off::At(values) => !values.iter().copied().any(same),
            Off::Always => false,
        }
    }

    /// Whether only tests set it: the help does not tell of it.
    pub fn is_for_tests(&self) -> bool {
        self.name.ends_with("-test-only")
    }

    /// The variable that sets this key.
    pub fn variable(&self) -> String {
        variable(self.name)
    }
}

/// `PORTWAY_BPF_LB_MAP_MAX` for `bpf-lb-map-max`.
pub(super) fn variable(name: &str) -> String {
    format!("PORTWAY_{}", name.to_ascii_uppercase().replace(['-', '.'], "_"))
}
