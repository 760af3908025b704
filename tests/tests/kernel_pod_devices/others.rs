//! Somebody else's programs at the interfaces that ours are at: they run behind ours, and see what ours leave alone or rewrite.

use std::ffi::CString;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use aya::programs::tc::{NlOptions, SchedClassifier, TcAttachOptions, TcAttachType, qdisc_add_clsact};
use aya::programs::{LinkOrder, ProgramInfo, loaded_programs};
use nix::libc;
use portway_agent::maps::{KernelTables, PodTables};
use portway_agent::programs::InterfacePrograms;
use portway_datapath::layout::PodSizes;
use portway_datapath::{Direction, Reason};
use portway_tests::harness::mount::BpfMount;
use portway_tests::harness::probe::ping::ping;
use portway_tests::harness::{Namespace, PREFIX, Server, eventually};

use super::net::{Net, PATIENCE, PORT, SERVICES, Small as _, lan, seen_by_udp, udp_socket, world};

/// Packets of each kind that [`talk`] makes, of each family.
const ROUNDS: u64 = 5;

/// A program that counts, with maps of its own: another `pw_to_pod`, which has nothing to translate.
struct Counter {
    tables: PodTables,
    program: SchedClassifier,
    _programs: InterfacePrograms,
    _services: KernelTables,
    _mount: BpfMount,
    _dir: tempfile::TempDir,
}

impl Counter {
    fn new() -> Result<Self> {
        let dir =
            tempfile::Builder::new().prefix(&format!("{PREFIX}{}-others-", std::process::id())).tempdir()?;
        let mount = BpfMount::new(dir.path())?;
        let (services, _) = KernelTables::open(mount.path(), &SERVICES)?;
        let (tables, _) = PodTables::open(mount.path(), &PodSizes::DEFAULT_FOR_TESTS)?;
        let programs = InterfacePrograms::load(mount.path())?;
        let id = programs.loaded().iter().find(|program| program.name == "pw_to_pod").context("load")?.id;
        let program = loaded_programs()
            .filter_map(Result::ok)
            .find(|info| info.id() == id)
            .context("find the program that counts")?;
        let path = mount.path().join("counter");
        pin(&program, &path)?;
        let program = SchedClassifier::from_pin(&path)?;
        Ok(Self { tables, program, _programs: programs, _services: services, _mount: mount, _dir: dir })
    }

    fn seen(&self) -> Result<u64> {
        let traffic = self.tables.reader().traffic()?;
        Ok(traffic.get(&(Reason::Forwarded, Direction::Ingress)).map_or(0, |traffic| traffic.packets))
    }

    /// It sees packets at a hook while `talk` runs.
    fn sees(
        &mut self,
        node: &Namespace,
        (interface, hook): (&str, TcAttachType),
        options: TcAttachOptions,
        talk: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = self.seen()?;
        let link = node.run(|| {
            if matches!(options, TcAttachOptions::Netlink(_)) {
                // A hook with ours by filters has one.
                let _ = qdisc_add_clsact(interface);
            }
            Ok(self.program.attach_with_options(interface, hook, options)?)
        })?;
        talk()?;
        eventually(PATIENCE, "the other program to see the packets", || {
            let seen = self.seen()? - before;
            ensure!(seen >= 2 * ROUNDS, "{seen} packets at {interface} {hook:?}");
            Ok(())
        })?;
        node.run(|| Ok(self.program.detach(link)?))
    }
}

/// bpf(2), `BPF_OBJ_PIN`.
fn pin(program: &ProgramInfo, path: &Path) -> Result<()> {
    #[repr(C)]
    struct Attributes {
        pathname: u64,
        fd: u32,
        flags: u32,
    }
    const OBJ_PIN: libc::c_int = 6;
    let (path, program) = (CString::new(path.as_os_str().as_bytes())?, program.fd()?);
    let fd = program.as_fd().as_raw_fd().try_into()?;
    let attributes = Attributes { pathname: path.as_ptr() as u64, fd, flags: 0 };
    // SAFETY: both outlive the call and the length is that of the attributes.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, OBJ_PIN, &raw const attributes, size_of::<Attributes>()) };
    ensure!(rc == 0, "pin at {}: {}", path.to_string_lossy(), std::io::Error::last_os_error());
    Ok(())
}

/// Something for each of the six programs to leave alone or to rewrite: of a pod and of the node with the world, of the node with
/// its pod, of pods with the other node.
fn talk(net: &Net) -> Result<()> {
    let (node, pod, other) = (&net.nodes[0], &net.nodes[0].pods[0], &net.nodes[1]);
    for (at, server) in world(2).into_iter().enumerate() {
        let server = SocketAddr::new(server, PORT);
        let socket = udp_socket(&pod.namespace, pod.addresses[at], 0)?;
        let own = udp_socket(&node.namespace, node.addresses()[at], 0)?;
        let to_node = udp_socket(&other.pods[0].namespace, other.pods[0].addresses[at], 0)?;
        for _ in 0..ROUNDS {
            ensure!(seen_by_udp(&socket, server, 10)?.ip() == node.addresses()[at]);
            ensure!(seen_by_udp(&own, server, 10)? == own.local_addr()?);
            node.namespace.run(|| Ok(ping(pod.addresses[at], 56)?))?;
            socket.send_to(b"tunnel", SocketAddr::new(lan(other.number)[at], PORT))?;
            to_node.send_to(b"tunnel", SocketAddr::new(lan(node.number)[at], PORT))?;
        }
    }
    Ok(())
}

fn see_behind_ours(filters: bool, options: &[fn() -> TcAttachOptions]) -> Result<()> {
    let net = Net::tunnel_with("others", filters)?;
    let _server = Server::start(&net.world, "world", PORT)?;
    let mut counter = Counter::new()?;
    for interface in ["eth0", "pw1", "pw_vxlan"] {
        for hook in [TcAttachType::Ingress, TcAttachType::Egress] {
            for options in options {
                let options = options();
                // Those of pods are filters, which tcx is before.
                if interface == "pw1" && matches!(options, TcAttachOptions::TcxOrder(_)) {
                    continue;
                }
                counter.sees(&net.nodes[0].namespace, (interface, hook), options, || talk(&net))?;
            }
        }
    }
    Ok(())
}

fn filter() -> TcAttachOptions {
    TcAttachOptions::Netlink(NlOptions { priority: 10, ..NlOptions::default() })
}

#[test]
fn programs_of_others_behind_ours_by_tcx_see_the_packets() -> Result<()> {
    see_behind_ours(false, &[|| TcAttachOptions::TcxOrder(LinkOrder::last()), filter])
}

#[test]
fn filters_of_others_behind_our_filters_see_the_packets() -> Result<()> {
    see_behind_ours(true, &[filter])
}
