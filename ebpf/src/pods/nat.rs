//! The maps of masquerading, and the [`NatTables`] of its decisions on them. Nothing else touches these maps.

use core::ptr;

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, LruHashMap, PerCpuArray};
use aya_ebpf::programs::TcContext;
use portway_datapath::layout::PodSizes;
use portway_datapath::nat::{Inserted, NatDesk, NatMap, NatNode, NatPacket, NatPorts, NatTables};
use portway_datapath::packet::Piece;
use portway_datapath::{
    Addr, Direction, NatKey, NatValue, NetworkWord, PacketTables as _, Reason, Tables as _,
};

use crate::maps::KernelTables;
use crate::parse::Packet;

const SIZES: PodSizes = PodSizes::DEFAULT;

/// `EEXIST` of include/uapi/asm-generic/errno-base.h.
const EXISTS: i32 = -17;

#[map(name = "pw_nat")]
static NAT: HashMap<NatKey, NatValue> = HashMap::with_max_entries(SIZES.nat, BPF_F_NO_PREALLOC);

#[map(name = "pw_nat_new")]
static NAT_NEW: LruHashMap<NatKey, NatValue> = LruHashMap::with_max_entries(SIZES.nat_new, 0);

/// The desk of the packet that is looked at: a program runs to its end before another one of these hooks begins on its CPU.
#[map(name = "pw_nat_desk")]
static DESK: PerCpuArray<NatDesk> = PerCpuArray::with_max_entries(1, 0);

/// See [`DESK`].
#[inline(always)]
pub(crate) fn desk() -> Result<&'static mut NatDesk, Reason> {
    let desk = DESK.get_ptr_mut(0).ok_or(Reason::KernelError)?;
    // SAFETY: the array has the element, and nobody else has it now. All bytes zero are a desk.
    Ok(unsafe { &mut *desk })
}

impl NatTables for KernelTables {
    #[inline(always)]
    fn nat(&self, map: NatMap, key: &NatKey, into: &mut NatValue) -> bool {
        let value = match map {
            NatMap::Established => NAT.get_ptr(key),
            NatMap::New => NAT_NEW.get_ptr(key),
        };
        let Some(value) = value else { return false };
        // SAFETY: a value of the map, integers only. An element that was reused meanwhile is told by its tag.
        *into = unsafe { ptr::read_volatile(value) };
        into.is_of(key)
    }

    #[inline(always)]
    fn insert_nat(&self, map: NatMap, key: &NatKey, value: &NatValue) -> Inserted {
        let inserted = match map {
            NatMap::Established => NAT.insert(key, value, u64::from(BPF_NOEXIST)),
            NatMap::New => NAT_NEW.insert(key, value, u64::from(BPF_NOEXIST)),
        };
        match inserted {
            Ok(()) => Inserted::Done,
            Err(EXISTS) => Inserted::Exists,
            Err(_) => {
                self.count_packet(Reason::MapFull, Direction::Egress, 0);
                Inserted::Full
            }
        }
    }

    #[inline(always)]
    fn touch_nat(&self, map: NatMap, key: &NatKey, last_seen: u64, seen: u8) {
        let value = match map {
            NatMap::Established => NAT.get_ptr_mut(key),
            NatMap::New => NAT_NEW.get_ptr_mut(key),
        };
        if let Some(value) = value {
            // SAFETY: a value of the map; an aligned word and a byte, each by one store.
            unsafe {
                ptr::write_volatile(&raw mut (*value).last_seen, last_seen);
                ptr::write_volatile(&raw mut (*value).seen, seen);
            }
        }
    }

    #[inline(always)]
    fn delete_nat(&self, map: NatMap, key: &NatKey) {
        // One that is gone already is what was asked for.
        let _ = match map {
            NatMap::Established => NAT.remove(key),
            NatMap::New => NAT_NEW.remove(key),
        };
    }

    #[inline(always)]
    fn is_own_address(&self, addr: &Addr) -> bool {
        self.local_address(addr).is_some()
    }

    #[inline(always)]
    fn nat_now(&self) -> u64 {
        self.now()
    }
}

/// What masquerading needs to know of the node.
#[inline(always)]
pub(crate) fn node() -> NatNode {
    NatNode {
        switches: KernelTables.network(NetworkWord::Switches),
        ports: NatPorts::from_word(KernelTables.network(NetworkWord::NatPorts)),
    }
}

/// The packet as masquerading sees it.
#[inline(always)]
pub(crate) fn nat_packet(packet: &Packet) -> NatPacket<'_> {
    NatPacket { tuple: &packet.tuple, flags: packet.tcp_flags, icmp_type: packet.icmp_type }
}

/// The packet that an ICMP error quotes; `None` where it cannot be read, or has no ports: then it is of no flow that could be
/// found.
#[inline(always)]
pub(crate) fn quoted(ctx: &TcContext, error: &Packet) -> Option<&'static mut Packet> {
    if matches!(error.piece, Piece::Later) {
        return None;
    }
    error.parse_quoted(ctx).ok().filter(|quoted| !matches!(quoted.piece, Piece::Later))
}
