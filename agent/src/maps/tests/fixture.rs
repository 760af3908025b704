#![expect(unsafe_code, reason = "mount(2) and unshare(2)")]

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use portway_datapath::layout::Sizes;
use portway_datapath::{
    Addr, BackendIndex, BackendSlot, FrontendKey, FrontendKind, FrontendValue, Membership, Port, Protocol,
    Record, RunBackend, RunHeader, RunOffset, ServiceIndex, ServiceName, ServiceWord,
};
use portway_model::tables::{TableOp, TableWriter};

use super::super::*;

pub(super) const SMALL: Sizes = Sizes {
    frontends: 64,
    services: 32,
    runs: 1024,
    backends: 128,
    maglev: 1024,
    affinity: 64,
    source_ranges: 16,
    local_addresses: 16,
    exchanges: 64,
};

/// A bpf file system of the calling thread's own, in a mount namespace that ends with it.
pub(super) struct BpfFs {
    dir: tempfile::TempDir,
}

impl BpfFs {
    /// Fails loudly without privileges: a skipped test proves nothing.
    pub(super) fn mount() -> Self {
        let fs = Self::unmounted();
        // SAFETY: no pointers; a thread of a test that made nothing yet.
        assert_eq!(
            unsafe { libc::unshare(libc::CLONE_NEWNS) },
            0,
            "unshare: {}: run as root",
            io::Error::last_os_error()
        );
        mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE);
        mount(Some("bpf"), fs.root(), Some("bpf"), 0);
        fs
    }

    pub(super) fn unmounted() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(super) fn remount_read_only(&self) {
        mount(None, self.root(), None, libc::MS_REMOUNT | libc::MS_RDONLY);
    }

    pub(super) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn pin_of(&self, map: MapId) -> PathBuf {
        pin_path(self.root(), map)
    }

    pub(super) fn open(&self) -> (KernelTables, Opening) {
        KernelTables::open(self.root(), &SMALL).unwrap()
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let root = CString::new(self.root().to_str().unwrap()).unwrap();
        // SAFETY: a path of ours; fails where nothing was mounted.
        unsafe { libc::umount2(root.as_ptr(), libc::MNT_DETACH) };
    }
}

fn mount(source: Option<&str>, target: &Path, kind: Option<&str>, flags: libc::c_ulong) {
    let text = |text: &str| CString::new(text).unwrap();
    let (source, target, kind) = (source.map(text), text(target.to_str().unwrap()), kind.map(text));
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    // SAFETY: NUL-terminated strings that outlive the call.
    let result =
        unsafe { libc::mount(pointer(&source), target.as_ptr(), pointer(&kind), flags, std::ptr::null()) };
    assert_eq!(result, 0, "mount {target:?}: {}: run as root", io::Error::last_os_error());
}

/// Numbers that look random and repeat with the seed.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % end
    }
}

pub(super) fn index(service: u32) -> ServiceIndex {
    ServiceIndex::new(service)
}

pub(super) fn key(n: u32) -> FrontendKey {
    let [_, b, c, d] = n.to_be_bytes();
    FrontendKey::new(Addr::v4([10, 96 + b, c, d]), Port::new(80), Protocol::TCP)
}

pub(super) fn value(n: u32, service: u32) -> FrontendValue {
    FrontendValue::new(&key(n), FrontendKind::ClusterIp, index(service))
}

/// Backend `n`: its address, and the slot it has.
pub(super) fn backend(n: u32) -> RunBackend {
    let [_, b, c, d] = n.to_be_bytes();
    RunBackend { addr: Addr::v4([10, b, c, d]), port: Port::new(8080), index: BackendIndex::new(n) }
}

pub(super) fn slot(n: u32, service: u32) -> BackendSlot {
    let RunBackend { addr, port, .. } = backend(n);
    BackendSlot::new(n + 1, Membership::Cluster.bit(), index(service), addr, port)
}

/// The records of a version with these backends.
pub(super) fn run(backends: std::ops::Range<u32>) -> Vec<Record> {
    let header =
        RunHeader { cluster_len: backends.len() as u32, affinity_seconds: 9, ..RunHeader::default() };
    header.records().into_iter().chain(backends.map(|n| backend(n).record())).collect()
}

