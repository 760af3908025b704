//! Links: attached, replaced, moved, removed.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use portway_agent::programs::{Change, Hook, attached, detach};
use portway_datapath::{FrontendKind, Protocol};

use crate::world::within;

#[test]
fn a_second_agent_replaces_the_programs_of_the_first_without_a_gap() {
    within("replace", |world| {
        let backend = TcpListener::bind("127.0.0.2:0").unwrap();
        let at = backend.local_addr().unwrap();
        world.service(1, FrontendKind::ClusterIp, Protocol::TCP, &["10.96.0.10:80"], &[at]);
        let first = world.load();
        let changes = first.attach(&world.cgroup, &world.links).unwrap();
        assert_eq!(changes, Hook::ALL.map(|hook| (hook, Change::Attached)));
        let before = attached(&world.links).unwrap();
        drop(first);
        let (done, connects) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            // A thread takes its parent's namespaces along.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    TcpStream::connect("10.96.0.10:80").unwrap();
                    backend.accept().unwrap();
                    connects.fetch_add(1, Ordering::Relaxed);
                }
            });
            for _ in 0..20 {
                let programs = world.load();
                let changes = programs.attach(&world.cgroup, &world.links).unwrap();
                assert!(changes.iter().all(|(_, change)| matches!(change, Change::Replaced { .. })));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(connects.load(Ordering::Relaxed) > 0);
        let after = attached(&world.links).unwrap();
        let links = |of: &[portway_agent::programs::Attached]| of.iter().map(|a| a.link).collect::<Vec<_>>();
        assert_eq!(links(&before), links(&after), "the links are the same ones");
        assert!(before.iter().zip(&after).all(|(b, a)| b.program != a.program));
    });
}

#[test]
fn the_programs_run_on_without_the_agent_and_end_with_the_pins() {
    within("detach", |world| {
        let backend = TcpListener::bind("127.0.0.2:0").unwrap();
        let at = backend.local_addr().unwrap();
        world.service(1, FrontendKind::ClusterIp, Protocol::TCP, &["10.96.0.10:80"], &[at]);
        drop(world.attach());
        TcpStream::connect("10.96.0.10:80").unwrap();
        let removed = detach(&world.links).unwrap();
        assert_eq!(removed.len(), Hook::ALL.len());
        assert_eq!(removed.first().map(String::as_str), Some("connect6"));
        assert!(!world.links.exists());
        let error = TcpStream::connect("10.96.0.10:80").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
        // Again: nothing to do is no error.
        assert_eq!(detach(&world.links).unwrap(), Vec::<String>::new());
        assert_eq!(attached(&world.links).unwrap(), []);
    });
}

#[test]
fn a_link_to_another_cgroup_is_made_anew() {
    within("moved", |world| {
        let other = world.cgroup.join("other");
        std::fs::create_dir(&other).unwrap();
        world.load().attach(&other, &world.links).unwrap();
        let old_cgroup = attached(&world.links).unwrap()[0].cgroup;
        // What a version with another hook left there.
        std::fs::rename(world.links.join("recvmsg4"), world.links.join("getsockname4")).unwrap();
        let changes = world.load().attach(&world.cgroup, &world.links).unwrap();
        assert_eq!(changes[0], (Hook::Recvmsg4, Change::Attached));
        assert!(changes[1..].iter().all(|(_, change)| *change == Change::Moved { old_cgroup }));
        assert_eq!(world.links.read_dir().unwrap().count(), Hook::ALL.len());
        std::fs::remove_dir(&other).unwrap();
        // The same for a cgroup that is gone.
        std::fs::create_dir(&other).unwrap();
        let gone = world.links.with_file_name("gone");
        world.load().attach(&other, &gone).unwrap();
        std::fs::remove_dir(&other).unwrap();
        let changes = world.load().attach(&world.cgroup, &gone).unwrap();
        assert!(changes.iter().all(|(_, change)| *change == Change::Moved { old_cgroup: 0 }), "{changes:?}");
    });
}

#[test]
fn a_cgroup_of_the_first_version_is_refused() {
    within("cgroup1", |world| {
        let error = world.load().attach("/proc/self".as_ref(), &world.links).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/proc/self is not a directory of a cgroup v2 hierarchy; set cgroup-root to one"
        );
    });
}
