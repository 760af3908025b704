//! A world for one test: a thread in new network and mount namespaces, a cgroup that this process is moved into, a bpf
//! file system, and maps that the test fills by hand. Everything goes when the test ends, also by a panic.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aya::EbpfLoader;
use aya::maps::{Array, HashMap, Map, MapData};
use portway_agent::programs::{self, Loader, Programs};
use portway_datapath::{
    Addr, BackendIndex, BackendSlot, Counter, FrontendKey, FrontendKind, FrontendValue, Membership,
    NetnsOptions, NodeConfig, Port, Protocol, Record, RunBackend, RunHeader, RunOffset, ServiceIndex,
    ServiceWord, Settings, SocketTranslation, layout,
};

const CGROUPS: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

/// A process is in one cgroup at a time.
static PROCESS: Mutex<()> = Mutex::new(());

/// What a test works with.
pub(crate) struct World {
    pub(crate) cgroup: PathBuf,
    pub(crate) maps: PathBuf,
    pub(crate) links: PathBuf,
    next_run: u32,
    next_backend: u32,
}

/// Runs `test` in a world of its own, named after it.
pub(crate) fn within(name: &str, test: impl FnOnce(&mut World) + Send) {
    let _one_at_a_time = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let cgroup = Cgroup::join(name);
    let bpf = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let inside = || {
            enter_namespaces(bpf.path());
            let maps = bpf.path().join("maps");
            std::fs::create_dir(&maps).unwrap();
            let mut world = World {
                cgroup: cgroup.path.clone(),
                maps,
                links: bpf.path().join("links"),
                next_run: 1,
                next_backend: 1,
            };
            world.make_maps();
            world.configure(Settings::new().serve_node_ports_on_loopback());
            test(&mut world);
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, inside);
        if let Err(panic) = thread.unwrap().join() {
            std::panic::resume_unwind(panic);
        }
    });
}

impl World {
    /// Loads the programs onto this world's maps.
    pub(crate) fn load(&self) -> Programs {
        Loader::new().unwrap().load(&self.maps).unwrap()
    }

    /// Loads and attaches them.
    pub(crate) fn attach(&self) -> Programs {
        let programs = self.load();
        programs.attach(&self.cgroup, &self.links).unwrap();
        programs
    }

    /// What the programs read of the node: this namespace, and `settings`.
    pub(crate) fn configure(&self, settings: Settings) {
        let mut config: Array<_, NodeConfig> = self.map(layout::CONFIG).try_into().unwrap();
        config.set(0, NodeConfig { host_netns: netns_cookie(), settings: settings.word() }, 0).unwrap();
    }

    /// Programs a service with these frontends and backends.
    pub(crate) fn service(
        &mut self,
        index: u32,
        kind: FrontendKind,
        protocol: Protocol,
        frontends: &[&str],
        backends: &[SocketAddr],
    ) {
        let service = ServiceIndex::new(index);
        let mut slots: Array<_, BackendSlot> = self.map(layout::BACKENDS).try_into().unwrap();
        let mut run = Vec::new();
        for backend in backends {
            let (addr, port) = (Addr::from(backend.ip()), Port::new(backend.port()));
            let at = BackendIndex::new(self.next_backend);
            self.next_backend += 1;
            let slot = BackendSlot::new(at.get(), Membership::Cluster.bit(), service, addr, port);
            slots.set(at.get(), slot, 0).unwrap();
            run.push(RunBackend { addr, port, index: at }.record());
        }
        let header = RunHeader { cluster_len: backends.len() as u32, ..RunHeader::default() };
        let records: Vec<Record> = header.records().into_iter().chain(run).collect();
        let at = RunOffset::new(self.next_run);
        self.next_run += records.len() as u32;
        let mut runs: Array<_, Record> = self.map(layout::RUNS).try_into().unwrap();
        for (n, record) in records.into_iter().enumerate() {
            runs.set(at.plus(n as u32).get(), record, 0).unwrap();
        }
        let mut services: Array<_, u64> = self.map(layout::SERVICES).try_into().unwrap();
        services.set(index, ServiceWord::new(at, 1).word(), 0).unwrap();
        let mut map: HashMap<_, FrontendKey, u64> = self.map(layout::FRONTENDS).try_into().unwrap();
        for frontend in frontends {
            let key = key(frontend, protocol);
            map.insert(key, FrontendValue::new(&key, kind, service).word(), 0).unwrap();
        }
    }

