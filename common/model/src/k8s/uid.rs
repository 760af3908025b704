use std::fmt;

/// `metadata.uid` in a third of a text's memory: the 16 bytes of the UUID (RFC 9562) that the API server writes.
///
/// Any other text, which only a manifest in a directory has, is 16 bytes of its hash: as good for comparing, but not
/// what is to be sent to an API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid([u8; 16]);

impl Uid {
    /// Of an object without one.
    pub const NONE: Self = Self([0; 16]);

    /// "" is [`Self::NONE`].
    pub fn new(text: &str) -> Self {
        if text.is_empty() {
            return Self::NONE;
        }
        let uuid = u128::from_str_radix(&text.replace('-', ""), 16).map(|number| Self(number.to_be_bytes()));
        match uuid {
            Ok(uid) if uid.to_string() == text => uid,
            Ok(_) | Err(_) => Self(fnv_1a(text).to_be_bytes()),
        }
    }

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return Ok(());
        }
        let digits = format!("{:032x}", u128::from_be_bytes(self.0));
        let part = |from, to| digits.get(from..to).unwrap_or("");
        write!(f, "{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
    }
}

/// FNV-1a of 128 bits (draft-eastlake-fnv).
fn fnv_1a(text: &str) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_of_the_api_server_comes_back_as_it_was() {
        let text = "798c2fec-5eb1-4906-a301-517607560d90";
        assert_eq!(Uid::new(text).to_string(), text);
        assert_eq!((Uid::new("").to_string(), Uid::new("")), (String::new(), Uid::NONE));
    }

    #[test]
    fn texts_that_are_no_uid_still_differ() {
        let upper = "798C2FEC-5EB1-4906-A301-517607560D90";
        let texts = ["1", "2", "pod-1", upper, &upper.to_lowercase(), "798c2fec5eb14906a301517607560d90"];
        let uids: std::collections::BTreeSet<_> = texts.iter().map(|text| Uid::new(text)).collect();
        assert_eq!(uids.len(), texts.len());
        assert!(!uids.contains(&Uid::NONE));
    }
}
