use crate::NumericIdentity;

/// Key of `pw_endpoints` is an [`crate::Addr`] of a pod of this node; its value says behind which interface it is.
///
/// Inserted and deleted only: an address that goes to another pod is deleted first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointValue {
    /// Of the node's end of the pod's link.
    pub ifindex: u32,
    /// [`EndpointId`].
    pub id: u16,
    /// None yet; 0.
    pub flags: u16,
    /// Of the pod's end: who sends with another one is not this pod.
    pub mac: [u8; 6],
    /// Of the node's end.
    pub node_mac: [u8; 6],
}

const _: () = assert!(size_of::<EndpointValue>() == 20 && align_of::<EndpointValue>() == 4);

/// The number of a pod on its node, as `portway endpoint list` shows it. 0 is none, [`Self::HEALTH`] the node's own probe.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(u16);

impl EndpointId {
    /// The endpoint that other nodes probe.
    pub const HEALTH: Self = Self(1);
    /// The first one that a pod may have.
    pub const FIRST: Self = Self(2);

    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Value of `pw_netns` (key: the cookie of a network namespace): what the socket programs do for a pod's sockets.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NetnsOptions(u64);

impl NetnsOptions {
    const NO_SOCKET_LB: u64 = 1;

    /// `socket_lb`: false leaves the pod's sockets alone; its packets are translated at its interface.
    pub const fn new(socket_lb: bool) -> Self {
        Self(if socket_lb { 0 } else { Self::NO_SOCKET_LB })
    }

    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub const fn word(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub const fn translates_sockets(self) -> bool {
        self.0 & Self::NO_SOCKET_LB == 0
    }
}

/// Element of `pw_endpoint_policy` (index: [`EndpointId`]): **the publishing word** of an endpoint, one store each time.
///
/// The low half is the pod's [`NumericIdentity`], 0 while it is not known; the high half the version of the policy that its
/// packets are judged by, 0 while there is none.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndpointPolicy(u64);

impl EndpointPolicy {
    pub const fn new(identity: NumericIdentity, version: u32) -> Self {
        Self((version as u64) << 32 | identity.get() as u64)
    }

    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub const fn word(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub const fn identity(self) -> NumericIdentity {
        NumericIdentity::new(self.0 as u32)
    }

    #[inline(always)]
    pub const fn version(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The same policy for another identity.
    pub const fn with_identity(self, identity: NumericIdentity) -> Self {
        Self::new(identity, self.version())
    }
}
