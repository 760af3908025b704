//! Whether kube-proxy, or what it left, still handles the same services in this network namespace.
//!
//! Each question names one object, so that it costs the same however many rules there are.

#![expect(unsafe_code, reason = "netfilter is asked by sockets that std does not have")]

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// What is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::app) enum Rules {
    /// Mode nftables: a table of its own.
    Nftables,
    /// Mode iptables, over nftables or by the old system calls.
    Iptables,
    /// Mode IPVS: an interface that has every service address.
    Ipvs,
}

/// The chain that kube-proxy alone makes; the kubelet has others that begin with `KUBE-`.
const CHAIN: &CStr = c"KUBE-SERVICES";

/// Families of include/uapi/linux/netfilter.h.
const FAMILIES: [u8; 2] = [2, 10];

/// Asks the kernel. Keeps what is needed to do it cheaply.
pub(in crate::app) struct Netfilter {
    /// `None` where the kernel has no nfnetlink.
    socket: Option<OwnedFd>,
    legacy: [Legacy; 2],
}

/// A table of the old system calls. It can be read only as a whole, so it is when its size changed.
#[derive(Clone, Copy, Default)]
struct Legacy {
    entries: u32,
    size: u32,
    has_chain: bool,
}

impl Netfilter {
    pub(in crate::app) fn new() -> Self {
        Self { socket: open(libc::AF_NETLINK, libc::NETLINK_NETFILTER).ok(), legacy: [Legacy::default(); 2] }
    }

    /// What of kube-proxy is in the namespace of the calling thread (of the process, for the old system calls).
    ///
    /// # Errors
    /// The kernel refused to answer.
    pub(in crate::app) fn look(&mut self) -> io::Result<Vec<Rules>> {
        let mut found = Vec::new();
        if self.has_nftables()? {
            found.push(Rules::Nftables);
        }
        if self.has_nft_chain()? || self.has_legacy_chain()? {
            found.push(Rules::Iptables);
        }
        // SAFETY: the name is NUL-terminated.
        if unsafe { libc::if_nametoindex(c"kube-ipvs0".as_ptr()) } != 0 {
            found.push(Rules::Ipvs);
        }
        Ok(found)
    }

    fn has_nftables(&self) -> io::Result<bool> {
        /// `NFT_MSG_GETTABLE`, `NFTA_TABLE_NAME` of include/uapi/linux/netfilter/nf_tables.h.
        const GET_TABLE: u16 = 1;
        const NAME: u16 = 1;
        self.any_family(GET_TABLE, &[(NAME, c"kube-proxy")])
    }

    fn has_nft_chain(&self) -> io::Result<bool> {
        /// `NFT_MSG_GETCHAIN`, `NFTA_CHAIN_TABLE` and `NFTA_CHAIN_NAME`.
        const GET_CHAIN: u16 = 4;
        const TABLE: u16 = 1;
        const NAME: u16 = 3;
        self.any_family(GET_CHAIN, &[(TABLE, c"nat"), (NAME, CHAIN)])
    }

