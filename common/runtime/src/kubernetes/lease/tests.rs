mod clocks;
mod elector;

use std::time::Duration;

use super::LeaseTimes;
use super::election::{Action, Answer, Election, Role, Step};
use super::record::Record;

const TIMES: LeaseTimes = LeaseTimes {
    duration: Duration::from_secs(15),
    renew: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};

const fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn record(version: u64, holder: &str) -> Record {
    Record {
        version,
        holder: holder.to_owned(),
        duration: Some(TIMES.duration),
        acquired: String::new(),
        renewed: version.to_string(),
        transitions: 7,
    }
}

fn election() -> Election {
    Election::new("me".to_owned(), TIMES)
}

fn asked(step: Step) -> Action {
    match step {
        Step::Ask(action) => action,
        Step::Wait(until) => panic!("it waits until {until:?}"),
    }
}

/// Looks, and finds what is there.
fn looked(found: Answer) -> Election {
    let mut election = election();
    assert_eq!(asked(election.poll(at(0))), Action::Look);
    election.answered(at(100), found);
    election
}

/// Sent at so many milliseconds and answered at once; it leads from then on.
fn leading(sent: u64) -> Election {
    let mut election = looked(Answer::Lease(record(10, "")));
    let Action::Replace { version: 10, claim } = asked(election.poll(at(sent))) else {
        panic!("a free lease is taken")
    };
    assert_eq!((claim.holder.as_str(), claim.transitions, claim.is_new), ("me", 8, true));
    election.answered(at(sent), Answer::Lease(Record { transitions: 8, ..record(11, "me") }));
    election
}

#[test]
fn where_there_is_no_lease_one_is_made_and_who_made_it_leads() {
    let mut election = election();
    assert_eq!(election.role(at(0)), Role::Unknown);
    assert_eq!(asked(election.poll(at(0))), Action::Look);
    assert_eq!(election.poll(at(1)), Step::Wait(Duration::MAX), "one request at a time");
    election.answered(at(100), Answer::Absent);
    let Action::Create(claim) = asked(election.poll(at(100))) else { panic!("no creation") };
    assert_eq!(claim.holder, "me");
    election.answered(at(400), Answer::Lease(Record { transitions: claim.transitions, ..record(5, "me") }));
    assert_eq!(election.role(at(400)), Role::Leading { term: 1, until: at(10_100) });
}

#[test]
fn the_lease_of_another_is_waited_for_from_when_its_last_sign_was_seen() {
    let mut election = looked(Answer::Lease(record(10, "other")));
    assert_eq!(election.poll(at(100)), Step::Wait(at(15_100)));
    election.told(at(3000), 11, Some(record(11, "other")));
    // An older one that was on its way says nothing, nor does a label that somebody added.
    election.told(at(4000), 10, Some(record(10, "other")));
    election.told(at(5000), 12, Some(Record { renewed: "11".to_owned(), ..record(12, "other") }));
    assert_eq!(election.poll(at(17_999)), Step::Wait(at(18_000)));
    assert_eq!(election.role(at(17_999)), Role::Standby { leader: Some("other".to_owned()) });
    let Action::Replace { version: 12, claim } = asked(election.poll(at(18_000))) else {
        panic!("not taken")
    };
    assert_eq!((claim.transitions, claim.is_new), (8, true));
}

#[test]
fn a_holder_that_asks_for_more_time_has_it() {
    let long = Record { duration: Some(Duration::from_secs(60)), ..record(10, "other") };
    let mut election = looked(Answer::Lease(long));
    assert_eq!(election.poll(at(100)), Step::Wait(at(60_100)));
}

#[test]
fn a_lease_that_was_given_back_is_taken_at_once() {
    let mut election = looked(Answer::Lease(record(10, "other")));
    election.poll(at(100));
    election.told(at(2500), 11, Some(record(11, "")));
    assert!(matches!(asked(election.poll(at(2500))), Action::Replace { version: 11, .. }));
}

