//! Backends by the dozen: one namespace that owns the addresses of many pods, and servers that say which of them a
//! client has reached.

use std::collections::BTreeSet;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::Ipv6RecvPacketInfo;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn6, recvmsg, sendmsg, setsockopt,
};

use super::probe::Protocol;
use super::{Namespace, canonical, dns, http, process};

/// Clients of tests speak at once; one that does not is gone.
const PATIENCE: Duration = Duration::from_secs(1);

/// Makes `owner` answer to `addresses`, which `routers` reach by the gateways given with them (one of each family).
/// No link has them as its own, as no pod of a test could have a hundred.
pub fn own(
    owner: &Namespace,
    addresses: &BTreeSet<IpAddr>,
    routers: &[(&Namespace, [IpAddr; 2])],
) -> Result<()> {
    let lines = |route: &dyn Fn(&IpAddr) -> String| addresses.iter().map(route).collect::<String>();
    ip_batch(owner, &lines(&|addr| format!("route add local {addr} dev lo\n")))?;
    // IPv6 lets a datagram leave from an address of a link alone, unless told otherwise.
    owner.sysctl("ipv6/ip_nonlocal_bind", "1")?;
    for (router, gateways) in routers {
        let gateway = |addr: &IpAddr| gateways.iter().find(|gateway| gateway.is_ipv4() == addr.is_ipv4());
        let via = |addr: &IpAddr| {
            gateway(addr).map_or_else(String::new, |via| format!("route add {addr} via {via}\n"))
        };
        ip_batch(router, &lines(&via))?;
    }
    Ok(())
}

fn ip_batch(namespace: &Namespace, lines: &str) -> Result<()> {
    let mut file = tempfile::NamedTempFile::new().context("make a file of routes")?;
    file.write_all(lines.as_bytes()).context("write the routes")?;
    let mut command = namespace.command("ip");
    process::output(command.arg("-batch").arg(file.path()))
        .with_context(|| format!("add routes in {}", namespace.name()))
        .map(drop)
}

/// Answers HTTP and DNS on every address of a namespace, until dropped.
///
/// The answer is `<address and port that was reached> <address and port of the client>`: the body of a GET, the text
/// of a TXT record. On a TCP port whoever begins with `GE` speaks HTTP, everybody else DNS: no query is so long.
#[derive(Debug)]
pub struct Backends {
    // Closing it wakes the thread, which then ends.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Backends {
    pub fn start(namespace: &Namespace, ports: &BTreeSet<(Protocol, u16)>) -> Result<Self> {
        let listeners = namespace
            .run(|| ports.iter().map(|&(protocol, port)| Listener::new(protocol, port)).collect())?;
        let (stop, stopped) = UnixStream::pair().context("make a pipe")?;
        let thread = std::thread::Builder::new()
            .name(format!("backends in {}", namespace.name()))
            .spawn(move || serve(listeners, &stopped.into()))
            .context("start a server thread")?;
        Ok(Self { stop: Some(stop.into()), thread: Some(thread) })
    }
}

impl Drop for Backends {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            super::complain("a thread of backends panicked");
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Udp(UdpSocket, u16),
}

impl Listener {
    fn new(protocol: Protocol, port: u16) -> Result<Self> {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        Ok(match protocol {
            Protocol::Tcp => {
                let listener = TcpListener::bind(any).with_context(|| format!("listen on port {port}"))?;
                listener.set_nonblocking(true)?;
                Self::Tcp(listener)
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind(any).with_context(|| format!("bind UDP port {port}"))?;
                socket.set_nonblocking(true)?;
                setsockopt(&socket, Ipv6RecvPacketInfo, &true).context("ask for IPV6_PKTINFO")?;
                Self::Udp(socket, port)
            }
        })
    }

    fn poll_fd(&self) -> PollFd<'_> {
        let fd = match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Udp(socket, _) => socket.as_fd(),
        };
        PollFd::new(fd, PollFlags::POLLIN)
    }

    /// Answers who is there. A client that went away meanwhile is no matter; what it lacks, it says itself.
    fn answer(&self) {
        match self {
            Self::Tcp(listener) => {
                while let Ok((stream, client)) = listener.accept() {
                    drop(converse(stream, client));
                }
            }
            Self::Udp(socket, port) => while let Ok(true) = answer_datagram(socket, *port) {},
        }
    }
}

fn serve(listeners: Vec<Listener>, stopped: &OwnedFd) {
    loop {
        let mut fds = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        fds.extend(listeners.iter().map(Listener::poll_fd));
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        if ready.first() == Some(&true) {
            return;
        }
        for (listener, _) in listeners.iter().zip(ready.iter().skip(1)).filter(|(_, ready)| **ready) {
            listener.answer();
        }
    }
}

fn converse(mut stream: TcpStream, client: SocketAddr) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let text = answer(stream.local_addr()?, client);
    let mut first = [0; 2];
    stream.peek(&mut first)?;
    if &first == b"GE" {
        return http::answer(&mut stream, &text);
    }
    let question = dns::read_message(&mut stream)?;
    match dns::answer(&question, &text) {
        Some(message) => dns::write_message(&mut stream, &message),
        None => Err(ErrorKind::InvalidData.into()),
    }
}

/// From the address that the question was sent to. Says whether there was one.
fn answer_datagram(socket: &UdpSocket, port: u16) -> nix::Result<bool> {
    let mut buffer = [0; 512];
    let mut space = nix::cmsg_space!(libc::in6_pktinfo);
    let (len, client, own) = {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let message =
            recvmsg::<SockaddrIn6>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty())?;
        let own = message.cmsgs()?.find_map(|control| {
            if let ControlMessageOwned::Ipv6PacketInfo(info) = control { Some(info.ipi6_addr) } else { None }
        });
        (message.bytes, message.address, own)
    };
    let (Some(client), Some(own)) = (client, own) else { return Ok(true) };
    let own_address = SocketAddrV6::new(own.s6_addr.into(), port, 0, 0).into();
    let question = buffer.get(..len).unwrap_or_default();
    let Some(message) = dns::answer(question, &answer(own_address, SocketAddrV6::from(client).into())) else {
        return Ok(true);
    };
    let info = libc::in6_pktinfo { ipi6_addr: own, ipi6_ifindex: 0 };
    let source = ControlMessage::Ipv6PacketInfo(&info);
    sendmsg(socket.as_raw_fd(), &[IoSlice::new(&message)], &[source], MsgFlags::empty(), Some(&client))?;
    Ok(true)
}

fn answer(own: SocketAddr, client: SocketAddr) -> String {
    format!("{} {}", canonical(own), canonical(client))
}
