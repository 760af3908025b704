//! The maps of the pod network, and the [`PacketTables`] of the decisions on them.
//!
//! Nothing outside this module touches these maps. Sizes are the defaults; the loader overrides them.

use core::ptr::{self, NonNull};

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::macros::map;
use aya_ebpf::maps::lpm_trie::Key;
use aya_ebpf::maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray};
use portway_datapath::layout::PodSizes;
use portway_datapath::{
    Addr, BackendRef, CpuTraffic, DeviceValue, Direction, EndpointValue, Family, FlowKey, FlowMap, FlowValue,
    FragmentKey, FragmentValue, IpcacheValue, NetworkWord, NodeNetwork, PacketTables, Port, Reason,
    ServiceIndex,
};

/// The maps as the decisions see them: those of services, which the socket programs use too, and these.
pub(crate) use crate::service_maps::KernelTables;

const SIZES: PodSizes = PodSizes::DEFAULT;

#[map(name = "pw_endpoints")]
static ENDPOINTS: HashMap<Addr, EndpointValue> =
    HashMap::with_max_entries(SIZES.endpoints, BPF_F_NO_PREALLOC);

#[map(name = "pw_ipcache")]
static IPCACHE: LpmTrie<Addr, IpcacheValue> = LpmTrie::with_max_entries(SIZES.ipcache, BPF_F_NO_PREALLOC);

#[map(name = "pw_conntrack")]
static CONNTRACK: HashMap<FlowKey, FlowValue> = HashMap::with_max_entries(SIZES.conntrack, BPF_F_NO_PREALLOC);

#[map(name = "pw_ct_new")]
static CONNTRACK_NEW: LruHashMap<FlowKey, FlowValue> = LruHashMap::with_max_entries(SIZES.conntrack_new, 0);

#[map(name = "pw_fragments")]
static FRAGMENTS: LruHashMap<FragmentKey, FragmentValue> = LruHashMap::with_max_entries(SIZES.fragments, 0);

#[map(name = "pw_network")]
static NETWORK: Array<NodeNetwork> = Array::with_max_entries(1, BPF_F_MMAPABLE);

#[map(name = "pw_devices")]
static DEVICES: HashMap<u32, DeviceValue> = HashMap::with_max_entries(SIZES.devices, BPF_F_NO_PREALLOC);

#[map(name = "pw_traffic")]
static TRAFFIC: PerCpuArray<CpuTraffic> = PerCpuArray::with_max_entries(Reason::ALL.len() as u32, 0);

/// Where an entry is put together, which would take a sixth of a program's stack.
#[map(name = "pw_made")]
static MADE: PerCpuArray<FlowValue> = PerCpuArray::with_max_entries(1, 0);

/// `EEXIST` of include/uapi/asm-generic/errno-base.h.
const EXISTS: i32 = -17;

/// Bits of an address, as prefixes of `pw_ipcache` count them.
const ADDR_BITS: u32 = 128;

/// An entry of a flow and the map that it is in.
#[derive(Clone, Copy)]
pub(crate) struct FlowEntry {
    at: NonNull<FlowValue>,
    map: FlowMap,
}

impl PacketTables for KernelTables {
    type Flow = FlowEntry;

    #[inline(always)]
    fn network(&self, word: NetworkWord) -> u64 {
        let Some(network) = NETWORK.get_ptr(0) else { return 0 };
        // SAFETY: the array has an element 0; user space writes its words with single stores.
        unsafe {
            ptr::read_volatile(match word {
                NetworkWord::Switches => &raw const (*network).switches,
                NetworkWord::Tunnel => &raw const (*network).tunnel,
                NetworkWord::NatPorts => &raw const (*network).nat_ports,
                NetworkWord::TcpTimeouts => &raw const (*network).tcp_timeouts,
                NetworkWord::OtherTimeouts => &raw const (*network).other_timeouts,
                NetworkWord::ServiceTimeouts => &raw const (*network).service_timeouts,
            })
        }
    }

