use serde::{Deserialize, Serialize};

/// What became of sockets whose backend is gone. Numbers are since the agent's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StaleSockets {
    pub closed_tcp: u64,
    pub closed_udp: u64,
    /// Attempts that failed; each sweep tries again.
    pub failed: u64,
    pub last_error: Option<String>,
    /// Entries of `pw_sock` that were removed because their socket is no more, which no program saw.
    pub forgotten: u64,
    /// Translated sockets at the last sweep.
    pub tracked: u64,
    /// Stale ones that the annotation of their service keeps.
    pub kept: u64,
    /// TCP connections to an address that nobody has: not for long enough, or somebody answers there, or is asked.
    pub waiting: u64,
    pub sweeps: u64,
    /// How long the last sweep took; absent before the first.
    pub last_sweep_seconds: Option<f64>,
    /// Why this kernel closes none.
    pub unsupported: Option<String>,
}
