//! Kubernetes Events on objects of the API server that are not served as they say, so that `kubectl describe` tells.
//!
//! | reason | said of |
//! |---|---|
//! | `NotUsed` | an object or a part of it that cannot be used, or that a file has too |
//! | `FrontendTaken` | a Service or Pod that has not got a frontend because another owns it |
//! | `NotProgrammed` | a Service or Pod that a write failed for: its last good version stays |
//! | `Programmed` (normal) | a Service or Pod of which that is over |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portway_model::k8s::{Manifests, ObjectKind, Reject};
use portway_runtime::kubernetes::{EventRecorder, EventType, Regarding};

use super::source::KINDS;

/// What is wrong with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    NotUsed,
    FrontendTaken,
    NotProgrammed,
}

impl Trouble {
    const fn reason(self) -> &'static str {
        match self {
            Self::NotUsed => "NotUsed",
            Self::FrontendTaken => "FrontendTaken",
            Self::NotProgrammed => "NotProgrammed",
        }
    }
}

/// An Event to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    regarding: Regarding,
    event_type: EventType,
    reason: &'static str,
    note: String,
}

/// Tells each trouble once, and when it is over.
pub(super) struct ObjectEvents {
    recorder: EventRecorder,
    told: Told,
}

impl ObjectEvents {
    pub(super) fn new(recorder: EventRecorder) -> Self {
        Self { recorder, told: Told::default() }
    }

    /// Tells what is new among everything that is wrong at present. O(what is wrong). What finds no room in the queue
    /// is told the next time.
    pub(super) fn tell(&mut self, troubles: impl Iterator<Item = (Trouble, Reject)>, manifests: &Manifests) {
        let news = self.told.news(
            troubles,
            |trouble, reject| regarding(trouble, reject, manifests),
            |object| exists(object, manifests),
        );
        for (key, said) in news {
            let Said { regarding, event_type, reason, note } = said;
            if !self.recorder.record(regarding, event_type, reason, note)
                && let Some(key) = key
            {
                self.told.0.remove(&key);
            }
        }
    }
}

#[derive(Default)]
struct Told(BTreeMap<Key, Regarding>);

type Key = (Trouble, Reject);

impl Told {
    /// What is new, with what makes it so; an object that is programmed again has nothing of the kind.
    fn news(
        &mut self,
        troubles: impl Iterator<Item = (Trouble, Reject)>,
        regarding: impl Fn(Trouble, &Reject) -> Option<Regarding>,
        exists: impl Fn(&Regarding) -> bool,
    ) -> Vec<(Option<Key>, Said)> {
        let mut now = BTreeMap::new();
        let mut news = Vec::new();
        for (trouble, reject) in troubles {
            let Some(regarding) = regarding(trouble, &reject) else { continue };
            let said = Said {
                regarding: regarding.clone(),
                event_type: EventType::Warning,
                reason: trouble.reason(),
                note: note(&reject),
            };
            let key = key(trouble, reject);
            if !self.0.contains_key(&key) && !now.contains_key(&key) {
                news.push((Some(key.clone()), said));
            }
            now.insert(key, regarding);
        }
        let failing: BTreeSet<_> = not_programmed(&now).collect();
        let healed: BTreeSet<_> =
            not_programmed(&self.0).filter(|object| !failing.contains(object) && exists(object)).collect();
        news.extend(healed.into_iter().map(|regarding| {
            let said = Said {
                regarding: regarding.clone(),
                event_type: EventType::Normal,
                reason: "Programmed",
                note: "is programmed as it says".to_owned(),
            };
            (None, said)
        }));
        self.0 = now;
        news
    }
}

fn not_programmed(told: &BTreeMap<Key, Regarding>) -> impl Iterator<Item = &Regarding> {
    let failing = told.iter().filter(|((trouble, _), _)| *trouble == Trouble::NotProgrammed);
    failing.map(|(_, regarding)| regarding)
}

/// What makes two troubles the same.
fn key(trouble: Trouble, mut reject: Reject) -> Key {
    if trouble == Trouble::NotProgrammed {
        // Why changes with each attempt: how full the map is.
        reject.reason.clear();
    }
    (trouble, reject)
}

fn note(reject: &Reject) -> String {
    let Reject { field, value, reason, .. } = reject;
    match (field.as_str(), value.as_str()) {
        ("", _) => reason.clone(),
        (field, "") => format!("{field}: {reason}"),
        (field, value) => format!("{field} {value:?}: {reason}"),
    }
}

/// The API server's object, unless it has none or what is wrong is a file's.
fn regarding(trouble: Trouble, reject: &Reject, manifests: &Manifests) -> Option<Regarding> {
    let kind = KINDS.into_iter().find(|kind| kind.name() == reject.kind)?;
    let uid = manifests.uid(kind, &reject.name)?;
    // That a file has it too is the one thing wrong with an object that a file has.
    if manifests.is_from_file(kind, &Arc::from(reject.name.as_str()))
        && (trouble != Trouble::NotUsed || reject.field != "metadata.name")
    {
        return None;
    }
    let (namespace, name) = reject.name.split_once('/').unwrap_or(("", &reject.name));
    Some(Regarding {
        api_version: api_version(kind).to_owned(),
        kind: kind.name().to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid,
    })
}

