use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;

/// Timers that expire together: the kernel works through them in one interrupt of tens of microseconds.
const TIMERS: usize = 128;
/// Longer than arming them takes.
const ARMING: Duration = Duration::from_micros(150);

/// Long interrupts that hit a chosen moment: a program is stopped between two of its loads, for longer than a few
/// publications take. Without them a kernel that is not preempted would hardly ever stop there.
#[derive(Debug)]
pub struct Interrupts {
    timers: Vec<TimerFd>,
    turn: u64,
}

impl Interrupts {
    pub fn new() -> Result<Self> {
        let timer = || TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::empty()).context("make a timer");
        Ok(Self { timers: (0..TIMERS).map(|_| timer()).collect::<Result<_>>()?, turn: 0 })
    }

    /// Returns up to two microseconds before the next interrupt, each time another while before it.
    pub fn aim(&mut self) -> Result<()> {
        self.turn += 1;
        let at = now()? + ARMING;
        for timer in &self.timers {
            let expiration = Expiration::OneShot(TimeSpec::from_duration(at));
            timer.set(expiration, TimerSetTimeFlags::TFD_TIMER_ABSTIME).context("set a timer")?;
        }
        let lead = Duration::from_nanos(self.turn * 7 % 2000);
        while now()? + lead < at {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

fn now() -> Result<Duration> {
    Ok(Duration::from(clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?))
}
