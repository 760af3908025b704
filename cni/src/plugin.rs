//! One call of the plugin.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{ClientError, Patience, ask};
use crate::deletions;
use crate::failure::{Failure, code};
use crate::invocation::{Command, Invocation};
use crate::network_config::NetworkConfig;
use crate::protocol::{Attachment, AttachmentId, Request, Response};
use crate::version::Version;

/// An agent restarts in well under a second; a container runtime gives a pod minutes.
const ADD: Patience = Patience { connect: Duration::from_secs(15), answer: Duration::from_secs(60) };
/// Without an agent a note is as good.
const DEL: Patience = Patience { connect: Duration::ZERO, answer: Duration::from_secs(60) };
const QUESTION: Patience = Patience { connect: Duration::from_secs(2), answer: Duration::from_secs(20) };

/// What goes to standard output, and whether it is an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// `None` where the specification wants nothing.
    pub output: Option<Value>,
    pub failed: bool,
}

/// Does what the environment and standard input (`input`) ask for.
pub fn run(invocation: &Invocation<'_>, input: &[u8]) -> Outcome {
    let config = NetworkConfig::parse(input);
    // An error is told in the version that was asked with, as far as that is known.
    let version = match &config {
        Ok(config) => config.version_text().to_owned(),
        Err(_) => Version::NEWEST.to_string(),
    };
    match config.and_then(|config| answer(invocation, &config)) {
        Ok(output) => Outcome { output, failed: false },
        Err(Failure { code, msg, details }) => {
            let output = json!({ "cniVersion": version, "code": code, "msg": msg, "details": details });
            Outcome { output: Some(output), failed: true }
        }
    }
}

fn answer(invocation: &Invocation<'_>, config: &NetworkConfig) -> Result<Option<Value>, Failure> {
    let command = invocation.command()?;
    if command == Command::Version {
        return Ok(Some(json!({ "cniVersion": Version::NEWEST, "supportedVersions": Version::ALL })));
    }
    let version = config.version()?;
    let since = match command {
        Command::Add | Command::Del | Command::Version => Version::V0_3_1,
        Command::Check => Version::V0_4_0,
        Command::Status | Command::Gc => Version::V1_1_0,
    };
    if version < since {
        let msg = format!("cniVersion {version} does not have this command; it came with {since}");
        return Err(Failure::new(
            code::INCOMPATIBLE_VERSION,
            msg,
            format!("set cniVersion to {since} or later"),
        ));
    }
    if matches!(command, Command::Add | Command::Check | Command::Gc) {
        config.named()?;
    }
    let socket = config.socket_path.as_path();
    match command {
        Command::Add => {
            let (attachment, netns) = attachment(invocation, config)?;
            match told(ask(socket, &Request::Add(attachment), Some(netns.as_fd()), ADD))? {
                Response::Attached(attached) => {
                    Ok(Some(config.passed_on(&attached).unwrap_or_else(|| attached.render(version))))
                }
                other @ (Response::Done | Response::Failed(_)) => Err(unexpected(socket, &other)),
            }
        }
        Command::Del => delete(socket, invocation.attachment()?).map(|()| None),
        Command::Check => {
            let (attachment, netns) = attachment(invocation, config)?;
            done(socket, told(ask(socket, &Request::Check(attachment), Some(netns.as_fd()), QUESTION))?)
        }
        Command::Status => {
            done(socket, told(ask(socket, &Request::Status, None, QUESTION)).map_err(unavailable)?)
        }
        Command::Gc => {
            let request = Request::Gc { network: config.name.clone(), valid: config.valid_attachments()? };
            done(socket, told(ask(socket, &request, None, ADD))?)
        }
        Command::Version => Ok(None),
    }
}

fn attachment(invocation: &Invocation<'_>, config: &NetworkConfig) -> Result<(Attachment, File), Failure> {
    let (id, path) = (invocation.attachment()?, invocation.netns()?);
    let netns = File::open(&path).map_err(|error| {
        let msg = format!("CNI_NETNS {} cannot be opened: {error}", path.display());
        Failure::new(
            code::INVALID_ENVIRONMENT,
            msg,
            "the pod's sandbox may have ended; the runtime makes it anew",
        )
    })?;
    let attachment = Attachment {
        id,
        network: config.name.clone(),
        netns: path.display().to_string(),
        pod: invocation.pod(),
        previous: config.previous()?,
    };
    Ok((attachment, netns))
}

/// Never fails for want of an agent: a pod must be able to end while that is being replaced.
fn delete(socket: &Path, id: AttachmentId) -> Result<(), Failure> {
    let request = Request::Del { id: id.clone() };
    let first = match ask(socket, &request, None, DEL) {
        Err(ClientError::Unreachable { .. }) => None,
        other => Some(other),
    };
    let answer = match first {
        Some(answer) => answer,
        None => {
            let directory = deletions::directory(socket);
            deletions::note(&directory, &id).map_err(|error| {
                let msg = format!(
                    "the agent is down and no note for it can be left in {}: {error}",
                    directory.display()
                );
                Failure::new(
                    code::TRY_AGAIN,
                    msg,
                    "start portway-agent, or mend that directory; the runtime tries again",
                )
            })?;
            match ask(socket, &request, None, DEL) {
                Err(ClientError::Unreachable { .. }) => return Ok(()),
                answer => {
                    // A note that stays is harmless: the agent finds nothing to remove.
                    let _ = deletions::done(&deletions::path(&directory, &id));
                    answer
                }
            }
        }
    };
    done(socket, told(answer)?).map(|_| ())
}

fn done(socket: &Path, response: Response) -> Result<Option<Value>, Failure> {
    match response {
        Response::Done => Ok(None),
        other @ (Response::Attached(_) | Response::Failed(_)) => Err(unexpected(socket, &other)),
    }
}

/// The agent's answer, its failures and those on the way to it being one.
fn told(answer: Result<Response, ClientError>) -> Result<Response, Failure> {
    match answer {
        Ok(Response::Failed(failure)) => Err(failure),
        Ok(response) => Ok(response),
        Err(error) => {
            let (code, details) = match &error {
                ClientError::Unreachable { .. } => (
                    code::TRY_AGAIN,
                    "start portway-agent on this node, or look at why it ends; the runtime tries again",
                ),
                ClientError::TimedOut { .. } => (
                    code::TRY_AGAIN,
                    "`portway status` says what the agent waits for; the runtime tries again",
                ),
                ClientError::Broken { .. } => (
                    code::DECODING,
                    "plugin and agent are of different versions: install the plugin of the agent's",
                ),
            };
            Err(Failure::new(code, error.to_string(), details))
        }
    }
}

fn unavailable(failure: Failure) -> Failure {
    match failure.code {
        code::TRY_AGAIN => Failure { code: code::NOT_AVAILABLE, ..failure },
        _ => failure,
    }
}

fn unexpected(socket: &Path, response: &Response) -> Failure {
    let msg = format!("the agent on {} gave an answer to another question: {response:?}", socket.display());
    Failure::new(
        code::DECODING,
        msg,
        "plugin and agent are of different versions: install the plugin of the agent's",
    )
}

#[cfg(test)]
mod tests;
