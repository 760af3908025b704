//! Many bytes by TCP from one namespace to another: what a path that loses full packets does not carry.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Namespace;

/// Longer than a path takes that has to learn its MTU, far below what a stalled one takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes what comes on a port of a namespace, both families, and says at its end how much it was. Until dropped.
#[derive(Debug)]
pub struct Sink {
    // Closing it wakes the thread, which then ends.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    pub fn start(namespace: &Namespace, port: u16) -> Result<Self> {
        let listener = namespace.run(|| {
            TcpListener::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))
                .with_context(|| format!("listen on port {port}"))
        })?;
        let (stop, stopped) = UnixStream::pair().context("make a pipe")?;
        let thread = std::thread::Builder::new()
            .name(format!("sink in {}", namespace.name()))
            .spawn(move || serve(&listener, &stopped.into()))
            .context("start a thread")?;
        Ok(Self { stop: Some(stop.into()), thread: Some(thread) })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            super::complain("the thread of a sink panicked");
        }
    }
}

fn serve(listener: &TcpListener, stopped: &OwnedFd) {
    loop {
        let mut fds = [
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            continue;
        }
        if fds[0].any().unwrap_or(true) {
            return;
        }
        // What goes wrong here the client notices: it hears nothing.
        drop(listener.accept().and_then(|(stream, _)| take(stream)));
    }
}

fn take(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return writeln!(stream, "{total}"),
            len => total += len,
        }
    }
}

/// Sends `bytes` bytes to a [`Sink`] from `namespace`, and waits until it has them.
pub fn send(namespace: &Namespace, to: SocketAddr, bytes: usize) -> Result<()> {
    namespace.run(|| {
        let mut stream =
            TcpStream::connect_timeout(&to, PATIENCE).with_context(|| format!("connect to {to}"))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&vec![0; bytes]).with_context(|| format!("send {bytes} bytes to {to}"))?;
        stream.shutdown(Shutdown::Write)?;
        let mut taken = String::new();
        stream.read_to_string(&mut taken).with_context(|| format!("hear how many bytes {to} has"))?;
        ensure!(taken.trim() == bytes.to_string(), "of {bytes} bytes {to} has {taken:?}");
        Ok(())
    })
}
