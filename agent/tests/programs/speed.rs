//! What the programs cost. Prints; the bars are `cargo xtask bench`'s.

use std::net::{TcpListener, TcpStream, UdpSocket};

use portway_agent::programs::attached;
use portway_datapath::{FrontendKind, Protocol};

use crate::world::within;

#[test]
fn every_program_is_far_from_the_verifiers_limit() {
    within("verifier", |world| {
        let programs = world.load();
        for program in programs.loaded() {
            println!(
                "{:14} {:>6?} verified, {:?}",
                program.name, program.verified_instructions, program.load_time
            );
            // The limit is a million; Linux 5.16 and later say how many were walked through.
            assert!(program.verified_instructions.unwrap_or(0) < 50_000, "{program:?}");
        }
    });
}

#[test]
fn the_time_of_connect4_is_known() {
    within("speed", |world| {
        let backend = TcpListener::bind("127.0.0.2:0").unwrap();
        let at = backend.local_addr().unwrap();
        world.service(1, FrontendKind::ClusterIp, Protocol::TCP, &["10.96.0.10:80"], &[at]);
        world.service(
            2,
            FrontendKind::ClusterIp,
            Protocol::UDP,
            &["10.96.0.10:80"],
            &["127.0.0.2:9".parse().unwrap()],
        );
        let _programs = world.attach();
        let connect4 =
            attached(&world.links).unwrap().into_iter().find(|a| a.hook.name() == "connect4").unwrap();
        let _stats = statistics();
        let timed = |what: &str, one: &dyn Fn()| {
            let (time, runs) = run_time(connect4.program);
            for _ in 0..5000 {
                one();
            }
            let (after, more) = run_time(connect4.program);
            let each = (after - time) / (more - runs);
            println!("connect4 {what}: {each} ns over {} runs", more - runs);
        };
        timed("TCP hit", &|| {
            drop(TcpStream::connect("10.96.0.10:80").unwrap());
            drop(backend.accept().unwrap());
        });
        timed("TCP miss", &|| {
            drop(TcpStream::connect(at).unwrap());
            drop(backend.accept().unwrap());
        });
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        timed("UDP hit, same socket", &|| udp.connect("10.96.0.10:80").unwrap());
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        timed("UDP miss, same socket", &|| udp.connect("127.0.0.2:9").unwrap());
    });
}

/// BPF_ENABLE_STATS (32), until the descriptor is closed.
fn statistics() -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd as _;
    let kind = 0u32;
    // SAFETY: the attribute is the command's; it returns a new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_bpf, 32, &raw const kind, size_of::<u32>());
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        std::os::fd::OwnedFd::from_raw_fd(fd as i32)
    }
}

/// Nanoseconds and runs of a program so far.
fn run_time(program: u32) -> (u64, u64) {
    let info = aya::programs::loaded_programs().map(Result::unwrap).find(|p| p.id() == program).unwrap();
    (info.run_time().as_nanos() as u64, info.run_count())
}
