//! Every published table, changed by one processor without pause while the other one connects: the short form of
//! `cargo xtask bench hammer`.

use anyhow::Result;
use portway_tests::bench::hammer;

#[test]
fn hammer_no_connect_gets_anything_but_the_old_or_the_new_version() -> Result<()> {
    let missed: Vec<_> =
        hammer::hammer_all(30_000, 3_000, 0.0)?.into_iter().filter(|figure| !figure.ok).collect();
    assert!(missed.is_empty(), "{missed:#?}");
    Ok(())
}
