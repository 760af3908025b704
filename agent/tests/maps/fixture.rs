#![expect(unsafe_code, reason = "mount(2) and unshare(2)")]

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use portway_agent::maps::{KernelTables, MapId, Opening, pin_dir, pin_path};
use portway_agent::programs::{Loader, Programs};
use portway_datapath::layout::Sizes;
use portway_datapath::{
    Addr, BackendIndex, BackendSlot, FrontendKey, FrontendKind, FrontendValue, Membership, Port, Protocol,
    Record, RunBackend, RunHeader, RunOffset, ServiceIndex, ServiceName, ServiceWord,
};
use portway_model::tables::{TableOp, TableWriter};

use crate::bpf::Raw;

pub(crate) const SMALL: Sizes = Sizes {
    frontends: 64,
    services: 32,
    runs: 1024,
    backends: 128,
    maglev: 1024,
    affinity: 64,
    source_ranges: 16,
    local_addresses: 16,
    sockets: 64,
    exchanges: 64,
};

/// A bpf file system of the calling thread's own, in a mount namespace that ends with it.
pub(crate) struct BpfFs {
    dir: tempfile::TempDir,
}

impl BpfFs {
    /// Fails loudly without privileges: a skipped test proves nothing.
    pub(crate) fn mount() -> Self {
        let fs = Self::unmounted();
        // SAFETY: no pointers; only this thread, which a test has to itself.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNS) };
        assert_eq!(result, 0, "unshare: {}: run as root", io::Error::last_os_error());
        mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE);
        mount(Some("bpf"), fs.root(), Some("bpf"), 0);
        fs
    }

    pub(crate) fn unmounted() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn remount_read_only(&self) {
        mount(None, self.root(), None, libc::MS_REMOUNT | libc::MS_RDONLY);
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn pin_of(&self, map: MapId) -> PathBuf {
        pin_path(self.root(), map)
    }

    pub(crate) fn map(&self, map: MapId) -> Raw {
        Raw::open(&self.pin_of(map)).unwrap()
    }

    /// The programs, on these maps.
    pub(crate) fn programs(&self) -> Programs {
        Loader::new().unwrap().load(&pin_dir(self.root())).unwrap()
    }

    pub(crate) fn open(&self) -> (KernelTables, Opening) {
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
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % end
    }
}

pub(crate) fn index(service: u32) -> ServiceIndex {
    ServiceIndex::new(service)
}

pub(crate) fn key(n: u32) -> FrontendKey {
    let [_, b, c, d] = n.to_be_bytes();
    FrontendKey::new(Addr::v4([10, 96 + b, c, d]), Port::new(80), Protocol::TCP)
}

pub(crate) fn value(n: u32, service: u32) -> FrontendValue {
    FrontendValue::new(&key(n), FrontendKind::ClusterIp, index(service))
}

/// Backend `n`: its address, and the slot it has.
pub(crate) fn backend(n: u32) -> RunBackend {
    let [_, b, c, d] = n.to_be_bytes();
    RunBackend { addr: Addr::v4([10, b, c, d]), port: Port::new(8080), index: BackendIndex::new(n) }
}

pub(crate) fn slot(n: u32, service: u32) -> BackendSlot {
    let RunBackend { addr, port, .. } = backend(n);
    BackendSlot::new(n + 1, Membership::Cluster.bit(), index(service), addr, port)
}

/// The records of a version with these backends.
pub(crate) fn run(backends: std::ops::Range<u32>) -> Vec<Record> {
    let header =
        RunHeader { cluster_len: backends.len() as u32, affinity_seconds: 9, ..RunHeader::default() };
    header.records().into_iter().chain(backends.map(|n| backend(n).record())).collect()
}

pub(crate) fn word(run: u32, generation: u32) -> ServiceWord {
    ServiceWord::new(RunOffset::new(run), generation)
}

pub(crate) fn name(service: u32) -> Box<ServiceName> {
    Box::new(ServiceName::new(&format!("default/web-{service}"), "http").unwrap())
}

/// Service `service` with its frontend and the backends, published at record `at`.
pub(crate) fn service(service: u32, at: u32, backends: std::ops::Range<u32>) -> Vec<TableOp> {
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

pub(crate) fn write(tables: &mut impl TableWriter, ops: &[TableOp]) {
    for op in ops {
        tables.write(op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
    }
}
