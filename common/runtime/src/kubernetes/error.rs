use std::path::PathBuf;
use std::time::Duration;

use kube::config::{InClusterError, KubeconfigError};

/// hyper's own words are three layers deep, and many errors of kube print their source themselves.
pub(super) use crate::command::explain as chain;

/// The client cannot be made: what is configured cannot be used. An API server that is down is no such error.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: KubeconfigError,
    },
    #[error("kubeconfig {}: clusters[].cluster.proxy-url is set, which is not supported; remove it", path.display())]
    // Its URL may hold a password.
    Proxy { path: PathBuf },
    #[error("no kubeconfig is given and this is not a pod: {0}; give a kubeconfig or the API server's URL")]
    NotInCluster(#[source] InClusterError),
    #[error("API server {url:?}: {problem}; allowed is http(s)://HOST[:PORT][/PATH]")]
    Server { url: String, problem: String },
    #[error("token file {}: {source}", path.display())]
    TokenFile {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{origin}: the credentials cannot be used: {problem}")]
    Credentials { origin: String, problem: String },
    #[error("User-Agent {value:?} is not a header value")]
    UserAgent { value: String },
}

/// A request that did not get its answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RequestError {
    /// No connection, or one that broke before the answer.
    #[error("{url}: {problem}")]
    Unreachable { url: String, problem: String },
    #[error("{url}: no answer within {} s", after.as_secs())]
    Timeout { url: String, after: Duration },
    /// The server's answer is an error. `reason` and `message` are its `Status`.
    #[error("{url}: {code} {reason}: {message}")]
    Status {
        url: String,
        code: u16,
        reason: String,
        message: String,
        retry_after: Option<Duration>,
        /// The version asked for is one that this server has not seen yet.
        version_ahead: bool,
    },
    /// The answer broke off or is not what was asked for.
    #[error("{url}: the answer {problem}")]
    Answer { url: String, problem: String },
    #[error("{path:?} is not the path of a request: {problem}")]
    Path { path: String, problem: String },
    /// A write that was not sent: the lease is not held for as long as it may take.
    #[error("{url}: not written, for the lease is not held")]
    Fenced { url: String },
    /// A write that the API server refused, for it is of another [`Term`](super::Term) than the lease. Nothing changed.
    #[error("{url}: refused as of another term of the lease: {message}")]
    OtherTerm { url: String, message: String },
}

impl RequestError {
    /// The HTTP status of the answer, where there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::Answer { .. }
            | Self::Path { .. }
            | Self::Fenced { .. }
            | Self::OtherTerm { .. } => None,
        }
    }

    /// A word for metrics: of a closed set, or the HTTP status.
    pub fn label(&self) -> String {
        match self {
            Self::Unreachable { .. } => "unreachable".to_owned(),
            Self::Timeout { .. } => "timeout".to_owned(),
            Self::Status { code, .. } => code.to_string(),
            Self::Answer { .. } => "broken-answer".to_owned(),
            Self::Path { .. } => "bad-path".to_owned(),
            Self::Fenced { .. } => "fenced".to_owned(),
            Self::OtherTerm { .. } => "other-term".to_owned(),
        }
    }

    /// How long the server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::Answer { .. }
            | Self::Path { .. }
            | Self::Fenced { .. }
            | Self::OtherTerm { .. } => None,
        }
    }

    /// Whether another server may do better.
    pub fn blames_server(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } => true,
            Self::Status { code, .. } => matches!(code, 500 | 502..=504),
            Self::Answer { .. } | Self::Path { .. } | Self::Fenced { .. } | Self::OtherTerm { .. } => false,
        }
    }
}
