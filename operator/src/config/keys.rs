//! Every key that the operator knows. Names, meanings and defaults are Cilium's where Cilium has the key.

mod endpoints;
mod identities;
mod ipam;
mod nodes;
mod process;
mod without_effect;

use portway_runtime::config::{Class, Key, Kind, Off};

const DURATION: Kind = Kind::Text("a duration such as 30s, 1m30s or 2h");
/// 0 is off.
const INTERVAL: Kind = Kind::Text("a duration such as 5m, or 0 for never");
const PATIENCE: Kind = Kind::Text("a duration of at least 1s, such as 30s or 3m");

const TABLES: &[&[Key]] = &[
    process::KEYS,
    identities::KEYS,
    endpoints::KEYS,
    nodes::KEYS,
    ipam::KEYS,
    without_effect::RETIRED,
    without_effect::NOT_OFFERED,
];

const fn count() -> usize {
    let mut count = 0;
    let mut table = 0;
    while table < TABLES.len() {
        count += TABLES[table].len();
        table += 1;
    }
    count
}

static ALL: [Key; count()] = {
    let mut all = [process::KEYS[0]; count()];
    let (mut table, mut at) = (0, 0);
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            all[at] = TABLES[table][row];
            row += 1;
            at += 1;
        }
        table += 1;
    }
    all
};

/// Those that are honoured first, in the order of the help.
pub static KEYS: &[Key] = &ALL;

const fn key(
    group: &'static str,
    name: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> Key {
    Key { name, aliases: &[], class: Class::Honoured, kind, default, off: Off::Default, help, group }
}

const fn switch(group: &'static str, name: &'static str, default: &'static str, help: &'static str) -> Key {
    key(group, name, Kind::Bool, default, help)
}