#[test]
fn a_lease_that_was_deleted_is_made_anew_when_its_holder_leads_no_more() {
    let mut election = looked(Answer::Lease(record(10, "other")));
    election.told(at(2500), 12, None);
    assert_eq!(election.poll(at(2500)), Step::Wait(at(17_500)), "he may not know it yet");
    let Action::Create(claim) = asked(election.poll(at(17_500))) else { panic!("no creation") };
    assert_eq!(claim.transitions, 8);
    // Who held it himself need not wait.
    let mut election = leading(1000);
    election.told(at(2000), 20, None);
    assert!(matches!(asked(election.poll(at(3000))), Action::Create(_)));
}

#[test]
fn a_leader_renews_and_counts_from_when_it_sent_what_was_answered() {
    let mut election = leading(1000);
    assert_eq!(election.role(at(1000)), Role::Leading { term: 8, until: at(11_000) });
    assert_eq!(election.poll(at(2999)), Step::Wait(at(3000)));
    let Action::Replace { version: 11, claim } = asked(election.poll(at(3000))) else { panic!("no renewal") };
    assert_eq!((claim.transitions, claim.is_new), (8, false), "it has changed no hands");
    // A slow answer: the next one is due when it comes.
    election.answered(at(6000), Answer::Lease(Record { transitions: 8, ..record(12, "me") }));
    assert_eq!(election.role(at(6000)), Role::Leading { term: 8, until: at(13_000) });
    assert!(matches!(asked(election.poll(at(6000))), Action::Replace { version: 12, .. }));
}

#[test]
fn a_leader_that_cannot_renew_leads_no_more_after_the_deadline_and_tries_on() {
    let mut election = leading(1000);
    for sent in [3000, 5000, 7000, 9000] {
        asked(election.poll(at(sent)));
        assert_eq!(election.poll(at(sent)), Step::Wait(at(11_000)), "its end is not missed");
        election.answered(at(sent + 1500), Answer::Failed);
    }
    assert!(matches!(election.role(at(10_999)), Role::Leading { .. }));
    assert_eq!(election.role(at(11_000)), Role::Standby { leader: None });
    // Nobody has it: its own is taken again, by the version that it was seen at, and for a term of its own.
    let Action::Replace { version: 11, claim } = asked(election.poll(at(11_000))) else {
        panic!("it gave up")
    };
    assert_eq!((claim.transitions, claim.is_new), (9, true));
    // The answer that was lost was a renewal after all.
    election.answered(at(11_100), Answer::Conflict);
    assert_eq!(asked(election.poll(at(11_100))), Action::Look);
    election.answered(at(11_200), Answer::Lease(record(12, "me")));
    assert!(matches!(asked(election.poll(at(11_200))), Action::Replace { version: 12, .. }));
}

#[test]
fn a_renewal_that_is_answered_after_the_end_of_the_term_renews_nothing() {
    let mut election = leading(1000);
    asked(election.poll(at(9000)));
    assert_eq!(election.role(at(11_000)), Role::Standby { leader: None });
    let renewed = Record { transitions: 8, ..record(12, "me") };
    // With and without a look at the clock in between.
    election.answered(at(11_500), Answer::Lease(renewed));
    assert_eq!(election.role(at(11_500)), Role::Standby { leader: None });
    let Action::Replace { version: 12, claim } = asked(election.poll(at(11_500))) else {
        panic!("it gave up")
    };
    assert_eq!((claim.transitions, claim.is_new), (9, true));
    election.answered(at(11_600), Answer::Lease(Record { transitions: 9, ..record(13, "me") }));
    assert!(matches!(election.role(at(11_600)), Role::Leading { term: 9, .. }));
}

