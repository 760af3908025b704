//! How clients and servers of the tests speak: a line `<name> <client address>` from the server.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nix::errno::Errno;

use super::protocol::{Answer, Tally};

/// Far above what an answer takes on a busy machine, far below what a person waits for a test.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Reads the server's line.
pub fn greeted(stream: &mut TcpStream) -> io::Result<Answer> {
    // Byte by byte would cost a system call each; a server says nothing after its line until it is asked.
    let mut line = String::new();
    BufReader::new(Read::by_ref(stream)).read_line(&mut line)?;
    parse(&line, stream.peer_addr()?)
}

/// Lets no read wait longer than [`PATIENCE`].
pub fn patient(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))
}

/// Counts what came of one attempt.
pub fn note(tally: &mut Tally, answer: io::Result<Answer>) {
    match answer {
        Ok(answer) => *tally.by_name.entry(answer.name).or_default() += 1,
        Err(error) => *tally.errors.entry(errno(&error)).or_default() += 1,
    }
}

/// `<name> <client address>`.
pub fn parse(text: &str, peer: SocketAddr) -> io::Result<Answer> {
    let (name, client) = text.trim_end().split_once(' ').ok_or(ErrorKind::UnexpectedEof)?;
    let client = client.parse().map_err(|_| ErrorKind::InvalidData)?;
    Ok(Answer { name: name.to_owned(), client, peer })
}

/// The errno of a failed call; of what std noticed itself, the nearest one.
pub fn errno(error: &io::Error) -> i32 {
    match (error.raw_os_error(), error.kind()) {
        (Some(errno), _) => errno,
        (None, ErrorKind::TimedOut | ErrorKind::WouldBlock) => Errno::ETIMEDOUT as i32,
        (None, ErrorKind::UnexpectedEof) => Errno::ECONNRESET as i32,
        (None, _) => Errno::EIO as i32,
    }
}
