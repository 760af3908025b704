//! `cargo xtask bench NAME…`: runs benchmarks and prints their figures; exits non-zero where one misses its bar.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use portway_tests::bench::{self, NAMES, client, hammer, report};
use serde::Serialize;

#[derive(Debug, Parser)]
#[command(about = "Measures Portway on this machine", args_conflicts_with_subcommands = true)]
struct Args {
    /// What to measure
    #[arg(required = true, value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    names: Vec<String>,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
    /// The long forms, whose figures are published
    #[arg(long)]
    long: bool,
    #[command(subcommand)]
    client: Option<Internal>,
}

#[derive(Debug, Subcommand)]
enum Internal {
    /// A client process of a benchmark
    #[command(hide = true, subcommand)]
    Client(Client),
}

/// What a client process does; see `portway_tests::bench::client`.
#[derive(Debug, Subcommand)]
enum Client {
    Paired { hooked: PathBuf, outside: PathBuf, direct: SocketAddr, rounds: u32 },
    Sweep,
    Watch { target: SocketAddr },
    Sink { at: SocketAddr },
    Hammer { what: String, window: PathBuf },
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(Internal::Client(client)) = args.client {
        return act(client).map(|()| ExitCode::SUCCESS);
    }
    let mut all = Vec::new();
    for name in &args.names {
        let figures = bench::run(name, args.long).with_context(|| format!("bench {name}"))?;
        if args.json {
            for figure in &figures {
                say(&figure)?;
            }
        } else {
            write!(std::io::stdout(), "{}", report::table(&figures))?;
        }
        all.extend(figures);
    }
    Ok(if all.iter().all(|figure| figure.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn act(client: Client) -> Result<()> {
    match client {
        Client::Paired { hooked, outside, direct, rounds } => {
            let services = client::targets()?;
            client::pin(0)?;
            say(&client::paired(&hooked, &outside, &services, direct, rounds)?)
        }
        Client::Sweep => say(&client::sweep(&client::targets()?)?),
        Client::Watch { target } => std::io::stdin().lines().try_for_each(|name| {
            let seen = client::await_name(target, name?.trim())?;
            say(&seen)
        }),
        Client::Sink { at } => client::sink(at),
        Client::Hammer { what, window } => say(&hammer::reader::read(&what, &window)?),
    }
}

fn say(what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    let mut output = std::io::stdout();
    output.write_all(line.as_bytes())?;
    output.flush()?;
    Ok(())
}
