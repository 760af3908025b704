use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use portway_datapath::{Family, Protocol};

/// Frontends without backends, of the ranges for documentation (RFC 5737, RFC 3849).
pub(super) const VIP_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const VIP_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub(super) const VIP_PORT: u16 = 9;
/// A NodePort, and one that no service has.
pub(super) const NODE_PORT: u16 = 30_001;
pub(super) const FREE_PORT: u16 = 30_002;

/// A call whose errno is part of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    pub call: FrontendUse,
    pub protocol: Protocol,
    /// The family of the frontend.
    pub family: Family,
    /// Whether an IPv6 socket makes the call, for an IPv4 frontend by its mapped address.
    pub v6_socket: bool,
}

/// What is done with a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontendUse {
    /// connect(2) to one without backends.
    Connect,
    /// sendto(2) on an unconnected socket to one without backends.
    Send,
    /// bind(2) to a NodePort.
    BindNodePort,
    /// bind(2) to a port of the NodePort range that no service has.
    BindFreePort,
}

impl Check {
    /// In the order in which they are made.
    pub fn all() -> impl Iterator<Item = Self> {
        use FrontendUse::{BindFreePort, BindNodePort, Connect, Send};
        let calls = [
            (Connect, Protocol::TCP),
            (Connect, Protocol::UDP),
            (Send, Protocol::UDP),
            (BindNodePort, Protocol::TCP),
            (BindNodePort, Protocol::UDP),
            (BindFreePort, Protocol::TCP),
        ];
        let sockets = [(Family::V4, false), (Family::V6, true), (Family::V4, true)];
        sockets.into_iter().flat_map(move |(family, v6_socket)| {
            calls.into_iter().map(move |(call, protocol)| Self { call, protocol, family, v6_socket })
        })
    }

    /// The errno of the contract; 0 for success.
    pub fn expected(&self) -> i32 {
        match self.call {
            FrontendUse::Connect | FrontendUse::Send => libc::ECONNREFUSED,
            FrontendUse::BindNodePort => libc::EADDRINUSE,
            FrontendUse::BindFreePort => 0,
        }
    }

    pub fn needs_ipv6(&self) -> bool {
        self.v6_socket
    }

    /// Makes the call. Its errno, 0 for success.
    pub(super) fn make(&self) -> io::Result<i32> {
        let any = SocketAddr::new(self.address(Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED), 0);
        let vip = SocketAddr::new(self.address(VIP_V4, VIP_V6), VIP_PORT);
        let (any_node_port, any_free_port) =
            (SocketAddr::new(any.ip(), NODE_PORT), SocketAddr::new(any.ip(), FREE_PORT));
        let is_tcp = self.protocol == Protocol::TCP;
        let made = match self.call {
            FrontendUse::Connect if is_tcp => TcpStream::connect(vip).map(drop),
            FrontendUse::Connect => UdpSocket::bind(any).and_then(|socket| socket.connect(vip)),
            FrontendUse::Send => UdpSocket::bind(any).and_then(|socket| socket.send_to(b"x", vip)).map(drop),
            FrontendUse::BindNodePort if is_tcp => TcpListener::bind(any_node_port).map(drop),
            FrontendUse::BindNodePort => UdpSocket::bind(any_node_port).map(drop),
            FrontendUse::BindFreePort if is_tcp => TcpListener::bind(any_free_port).map(drop),
            FrontendUse::BindFreePort => UdpSocket::bind(any_free_port).map(drop),
        };
        match made {
            Ok(()) => Ok(0),
            Err(e) => e.raw_os_error().ok_or(e),
        }
    }

    fn address(&self, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
        match self.family {
            Family::V4 if self.v6_socket => v4.to_ipv6_mapped().into(),
            Family::V4 => v4.into(),
            Family::V6 => v6.into(),
        }
    }
}

impl fmt::Display for Check {
    /// One word, as the child says it: `connect-udp-v4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = match self.call {
            FrontendUse::Connect => "connect",
            FrontendUse::Send => "send",
            FrontendUse::BindNodePort => "bind-node-port",
            FrontendUse::BindFreePort => "bind-free-port",
        };
        let protocol = if self.protocol == Protocol::TCP { "tcp" } else { "udp" };
        let family = match self.family {
            Family::V4 if self.v6_socket => "v4-mapped",
            Family::V4 => "v4",
            Family::V6 => "v6",
        };
        write!(f, "{call}-{protocol}-{family}")
    }
}
