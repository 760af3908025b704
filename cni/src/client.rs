//! Asking the agent, for a bounded time.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};

use crate::protocol::{self, Request, Response};

/// How long each part may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Until somebody listens: an agent that restarts is waited for.
    pub connect: Duration,
    /// Until the answer is there.
    pub answer: Duration,
}

/// Between two attempts to reach an agent that is not there.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens, or who listened went away without an answer.
    #[error("the agent does not answer on {socket}: {source}")]
    Unreachable {
        socket: String,
        #[source]
        source: io::Error,
    },
    /// It listens, and has not answered in time.
    #[error("the agent on {socket} has not answered within {} s", waited.as_secs())]
    TimedOut { socket: String, waited: Duration },
    #[error("what the agent on {socket} says cannot be understood: {source}")]
    Broken {
        socket: String,
        #[source]
        source: io::Error,
    },
}

/// The agent's answer. An agent that goes away before it has answered is asked again: every request may be repeated.
///
/// # Errors
/// There is none in time.
pub fn ask(
    socket: &Path,
    request: &Request,
    netns: Option<BorrowedFd<'_>>,
    patience: Patience,
) -> Result<Response, ClientError> {
    let until = Instant::now() + patience.connect;
    loop {
        match ask_once(socket, request, netns, patience.answer) {
            Err(ClientError::Unreachable { .. }) if Instant::now() < until => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
}

fn ask_once(
    path: &Path,
    request: &Request,
    netns: Option<BorrowedFd<'_>>,
    waits: Duration,
) -> Result<Response, ClientError> {
    let socket = || path.display().to_string();
    let failed = |error: io::Error| {
        use io::ErrorKind::{InvalidData, TimedOut, WouldBlock};
        // EAGAIN is what a socket's timeout gives.
        if matches!(error.kind(), WouldBlock | TimedOut) {
            ClientError::TimedOut { socket: socket(), waited: waits }
        } else if error.kind() == InvalidData {
            ClientError::Broken { socket: socket(), source: error }
        } else {
            ClientError::Unreachable { socket: socket(), source: error }
        }
    };
    let mut stream = open(path, waits).map_err(failed)?;
    protocol::send(&mut stream, request, netns).map_err(failed)?;
    protocol::receive(&mut stream).map(|(response, _)| response).map_err(failed)
}

/// A connection whose every wait ends; also that for a place in the queue of a listener that does not accept.
fn open(path: &Path, waits: Duration) -> io::Result<UnixStream> {
    let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let timeout = TimeVal::milliseconds(i64::try_from(waits.as_millis()).unwrap_or(i64::MAX));
    setsockopt(&socket, sockopt::SendTimeout, &timeout)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &timeout)?;
    connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &UnixAddr::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn patience(connect: u64, answer: u64) -> Patience {
        Patience { connect: Duration::from_millis(connect), answer: Duration::from_millis(answer) }
    }

    #[test]
    fn an_agent_that_goes_away_is_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cni.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let agent = std::thread::spawn(move || {
            // The one that ends before it answers, and the one that is started after it.
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            let (request, _) = protocol::receive::<Request>(&mut stream).unwrap();
            protocol::send(&mut stream, &Response::Done, None).unwrap();
            request
        });
        let response = ask(&socket, &Request::Status, None, patience(5_000, 5_000)).unwrap();
        assert_eq!((response, agent.join().unwrap()), (Response::Done, Request::Status));
    }

    #[test]
    fn nobody_and_somebody_who_is_silent_are_told_apart_in_bounded_time() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cni.sock");
        let began = Instant::now();
        let error = ask(&socket, &Request::Status, None, patience(60, 60)).unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
        assert!(began.elapsed() >= Duration::from_millis(60));
        let _silent = UnixListener::bind(&socket).unwrap();
        let error = ask(&socket, &Request::Status, None, patience(60, 60)).unwrap_err();
        assert!(matches!(error, ClientError::TimedOut { .. }), "{error}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