/// Whether it is still the API server's, and not another one of its name.
fn exists(object: &Regarding, manifests: &Manifests) -> bool {
    let Some(kind) = KINDS.into_iter().find(|kind| kind.name() == object.kind) else { return false };
    let name = match object.namespace.as_str() {
        "" => object.name.clone(),
        namespace => format!("{namespace}/{}", object.name),
    };
    manifests.uid(kind, &name).is_some_and(|uid| uid == object.uid)
}

const fn api_version(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Service | ObjectKind::Pod | ObjectKind::Namespace | ObjectKind::Node => "v1",
        ObjectKind::EndpointSlice => "discovery.k8s.io/v1",
        ObjectKind::CiliumNode | ObjectKind::CiliumIdentity | ObjectKind::CiliumEndpoint => "cilium.io/v2",
        ObjectKind::CiliumEndpointSlice => "cilium.io/v2alpha1",
    }
}

#[cfg(test)]
mod tests {
    use portway_model::k8s::Watched;

    use super::*;

    fn reject(name: &str, reason: &str) -> Reject {
        Reject {
            kind: "Service".to_owned(),
            name: name.to_owned(),
            field: "spec.ports[0].port".to_owned(),
            value: "0".to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn manifests() -> Manifests {
        let mut manifests = Manifests::new();
        for name in ["a", "b"] {
            let service = serde_json::json!({
                "metadata": {"name": name, "namespace": "n", "uid": "00000000-0000-0000-0000-00000000000a",
                             "resourceVersion": "7"},
                "spec": {"clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]},
            });
            manifests.watched(ObjectKind::Service, Watched::Applied(&service.to_string()));
        }
        let file =
            "{apiVersion: v1, kind: Service, metadata: {name: b, namespace: n}, spec: {clusterIP: None}}";
        manifests.apply("b.yaml".as_ref(), file.as_bytes());
        manifests
    }

    fn news(told: &mut Told, troubles: &[(Trouble, Reject)]) -> Vec<(&'static str, String)> {
        news_of(told, troubles, &manifests())
    }

    fn news_of(
        told: &mut Told,
        troubles: &[(Trouble, Reject)],
        manifests: &Manifests,
    ) -> Vec<(&'static str, String)> {
        let said = told.news(
            troubles.iter().cloned(),
            |trouble, reject| regarding(trouble, reject, manifests),
            |object| exists(object, manifests),
        );
        said.into_iter().map(|(_, said)| (said.reason, said.note)).collect()
    }

    #[test]
    fn an_object_that_is_gone_is_not_said_to_be_programmed() {
        let (mut told, mut manifests) = (Told::default(), manifests());
        let full = [(Trouble::NotProgrammed, reject("n/a", "8 of 8"))];
        assert_eq!(news_of(&mut told, &full, &manifests).len(), 1);
        let gone = r#"{"metadata": {"name": "a", "namespace": "n", "resourceVersion": "9"}}"#;
        manifests.watched(ObjectKind::Service, Watched::Deleted(gone));
        assert_eq!(news_of(&mut told, &[], &manifests), []);
    }

    #[test]
    fn a_trouble_is_told_once_and_again_when_it_changes() {
        let mut told = Told::default();
        let bad = [(Trouble::NotUsed, reject("n/a", "is no port"))];
        let line = || "spec.ports[0].port \"0\": is no port".to_owned();
        assert_eq!(news(&mut told, &bad), [("NotUsed", line())]);
        assert_eq!(news(&mut told, &bad), []);
        assert_eq!(news(&mut told, &[]), []);
        assert_eq!(news(&mut told, &bad), [("NotUsed", line())]);
    }

    #[test]
    fn what_could_not_be_programmed_is_told_once_and_so_is_its_end() {
        let mut told = Told::default();
        let full = |used: &str| [(Trouble::NotProgrammed, reject("n/a", used))];
        assert_eq!(news(&mut told, &full("7 of 8"))[0].0, "NotProgrammed");
        assert_eq!(news(&mut told, &full("8 of 8")), []);
        assert_eq!(news(&mut told, &[]), [("Programmed", "is programmed as it says".to_owned())]);
        assert_eq!(news(&mut told, &[]), []);
    }

    #[test]
    fn objects_of_files_get_no_events() {
        let mut told = Told::default();
        let of_files = [
            (Trouble::NotUsed, reject("n/c", "is no port")),
            (Trouble::NotUsed, reject("n/b", "is no port")),
            (Trouble::NotProgrammed, reject("n/b", "full")),
        ];
        assert_eq!(news(&mut told, &of_files), []);
        let rival = Reject { field: "metadata.name".to_owned(), ..reject("n/b", "a file has it too") };
        assert_eq!(news(&mut told, &[(Trouble::NotUsed, rival)])[0].0, "NotUsed");
    }
}
