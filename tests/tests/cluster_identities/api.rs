//! The API server as clients of a test have it.

use std::collections::BTreeSet;
use std::time::SystemTime;

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use portway_datapath::NumericIdentity;
use portway_model::identity::garbage::{self, Collection, Verdict};
use portway_model::identity::{HEARTBEAT, Version};
use portway_model::k8s::{CiliumIdentity, Format, Names, Object, decode};
use portway_runtime::kubernetes::Client;
use serde_json::{Value, json};

pub(crate) const IDENTITIES: &str = "/apis/cilium.io/v2/ciliumidentities";
const ENDPOINTS: &str = "/apis/cilium.io/v2/namespaces/default/ciliumendpoints";

pub(crate) async fn identities(client: &Client) -> Result<Vec<CiliumIdentity>> {
    let decoded = decode(&client.get(IDENTITIES).await?, Format::Json, &mut Names::default())?;
    let identities = decoded.objects.into_iter().filter_map(Object::into_identity);
    Ok(identities.map(|identity| (*identity).clone()).collect())
}

/// Writes the CiliumEndpoint `name`, whatever is there.
pub(crate) async fn refer(client: &Client, name: &str, number: NumericIdentity) -> Result<()> {
    let mut endpoint = json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumEndpoint",
        "metadata": {"name": name},
        "status": {"identity": {"id": number.get()}},
    });
    match client.send(Method::POST, ENDPOINTS, endpoint.to_string().into_bytes()).await {
        Err(error) if error.code() == Some(409) => {
            let path = format!("{ENDPOINTS}/{name}");
            if let Some(endpoint) = endpoint.as_object_mut() {
                endpoint.retain(|key, _| key == "status");
            }
            client.send(Method::PATCH, &path, endpoint.to_string().into_bytes()).await?;
            Ok(())
        }
        other => Ok(other.map(drop)?),
    }
}

pub(crate) async fn unrefer(client: &Client, name: &str) -> Result<()> {
    match client.send(Method::DELETE, &format!("{ENDPOINTS}/{name}"), Vec::new()).await {
        Err(error) if error.code() == Some(404) => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

/// One round of garbage collection, whose every wait is over. Gives how many identities it deleted.
pub(crate) async fn collect(client: &Client) -> Result<usize> {
    let identities = identities(client).await?;
    let endpoints: Value = serde_json::from_slice(&client.get(ENDPOINTS).await?)?;
    let ids = endpoints["items"].as_array().context("no list")?.iter();
    let used: BTreeSet<_> = ids
        .filter_map(|endpoint| u32::try_from(endpoint.pointer("/status/identity/id")?.as_u64()?).ok())
        .map(NumericIdentity::new)
        .collect();
    let now = i64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs())?;
    let writes = garbage::plan(&identities, &used, now, 0_i64).into_iter();
    let deleted: Vec<bool> =
        stream::iter(writes.map(|write| carry_out(client, write))).buffer_unordered(16).try_collect().await?;
    Ok(deleted.into_iter().filter(|deleted| *deleted).count())
}

/// True if it deleted the identity; that it is another version by now is no error.
async fn carry_out(client: &Client, collection: Collection) -> Result<bool> {
    let Collection { number, version: Version { uid, resource_version }, verdict } = collection;
    let path = format!("{IDENTITIES}/{number}");
    let mut conditions = json!({"uid": uid.to_string(), "resourceVersion": resource_version.to_string()});
    let sent = match verdict {
        Verdict::Keep => return Ok(false),
        Verdict::Delete => {
            let body = json!({"preconditions": conditions});
            client.send(Method::DELETE, &path, body.to_string().into_bytes()).await
        }
        Verdict::Mark | Verdict::Unmark => {
            let mark = if verdict == Verdict::Mark { json!("2026-01-01T00:00:00Z") } else { Value::Null };
            conditions["annotations"] = json!({HEARTBEAT: mark});
            let body = json!({"metadata": conditions});
            client.send(Method::PATCH, &path, body.to_string().into_bytes()).await
        }
    };
    match sent {
        Ok(_) => Ok(verdict == Verdict::Delete),
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
