use serde_json::{Value, json};

use crate::kubernetes::term::Term;

/// Which object is to go, and only that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion<'a> {
    pub uid: &'a str,
    /// The version that was seen.
    pub version: u64,
    /// The kind has a grace period of its own, as Pods have. Of one that has none the API server reads the field and makes
    /// nothing of it (apiserver/pkg/registry/rest/delete.go, `BeforeDelete`), but admission sees it: it has the number of
    /// the term, for which options of a deletion have no other place.
    pub is_graceful: bool,
}

impl Deletion<'_> {
    /// As DeleteOptions v1.
    pub(super) fn options(&self, term: Option<Term>) -> Value {
        let mut options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": self.uid, "resourceVersion": self.version.to_string()},
        });
        if let Some(term) = term.filter(|_| !self.is_graceful) {
            options["gracePeriodSeconds"] = term.number.into();
        }
        options
    }
}
