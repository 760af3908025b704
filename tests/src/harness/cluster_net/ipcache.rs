//! What the kernel of a node says of an address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Map, MapData, MapError};
use portway_agent::maps::{PodMapId, pod_pin_path};
use portway_datapath::IpcacheValue;

use super::Node;

/// `pw_ipcache` of a node, asked as the programs ask it: by address. For any thread, also with the agent down.
#[derive(Debug)]
pub struct Ipcache {
    trie: LpmTrie<MapData, [u8; 16], [u8; size_of::<IpcacheValue>()]>,
}

impl Ipcache {
    pub fn open(bpf_root: &Path) -> Result<Self> {
        let path = pod_pin_path(bpf_root, PodMapId::Ipcache);
        let map = MapData::from_pin(&path).with_context(|| format!("open {}", path.display()))?;
        Ok(Self { trie: LpmTrie::try_from(Map::LpmTrie(map)).context("use it as a trie")? })
    }

    /// The number at the longest prefix of `addr`; `None` where no prefix has it.
    pub fn identity(&self, addr: IpAddr) -> Result<Option<u32>> {
        let addr = match addr {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        match self.trie.get(&Key::new(128, addr.octets()), 0) {
            Ok(value) => {
                // Behind the tunnel's address, which has 16 bytes.
                let number =
                    value.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
                number.map(Some).context("a value is too short")
            }
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("look up {addr}")),
        }
    }
}

impl Node {
    /// What its programs know of addresses, also with the agent down.
    pub fn ipcache(&self) -> Result<Ipcache> {
        Ipcache::open(self.bpf_root()).with_context(|| format!("on {}", self.name()))
    }

    /// Looks at these addresses of it from now on.
    pub fn watch_ipcache(&self, addresses: Vec<IpAddr>) -> Result<Watch> {
        Watch::start(self.ipcache()?, addresses)
    }
}

/// What somebody who looks without pause has seen of some addresses: each value that differs from the one before, the
/// first one included.
pub type Seen = BTreeMap<IpAddr, Vec<(Instant, Option<u32>)>>;

/// Looks at addresses of a node's ipcache every millisecond until its end.
#[derive(Debug)]
pub struct Watch {
    more: Sender<IpAddr>,
    thread: JoinHandle<Result<Seen>>,
}

impl Watch {
    fn start(ipcache: Ipcache, addresses: Vec<IpAddr>) -> Result<Self> {
        let (more, new) = channel();
        let thread = std::thread::Builder::new()
            .name("watch ipcache".to_owned())
            .spawn(move || watch(&ipcache, addresses, &new))
            .context("start a thread")?;
        Ok(Self { more, thread })
    }

    /// One address more.
    pub fn add(&self, addr: IpAddr) -> Result<()> {
        self.more.send(addr).ok().context("the watch has ended")
    }

    /// What it has seen.
    pub fn end(self) -> Result<Seen> {
        drop(self.more);
        self.thread.join().map_err(|_| anyhow::anyhow!("the watch panicked"))?
    }
}

fn watch(ipcache: &Ipcache, mut addresses: Vec<IpAddr>, more: &Receiver<IpAddr>) -> Result<Seen> {
    let mut seen = Seen::new();
    loop {
        // Once more after it was told to end.
        let over = loop {
            match more.try_recv() {
                Ok(addr) => addresses.push(addr),
                Err(TryRecvError::Empty) => break false,
                Err(TryRecvError::Disconnected) => break true,
            }
        };
        for &addr in &addresses {
            let identity = ipcache.identity(addr)?;
            let values = seen.entry(addr).or_default();
            if values.last().is_none_or(|(_, last)| *last != identity) {
                values.push((Instant::now(), identity));
            }
        }
        if over {
            return Ok(seen);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
