//! Everything that runs Portway from outside: the naive oracle with its random worlds, the harness that makes
//! namespaces, cgroups and clients, and the suites in `tests/`.

pub mod bench;
pub mod comparison;
pub mod harness;
pub mod oracle;
