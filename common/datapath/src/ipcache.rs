use crate::{Addr, NumericIdentity};

/// Value of `pw_ipcache`, an LPM trie over prefixes of [`Addr`] (an IPv4 prefix has 96 bits more): what is known of an
/// address. The longest prefix says everything; shorter ones are not looked at.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcacheValue {
    /// Where to send a packet through the tunnel: an address of the node behind it; [`Addr::ANY_V6`] where none.
    pub tunnel: Addr,
    /// Who is there; unknown where that is not told, never the world.
    pub identity: NumericIdentity,
    pub flags: u32,
}

const _: () = assert!(size_of::<IpcacheValue>() == 24);

impl IpcacheValue {
    /// Inside the cluster's network (native CIDR, pods and nodes): what goes there keeps its source address.
    pub const INSIDE: u32 = 1;
    /// An address of another node itself.
    pub const NODE: u32 = 2;
    /// Addresses of another node's pods.
    pub const PODS: u32 = 4;

    #[inline(always)]
    pub const fn new(identity: NumericIdentity, tunnel: Option<Addr>, flags: u32) -> Self {
        let tunnel = match tunnel {
            Some(node) => node,
            None => Addr::ANY_V6,
        };
        Self { tunnel, identity, flags }
    }

    #[inline(always)]
    pub const fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    #[inline(always)]
    pub fn tunnel(&self) -> Option<Addr> {
        (self.tunnel != Addr::ANY_V6).then_some(self.tunnel)
    }
}
