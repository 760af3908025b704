use std::fmt;

use super::error::RequestError;

/// A leader's time from when it takes the lease to when it loses it. Every write of a client in a term says which it is
/// (see [`Client::in_term`](super::Client::in_term)), so that an API server which knows the lease can refuse those of
/// earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The manager of the fields that are written.
    pub manager: &'static str,
    /// `leaseTransitions` of the Lease, which no two terms have in common unless somebody deletes or edits the Lease.
    pub number: u32,
}

impl Term {
    /// The ValidatingAdmissionPolicy that refuses what names another term.
    pub fn policy(&self) -> String {
        format!("{}-term", self.manager)
    }

    /// What an error of a write of this term is, if it is that policy's (apiserver/pkg/admission/plugin/policy/validating:
    /// `ValidatingAdmissionPolicy 'NAME' with binding 'NAME' denied request`).
    pub(super) fn judge(&self, error: RequestError) -> RequestError {
        let name = format!("ValidatingAdmissionPolicy '{}'", self.policy());
        if let RequestError::Status { url, message, .. } = &error
            && message.contains(&name)
        {
            return RequestError::OtherTerm { url: url.clone(), message: message.clone() };
        }
        error
    }
}

/// As a field manager: `portway-operator/7`.
impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.manager, self.number)
    }
}
