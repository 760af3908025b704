//! What the programs of an earlier agent have learned, in maps of their own, while a new agent takes over.
//!
//! Where the maps of the new agent are other ones (other sizes, another layout version), programs are replaced twice: first
//! by those that end in `_both`, which write the new maps and read the earlier ones where the new have nothing; then,
//! when user space has copied everything, by the ordinary ones. So no call of a socket finds its translation missing.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, LruHashMap};
use portway_datapath::{
    Addr, AffinityKey, AffinityValue, BackendIndex, BackendSlot, Counter, ExchangeKey, ExchangeValue,
    FrontendKey, FrontendValue, LocalAddress, NetnsOptions, NodeConfig, Record, ReplyKey, ReplyValue,
    RunOffset, ServiceIndex, ServiceWord, SocketTranslation, Tables,
};

use crate::maps::{KernelTables, affinity_of, exchange_of, reply_of};

/// Entries where there is no earlier agent: nobody writes these maps then.
const NONE: u32 = 1;

#[map(name = "pw_sock_old")]
static SOCKETS: HashMap<u64, SocketTranslation> = HashMap::with_max_entries(NONE, BPF_F_NO_PREALLOC);

#[map(name = "pw_udp_old")]
static EXCHANGES: LruHashMap<ExchangeKey, ExchangeValue> = LruHashMap::with_max_entries(NONE, 0);

#[map(name = "pw_replies_old")]
static REPLIES: LruHashMap<ReplyKey, ReplyValue> = LruHashMap::with_max_entries(NONE, 0);

#[map(name = "pw_affinity_old")]
static AFFINITY: LruHashMap<AffinityKey, AffinityValue> = LruHashMap::with_max_entries(NONE, 0);

/// The earlier entry of `pw_sock`.
#[inline(always)]
pub(crate) fn recall<'a>(cookie: u64) -> Option<&'a SocketTranslation> {
    // SAFETY: as for `pw_sock`.
    unsafe { SOCKETS.get(cookie) }
}

#[inline(always)]
pub(crate) fn forget(cookie: u64) -> bool {
    recall(cookie).is_some() && SOCKETS.remove(cookie).is_ok()
}

/// [`KernelTables`], and the earlier maps where it has no entry.
pub(crate) struct BothTables;

impl Tables for BothTables {
    #[inline(always)]
    fn config(&self) -> NodeConfig {
        KernelTables.config()
    }

    #[inline(always)]
    fn netns(&self, cookie: u64) -> Option<NetnsOptions> {
        KernelTables.netns(cookie)
    }

    #[inline(always)]
    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue> {
        KernelTables.frontend(key)
    }

    #[inline(always)]
    fn local_address(&self, addr: &Addr) -> Option<LocalAddress> {
        KernelTables.local_address(addr)
    }

    #[inline(always)]
    fn service(&self, index: ServiceIndex) -> Option<ServiceWord> {
        KernelTables.service(index)
    }

    #[inline(always)]
    fn record(&self, at: RunOffset) -> Option<Record> {
        KernelTables.record(at)
    }

    #[inline(always)]
    fn backend(&self, index: BackendIndex) -> Option<BackendSlot> {
        KernelTables.backend(index)
    }

    #[inline(always)]
    fn affinity(&self, key: &AffinityKey) -> Option<AffinityValue> {
        KernelTables.affinity(key).or_else(|| affinity_of(&AFFINITY, key))
    }

    #[inline(always)]
    fn set_affinity(&self, key: &AffinityKey, value: AffinityValue) {
        KernelTables.set_affinity(key, value);
    }

    #[inline(always)]
    fn exchange(&self, key: &ExchangeKey) -> Option<ExchangeValue> {
        KernelTables.exchange(key).or_else(|| exchange_of(&EXCHANGES, key))
    }

    #[inline(always)]
    fn set_exchange(&self, key: &ExchangeKey, value: ExchangeValue) {
        KernelTables.set_exchange(key, value);
    }

    #[inline(always)]
    fn reply(&self, key: &ReplyKey) -> Option<ReplyValue> {
        KernelTables.reply(key).or_else(|| reply_of(&REPLIES, key))
    }

    #[inline(always)]
    fn set_reply(&self, key: &ReplyKey, value: ReplyValue) {
        KernelTables.set_reply(key, value);
    }

    #[inline(always)]
    fn random(&self) -> u32 {
        KernelTables.random()
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        KernelTables.now()
    }

    #[inline(always)]
    fn count(&self, counter: Counter) {
        KernelTables.count(counter);
    }
}
