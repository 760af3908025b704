//! The programs on the running kernel, with real sockets. Needs root; fails loudly without.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's helpers panic, to keep the line number"
)]

mod intact;
mod links;
mod refused;
mod speed;
mod world;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::Command;

use portway_agent::programs::Loader;
use portway_agent::programs::selftest::{self, PROBE_SUBCOMMAND, SelfTestError};
use portway_datapath::{Counter, FrontendKind, FrontendValue, Protocol, ServiceIndex, Settings};
use world::{World, key, mapped, udp_lite, within};

/// How a client's socket names a frontend.
type Name = fn(SocketAddr) -> SocketAddr;

/// A frontend, where its backend listens, and how it is named.
const CASES: [(&str, &str, Name); 3] = [
    ("10.96.0.10:53", "127.0.0.2:0", |at| at),
    ("[fd00:96::10]:53", "[::1]:0", |at| at),
    ("10.96.0.10:53", "127.0.0.2:0", mapped),
];

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

fn any(like: SocketAddr) -> SocketAddr {
    if like.is_ipv4() { "0.0.0.0:0".parse().unwrap() } else { "[::]:0".parse().unwrap() }
}

/// A UDP service with one backend, and the backend's socket.
fn udp_service(world: &mut World, frontend: &str, listen: &str) -> UdpSocket {
    let backend = UdpSocket::bind(listen).unwrap();
    let at = backend.local_addr().unwrap();
    world.service(1, FrontendKind::ClusterIp, Protocol::UDP, &[frontend], &[at]);
    backend
}

/// Answers one datagram with itself.
fn echo(backend: &UdpSocket) {
    let mut buffer = [0; 16];
    let (len, from) = backend.recv_from(&mut buffer).unwrap();
    backend.send_to(&buffer[..len], from).unwrap();
}

#[test]
fn tcp_reaches_the_backend_and_keeps_the_frontend_as_its_peer() {
    for (frontend, listen, name) in CASES {
        within("tcp", |world| {
            let backend = TcpListener::bind(listen).unwrap();
            let at = backend.local_addr().unwrap();
            world.service(1, FrontendKind::ClusterIp, Protocol::TCP, &[frontend], &[at]);
            let to = name(frontend.parse().unwrap());
            // Nothing routes there yet.
            assert_eq!(errno(TcpStream::connect(to)), libc::ENETUNREACH);
            let _programs = world.attach();
            let client = TcpStream::connect(to).unwrap();
            let (_, from) = backend.accept().unwrap();
            assert_eq!(client.local_addr().unwrap().port(), from.port());
            assert_eq!(client.peer_addr().unwrap(), to);
            assert_eq!(world.counted(Counter::Connects), 1);
            drop(client);
            assert_eq!(world.counted(Counter::Releases), 1);
        });
    }
}

#[test]
fn a_connected_udp_socket_sees_the_frontend_only() {
    for (frontend, listen, name) in CASES {
        within("udp-connected", |world| {
            let backend = udp_service(world, frontend, listen);
            let _programs = world.attach();
            let to = name(frontend.parse().unwrap());
            let client = UdpSocket::bind(any(to)).unwrap();
            client.connect(to).unwrap();
            client.send(b"hello").unwrap();
            echo(&backend);
            let mut buffer = [0; 16];
            assert_eq!(client.recv_from(&mut buffer).unwrap(), (5, to));
            assert_eq!(client.peer_addr().unwrap(), to);
        });
    }
}

/// UDP-Lite counts as UDP: a UDP service leads to a backend that listens on UDP-Lite.
#[test]
fn an_unconnected_udp_lite_socket_sees_the_frontend_only() {
    for (frontend, listen, name) in CASES {
        within("udp-lite", |world| {
            let Some(backend) = udp_lite(listen.parse().unwrap()) else {
                return println!("this kernel has no UDP-Lite");
            };
            let at = backend.local_addr().unwrap();
            world.service(1, FrontendKind::ClusterIp, Protocol::UDP, &[frontend], &[at]);
            let to = name(frontend.parse().unwrap());
            let client = udp_lite(any(to)).unwrap();
            // Nothing routes there yet.
            assert_eq!(errno(client.send_to(b"hello", to)), libc::ENETUNREACH);
            let _programs = world.attach();
            client.send_to(b"hello", to).unwrap();
            echo(&backend);
            let mut buffer = [0; 16];
            assert_eq!(client.recv_from(&mut buffer).unwrap(), (5, to));
            assert_eq!(world.counted(Counter::Datagrams), 1);
            // Nobody can serve this: the kernel's UDP-Lite has no `pre_connect`, which is what calls the hook.
            assert_eq!(errno(client.connect(to)), libc::ENETUNREACH);
            assert_eq!(world.counted(Counter::Connects), 0);
        });
    }
}

