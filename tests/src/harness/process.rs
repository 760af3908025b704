//! Processes of a test: their output is kept, and they end with their guard.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use super::eventually;

/// A child process. The end of the guard, or of the thread that started it, kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: File,
}

impl Process {
    /// Starts `command` and keeps what it writes on both outputs.
    pub fn spawn_logged(name: &str, mut command: Command) -> Result<Self> {
        let log = tempfile::tempfile().context("make a log file")?;
        command.stdout(log.try_clone().context("share the log file")?);
        Self::start(name, command, log)
    }

    /// Starts `command` and keeps what it writes on standard error.
    pub fn spawn(name: &str, command: Command) -> Result<Self> {
        let log = tempfile::tempfile().context("make a log file")?;
        Self::start(name, command, log)
    }

    fn start(name: &str, mut command: Command, log: File) -> Result<Self> {
        command.stderr(log.try_clone().context("share the log file")?);
        // Ctrl-C is for the test, which ends its processes itself, and a signal that it holds back is not theirs to
        // hold back.
        command.process_group(0);
        // SAFETY: prctl(2) and sigprocmask(2) are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                SigSet::empty().thread_set_mask()?;
                Ok(set_pdeathsig(Signal::SIGKILL)?)
            });
        }
        let child = command.spawn().with_context(|| format!("start {name} ({command:?})"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        let mut text = Vec::new();
        let read = self.log.try_clone().and_then(|mut log| {
            log.rewind()?;
            log.read_to_end(&mut text)
        });
        match read {
            Ok(_) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("<its log can't be read: {error}>"),
        }
    }

    /// `None` while it runs.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("look after {}", self.name))
    }

    /// Asks it to end (SIGTERM) and waits.
    pub fn stop(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        eventually(limit, &format!("{} to end", self.name), || match self.status()? {
            Some(status) => Ok(status),
            None => bail!("it still runs"),
        })
    }

    /// `kill -9`, and waits.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill().with_context(|| format!("kill {}", self.name))?;
        self.child.wait().with_context(|| format!("wait for {}", self.name))
    }

    /// A signal to it alone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("its process id is out of range")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("send {signal} to {}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Closing its input is how a probe is told to go; killing it does no harm.
        self.child.stdin = None;
        if let Err(error) = self.kill() {
            super::complain(&format!("left behind: {}: {error:#}", self.name));
        }
    }
}

/// Runs `command` to its end and gives its standard output; an error holds both outputs.
pub fn output(command: &mut Command) -> Result<String> {
    let result = command.output().with_context(|| format!("start {command:?}"))?;
    let stdout = String::from_utf8_lossy(&result.stdout);
    if !result.status.success() {
        let stderr = String::from_utf8_lossy(&result.stderr);
        let end = match (result.status.code(), result.status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (None, signal) => format!("signal {signal:?}"),
        };
        bail!("{command:?}: {end}\n{stderr}{stdout}");
    }
    Ok(stdout.into_owned())
}

/// Where [`binary`] looks, instead of `PORTWAY_BIN_DIR`. The first call counts.
pub fn use_binaries_in(dir: &Path) {
    BIN_DIR.get_or_init(|| dir.to_owned());
}

static BIN_DIR: OnceLock<PathBuf> = OnceLock::new();

/// A binary of the workspace: in `PORTWAY_BIN_DIR`, or beside the running one.
pub fn binary(name: &str) -> Result<PathBuf> {
    let dirs: Vec<PathBuf> =
        match BIN_DIR.get().cloned().or_else(|| std::env::var_os("PORTWAY_BIN_DIR").map(Into::into)) {
            Some(dir) => vec![dir],
            None => {
                let own = std::env::current_exe().context("find the running binary")?;
                // A test runs in `deps`, below the binaries.
                own.ancestors().skip(1).take(2).map(Into::into).collect()
            }
        };
    dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file()).with_context(|| {
        format!("no {name} in {dirs:?}: build it (`cargo build -p portway-agent -p portway -p portway-tests`) or say where with PORTWAY_BIN_DIR")
    })
}
