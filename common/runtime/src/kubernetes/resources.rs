use serde::Deserialize;

use super::client::Client;
use super::error::RequestError;

/// `meta/v1` APIResourceList.
#[derive(Deserialize)]
struct ResourceList {
    resources: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// The paths of the kinds that the API server knows of `version` (`cilium.io/v2`): `/apis/cilium.io/v2/ciliumnodes`, and
/// those of their subresources. One request; none where there is no such version.
///
/// # Errors
/// The server does not say.
pub async fn resources(client: &Client, version: &str) -> Result<Vec<String>, RequestError> {
    let path = format!("/apis/{version}");
    let text = match client.get(&path).await {
        Ok(text) => text,
        Err(error) if error.code() == Some(404) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let list: ResourceList = serde_json::from_slice(&text).map_err(|error| RequestError::Answer {
        url: path.clone(),
        problem: format!("is no APIResourceList: {error}"),
    })?;
    Ok(list.resources.into_iter().map(|of| format!("{path}/{}", of.name)).collect())
}
