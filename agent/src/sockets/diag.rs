//! sock_diag(7): the sockets of one network namespace, and closing one (`SOCK_DESTROY`).

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
};
use nix::sys::time::TimeVal;
use portway_datapath::{Addr, Family, Port, Protocol};

// include/uapi/linux/sock_diag.h, netlink.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;

// include/uapi/linux/inet_diag.h: `struct inet_diag_sockid`, `inet_diag_req_v2` (8 bytes, then the id) and
// `inet_diag_msg` (4 bytes, the id, 20 bytes).
const ID: usize = 48;
const REQUEST: usize = 8 + ID;
const MESSAGE: usize = 4 + ID + 20;
/// Attribute with `struct tcp_info`, and the bit that asks for it.
const INET_DIAG_INFO: u16 = 2;
const WANT_INFO: u8 = 1 << (INET_DIAG_INFO - 1);
/// `tcpi_last_data_recv` and `tcpi_last_ack_recv` of `struct tcp_info`, milliseconds.
const LAST_DATA_RECEIVED: usize = 52;
const LAST_ACK_RECEIVED: usize = 56;

/// `1 << TCP_…` of include/net/tcp_states.h: what a socket that connected can be in while its owner has it.
/// A UDP socket that is connected is ESTABLISHED.
const CONNECTED: u32 = ESTABLISHED | SYN_SENT | FIN_WAIT1 | FIN_WAIT2 | CLOSE_WAIT | LAST_ACK | CLOSING;
const ESTABLISHED: u32 = 1 << 1;
const SYN_SENT: u32 = 1 << 2;
const FIN_WAIT1: u32 = 1 << 4;
const FIN_WAIT2: u32 = 1 << 5;
const CLOSE_WAIT: u32 = 1 << 8;
const LAST_ACK: u32 = 1 << 9;
const CLOSING: u32 = 1 << 11;

/// Nobody has port 0, and no socket the cookie 2^56 and more.
const NOBODY: [u8; ID] = {
    let mut id = [0; ID];
    id[47] = 0xfe;
    id
};

/// A kernel that does not answer; it does so at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// A part of a dump is at most 32 KiB (`netlink_dump`).
const BUFFER: usize = 64 * 1024;

/// A netlink socket; it sees the namespace that the thread was in when it was opened.
#[derive(Debug)]
pub(super) struct Diag {
    fd: OwnedFd,
    sequence: u32,
}

/// A socket as the kernel names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Socket {
    pub(super) cookie: u64,
    pub(super) peer: (Addr, Port),
    /// For how long nothing has come from the peer, not even an acknowledgement; `None` for UDP.
    pub(super) silent_for: Option<Duration>,
    family: u8,
    protocol: Protocol,
    id: [u8; ID],
}

/// Why the kernel did not do something.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiagError {
    #[error("sock_diag: {0}")]
    Refused(Errno),
    #[error("sock_diag answers with something that is no answer")]
    Malformed,
}

impl From<Errno> for DiagError {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

impl Diag {
    pub(super) fn open() -> Result<Self, DiagError> {
        let (kind, flags) = (SockType::Datagram, SockFlag::SOCK_CLOEXEC);
        let fd = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkSockDiag)?;
        let patience = TimeVal::new(i64::try_from(PATIENCE.as_secs()).unwrap_or(i64::MAX), 0);
        setsockopt(&fd, ReceiveTimeout, &patience)?;
        Ok(Self { fd, sequence: 0 })
    }

    /// Sockets of this family and protocol that are connected to somebody; IPv6 ones may be connected to mapped
    /// addresses. The kernel walks all of its connections for that, also those of other namespaces (3 ms for an empty
    /// table of 262,144 buckets).
    pub(super) fn connected(
        &mut self,
        family: Family,
        protocol: Protocol,
        mut each: impl FnMut(Socket),
    ) -> Result<(), DiagError> {
        let info = if protocol == Protocol::TCP { WANT_INFO } else { 0 };
        let family = match family {
            Family::V4 => libc::AF_INET,
            Family::V6 => libc::AF_INET6,
        };
        let mut request = [0; REQUEST];
        request[..3].copy_from_slice(&[family as u8, protocol.number(), info]);
        request[4..8].copy_from_slice(&CONNECTED.to_ne_bytes());
        self.send(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, &request)?;
        self.answers(|kind, body| {
            if kind == SOCK_DIAG_BY_FAMILY {
                each(Socket::parse(body, protocol).ok_or(DiagError::Malformed)?);
            }
            Ok(())
        })
    }

    /// Closes a socket: its owner's calls fail with `ECONNABORTED`.
    ///
    /// # Errors
    /// `ENOENT`: it is not there. `EOPNOTSUPP`: the kernel lacks `CONFIG_INET_DIAG_DESTROY`.
    pub(super) fn destroy(&mut self, socket: &Socket) -> Result<(), DiagError> {
        let mut request = [0; REQUEST];
        request[..2].copy_from_slice(&[socket.family, socket.protocol.number()]);
        request[4..8].copy_from_slice(&CONNECTED.to_ne_bytes());
        request[8..].copy_from_slice(&socket.id);
        self.send(SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, &request)?;
        self.answers(|_, _| Ok(()))
    }

