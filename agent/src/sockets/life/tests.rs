use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

use super::*;

/// Puts one question and waits for its end.
fn asked(lives: &mut Lives, to: (Addr, Port), at: Instant) -> Outcome {
    assert_eq!(lives.of(to, at), Life::Unknown);
    assert!(is_asked(lives, to));
    let mut ended = Vec::new();
    // On loopback the answer is there when connect(2) returns.
    lives.listen(at, |outcome| ended.push(outcome));
    if ended.is_empty() {
        lives.listen(at + PATIENCE, |outcome| ended.push(outcome));
    }
    assert!(ended.len() == 1 && !is_asked(lives, to) && lives.due().is_none(), "{ended:?}");
    ended[0]
}

fn is_asked(lives: &Lives, to: (Addr, Port)) -> bool {
    lives.backends.get(&to).is_some_and(|backend| backend.pending.is_some())
}

fn at(to: SocketAddr) -> (Addr, Port) {
    (to.ip().into(), Port::new(to.port()))
}

#[test]
fn who_accepts_or_refuses_lives_and_is_asked_again_in_time() {
    for ip in [Ipv4Addr::LOCALHOST.into(), std::net::IpAddr::from(Ipv6Addr::LOCALHOST)] {
        let mut lives = Lives::default();
        let now = Instant::now();
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let to = at(listener.local_addr().unwrap());
        assert_eq!(asked(&mut lives, to, now), Outcome::Answered);
        assert_eq!(lives.of(to, now + PATIENCE), Life::Kept(now + FRESH));
        drop(listener);
        assert_eq!(asked(&mut lives, to, now + FRESH), Outcome::Answered);
    }
}

#[test]
fn a_question_leaves_nothing_open() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = at(listener.local_addr().unwrap());
    asked(&mut Lives::default(), to, Instant::now());
    let error = std::io::Read::read(&mut listener.accept().unwrap().0, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// A broadcast address has no TCP: the same error at once as where no route leads.
const NOWHERE: (Addr, Port) = (Addr::v4([255, 255, 255, 255]), Port::new(80));

#[test]
fn nobody_lives_where_two_questions_in_a_row_had_no_answer() {
    let mut lives = Lives::default();
    let start = Instant::now();
    assert_eq!(asked(&mut lives, NOWHERE, start), Outcome::Unreachable);
    // Sweeps of a busy node are far apart: the first one counts all the same.
    let later = start + FRESH * 2;
    assert_eq!(asked(&mut lives, NOWHERE, later), Outcome::Unreachable);
    assert_eq!(lives.of(NOWHERE, later + FRESH), Life::Gone { has_answered_before: false });
    // What was found out is found out again in time.
    assert_eq!(asked(&mut lives, NOWHERE, later + STALE), Outcome::Unreachable);
    assert_eq!(asked(&mut lives, NOWHERE, later + STALE + PATIENCE), Outcome::Unreachable);
    assert_eq!(lives.of(NOWHERE, later + STALE + PATIENCE * 2), Life::Gone { has_answered_before: false });
}

#[test]
fn an_error_at_once_does_not_count_before_its_time() {
    let mut lives = Lives::default();
    let now = Instant::now();
    assert_eq!(lives.of(NOWHERE, now), Life::Unknown);
    lives.listen(now, |outcome| panic!("{outcome:?}"));
    assert_eq!(lives.due(), Some(now + PATIENCE));
    lives.retain(|addr| addr != NOWHERE.0);
    assert_eq!((lives.due(), lives.in_flight), (None, 0));
}

#[test]
fn so_many_are_asked_at_a_time_and_the_others_later() {
    let mut lives = Lives::default();
    let now = Instant::now();
    let ports = 1..=u16::try_from(IN_FLIGHT + 10).unwrap();
    for port in ports.clone() {
        assert_eq!(lives.of((NOWHERE.0, Port::new(port)), now), Life::Unknown);
    }
    let is_asked = |lives: &Lives, port| is_asked(lives, (NOWHERE.0, Port::new(port)));
    assert_eq!(ports.clone().filter(|port| is_asked(&lives, *port)).count(), IN_FLIGHT);
    lives.listen(now + PATIENCE, |_| {});
    let last = *ports.end();
    assert_eq!(lives.of((NOWHERE.0, Port::new(last)), now + PATIENCE), Life::Unknown);
    assert!(is_asked(&lives, last));
}