    fn any_family(&self, message: u16, attributes: &[(u16, &CStr)]) -> io::Result<bool> {
        let Some(socket) = &self.socket else { return Ok(false) };
        for family in FAMILIES {
            if exists(socket, message, family, attributes)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_legacy_chain(&mut self) -> io::Result<bool> {
        let mut found = false;
        for (legacy, (list, family, level)) in self.legacy.iter_mut().zip([
            ("/proc/self/net/ip_tables_names", libc::AF_INET, libc::IPPROTO_IP),
            ("/proc/self/net/ip6_tables_names", libc::AF_INET6, libc::IPPROTO_IPV6),
        ]) {
            // Asking for a table that nobody uses would make it.
            let tables = match std::fs::read_to_string(list) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                tables => tables?,
            };
            if tables.lines().any(|table| table == "nat") {
                legacy.look(family, level)?;
                found |= legacy.has_chain;
            }
        }
        Ok(found)
    }
}

impl Legacy {
    fn look(&mut self, family: i32, level: i32) -> io::Result<()> {
        /// `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES` of include/uapi/linux/netfilter_ipv4/ip_tables.h; IPv6 has the
        /// same numbers and structures.
        const GET_INFO: i32 = 64;
        const GET_ENTRIES: i32 = 65;
        /// `struct ipt_getinfo`: name, then words, of which the last two are the number and size of the entries.
        const INFO: usize = 84;
        /// `struct ipt_get_entries` before the entries.
        const HEAD: usize = 40;
        let socket = open_raw(family)?;
        let mut info = vec![0; INFO];
        if let Some(name) = info.get_mut(..3) {
            name.copy_from_slice(b"nat");
        }
        get_option(&socket, level, GET_INFO, &mut info)?;
        let word = |at: usize| info.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes);
        let (entries, size) = (word(76).unwrap_or_default(), word(80).unwrap_or_default());
        if (entries, size) == (self.entries, self.size) {
            return Ok(());
        }
        let mut bytes = vec![0; HEAD + size as usize];
        for (to, from) in bytes.iter_mut().zip(*b"nat") {
            *to = from;
        }
        if let Some(to) = bytes.get_mut(32..36) {
            to.copy_from_slice(&size.to_ne_bytes());
        }
        match get_option(&socket, level, GET_ENTRIES, &mut bytes) {
            // Changed between the two calls: the next look sees it.
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => return Ok(()),
            result => result?,
        }
        // A chain begins with an entry that has its name.
        let name = CHAIN.to_bytes_with_nul();
        let has_chain = bytes.windows(name.len()).any(|bytes| bytes == name);
        *self = Self { entries, size, has_chain };
        Ok(())
    }
}

/// Whether nftables has the object that these attributes name.
fn exists(socket: &OwnedFd, message: u16, family: u8, attributes: &[(u16, &CStr)]) -> io::Result<bool> {
    /// `NFNL_SUBSYS_NFTABLES` of include/uapi/linux/netfilter/nfnetlink.h.
    const NFTABLES: u16 = 10;
    /// `nlmsghdr` and `nfgenmsg`.
    const HEAD: usize = 20;
    let mut request = Vec::with_capacity(64);
    request.extend([0; 4]);
    request.extend((NFTABLES << 8 | message).to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence and port: one question is under way at a time.
    request.extend([0; 8]);
    request.extend([family, 0, 0, 0]);
    for (kind, value) in attributes {
        let value = value.to_bytes_with_nul();
        request.extend((4 + value.len() as u16).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(value);
        request.resize(request.len().next_multiple_of(4), 0);
    }
    let length = (request.len() as u32).to_ne_bytes();
    if let Some(to) = request.get_mut(..4) {
        to.copy_from_slice(&length);
    }
    // SAFETY: the bytes are as many as said, and only read.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = [0_u8; 4096];
    // Netlink answers before `send` returns.
    // SAFETY: there is room for as many bytes as said.
    let received = unsafe {
        libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
    };
    if received < HEAD as isize {
        return Err(io::Error::last_os_error());
    }
    let kind = answer.get(4..6).and_then(|b| b.try_into().ok()).map_or(0, u16::from_ne_bytes);
    if i32::from(kind) != libc::NLMSG_ERROR {
        return Ok(true);
    }
    let errno = answer.get(16..20).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
    match -errno {
        // No such object, or no nftables for this family or at all.
        libc::ENOENT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EINVAL => Ok(false),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn open(family: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers; the descriptor is new.
    let socket = unsafe {
        let fd = libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    Ok(socket)
}

fn open_raw(family: i32) -> io::Result<OwnedFd> {
    open(family, libc::IPPROTO_RAW)
}

/// Fills `value`, whose head says what is asked for.
fn get_option(socket: &OwnedFd, level: i32, option: i32, value: &mut [u8]) -> io::Result<()> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: there is room for as many bytes as said.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &raw mut length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables table kube-proxy",
            Self::Iptables => "iptables chain KUBE-SERVICES",
            Self::Ipvs => "interface kube-ipvs0",
        })
    }
}
