//! What the client processes of the benchmarks do: they run in a namespace and a control group, are told what to
//! measure by their arguments and standard input, and say what they measured in one JSON line.

use std::io::{BufRead, BufReader, ErrorKind, Read as _};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, connect, listen, setsockopt, socket,
    sockopt,
};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::harness::socket::reset_on_close;

/// Longer than anything a benchmark waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nanoseconds of connects, to services and directly, in the order in which they were made.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Paired {
    pub service_ns: Vec<u64>,
    pub direct_ns: Vec<u64>,
}

/// Connects `rounds` times 500 to the services in turn and 500 to `direct`, alternating. A socket belongs to the
/// control group that its maker is in, so each round makes the direct ones outside `hooked`, the others inside.
pub fn paired(
    hooked: &Path,
    outside: &Path,
    services: &[SocketAddr],
    direct: SocketAddr,
    rounds: u32,
) -> Result<Paired> {
    const BATCH: usize = 500;
    let mut paired = Paired::default();
    let mut services = services.iter().cycle();
    for _ in 0..rounds {
        join(outside)?;
        let plain: Vec<OwnedFd> = (0..BATCH).map(|_| tcp_socket()).collect::<Result<_>>()?;
        join(hooked)?;
        let hooked: Vec<OwnedFd> = (0..BATCH).map(|_| tcp_socket()).collect::<Result<_>>()?;
        for (plain, hooked) in plain.into_iter().zip(hooked) {
            let to = services.next().context("no services to connect to")?;
            paired.service_ns.push(timed_connect(hooked, *to)?);
            paired.direct_ns.push(timed_connect(plain, direct)?);
        }
    }
    Ok(paired)
}

/// Reads targets from standard input, one a line, and connects to each until it succeeds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sweep {
    /// Nanoseconds on the monotonic clock.
    pub started: u64,
    pub finished: u64,
    /// Attempts that failed before their target answered.
    pub failures: u64,
}

pub fn sweep(targets: &[SocketAddr]) -> Result<Sweep> {
    let started = monotonic()?;
    let mut failures = 0;
    for target in targets {
        let begin = Instant::now();
        loop {
            match try_connect(tcp_socket()?, *target) {
                Ok(()) => break,
                Err(errno) if begin.elapsed() > PATIENCE => bail!("{target} does not answer: {errno}"),
                // Nothing to wait on: the service is not there until it is.
                Err(_) => failures += 1,
            }
        }
    }
    Ok(Sweep { started, finished: monotonic()?, failures })
}

/// Connects to `target` until the server there says it is `name`; the time on the monotonic clock when it did.
pub fn await_name(target: SocketAddr, name: &str) -> Result<u64> {
    let begin = Instant::now();
    loop {
        match greeting(target) {
            Ok(greeting) if greeting.split(' ').next() == Some(name) => return monotonic(),
            Ok(_) | Err(_) if begin.elapsed() < PATIENCE => {}
            Ok(greeting) => bail!("{target} is still {greeting:?}, not {name}"),
            Err(error) => return Err(error).with_context(|| format!("{target} does not answer")),
        }
    }
}

/// Accepts connections and drops them, until killed.
pub fn sink(at: SocketAddr) -> Result<()> {
    pin(1)?;
    let listener = tcp_socket()?;
    bind(listener.as_raw_fd(), &SockaddrIn::from(v4(at)?)).with_context(|| format!("bind {at}"))?;
    // A connection that its client has reset waits in the queue all the same; a full queue costs a client a second.
    listen(&listener, Backlog::MAXCONN).with_context(|| format!("listen on {at}"))?;
    let listener = TcpListener::from(listener);
    loop {
        match listener.accept() {
            Ok((stream, _)) => drop(stream),
            // The client has reset it already.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error).context("accept"),
        }
    }
}

/// The targets on standard input, one a line.
pub fn targets() -> Result<Vec<SocketAddr>> {
    std::io::stdin()
        .lock()
        .lines()
        .map(|line| {
            let line = line?;
            line.parse().with_context(|| format!("{line:?} is no address with a port"))
        })
        .collect()
}

/// Keeps this process on one processor, where there are several.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    match sched_setaffinity(Pid::from_raw(0), &set) {
        Ok(()) | Err(Errno::EINVAL) => Ok(()),
        Err(errno) => Err(errno).with_context(|| format!("run on processor {cpu}")),
    }
}

/// Nanoseconds on the monotonic clock, which all processes share.
pub fn monotonic() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// Where the tests' own control groups are: outside of all hooks.
pub fn own_cgroup() -> Result<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).context("no unified control group")?;
    Ok(crate::harness::cgroup::unified_hierarchy()?.join(path))
}

fn join(cgroup: &Path) -> Result<()> {
    std::fs::write(cgroup.join("cgroup.procs"), "0").with_context(|| format!("join {}", cgroup.display()))
}

fn tcp_socket() -> Result<OwnedFd> {
    Ok(socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}

fn timed_connect(socket: OwnedFd, to: SocketAddr) -> Result<u64> {
    let to_address = SockaddrIn::from(v4(to)?);
    let before = Instant::now();
    let result = connect(socket.as_raw_fd(), &to_address);
    let took = before.elapsed();
    result.with_context(|| format!("connect to {to}"))?;
    reset(&socket)?;
    Ok(took.as_nanos() as u64)
}

fn try_connect(socket: OwnedFd, to: SocketAddr) -> Result<(), Errno> {
    connect(socket.as_raw_fd(), &SockaddrIn::from(v4(to)?))?;
    reset(&socket)
}

/// The benchmarks' addresses are all of IPv4.
fn v4(addr: SocketAddr) -> Result<SocketAddrV4, Errno> {
    match addr {
        SocketAddr::V4(v4) => Ok(v4),
        SocketAddr::V6(_) => Err(Errno::EAFNOSUPPORT),
    }
}

/// Closing it sends a reset: no TIME_WAIT uses the ports up.
fn reset(socket: &OwnedFd) -> Result<(), Errno> {
    setsockopt(socket, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })
}

fn greeting(to: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(1))?;
    reset_on_close(&stream)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut line = String::new();
    BufReader::new(stream.by_ref()).read_line(&mut line)?;
    ensure!(!line.is_empty(), "{to} said nothing");
    Ok(line)
}