    #[inline(always)]
    fn hairpin(&self, family: Family) -> Addr {
        match (NETWORK.get(0), family) {
            (Some(network), Family::V4) => network.hairpin_v4,
            (Some(network), Family::V6) => network.hairpin_v6,
            (None, _) => Addr::ANY_V6,
        }
    }

    #[inline(always)]
    fn endpoint(&self, addr: &Addr) -> Option<&EndpointValue> {
        // SAFETY: a value of integers; an element that is reused meanwhile is another pod's of this node, which takes no
        // packet for an address that it has not.
        unsafe { ENDPOINTS.get(addr) }
    }

    #[inline(always)]
    fn ipcache(&self, addr: &Addr) -> Option<IpcacheValue> {
        IPCACHE.get(Key::new(ADDR_BITS, *addr)).copied()
    }

    #[inline(always)]
    fn device(&self, ifindex: u32) -> Option<DeviceValue> {
        // SAFETY: a value of integers that does not change while it is in the map.
        unsafe { DEVICES.get(ifindex) }.copied()
    }

    #[inline(always)]
    fn fragment(&self, key: &FragmentKey) -> Option<FragmentValue> {
        // SAFETY: a value of the map, one word, 8-byte aligned.
        FRAGMENTS.get_ptr(key).map(|value| unsafe { ptr::read_volatile(value) })
    }

    #[inline(always)]
    fn set_fragment(&self, key: &FragmentKey, value: FragmentValue) {
        match FRAGMENTS.get_ptr_mut(key) {
            // SAFETY: as in `fragment`; one store.
            Some(old) => unsafe { ptr::write_volatile(old, value) },
            None => {
                if FRAGMENTS.insert(key, value, u64::from(BPF_NOEXIST)).is_err() {
                    self.count_packet(Reason::MapFull, Direction::Egress, 0);
                }
            }
        }
    }

    #[inline(always)]
    fn flow(&self, key: &FlowKey) -> Option<FlowEntry> {
        let tag = key.tag();
        let established = || entry(CONNTRACK.get_ptr_mut(key), FlowMap::Established, tag);
        // A third time, because the entry may have moved between the first two.
        established()
            .or_else(|| entry(CONNTRACK_NEW.get_ptr_mut(key), FlowMap::New, tag))
            .or_else(established)
    }

    #[inline(always)]
    fn flow_or_moving(&self, key: &FlowKey) -> Option<FlowEntry> {
        let tag = key.tag();
        entry(CONNTRACK.get_ptr_mut(key), FlowMap::Established, tag)
            .or_else(|| entry(CONNTRACK_NEW.get_ptr_mut(key), FlowMap::New, tag))
    }

    #[inline(always)]
    fn flow_map(&self, flow: FlowEntry) -> FlowMap {
        flow.map
    }

    #[inline(always)]
    fn read_flow(&self, flow: FlowEntry) -> FlowValue {
        // SAFETY: a value of the map, integers only.
        unsafe { *flow.at.as_ptr() }
    }

    #[inline(always)]
    fn count_flow(&self, flow: FlowEntry, direction: Direction, bytes: u32) {
        let at = flow.at.as_ptr();
        // SAFETY: a value of the map. Two CPUs that count at once can lose a count.
        unsafe {
            match direction {
                Direction::Egress => {
                    (*at).packets_out += 1;
                    (*at).bytes_out += u64::from(bytes);
                }
                Direction::Ingress => {
                    (*at).packets_in += 1;
                    (*at).bytes_in += u64::from(bytes);
                }
            }
        }
    }

    #[inline(always)]
    fn set_last_seen(&self, flow: FlowEntry, now: u64) {
        // SAFETY: a value of the map, 8-byte aligned.
        unsafe { ptr::write_volatile(&raw mut (*flow.at.as_ptr()).last_seen, now) }
    }

    #[inline(always)]
    fn set_seen(&self, flow: FlowEntry, direction: Direction, seen: u8) {
        let at = flow.at.as_ptr();
        // SAFETY: a value of the map; one byte.
        unsafe {
            match direction {
                Direction::Egress => ptr::write_volatile(&raw mut (*at).seen_out, seen),
                Direction::Ingress => ptr::write_volatile(&raw mut (*at).seen_in, seen),
            }
        }
    }

