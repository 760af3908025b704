//! How soon the other of two replicas leads.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::harness::Replicas;
use crate::harness::operator::ALL_WORK;

const LIMIT: Duration = Duration::from_secs(40);

/// One of each time.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// From `kill -9` of the leader to where the other leads.
    pub crashes: Vec<Duration>,
    /// From SIGTERM.
    pub releases: Vec<Duration>,
}

/// With the default lease.
pub fn run(crashes: u32, releases: u32) -> Result<Times> {
    let mut all = Replicas::new("failover", 2)?;
    let mut times = Times::default();
    for number in [1, 2] {
        all.start(number, &ALL_WORK)?;
    }
    for turn in 0..crashes + releases {
        let leader = all.wait_leader(LIMIT)?;
        let begin = Instant::now();
        if turn < crashes {
            all.kill(leader)?;
        } else {
            all.stop(leader)?;
        }
        all.wait_leads(3 - leader, LIMIT)?;
        let took = begin.elapsed();
        if turn < crashes {
            times.crashes.push(took)
        } else {
            times.releases.push(took)
        }
        all.start(leader, &ALL_WORK)?;
    }
    Ok(times)
}
