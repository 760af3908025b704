//! Whether anybody lives at a backend's address that the API server knows nothing of.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::sockopt::Linger;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, connect, setsockopt, socket,
};
use portway_datapath::{Addr, Port};

/// An answer must come within this: 1 s, when TCP says its SYN once more (RFC 6298, 2), and then one round trip.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Nobody lives where so many questions in a row went unanswered.
const QUESTIONS: u32 = 2;
/// An answer counts for so long.
const FRESH: Duration = Duration::from_secs(10);
/// Who did not answer is asked again after this, where its connections were spared.
const STALE: Duration = Duration::from_secs(60);
/// Questions at a time: more than a node's pods. The others wait.
const IN_FLIGHT: usize = 256;

/// Asks backends whether they live, without waiting: a question is put in one sweep and its answer looked for in later
/// ones.
///
/// The question is a TCP connection from this process, which a reset ends. Any answer is life, also a refusal: whoever
/// has taken over the address resets the client's connection at its next packet. A firewall that drops what comes from
/// this node makes a pod look gone.
#[derive(Debug, Default)]
pub(super) struct Lives {
    backends: HashMap<(Addr, Port), Backend>,
    in_flight: usize,
}

#[derive(Debug, Default)]
struct Backend {
    /// When it was last asked.
    asked: Option<Instant>,
    /// The question that has not ended.
    pending: Option<Result<TcpStream, Errno>>,
    /// Questions since the last answer.
    unanswered: u32,
    /// An answer has come since the address became nobody's.
    has_answered: bool,
}

/// What is known of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It is being asked, or will be in a later sweep.
    Unknown,
    /// It answered, or cannot be asked. Not to be looked at again before then.
    Kept(Instant),
    /// It did not answer.
    Gone { has_answered_before: bool },
}

/// How a question ended; the label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    Unanswered,
    Unreachable,
    /// It could not be put, which says nothing.
    Failed,
}

impl Outcome {
    pub(super) const ALL: [Self; 4] = [Self::Answered, Self::Unanswered, Self::Unreachable, Self::Failed];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Unanswered => "unanswered",
            Self::Unreachable => "unreachable",
            Self::Failed => "failed",
        }
    }
}

impl Lives {
    /// Looks for answers; `ended` gets how each question ended.
    pub(super) fn listen(&mut self, now: Instant, mut ended: impl FnMut(Outcome)) {
        for backend in self.backends.values_mut() {
            let Some(pending) = &backend.pending else { continue };
            let is_over = backend.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= PATIENCE);
            let outcome = match outcome(pending) {
                // Also an error that came at once is waited for: the next question is not to be at the same moment.
                None | Some(Outcome::Unanswered | Outcome::Unreachable) if !is_over => continue,
                None => Outcome::Unanswered,
                Some(outcome) => outcome,
            };
            backend.pending = None;
            self.in_flight -= 1;
            match outcome {
                Outcome::Answered => (backend.unanswered, backend.has_answered) = (0, true),
                Outcome::Failed => backend.unanswered = 0,
                Outcome::Unanswered | Outcome::Unreachable => backend.unanswered += 1,
            }
            ended(outcome);
        }
    }

    /// What is known of it. Where that is not enough, asks.
    pub(super) fn of(&mut self, to: (Addr, Port), now: Instant) -> Life {
        let backend = self.backends.entry(to).or_default();
        if backend.pending.is_some() {
            return Life::Unknown;
        }
        if let Some(asked) = backend.asked {
            // One question without an answer stays one, however far the sweeps are apart.
            let age = now.saturating_duration_since(asked);
            match backend.unanswered {
                0 if age < FRESH => return Life::Kept(asked + FRESH),
                QUESTIONS.. if age < STALE => {
                    return Life::Gone { has_answered_before: backend.has_answered };
                }
                QUESTIONS.. => backend.unanswered = 0,
                _ => {}
            }
        }
        if self.in_flight < IN_FLIGHT {
            backend.asked = Some(now);
            backend.pending = Some(ask(SocketAddr::new(to.0.into(), to.1.get())));
            self.in_flight += 1;
        }
        Life::Unknown
    }

    /// When there is something to be heard.
    pub(super) fn due(&self) -> Option<Instant> {
        let pending = self.backends.values().filter(|backend| backend.pending.is_some());
        pending.filter_map(|backend| Some(backend.asked? + PATIENCE)).min()
    }

    /// Forgets all but these.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(Addr) -> bool) {
        let in_flight = &mut self.in_flight;
        self.backends.retain(|(addr, _), backend| {
            let stays = is_wanted(*addr);
            *in_flight -= usize::from(!stays && backend.pending.is_some());
            stays
        });
    }
}

/// Begins to connect. The socket is reset when it is dropped, so that it leaves nothing on either side.
fn ask(to: SocketAddr) -> Result<TcpStream, Errno> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&fd, Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    let begun = match to {
        SocketAddr::V4(to) => connect(fd.as_raw_fd(), &SockaddrIn::from(to)),
        SocketAddr::V6(to) => connect(fd.as_raw_fd(), &SockaddrIn6::from(to)),
    };
    match begun {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd.into()),
        Err(errno) => Err(errno),
    }
}

/// `None`: it has not ended.
fn outcome(asked: &Result<TcpStream, Errno>) -> Option<Outcome> {
    let errno = match asked {
        Err(errno) => *errno,
        Ok(stream) => match stream.take_error() {
            Ok(None) => return stream.peer_addr().is_ok().then_some(Outcome::Answered),
            Ok(Some(error)) | Err(error) => error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw),
        },
    };
    // EINVAL: a route of the type blackhole, which some networks have for all pods of a node.
    let is_unreachable = matches!(
        errno,
        Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EHOSTDOWN | Errno::ENETDOWN | Errno::EINVAL
    );
    Some(if matches!(errno, Errno::ECONNREFUSED | Errno::ECONNRESET | Errno::EPIPE) {
        Outcome::Answered
    } else if is_unreachable {
        Outcome::Unreachable
    } else if errno == Errno::ETIMEDOUT {
        Outcome::Unanswered
    } else {
        Outcome::Failed
    })
}

#[cfg(test)]
mod tests;
