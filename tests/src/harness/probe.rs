//! Clients: a helper process in a namespace and a control group, told what to do line by line.

pub mod conversation;
pub mod load;
pub mod ping;
pub mod protocol;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;

pub use protocol::{Answer, LoadTally, Protocol, Resolver, Tally};
use protocol::{Reply, Request};

use super::{Cgroup, Namespace, Process, eventually};

/// What came of a connection or a datagram.
pub type Outcome = Result<Answer, Errno>;

/// A client process. It ends with this guard.
#[derive(Debug)]
pub struct Probe {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    // Dropped after the pipes, whose end tells it to go.
    process: Process,
}

/// A socket that a probe keeps open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket(u32);

impl Probe {
    /// Starts `portway-probe` in `namespace`, and in the control group `cgroup` if there is one.
    pub fn start(namespace: &Namespace, cgroup: Option<&Path>) -> Result<Self> {
        let mut command = namespace.command(super::binary("portway-probe")?);
        if let Some(cgroup) = cgroup {
            Cgroup::place(cgroup, &mut command)?;
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&format!("probe in {}", namespace.name()), command)?;
        let input = process.take_stdin().context("the probe has no input")?;
        let output = BufReader::new(process.take_stdout().context("the probe has no output")?);
        Ok(Self { input, output, process })
    }

    /// Connects by TCP, reads who answers, closes.
    pub fn tcp(&mut self, to: impl ToAddress) -> Result<Outcome> {
        self.answer(&Request::Connect { protocol: Protocol::Tcp, to: to.to_address()?, keep: false })
    }

    /// Connects a UDP socket, sends a datagram, reads who answers, closes.
    pub fn udp(&mut self, to: impl ToAddress) -> Result<Outcome> {
        self.answer(&Request::Connect { protocol: Protocol::Udp, to: to.to_address()?, keep: false })
    }

    /// As [`Self::udp`], with a datagram of `bytes`.
    pub fn udp_large(&mut self, to: impl ToAddress, bytes: u16) -> Result<Outcome> {
        self.answer(&Request::Datagram { to: to.to_address()?, bytes })
    }

    /// Gets `/` from an HTTP server of [`super::Backends`].
    pub fn http(&mut self, to: impl ToAddress) -> Result<Outcome> {
        self.answer(&Request::Http { to: to.to_address()? })
    }

    /// Asks a DNS server of [`super::Backends`].
    pub fn dns(&mut self, resolver: Resolver, to: impl ToAddress) -> Result<Outcome> {
        self.answer(&Request::Dns { resolver, to: to.to_address()? })
    }

    /// Sends an echo request with `bytes` of payload and waits for the reply of that very address.
    pub fn ping(&mut self, to: IpAddr, bytes: u16) -> Result<Result<(), Errno>> {
        let request = Request::Ping { to, bytes };
        Ok(match self.ask(&request)? {
            Err(errno) => Err(errno),
            Ok(reply) => {
                ensure!(matches!(reply, Reply::Ponged), "{request:?}: {reply:?}");
                Ok(())
            }
        })
    }

    /// As [`Self::tcp`] and [`Self::udp`], but the socket stays open.
    pub fn connect(&mut self, protocol: Protocol, to: impl ToAddress) -> Result<(Socket, Answer)> {
        let to = to.to_address()?;
        let reply = self.ask(&Request::Connect { protocol, to, keep: true })?;
        let Ok(Reply::Answered { answer, socket: Some(socket) }) = reply else {
            bail!("connect to {to} by {protocol:?}: {reply:?}");
        };
        Ok((Socket(socket), answer))
    }

    /// Sends a line on a kept connection and reads who answers.
    pub fn again(&mut self, socket: Socket) -> Result<Outcome> {
        self.answer(&Request::Again { socket: socket.0 })
    }

    /// Waits on a kept connection for whatever comes, while the caller does something else, until
    /// [`Self::finish_hearing`].
    pub fn start_hearing(&mut self, socket: Socket, limit: Duration) -> Result<()> {
        let limit_ms = u64::try_from(limit.as_millis())?;
        self.say(&Request::Hear { socket: socket.0, limit_ms })
    }

    /// What ended the wait: `EAGAIN` where nothing came. Something that came is an error.
    pub fn finish_hearing(&mut self) -> Result<Errno> {
        match self.hear()? {
            Err(errno) => Ok(errno),
            Ok(reply) => bail!("waiting for nothing: {reply:?}"),
        }
    }

    /// An unconnected UDP socket: IPv6 (which sends to mapped addresses too) where `v6`.
    pub fn open_udp(&mut self, v6: bool) -> Result<Socket> {
        self.opened(&Request::OpenUdp { v6 })?.context("open a UDP socket")
    }

    /// Sends one datagram from an unconnected socket and reads who answers.
    pub fn send_to(&mut self, socket: Socket, to: impl ToAddress) -> Result<Outcome> {
        self.answer(&Request::SendTo { socket: socket.0, to: to.to_address()? })
    }

    /// [`Self::send_to`] `count` times.
    pub fn send_many(&mut self, socket: Socket, to: impl ToAddress, count: u32) -> Result<Tally> {
        self.say(&Request::SendMany { socket: socket.0, to: to.to_address()?, count })?;
        self.finish_connects()
    }

    /// Binds (and, for TCP, listens): the socket is held until [`Self::close`].
    pub fn bind(&mut self, protocol: Protocol, to: impl ToAddress) -> Result<Result<Socket, Errno>> {
        self.opened(&Request::Bind { protocol, addr: to.to_address()? })
    }

