//! `portway-operator plan`: what a leader would write now.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use portway_runtime::kubernetes::{Client, Fence};
use prometheus::Registry;
use serde::Serialize;
use tokio::time::timeout;

use super::begin_log;
use super::controllers::{self, Instruments};
use crate::config::{Config, Loaded};
use crate::controller::{Now, Plan, Trouble};
use crate::definitions;
use crate::discovery::{is_built_in, look};
use crate::identities;
use crate::observed::{Kind, Observed};
use crate::watches::{self, Watches};
use crate::write::{Change, Write};

/// A first list of a large cluster, with an API server that is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// What one controller wants.
#[derive(Default, Serialize)]
struct Planned {
    controller: &'static str,
    /// Kinds that it needs and that the API server does not know: it would wait for them.
    missing: Vec<&'static str>,
    /// What it would do to CustomResourceDefinitions.
    definitions: Vec<String>,
    writes: Vec<Write>,
    troubles: Vec<Trouble>,
}

/// Lists everything once, plans each controller once, and writes nothing. Gives the text to print.
///
/// # Errors
/// The API server cannot be reached or does not tell everything.
pub fn plan(loaded: &Loaded, format: Format) -> anyhow::Result<String> {
    begin_log(loaded)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    let planned = runtime.block_on(planned(&loaded.config))?;
    match format {
        Format::Json => Ok(format!("{}\n", serde_json::to_string_pretty(&planned)?)),
        Format::Text => Ok(text(&planned)),
    }
}

async fn planned(config: &Config) -> anyhow::Result<Vec<Planned>> {
    let client = Client::new(config.api_server.clone()).await;
    let client = client.context("cannot use what is configured for the API server")?;
    // A fence that nobody opens.
    let client = client.fenced(Fence::new(config.lease.write_limit()));
    let instruments = Instruments::new(&Registry::new())?;
    let kinds: BTreeSet<Kind> = controllers::kinds(config, &instruments).into_iter().collect();
    let others: BTreeSet<Kind> = kinds.iter().copied().filter(|kind| !is_built_in(*kind)).collect();
    let (known, problems) = look(&client, &others).await;
    if let Some((version, problem)) = problems.first_key_value() {
        bail!("the API server does not say which kinds of {version} it knows: {problem}");
    }
    let there: Vec<Kind> =
        kinds.iter().copied().filter(|kind| is_built_in(*kind) || known.contains(kind)).collect();
    let Ok(observed) = timeout(PATIENCE, observe(client.clone(), config, &there)).await else {
        bail!(
            "not everything was told within {} s: {}",
            PATIENCE.as_secs(),
            client.status().last_error.unwrap_or_default()
        )
    };
    let mut planned = Vec::new();
    if !config.skip_crds {
        let definitions = definitions::preview(&client).await;
        let definitions = definitions.unwrap_or_else(|error| vec![format!("cannot be read: {error}")]);
        planned.push(Planned { controller: "definitions", definitions, ..Planned::default() });
    }
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = Now { wall, monotonic: Duration::ZERO };
    for mut controller in controllers::all(config, &instruments) {
        let lacks = controller.kinds().iter().filter(|kind| !there.contains(kind));
        let missing: Vec<_> = lacks.map(|kind| kind.name()).collect();
        let plan = if missing.is_empty() { controller.plan(&observed, now) } else { Plan::default() };
        let Plan { writes, again: _, troubles } = plan;
        let (controller, definitions) = (controller.name(), Vec::new());
        planned.push(Planned { controller, missing, definitions, writes, troubles });
    }
    if let Some(config) = controllers::identities(config) {
        let lacks = identities::KINDS.iter().filter(|kind| !there.contains(kind));
        let missing: Vec<_> = lacks.map(|kind| kind.name()).collect();
        let writes = if missing.is_empty() { identities::preview(config, &observed) } else { Vec::new() };
        planned.push(Planned { controller: identities::NAME, missing, writes, ..Planned::default() });
    }
    Ok(planned)
}

/// Lists every kind, which are all fresh at the time zero.
async fn observe(client: Client, config: &Config, kinds: &[Kind]) -> Observed {
    let (_watches, mut told) = Watches::of_known(client, &config.namespace, kinds);
    let mut observed = Observed::default();
    while !kinds.iter().all(|kind| observed.is_synced(*kind)) {
        let Some((name, event)) = told.recv().await else { break };
        if let Some(kind) = watches::kind(name) {
            observed.take(kind, event);
        }
    }
    for kind in kinds {
        observed.hear(*kind, Duration::ZERO, Now { wall: Duration::ZERO, monotonic: Duration::ZERO });
    }
    observed
}

fn text(planned: &[Planned]) -> String {
    let mut text = String::new();
    let mut numbers = BTreeMap::from([("create", 0), ("patch", 0), ("delete", 0)]);
    for Planned { controller, missing, definitions, writes, troubles } in planned {
        for definition in definitions {
            text.push_str(&format!("{controller}: {definition}\n"));
        }
        if !missing.is_empty() {
            text.push_str(&format!(
                "{controller}: waits for kinds that the API server does not know: {}\n",
                missing.join(", ")
            ));
        }
        for write in writes {
            let (verb, details) = details(&write.change);
            *numbers.entry(verb).or_default() += 1;
            text.push_str(&format!(
                "{controller}: {verb} {} {}: {}{details}\n",
                write.kind.name(),
                write.object,
                write.reason
            ));
        }
        for Trouble { kind, object, reason, message, .. } in troubles {
            text.push_str(&format!(
                "{controller}: trouble with {} {object}: {reason}: {message}\n",
                kind.name()
            ));
        }
    }
    let [creates, deletes, patches] = ["create", "delete", "patch"].map(|verb| numbers.get(verb).copied());
    text.push_str(&format!(
        "{} to create, {} to patch, {} to delete; nothing was written\n",
        creates.unwrap_or_default(),
        patches.unwrap_or_default(),
        deletes.unwrap_or_default()
    ));
    text
}

fn details(change: &Change) -> (&'static str, String) {
    match change {
        Change::Create(body) => ("create", format!("\n    {body}")),
        Change::Patch { patch: _, subresource, body } => {
            let of = subresource.map(|of| format!(" of /{of}")).unwrap_or_default();
            ("patch", format!("{of}\n    {body}"))
        }
        Change::Delete { uid, version } => ("delete", format!(" (uid {uid}, version {version})")),
    }
}