    pub(crate) fn delete_frontend(&self, frontend: &str, protocol: Protocol) {
        let mut map: HashMap<_, FrontendKey, u64> = self.map(layout::FRONTENDS).try_into().unwrap();
        map.remove(&key(frontend, protocol)).unwrap();
    }

    pub(crate) fn frontend_word(&self, frontend: &str, protocol: Protocol) -> u64 {
        let map: HashMap<_, FrontendKey, u64> = self.map(layout::FRONTENDS).try_into().unwrap();
        map.get(&key(frontend, protocol), 0).unwrap()
    }

    /// What the programs counted, over all CPUs.
    /// How many connected sockets are remembered.
    pub(crate) fn remembered(&self) -> usize {
        let sockets: HashMap<_, u64, SocketTranslation> = self.map(layout::SOCK).try_into().unwrap();
        sockets.keys().count()
    }

    pub(crate) fn counted(&self, counter: Counter) -> u64 {
        let metrics: aya::maps::PerCpuArray<_, u64> = self.map(layout::METRICS).try_into().unwrap();
        metrics.get(&(counter as u32), 0).unwrap().iter().sum()
    }

    /// The sockets of the namespace with this cookie are left alone from now on.
    pub(crate) fn opt_out(&self, netns: u64) {
        let mut map: HashMap<_, u64, u64> = self.map(layout::NETNS).try_into().unwrap();
        map.insert(netns, NetnsOptions::new(false).word(), 0).unwrap();
    }

    fn make_maps(&self) {
        let mut loader = EbpfLoader::new();
        for (name, entries) in MAPS {
            loader.map_pin_path(name, self.maps.join(name));
            if let Some(entries) = entries {
                loader.map_max_entries(name, entries);
            }
        }
        loader.load(programs::object().unwrap()).unwrap();
    }

    fn map(&self, name: &str) -> Map {
        Map::from_map_data(MapData::from_pin(self.maps.join(name)).unwrap()).unwrap()
    }
}

/// Every map that the loader wants pinned or takes, and how many entries it gets here.
const MAPS: [(&str, Option<u32>); 15] = [
    (layout::FRONTENDS, Some(16_384)),
    (layout::SERVICES, Some(16_384)),
    (layout::RUNS, Some(65_536)),
    (layout::MAGLEV, None),
    (layout::BACKENDS, Some(16_384)),
    (layout::AFFINITY, Some(64)),
    (layout::SOURCE_RANGES, Some(64)),
    (layout::SERVICE_NAMES, Some(64)),
    (layout::SOCK, Some(1024)),
    (layout::SOCK_UDP, Some(1024)),
    (layout::SOCK_REPLIES, Some(1024)),
    (layout::LOCAL_ADDRESSES, Some(64)),
    (layout::CONFIG, None),
    (layout::METRICS, None),
    (layout::NETNS, Some(64)),
];

/// `10.96.0.1:80`; the address 0.0.0.0 or :: for any.
pub(crate) fn key(frontend: &str, protocol: Protocol) -> FrontendKey {
    let at: SocketAddr = frontend.parse().unwrap();
    FrontendKey::new(at.ip().into(), Port::new(at.port()), protocol)
}

/// A cgroup with this process in it.
struct Cgroup {
    path: PathBuf,
    old: PathBuf,
}

impl Cgroup {
    fn join(name: &str) -> Self {
        let root = CGROUPS.map(Path::new).into_iter().find(|root| root.join("cgroup.procs").exists());
        let root = root.expect("no cgroup v2 hierarchy is mounted");
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
        let (path, old) = (root.join(format!("portway-test-{}-{name}", std::process::id())), root.join(own));
        std::fs::create_dir(&path).expect("make a cgroup, which needs root");
        let cgroup = Self { path, old };
        cgroup.enter(&cgroup.path);
        cgroup
    }