#[test]
fn a_connected_udp_socket_that_names_its_peer_reaches_the_same_backend() {
    for (frontend, listen, name) in CASES {
        within("udp-named", |world| {
            let backends = [(); 8].map(|()| UdpSocket::bind(listen).unwrap());
            let at = backends.each_ref().map(|backend| backend.local_addr().unwrap());
            world.service(1, FrontendKind::ClusterIp, Protocol::UDP, &[frontend], &at);
            let _programs = world.attach();
            let to = name(frontend.parse().unwrap());
            let client = UdpSocket::bind(any(to)).unwrap();
            client.connect(to).unwrap();
            client.send(b"first").unwrap();
            for _ in 0..20 {
                client.send_to(b"named", to).unwrap();
            }
            for backend in &backends {
                backend.set_nonblocking(true).unwrap();
            }
            // Loopback delivers before send returns.
            let datagrams =
                backends.each_ref().map(|b| (0..).take_while(|_| b.recv(&mut [0; 16]).is_ok()).count());
            assert_eq!(datagrams.iter().max(), Some(&21), "{datagrams:?}");
        });
    }
}

#[test]
fn an_unconnected_udp_socket_sees_the_frontend_only() {
    for (frontend, listen, name) in CASES {
        within("udp-unconnected", |world| {
            let backend = udp_service(world, frontend, listen);
            let _programs = world.attach();
            let to = name(frontend.parse().unwrap());
            let client = UdpSocket::bind(any(to)).unwrap();
            let mut buffer = [0; 16];
            for _ in 0..3 {
                client.send_to(b"hello", to).unwrap();
                echo(&backend);
                assert_eq!(client.recv_from(&mut buffer).unwrap(), (5, to));
            }
            assert_eq!(world.counted(Counter::Datagrams), 3);
        });
    }
}

#[test]
fn a_socket_that_turns_to_the_backend_itself_sees_the_backend() {
    for (frontend, listen, name) in CASES {
        within("udp-reconnect", |world| {
            let backend = udp_service(world, frontend, listen);
            let _programs = world.attach();
            let (to, direct) = (name(frontend.parse().unwrap()), name(backend.local_addr().unwrap()));
            let client = UdpSocket::bind(any(to)).unwrap();
            client.connect(to).unwrap();
            assert_eq!(client.peer_addr().unwrap(), to);
            client.connect(direct).unwrap();
            assert_eq!(client.peer_addr().unwrap(), direct);
            client.connect(to).unwrap();
            // connect(2) with AF_UNSPEC passes no hook.
            // SAFETY: the address is as long as said.
            let dissolved = unsafe {
                let none = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
                libc::connect(client.as_raw_fd(), &raw const none, size_of::<libc::sockaddr>() as u32)
            };
            assert_eq!(dissolved, 0);
            client.send_to(b"hello", direct).unwrap();
            echo(&backend);
            assert_eq!(client.recv_from(&mut [0; 16]).unwrap(), (5, direct));
        });
    }
}

#[test]
fn a_socket_is_remembered_while_it_lives_and_is_connected_to_a_service() {
    for (frontend, listen, name) in CASES {
        within("remembered", |world| {
            let tcp = TcpListener::bind(listen).unwrap();
            world.service(
                1,
                FrontendKind::ClusterIp,
                Protocol::TCP,
                &[frontend],
                &[tcp.local_addr().unwrap()],
            );
            let udp = UdpSocket::bind(listen).unwrap();
            world.service(
                2,
                FrontendKind::ClusterIp,
                Protocol::UDP,
                &[frontend],
                &[udp.local_addr().unwrap()],
            );
            let _programs = world.attach();
            let to = name(frontend.parse().unwrap());
            let stream = TcpStream::connect(to).unwrap();
            let datagrams = UdpSocket::bind(any(to)).unwrap();
            datagrams.connect(to).unwrap();
            datagrams.connect(to).unwrap();
            assert_eq!(world.remembered(), 2);
            datagrams.connect(name(udp.local_addr().unwrap())).unwrap();
            assert_eq!(world.remembered(), 1, "it turned away from the service");
            drop((stream, datagrams));
            assert_eq!(world.remembered(), 0);
            // One that never gets there: nobody listens any more.
            drop(tcp);
            assert_eq!(errno(TcpStream::connect(to)), libc::ECONNREFUSED);
            assert_eq!(world.remembered(), 0);
        });
    }
}

