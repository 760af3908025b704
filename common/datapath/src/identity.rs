use core::fmt;

/// The number of a security identity: what a policy sees of who sends, in the maps, on the wire (24 bits), in
/// CiliumIdentity's name and in the agent. Its ranges are Cilium's, so that numbers may be taken over from it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumericIdentity(u32);

/// Who gives a number its meaning, and where it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// 0 to 99: the same everywhere, by name ([`NumericIdentity::reserved_name`]). 0 is unknown.
    Reserved,
    /// 100 to 127: labels that Cilium gives a fixed number.
    WellKnown,
    /// 128 to 255: given by the user's configuration.
    UserReserved,
    /// 256 to 16,777,215: a CiliumIdentity; the bits from the 17th are the cluster's id.
    Cluster,
    /// 16,777,217 to 33,554,431: CIDRs and names outside the cluster; each node has its own, and none is on the wire.
    Local,
    /// 33,554,433 to 50,331,647: nodes by their labels; each node has its own, and none is on the wire.
    RemoteNode,
    /// No number of any of these.
    Invalid,
}

impl NumericIdentity {
    /// Not known, or not yet.
    pub const UNKNOWN: Self = Self(0);
    /// This node.
    pub const HOST: Self = Self(1);
    /// What is outside the cluster.
    pub const WORLD: Self = Self(2);
    /// A pod of the cluster that has no endpoint of its own.
    pub const UNMANAGED: Self = Self(3);
    /// The endpoint that other nodes probe.
    pub const HEALTH: Self = Self(4);
    /// A pod whose labels are not known yet.
    pub const INIT: Self = Self(5);
    /// Another node of the cluster.
    pub const REMOTE_NODE: Self = Self(6);
    /// Another node of the cluster that the API server runs on.
    pub const KUBE_APISERVER: Self = Self(7);
    pub const INGRESS: Self = Self(8);
    /// [`Self::WORLD`], where a node has both families.
    pub const WORLD_IPV4: Self = Self(9);
    pub const WORLD_IPV6: Self = Self(10);
    /// Traffic of the overlay that is to be encrypted.
    pub const OVERLAY_TO_ENCRYPT: Self = Self(11);

    /// The first number that a cluster whose id is 0 gives to labels.
    pub const CLUSTER_FIRST: u32 = 256;
    /// The last number of a cluster whose id is 0.
    pub const CLUSTER_LAST: u32 = 0xffff;
    pub const LOCAL_FIRST: u32 = 0x0100_0001;
    pub const LOCAL_LAST: u32 = 0x01ff_ffff;
    pub const REMOTE_NODE_FIRST: u32 = 0x0200_0001;
    pub const REMOTE_NODE_LAST: u32 = 0x02ff_ffff;
    /// The largest number that a tunnel's VNI can carry.
    pub const WIRE_LAST: u32 = 0x00ff_ffff;

    /// Every number is one; [`Self::scope`] says what it can mean.
    #[inline(always)]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The first and the last number that the cluster with this id gives to labels.
    pub const fn of_cluster(cluster_id: u16) -> (Self, Self) {
        let high = (cluster_id as u32) << 16;
        (Self(high | Self::CLUSTER_FIRST), Self(high | Self::CLUSTER_LAST))
    }

    pub const fn scope(self) -> Scope {
        match self.0 {
            0..=99 => Scope::Reserved,
            100..=127 => Scope::WellKnown,
            128..=255 => Scope::UserReserved,
            Self::CLUSTER_FIRST..=Self::WIRE_LAST => Scope::Cluster,
            Self::LOCAL_FIRST..=Self::LOCAL_LAST => Scope::Local,
            Self::REMOTE_NODE_FIRST..=Self::REMOTE_NODE_LAST => Scope::RemoteNode,
            _ => Scope::Invalid,
        }
    }

    #[inline(always)]
    pub const fn is_known(self) -> bool {
        self.0 != 0
    }

    /// What a packet's VNI says of a sender with this identity: the host is a remote node for its neighbours, and what
    /// only this node has a number for is unknown to them: they look the address up themselves.
    #[inline(always)]
    pub const fn on_the_wire(self) -> Self {
        match self.0 {
            1 => Self::REMOTE_NODE,
            number if number > Self::WIRE_LAST => Self::UNKNOWN,
            number => Self(number),
        }
    }

    /// `host` of `reserved:host`; `None` for what is no reserved number, and for those that have no name.
    pub const fn reserved_name(self) -> Option<&'static str> {
        Some(match self {
            Self::UNKNOWN => "unknown",
            Self::HOST => "host",
            Self::WORLD => "world",
            Self::UNMANAGED => "unmanaged",
            Self::HEALTH => "health",
            Self::INIT => "init",
            Self::REMOTE_NODE => "remote-node",
            Self::KUBE_APISERVER => "kube-apiserver",
            Self::INGRESS => "ingress",
            Self::WORLD_IPV4 => "world-ipv4",
            Self::WORLD_IPV6 => "world-ipv6",
            Self::OVERLAY_TO_ENCRYPT => "overlay-to-encrypt",
            _ => return None,
        })
    }
}

/// In decimal, as CiliumIdentity is named.
impl fmt::Display for NumericIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_the_scope_that_ciliums_ranges_say() {
        let scopes = [
            (0, Scope::Reserved),
            (11, Scope::Reserved),
            (99, Scope::Reserved),
            (100, Scope::WellKnown),
            (127, Scope::WellKnown),
            (128, Scope::UserReserved),
            (255, Scope::UserReserved),
            (256, Scope::Cluster),
            (65_535, Scope::Cluster),
            (65_536, Scope::Cluster),
            (0x00ff_ffff, Scope::Cluster),
            (0x0100_0000, Scope::Invalid),
            (0x0100_0001, Scope::Local),
            (0x01ff_ffff, Scope::Local),
            (0x0200_0000, Scope::Invalid),
            (0x0200_0001, Scope::RemoteNode),
            (0x02ff_ffff, Scope::RemoteNode),
            (0x0300_0000, Scope::Invalid),
            (u32::MAX, Scope::Invalid),
        ];
        for (number, scope) in scopes {
            assert_eq!(NumericIdentity::new(number).scope(), scope, "{number:#x}");
        }
    }

    #[test]
    fn a_cluster_has_the_numbers_of_its_id() {
        let (first, last) = NumericIdentity::of_cluster(0);
        assert_eq!((first.get(), last.get()), (256, 65_535));
        let (first, last) = NumericIdentity::of_cluster(255);
        assert_eq!((first.get(), last.get()), (0x00ff_0100, 0x00ff_ffff));
    }

    #[test]
    fn the_wire_carries_24_bits_and_nothing_that_means_something_else_elsewhere() {
        let wire = |number| NumericIdentity::new(number).on_the_wire().get();
        assert_eq!((wire(0), wire(1), wire(2), wire(7)), (0, 6, 2, 7));
        assert_eq!((wire(256), wire(0x00ff_ffff)), (256, 0x00ff_ffff));
        assert_eq!((wire(0x0100_0000), wire(0x0100_0001), wire(0x02ff_ffff), wire(u32::MAX)), (0, 0, 0, 0));
    }

    #[test]
    fn a_reserved_number_has_the_name_of_its_label() {
        assert_eq!(NumericIdentity::HOST.reserved_name(), Some("host"));
        assert_eq!(NumericIdentity::KUBE_APISERVER.reserved_name(), Some("kube-apiserver"));
        assert_eq!(NumericIdentity::new(12).reserved_name(), None);
        assert_eq!(NumericIdentity::new(256).reserved_name(), None);
    }
}
