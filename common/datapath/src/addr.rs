use core::fmt;

/// An IP address: 16 bytes in network order, IPv4 as an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`).
///
/// One type, one map and one program path serve both families.
///
/// Held as words, as the kernel's structures hold it: with bytes the compiler would build every key on the
/// program's stack byte by byte.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Addr([u32; 4]);

const _: () = assert!(size_of::<Addr>() == 16 && align_of::<Addr>() == 4);

/// The family of an address, of a frontend and so of a service index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Addr {
    /// `::ffff:0.0.0.0`: the address of IPv4 frontends that answer on any address of the node.
    pub const ANY_V4: Self = Self::v4([0, 0, 0, 0]);
    /// `::`: the address of IPv6 frontends that answer on any address of the node.
    pub const ANY_V6: Self = Self([0; 4]);

    /// The third word of an IPv4-mapped address.
    const MAPPED: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

    /// From four octets in network order.
    #[inline(always)]
    pub const fn v4(o: [u8; 4]) -> Self {
        Self([0, 0, Self::MAPPED, u32::from_ne_bytes(o)])
    }

    /// From the word in which a kernel structure holds an IPv4 address: network order in memory.
    #[inline(always)]
    pub const fn from_v4_word(word: u32) -> Self {
        Self([0, 0, Self::MAPPED, word])
    }

    /// From sixteen octets in network order. A v4-mapped address *is* the IPv4 address.
    #[inline(always)]
    pub const fn v6(o: [u8; 16]) -> Self {
        Self([
            u32::from_ne_bytes([o[0], o[1], o[2], o[3]]),
            u32::from_ne_bytes([o[4], o[5], o[6], o[7]]),
            u32::from_ne_bytes([o[8], o[9], o[10], o[11]]),
            u32::from_ne_bytes([o[12], o[13], o[14], o[15]]),
        ])
    }

    /// From four words as a kernel structure holds them: network order in memory.
    #[inline(always)]
    pub const fn from_words(w: [u32; 4]) -> Self {
        Self(w)
    }

    /// Four words as a kernel structure holds them: network order in memory.
    #[inline(always)]
    pub const fn words(self) -> [u32; 4] {
        self.0
    }

    /// The octets in network order.
    #[inline(always)]
    pub const fn octets(self) -> [u8; 16] {
        let [a, b, c, d] = self.0;
        let (a, b, c, d) = (a.to_ne_bytes(), b.to_ne_bytes(), c.to_ne_bytes(), d.to_ne_bytes());
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]]
    }

    #[inline(always)]
    pub const fn family(self) -> Family {
        let w = self.0;
        if w[0] == 0 && w[1] == 0 && w[2] == Self::MAPPED { Family::V4 } else { Family::V6 }
    }

    /// The address under which frontends of this address' family answer on any address of the node.
    #[inline(always)]
    pub const fn any(self) -> Self {
        match self.family() {
            Family::V4 => Self::ANY_V4,
            Family::V6 => Self::ANY_V6,
        }
    }

    #[inline(always)]
    pub const fn is_unspecified(self) -> bool {
        let w = self.words();
        w[3] == 0 && w[0] == 0 && w[1] == 0 && (w[2] == 0 || matches!(self.family(), Family::V4))
    }

    /// 127.0.0.0/8 and ::1.
    #[inline(always)]
    pub const fn is_loopback(self) -> bool {
        match self.family() {
            Family::V4 => self.0[3].to_ne_bytes()[0] == 127,
            Family::V6 => {
                let w = self.words();
                w[0] == 0 && w[1] == 0 && w[2] == 0 && w[3] == 1u32.to_be()
            }
        }
    }
}

impl Ord for Addr {
    /// By number, whatever the byte order of the machine.
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.octets().cmp(&other.octets())
    }
}