#[test]
fn a_service_without_backends_refuses_every_call() {
    for (frontend, _, name) in CASES {
        within("refuse", |world| {
            world.service(1, FrontendKind::ClusterIp, Protocol::TCP, &[frontend], &[]);
            world.service(2, FrontendKind::ClusterIp, Protocol::UDP, &[frontend], &[]);
            let _programs = world.attach();
            let to = name(frontend.parse().unwrap());
            let udp = UdpSocket::bind(any(to)).unwrap();
            assert_eq!(errno(TcpStream::connect(to)), libc::ECONNREFUSED);
            assert_eq!(errno(udp.connect(to)), libc::ECONNREFUSED);
            assert_eq!(errno(udp.send_to(b"hello", to)), libc::ECONNREFUSED);
            assert_eq!(world.counted(Counter::NoBackends), 3);
        });
    }
}

#[test]
fn a_bind_to_a_node_port_is_denied_until_the_port_is_free() {
    within("bind", |world| {
        let protected = Settings::new().protect_node_ports(30_000, 32_767);
        world.configure(protected);
        for (index, protocol) in [(1, Protocol::TCP), (2, Protocol::UDP)] {
            world.service(index, FrontendKind::NodePort, protocol, &["0.0.0.0:30080"], &[]);
            world.service(index + 2, FrontendKind::NodePort, protocol, &["[::]:30086"], &[]);
        }
        let _programs = world.attach();
        let bind = |at: &str| (TcpListener::bind(at).map(drop), UdpSocket::bind(at).map(drop));
        let denied = |at: &str| {
            let (tcp, udp) = bind(at);
            assert_eq!((errno(tcp), errno(udp)), (libc::EADDRINUSE, libc::EADDRINUSE), "{at}");
        };
        let allowed = |at: &str| {
            let (tcp, udp) = bind(at);
            assert!(tcp.is_ok() && udp.is_ok(), "{at}: {tcp:?} {udp:?}");
        };
        for at in ["0.0.0.0:30080", "127.0.0.1:30080", "[::ffff:127.0.0.1]:30080", "[::]:30080"] {
            denied(at);
        }
        for at in ["[::]:30086", "[::1]:30086"] {
            denied(at);
        }
        // The other family's port, a port of no service, a port outside the range.
        for at in ["[::1]:30080", "0.0.0.0:30086", "0.0.0.0:30081", "0.0.0.0:10080"] {
            allowed(at);
        }
        assert_eq!(world.counted(Counter::DeniedBinds), 12);
        for protocol in [Protocol::TCP, Protocol::UDP] {
            world.delete_frontend("0.0.0.0:30080", protocol);
        }
        allowed("0.0.0.0:30080");
    });
}

#[test]
fn other_namespaces_are_left_alone_if_told_so() {
    within("hostns-only", |world| {
        world.service(1, FrontendKind::ClusterIp, Protocol::TCP, &["10.96.0.10:80"], &[]);
        world.configure(Settings::new().host_namespace_only());
        let _programs = world.attach();
        assert_eq!(errno(TcpStream::connect("10.96.0.10:80")), libc::ECONNREFUSED);
        let elsewhere = std::thread::spawn(|| {
            // SAFETY: takes no pointers.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            errno(TcpStream::connect("10.96.0.10:80"))
        });
        assert_eq!(elsewhere.join().unwrap(), libc::ENETUNREACH);
    });
}

#[test]
fn the_sockets_of_a_pod_that_opted_out_are_left_alone() {
    within("opt-out", |world| {
        world.service(1, FrontendKind::ClusterIp, Protocol::TCP, &["10.96.0.10:80"], &[]);
        world.configure(Settings::new().allow_opt_outs());
        let _programs = world.attach();
        let world = &*world;
        let elsewhere = |opts_out: bool| {
            let connect = || {
                // SAFETY: takes no pointers.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
                if opts_out {
                    world.opt_out(world::netns_cookie());
                }
                errno(TcpStream::connect("10.96.0.10:80"))
            };
            std::thread::scope(|scope| scope.spawn(connect).join().unwrap())
        };
        assert_eq!(elsewhere(false), libc::ECONNREFUSED);
        assert_eq!(elsewhere(true), libc::ENETUNREACH);
        world.opt_out(world::netns_cookie());
        assert_eq!(errno(TcpStream::connect("10.96.0.10:80")), libc::ECONNREFUSED, "the node itself");
    });
}

