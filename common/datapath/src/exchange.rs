use crate::frontend::mix;
use crate::{Addr, BackendRef, Port, Protocol};

/// A UDP exchange ends after this many nanoseconds without a datagram: the next one may go to another backend.
pub const UDP_IDLE_NS: u64 = 60_000_000_000;

/// Key of `pw_sock_udp`: an unconnected socket and the frontend it sends to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExchangeKey {
    /// The socket's cookie.
    cookie: u64,
    addr: Addr,
    port: Port,
    protocol: u8,
    _pad: [u8; 5],
}

const _: () = assert!(size_of::<ExchangeKey>() == 32);

impl ExchangeKey {
    #[inline(always)]
    pub const fn new(cookie: u64, frontend: Addr, port: Port) -> Self {
        Self { cookie, addr: frontend, port, protocol: Protocol::UDP.number(), _pad: [0; 5] }
    }
}

/// Value of `pw_sock_udp`: the backend that this socket's datagrams go to. Both words change in place.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeValue {
    /// [`BackendRef`].
    pub backend: u64,
    /// Nanoseconds on the coarse monotonic clock.
    pub last_used: u64,
}

const _: () = assert!(size_of::<ExchangeValue>() == 16);

impl ExchangeValue {
    #[inline(always)]
    pub const fn new(backend: BackendRef, now: u64) -> Self {
        Self { backend: backend.word(), last_used: now }
    }

    #[inline(always)]
    pub const fn is_fresh(&self, now: u64) -> bool {
        now.saturating_sub(self.last_used) < UDP_IDLE_NS
    }
}

/// Key of `pw_sock_replies`: a socket and the backend that answers it.
pub type ReplyKey = ExchangeKey;

/// Value of `pw_sock_replies`: the frontend that the socket was talking to.
///
/// It changes in place when one socket reaches a backend by two frontends; `tag` covers key and value, so that a
/// reader never takes a half-written one, or one of a reused element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyValue {
    pub addr: Addr,
    pub port: Port,
    _pad: [u8; 2],
    pub tag: u32,
}

const _: () = assert!(size_of::<ReplyValue>() == 24);

impl ReplyValue {
    #[inline(always)]
    pub const fn new(key: &ReplyKey, frontend: Addr, port: Port) -> Self {
        Self { addr: frontend, port, _pad: [0; 2], tag: Self::tag_of(key, frontend, port) }
    }

    /// Whether this value was written whole, for `key`.
    #[inline(always)]
    pub const fn is_of(&self, key: &ReplyKey) -> bool {
        self.tag == Self::tag_of(key, self.addr, self.port)
    }

    #[inline(always)]
    const fn tag_of(key: &ReplyKey, frontend: Addr, port: Port) -> u32 {
        let (k, f) = (key.addr.words(), frontend.words());
        let hash = mix(mix(0x85eb_ca6b, key.cookie as u32), (key.cookie >> 32) as u32);
        let hash = mix(mix(mix(mix(hash, k[0]), k[1]), k[2]), k[3]);
        let hash = mix(mix(mix(mix(hash, f[0]), f[1]), f[2]), f[3]);
        mix(hash, key.port.network() << 16 | port.network())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_value_of_another_key_or_half_written_is_noticed() {
        let key = |cookie| ReplyKey::new(cookie, Addr::v4([10, 0, 0, 1]), Port::new(53));
        let value = ReplyValue::new(&key(1), Addr::v4([10, 96, 0, 10]), Port::new(53));
        assert!(value.is_of(&key(1)));
        assert!(!value.is_of(&key(2)));
        let torn = ReplyValue { addr: Addr::v4([10, 96, 0, 11]), ..value };
        assert!(!torn.is_of(&key(1)));
    }
}
