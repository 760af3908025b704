use std::process::ExitCode;

/// An error and what it means to a script.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: anyhow::Error,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Failed,
    AgentDown,
}

/// Exit codes, as the help text lists them. 2 is wrong usage, and clap's.
pub(crate) const FAILED: u8 = 1;
pub(crate) const AGENT_DOWN: u8 = 3;
pub(crate) const NOT_READY: u8 = 4;

impl Failure {
    pub(crate) fn agent_down(error: anyhow::Error) -> Self {
        Self { error, kind: Kind::AgentDown }
    }

    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self.kind {
            Kind::Failed => FAILED,
            Kind::AgentDown => AGENT_DOWN,
        })
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { error: error.into(), kind: Kind::Failed }
    }
}
