use std::fmt;
use std::net::IpAddr;

use portway_datapath::maglev::Seed;
use portway_runtime::config::{Invalid, parse_bool};

/// Ports in host order, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// A prefix of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    addr: IpAddr,
    bits: u8,
}

impl Cidr {
    /// As it was written, with the bits past the prefix.
    pub const fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Of the prefix, out of 32 or 128.
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether the prefix covers an address of its family.
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.addr, addr) {
            (IpAddr::V4(net), IpAddr::V4(addr)) => {
                let shift = 32 - u32::from(self.bits);
                (u32::from(net) ^ u32::from(addr)).checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(net), IpAddr::V6(addr)) => {
                let shift = 128 - u32::from(self.bits);
                (u128::from(net) ^ u128::from(addr)).checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.bits)
    }
}

/// An error whose allowed values are those of the key.
pub(super) fn mend(mend: &str) -> Invalid {
    Invalid::new("", mend)
}

/// Whether a switch is on whose spelling is nobody's concern here.
pub(super) fn is_on(value: &str) -> bool {
    parse_bool(value).unwrap_or_default()
}

/// `30000,32767`, as Cilium writes it, or `30000-32767`, as the API server does.
pub(super) fn port_range(value: &str) -> Result<PortRange, Invalid> {
    let bad = || mend("use 30000,32767 (the default)");
    let (first, last) = value.split_once([',', '-']).ok_or_else(bad)?;
    let port = |text: &str| text.trim().parse().ok().filter(|port| *port != 0);
    let (first, last) = (port(first).ok_or_else(bad)?, port(last).ok_or_else(bad)?);
    if first > last {
        return Err(mend("put the smaller port first"));
    }
    Ok(PortRange { first, last })
}

/// Prefixes or single addresses, separated by commas or spaces; `auto` and nothing are the empty list.
pub(super) fn cidrs(value: &str) -> Result<Vec<Cidr>, Invalid> {
    if value == "auto" {
        return Ok(Vec::new());
    }
    value.split([',', ' ']).map(str::trim).filter(|text| !text.is_empty()).map(cidr).collect()
}

pub(super) fn cidr(text: &str) -> Result<Cidr, Invalid> {
    let bad = || mend(&format!("{text:?} is no prefix: write e.g. 192.168.0.0/16"));
    let (addr, bits) = match text.split_once('/') {
        Some((addr, bits)) => (addr, Some(bits)),
        None => (text, None),
    };
    let addr: IpAddr = addr.parse().map_err(|_| bad())?;
    let longest = if addr.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        Some(bits) => bits.parse().ok().filter(|bits| *bits <= longest).ok_or_else(bad)?,
        None => longest,
    };
    Ok(Cidr { addr, bits })
}

/// A key with one value for the time being.
pub(super) fn only(default: &str, value: &str) -> Result<(), Invalid> {
    if value == default {
        Ok(())
    } else {
        Err(mend(&format!("use {default} (the default), or leave it out")))
    }
}

/// What an older word of `kube-proxy-replacement` means; `None` for today's words.
pub(super) fn older_replacement(value: &str) -> Option<bool> {
    match value {
        "strict" | "partial" | "probe" => Some(true),
        "disabled" => Some(false),
        _ => None,
    }
}

pub(super) fn replacement(value: &str) -> Result<bool, Invalid> {
    match older_replacement(value) {
        Some(meaning) => Ok(meaning),
        None => parse_bool(value).map_err(|_| mend("write true or false")),
    }
}

/// A prime from 251 to 131071: Cilium's bounds, but any prime between.
pub(super) fn maglev_size(value: &str) -> Result<u32, Invalid> {
    let bad = || mend("use 251, 509, 1021, 2039, 4093, 8191, 16381 (the default), 32749, 65521 or 131071");
    let size: u32 = value.parse().map_err(|_| bad())?;
    let is_prime = || (2..).take_while(|n| n * n <= size).all(|n| !size.is_multiple_of(n));
    if (251..=131_071).contains(&size) && is_prime() { Ok(size) } else { Err(bad()) }
}

pub(super) fn seed(value: &str) -> Result<Seed, Invalid> {
    decode_base64(value)
        .and_then(|bytes| <[u8; 12]>::try_from(bytes).ok())
        .map(Seed)
        .ok_or_else(|| mend("make one with: head -c12 /dev/urandom | base64 -w0"))
}

/// RFC 4648, section 4, for what needs no padding: whole groups of four characters.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(u32::from(c - b'A')),
        b'a'..=b'z' => Some(u32::from(c - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(c - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::new();
    for group in text.as_bytes().chunks(4) {
        let [a, b, c, d] = group else { return None };
        let word = digit(*a)? << 18 | digit(*b)? << 12 | digit(*c)? << 6 | digit(*d)?;
        let [_, x, y, z] = word.to_be_bytes();
        bytes.extend([x, y, z]);
    }
    Some(bytes)
}
