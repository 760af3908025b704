//! `portway plan`: the agent's own path from a directory of manifests up to the maps, on tables in memory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Arg, ArgMatches, Command, FromArgMatches as _};
use portway_agent::config::{Config, Invocation, KEYS, Loaded, load};
use portway_model::k8s::{Manifests, Reject};
use portway_model::loadbalancer::LoadBalancer;
use portway_model::plan::Planner;
use portway_model::tables::{MemoryTables, Row, rows};
use portway_runtime::config::{Class, Key, Kind, Origin, Warning};
use portway_runtime::directory::{Directory, Event};

use crate::args;
use crate::failure::Failure;
use crate::output::{Format, complain, print, print_json};
use crate::service::planned;

/// Keys that `plan` sets itself, or that the command has a flag of its own for.
const OWN: [&str; 4] = ["cgroup-root", "node-name", "socket-path", "source-dir"];

/// The keys of the agent that may decide what is planned.
fn keys() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| key.class == Class::Honoured && !OWN.contains(&key.name))
}

/// Adds a flag for each key.
pub(crate) fn with_keys(mut command: Command) -> Command {
    for key in keys() {
        let mut arg = Arg::new(key.name)
            .long(key.name)
            .aliases(key.aliases)
            .value_name("VALUE")
            .help(key.help)
            .help_heading(key.group)
            .hide_short_help(true);
        if matches!(key.kind, Kind::Bool) {
            arg = arg.num_args(0..=1).require_equals(true).default_missing_value("true");
        }
        command = command.arg(arg);
    }
    command
}

pub(crate) fn run(matches: &ArgMatches, format: Format) -> Result<(), Failure> {
    let (_, matches) = matches.subcommand().context("`plan` without its arguments")?;
    let plan = args::Plan::from_arg_matches(matches)?;
    let source_dir = std::path::absolute(&plan.source_dir).context("--source-dir")?;
    let Loaded { config, warnings, .. } = load(invocation(&plan, &source_dir, matches))?;
    let (rows, rejects) = planned_rows(&config, &source_dir)?;
    // The environment may well hold variables of ours that are no keys.
    let warned = warnings.iter().filter(|warning| warning.origin != Origin::Environment).map(of_warning);
    for reject in warned.chain(rejects) {
        complain(&serde_json::to_string(&reject)?);
    }
    match format {
        Format::Json => print_json(&rows)?,
        Format::Text => print(&planned(&rows))?,
    }
    Ok(())
}

fn invocation(plan: &args::Plan, source_dir: &Path, matches: &ArgMatches) -> Invocation {
    let flag = |name: &str, value: &std::ffi::OsStr| {
        let mut flag = OsString::from(format!("--{name}="));
        flag.push(value);
        flag
    };
    let mut arguments = vec![
        flag("source-dir", source_dir.as_os_str()),
        flag("node-name", plan.node.as_ref()),
        // Nothing is attached anywhere.
        flag("cgroup-root", "/".as_ref()),
    ];
    for key in keys() {
        if let Some(value) = matches.get_one::<String>(key.name) {
            arguments.push(flag(key.name, value.as_ref()));
        }
    }
    // Not even in a pod is an API server asked.
    let environment = std::env::vars_os().filter(|(name, _)| name != "KUBERNETES_SERVICE_HOST").collect();
    Invocation { arguments, environment, host_name: plan.node.clone() }
}

fn of_warning(warning: &Warning) -> Reject {
    Reject {
        kind: "Configuration".to_owned(),
        name: warning.key.clone(),
        field: String::new(),
        value: String::new(),
        reason: warning.message.clone(),
    }
}

/// The rows, and what of the manifests is not in them: files, objects, fields, and frontends that another owns.
fn planned_rows(config: &Config, source_dir: &Path) -> anyhow::Result<(Vec<Row>, Vec<Reject>)> {
    let mut manifests = Manifests::new();
    let mut balancer = LoadBalancer::new(config.load_balancer());
    let mut rejects = Vec::new();
    for (path, content) in files(source_dir)? {
        match content {
            Ok(bytes) => {
                for event in manifests.apply(&path, &bytes).events {
                    balancer.apply(event);
                }
            }
            Err(reason) => rejects.push(of_file(&path, reason)),
        }
    }
    rejects.extend(manifests.problems().map(|problem| of_file(&problem.path, problem.reason)));
    rejects.extend(manifests.rejects());
    rejects.extend(balancer.rejects());
    rejects.extend(balancer.conflicts());

    let mut tables = MemoryTables::new(config.sizes);
    let mut dirty = balancer.take_dirty();
    let outcome = Planner::new(config.planner(config.sizes)).reconcile(&balancer, &mut dirty, &mut tables);
    if let Some(failure) = outcome.failures.first() {
        let others = outcome.failures.len() - 1;
        bail!("the maps cannot hold what the manifests want: {failure} (and {others} more failures)");
    }
    if !outcome.waiting.is_empty() {
        bail!("{} services wait for a grace period although nothing was there before", outcome.waiting.len());
    }
    Ok((rows(&tables.dump()), rejects))
}

fn of_file(path: &Path, reason: String) -> Reject {
    Reject {
        kind: "File".to_owned(),
        name: path.display().to_string(),
        field: String::new(),
        value: String::new(),
        reason,
    }
}

/// The bytes of a file, or why there are none.
type Content = Result<Vec<u8>, String>;

/// What the agent would read in its first scan, in order of the paths.
fn files(dir: &Path) -> anyhow::Result<Vec<(PathBuf, Content)>> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    runtime.block_on(async {
        let mut directory = Directory::open(dir)?;
        let mut files = Vec::new();
        loop {
            match directory.next().await? {
                Event::File { path, content } => files.push((path, Ok(content))),
                Event::Unreadable { path, reason } => files.push((path, Err(reason))),
                // Gone between its listing and now.
                Event::Removed { path } => files.retain(|(known, _)| *known != path),
                Event::Missing { reason } => bail!("--source-dir {}: {reason}", dir.display()),
                Event::Settled => return Ok(files),
            }
        }
    })
}