#[test]
fn a_leader_that_sees_another_one_stops_at_once() {
    let mut election = leading(1000);
    election.told(at(2000), 20, Some(record(20, "other")));
    assert_eq!(election.role(at(2000)), Role::Standby { leader: Some("other".to_owned()) });
    let mut election = leading(1000);
    asked(election.poll(at(3000)));
    election.answered(at(3100), Answer::Conflict);
    assert!(matches!(election.role(at(3100)), Role::Leading { .. }), "it may have been anybody's annotation");
    assert_eq!(asked(election.poll(at(3100))), Action::Look);
    election.answered(at(3200), Answer::Lease(record(20, "other")));
    assert_eq!(election.role(at(3200)), Role::Standby { leader: Some("other".to_owned()) });
    let mut election = leading(1000);
    election.told(at(2000), 20, None);
    assert_eq!(election.role(at(2000)), Role::Standby { leader: None });
}

#[test]
fn whoever_touches_the_lease_all_the_time_makes_it_no_busier_than_the_retry_period() {
    let mut election = leading(1000);
    let (mut now, mut requests) = (at(3000), 0);
    while now < at(11_000) {
        match election.poll(now) {
            Step::Ask(Action::Look) => {
                requests += 1;
                election.answered(now, Answer::Lease(record(100 + requests, "me")));
            }
            Step::Ask(_) => {
                requests += 1;
                election.answered(now, Answer::Conflict);
            }
            Step::Wait(until) => now = until,
        }
    }
    assert!(requests < 14, "{requests} requests in 8 s");
}

#[test]
fn an_api_server_that_forgot_the_newest_versions_is_believed_when_it_is_asked() {
    let mut election = looked(Answer::Lease(record(1000, "other")));
    election.told(at(1000), 900, Some(record(900, "other")));
    assert!(matches!(asked(election.poll(at(15_100))), Action::Replace { version: 1000, .. }));
    election.answered(at(15_200), Answer::Conflict);
    asked(election.poll(at(15_200)));
    election.answered(at(15_300), Answer::Lease(record(900, "other")));
    assert_eq!(election.poll(at(15_300)), Step::Wait(at(30_300)));
}

#[test]
fn only_ones_own_lease_is_given_back() {
    assert_eq!(election().release(), None);
    assert_eq!(looked(Answer::Lease(record(10, "other"))).release(), None);
    let mut election = leading(1000);
    let Some(Action::Replace { version: 11, claim }) = election.release() else { panic!("not given back") };
    assert_eq!((claim.holder.as_str(), claim.duration), ("", Duration::from_secs(1)));
    assert!(matches!(election.role(at(1000)), Role::Standby { .. }));
}

#[test]
fn the_times_of_a_lease_leave_room_for_writes_and_clocks() {
    assert_eq!(TIMES.hold(), Duration::from_secs(10));
    assert_eq!(TIMES.write_limit(), Duration::from_secs(4));
    // Of a long lease whose deadline is close to its end a tenth is left.
    let long = LeaseTimes { duration: Duration::from_secs(100), renew: Duration::from_secs(98), ..TIMES };
    assert_eq!((long.hold(), long.write_limit()), (Duration::from_secs(90), Duration::from_secs(9)));
    let short = LeaseTimes { duration: Duration::from_secs(3), renew: Duration::from_secs(2), ..TIMES };
    assert_eq!(short.write_limit(), Duration::from_millis(500));
}

#[test]
fn whatever_the_times_are_a_leader_can_write_between_its_renewals() {
    for duration in [4_u64, 15, 30, 60, 120, 600] {
        for renew in 2..=duration - 2 {
            for retry in 1..renew {
                let [duration, renew, retry] = [duration, renew, retry].map(Duration::from_secs);
                let times = LeaseTimes { duration, renew, retry };
                let (hold, limit, period) = (times.hold(), times.write_limit(), times.period());
                assert!(!limit.is_zero() && !period.is_zero(), "{times:?}");
                assert!(period <= retry && limit + period * 2 <= hold, "{times:?}: {limit:?} {period:?}");
                assert!(hold + limit < duration, "{times:?}: {limit:?}");
            }
        }
    }
    // As users of slow control planes are told to have it.
    let slow = LeaseTimes { duration: Duration::from_secs(30), renew: Duration::from_secs(15), ..TIMES };
    assert_eq!((slow.write_limit(), slow.period()), (Duration::from_millis(7500), TIMES.retry));
}