#[test]
fn a_frontend_changes_its_service_in_place() {
    within("store-word", |world| {
        let (frontend, protocol) = ("10.96.0.10:80", Protocol::TCP);
        let backend = TcpListener::bind("127.0.0.2:0").unwrap();
        world.service(1, FrontendKind::ClusterIp, protocol, &[frontend], &[]);
        world.service(2, FrontendKind::ClusterIp, protocol, &[], &[backend.local_addr().unwrap()]);
        let programs = world.attach();
        assert_eq!(errno(TcpStream::connect(frontend)), libc::ECONNREFUSED);
        let key = key(frontend, protocol);
        let word = FrontendValue::new(&key, FrontendKind::ClusterIp, ServiceIndex::new(2)).word();
        assert_eq!(store_word(&programs, &request(0, &key, word)), 0);
        assert_eq!(world.frontend_word(frontend, protocol), word);
        TcpStream::connect(frontend).unwrap();
        let absent = world::key("10.96.0.11:80", protocol);
        assert_eq!(store_word(&programs, &request(0, &absent, word)), 1);
        assert_eq!(store_word(&programs, &request(1, &key, word)), 1);
        assert_eq!(store_word(&programs, &request(2, &key, word)), 2);
        assert_eq!(store_word(&programs, &request(0, &key, word)[..31]), 2);
    });
}

fn request(map: u8, key: &portway_datapath::FrontendKey, word: u64) -> Vec<u8> {
    let mut bytes = vec![map, 0, 0, 0];
    bytes.extend(key.addr.octets());
    bytes.extend(key.port.get().to_be_bytes());
    bytes.extend([key.protocol, 0]);
    bytes.extend(word.to_ne_bytes());
    bytes
}

/// Runs `pw_store_word` as user space does.
fn store_word(programs: &portway_agent::programs::Programs, packet: &[u8]) -> u32 {
    #[repr(C)]
    #[derive(Default)]
    struct TestRun {
        prog_fd: u32,
        retval: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
    }
    let mut attr = TestRun {
        prog_fd: programs.store_word().as_raw_fd().cast_unsigned(),
        data_size_in: packet.len() as u32,
        data_in: packet.as_ptr() as u64,
        repeat: 1,
        ..TestRun::default()
    };
    // SAFETY: the attribute is BPF_PROG_TEST_RUN's (10); the packet is as long as said.
    let result = unsafe { libc::syscall(libc::SYS_bpf, 10, &raw mut attr, size_of::<TestRun>()) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    attr.retval
}

fn probe() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portway-agent"));
    command.arg(PROBE_SUBCOMMAND);
    command
}

#[test]
fn the_running_kernel_keeps_the_errno_contract() {
    within("selftest", |world| {
        let report = selftest::run(&mut Loader::new().unwrap(), &world.cgroup, probe()).unwrap();
        println!("{} checks in {:?}", report.passed.len(), report.took);
        assert_eq!(report.passed.len() + report.unsupported.len(), selftest::Check::all().count());
        assert!(report.passed.len() >= 6, "{report:?}");
        assert_eq!(below(world), 0);
    });
}

/// Cgroups that were left below the test's.
fn below(world: &World) -> usize {
    world.cgroup.read_dir().unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
}

#[test]
fn a_kernel_that_answers_eperm_is_refused() {
    within("selftest-eperm", |world| {
        let mut lying = Command::new("sh");
        lying.args(["-c", "echo namespace 1; read go; echo connect-tcp-v4 1"]);
        let error = selftest::run(&mut Loader::new().unwrap(), &world.cgroup, lying).unwrap_err();
        assert!(matches!(error, SelfTestError::Errno { found: libc::EPERM, .. }), "{error}");
        assert!(error.to_string().contains("connect-tcp-v4 ended with EPERM (1), not ECONNREFUSED (111)"));
        assert_eq!(below(world), 0);
    });
}
