//! Whether the API server refuses what a replica wrote in a term that is over.
//!
//! A write that was on its way when its replica was frozen may come when another leads; its own preconditions say nothing
//! where nobody has touched the object since, or its name is free. The chart's ValidatingAdmissionPolicy compares the term
//! that a write names (see [`Client::in_term`]) with the Lease itself, which is its parameter, and refuses other terms. Of
//! what the operator writes it does not judge Events, and deletions of Pods, which have no place for a term.
//!
//! An API server comes to know a new holder by a watch, within milliseconds. Until it does it refuses the new leader's
//! writes, and takes the old one's; so does each of several for itself, one that has just started, and one whose Lease
//! somebody deleted. Without the policy (an API server before 1.30, an operator without the chart) nothing is refused that
//! does not fail its own precondition. So what must be unique is claimed by preconditions, here as there.
//!
//! Dry runs tell what is so: one of this term, which begins to write when it is taken, and one as of the term before.

use std::time::Duration;

use http::Method;
use portway_runtime::kubernetes::{Client, Fence, RequestError, Term};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Of the fields that the operator writes. The policy's name begins with it.
const MANAGER: &str = "portway-operator";

const NODES: &str = "/apis/cilium.io/v2/ciliumnodes";
/// The policy knows a new holder of the lease after milliseconds, or something is wrong.
const PATIENCE: Duration = Duration::from_secs(2);
const BETWEEN_TRIES: Duration = Duration::from_millis(50);
/// From when it works to the next look, which is two requests; where it does not, there is one sooner, and the first soon.
const LATER: Duration = Duration::from_secs(300);
const SOON: Duration = Duration::from_secs(2);
const LATEST: Duration = Duration::from_secs(120);

/// What becomes of writes of earlier terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "earlier_terms", content = "problem")]
pub enum Guard {
    /// The API server takes writes of this term; of others it was not asked yet.
    NotAsked,
    /// The API server refuses them.
    Refused,
    /// They are taken where their own preconditions hold.
    Taken,
    /// This one's are refused too: the policy knows another lease.
    AllRefused(String),
    /// It could not be asked.
    Unknown(String),
}

impl Guard {
    /// What a person has to know of it.
    pub fn warning(&self) -> Option<String> {
        let policy = numbered(0).policy();
        match self {
            Self::NotAsked | Self::Refused => None,
            Self::Taken => Some(format!(
                "the API server does not refuse late writes of a replica that led before; is the ValidatingAdmissionPolicy {policy} \
                 there, which the chart makes from Kubernetes 1.30 on, with its binding, for this service account and lease?"
            )),
            Self::AllRefused(problem) => Some(format!(
                "the ValidatingAdmissionPolicy {policy} refuses every write; does its binding name this operator's lease? {problem}"
            )),
            Self::Unknown(problem) => Some(format!(
                "whether the API server refuses late writes of a replica that led before is not known: {problem}"
            )),
        }
    }
}

/// A term with this number.
const fn numbered(number: u32) -> Term {
    Term { manager: MANAGER, number }
}

/// Clients that write in this term, and as the one before, as long as `fence` lets them.
pub fn clients(client: &Client, fence: &Fence, number: u32) -> (Client, Client) {
    let fenced = client.fenced(fence.clone());
    (fenced.in_term(numbered(number)), fenced.in_term(numbered(number.wrapping_sub(1))))
}

/// Looks at what is so, tells it, and looks again from time to time. The [`clients`] of this term and of the one before.
/// The term begins when something is told: once the API server takes its writes, or it is clear that time does not mend it.
pub async fn watch(now: Client, before: Client, told: watch::Sender<Option<Guard>>) {
    let (mut wait, mut warned) = (SOON, None);
    loop {
        let guard = match begin(&now).await {
            None => {
                let is_first = told.borrow().is_none();
                if is_first {
                    told.send_replace(Some(Guard::NotAsked));
                }
                match refusal(&before).await {
                    Ok(Some(_)) => Guard::Refused,
                    Ok(None) => Guard::Taken,
                    Err(error) => Guard::Unknown(error.to_string()),
                }
            }
            Some(guard) => guard,
        };
        // What is so only while a cluster or a server begins is no news.
        let warning = guard.warning();
        let is_lasting = *told.borrow() == Some(guard.clone());
        if is_lasting && warned != warning {
            warning.iter().for_each(|warning| tracing::warn!("{warning}"));
            warned = warning;
        }
        wait = if guard == Guard::Refused { LATER } else { (wait * 2).min(LATEST) };
        told.send_replace(Some(guard));
        sleep(wait).await;
    }
}

/// Waits until writes of this term are taken; what else is so, where they are not.
async fn begin(now: &Client) -> Option<Guard> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match refusal(now).await {
            Ok(None) => return None,
            Ok(Some(refusal)) if Instant::now() >= deadline => return Some(Guard::AllRefused(refusal)),
            Ok(Some(_)) => sleep(BETWEEN_TRIES).await,
            Err(error) => return Some(Guard::Unknown(error.to_string())),
        }
    }
}

/// What the policy says of a write of this client's.
async fn refusal(client: &Client) -> Result<Option<String>, RequestError> {
    let object = json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNode",
        "metadata": {"name": "dry-run.of-a-term"},
        "spec": {},
    });
    let path = format!("{NODES}?dryRun=All");
    match client.send(Method::POST, &path, object.to_string().into_bytes()).await {
        Ok(_) => Ok(None),
        Err(RequestError::OtherTerm { message, .. }) => Ok(Some(message)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
