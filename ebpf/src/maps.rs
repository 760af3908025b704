//! The maps, and the [`Tables`] of the decisions on them.
//!
//! Nothing outside this module, [`crate::connected`] and [`crate::earlier`] touches a map. Sizes are the defaults; the loader overrides
//! them.

use core::ptr;

use aya_ebpf::bindings::{BPF_ANY, BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_ktime_get_coarse_ns};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray};
use portway_datapath::layout::{MAGLEV_SLOTS, PodSizes, Sizes};
use portway_datapath::{
    Addr, AffinityKey, AffinityValue, BackendIndex, BackendSlot, Counter, ExchangeKey, ExchangeValue,
    FrontendKey, FrontendValue, LocalAddress, NetnsOptions, NodeConfig, Record, ReplyKey, ReplyValue,
    RunOffset, ServiceIndex, ServiceName, ServiceWord, SourceRange, Tables,
};

const SIZES: Sizes = Sizes::DEFAULT;

#[map(name = "pw_frontends")]
static FRONTENDS: HashMap<FrontendKey, u64> = HashMap::with_max_entries(SIZES.frontends, BPF_F_NO_PREALLOC);

#[map(name = "pw_local_addresses")]
static LOCAL_ADDRESSES: HashMap<Addr, u64> =
    HashMap::with_max_entries(SIZES.local_addresses, BPF_F_NO_PREALLOC);

/// Of the pod network: where there is none, a map of the object's own that stays empty.
#[map(name = "pw_netns")]
static NETNS: HashMap<u64, u64> = HashMap::with_max_entries(PodSizes::DEFAULT.endpoints, BPF_F_NO_PREALLOC);

#[map(name = "pw_services")]
static SERVICES: Array<u64> = Array::with_max_entries(SIZES.services, BPF_F_MMAPABLE);

#[map(name = "pw_runs")]
static RUNS: Array<Record> = Array::with_max_entries(SIZES.runs, BPF_F_MMAPABLE);

#[map(name = "pw_backends")]
static BACKENDS: Array<BackendSlot> = Array::with_max_entries(SIZES.backends, BPF_F_MMAPABLE);

/// Read by the programs for outside traffic; the socket path picks at random.
#[map(name = "pw_maglev")]
static MAGLEV: Array<[u16; MAGLEV_SLOTS as usize]> =
    Array::with_max_entries(SIZES.maglev.div_ceil(MAGLEV_SLOTS), BPF_F_MMAPABLE);

#[map(name = "pw_config")]
static CONFIG: Array<NodeConfig> = Array::with_max_entries(1, BPF_F_MMAPABLE);

#[map(name = "pw_affinity")]
static AFFINITY: LruHashMap<AffinityKey, AffinityValue> = LruHashMap::with_max_entries(SIZES.affinity, 0);

#[map(name = "pw_sock_udp")]
static EXCHANGES: LruHashMap<ExchangeKey, ExchangeValue> = LruHashMap::with_max_entries(SIZES.exchanges, 0);

#[map(name = "pw_sock_replies")]
static REPLIES: LruHashMap<ReplyKey, ReplyValue> = LruHashMap::with_max_entries(SIZES.exchanges, 0);

/// Read by the programs for outside traffic.
#[map(name = "pw_source_ranges")]
static SOURCE_RANGES: LpmTrie<SourceRange, u32> =
    LpmTrie::with_max_entries(SIZES.source_ranges, BPF_F_NO_PREALLOC);

/// Read by user space alone.
#[map(name = "pw_service_names")]
static SERVICE_NAMES: HashMap<u32, ServiceName> =
    HashMap::with_max_entries(SIZES.services, BPF_F_NO_PREALLOC);

#[map(name = "pw_metrics")]
static METRICS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::ALL.len() as u32, 0);

/// The maps as the decisions see them.
pub(crate) struct KernelTables;

