//! What plugin and agent say to each other: one request a connection of the unix socket [`SOCKET`].
//!
//! A message is its length (four bytes, little endian) and that much JSON. With the first byte of a request that has
//! one comes a descriptor of the pod's network namespace (`SCM_RIGHTS`): the agent need not see the runtime's paths.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::result::Attached;

/// The socket's name, beside the agent's `socket-path`.
pub const SOCKET: &str = "cni.sock";
/// Where it is unless the network's configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/var/run/portway/cni.sock";
/// A longer message is refused: GC of a full node, ten times over.
pub const MAX_MESSAGE: u32 = 4 << 20;

/// One interface of one pod, as the specification tells them apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentId {
    #[serde(rename = "containerID")]
    pub container: String,
    #[serde(rename = "ifname")]
    pub interface: String,
}

/// Whose interface it is, where the runtime says so (`CNI_ARGS`). All empty for what is no pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// What the plugin asks. ADD and CHECK come with the pod's network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Request {
    Add(Attachment),
    Del {
        id: AttachmentId,
    },
    Check(Attachment),
    Status,
    /// Every attachment of `network` that is not `valid` goes.
    Gc {
        network: String,
        valid: Vec<AttachmentId>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub id: AttachmentId,
    /// The network's name in the runtime's configuration.
    pub network: String,
    /// The namespace's path as the runtime has it; for people and the result.
    pub netns: String,
    pub pod: PodName,
    /// What the plugin before this one made, or (CHECK) what ADD answered.
    pub previous: Option<Attached>,
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", content = "value", rename_all = "lowercase")]
pub enum Response {
    /// To ADD.
    Attached(Attached),
    /// To everything else.
    Done,
    Failed(Failure),
}

/// Sends a message, with `descriptor` if there is one.
///
/// # Errors
/// The other side is gone, or does not read within the stream's timeout.
pub fn send(
    stream: &mut UnixStream,
    message: &impl Serialize,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MAX_MESSAGE);
    let length =
        length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"))?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(body);
    let descriptors: Vec<_> = descriptor.iter().map(|fd| fd.as_raw_fd()).collect();
    let control = [ControlMessage::ScmRights(&descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &control };
    // A stream that is not ready takes a part: the descriptor goes with the first byte.
    let sent =
        sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    stream.write_all(bytes.get(sent..).unwrap_or_default())
}

/// Receives a message, and the descriptor that came with it.
///
/// # Errors
/// The other side is gone, sends nothing within the stream's timeout, or what it sends is no message.
pub fn receive<T: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<(T, Option<OwnedFd>)> {
    let mut length = [0; 4];
    let (got, descriptor) = receive_first(stream, &mut length)?;
    stream.read_exact(length.get_mut(got..).unwrap_or_default())?;
    let length = u32::from_le_bytes(length);
    if length > MAX_MESSAGE {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {length} bytes is too long"),
        ));
    }
    let mut body = Vec::new();
    stream.take(length.into()).read_to_end(&mut body)?;
    if body.len() as u64 != u64::from(length) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((serde_json::from_slice(&body)?, descriptor))
}

/// The first bytes and their descriptor. Of several, which nobody sends, the last is kept and the others are closed.
fn receive_first(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; 4]);
    let mut slices = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptor = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for raw in descriptors {
                descriptor = Some(own(raw));
            }
        }
    }
    Ok((message.bytes, descriptor))
}

#[expect(unsafe_code, reason = "the kernel hands descriptors over as numbers")]
fn own(descriptor: std::os::fd::RawFd) -> OwnedFd {
    // SAFETY: recvmsg(2) has just opened this descriptor for us, and nobody else knows its number.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn request() -> Request {
        Request::Add(Attachment {
            id: AttachmentId { container: "c1".to_owned(), interface: "eth0".to_owned() },
            network: "portway".to_owned(),
            netns: "/run/netns/a".to_owned(),
            pod: PodName { uid: "u1".to_owned(), ..PodName::default() },
            previous: Some(Attached::default()),
        })
    }

    #[test]
    fn a_request_arrives_with_its_descriptor() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        send(&mut here, &request(), Some(file.as_fd())).unwrap();
        let (received, descriptor) = receive::<Request>(&mut there).unwrap();
        let descriptor = std::fs::File::from(descriptor.unwrap());
        assert_eq!(received, request());
        assert_eq!(descriptor.metadata().unwrap().ino(), file.metadata().unwrap().ino());
        drop(here);
        assert_eq!(receive::<Request>(&mut there).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_longer_than_a_message_may_be_is_refused_unread() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        here.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(receive::<Request>(&mut there).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn every_request_and_answer_survives_the_wire() {
        let id = AttachmentId { container: "c".to_owned(), interface: "eth0".to_owned() };
        let requests = [
            request(),
            Request::Del { id: id.clone() },
            Request::Status,
            Request::Gc { network: "n".to_owned(), valid: vec![id] },
        ];
        for request in requests {
            let (mut here, mut there) = UnixStream::pair().unwrap();
            send(&mut here, &request, None).unwrap();
            let (received, descriptor) = receive::<Request>(&mut there).unwrap();
            assert!(descriptor.is_none());
            assert_eq!(received, request);
        }
        let failed = Response::Failed(Failure::new(11, "m", "d"));
        for response in [Response::Done, Response::Attached(Attached::default()), failed] {
            let text = serde_json::to_string(&response).unwrap();
            assert_eq!(serde_json::from_str::<Response>(&text).unwrap(), response);
        }
    }
}
