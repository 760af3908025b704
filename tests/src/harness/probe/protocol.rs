//! What a probe is told and says: one JSON object a line.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
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
    Connect {
        protocol: Protocol,
        to: SocketAddr,
        keep: bool,
    },
    Again {
        socket: u32,
    },
    /// Waits for whatever comes on a socket.
    Hear {
        socket: u32,
        limit_ms: u64,
    },
    OpenUdp {
        v6: bool,
    },
    SendTo {
        socket: u32,
        to: SocketAddr,
    },
    SendMany {
        socket: u32,
        to: SocketAddr,
        count: u32,
    },
    Bind {
        protocol: Protocol,
        addr: SocketAddr,
    },
    Close {
        socket: u32,
    },
    Http {
        to: SocketAddr,
    },
    Dns {
        resolver: Resolver,
        to: SocketAddr,
    },
    /// A datagram of so many bytes from a connected socket.
    Datagram {
        to: SocketAddr,
        bytes: u16,
    },
    /// An echo request with so many bytes of payload.
    Ping {
        to: IpAddr,
        bytes: u16,
    },
    Connects {
        to: Vec<SocketAddr>,
        count: u32,
        per_second: u32,
    },
    /// Holds `hold` connections and makes `per_second` new ones a second until [`Self::EndLoad`].
    StartLoad {
        to: Vec<SocketAddr>,
        hold: u32,
        per_second: u32,
    },
    EndLoad,
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
    Ponged,
    Heard {
        bytes: usize,
    },
    Tally(Tally),
    Started,
    Load(LoadTally),
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

/// What came of a load: connections that are made and reset, and others that are held all the time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadTally {
    /// New connections.
    pub new: Tally,
    /// Connections held from the beginning.
    pub held: u32,
    /// Words exchanged on those; a connection that fails is counted once and then left alone.
    pub exchanges: Tally,
    /// What those had dialled that failed.
    pub broken: Vec<SocketAddr>,
    /// Answers on a held connection of another server than its first.
    pub strangers: u32,
    /// Answers on a socket whose peer is not the address that was dialled.
    pub unmasked: u32,
    /// Milliseconds from the first new connection to the last.
    pub took_ms: u64,
}

impl LoadTally {
    /// Everything that a client of the services noticed, in words; `None` where it noticed nothing.
    pub fn trouble(&self) -> Option<String> {
        let Self { new, held: _, exchanges, broken, strangers, unmasked, took_ms: _ } = self;
        let quiet = new.failures() == 0 && exchanges.failures() == 0 && *strangers == 0 && *unmasked == 0;
        (!quiet).then(|| {
            format!(
                "new connections: {}; held ones: {}, to {broken:?}; answers of another server: {strangers}; peers that show the backend: {unmasked}",
                new.errors_text(),
                exchanges.errors_text()
            )
        })
    }
}

impl LoadTally {
    /// New connections that were made, a second.
    pub fn per_second(&self) -> u64 {
        u64::from(self.new.answers()) * 1000 / self.took_ms.max(1)
    }

    /// What the clients saw, in a line.
    pub fn summary(&self) -> String {
        format!(
            "{} new connections ({} a second), {} held with {} exchanges; failed or broken: {}",
            self.new.answers() + self.new.failures(),
            self.per_second(),
            self.held,
            self.exchanges.answers(),
            self.trouble().as_deref().unwrap_or("0"),
        )
    }

    /// The clients noticed nothing, all servers answered, and it was a load to speak of.
    pub fn ensure_undisturbed(&self, servers: usize, held: u32, per_second: u32) -> Result<()> {
        let trouble = self.trouble();
        ensure!(trouble.is_none(), "the clients noticed: {trouble:?}");
        let Self { new, exchanges, .. } = self;
        ensure!(
            new.by_name.len() == servers && exchanges.by_name.len() == servers,
            "not all servers: {self:?}"
        );
        ensure!(self.held == held && exchanges.answers() >= held, "too little was held: {self:?}");
        ensure!(self.per_second() >= u64::from(per_second), "no load to speak of: {self:?}");
        Ok(())
    }
}

impl Tally {
    fn errors_text(&self) -> String {
        let each = self.errors.iter().map(|(errno, count)| format!("{count} {:?}", Errno::from_raw(*errno)));
        format!("{} answered, failed: [{}]", self.answers(), each.collect::<Vec<_>>().join(", "))
    }

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