    #[inline(always)]
    fn set_flags(&self, flow: FlowEntry, flags: u16) {
        // SAFETY: a value of the map, 2-byte aligned.
        unsafe { ptr::write_volatile(&raw mut (*flow.at.as_ptr()).flags, flags) }
    }

    #[inline(always)]
    fn set_other(
        &self,
        flow: FlowEntry,
        other: (Addr, Port),
        other_local_port: Port,
        service: ServiceIndex,
        backend: BackendRef,
    ) {
        let at = flow.at.as_ptr();
        // SAFETY: a value of the map. That nobody reads meanwhile is the caller's.
        unsafe {
            (*at).other = other.0;
            (*at).other_port = other.1;
            (*at).other_local_port = other_local_port;
            (*at).service = service;
            (*at).backend = backend.word();
        }
    }

    #[inline(always)]
    fn insert_flow(&self, key: &FlowKey, write: impl FnOnce(&mut FlowValue)) -> Option<FlowEntry> {
        let made = MADE.get_ptr_mut(0)?;
        // SAFETY: the array has an element 0, and a program runs to its end before another one begins on its CPU.
        let made: &FlowValue = unsafe {
            write(&mut *made);
            &*made
        };
        // Another CPU may have made the entry: then it stays, and this packet finds it.
        let inserted = CONNTRACK_NEW.insert(key, made, u64::from(BPF_NOEXIST));
        match CONNTRACK_NEW.get_ptr_mut(key).and_then(NonNull::new) {
            Some(at) => Some(FlowEntry { at, map: FlowMap::New }),
            None => {
                if inserted.is_err() {
                    self.count_packet(Reason::MapFull, Direction::Egress, 0);
                }
                None
            }
        }
    }

    #[inline(always)]
    fn establish_flow(&self, key: &FlowKey, flow: FlowEntry) -> FlowEntry {
        // SAFETY: a value of the map; the kernel copies it.
        let value = unsafe { flow.at.as_ref() };
        if let Err(errno) = CONNTRACK.insert(key, value, u64::from(BPF_NOEXIST)) {
            // Another CPU may have moved it: then the next packet finds it there.
            if errno != EXISTS {
                self.count_packet(Reason::MapFull, Direction::Egress, 0);
            }
            return flow;
        }
        match entry(CONNTRACK.get_ptr_mut(key), FlowMap::Established, key.tag()) {
            Some(moved) => {
                // Readers look into the other map first, so that none misses the flow. An entry that is gone already was
                // the least recently used one.
                let _ = CONNTRACK_NEW.remove(key);
                moved
            }
            None => {
                // The element was given to another flow while it was copied: nobody would know what came of it.
                let _ = CONNTRACK.remove(key);
                flow
            }
        }
    }

    #[inline(always)]
    fn count_packet(&self, reason: Reason, direction: Direction, bytes: u32) {
        if let Some(traffic) = TRAFFIC.get_ptr_mut(reason as u32) {
            // SAFETY: this CPU's element. A program that is preempted by another one can lose a count.
            unsafe { (*traffic).add(direction, bytes) }
        }
    }
}

/// Where this CPU's packet is parsed to.
#[inline(always)]
pub(crate) fn packet_under_way() -> Option<*mut [u64; CpuTraffic::PACKET_WORDS]> {
    // SAFETY: the element's field, whose address alone is taken.
    TRAFFIC.get_ptr_mut(Reason::Forwarded as u32).map(|traffic| unsafe { &raw mut (*traffic).packet })
}

/// What a map says of a flow, if it is of that flow.
#[inline(always)]
fn entry(value: Option<*mut FlowValue>, map: FlowMap, tag: u32) -> Option<FlowEntry> {
    let at = NonNull::new(value?)?;
    // SAFETY: a value of the map; memory of maps stays readable while a program runs.
    (unsafe { (*at.as_ptr()).tag } == tag).then_some(FlowEntry { at, map })
}
