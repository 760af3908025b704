//! What a probe is told and says: one JSON object a line.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// How a resolver asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resolver {
    Tcp,
    /// On a connected socket, as glibc's does.
    ConnectedUdp,
    /// By `sendto(2)`, and the answer must come from there, as musl's does.
    Udp,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    Connect { protocol: Protocol, to: SocketAddr, keep: bool },
    Again { socket: u32 },
    OpenUdp { v6: bool },
    SendTo { socket: u32, to: SocketAddr },
    SendMany { socket: u32, to: SocketAddr, count: u32 },
    Bind { protocol: Protocol, addr: SocketAddr },
    Close { socket: u32 },
    Http { to: SocketAddr },
    Dns { resolver: Resolver, to: SocketAddr },
    Connects { to: Vec<SocketAddr>, count: u32, per_second: u32 },
    NetnsCookie,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    Answered {
        answer: Answer,
        socket: Option<u32>,
    },
    Failed {
        errno: i32,
    },
    Opened {
        socket: u32,
    },
    Closed,
    Tally(Tally),
    Cookie {
        cookie: u64,
    },
    /// A request that makes no sense.
    Mistake {
        text: String,
    },
}

/// Who answered, and how the socket shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The server's own name.
    pub name: String,
    /// The client's address as the server sees it; IPv4 is never mapped here.
    pub client: SocketAddr,
    /// `getpeername(2)` of a connected socket, the source of the reply of another one, exactly as given.
    pub peer: SocketAddr,
}

/// What came of many connections or datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Answers by server.
    pub by_name: BTreeMap<String, u32>,
    /// Failures by errno.
    pub errors: BTreeMap<i32, u32>,
    /// Nanoseconds that each connect took that succeeded, in order of time.
    pub connect_ns: Vec<u64>,
}

impl Tally {
    pub fn answers(&self) -> u32 {
        self.by_name.values().sum()
    }

    pub fn failures(&self) -> u32 {
        self.errors.values().sum()
    }

    /// Failures with one errno.
    pub fn failed_with(&self, errno: Errno) -> u32 {
        self.errors.get(&(errno as i32)).copied().unwrap_or(0)
    }

    /// The middle of [`Self::connect_ns`].
    pub fn median_ns(&self) -> Option<u64> {
        let mut sorted = self.connect_ns.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}
