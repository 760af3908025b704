use crate::{Addr, FlowKey, FragmentKey, FragmentValue, Port};

/// The ends of a packet as they stand in its headers.
///
/// Ports are those of TCP, UDP, UDP-Lite and SCTP; of an ICMP echo both are its identifier; of everything else 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    pub source: Addr,
    pub destination: Addr,
    pub source_port: Port,
    pub destination_port: Port,
    /// IP protocol number, of IPv6 that behind the extension headers.
    pub protocol: u8,
}

impl Tuple {
    /// The packet that answers this one.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
        }
    }

    /// The flow of this packet as its sender sees it.
    #[inline(always)]
    pub const fn flow_of_source(&self, kind: u8) -> FlowKey {
        FlowKey::new(
            (self.source, self.source_port),
            (self.destination, self.destination_port),
            self.protocol,
            kind,
        )
    }

    /// The flow of this packet as its receiver sees it.
    #[inline(always)]
    pub const fn flow_of_destination(&self, kind: u8) -> FlowKey {
        self.reversed().flow_of_source(kind)
    }
}

/// IP protocol numbers that packets are looked into for.
pub mod protocol {
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ICMPV6: u8 = 58;
    pub const SCTP: u8 = 132;
    pub const UDP_LITE: u8 = 136;
}

/// The low byte of a TCP header's flags.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpFlags(u8);

impl TcpFlags {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const ACK: u8 = 16;

    #[inline(always)]
    pub const fn new(byte: u8) -> Self {
        Self(byte)
    }

    #[inline(always)]
    pub const fn get(self) -> u8 {
        self.0
    }

    #[inline(always)]
    pub const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    /// SYN without ACK: someone begins.
    #[inline(always)]
    pub const fn opens(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN
    }

    /// SYN with ACK: someone answers who began.
    #[inline(always)]
    pub const fn answers_syn(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN | Self::ACK
    }
}

/// Which part of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    Whole,
    /// The first of several: it has the transport header.
    First,
    /// Has no transport header: bytes at its place are payload.
    Later,
}

/// What an ICMP message is for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpClass {
    /// An echo request or reply: a flow of its own.
    Echo,
    /// An error that quotes the packet it is about.
    Error,
    Other,
}

/// The class of an ICMP type; `protocol` says of which family.
#[inline(always)]
pub const fn icmp_class(protocol: u8, icmp_type: u8) -> IcmpClass {
    if protocol == protocol::ICMP {
        match icmp_type {
            0 | 8 => IcmpClass::Echo,
            // Destination unreachable, source quench, redirect, time exceeded, parameter problem (RFC 792).
            3 | 4 | 5 | 11 | 12 => IcmpClass::Error,
            _ => IcmpClass::Other,
        }
    } else {
        match icmp_type {
            128 | 129 => IcmpClass::Echo,
            // All types below 128 are errors (RFC 4443, section 2.1); these exist.
            1..=4 => IcmpClass::Error,
            _ => IcmpClass::Other,
        }
    }
}

/// What later pieces need of the first.
#[inline(always)]
pub const fn fragment_key(tuple: &Tuple, id: u32) -> FragmentKey {
    FragmentKey::new(tuple.source, tuple.destination, id, tuple.protocol)
}

/// The transport header of a first piece, as later ones need it.
#[inline(always)]
pub const fn fragment_value(tuple: &Tuple, icmp_type: u8, icmp_code: u8) -> FragmentValue {
    FragmentValue::new(tuple.source_port, tuple.destination_port, icmp_type, icmp_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple() -> Tuple {
        Tuple {
            source: Addr::v4([10, 0, 0, 1]),
            destination: Addr::v4([10, 0, 0, 2]),
            source_port: Port::new(40_000),
            destination_port: Port::new(80),
            protocol: protocol::TCP,
        }
    }

    #[test]
    fn both_directions_of_a_flow_have_one_key_for_each_end() {
        let (there, back) = (tuple(), tuple().reversed());
        assert_eq!(there.flow_of_source(FlowKey::PLAIN), back.flow_of_destination(FlowKey::PLAIN));
        assert_eq!(there.flow_of_destination(FlowKey::PLAIN), back.flow_of_source(FlowKey::PLAIN));
        assert_ne!(there.flow_of_source(FlowKey::PLAIN), there.flow_of_destination(FlowKey::PLAIN));
        assert_eq!(back.reversed(), there);
    }

    #[test]
    fn only_a_lone_syn_opens() {
        assert!(TcpFlags::new(TcpFlags::SYN).opens());
        assert!(TcpFlags::new(TcpFlags::SYN | 0x40 | 0x80).opens(), "ECN bits do not matter");
        assert!(!TcpFlags::new(TcpFlags::SYN | TcpFlags::ACK).opens());
        assert!(!TcpFlags::new(TcpFlags::SYN | TcpFlags::RST).opens());
        assert!(!TcpFlags::new(TcpFlags::ACK).opens());
    }

    #[test]
    fn only_a_syn_that_acknowledges_answers_one() {
        assert!(TcpFlags::new(TcpFlags::SYN | TcpFlags::ACK | 0x40).answers_syn());
        for flags in
            [TcpFlags::SYN, TcpFlags::ACK, TcpFlags::SYN | TcpFlags::ACK | TcpFlags::RST, TcpFlags::FIN]
        {
            assert!(!TcpFlags::new(flags).answers_syn(), "{flags:#x}");
        }
    }

    #[test]
    fn an_icmp_type_is_read_by_its_family() {
        assert_eq!(icmp_class(protocol::ICMP, 3), IcmpClass::Error);
        assert_eq!(icmp_class(protocol::ICMPV6, 3), IcmpClass::Error);
        assert_eq!(icmp_class(protocol::ICMP, 8), IcmpClass::Echo);
        assert_eq!(icmp_class(protocol::ICMPV6, 8), IcmpClass::Other);
        assert_eq!(icmp_class(protocol::ICMPV6, 129), IcmpClass::Echo);
        assert_eq!(icmp_class(protocol::ICMP, 128), IcmpClass::Other);
        assert_eq!(icmp_class(protocol::ICMPV6, 135), IcmpClass::Other);
    }
}
