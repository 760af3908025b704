use std::time::Duration;

use http::Method;
use portway_model::crd::definitions;
use portway_runtime::kubernetes::{Client, RequestError, jitter};
use serde_json::Value;
use tokio::sync::Notify;

use super::plan::{Step, established, plan, version};
use super::{Definition, Done, Report};

const ALL: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Between looks as long as something goes forward, and the longest wait after it did not: what a person mends, such as a
/// role, is noticed by then. A look is a request for each definition that is not as it should be.
const SOON: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(20);

/// Makes, replaces and waits for definitions until all of them are served, and once more each time that `again` says so,
/// for ever. What goes wrong is `told` and tried again: an API server that is away, a role that forbids it.
pub async fn install(client: &Client, again: &Notify, mut told: impl FnMut(&Report)) {
    let wanted = definitions();
    let row =
        |(file, _): &(String, Value)| Definition { name: name(file).to_owned(), ..Definition::default() };
    let anew = || Report { definitions: wanted.iter().map(row).collect() };
    let (mut report, mut wait) = (anew(), SOON);
    loop {
        let before = report.clone();
        for ((_, wanted), row) in wanted.iter().zip(&mut report.definitions) {
            if !row.is_whole() {
                look(client, wanted, row).await;
            }
        }
        told(&report);
        wait = if report == before { (wait * 2).min(LATEST) } else { SOON };
        let is_asked = tokio::select! {
            () = again.notified() => true,
            () = tokio::time::sleep(jitter::between(wait / 2, wait)), if !report.is_whole() => false,
        };
        if is_asked {
            (report, wait) = (anew(), SOON);
        }
    }
}

/// What would be done, a line each for people, and nothing is.
///
/// # Errors
/// The API server does not answer, or refuses.
pub async fn preview(client: &Client) -> Result<Vec<String>, RequestError> {
    let mut lines = Vec::new();
    for (file, wanted) in definitions() {
        let name = name(&file);
        match plan(&wanted, read(client, name).await?.as_ref()) {
            Step::Keep => {}
            Step::Create(_) => lines.push(format!("create CustomResourceDefinition {name}")),
            Step::Replace { was, .. } => {
                lines.push(format!("replace CustomResourceDefinition {name}: {}", Done::Replaced { was }));
            }
            Step::Wait => {
                lines.push(format!("create CustomResourceDefinition {name} once its deletion is over"))
            }
            Step::TooNew { problem } => lines.push(format!("CustomResourceDefinition {name}: {problem}")),
        }
    }
    Ok(lines)
}

/// `ciliumnodes.cilium.io` of its file's name.
fn name(file: &str) -> &str {
    file.strip_suffix(".yaml").unwrap_or(file)
}

/// One step of one definition.
async fn look(client: &Client, wanted: &Value, row: &mut Definition) {
    let Err(Problem(problem)) = step(client, wanted, row).await else { return };
    if row.problem.as_ref() != Some(&problem) {
        tracing::warn!(
            definition = row.name,
            problem,
            "a definition is not as it should be; it is tried again"
        );
    }
    row.problem = Some(problem);
}

/// Why a definition is not as it should be.
struct Problem(String);

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Self {
        Self(error.to_string())
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self(text)
    }
}

async fn step(client: &Client, wanted: &Value, row: &mut Definition) -> Result<(), Problem> {
    let installed = read(client, &row.name).await?;
    let (now, done) = match plan(wanted, installed.as_ref()) {
        Step::Create(body) => {
            match client.send(Method::POST, ALL, body.to_string().into()).await {
                Ok(answer) => (parse(&answer)?, Some(Done::Created)),
                // Somebody else was first: it is looked at again.
                Err(error) if error.code() == Some(409) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Step::Replace { body, was } => {
            let path = format!("{ALL}/{}", row.name);
            match client.send(Method::PUT, &path, body.to_string().into()).await {
                Ok(answer) => (parse(&answer)?, Some(Done::Replaced { was })),
                Err(error) if matches!(error.code(), Some(404 | 409)) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Step::Keep => (installed.unwrap_or_default(), None),
        Step::Wait => return Err("it is being deleted; it is made anew after that".to_owned().into()),
        Step::TooNew { problem } => {
            row.version = installed.as_ref().and_then(version).unwrap_or_default().to_owned();
            return Err(Problem(problem));
        }
    };
    row.version = version(&now).unwrap_or_default().to_owned();
    if let Some(done) = done {
        tracing::info!(definition = row.name, version = row.version, "{done}");
        row.done = Some(done);
    }
    row.is_established = established(&now)?;
    row.problem = None;
    Ok(())
}

/// The definition that is there.
async fn read(client: &Client, name: &str) -> Result<Option<Value>, RequestError> {
    let path = format!("{ALL}/{name}");
    match client.get(&path).await {
        Ok(answer) => parse(&answer).map(Some).map_err(|problem| RequestError::Answer { url: path, problem }),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse(answer: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(answer).map_err(|error| format!("is no JSON: {error}"))
}
