//! Every key that the operator knows. Names, meanings and defaults are Cilium's where Cilium has the key.

mod endpoints;
mod identities;
mod ipam;
mod nodes;
mod process;
mod without_effect;

use portway_runtime::config::{Key, Kind, honoured as key, switch, values};
use portway_runtime::kubernetes::ClientOptions;
use portway_runtime::logging;

const DURATION: Kind = Kind::Text("a duration such as 30s, 1m30s or 2h");
/// 0 is off.
const INTERVAL: Kind = Kind::Text("a duration such as 5m, or 0 for never");
const PATIENCE: Kind = Kind::Text(values::PATIENCE);

const TABLES: &[&[Key]] = &[
    ClientOptions::KEYS,
    process::KEYS,
    logging::KEYS,
    portway_claims::config::KEYS,
    identities::KEYS,
    endpoints::KEYS,
    nodes::KEYS,
    ipam::KEYS,
    without_effect::RETIRED,
    without_effect::NOT_OFFERED,
];

static ALL: [Key; Key::count(TABLES)] = Key::all(TABLES);

/// Those that are honoured first, in the order of the help.
pub static KEYS: &[Key] = &ALL;
