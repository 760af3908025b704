//! `bench hammer`: one processor publishes without pause, the other connects without pause, and every connection must
//! have got a backend of the old or of the new version.
//!
//! The object, the planner, the tables and the grace periods are the shipped ones. UDP connects send nothing, so the
//! programs run a few hundred thousand times a second; `getpeername` is left unhooked and tells the backend. Which
//! versions a connection may see stands in [`window`], memory that both sides share.

pub mod interrupt;
pub mod reader;
pub mod wanted;
pub mod window;

use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use portway_agent::maps::{Grace, GracePeriods, KernelTables, pin_dir};
use portway_agent::programs::{Hook, Loader, link_dir};
use portway_datapath::layout::Sizes;
use portway_datapath::{Addr, LocalAddress, NodeConfig, Settings};
use portway_model::loadbalancer::Dirty;
use portway_model::plan::{Options, Planner, Retired};
use portway_model::tables::{TableOp, TableWriter};

use super::client::pin;
use super::report::Figure;
use crate::harness::{Process, World, process};
use reader::Seen;
use wanted::{SERVICES, Wanted};
use window::Window;

const BENCH: &str = "hammer";
/// Records of `pw_runs`: few, so that each is used again and again.
const RECORDS: u32 = 32_768;

/// What the publishing side does all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// New versions of services with 1 to 100 backends: `pw_services`, `pw_runs`.
    Publish,
    /// The same for services with affinity: `pw_backends` too.
    Affinity,
    /// Frontends come and go beside the ones that are asked for, and one changes its owner: `pw_frontends`.
    Frontends,
    /// Addresses come and go beside the one whose NodePort is asked for: `pw_local_addresses`.
    Addresses,
}

pub fn run(long: bool) -> Result<Vec<Figure>> {
    if long { hammer_all(10_000_000, 500_000, 1000.0) } else { hammer_all(500_000, 50_000, 20.0) }
}

/// `most` publications, `some` rounds of each other scenario, and the same publications without the grace wait. Each
/// record of `pw_runs` that is used at all must be used again `reuses` times.
pub fn hammer_all(most: u32, some: u32, reuses: f64) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let publish = hammer(Scenario::Publish, most, true)?;
    figures.push(Figure::at_least(
        BENCH,
        "publications",
        publish.done as f64,
        "publications",
        f64::from(most),
    ));
    figures.push(Figure::at_least(
        BENCH,
        "fewest reuses of a record",
        publish.fewest_reuses as f64,
        "reuses",
        reuses,
    ));
    figures.push(Figure::trend(BENCH, "publications a second", publish.done as f64 / publish.seconds, "1/s"));
    judge(&mut figures, "publish", &publish.seen);
    for (name, scenario) in [
        ("affinity", Scenario::Affinity),
        ("frontends", Scenario::Frontends),
        ("addresses", Scenario::Addresses),
    ] {
        judge(&mut figures, name, &hammer(scenario, some, true)?.seen);
    }
    // The test of the test: with memory reused at once, it must see what the grace periods prevent.
    let without = hammer(Scenario::Publish, most * 10, false)?;
    figures.push(Figure::at_least(
        BENCH,
        "failures seen without the grace wait",
        without.seen.bad() as f64,
        "connects",
        1.0,
    ));
    figures.push(Figure::trend(BENCH, "publications until then", f64::from(without.done), "publications"));
    Ok(figures)
}

fn judge(figures: &mut Vec<Figure>, scenario: &str, seen: &Seen) {
    let Seen { connects, misses, foreign, unjudged } = *seen;
    figures.push(Figure::at_least(
        BENCH,
        format!("{scenario}: connects judged"),
        (connects - unjudged) as f64,
        "connects",
        1000.0,
    ));
    figures.push(Figure::at_most(BENCH, format!("{scenario}: misses"), misses as f64, "connects", 0.0));
    figures.push(Figure::at_most(
        BENCH,
        format!("{scenario}: neither an old nor a new backend"),
        foreign as f64,
        "connects",
        0.0,
    ));
}

struct Outcome {
    done: u32,
    seconds: f64,
    fewest_reuses: u32,
    seen: Seen,
}

fn hammer(scenario: Scenario, rounds: u32, wait: bool) -> Result<Outcome> {
    let world = World::new("hammer")?;
    let routes = ["route", "add", "10.0.0.0/8", "dev", "eth0"];
    process::output(world.node().command("ip").args(routes))?;
    let sizes = Sizes { runs: RECORDS, ..Sizes::DEFAULT };
    let (mut tables, _) = KernelTables::open(world.bpf_root(), &sizes)?;
    let programs = Loader::new()?.load(&pin_dir(world.bpf_root()))?;
    tables.set_store_program(programs.store_word())?;
    tables.set_config(NodeConfig { host_netns: world.node().cookie()?, settings: Settings::new().word() })?;
    let links = link_dir(world.bpf_root());
    programs.attach(world.cgroup().path(), &links)?;
    std::fs::remove_file(links.join(Hook::Getpeername4.name())).context("leave getpeername4 unhooked")?;

    let shared = world.bpf_root().with_file_name("window");
    let window = Window::create(&shared)?;
    let mut publisher = Publisher::new(tables, sizes, scenario, wait, window)?;
    publisher.begin()?;

    let mut command = world.node().command(process::binary("portway-bench")?);
    crate::harness::Cgroup::place(world.cgroup().path(), &mut command)?;
    let what = if scenario == Scenario::Addresses { "node-port" } else { "cluster-ip" };
    command.args(["client", "hammer", what]).arg(&shared).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut reader = Process::spawn("the hammer's reader", command)?;
    let output = reader.take_stdout().context("the reader has no output")?;
    // On the other processor than the reader.
    pin(0)?;
    let begin = Instant::now();
    let done = publisher.publish(rounds)?;
    let seconds = begin.elapsed().as_secs_f64();
    publisher.window.stop();
    let said = std::io::read_to_string(output).context("read what the reader saw")?;
    let seen =
        serde_json::from_str(&said).with_context(|| format!("the reader said {said:?}; {}", reader.log()))?;
    Ok(Outcome { done, seconds, fewest_reuses: publisher.tables.fewest_reuses(), seen })
}

