use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::interrupt::Interrupts;
use super::wanted::{MOVING, NODE_ADDRESS, NODE_PORT, SERVICES, address_of, backends_of, frontend, port_of};
use super::window::Window;
use crate::bench::client::pin;

/// A window wider than this (the reader was not scheduled for long) judges nothing.
const WIDEST: u64 = 10_000;

/// What the reader saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub connects: u64,
    /// Not translated, or refused.
    pub misses: u64,
    /// Translated to a backend of another service, or of a version that was neither old nor new.
    pub foreign: u64,
    /// The versions went by too quickly to tell.
    pub unjudged: u64,
}

impl Seen {
    pub const fn bad(&self) -> u64 {
        self.misses + self.foreign
    }
}

/// Connects until the window says stop. `what`: `cluster-ip` or `node-port`.
pub fn read(what: &str, window: &Path) -> Result<Seen> {
    pin(1)?;
    let window = Window::open(window)?;
    let socket = UdpSocket::bind("0.0.0.0:0").context("make a UDP socket")?;
    let node = Ipv4Addr::from(<[u8; 4]>::try_from(&NODE_ADDRESS.octets()[12..])?);
    let targets: Vec<(SocketAddrV4, Vec<u32>)> = if what == "node-port" {
        vec![(SocketAddrV4::new(node, NODE_PORT), vec![0])]
    } else {
        let fixed = (0..SERVICES).map(|service| (frontend(service), vec![service]));
        fixed.chain([(SocketAddrV4::new(MOVING, 80), vec![0, 1])]).collect()
    };
    let mut seen = Seen::default();
    let mut interrupts = Interrupts::new()?;
    for (turn, (target, services)) in targets.iter().cycle().enumerate() {
        if window.is_stopped() {
            break;
        }
        let oldest: Vec<u64> = services.iter().map(|service| window.oldest(*service)).collect();
        if turn % 16 == 0 {
            interrupts.aim()?;
        }
        seen.connects += 1;
        // Refused: the program found a run without backends, which no version is.
        let Ok(peer) = socket.connect(*target).and_then(|()| socket.peer_addr()) else {
            seen.misses += 1;
            window.fail();
            continue;
        };
        let verdicts = services
            .iter()
            .zip(oldest)
            .map(|(service, oldest)| judge(peer, *service, oldest, window.newest(*service)));
        match verdicts.max() {
            Some(Verdict::Right) => {}
            Some(Verdict::Unjudged) => seen.unjudged += 1,
            Some(Verdict::Foreign) | None => {
                if peer == SocketAddr::V4(*target) {
                    seen.misses += 1
                } else {
                    seen.foreign += 1
                }
                window.fail();
            }
        }
    }
    Ok(seen)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Foreign,
    Unjudged,
    Right,
}

/// Whether `peer` is a backend of a version of `service` between these two.
fn judge(peer: SocketAddr, service: u32, oldest: u64, newest: u64) -> Verdict {
    let SocketAddr::V4(peer) = peer else { return Verdict::Foreign };
    if newest - oldest > WIDEST {
        return Verdict::Unjudged;
    }
    let position = u32::from(peer.ip().octets()[2]);
    let right = peer.ip().octets() == address_of(service, position)
        && (oldest..=newest)
            .any(|version| port_of(version) == peer.port() && position < backends_of(version));
    if right { Verdict::Right } else { Verdict::Foreign }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_backends_of_the_window_are_right() {
        let peer = |service, position, version| {
            SocketAddr::V4(SocketAddrV4::new(address_of(service, position).into(), port_of(version)))
        };
        assert_eq!(judge(peer(3, 0, 7), 3, 6, 7), Verdict::Right);
        assert_eq!(judge(peer(3, 0, 8), 3, 6, 7), Verdict::Foreign);
        assert_eq!(judge(peer(4, 0, 7), 3, 6, 7), Verdict::Foreign);
        assert_eq!(judge(peer(3, backends_of(7), 7), 3, 7, 7), Verdict::Foreign);
        assert_eq!(judge(peer(3, 0, 7), 3, 6, 60_000), Verdict::Unjudged);
    }
}
