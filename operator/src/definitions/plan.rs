use portway_model::crd::SCHEMA_VERSION_LABEL;
use serde_json::{Value, json};

use super::Version;

/// What is to become of a definition.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// There is none: this one is created.
    Create(Value),
    /// There is an older one: this one takes its place, if it has not changed since. `was` is its version.
    Replace { body: Value, was: String },
    /// It is there, as new as ours or newer.
    Keep,
    /// It is being deleted: after that it can be made anew.
    Wait,
    /// It is newer than ours and does not serve the version of the kind that we speak.
    TooNew { problem: String },
}

/// What is to become of a definition of which `installed` is there.
pub fn plan(wanted: &Value, installed: Option<&Value>) -> Step {
    let Some(installed) = installed else { return Step::Create(wanted.clone()) };
    if !installed["metadata"]["deletionTimestamp"].is_null() {
        return Step::Wait;
    }
    let was = version(installed).unwrap_or_default();
    let is_older = match (Version::parse(was), version(wanted).and_then(Version::parse)) {
        // One without version, or of a version that is none, is older than all: Cilium replaces it, too.
        (None, _) => true,
        (Some(installed), Some(wanted)) => installed < wanted,
        (Some(_), None) => false,
    };
    if is_older {
        return Step::Replace { body: replacement(wanted, installed), was: was.to_owned() };
    }
    let ours = &wanted["spec"]["versions"][0]["name"];
    let is_served = |version: &Value| version["name"] == *ours && version["served"] == json!(true);
    if versions(installed).iter().any(is_served) {
        return Step::Keep;
    }
    let ours = ours.as_str().unwrap_or_default();
    let problem = format!(
        "the definition has schema version {was}, which is newer than this operator's, and does not serve {ours}, which this operator speaks; it is left as it is"
    );
    Step::TooNew { problem }
}

/// Its schema version.
pub(super) fn version(definition: &Value) -> Option<&str> {
    definition["metadata"]["labels"][SCHEMA_VERSION_LABEL].as_str()
}

/// The API server serves its kind, or why not.
pub(super) fn established(definition: &Value) -> Result<bool, String> {
    let condition = |kind: &str| {
        let conditions = definition["status"]["conditions"].as_array();
        conditions.into_iter().flatten().find(|condition| condition["type"] == kind)
    };
    if let Some(refused) = condition("NamesAccepted").filter(|condition| condition["status"] == "False") {
        let message = refused["message"].as_str().unwrap_or("no reason given");
        return Err(format!("its names are another definition's: {message}"));
    }
    Ok(condition("Established").is_some_and(|condition| condition["status"] == "True"))
}

fn versions(definition: &Value) -> &[Value] {
    definition["spec"]["versions"].as_array().map_or(&[], Vec::as_slice)
}

/// The installed object with our specification. Versions of the kind that we do not know stay, for objects may be stored
/// in them; ours is the one that is stored from now on.
fn replacement(wanted: &Value, installed: &Value) -> Value {
    let mut body = installed.clone();
    let mut spec = wanted["spec"].clone();
    let ours = &wanted["spec"]["versions"][0]["name"];
    let mut all = versions(wanted).to_vec();
    for other in versions(installed).iter().filter(|version| version["name"] != *ours) {
        let mut other = other.clone();
        other["storage"] = Value::from(false);
        all.push(other);
    }
    if all.len() > 1 && !installed["spec"]["conversion"].is_null() {
        spec["conversion"] = installed["spec"]["conversion"].clone();
    }
    spec["versions"] = Value::from(all);
    // A definition that was made by v1beta1 may have it on; left out it would stay.
    spec["preserveUnknownFields"] = Value::from(false);
    body["apiVersion"] = wanted["apiVersion"].clone();
    body["kind"] = wanted["kind"].clone();
    body["spec"] = spec;
    if let Value::Object(fields) = &mut body {
        fields.remove("status");
    }
    if let Value::Object(metadata) = &mut body["metadata"] {
        metadata.remove("managedFields");
    }
    if !body["metadata"]["labels"].is_object() {
        body["metadata"]["labels"] = json!({});
    }
    body["metadata"]["labels"][SCHEMA_VERSION_LABEL] = Value::from(version(wanted).unwrap_or_default());
    body
}
