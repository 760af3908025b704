//! A claim's actions as requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;

use http::Method;
use portway_datapath::NumericIdentity;
use portway_model::identity::{Action, CLAIM, HEARTBEAT, Outcome, Seen, Standing, Version};
use portway_model::k8s::{CiliumIdentity, Format, Names, Object, cilium_identity, decode};
use portway_model::labels::{self, Labels};
use portway_runtime::kubernetes::{Client, Deletion, RequestError, Resource, each_page};
use serde_json::{Value, json};

const PATH: &str = "/apis/cilium.io/v2/ciliumidentities";

pub(super) struct Requests {
    client: Client,
}

/// The identities of each label set.
pub(super) type Found = HashMap<Labels, Vec<Seen>>;

impl Requests {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// The identities of these label sets, which are of a namespace's pods (`None`: of all), as new as the quorum. The
    /// namespace, which every identity of pods has among its own labels, makes the list short; where it does not, there is a
    /// page of it at a time. O(identities of the namespace).
    pub(super) fn list(
        &self,
        namespace: Option<&str>,
        wanted: BTreeSet<Labels>,
    ) -> impl Future<Output = Result<Found, RequestError>> + Send + use<> {
        let client = self.client.clone();
        let of_namespace =
            |namespace| Resource::selecting("labelSelector", &format!("{}={namespace}", labels::NAMESPACE));
        let selector = namespace.map(of_namespace).unwrap_or_default();
        let resource = Resource { kind: "CiliumIdentity", path: PATH.into(), selector };
        async move {
            let mut found = Found::new();
            each_page(&client, &resource, |objects| {
                // One that cannot be read means something else.
                let identities = objects.iter().filter_map(|object| cilium_identity(object.get()).ok());
                for identity in identities.filter(|identity| wanted.contains(&identity.labels)) {
                    found.entry(identity.labels.clone()).or_default().push(Seen::from(&*identity));
                }
            })
            .await?;
            Ok(found)
        }
    }

    /// Does what a claim wants done, but for [`Action::List`]. The API server's refusals are outcomes, not errors.
    pub(super) fn send(
        &self,
        labels: &Labels,
        action: Action,
    ) -> impl Future<Output = Result<Outcome, RequestError>> + Send + use<> {
        let (client, labels) = (self.client.clone(), labels.clone());
        async move {
            match action {
                Action::Create { number, standing } => {
                    let body = object(number, &labels, standing);
                    answer(client.send(Method::POST, PATH, text(&body)).await, &labels, &[409])
                }
                Action::Delete { number, version } => {
                    let uid = version.uid.to_string();
                    let version = version.resource_version;
                    let deletion = Deletion { uid: &uid, version, is_graceful: false };
                    match client.delete(&path(number), deletion).await {
                        Ok(_) => Ok(Outcome::Done),
                        Err(error) => refused(error, &[404, 409]),
                    }
                }
                Action::Confirm { number, version } => {
                    let mut metadata = preconditions(version);
                    if let Some(metadata) = metadata.as_object_mut() {
                        metadata.insert("annotations".to_owned(), json!({CLAIM: null, HEARTBEAT: null}));
                    }
                    let patch = text(&json!({"metadata": metadata}));
                    answer(client.send(Method::PATCH, &path(number), patch).await, &labels, &[404, 409])
                }
                Action::Get { number } => match client.get(&path(number)).await {
                    Err(error) if error.code() == Some(404) => Ok(Outcome::Absent),
                    got => answer(got, &labels, &[]),
                },
                // No requests, or a list, which tells many.
                Action::List
                | Action::Refer { .. }
                | Action::Hold { .. }
                | Action::Wait
                | Action::Exhausted => Ok(Outcome::Done),
            }
        }
    }
}

/// The object of an answer.
fn answer(
    answer: Result<impl AsRef<[u8]>, RequestError>,
    labels: &Labels,
    refusals: &[u16],
) -> Result<Outcome, RequestError> {
    let text = match answer {
        Ok(text) => text,
        Err(error) => return refused(error, refusals),
    };
    let identities = read(text.as_ref())?;
    match identities.first() {
        Some(identity) if identity.labels == *labels => Ok(Outcome::Is(Seen::from(identity))),
        // One that cannot be read means something else, too.
        Some(_) | None => Ok(Outcome::Foreign),
    }
}

fn refused(error: RequestError, refusals: &[u16]) -> Result<Outcome, RequestError> {
    match error.code() {
        Some(code) if refusals.contains(&code) => Ok(Outcome::Refused),
        Some(_) | None => Err(error),
    }
}

fn read(text: &[u8]) -> Result<Vec<CiliumIdentity>, RequestError> {
    let decoded = decode(text, Format::Json, &mut Names::default())
        .map_err(|error| RequestError::Answer { url: PATH.to_owned(), problem: error.to_string() })?;
    let identities = decoded.objects.into_iter().filter_map(Object::into_identity);
    Ok(identities.map(|identity| (*identity).clone()).collect())
}

fn path(number: NumericIdentity) -> String {
    format!("{PATH}/{number}")
}

fn preconditions(version: Version) -> Value {
    json!({"uid": version.uid.to_string(), "resourceVersion": version.resource_version.to_string()})
}

/// As Cilium writes it: of the labels only the namespace is among the object's own, whose values may not be longer than 63
/// characters.
fn object(number: NumericIdentity, labels: &Labels, standing: Standing) -> Value {
    let own: BTreeMap<&str, &str> =
        labels.namespace().map(|namespace| (labels::NAMESPACE, &**namespace)).into_iter().collect();
    let annotations: BTreeMap<&str, &str> =
        standing.annotation().map(|value| (CLAIM, value)).into_iter().collect();
    let security: BTreeMap<String, &str> =
        labels.iter().map(|label| (label.entry(), &*label.value)).collect();
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumIdentity",
        "metadata": {"name": number.to_string(), "labels": own, "annotations": annotations},
        "security-labels": security,
    })
}

fn text(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}
