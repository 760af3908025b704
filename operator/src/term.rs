//! Whether the API server refuses what a replica wrote in a term that is over.
//!
//! A write that was on its way when its replica was frozen may come when another leads; its own preconditions say nothing
//! where nobody has touched the object since, or its name is free. The chart's ValidatingAdmissionPolicy compares the term
//! that every write names (see [`Client::fenced`]) with the Lease itself, which is its parameter. It comes to know a new
//! holder within milliseconds, by a watch; until it does, it refuses the new leader's writes, and takes the old one's, which
//! then are as if they had come before. Without the policy (an older API server, an operator without the chart) nothing is
//! refused that does not fail its own precondition: what must be unique is claimed by those alone.
//!
//! Two dry runs tell what is so: of this term, until it is taken, and of the one before, which is to be refused.

use std::time::Duration;

use http::Method;
use portway_runtime::kubernetes::{Client, Fence, RequestError, Term};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

/// The ValidatingAdmissionPolicy, and its binding.
pub const POLICY: &str = "portway-operator-term";
/// Of the fields that the operator writes.
const MANAGER: &str = "portway-operator";

const NODES: &str = "/apis/cilium.io/v2/ciliumnodes";
/// A new holder of the lease is known to the policy after milliseconds.
const BETWEEN_TRIES: Duration = Duration::from_millis(50);
const TRIES: u32 = 100;
/// From when it works to the next look; where it does not, there is one sooner.
const LATER: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(120);

/// What becomes of writes of earlier terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "earlier_terms", content = "problem")]
pub enum Guard {
    /// The API server refuses them.
    Refused,
    /// They are taken where their own preconditions hold.
    Taken,
    /// This one's are refused too: whoever made the policy knows another lease.
    AllRefused(String),
    /// It could not be asked.
    Unknown(String),
}

impl Guard {
    /// What a person has to know of it.
    pub fn warning(&self) -> Option<String> {
        match self {
            Self::Refused | Self::Unknown(_) => None,
            Self::Taken => Some(format!(
                "late writes of a replica that led before are not refused as such: there is no ValidatingAdmissionPolicy {POLICY}, \
                 which the chart makes from Kubernetes 1.30 on"
            )),
            Self::AllRefused(problem) => Some(format!(
                "the ValidatingAdmissionPolicy {POLICY} refuses every write; does its binding name this operator's lease? {problem}"
            )),
        }
    }
}

/// A term with this number.
pub const fn numbered(number: u32) -> Term {
    Term { manager: MANAGER, number }
}

/// Clients that write in this term, and as the one before.
pub fn clients(client: &Client, fence: &Fence, number: u32) -> (Client, Client) {
    let before = fence.of_term(numbered(number.saturating_sub(1)));
    (client.fenced(fence.clone()), client.fenced(before))
}

/// Looks at what is so, tells it, and looks again from time to time. The [`clients`] of this term and of the one before.
pub async fn watch(now: Client, before: Client, told: watch::Sender<Option<Guard>>) {
    let mut wait = SOON;
    loop {
        let guard = look(&now, &before).await.unwrap_or_else(|error| Guard::Unknown(error.to_string()));
        let is_news = told.send_if_modified(|old| old.replace(guard.clone()).as_ref() != Some(&guard));
        if is_news && let Some(warning) = guard.warning() {
            tracing::warn!("{warning}");
        }
        wait = if guard == Guard::Refused { LATER } else { (wait * 2).min(LATEST) };
        sleep(wait).await;
    }
}

async fn look(now: &Client, before: &Client) -> Result<Guard, RequestError> {
    let mut refusal = None;
    for _ in 0..TRIES {
        refusal = refusal_of(now).await?;
        if refusal.is_none() {
            break;
        }
        sleep(BETWEEN_TRIES).await;
    }
    if let Some(refusal) = refusal {
        return Ok(Guard::AllRefused(refusal));
    }
    Ok(if refusal_of(before).await?.is_some() { Guard::Refused } else { Guard::Taken })
}

/// What the policy says of a write of this client's.
async fn refusal_of(client: &Client) -> Result<Option<String>, RequestError> {
    let object = json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNode",
        "metadata": {"name": "dry-run.of-a-term"},
        "spec": {},
    });
    let path = format!("{NODES}?dryRun=All");
    match client.send(Method::POST, &path, object.to_string().into_bytes()).await {
        Ok(_) => Ok(None),
        Err(error) if error.code() == Some(422) && error.to_string().contains(POLICY) => {
            Ok(Some(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