/// The shipped publishing side, driven without pause.
struct Publisher {
    planner: Planner,
    tables: Counting,
    wanted: Wanted,
    scenario: Scenario,
    /// `None` reuses memory at once, which is wrong.
    grace: Option<GracePeriods<Retired>>,
    over: Receiver<Grace<Retired>>,
    window: Window,
}

impl Publisher {
    fn new(
        tables: KernelTables,
        sizes: Sizes,
        scenario: Scenario,
        wait: bool,
        window: Window,
    ) -> Result<Self> {
        let (sender, over) = channel();
        let grace = if wait {
            Some(
                GracePeriods::start(move |grace| drop(sender.send(grace)))
                    .context("start the grace periods")?,
            )
        } else {
            None
        };
        let affinity = if scenario == Scenario::Affinity { 10_800 } else { 0 };
        Ok(Self {
            planner: Planner::new(Options { sizes, maglev: None }),
            tables: Counting { inner: tables, writes: vec![0; RECORDS as usize] },
            wanted: Wanted::new(affinity),
            scenario,
            grace,
            over,
            window,
        })
    }

    fn begin(&mut self) -> Result<()> {
        if self.scenario == Scenario::Addresses {
            self.addresses(0)?;
        }
        for service in 0..SERVICES {
            self.version(service)?;
        }
        Ok(())
    }

    /// `rounds` times one change; ends early where the reader has seen a failure and that is the point.
    fn publish(&mut self, rounds: u32) -> Result<u32> {
        for round in 0..rounds {
            match self.scenario {
                Scenario::Publish | Scenario::Affinity => self.version(round % SERVICES)?,
                Scenario::Frontends => {
                    let dirty = self.wanted.move_frontends(round);
                    self.reconcile(dirty)?;
                }
                Scenario::Addresses => self.addresses(round)?,
            }
            if self.grace.is_none() && self.window.failed() {
                return Ok(round + 1);
            }
        }
        Ok(rounds)
    }

    /// The next version of a service.
    fn version(&mut self, service: u32) -> Result<()> {
        let version = self.wanted.next_version(service);
        self.window.begins(service, version);
        let dirty = self.wanted.dirty(service);
        self.reconcile(dirty)?;
        self.window.is_done(service, version);
        Ok(())
    }

    fn addresses(&mut self, round: u32) -> Result<()> {
        // One stays; up to seven others come and go.
        let others =
            (0..round % 8).map(|n| Addr::v4([192, 0, 2, ((round.wrapping_mul(7) + n) % 254 + 1) as u8]));
        let all = others.chain([wanted::NODE_ADDRESS]).map(|addr| (addr, LocalAddress::new(true))).collect();
        self.tables.inner.set_local_addresses(&all)?;
        Ok(())
    }

    fn reconcile(&mut self, mut dirty: Dirty) -> Result<()> {
        loop {
            let outcome = self.planner.reconcile(&self.wanted, &mut dirty, &mut self.tables);
            if let Some(failure) = outcome.failures.first() {
                bail!("the publisher failed: {failure}");
            }
            if let Some(retired) = self.planner.take_retired() {
                match &self.grace {
                    Some(grace) => ensure!(grace.request(retired), "the grace periods ended"),
                    None => self.planner.reclaim(retired),
                }
            }
            if outcome.waiting.is_empty() {
                while let Ok(grace) = self.over.try_recv() {
                    self.reclaim(grace)?;
                }
                return Ok(());
            }
            let grace = self.over.recv().context("wait for a grace period")?;
            self.reclaim(grace)?;
        }
    }

    fn reclaim(&mut self, grace: Grace<Retired>) -> Result<()> {
        match grace {
            Grace::Over { tickets, .. } => {
                tickets.into_iter().for_each(|retired| self.planner.reclaim(retired));
                Ok(())
            }
            Grace::Failed { error, .. } => Err(error).context("wait for a grace period"),
        }
    }
}

/// Counts how often each record of `pw_runs` is written.
struct Counting {
    inner: KernelTables,
    writes: Vec<u32>,
}

impl Counting {
    /// Of the records that were written at all: how often the least used one was used again.
    fn fewest_reuses(&self) -> u32 {
        self.writes.iter().filter(|writes| **writes > 0).min().map_or(0, |writes| writes - 1)
    }
}

impl TableWriter for Counting {
    type Error = <KernelTables as TableWriter>::Error;

    fn write(&mut self, op: &TableOp) -> Result<(), Self::Error> {
        self.inner.write(op)?;
        if let TableOp::WriteRun { at, records } = op {
            for writes in self.writes.iter_mut().skip(at.get() as usize).take(records.len()) {
                *writes += 1;
            }
        }
        Ok(())
    }
}