impl PartialOrd for Addr {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl From<core::net::IpAddr> for Addr {
    fn from(ip: core::net::IpAddr) -> Self {
        match ip {
            core::net::IpAddr::V4(v4) => Self::v4(v4.octets()),
            core::net::IpAddr::V6(v6) => Self::v6(v6.octets()),
        }
    }
}

impl From<Addr> for core::net::IpAddr {
    fn from(addr: Addr) -> Self {
        match addr.family() {
            Family::V4 => Self::V4(core::net::Ipv4Addr::from(addr.0[3].to_ne_bytes())),
            Family::V6 => Self::V6(core::net::Ipv6Addr::from(addr.octets())),
        }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::net::IpAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A port in network order.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Port([u8; 2]);

const _: () = assert!(size_of::<Port>() == 2 && align_of::<Port>() == 1);

impl Port {
    /// From a number in host order.
    #[inline(always)]
    pub const fn new(host_order: u16) -> Self {
        Self(host_order.to_be_bytes())
    }

    /// From the low half of a kernel field that holds a port in network order (`bpf_sock_addr.user_port`).
    #[inline(always)]
    pub const fn from_network(word: u32) -> Self {
        let b = word.to_ne_bytes();
        if cfg!(target_endian = "little") { Self([b[0], b[1]]) } else { Self([b[2], b[3]]) }
    }

    /// As a kernel field that holds a port in network order.
    #[inline(always)]
    pub const fn network(self) -> u32 {
        u16::from_ne_bytes(self.0) as u32
    }

    /// The number in host order.
    #[inline(always)]
    pub const fn get(self) -> u16 {
        u16::from_be_bytes(self.0)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A transport protocol by its IP protocol number. UDP-Lite counts as UDP, as in Cilium; the kernel
/// calls the hooks of its datagrams and none in its connect.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(u8);

impl Protocol {
    pub const TCP: Self = Self(6);
    pub const UDP: Self = Self(17);
    pub const SCTP: Self = Self(132);
    const UDP_LITE: u32 = 136;

    /// From the protocol of a socket; `None` for what no socket hook translates.
    #[inline(always)]
    pub const fn from_socket(protocol: u32) -> Option<Self> {
        match protocol {
            6 => Some(Self::TCP),
            17 | Self::UDP_LITE => Some(Self::UDP),
            _ => None,
        }
    }

    /// From a protocol number in a map; `None` for a number that Portway never writes.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            6 | 17 | 132 => Some(Self(number)),
            _ => None,
        }
    }

    #[inline(always)]
    pub const fn number(self) -> u8 {
        self.0
    }

    pub const fn name(self) -> &'static str {
        match self.0 {
            6 => "TCP",
            17 => "UDP",
            _ => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;
    use std::string::ToString as _;

    use super::*;

    fn addr(s: &str) -> Addr {
        s.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        assert_eq!(addr("::ffff:10.0.0.1"), addr("10.0.0.1"));
        assert_eq!(addr("10.0.0.1").family(), Family::V4);
        assert_eq!(addr("fd00::1").family(), Family::V6);
        assert_eq!(addr("10.0.0.1").to_string(), "10.0.0.1");
        assert_eq!(addr("fd00::1").to_string(), "fd00::1");
    }

    #[test]
    fn words_round_trip() {
        for s in ["10.1.2.3", "fd00:1:2:3:4:5:6:7", "::1", "127.0.0.1"] {
            assert_eq!(Addr::from_words(addr(s).words()), addr(s));
        }
    }

    #[test]
    fn addresses_are_ordered_by_number() {
        let sorted = ["::1", "1.2.3.4", "10.0.0.1", "10.0.0.2", "10.0.1.0", "fd00::1", "fd00::1:0"].map(addr);
        assert!(sorted.is_sorted());
    }

    #[test]
    fn loopback_and_unspecified_are_known_in_both_families() {
        assert!(addr("127.9.9.9").is_loopback() && addr("::1").is_loopback());
        assert!(!addr("128.0.0.1").is_loopback() && !addr("::2").is_loopback());
        assert!(addr("0.0.0.0").is_unspecified() && addr("::").is_unspecified());
        assert!(!addr("0.0.0.1").is_unspecified() && !addr("::1").is_unspecified());
        assert!(!addr("fd00::").is_unspecified() && !addr("0:0:ffff::").is_unspecified());
    }

    #[test]
    fn a_port_keeps_network_order() {
        assert_eq!(Port::new(80).get(), 80);
        assert_eq!(Port::from_network(Port::new(8080).network()), Port::new(8080));
        assert_eq!(Port::new(0x1234).network(), u32::from(0x1234u16.to_be()));
    }
}
