//! A load that goes on while something else happens: connections that are held, and new ones on a beat.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::conversation::{PATIENCE, errno, greeted, note, patient};
use super::protocol::{Answer, LoadTally};
use crate::harness::socket::reset_on_close;

/// Each held connection speaks once in this time.
const ROUND: Duration = Duration::from_secs(2);

/// A running load.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    held: JoinHandle<LoadTally>,
    new: JoinHandle<LoadTally>,
}

/// A connection that stays open.
struct Held {
    stream: TcpStream,
    dialled: SocketAddr,
    server: String,
}

impl Load {
    /// Opens the connections that are held before it returns.
    pub fn start(to: Vec<SocketAddr>, hold: u32, per_second: u32) -> io::Result<Self> {
        let opened = (0..hold).zip(to.iter().cycle()).map(|(_, to)| Held::open(*to));
        let all = opened.collect::<io::Result<Vec<_>>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_held, stop_new) = (Arc::clone(&stop), Arc::clone(&stop));
        Ok(Self {
            stop,
            held: std::thread::Builder::new().spawn(move || speak(all, &stop_held))?,
            new: std::thread::Builder::new().spawn(move || connect(&to, per_second, &stop_new))?,
        })
    }

    /// What came of it.
    pub fn end(self) -> io::Result<LoadTally> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = |_| io::Error::other("a thread of the load panicked");
        let (held, new) = (self.held.join().map_err(panicked)?, self.new.join().map_err(panicked)?);
        Ok(LoadTally { new: new.new, took_ms: new.took_ms, unmasked: new.unmasked + held.unmasked, ..held })
    }
}

impl Held {
    fn open(dialled: SocketAddr) -> io::Result<Self> {
        let (stream, answer) = dial(dialled)?;
        Ok(Self { stream, dialled, server: answer.name })
    }

    fn speak(&mut self) -> io::Result<Answer> {
        self.stream.write_all(b"again\n")?;
        greeted(&mut self.stream)
    }
}

fn dial(to: SocketAddr) -> io::Result<(TcpStream, Answer)> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    reset_on_close(&stream)?;
    patient(&stream)?;
    let answer = greeted(&mut stream)?;
    Ok((stream, answer))
}

/// Speaks on one connection after the other until told to stop, and then on each once more.
fn speak(mut all: Vec<Held>, stop: &AtomicBool) -> LoadTally {
    let mut tally = LoadTally { held: all.len() as u32, ..LoadTally::default() };
    let pause = ROUND / all.len().max(1) as u32;
    while !stop.load(Ordering::Relaxed) {
        all.retain_mut(|held| {
            if !stop.load(Ordering::Relaxed) {
                std::thread::sleep(pause);
            }
            exchange(held, &mut tally)
        });
        if all.is_empty() {
            std::thread::sleep(pause);
        }
    }
    all.retain_mut(|held| exchange(held, &mut tally));
    tally
}

/// Whether the connection lives on.
fn exchange(held: &mut Held, tally: &mut LoadTally) -> bool {
    let outcome = held.speak();
    if let Ok(answer) = &outcome {
        tally.strangers += u32::from(answer.name != held.server);
        tally.unmasked += u32::from(answer.peer != held.dialled);
    }
    let lives = outcome.is_ok();
    if !lives {
        tally.broken.push(held.dialled);
    }
    note(&mut tally.exchanges, outcome);
    lives
}

/// Connects to each of `to` in turn, on a beat that a slow connect does not move.
fn connect(to: &[SocketAddr], per_second: u32, stop: &AtomicBool) -> LoadTally {
    let mut tally = LoadTally::default();
    let start = Instant::now();
    for (n, to) in (0_u32..).zip(to.iter().cycle()) {
        if stop.load(Ordering::Relaxed) || per_second == 0 {
            break;
        }
        let due = start + Duration::from_secs_f64(f64::from(n) / f64::from(per_second));
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        match dial(*to) {
            Ok((_, answer)) => {
                tally.unmasked += u32::from(answer.peer != *to);
                *tally.new.by_name.entry(answer.name).or_default() += 1;
            }
            Err(error) => *tally.new.errors.entry(errno(&error)).or_default() += 1,
        }
    }
    tally.took_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    tally
}
