use crate::{Addr, Port, Protocol, ServiceIndex};

/// Key of `pw_frontends`: where a client sends to. NodePorts and host ports without an address have
/// [`Addr::ANY_V4`] or [`Addr::ANY_V6`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    pub addr: Addr,
    pub port: Port,
    /// IP protocol number.
    pub protocol: u8,
    _pad: u8,
}

const _: () = assert!(size_of::<FrontendKey>() == 20 && align_of::<FrontendKey>() == 4);

impl FrontendKey {
    #[inline(always)]
    pub const fn new(addr: Addr, port: Port, protocol: Protocol) -> Self {
        Self { addr, port, protocol: protocol.number(), _pad: 0 }
    }

    /// 32 bits of the key that travel in the value: an element that was reused for another key while a program
    /// looked at it is noticed, and looked up again.
    #[inline(always)]
    pub const fn tag(&self) -> u32 {
        let [a, b, c, d] = self.addr.words();
        mix(mix(mix(mix(mix(0x9e37_79b9, a), b), c), d), self.port.network() | (self.protocol as u32) << 16)
    }
}

/// One round of a multiplicative hash; every input bit reaches the high bits, which the next round folds back.
#[inline(always)]
pub(crate) const fn mix(hash: u32, word: u32) -> u32 {
    let product = ((hash ^ word) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product >> 32) as u32 ^ product as u32
}

/// What sort of frontend this is; it decides which traffic policy and which guards apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    ClusterIp,
    LoadBalancer,
    ExternalIps,
    NodePort,
    HostPort,
}

impl FrontendKind {
    /// In the order in which they win a clash.
    pub const ALL: [Self; 5] =
        [Self::ClusterIp, Self::LoadBalancer, Self::ExternalIps, Self::NodePort, Self::HostPort];

    #[inline(always)]
    pub const fn code(self) -> u8 {
        match self {
            Self::ClusterIp => 1,
            Self::LoadBalancer => 2,
            Self::ExternalIps => 3,
            Self::NodePort => 4,
            Self::HostPort => 5,
        }
    }

    #[inline(always)]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::ClusterIp),
            2 => Some(Self::LoadBalancer),
            3 => Some(Self::ExternalIps),
            4 => Some(Self::NodePort),
            5 => Some(Self::HostPort),
            _ => None,
        }
    }

    /// As `portway plan`, `service list` and Cilium's own lists print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::LoadBalancer => "LoadBalancer",
            Self::ExternalIps => "ExternalIPs",
            Self::NodePort => "NodePort",
            Self::HostPort => "HostPort",
        }
    }
}

/// Value of `pw_frontends`: one word, so that it can change in place with one store.
///
/// From the low bit: 24 bits service index, 8 bits [`FrontendKind::code`], 32 bits [`FrontendKey::tag`].
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrontendValue(u64);

impl FrontendValue {
    #[inline(always)]
    pub const fn new(key: &FrontendKey, kind: FrontendKind, service: ServiceIndex) -> Self {
        Self((key.tag() as u64) << 32 | (kind.code() as u64) << 24 | service.get() as u64)
    }

    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Whether this value was written for `key`.
    #[inline(always)]
    pub const fn is_of(self, key: &FrontendKey) -> bool {
        (self.0 >> 32) as u32 == key.tag()
    }

    #[inline(always)]
    pub const fn service(self) -> ServiceIndex {
        ServiceIndex::new(self.0 as u32 & ServiceIndex::MAX)
    }

    /// `None` if the word was not written by this version.
    #[inline(always)]
    pub const fn kind(self) -> Option<FrontendKind> {
        FrontendKind::from_code((self.0 >> 24) as u8)
    }
}

/// Value of `pw_local_addresses` (key [`Addr`]): an address of the node, loopback excepted.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddress(u64);

impl LocalAddress {
    const NODE_PORT: u64 = 1;

    /// `node_port`: whether `nodeport-addresses` lets NodePorts answer here.
    pub const fn new(node_port: bool) -> Self {
        Self(if node_port { Self::NODE_PORT } else { 0 })
    }

    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub const fn word(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub const fn serves_node_ports(self) -> bool {
        self.0 & Self::NODE_PORT != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_key_its_kind_and_its_service() {
        let key = FrontendKey::new(Addr::v4([10, 96, 0, 1]), Port::new(443), Protocol::TCP);
        for kind in FrontendKind::ALL {
            let value = FrontendValue::new(&key, kind, ServiceIndex::new(70_000));
            assert!(value.is_of(&key));
            assert_eq!(value.kind(), Some(kind));
            assert_eq!(value.service().get(), 70_000);
        }
        let other = FrontendKey::new(Addr::v4([10, 96, 0, 1]), Port::new(443), Protocol::UDP);
        assert!(!FrontendValue::new(&key, FrontendKind::ClusterIp, ServiceIndex::new(1)).is_of(&other));
    }

    #[test]
    fn tags_of_neighbours_differ() {
        let mut tags = std::collections::BTreeSet::new();
        for last in 0..=255 {
            for port in 30_000..30_100 {
                let key = FrontendKey::new(Addr::v4([10, 96, 0, last]), Port::new(port), Protocol::TCP);
                tags.insert(key.tag());
            }
        }
        // 25,600 random 32-bit numbers collide 0.08 times on average.
        assert!(tags.len() > 25_590, "{} of 25600", tags.len());
    }
}