impl Tables for KernelTables {
    #[inline(always)]
    fn config(&self) -> NodeConfig {
        let Some(config) = CONFIG.get_ptr(0) else { return NodeConfig { host_netns: 0, settings: 0 } };
        // SAFETY: the array has an element 0; user space writes its words with single stores.
        unsafe {
            NodeConfig {
                host_netns: load(&raw const (*config).host_netns),
                settings: load(&raw const (*config).settings),
            }
        }
    }

    #[inline(always)]
    fn netns(&self, cookie: u64) -> Option<NetnsOptions> {
        // SAFETY: a value of the map, 8-byte aligned.
        NETNS.get_ptr(cookie).map(|word| NetnsOptions::from_word(unsafe { load(word) }))
    }

    #[inline(always)]
    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue> {
        // SAFETY: a value of the map, 8-byte aligned; reused elements are told apart by the key's tag.
        FRONTENDS.get_ptr(key).map(|word| FrontendValue::from_word(unsafe { load(word) }))
    }

    #[inline(always)]
    fn local_address(&self, addr: &Addr) -> Option<LocalAddress> {
        // SAFETY: a value of the map, 8-byte aligned.
        LOCAL_ADDRESSES.get_ptr(addr).map(|word| LocalAddress::from_word(unsafe { load(word) }))
    }

    #[inline(always)]
    fn service(&self, index: ServiceIndex) -> Option<ServiceWord> {
        // SAFETY: an element of the array, 8-byte aligned.
        SERVICES.get_ptr(index.get()).map(|word| ServiceWord::from_word(unsafe { load(word) }))
    }

    #[inline(always)]
    fn record(&self, at: RunOffset) -> Option<Record> {
        RUNS.get(at.get()).copied()
    }

    #[inline(always)]
    fn backend(&self, index: BackendIndex) -> Option<BackendSlot> {
        let slot = BACKENDS.get_ptr(index.get())?;
        // SAFETY: an element of the array. The fields beside the state word change only while no set has the slot.
        unsafe {
            let state = load(&raw const (*slot).state);
            let mut slot = *slot;
            slot.state = state;
            Some(slot)
        }
    }

    #[inline(always)]
    fn affinity(&self, key: &AffinityKey) -> Option<AffinityValue> {
        affinity_of(&AFFINITY, key)
    }

    #[inline(always)]
    fn set_affinity(&self, key: &AffinityKey, value: AffinityValue) {
        match AFFINITY.get_ptr_mut(key) {
            // SAFETY: as in `affinity_of`; each word changes by one store.
            Some(old) => unsafe {
                store(&raw mut (*old).backend, value.backend);
                store(&raw mut (*old).last_used, value.last_used);
            },
            None => self.count_if_full(AFFINITY.insert(key, value, u64::from(BPF_ANY))),
        }
    }

    #[inline(always)]
    fn exchange(&self, key: &ExchangeKey) -> Option<ExchangeValue> {
        exchange_of(&EXCHANGES, key)
    }

    #[inline(always)]
    fn set_exchange(&self, key: &ExchangeKey, value: ExchangeValue) {
        match EXCHANGES.get_ptr_mut(key) {
            // SAFETY: as in `exchange_of`; each word changes by one store.
            Some(old) => unsafe {
                store(&raw mut (*old).backend, value.backend);
                store(&raw mut (*old).last_used, value.last_used);
            },
            None => self.count_if_full(EXCHANGES.insert(key, value, u64::from(BPF_ANY))),
        }
    }

    #[inline(always)]
    fn reply(&self, key: &ReplyKey) -> Option<ReplyValue> {
        reply_of(&REPLIES, key)
    }

    #[inline(always)]
    fn set_reply(&self, key: &ReplyKey, value: ReplyValue) {
        match REPLIES.get_ptr_mut(key) {
            // SAFETY: as in `reply_of`.
            Some(old) => unsafe { ptr::write_volatile(old, value) },
            None => self.count_if_full(REPLIES.insert(key, value, u64::from(BPF_ANY))),
        }
    }