pub(super) fn word(run: u32, generation: u32) -> ServiceWord {
    ServiceWord::new(RunOffset::new(run), generation)
}

pub(super) fn name(service: u32) -> Box<ServiceName> {
    Box::new(ServiceName::new(&format!("default/web-{service}"), "http").unwrap())
}

/// Service `service` with its frontend and the backends, published at record `at`.
pub(super) fn service(service: u32, at: u32, backends: std::ops::Range<u32>) -> Vec<TableOp> {
    let slots = backends
        .clone()
        .map(|n| TableOp::WriteBackend { index: BackendIndex::new(n), slot: slot(n, service) });
    slots
        .chain([
            TableOp::WriteRun { at: RunOffset::new(at), records: run(backends.clone()) },
            TableOp::NameService { service: index(service), name: name(service) },
            TableOp::Publish { service: index(service), word: word(at, 1) },
            TableOp::InsertFrontend { key: key(service), value: value(service, service) },
        ])
        .collect()
}

pub(super) fn write(tables: &mut impl TableWriter, ops: &[TableOp]) {
    for op in ops {
        tables.write(op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
    }
}

/// What `pw_store_word` does, in hand-made instructions: looks up the key in the map that byte 0 names and stores
/// the word at byte 24.
pub(super) fn store_program(tables: &KernelTables) -> OwnedFd {
    use std::os::fd::AsRawFd as _;
    #[repr(C)]
    struct Load {
        kind: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log: [u32; 8],
    }
    let maps = tables.maps();
    let (frontends, addresses) = (maps.frontends.fd().as_raw_fd(), maps.local_addresses.fd().as_raw_fd());
    // code, destination register, source register, offset, immediate; see Documentation/bpf/instruction-set.rst.
    let program: [(u8, u8, u8, i16, i32); 24] = [
        (0x61, 6, 1, 76, 0),        // r6 = skb->data
        (0x61, 2, 1, 80, 0),        // r2 = skb->data_end
        (0xbf, 3, 6, 0, 0),         // r3 = r6
        (0x07, 3, 0, 0, 32),        // r3 += 32
        (0x2d, 3, 2, 17, 0),        // if r3 > r2 goto too short
        (0x71, 7, 6, 0, 0),         // r7 = map selector
        (0xbf, 2, 6, 0, 0),         // r2 = r6
        (0x07, 2, 0, 0, 4),         // r2 += 4: the key
        (0x55, 7, 0, 3, 0),         // if r7 != 0 goto addresses
        (0x18, 1, 1, 0, frontends), // r1 = map
        (0, 0, 0, 0, 0),
        (0x05, 0, 0, 2, 0),         // goto lookup
        (0x18, 1, 1, 0, addresses), // addresses: r1 = map
        (0, 0, 0, 0, 0),
        (0x85, 0, 0, 0, 1),  // lookup: r0 = bpf_map_lookup_elem(r1, r2)
        (0x15, 0, 0, 4, 0),  // if r0 == 0 goto missing
        (0x79, 1, 6, 24, 0), // r1 = the word
        (0x7b, 0, 1, 0, 0),  // *r0 = r1
        (0xb7, 0, 0, 0, 0),
        (0x95, 0, 0, 0, 0), // return 0
        (0xb7, 0, 0, 0, 1),
        (0x95, 0, 0, 0, 0), // missing: return 1
        (0xb7, 0, 0, 0, 2),
        (0x95, 0, 0, 0, 0), // too short: return 2
    ];
    let code: Vec<u8> = program
        .iter()
        .flat_map(|(code, to, from, offset, immediate)| {
            let [a, b] = offset.to_ne_bytes();
            let [c, d, e, f] = immediate.to_ne_bytes();
            [*code, from << 4 | to, a, b, c, d, e, f]
        })
        .collect();
    let (sched_cls, prog_load) = (3, 5);
    let attr = Load {
        kind: sched_cls,
        insn_cnt: program.len() as u32,
        insns: code.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log: [0; 8],
    };
    // SAFETY: code and licence outlive the call; the descriptor is ours.
    unsafe {
        let fd = libc::syscall(libc::SYS_bpf, prog_load, &raw const attr, size_of::<Load>());
        assert!(fd >= 0, "loading the store program: {}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd as i32)
    }
}
