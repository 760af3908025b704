//! One path: a client that sends and a server that says when it has everything.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::bench::client::pin;
use crate::harness::Namespace;

pub(super) const PORT: u16 = 5001;

/// Far above what a message takes.
const PATIENCE: Duration = Duration::from_secs(10);
/// A round trip is a message of a byte and its answer.
const SMALL: (usize, u32) = (1, 500);
/// Throughput is that of a few messages of so many bytes, after one that does not count: a connection begins with a small
/// window, which is about round trips. Each round has a connection of its own, because one of them differs from the next
/// one on the same path by more than the paths do.
const LARGE: (usize, u32) = (16 << 20, 2);

/// Answers every message of a connection with a byte. The connection begins with the messages' length. It ends with the
/// process: a thread of a benchmark that waits costs nothing.
#[derive(Debug)]
pub(super) struct Server;

impl Server {
    pub(super) fn start(namespace: &Namespace) -> Result<Self> {
        let listener = namespace.run(|| {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).with_context(|| format!("listen on port {PORT}"))
        })?;
        std::thread::Builder::new().name("server".into()).spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                // What goes wrong here the client notices: it hears nothing.
                drop(std::thread::Builder::new().spawn(move || answer(stream)));
            }
        })?;
        Ok(Self)
    }
}

fn answer(mut stream: TcpStream) -> Result<()> {
    pin(1)?;
    stream.set_nodelay(true)?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(u64::from_le_bytes(length))?;
    let mut buffer = vec![0; length.min(1 << 18)];
    loop {
        let mut left = length;
        while left > 0 {
            let end = left.min(buffer.len());
            match stream.read(&mut buffer[..end])? {
                0 => return Ok(()),
                len => left -= len,
            }
        }
        stream.write_all(&[1])?;
    }
}

/// Where a client is and what it dials.
#[derive(Debug)]
pub(super) struct Path {
    client: Namespace,
    to: SocketAddr,
}

/// What was measured of a path, one element a round.
#[derive(Debug, Default)]
pub(super) struct Cost {
    pub(super) round_trip_ns: Vec<u64>,
    pub(super) bytes_per_second: Vec<u64>,
    cpu: Duration,
    bytes: u64,
}

impl Cost {
    /// Of the whole machine, while it did nothing else.
    pub(super) fn cpu_seconds_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9)
    }
}

impl Path {
    pub(super) fn new(client: &Namespace, to: SocketAddr) -> Self {
        Self { client: client.clone(), to }
    }

    fn open(&self, length: usize) -> Result<TcpStream> {
        let to = self.to;
        self.client.run(|| {
            let mut stream =
                TcpStream::connect_timeout(&to, PATIENCE).with_context(|| format!("connect to {to}"))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(&(length as u64).to_le_bytes())?;
            Ok(stream)
        })
    }
}

/// The middle of what `a` is of `b`, round by round: what else the machine does in a round falls on both.
pub(super) fn ratio(a: &[u64], b: &[u64]) -> f64 {
    let mut ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| *a as f64 / *b as f64).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures all of them in turn, `rounds` times, after a round that does not count; every other round in reverse.
pub(super) fn measure(paths: &mut [&mut Path], rounds: u32) -> Result<Vec<Cost>> {
    let mut small = paths.iter().map(|path| path.open(SMALL.0)).collect::<Result<Vec<_>>>()?;
    let payload = vec![0; LARGE.0];
    let mut costs: Vec<Cost> = paths.iter().map(|_| Cost::default()).collect();
    pin(0)?;
    for round in 0..=rounds {
        let mut turns: Vec<_> = small.iter_mut().zip(&*paths).zip(&mut costs).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for ((small, path), cost) in turns {
            let start = Instant::now();
            exchange(small, &payload[..SMALL.0], SMALL.1)?;
            let round_trips = start.elapsed();
            let large = &mut path.open(LARGE.0)?;
            exchange(large, &payload, 1)?;
            let (start, before) = (Instant::now(), busy()?);
            exchange(large, &payload, LARGE.1)?;
            let (took, cpu) = (start.elapsed(), busy()?.saturating_sub(before));
            if round == 0 {
                continue;
            }
            let bytes = LARGE.0 as u64 * u64::from(LARGE.1);
            cost.round_trip_ns.push((round_trips.as_nanos() / u128::from(SMALL.1)) as u64);
            cost.bytes_per_second.push((bytes as f64 / took.as_secs_f64()) as u64);
            cost.cpu += cpu;
            cost.bytes += bytes;
        }
    }
    Ok(costs)
}

fn exchange(stream: &mut TcpStream, message: &[u8], times: u32) -> Result<()> {
    let mut answer = [0];
    for _ in 0..times {
        stream.write_all(message)?;
        stream.read_exact(&mut answer)?;
    }
    Ok(())
}

/// What all processors have done so far, interrupts included: proc_stat(5), whose unit is 10 ms here.
fn busy() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
    ensure!(ticks.len() >= 7, "/proc/stat begins with {line:?}");
    // user, nice, system, (idle, iowait,) irq, softirq.
    let used = [0, 1, 2, 5, 6].into_iter().map(|column| ticks[column]).sum::<u64>();
    Ok(Duration::from_millis(used * 10))
}
