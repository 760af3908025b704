use crate::{
    Addr, AffinityKey, AffinityValue, BackendIndex, BackendSlot, Counter, ExchangeKey, ExchangeValue,
    FrontendKey, FrontendValue, LocalAddress, NetnsOptions, NodeConfig, Record, ReplyKey, ReplyValue,
    RunOffset, ServiceIndex, ServiceWord,
};

/// The maps as the decisions see them. Implemented on BPF maps by the programs, on memory by user space.
///
/// `pw_frontends` and `pw_local_addresses` are read with a single lookup; everything else is an array element or
/// an entry that only programs write. A word that user space publishes with one store ([`FrontendValue`],
/// [`ServiceWord`], [`BackendSlot::state`], the words of [`NodeConfig`]) is read with one load.
pub trait Tables {
    /// `pw_config`.
    fn config(&self) -> NodeConfig;
    /// `pw_netns`: what is done for the sockets of a network namespace, by its cookie.
    fn netns(&self, cookie: u64) -> Option<NetnsOptions>;
    /// `pw_frontends`.
    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue>;
    /// `pw_local_addresses`.
    fn local_address(&self, addr: &Addr) -> Option<LocalAddress>;
    /// `pw_services`.
    fn service(&self, index: ServiceIndex) -> Option<ServiceWord>;
    /// `pw_runs`.
    fn record(&self, at: RunOffset) -> Option<Record>;
    /// `pw_backends`.
    fn backend(&self, index: BackendIndex) -> Option<BackendSlot>;
    /// `pw_affinity`.
    fn affinity(&self, key: &AffinityKey) -> Option<AffinityValue>;
    /// Changes an entry in place, or makes it. A full map loses its least recently used entry.
    fn set_affinity(&self, key: &AffinityKey, value: AffinityValue);
    /// `pw_sock_udp`.
    fn exchange(&self, key: &ExchangeKey) -> Option<ExchangeValue>;
    /// As [`Self::set_affinity`].
    fn set_exchange(&self, key: &ExchangeKey, value: ExchangeValue);
    /// `pw_sock_replies`.
    fn reply(&self, key: &ReplyKey) -> Option<ReplyValue>;
    /// As [`Self::set_affinity`].
    fn set_reply(&self, key: &ReplyKey, value: ReplyValue);
    /// 32 random bits.
    fn random(&self) -> u32;
    /// Nanoseconds on the coarse monotonic clock.
    fn now(&self) -> u64;
    fn count(&self, counter: Counter);
}
