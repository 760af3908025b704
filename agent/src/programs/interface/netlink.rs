//! rtnetlink(7) as far as filters need it: `struct tcmsg` and attributes.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

use crate::netlink::{Netlink, number};

/// Bytes of `struct tcmsg`.
const TCMSG: usize = 20;

/// A kernel that does not answer; it does so at once, or after whoever holds the lock of all interfaces.
const PATIENCE: Duration = Duration::from_secs(10);

/// What filters and qdiscs are asked for by.
pub(super) struct Route(Netlink);

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
        Netlink::open(SockProtocol::NetlinkRoute, PATIENCE).map(Self)
    }

    /// Sends a request and takes its answers: the elements of a dump, or an acknowledgement.
    pub(super) fn ask(&mut self, message: Message, mut each: impl FnMut(Answer<'_>)) -> Result<(), Errno> {
        let Message { kind, flags, body } = message;
        self.0.ask(kind, flags, &body, |_, body| {
            each(Answer::parse(body).ok_or(Errno::EBADMSG)?);
            Ok(())
        })
    }
}

impl<'a> Answer<'a> {
    fn parse(body: &'a [u8]) -> Option<Self> {
        let field = |at: usize| number(body, at);
        let target = TcTarget { ifindex: field(4)?, handle: field(8)?, parent: field(12)?, info: field(16)? };
        Some(Self { target, attributes: body.get(TCMSG..)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

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
    }
}
