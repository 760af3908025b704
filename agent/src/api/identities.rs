use portway_model::labels::{Label, Labels};
use serde::{Deserialize, Serialize};

/// Who a number stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub id: u32,
    /// `k8s:app=x`, sorted.
    pub labels: Vec<String>,
    /// Who gives the number its meaning: `reserved`, `well-known`, `user-reserved`, `cluster`, `local` or `remote-node`.
    pub scope: String,
    /// Pods of this node that have it.
    pub endpoints: u64,
    /// Garbage collection has marked it, for nobody seems to use it.
    pub is_marked: bool,
}

impl Identity {
    pub fn labels(&self) -> Labels {
        self.labels.iter().filter_map(|label| Label::parse(label)).collect()
    }
}

/// How identities are given and told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IdentitiesStatus {
    /// `identity-management-mode`.
    pub mode: String,
    /// CiliumIdentities that are seen.
    pub known: u64,
    /// Numbers that pods of this node have.
    pub used: u64,
    /// Label sets that came to their numbers by requests of this agent, and the seconds that took, added up.
    pub allocated: u64,
    pub allocation_seconds: f64,
    /// Requests that failed or came too late, and were followed by others.
    pub retries: u64,
    /// Requests about this node's own objects: those that read, and those that changed something.
    pub reads: u64,
    pub writes: u64,
    /// What is not as it should be yet, and why.
    pub waiting: Vec<String>,
    /// Label sets that have several numbers by somebody's mistake.
    pub duplicates: Vec<String>,
}
