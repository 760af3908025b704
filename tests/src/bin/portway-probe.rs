//! A client of the tests: it does what it is told on standard input and says on standard output what came of it
//! (`portway_tests::harness::probe`). It runs in a namespace and a control group, as a process of a pod would.

use std::collections::HashMap;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use portway_tests::harness::probe::conversation::{PATIENCE, errno, greeted, note, parse, patient};
use portway_tests::harness::probe::load::Load;
use portway_tests::harness::probe::ping::ping;
use portway_tests::harness::probe::protocol::{Answer, Protocol, Reply, Request, Resolver, Tally};
use portway_tests::harness::socket::{netns_cookie, reset_on_close};
use portway_tests::harness::{dns, http};

fn main() -> anyhow::Result<()> {
    let mut sockets = Sockets::default();
    let mut output = io::stdout();
    for line in io::stdin().lock().lines() {
        let reply = match serde_json::from_str(&line?) {
            Ok(request) => {
                act(&mut sockets, request).unwrap_or_else(|error| Reply::Failed { errno: errno(&error) })
            }
            Err(error) => Reply::Mistake { text: error.to_string() },
        };
        let mut line = serde_json::to_string(&reply)?;
        line.push('\n');
        output.write_all(line.as_bytes())?;
        output.flush()?;
    }
    Ok(())
}

#[derive(Default)]
struct Sockets {
    open: HashMap<u32, Open>,
    next: u32,
    /// The number of the last DNS query.
    queries: u16,
    load: Option<Load>,
}

enum Open {
    Tcp(TcpStream),
    Udp(UdpSocket),
    /// Nothing but its port matters.
    Bound {
        _socket: Box<dyn std::any::Any>,
    },
}

impl Sockets {
    fn keep(&mut self, socket: Open) -> u32 {
        self.next += 1;
        self.open.insert(self.next, socket);
        self.next
    }
}

fn act(sockets: &mut Sockets, request: Request) -> io::Result<Reply> {
    let mistake = |what: &str| Reply::Mistake { text: format!("no such {what}") };
    Ok(match request {
        Request::Connect { protocol, to, keep } => {
            let (answer, open) = match protocol {
                Protocol::Tcp => {
                    let mut stream = connect(to)?;
                    (greeted(&mut stream)?, Open::Tcp(stream))
                }
                Protocol::Udp => {
                    let socket = udp_socket(to.is_ipv6())?;
                    socket.connect(to)?;
                    (exchange_connected(&socket)?, Open::Udp(socket))
                }
            };
            let socket = keep.then(|| sockets.keep(open));
            Reply::Answered { answer, socket }
        }
        Request::Again { socket } => {
            let answer = match sockets.open.get_mut(&socket) {
                Some(Open::Tcp(stream)) => {
                    stream.write_all(b"again\n")?;
                    greeted(stream)?
                }
                Some(Open::Udp(socket)) => exchange_connected(socket)?,
                Some(Open::Bound { .. }) | None => return Ok(mistake("connection")),
            };
            Reply::Answered { answer, socket: None }
        }
        Request::Hear { socket, limit_ms } => match sockets.open.get_mut(&socket) {
            Some(Open::Tcp(stream)) => {
                heard(stream, limit_ms, |stream, limit| stream.set_read_timeout(limit), Read::read)?
            }
            Some(Open::Udp(socket)) => {
                heard(socket, limit_ms, |socket, limit| socket.set_read_timeout(limit), |s, b| s.recv(b))?
            }
            Some(Open::Bound { .. }) | None => mistake("connection"),
        },
        Request::OpenUdp { v6 } => Reply::Opened { socket: sockets.keep(Open::Udp(udp_socket(v6)?)) },
        Request::SendTo { socket, to } => match sockets.open.get(&socket) {
            Some(Open::Udp(socket)) => Reply::Answered { answer: exchange(socket, to)?, socket: None },
            Some(Open::Tcp(_) | Open::Bound { .. }) | None => mistake("UDP socket"),
        },
        Request::SendMany { socket, to, count } => match sockets.open.get(&socket) {
            Some(Open::Udp(socket)) => {
                let mut tally = Tally::default();
                for _ in 0..count {
                    note(&mut tally, exchange(socket, to));
                }
                Reply::Tally(tally)
            }
            Some(Open::Tcp(_) | Open::Bound { .. }) | None => mistake("UDP socket"),
        },
        Request::Bind { protocol, addr } => {
            let socket: Box<dyn std::any::Any> = match protocol {
                Protocol::Tcp => Box::new(TcpListener::bind(addr)?),
                Protocol::Udp => Box::new(UdpSocket::bind(addr)?),
            };
            Reply::Opened { socket: sockets.keep(Open::Bound { _socket: socket }) }
        }
        Request::Close { socket } => match sockets.open.remove(&socket) {
            Some(_) => Reply::Closed,
            None => mistake("socket"),
        },
        Request::Http { to } => {
            let mut stream = connect(to)?;
            let peer = stream.peer_addr()?;
            Reply::Answered { answer: parse(&http::get(&mut stream, to)?, peer)?, socket: None }
        }
        Request::Dns { resolver, to } => {
            sockets.queries = sockets.queries.wrapping_add(1);
            Reply::Answered { answer: ask(resolver, sockets.queries, to)?, socket: None }
        }
        Request::Datagram { to, bytes } => {
            let socket = udp_socket(to.is_ipv6())?;
            socket.connect(to)?;
            socket.send(&vec![0; bytes.into()])?;
            Reply::Answered { answer: hear_connected(&socket)?, socket: None }
        }
        Request::Ping { to, bytes } => {
            ping(to, bytes)?;
            Reply::Ponged
        }
        Request::Connects { to, count, per_second } => Reply::Tally(connects(&to, count, per_second)),
        Request::StartLoad { to, hold, per_second } => {
            sockets.load = Some(Load::start(to, hold, per_second)?);
            Reply::Started
        }
        Request::EndLoad => match sockets.load.take() {
            Some(load) => Reply::Load(load.end()?),
            None => mistake("load"),
        },
        Request::NetnsCookie => Reply::Cookie { cookie: netns_cookie(&udp_socket(false)?)? },
    })
}

