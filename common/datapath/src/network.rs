use crate::Addr;

/// The one element of `pw_network`: what the packet programs know of the node. Words change in place, one store each;
/// addresses change only while no program is attached.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeNetwork {
    /// [`Self::TUNNEL`] and the other switches.
    pub switches: u64,
    /// Low half the tunnel device's ifindex, high half its UDP port (host order); 0 without a tunnel.
    pub tunnel: u64,
    /// Low half the first, high half the last port that masquerading may choose (host order).
    pub nat_ports: u64,
    /// Seconds: low half established TCP, high half a TCP handshake.
    pub tcp_timeouts: u64,
    /// Seconds: low half TCP that ends, high half everything else.
    pub other_timeouts: u64,
    /// The same of flows to services: low half TCP, high half everything else.
    pub service_timeouts: u64,
    /// What a pod that reaches itself by a service sees as its peer.
    pub hairpin_v4: Addr,
    pub hairpin_v6: Addr,
}

const _: () = assert!(size_of::<NodeNetwork>() == 80);

impl NodeNetwork {
    /// Of every node's tunnel device: what one node's device sends is for another's, without anybody having to ask.
    pub const TUNNEL_MAC: [u8; 6] = [0x02, 0x70, 0x77, 0x00, 0x00, 0x01];

    /// Pods of other nodes are reached by the tunnel device.
    pub const TUNNEL: u64 = 1;
    pub const MASQUERADE_V4: u64 = 2;
    pub const MASQUERADE_V6: u64 = 4;
    /// Services are translated at the pods' interfaces.
    pub const SERVICES: u64 = 8;
    /// A pod's source addresses are checked (`enable-source-ip-verification`).
    pub const VERIFY_SOURCE: u64 = 16;
    /// Pods' links are Portway's own: no program of somebody else's has to see what pods send.
    pub const OWN_LINKS: u64 = 32;

    #[inline(always)]
    pub const fn is(&self, switch: u64) -> bool {
        self.switches & switch != 0
    }

    #[inline(always)]
    pub const fn tunnel_ifindex(&self) -> u32 {
        self.tunnel as u32
    }

    #[inline(always)]
    pub const fn tunnel_port(&self) -> u16 {
        (self.tunnel >> 32) as u16
    }
}

/// Value of `pw_devices` (key: ifindex): a device that leads out of the node.
///
/// Inserted and deleted only. The addresses are the device's own that masquerading takes, [`Addr::ANY_V6`] where it has
/// none of that family.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceValue {
    pub v4: Addr,
    pub v6: Addr,
}

const _: () = assert!(size_of::<DeviceValue>() == 32);

/// What became of a packet; see [`CpuTraffic`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Not dropped.
    Forwarded = 0,
    /// A header that is cut short or contradicts itself.
    Malformed = 1,
    /// A pod sent from an address or a MAC that is not its own.
    InvalidSource = 2,
    /// A pod sent a packet of the tunnel's own.
    TunnelFromPod = 3,
    /// A tunnel packet from who is no node, or with an inner source that is not that node's.
    TunnelFromStranger = 4,
    /// Masquerading found no free port.
    NoNatPort = 5,
    /// Masquerading has no address on the device.
    NoNatAddress = 6,
    /// A piece of a datagram whose first piece was not seen.
    UnknownFragment = 7,
    /// A service without backends, or a connection that its backend would take for another one; the client is told.
    NoBackends = 8,
    /// A map had no room for a flow that needs to be remembered.
    MapFull = 9,
    /// Addresses that no pod of this node has any more.
    UnknownEndpoint = 10,
    /// The kernel refused to change or redirect the packet.
    KernelError = 11,
    /// Policy, of the peer or of the pod.
    PolicyDenied = 12,
    /// A packet to be masqueraded that has neither ports nor an echo identifier to know its answers by.
    NatUnsupported = 13,
}

impl Reason {
    pub const ALL: [Self; 14] = [
        Self::Forwarded,
        Self::Malformed,
        Self::InvalidSource,
        Self::TunnelFromPod,
        Self::TunnelFromStranger,
        Self::NoNatPort,
        Self::NoNatAddress,
        Self::UnknownFragment,
        Self::NoBackends,
        Self::MapFull,
        Self::UnknownEndpoint,
        Self::KernelError,
        Self::PolicyDenied,
        Self::NatUnsupported,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Malformed => "malformed",
            Self::InvalidSource => "invalid-source",
            Self::TunnelFromPod => "tunnel-from-pod",
            Self::TunnelFromStranger => "tunnel-from-stranger",
            Self::NoNatPort => "no-nat-port",
            Self::NoNatAddress => "no-nat-address",
            Self::UnknownFragment => "unknown-fragment",
            Self::NoBackends => "no-backends",
            Self::MapFull => "map-full",
            Self::UnknownEndpoint => "unknown-endpoint",
            Self::KernelError => "kernel-error",
            Self::PolicyDenied => "policy-denied",
            Self::NatUnsupported => "nat-unsupported",
        }
    }
}

/// From the pod's or the node's point of view.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    Egress = 0,
    Ingress = 1,
}

/// Packets of one reason and direction.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub packets: u64,
    pub bytes: u64,
}

/// Element of `pw_traffic`, a per-CPU array by [`Reason`].
///
/// The first one, of what goes on, has the packet under way beside its counts: each place of its own would cost a packet
/// that comes alone two cache misses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CpuTraffic {
    /// As the programs parse it; for nobody else.
    pub packet: [u64; Self::PACKET_WORDS],
    pub egress: Traffic,
    pub ingress: Traffic,
}

const _: () = assert!(size_of::<CpuTraffic>() == 128);

impl CpuTraffic {
    /// Room for a parsed packet.
    pub const PACKET_WORDS: usize = 12;

    pub const fn of(&self, direction: Direction) -> Traffic {
        match direction {
            Direction::Egress => self.egress,
            Direction::Ingress => self.ingress,
        }
    }

    /// Counts a packet.
    #[inline(always)]
    pub fn add(&mut self, direction: Direction, bytes: u32) {
        let traffic = match direction {
            Direction::Egress => &mut self.egress,
            Direction::Ingress => &mut self.ingress,
        };
        traffic.packets += 1;
        traffic.bytes += u64::from(bytes);
    }
}
