//! Every key that somebody may carry over from Cilium (1.12 to 1.19), with what becomes of it.
//!
//! Names and defaults are those of Cilium's command reference and of its chart's ConfigMap. What is honoured stands in
//! `keys`; here is the rest, a table a subject. A feature that is not offered has one key that says so, the one that
//! switches it on; the keys that detail it have no effect ([`Off::Always`]). A key is dangerous where an operator may
//! rely on it for who reaches what, and nothing else would show that it is missing.

mod clusters;
mod observing;
mod operator;
mod pods;
mod policy;
mod services;

use portway_runtime::config::{Class, Key, Kind, Off};
use portway_runtime::kubernetes::ClientOptions;
use portway_runtime::logging;

const TABLES: &[&[Key]] = &[
    super::keys::KEYS,
    ClientOptions::KEYS,
    logging::KEYS,
    super::keys::pods::KEYS,
    portway_claims::config::KEYS,
    super::keys::identities::KEYS,
    services::KEYS,
    services::DETAILS,
    services::RETIRED,
    pods::KEYS,
    pods::DETAILS,
    pods::CLOUDS,
    policy::KEYS,
    policy::DETAILS,
    policy::PROXIES,
    clusters::KEYS,
    clusters::DETAILS,
    observing::KEYS,
    observing::DETAILS,
    observing::RETIRED,
    operator::KEYS,
];

static ALL: [Key; Key::count(TABLES)] = Key::all(TABLES);

/// Every key that the agent knows, those that it honours first, in the order of the help.
pub static KEYS: &[Key] = &ALL;

/// Of a feature that may be missing: a warning.
const fn lacks(name: &'static str, kind: Kind, default: &'static str, off: Off, help: &'static str) -> Key {
    Key { name, aliases: &[], class: Class::NotOffered, kind, default, off, help, group: "Not offered" }
}

/// A switch of a feature that may be missing; off is `false`.
const fn lacks_switch(name: &'static str, default: &'static str, help: &'static str) -> Key {
    lacks(name, Kind::Bool, default, Off::At(&["false"]), help)
}

/// Of a feature that must not be missing unnoticed; `way_out` is what to do.
const fn dangerous(
    name: &'static str,
    kind: Kind,
    off: &'static [&'static str],
    way_out: &'static str,
) -> Key {
    let default = match off {
        [default, ..] => *default,
        [] => "",
    };
    let (class, off) = (Class::Dangerous, Off::At(off));
    Key { name, aliases: &[], class, kind, default, off, help: way_out, group: "Not offered" }
}

const fn dangerous_switch(name: &'static str, way_out: &'static str) -> Key {
    dangerous(name, Kind::Bool, &["false"], way_out)
}

/// Keys, with their defaults, that share all else.
const fn rows<const N: usize>(
    class: Class,
    group: &'static str,
    help: &'static str,
    names: [(&'static str, &'static str); N],
) -> [Key; N] {
    let kind = Kind::Text("anything");
    let mut keys =
        [Key { name: "", aliases: &[], class, kind, default: "", off: Off::Always, help, group }; N];
    let mut at = 0;
    while at < N {
        (keys[at].name, keys[at].default) = names[at];
        at += 1;
    }
    keys
}

/// Keys that detail a feature which is not offered.
const fn details<const N: usize>(help: &'static str, names: [(&'static str, &'static str); N]) -> [Key; N] {
    rows(Class::NotOffered, "Not offered", help, names)
}

/// Keys of what Portway does without being told, or what nobody has any more.
const fn retired<const N: usize>(help: &'static str, names: [(&'static str, &'static str); N]) -> [Key; N] {
    rows(Class::Retired, "Without effect", help, names)
}
