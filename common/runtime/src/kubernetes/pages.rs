use serde_json::value::RawValue;

use super::client::Client;
use super::error::RequestError;
use super::watch::{Resource, WatchOptions, list};

/// Lists what exists of a kind, as new as the quorum, and gives each page to `take`: what that keeps is all that stays.
/// Objects lack `kind` and `apiVersion`.
///
/// # Errors
/// A page that cannot be had; 410 if the list took longer than the server keeps its snapshot.
pub async fn each_page(
    client: &Client,
    resource: &Resource,
    mut take: impl FnMut(Vec<Box<RawValue>>),
) -> Result<(), RequestError> {
    let limit = WatchOptions::default().page;
    let mut next = None::<String>;
    loop {
        let page = list::page(client, resource, limit, next.as_deref(), "application/json").await?;
        take(page.items);
        next = page.next;
        if next.is_none() {
            return Ok(());
        }
    }
}
