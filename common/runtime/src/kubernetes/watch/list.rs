use serde::Deserialize;
use serde_json::value::RawValue;

use super::Resource;
use crate::kubernetes::client::Client;
use crate::kubernetes::error::RequestError;

/// One page of a list.
pub(in crate::kubernetes) struct Page<T> {
    pub(in crate::kubernetes) version: u64,
    /// How the next page is asked for.
    pub(in crate::kubernetes) next: Option<String>,
    pub(in crate::kubernetes) items: Vec<T>,
}

#[derive(Deserialize)]
#[serde(bound = "T: serde::de::DeserializeOwned")]
struct List<T> {
    metadata: Metadata,
    // An empty list may be null.
    items: Option<Vec<T>>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(rename = "resourceVersion")]
    version: String,
    #[serde(rename = "continue", default)]
    next: String,
}

/// Asks for the page of a list that `next` names.
pub(in crate::kubernetes) async fn page<T: serde::de::DeserializeOwned>(
    client: &Client,
    resource: &Resource,
    limit: u32,
    next: Option<&str>,
    accept: &'static str,
) -> Result<Page<T>, RequestError> {
    let mut path = resource.asking(&format!("limit={limit}"));
    if let Some(next) = next {
        path = format!("{path}&continue={}", encoded(next));
    }
    let text = client.page(&path, accept, next.is_none()).await?;
    let bad = |problem: String| RequestError::Answer { url: resource.path.to_string(), problem };
    let List { metadata, items } =
        serde_json::from_slice(&text).map_err(|error| bad(format!("is not a list: {error}")))?;
    let version = version(&metadata.version).map_err(|problem| bad(format!("is not a list: {problem}")))?;
    let next = Some(metadata.next).filter(|next| !next.is_empty());
    Ok(Page { version, next, items: items.unwrap_or_default() })
}

/// Objects as JSON text.
pub(super) async fn objects(
    client: &Client,
    resource: &Resource,
    limit: u32,
    next: Option<&str>,
) -> Result<Page<Box<RawValue>>, RequestError> {
    page(client, resource, limit, next, "application/json").await
}

/// A resourceVersion as a number, which since Kubernetes 1.35 it is by contract.
pub(in crate::kubernetes) fn version(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("resourceVersion {text:?} is not a number"))
}

/// A value of a query. Tokens are base64; what else they may hold is the server's business.
pub(super) fn encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_page_survives_a_query() {
        assert_eq!(encoded("eyJ2Ijoi+/9=&x"), "eyJ2Ijoi%2B%2F9%3D%26x");
    }
}
