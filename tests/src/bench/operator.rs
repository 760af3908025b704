//! `bench operator`: how soon a burst of pods has its identities, what a restart and a quiet cluster cost, and how soon
//! another replica leads.

pub mod burst;
pub mod failover;
pub mod held;

use anyhow::Result;

use super::report::Figure;

const BENCH: &str = "operator";

pub fn run(long: bool) -> Result<Vec<Figure>> {
    let mut figures = burst_figures()?;
    figures.extend(held_figures(long)?);
    figures.extend(failover_figures(long)?);
    Ok(figures)
}

fn burst_figures() -> Result<Vec<Figure>> {
    let burst = burst::run(5_000, 500)?;
    let what = "5,000 pods of 500 label sets";
    Ok(vec![
        Figure::trend(BENCH, format!("{what}, all created"), burst.created.as_secs_f64(), "s"),
        Figure::at_most(
            BENCH,
            format!("{what}, first pod to all identities at qps 200"),
            burst.all.as_secs_f64(),
            "s",
            15.0,
        ),
        Figure::at_most(BENCH, format!("{what}, identities too many"), burst.duplicates as f64, "", 0.0),
    ])
}

fn held_figures(long: bool) -> Result<Vec<Figure>> {
    let quiet = if long { 120 } else { 60 };
    let held = held::run(held::Size { nodes: 1_000, pods: 5_000, sets: 1_000 }, quiet)?;
    let what = "5,000 pods, 1,000 nodes";
    Ok(vec![
        Figure::trend(BENCH, format!("{what}, CiliumEndpointSlices"), held.slices as f64, ""),
        Figure::trend(BENCH, format!("{what}, restart until it leads"), held.restart.as_secs_f64(), "s"),
        Figure::at_most(
            BENCH,
            format!("{what}, writes of a restart without a change"),
            held.writes as f64,
            "",
            0.0,
        ),
        Figure::at_most(
            BENCH,
            format!("{what}, RssAnon"),
            held.memory as f64 / f64::from(1 << 20),
            "MiB",
            100.0,
        ),
        Figure::at_most(
            BENCH,
            format!("{what}, idle: requests besides lease and watches"),
            held.requests as f64 * 60.0 / quiet as f64,
            "a minute",
            2.0,
        ),
    ])
}

fn failover_figures(long: bool) -> Result<Vec<Figure>> {
    let times = failover::run(if long { 5 } else { 1 }, if long { 20 } else { 5 })?;
    let slowest = |times: &[std::time::Duration]| times.iter().max().map_or(0.0, |time| time.as_secs_f64());
    Ok(vec![
        Figure::at_most(BENCH, "leader killed: the other leads, slowest", slowest(&times.crashes), "s", 17.0),
        Figure::at_most(
            BENCH,
            "leader told to end: the other leads, slowest",
            slowest(&times.releases),
            "s",
            2.0,
        ),
    ])
}
