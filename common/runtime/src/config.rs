//! Configuration from flags, the environment and a mounted ConfigMap.
//!
//! A program has a table of [`Key`]s. [`Sources::read`] collects what was said about them: a flag
//! (`--bpf-lb-map-max=9`) wins over the environment (`PORTWAY_BPF_LB_MAP_MAX=9`), that over the file
//! `bpf-lb-map-max` in `--config-dir`, that over the default. [`Settings::reader`] then parses each value into the
//! program's own type and gathers every problem, so that a person mends all of them at once.

mod duration;
mod help;
mod key;
mod problem;
mod reader;
mod sources;
#[cfg(test)]
mod tests;
pub mod values;

pub use duration::parse_duration;
pub use help::help;
pub use key::{Class, Key, Kind, Off, honoured, switch};
pub use problem::{Invalid, Problem, Problems, Warning};
pub use reader::{Reader, parse_bool};
pub use sources::{Origin, Said, Settings, Sources};