/// What comes within the limit. The end of a stream is an error, as a reset is.
fn heard<S>(
    socket: &mut S,
    limit_ms: u64,
    set_limit: fn(&S, Option<Duration>) -> io::Result<()>,
    read: fn(&mut S, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Reply> {
    set_limit(socket, Some(Duration::from_millis(limit_ms)))?;
    let read = read(socket, &mut [0; 256]);
    set_limit(socket, Some(PATIENCE))?;
    match read? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        bytes => Ok(Reply::Heard { bytes }),
    }
}

/// Connects to each of `to` in turn, on a beat that a slow connect does not move.
fn connects(to: &[SocketAddr], count: u32, per_second: u32) -> Tally {
    let mut tally = Tally::default();
    let start = Instant::now();
    for (n, to) in (0..count).zip(to.iter().cycle()) {
        if per_second > 0 {
            let due = start + Duration::from_secs_f64(f64::from(n) / f64::from(per_second));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let before = Instant::now();
        let connected = TcpStream::connect(to);
        let took = before.elapsed();
        let answer = connected.and_then(|mut stream| {
            reset_on_close(&stream)?;
            patient(&stream)?;
            greeted(&mut stream)
        });
        if answer.is_ok() {
            tally.connect_ns.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
        note(&mut tally, answer);
    }
    tally
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    patient(&stream)?;
    Ok(stream)
}

fn udp_socket(v6: bool) -> io::Result<UdpSocket> {
    let any = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn exchange_connected(socket: &UdpSocket) -> io::Result<Answer> {
    socket.send(b"hello")?;
    hear_connected(socket)
}

fn hear_connected(socket: &UdpSocket) -> io::Result<Answer> {
    let mut buffer = [0; 256];
    let len = socket.recv(&mut buffer)?;
    parse(&String::from_utf8_lossy(buffer.get(..len).unwrap_or_default()), socket.peer_addr()?)
}

fn exchange(socket: &UdpSocket, to: SocketAddr) -> io::Result<Answer> {
    socket.send_to(b"hello", to)?;
    let mut buffer = [0; 256];
    let (len, source) = socket.recv_from(&mut buffer)?;
    parse(&String::from_utf8_lossy(buffer.get(..len).unwrap_or_default()), source)
}

/// One DNS query, on a socket of its own.
fn ask(resolver: Resolver, id: u16, to: SocketAddr) -> io::Result<Answer> {
    let query = dns::query(id);
    let mut buffer = [0; 512];
    let (message, peer) = match resolver {
        Resolver::Tcp => {
            let mut stream = connect(to)?;
            let peer = stream.peer_addr()?;
            dns::write_message(&mut stream, &query)?;
            (dns::read_message(&mut stream)?, peer)
        }
        Resolver::ConnectedUdp => {
            let socket = udp_socket(to.is_ipv6())?;
            socket.connect(to)?;
            socket.send(&query)?;
            let len = socket.recv(&mut buffer)?;
            (buffer.get(..len).unwrap_or_default().to_vec(), socket.peer_addr()?)
        }
        Resolver::Udp => {
            let socket = udp_socket(to.is_ipv6())?;
            socket.send_to(&query, to)?;
            let (len, source) = socket.recv_from(&mut buffer)?;
            (buffer.get(..len).unwrap_or_default().to_vec(), source)
        }
    };
    parse(&dns::read_answer(id, &message)?, peer)
}
