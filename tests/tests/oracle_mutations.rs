//! Random changes one after the other, on tables that fail one write in ten: after every operation each lookup gives
//! what it gave before the change or what it should give after it, and once everything is written the tables are what
//! the oracle says.
//!
//! 10,000 changes; 100,000 with PORTWAY_LONG=1. PORTWAY_SEED=N begins from another seed.

use portway_tests::comparison::walk::{memory_tables, walk};

#[test]
fn every_lookup_gives_the_old_or_the_new_set_whatever_fails() {
    let is_long = std::env::var_os("PORTWAY_LONG").is_some_and(|value| value == "1");
    let first = std::env::var("PORTWAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    // Several walks: one alone would stay near the worlds it has been in.
    let (walks, changes) = if is_long { (20, 5_000) } else { (10, 1_000) };
    for seed in first..first + walks {
        match walk(memory_tables(), seed, changes) {
            Ok(summary) => println!("seed {seed}: 0 differences, {summary:?}"),
            Err(wrong) => panic!("{wrong}"),
        }
    }
}