    #[inline(always)]
    fn random(&self) -> u32 {
        // SAFETY: a helper without arguments.
        unsafe { bpf_get_prandom_u32() }
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: a helper without arguments.
        unsafe { bpf_ktime_get_coarse_ns() }
    }

    #[inline(always)]
    fn count(&self, counter: Counter) {
        if let Some(count) = METRICS.get_ptr_mut(counter as u32) {
            // SAFETY: this CPU's element. A program that is preempted by another one between load and store can lose
            // a count, never a connection.
            unsafe { *count += 1 };
        }
    }
}

impl KernelTables {
    /// The kernel could not make an entry: the connection goes on, but is not remembered.
    #[inline(always)]
    fn count_if_full(&self, inserted: Result<(), i32>) {
        if inserted.is_err() {
            self.count(Counter::Unremembered);
        }
    }
}

/// The entry of `pw_affinity`, or of an earlier agent's.
#[inline(always)]
pub(crate) fn affinity_of(
    map: &LruHashMap<AffinityKey, AffinityValue>,
    key: &AffinityKey,
) -> Option<AffinityValue> {
    let value = map.get_ptr(key)?;
    // SAFETY: a value of the map, 8-byte aligned; an element that is reused meanwhile is what the type allows for.
    unsafe {
        Some(AffinityValue {
            backend: load(&raw const (*value).backend),
            last_used: load(&raw const (*value).last_used),
        })
    }
}

/// The entry of `pw_sock_udp`, or of an earlier agent's.
#[inline(always)]
pub(crate) fn exchange_of(
    map: &LruHashMap<ExchangeKey, ExchangeValue>,
    key: &ExchangeKey,
) -> Option<ExchangeValue> {
    let value = map.get_ptr(key)?;
    // SAFETY: a value of the map, 8-byte aligned; the backend is checked against its slot.
    unsafe {
        Some(ExchangeValue {
            backend: load(&raw const (*value).backend),
            last_used: load(&raw const (*value).last_used),
        })
    }
}

/// The entry of `pw_sock_replies`, or of an earlier agent's.
#[inline(always)]
pub(crate) fn reply_of(map: &LruHashMap<ReplyKey, ReplyValue>, key: &ReplyKey) -> Option<ReplyValue> {
    // SAFETY: a value of the map; all fields are integers. A half-written one is told by its tag.
    map.get_ptr(key).map(|value| unsafe { ptr::read_volatile(value) })
}

/// Which hash map [`store_word`] changes; the numbers are `pw_store_word`'s interface.
#[derive(Clone, Copy)]
pub(crate) enum WordMap {
    Frontends,
    LocalAddresses,
}

/// Stores `word` into the element that `key` has, and says whether there is one. Addresses take the first 16 bytes of
/// `key`.
#[inline(always)]
pub(crate) fn store_word(map: WordMap, key: &[u32; 5], word: u64) -> bool {
    let [a, b, c, d, _] = *key;
    let element = match map {
        // SAFETY: `FrontendKey` is 20 bytes of integers with the alignment of `u32`.
        WordMap::Frontends => FRONTENDS.get_ptr_mut(unsafe { *key.as_ptr().cast::<FrontendKey>() }),
        WordMap::LocalAddresses => LOCAL_ADDRESSES.get_ptr_mut(Addr::from_words([a, b, c, d])),
    };
    match element {
        Some(element) => {
            // SAFETY: a value of the map, 8-byte aligned, so that readers see the old word or the new one.
            unsafe { store(element, word) };
            true
        }
        None => false,
    }
}

/// One 8-byte load: what a program decides with is what user space published, neither torn nor read twice.
#[inline(always)]
unsafe fn load(word: *const u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { ptr::read_volatile(word) }
}

#[inline(always)]
unsafe fn store(word: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { ptr::write_volatile(word, value) }
}
