//! netlink(7): a request and its answers. What is in them is for `programs::interface` (rtnetlink) and `sockets` (sock_diag)
//! to say.

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
pub(crate) const NLM_F_DUMP: u16 = 0x300;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// A part of a dump is at most 32 KiB (`netlink_dump`).
const BUFFER: usize = 64 * 1024;

/// A netlink socket; it sees the namespace that the thread was in when it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// An answer is waited for at most `patience`, which has whole seconds.
    pub(crate) fn open(protocol: SockProtocol, patience: Duration) -> Result<Self, Errno> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        let patience = TimeVal::new(i64::try_from(patience.as_secs()).unwrap_or(i64::MAX), 0);
        setsockopt(&fd, ReceiveTimeout, &patience)?;
        Ok(Self { fd, sequence: 0 })
    }

    /// Sends a request and takes its answers, by their kind: the elements of a dump, where `flags` ask for one, or what comes
    /// before an acknowledgement.
    ///
    /// # Errors
    /// The kernel's own; `EBADMSG` for something that is no answer; `EAGAIN` for none.
    pub(crate) fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        mut each: impl FnMut(u16, &[u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
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
                        Some(kind) => each(kind, body)?,
                        None => return Err(Errno::EBADMSG),
                    }
                }
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

/// A negative errno, or 0.
fn failure(body: &[u8]) -> Result<(), Errno> {
    match number(body, 0).ok_or(Errno::EBADMSG)?.cast_signed() {
        0 => Ok(()),
        errno => Err(Errno::from_raw(errno.wrapping_neg())),
    }
}

/// In the machine's byte order.
pub(crate) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The payload of the first attribute of a kind.
pub(crate) fn attribute(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
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

    #[test]
    fn an_attribute_is_found_by_its_kind_and_one_that_is_cut_short_is_none() {
        // Of no length it does not hold up.
        assert_eq!(attribute(&[0; 8], 2), None);
        assert_eq!(attribute(&[9, 0, 2, 0, 1], 2), None);
        assert_eq!(attribute(&[5, 0, 2, 0, 1], 2), Some(&[1][..]));
        assert_eq!(attribute(&[5, 0, 1, 0, 7, 0, 0, 0, 5, 0, 2, 0x80, 1], 2), Some(&[1][..]));
    }
}
