//! Servers in pods: they answer every client with their own name and the client's address.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Namespace, canonical};

/// Answers TCP and UDP on one port of every address of a namespace, both families, until dropped.
///
/// The answer is `<name> <client address>` and a newline: at once for a TCP connection, then for each thing that it
/// says; for a datagram, one datagram.
#[derive(Debug)]
pub struct Server {
    // Closing it wakes the thread, which then ends.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(namespace: &Namespace, name: &str, port: u16) -> Result<Self> {
        let (tcp, udp) = namespace.run(|| {
            let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
            let tcp = TcpListener::bind(any).with_context(|| format!("listen on port {port}"))?;
            let udp = UdpSocket::bind(any).with_context(|| format!("bind UDP port {port}"))?;
            tcp.set_nonblocking(true)?;
            udp.set_nonblocking(true)?;
            Ok((tcp, udp))
        })?;
        let (stop, stopped) = UnixStream::pair().context("make a pipe")?;
        let name = name.to_owned();
        let thread = std::thread::Builder::new()
            .name(format!("server {name}"))
            .spawn(move || serve(&name, &tcp, &udp, &stopped.into()))
            .context("start a server thread")?;
        Ok(Self { stop: Some(stop.into()), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            super::complain("a server thread panicked");
        }
    }
}

fn serve(name: &str, tcp: &TcpListener, udp: &UdpSocket, stopped: &OwnedFd) {
    let mut clients: Vec<(TcpStream, SocketAddr)> = Vec::new();
    loop {
        let mut fds = vec![
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(tcp.as_fd(), PollFlags::POLLIN),
            PollFd::new(udp.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(clients.iter().map(|(stream, _)| PollFd::new(stream.as_fd(), PollFlags::POLLIN)));
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        drop(fds);
        if ready.first() == Some(&true) {
            return;
        }
        let mut ready_clients = ready.iter().skip(3);
        clients.retain_mut(|(stream, client)| match ready_clients.next() {
            Some(true) => converse(name, stream, *client),
            Some(false) | None => true,
        });
        while let Ok((mut stream, client)) = tcp.accept() {
            // A client that reset the connection meanwhile is gone.
            if stream.set_nonblocking(true).is_ok()
                && stream.write_all(answer(name, client).as_bytes()).is_ok()
            {
                clients.push((stream, client));
            }
        }
        let mut buffer = [0; 256];
        while let Ok((_, client)) = udp.recv_from(&mut buffer) {
            // An error here is the ICMP answer to an earlier datagram: that client is gone.
            drop(udp.send_to(answer(name, client).as_bytes(), client));
        }
    }
}

/// Whether the connection goes on.
fn converse(name: &str, stream: &mut TcpStream, client: SocketAddr) -> bool {
    let mut buffer = [0; 256];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(_) => stream.write_all(answer(name, client).as_bytes()).is_ok(),
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

fn answer(name: &str, client: SocketAddr) -> String {
    format!("{name} {}\n", canonical(client))
}
