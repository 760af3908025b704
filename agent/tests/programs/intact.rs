//! Links that somebody else took away or changed are noticed and put right.

use std::net::{TcpListener, TcpStream};

use portway_agent::programs::{Hook, LinkFault, LinkFaultKind, Links, attached, detach};
use portway_datapath::{FrontendKind, Protocol};

use crate::world::within;

fn faults(kind: LinkFaultKind) -> Vec<LinkFault> {
    Hook::ALL.into_iter().map(|hook| LinkFault { hook, kind }).collect()
}

#[test]
fn programs_that_were_taken_away_are_put_back() {
    within("intact", |world| {
        let backend = TcpListener::bind("127.0.0.2:0").unwrap();
        let at = backend.local_addr().unwrap();
        world.service(1, FrontendKind::ClusterIp, Protocol::TCP, &["10.96.0.10:80"], &[at]);
        let programs = world.attach();
        let mut links = Links::open(&world.cgroup, &world.links).unwrap();
        assert_eq!(links.faults(&programs).unwrap(), []);
        let made = attached(&world.links).unwrap();
        links.heal(&programs).unwrap();
        assert_eq!(attached(&world.links).unwrap(), made, "what is right is not touched");

        // Pins that go take no program along, for the links are held.
        std::fs::remove_dir_all(&world.links).unwrap();
        assert_eq!(links.faults(&programs).unwrap(), faults(LinkFaultKind::NotPinned));
        TcpStream::connect("10.96.0.10:80").unwrap();
        links.heal(&programs).unwrap();
        assert_eq!(
            (links.faults(&programs).unwrap(), attached(&world.links).unwrap()),
            (vec![], made.clone())
        );

        // Something else under the name.
        std::fs::remove_file(world.links.join("connect4")).unwrap();
        std::fs::rename(world.links.join("connect6"), world.links.join("connect4")).unwrap();
        let found = links.faults(&programs).unwrap();
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "something else is pinned in place of the link of connect4",
                "the link of connect6 is not pinned"
            ]
        );
        links.heal(&programs).unwrap();
        assert_eq!(
            (links.faults(&programs).unwrap(), attached(&world.links).unwrap()),
            (vec![], made.clone())
        );

        // Another's programs in our links.
        let other = world.load();
        other.attach(&world.cgroup, &world.links).unwrap();
        let found = links.faults(&programs).unwrap();
        assert_eq!(found.len(), Hook::ALL.len());
        assert!(
            found.iter().all(|fault| matches!(fault.kind, LinkFaultKind::OtherProgram { .. })),
            "{found:?}"
        );
        links.heal(&programs).unwrap();
        assert_eq!((links.faults(&programs).unwrap(), attached(&world.links).unwrap()), (vec![], made));

        // Detached: the links are of no more use.
        detach(&world.links).unwrap();
        let found = links.faults(&programs).unwrap();
        assert!(
            found.contains(&LinkFault { hook: Hook::Connect4, kind: LinkFaultKind::Detached }),
            "{found:?}"
        );
        assert!(TcpStream::connect("10.96.0.10:80").is_err());
        links.heal(&programs).unwrap();
        assert_eq!(links.faults(&programs).unwrap(), []);
        TcpStream::connect("10.96.0.10:80").unwrap();
        assert_eq!(attached(&world.links).unwrap().len(), Hook::ALL.len());
    });
}

#[test]
fn programs_of_others_are_named_with_their_place() {
    within("others", |world| {
        let (first, second) = (world.load(), world.load());
        first.attach(&world.cgroup, &world.links).unwrap();
        let links = Links::open(&world.cgroup, &world.links).unwrap();
        assert_eq!(links.others(&first).unwrap(), []);
        let elsewhere = world.links.with_file_name("elsewhere");
        second.attach(&world.cgroup, &elsewhere).unwrap();
        let others = links.others(&first).unwrap();
        assert_eq!(others.len(), Hook::ALL.len());
        assert!(others.iter().all(|other| !other.runs_before && !other.name.is_empty()), "{others:?}");
        let others = Links::open(&world.cgroup, &elsewhere).unwrap().others(&second).unwrap();
        assert!(others.iter().all(|other| other.runs_before), "{others:?}");
        let line = others.iter().find(|other| other.hook == Hook::Connect4).unwrap().to_string();
        assert!(line.ends_with("(connect4) of somebody else runs before connect4"), "{line}");
        detach(&elsewhere).unwrap();
        assert_eq!(links.others(&first).unwrap(), []);
    });
}
