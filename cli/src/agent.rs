//! Questions to the agent, over HTTP on its unix socket.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use portway_agent::api;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// An agent that does not answer in this time is not well.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Agent {
    socket: PathBuf,
    patience: Duration,
}

impl Agent {
    pub(crate) fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), patience: PATIENCE }
    }

    /// The same agent, for a question that takes longer.
    pub(crate) fn patient(&self, patience: Duration) -> Self {
        Self { socket: self.socket.clone(), patience }
    }

    /// The answer to `GET path`.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.answer("GET", path)
    }

    /// The answer to `POST path`.
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.answer("POST", path)
    }

    fn answer<T: DeserializeOwned>(&self, method: &str, path: &str) -> Result<T, Failure> {
        let answer = self.ask(method, path)?;
        let body = body(&answer).with_context(|| format!("{method} {path} on {}", self.socket.display()))?;
        Ok(serde_json::from_slice(body).with_context(|| {
            format!("{method} {path}: the agent's answer is not what this version expects; are agent and portway of one version?")
        })?)
    }

    fn ask(&self, method: &str, path: &str) -> Result<Vec<u8>, Failure> {
        let mut stream =
            UnixStream::connect(&self.socket).map_err(|error| self.down(error.kind(), &error))?;
        // 1.0: the answer ends where the connection does, and is not cut into chunks.
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: portway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let asked = stream
            .set_read_timeout(Some(self.patience))
            .and_then(|()| stream.set_write_timeout(Some(self.patience)))
            .and_then(|()| stream.write_all(request.as_bytes()));
        let mut answer = Vec::new();
        match asked.and_then(|()| stream.read_to_end(&mut answer)) {
            Ok(_) => Ok(answer),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(Failure::agent_down(anyhow!(
                    "the agent on {} did not answer {method} {path} within {} s; look at its log",
                    self.socket.display(),
                    self.patience.as_secs()
                )))
            }
            Err(error) => Err(Failure::agent_down(
                anyhow!(error).context(format!("talking to the agent on {}", self.socket.display())),
            )),
        }
    }

    fn down(&self, kind: ErrorKind, error: &std::io::Error) -> Failure {
        let socket = self.socket.display();
        let mend = if kind == ErrorKind::NotFound {
            "no such socket: start portway-agent, or name its socket with --socket-path".to_owned()
        } else if kind == ErrorKind::ConnectionRefused {
            "nobody listens: the agent has ended; start portway-agent".to_owned()
        } else if kind == ErrorKind::PermissionDenied {
            "permission denied: run this as root".to_owned()
        } else {
            error.to_string()
        };
        Failure::agent_down(anyhow!(
            "the agent is not reachable on {socket} ({mend}); `portway bpf lb list` reads the kernel's maps without it"
        ))
    }
}

/// The body of an answer with status 200; the agent's own words (or the operator's) for any other.
pub(crate) fn body(answer: &[u8]) -> anyhow::Result<&[u8]> {
    let end = answer
        .windows(4)
        .position(|bytes| bytes == b"\r\n\r\n")
        .context("the answer has no end of its head")?;
    let (head, rest) = answer.split_at(end);
    let body = rest.get(4..).unwrap_or_default();
    let head = std::str::from_utf8(head).context("the head of the answer is not text")?;
    let status = head.split_whitespace().nth(1).context("the answer has no status")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    if length.is_some_and(|length| length != body.len()) {
        bail!("the answer was cut off: who gave it ended meanwhile");
    }
    if status == "200" {
        return Ok(body);
    }
    match serde_json::from_slice::<api::Error>(body) {
        Ok(error) => bail!("{}", error.error),
        Err(_) => bail!("status {status}: {}", String::from_utf8_lossy(body).trim()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// The head of a request.
    pub(crate) fn head(stream: &mut impl Read) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        String::from_utf8(head).unwrap()
    }

    /// An agent that gives one answer.
    fn answering(answer: &'static str) -> (tempfile::TempDir, Agent) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("portway.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(head(&mut stream).starts_with("GET /v1/rows HTTP/1.0\r\n"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        (dir, Agent::at(&socket))
    }

    fn error(answer: &'static str) -> String {
        let (_dir, agent) = answering(answer);
        format!("{:#}", agent.get::<Vec<u32>>("/v1/rows").unwrap_err().error)
    }

    #[test]
    fn the_body_of_a_good_answer_is_parsed() {
        let (_dir, agent) = answering("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n[1,2]");
        assert_eq!(agent.get::<Vec<u32>>("/v1/rows").unwrap(), [1, 2]);
    }

    #[test]
    fn the_agents_own_words_are_shown() {
        let answer = "HTTP/1.1 503 Service Unavailable\r\n\r\n{\"error\":\"not synced\"}";
        assert!(error(answer).ends_with("not synced"), "{}", error(answer));
    }

    #[test]
    fn an_answer_that_is_cut_off_is_an_error() {
        assert!(error("HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n[1,2]").contains("cut off"));
        assert!(error("HTTP/1.1 200 OK\r\n").contains("no end"));
    }

    #[test]
    fn an_agent_that_is_down_is_named_with_its_socket_and_the_mend() {
        let agent = Agent::at(Path::new("/proc/nobody/portway.sock"));
        let failure = agent.get::<Vec<u32>>("/v1/rows").unwrap_err();
        let text = failure.error.to_string();
        assert!(text.contains("/proc/nobody/portway.sock") && text.contains("start portway-agent"), "{text}");
    }
}
