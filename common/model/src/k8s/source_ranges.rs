//! `spec.loadBalancerSourceRanges`: who may come in by a load balancer's address.

use std::net::IpAddr;

use portway_datapath::Addr;

use super::field::Refusals;
use super::service::sorted;
use super::{SourceRanges, raw};

pub(super) fn source_ranges(spec: &raw::ServiceSpec<'_>, refusals: &mut Refusals<'_>) -> SourceRanges {
    let Some(written) = spec.load_balancer_source_ranges.as_ref().filter(|ranges| !ranges.is_empty()) else {
        return SourceRanges::Any;
    };
    let mut ranges = Vec::with_capacity(written.len());
    for (n, text) in written.iter().enumerate() {
        let field = format!("spec.loadBalancerSourceRanges[{n}]");
        match text.as_deref() {
            None => refusals.push_null(field),
            Some(text) => match prefix(text.trim()) {
                Some(range) => ranges.push(range),
                None => refusals.push(
                    field,
                    text,
                    "is no prefix such as 10.0.0.0/8 or fd00::/64; nobody comes in by it, the other ranges apply",
                ),
            },
        }
    }
    SourceRanges::Only(sorted(ranges))
}

/// The address with its host bits zero, and the bits as [`Addr`] counts them.
fn prefix(text: &str) -> Option<(Addr, u8)> {
    let (ip, bits) = text.split_once('/')?;
    if !bits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (ip, bits): (IpAddr, u8) = (ip.parse().ok()?, bits.parse().ok()?);
    let bits = match ip {
        IpAddr::V4(_) if bits <= 32 => bits + 96,
        IpAddr::V6(_) if bits <= 128 => bits,
        IpAddr::V4(_) | IpAddr::V6(_) => return None,
    };
    let octets = u128::from_be_bytes(Addr::from(ip).octets());
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    let addr = Addr::v6((octets & mask).to_be_bytes());
    // A v4-mapped prefix shorter than 96 bits would be an IPv6 prefix that contains all of IPv4.
    (addr.family() == Addr::from(ip).family()).then_some((addr, bits))
}
