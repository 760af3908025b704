//! sock_diag(7): the sockets of one network namespace, and closing one (`SOCK_DESTROY`).

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::SockProtocol;
use portway_datapath::{Addr, Family, Port, Protocol};

use crate::netlink::{NLM_F_DUMP, Netlink, attribute, number};

// include/uapi/linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;

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

/// Sees the sockets of the namespace that the thread was in when it was opened.
#[derive(Debug)]
pub(super) struct Diag(Netlink);

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
        if errno == Errno::EBADMSG { Self::Malformed } else { Self::Refused(errno) }
    }
}

impl Diag {
    pub(super) fn open() -> Result<Self, DiagError> {
        Ok(Self(Netlink::open(SockProtocol::NetlinkSockDiag, PATIENCE)?))
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
        let listed = self.0.ask(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &request, |kind, body| {
            if kind == SOCK_DIAG_BY_FAMILY {
                each(Socket::parse(body, protocol).ok_or(Errno::EBADMSG)?);
            }
            Ok(())
        });
        Ok(listed?)
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
        Ok(self.0.ask(SOCK_DESTROY, 0, &request, |_, _| Ok(()))?)
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
    }
}
