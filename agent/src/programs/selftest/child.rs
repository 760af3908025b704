//! The parent's side of the conversation.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::check::Check;
use super::{PATIENCE, SelfTestError};

/// The process that makes the calls. It ends with this value.
pub(super) struct Child {
    process: std::process::Child,
    lines: Receiver<std::io::Result<String>>,
    deadline: Instant,
}

impl Child {
    pub(super) fn spawn(mut probe: Command) -> Result<Self, SelfTestError> {
        let error = |source| SelfTestError::Child { action: "start", source };
        let mut process = probe.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(error)?;
        let (sender, lines) = channel();
        if let Some(out) = process.stdout.take() {
            // Ends with the pipe, and so with the child.
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines() {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { process, lines, deadline: Instant::now() + PATIENCE })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The cookie of the child's network namespace.
    pub(super) fn namespace(&self) -> Result<u64, SelfTestError> {
        self.word("namespace", "namespace COOKIE")
    }

    pub(super) fn go(&mut self) -> Result<(), SelfTestError> {
        let error = |source| SelfTestError::Child { action: "write to", source };
        let mut stdin =
            self.process.stdin.take().ok_or_else(|| error(std::io::ErrorKind::BrokenPipe.into()))?;
        stdin.write_all(b"go\n").map_err(error)
    }

    /// The errno of the next check.
    pub(super) fn result(&self, check: Check) -> Result<i32, SelfTestError> {
        self.word(&check.to_string(), "CHECK ERRNO")
    }

    /// Waits for the end.
    pub(super) fn finish(mut self) -> Result<(), SelfTestError> {
        self.process.wait().map(drop).map_err(|source| SelfTestError::Child { action: "wait for", source })
    }

    /// The number after `name` on the next line.
    fn word<T: std::str::FromStr>(&self, name: &str, expected: &'static str) -> Result<T, SelfTestError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let said = match self.lines.recv_timeout(left) {
            Ok(line) => line.map_err(|source| SelfTestError::Child { action: "read from", source })?,
            Err(_) => "nothing".to_owned(),
        };
        let number = said.strip_prefix(name).and_then(|rest| rest.strip_prefix(' ')?.parse().ok());
        number.ok_or(SelfTestError::Protocol { said, expected })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // After `finish` there is nothing to end; both calls fail then, and there is nobody to tell.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
