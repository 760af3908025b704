use bytes::Bytes;

pub(super) const JSON: &str = "application/json";

/// How a patch is read by the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 7396: a list replaces the list.
    Merge,
    /// Kubernetes' own, of its own kinds alone: elements of lists are merged by their keys.
    Strategic,
}

impl PatchType {
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

/// A body and what it is.
#[derive(Clone)]
pub(super) struct Content {
    pub(super) content_type: &'static str,
    pub(super) body: Bytes,
    /// It waits for the rate limit.
    pub(super) is_paced: bool,
}

impl Content {
    pub(super) const fn none(is_paced: bool) -> Self {
        Self { content_type: JSON, body: Bytes::new(), is_paced }
    }
}