    fn enter(&self, path: &Path) {
        std::fs::write(path.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.enter(&self.old);
        // What a test that failed has made inside.
        for entry in self.path.read_dir().into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                drop(std::fs::remove_dir(entry.path()));
            }
        }
        // A thread that was joined may still count as a member for a moment.
        let deadline = Instant::now() + Duration::from_secs(5);
        while let Err(e) = std::fs::remove_dir(&self.path) {
            if Instant::now() > deadline {
                assert!(std::thread::panicking(), "{} stays: {e}", self.path.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Moves this thread into a network namespace where only loopback is, and a mount namespace with a bpf file system.
fn enter_namespaces(bpf: &Path) {
    let ok = |what: &str, result: i32| {
        assert_eq!(result, 0, "{what} (needs root): {}", io::Error::last_os_error());
    };
    let bpf = std::ffi::CString::new(bpf.to_str().unwrap()).unwrap();
    // SAFETY: all strings are NUL-terminated; an `ifreq` of zeroes is valid, and the kernel reads one.
    unsafe {
        ok("unshare", libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS));
        let none = std::ptr::null();
        let private = libc::MS_REC | libc::MS_PRIVATE;
        ok("making mounts private", libc::mount(none, c"/".as_ptr(), none, private, none.cast()));
        ok("mounting bpf", libc::mount(c"bpf".as_ptr(), bpf.as_ptr(), c"bpf".as_ptr(), 0, none.cast()));
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let mut lo: libc::ifreq = std::mem::zeroed();
        lo.ifr_name[0] = b'l'.cast_signed();
        lo.ifr_name[1] = b'o'.cast_signed();
        lo.ifr_ifru.ifru_flags = libc::IFF_UP as i16;
        ok("setting lo up", libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const lo));
    }
}

pub(crate) fn netns_cookie() -> u64 {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let mut cookie = 0u64;
    let mut len = 8;
    // SAFETY: the option is a u64, which `cookie` has room for.
    let result = unsafe {
        let option = libc::SO_NETNS_COOKIE;
        let value = (&raw mut cookie).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, &raw mut len)
    };
    assert_eq!(result, 0);
    cookie
}

/// The IPv4-mapped address of an IPv4 socket address.
pub(crate) fn mapped(at: SocketAddr) -> SocketAddr {
    match at.ip() {
        IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), at.port()),
        IpAddr::V6(_) => at,
    }
}

/// A UDP-Lite socket that is bound; `None` where the kernel has no such protocol.
pub(crate) fn udp_lite(at: SocketAddr) -> Option<UdpSocket> {
    let domain = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: takes no pointers.
    let socket =
        unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::IPPROTO_UDPLITE) };
    if socket < 0 {
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPROTONOSUPPORT));
        return None;
    }
    // SAFETY: a new socket that nobody else owns.
    let socket = unsafe { UdpSocket::from_raw_fd(socket) };
    // SAFETY: the addresses are as long as said; zeroes are valid for their other fields.
    let bound = unsafe {
        match at {
            SocketAddr::V4(at) => {
                let mut address: libc::sockaddr_in = std::mem::zeroed();
                address.sin_family = libc::AF_INET as u16;
                address.sin_port = at.port().to_be();
                address.sin_addr.s_addr = u32::from(*at.ip()).to_be();
                libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
            }
            SocketAddr::V6(at) => {
                let mut address: libc::sockaddr_in6 = std::mem::zeroed();
                address.sin6_family = libc::AF_INET6 as u16;
                address.sin6_port = at.port().to_be();
                address.sin6_addr.s6_addr = at.ip().octets();
                libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
            }
        }
    };
    assert_eq!(bound, 0, "{}", io::Error::last_os_error());
    Some(socket)
}
