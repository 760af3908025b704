//! A raw socket on a link: it sends frames as they are and hears every frame that the link's end receives.

use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};

use anyhow::{Context, Result, bail};
use nix::libc;

use super::Namespace;
use super::frame::Mac;

/// One end of a link.
#[derive(Debug)]
pub struct Wire {
    socket: std::fs::File,
    mac: Mac,
}

impl Wire {
    /// On `link` of `namespace`.
    pub fn open(namespace: &Namespace, link: &str) -> Result<Self> {
        namespace.run(|| {
            let index = nix::net::if_::if_nametoindex(link).with_context(|| format!("find {link}"))?;
            let protocol = (libc::ETH_P_ALL as u16).to_be();
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: no memory is passed.
            let fd = unsafe { libc::socket(libc::AF_PACKET, kind, protocol.into()) };
            if fd < 0 {
                return Err(Error::last_os_error()).context("make a packet socket (needs root)");
            }
            // SAFETY: the kernel has just given us this descriptor.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            let at = libc::sockaddr_ll {
                sll_family: libc::AF_PACKET as u16,
                sll_protocol: protocol,
                sll_ifindex: i32::try_from(index)?,
                sll_hatype: 0,
                sll_pkttype: 0,
                sll_halen: 0,
                sll_addr: [0; 8],
            };
            // SAFETY: `at` outlives the call and the length is its size.
            let rc = unsafe {
                libc::bind(fd, (&raw const at).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
            };
            if rc != 0 {
                return Err(Error::last_os_error()).with_context(|| format!("bind to {link}"));
            }
            Ok(Self { socket: socket.into(), mac: mac(link)? })
        })
    }

    /// The hardware address of the link's end.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    pub fn send(&self, frame: &[u8]) -> Result<()> {
        (&self.socket).write_all(frame).with_context(|| format!("send {} bytes", frame.len()))
    }

    /// Frames that came or went since the last call.
    pub fn heard(&self) -> Result<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; 65_536];
        loop {
            match (&self.socket).read(&mut buffer) {
                Ok(len) => frames.push(buffer[..len].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(frames),
                Err(error) => bail!("hear a link: {error}"),
            }
        }
    }

    /// Whether a frame with these bytes in it is among [`Self::heard`].
    pub fn has_heard(&self, marker: &[u8]) -> Result<bool> {
        Ok(self.heard()?.iter().any(|frame| frame.windows(marker.len()).any(|window| window == marker)))
    }
}

/// Of a link of the calling thread's namespace.
fn mac(link: &str) -> Result<Mac> {
    let found = nix::ifaddrs::getifaddrs()
        .context("list addresses")?
        .filter(|address| address.interface_name == link)
        .find_map(|address| address.address?.as_link_addr()?.addr());
    found.with_context(|| format!("{link} has no hardware address"))
}
