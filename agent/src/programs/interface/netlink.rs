//! rtnetlink(7) as far as filters need it: `struct tcmsg` and attributes.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
};
use nix::sys::time::TimeVal;

// include/uapi/linux/netlink.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// Bytes of `struct nlmsghdr` and of `struct tcmsg`.
const HEADER: usize = 16;
const TCMSG: usize = 20;

/// A kernel that does not answer; it does so at once, or after whoever holds the lock of all interfaces.
const PATIENCE: Duration = Duration::from_secs(10);
/// A part of a dump is at most 32 KiB (`netlink_dump`).
const BUFFER: usize = 64 * 1024;

/// A netlink socket; it sees the namespace that the thread was in when it was opened.
pub(super) struct Route {
    fd: OwnedFd,
    sequence: u32,
}

/// What a message is about: `struct tcmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcTarget {
    pub(super) ifindex: u32,
    pub(super) handle: u32,
    pub(super) parent: u32,
    /// High half a priority, low half a protocol in network order.
    pub(super) info: u32,
}

/// A request.
pub(super) struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

/// An element of a dump.
pub(super) struct Answer<'a> {
    pub(super) target: TcTarget,
    pub(super) attributes: &'a [u8],
}

impl Message {
    pub(super) fn new(kind: u16, flags: u16, target: TcTarget) -> Self {
        let TcTarget { ifindex, handle, parent, info } = target;
        let mut body = vec![0; 4];
        for field in [ifindex, handle, parent, info] {
            body.extend(field.to_ne_bytes());
        }
        Self { kind, flags, body }
    }

    /// An attribute that ends with a NUL.
    pub(super) fn text(mut self, kind: u16, text: &str) -> Self {
        put(&mut self.body, kind, &[text.as_bytes(), &[0]].concat());
        self
    }

    pub(super) fn nested(mut self, kind: u16, attributes: &[(u16, Vec<u8>)]) -> Self {
        let mut inner = Vec::new();
        for (kind, payload) in attributes {
            put(&mut inner, *kind, payload);
        }
        put(&mut self.body, kind, &inner);
        self
    }
}

/// Attributes begin at multiples of 4; all of ours are short.
fn put(to: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    to.extend((payload.len() as u16 + 4).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(payload);
    to.resize(to.len().next_multiple_of(4), 0);
}

impl Route {
    pub(super) fn open() -> Result<Self, Errno> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        let patience = TimeVal::new(i64::try_from(PATIENCE.as_secs()).unwrap_or(i64::MAX), 0);
        setsockopt(&fd, ReceiveTimeout, &patience)?;
        Ok(Self { fd, sequence: 0 })
    }

    /// Sends a request and takes its answers: the elements of a dump, or an acknowledgement.
    pub(super) fn ask(&mut self, message: Message, mut each: impl FnMut(Answer<'_>)) -> Result<(), Errno> {
        let Message { kind, flags, body } = message;
        self.sequence = self.sequence.wrapping_add(1);
        let flags = flags | NLM_F_REQUEST | if flags & NLM_F_DUMP == NLM_F_DUMP { 0 } else { NLM_F_ACK };
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        send(self.fd.as_raw_fd(), &bytes, MsgFlags::empty())?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let len = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut rest = buffer.get(..len).ok_or(Errno::EBADMSG)?;
            while !rest.is_empty() {
                let len = number(rest, 0).ok_or(Errno::EBADMSG)? as usize;
                let message = rest.get(..len).ok_or(Errno::EBADMSG)?;
                let body = message.get(HEADER..).ok_or(Errno::EBADMSG)?;
                let kind = message.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
                // Late answers to a request that was given up are not ours.
                if number(message, 8) == Some(self.sequence) {
                    match kind {
                        Some(NLMSG_ERROR) => return failure(body),
                        // A dump's end has its errno.
                        Some(NLMSG_DONE) => return if body.len() < 4 { Ok(()) } else { failure(body) },
                        Some(_) => each(Answer::parse(body).ok_or(Errno::EBADMSG)?),
                        None => return Err(Errno::EBADMSG),
                    }
                }
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

impl<'a> Answer<'a> {
    fn parse(body: &'a [u8]) -> Option<Self> {
        let field = |at: usize| number(body, at);
        let target = TcTarget { ifindex: field(4)?, handle: field(8)?, parent: field(12)?, info: field(16)? };
        Some(Self { target, attributes: body.get(TCMSG..)? })
    }
}

/// A negative errno, or 0.
fn failure(body: &[u8]) -> Result<(), Errno> {
    match number(body, 0).ok_or(Errno::EBADMSG)?.cast_signed() {
        0 => Ok(()),
        errno => Err(Errno::from_raw(errno.wrapping_neg())),
    }
}

pub(super) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The payload of the first attribute of a kind.
pub(super) fn attribute(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
    /// `NLA_TYPE_MASK`: the bits above say that it is nested, or of network order.
    const TYPE: u16 = 0x3fff;
    loop {
        let len = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
        if u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?) & TYPE == kind {
            return rest.get(4..len);
        }
        rest = rest.get(len.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: TcTarget = TcTarget { ifindex: 7, handle: 1, parent: 2, info: 3 };

    #[test]
    fn what_a_message_says_is_read_back() {
        let options = [(6, vec![9, 0, 0, 0]), (7, b"name\0".to_vec())];
        let message = Message::new(44, 0, TARGET).text(1, "bpf").nested(2, &options);
        assert_eq!(message.body.len() % 4, 0);
        let answer = Answer::parse(&message.body).unwrap();
        assert_eq!(answer.target, TARGET);
        assert_eq!(attribute(answer.attributes, 1), Some(&b"bpf\0"[..]));
        let options = attribute(answer.attributes, 2).unwrap();
        assert_eq!(attribute(options, 7), Some(&b"name\0"[..]));
        assert_eq!(number(attribute(options, 6).unwrap(), 0), Some(9));
        assert_eq!(attribute(options, 8), None);
    }

    #[test]
    fn what_is_cut_short_is_no_answer() {
        assert!(Answer::parse(&[0; TCMSG - 1]).is_none());
        assert_eq!(attribute(&[0; 8], 1), None);
        assert_eq!(attribute(&[9, 0, 1, 0, 1], 1), None);
    }
}