    /// Whether sockets of this protocol can be listed and closed here. Closes none: it asks for one that cannot be.
    pub(super) fn try_out(&mut self, protocol: Protocol) -> Result<(), DiagError> {
        // Without the protocol's module a destroy is ENOENT, too; a list tells it.
        self.connected(Family::V4, protocol, |_| {})?;
        let nobody = Socket {
            cookie: 0,
            peer: (Addr::ANY_V4, Port::new(0)),
            silent_for: None,
            family: libc::AF_INET as u8,
            protocol,
            id: NOBODY,
        };
        match self.destroy(&nobody) {
            Ok(()) | Err(DiagError::Refused(Errno::ENOENT | Errno::ESTALE)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8; REQUEST]) -> Result<(), DiagError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = [0; HEADER + REQUEST];
        message[..4].copy_from_slice(&((HEADER + REQUEST) as u32).to_ne_bytes());
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[6..8].copy_from_slice(&flags.to_ne_bytes());
        message[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        message[HEADER..].copy_from_slice(body);
        send(self.fd.as_raw_fd(), &message, MsgFlags::empty())?;
        Ok(())
    }

    /// The messages that answer the last request, up to its end.
    fn answers(
        &mut self,
        mut each: impl FnMut(u16, &[u8]) -> Result<(), DiagError>,
    ) -> Result<(), DiagError> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let len = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut rest = buffer.get(..len).ok_or(DiagError::Malformed)?;
            while !rest.is_empty() {
                let len = number(rest, 0).ok_or(DiagError::Malformed)? as usize;
                let message = rest.get(..len).ok_or(DiagError::Malformed)?;
                let body = message.get(HEADER..).ok_or(DiagError::Malformed)?;
                // Late answers to a request that was given up.
                let is_ours = number(message, 8) == Some(self.sequence);
                let kind = message.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
                match kind {
                    Some(NLMSG_ERROR) if is_ours => return failure(body),
                    // A dump's end has its errno.
                    Some(NLMSG_DONE) if is_ours => {
                        return if body.len() < size_of::<i32>() { Ok(()) } else { failure(body) };
                    }
                    Some(kind) if is_ours => each(kind, body)?,
                    Some(_) => {}
                    None => return Err(DiagError::Malformed),
                }
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

/// A negative errno, or 0.
fn failure(body: &[u8]) -> Result<(), DiagError> {
    match number(body, 0).ok_or(DiagError::Malformed)?.cast_signed() {
        0 => Ok(()),
        errno => Err(DiagError::Refused(Errno::from_raw(errno.wrapping_neg()))),
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + size_of::<u32>())?.try_into().ok().map(u32::from_ne_bytes)
}

impl Socket {
    /// `struct inet_diag_msg` and its attributes.
    fn parse(message: &[u8], protocol: Protocol) -> Option<Self> {
        let family = *message.first()?;
        let id: [u8; ID] = message.get(4..4 + ID)?.try_into().ok()?;
        let port = u16::from_be_bytes(id.get(2..4)?.try_into().ok()?);
        let addr: [u8; 16] = id.get(20..36)?.try_into().ok()?;
        let addr = if i32::from(family) == libc::AF_INET {
            Addr::v4(addr.first_chunk().copied()?)
        } else {
            Addr::v6(addr)
        };
        let cookie = u64::from(number(&id, 40)?) | u64::from(number(&id, 44)?) << 32;
        let info = attribute(message.get(MESSAGE..)?, INET_DIAG_INFO);
        Some(Self {
            cookie,
            peer: (addr, Port::new(port)),
            silent_for: info.and_then(|info| {
                let heard = number(info, LAST_DATA_RECEIVED)?.min(number(info, LAST_ACK_RECEIVED)?);
                Some(Duration::from_millis(heard.into()))
            }),
            family,
            protocol,
            id,
        })
    }
}

/// The payload of the first attribute of a kind.
fn attribute(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
        if u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?) == kind {
            return rest.get(4..len);
        }
        rest = rest.get(len.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

    use super::*;

    fn find(diag: &mut Diag, protocol: Protocol, peer: SocketAddr) -> Vec<Socket> {
        let mut found = Vec::new();
        let wanted = (Addr::from(peer.ip()), Port::new(peer.port()));
        diag.connected(Family::V4, protocol, |s| found.extend((s.peer == wanted).then_some(s))).unwrap();
        found
    }

    #[test]
    fn connected_sockets_are_found() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let _stream = TcpStream::connect(to).unwrap();
        let mut diag = Diag::open().unwrap();
        let found = find(&mut diag, Protocol::TCP, to);
        assert!(found.len() == 1 && found[0].cookie != 0, "{found:?}");
        assert!(found[0].silent_for.unwrap() < Duration::from_secs(60), "{found:?}");
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap();
        assert!(find(&mut diag, Protocol::UDP, to).is_empty());
        client.connect(to).unwrap();
        let found = find(&mut diag, Protocol::UDP, to);
        assert!(found.len() == 1 && found[0].cookie != 0, "{found:?}");
        assert_eq!(found[0].silent_for, None);
    }

    #[test]
    fn what_is_no_socket_is_not_parsed() {
        assert!(Socket::parse(&[0; MESSAGE - 1], Protocol::TCP).is_none());
        assert!(Socket::parse(&[0; MESSAGE], Protocol::TCP).is_some());
        // An attribute of no length does not hold up, nor one longer than the message.
        assert_eq!(attribute(&[0; 8], INET_DIAG_INFO), None);
        assert_eq!(attribute(&[9, 0, 2, 0, 1], INET_DIAG_INFO), None);
        assert_eq!(attribute(&[5, 0, 2, 0, 1], INET_DIAG_INFO), Some(&[1][..]));
    }
}