    pub fn close(&mut self, socket: Socket) -> Result<()> {
        let reply = self.ask(&Request::Close { socket: socket.0 })?;
        ensure!(matches!(reply, Ok(Reply::Closed)), "close: {reply:?}");
        Ok(())
    }

    /// Connects by TCP `count` times, reads who answers, closes with a reset. `per_second` 0 means without pause.
    pub fn connects(&mut self, to: &[SocketAddr], count: u32, per_second: u32) -> Result<Tally> {
        self.start_connects(to, count, per_second)?;
        self.finish_connects()
    }

    /// Who answers 40 connects: names of servers, and of errors where there are any.
    pub fn servers(&mut self, to: impl ToAddress) -> Result<BTreeSet<String>> {
        let tally = self.connects(&[to.to_address()?], 40, 0)?;
        let errors = tally.errors.keys().map(|&errno| format!("{:?}", Errno::from_raw(errno)));
        Ok(tally.by_name.into_keys().chain(errors).collect())
    }

    /// As [`Self::servers`], with 40 connected UDP sockets.
    pub fn udp_servers(&mut self, to: impl ToAddress) -> Result<BTreeSet<String>> {
        let to = to.to_address()?;
        (0..40)
            .map(|_| Ok(self.udp(to)?.map_or_else(|errno| format!("{errno:?}"), |answer| answer.name)))
            .collect()
    }

    /// Waits until [`Self::servers`] are exactly `names`.
    pub fn wait_servers(&mut self, to: impl ToAddress, names: &[&str]) -> Result<()> {
        let to = to.to_address()?;
        let wanted: BTreeSet<String> = names.iter().map(|&name| name.into()).collect();
        eventually(Duration::from_secs(5), &format!("{to} to be answered by {wanted:?}"), || {
            let servers = self.servers(to)?;
            ensure!(servers == wanted, "it is answered by {servers:?}");
            Ok(())
        })
    }

    /// [`Self::connects`] that goes on while the caller does something else, until [`Self::finish_connects`].
    pub fn start_connects(&mut self, to: &[SocketAddr], count: u32, per_second: u32) -> Result<()> {
        self.say(&Request::Connects { to: to.to_vec(), count, per_second })
    }

    pub fn finish_connects(&mut self) -> Result<Tally> {
        let reply = self.hear()?;
        let Ok(Reply::Tally(tally)) = reply else { bail!("connects: {reply:?}") };
        Ok(tally)
    }

    /// Opens `hold` connections to the addresses in turn, and then makes `per_second` new ones a second and speaks on
    /// the held ones by and by, until [`Self::end_load`].
    pub fn start_load(&mut self, to: &[SocketAddr], hold: u32, per_second: u32) -> Result<()> {
        let reply = self.ask(&Request::StartLoad { to: to.to_vec(), hold, per_second })?;
        ensure!(matches!(reply, Ok(Reply::Started)), "start the load: {reply:?}");
        Ok(())
    }

    /// Speaks on each held connection once more, and ends the load.
    pub fn end_load(&mut self) -> Result<LoadTally> {
        let reply = self.ask(&Request::EndLoad)?;
        let Ok(Reply::Load(tally)) = reply else { bail!("end the load: {reply:?}") };
        Ok(tally)
    }

    /// The cookie of its network namespace, as the programs see it.
    pub fn netns_cookie(&mut self) -> Result<u64> {
        let reply = self.ask(&Request::NetnsCookie)?;
        let Ok(Reply::Cookie { cookie }) = reply else { bail!("namespace cookie: {reply:?}") };
        Ok(cookie)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    fn answer(&mut self, request: &Request) -> Result<Outcome> {
        Ok(match self.ask(request)? {
            Err(errno) => Err(errno),
            Ok(reply) => {
                let Reply::Answered { answer, .. } = reply else { bail!("{request:?}: {reply:?}") };
                Ok(answer)
            }
        })
    }

    fn opened(&mut self, request: &Request) -> Result<Result<Socket, Errno>> {
        Ok(match self.ask(request)? {
            Err(errno) => Err(errno),
            Ok(reply) => {
                let Reply::Opened { socket } = reply else { bail!("{request:?}: {reply:?}") };
                Ok(Socket(socket))
            }
        })
    }

    fn ask(&mut self, request: &Request) -> Result<Result<Reply, Errno>> {
        self.say(request)?;
        self.hear()
    }

    fn say(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        self.input.write_all(line.as_bytes()).context("speak to the probe")
    }

    fn hear(&mut self) -> Result<Result<Reply, Errno>> {
        let mut line = String::new();
        if self.output.read_line(&mut line).context("hear the probe")? == 0 {
            bail!("the probe went away");
        }
        let reply = serde_json::from_str(&line).with_context(|| format!("the probe said {line:?}"))?;
        Ok(if let Reply::Failed { errno } = reply { Err(Errno::from_raw(errno)) } else { Ok(reply) })
    }
}

/// `"10.96.0.1:80"`, or an address.
pub trait ToAddress {
    fn to_address(&self) -> Result<SocketAddr>;
}

impl ToAddress for SocketAddr {
    fn to_address(&self) -> Result<SocketAddr> {
        Ok(*self)
    }
}

impl ToAddress for &str {
    fn to_address(&self) -> Result<SocketAddr> {
        self.parse().with_context(|| format!("{self:?} is not an address and a port"))
    }
}

impl ToAddress for (IpAddr, u16) {
    fn to_address(&self) -> Result<SocketAddr> {
        Ok((*self).into())
    }
}
