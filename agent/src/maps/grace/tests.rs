use std::sync::mpsc::channel;

use super::*;

/// Longer than any wait here, so that a test that fails ends.
const PATIENCE: Duration = Duration::from_secs(20);

fn over<T>(grace: Grace<T>) -> Vec<T> {
    match grace {
        Grace::Over { tickets, .. } => tickets,
        Grace::Failed { error, .. } => panic!("the wait failed: {error}"),
    }
}

#[test]
fn tickets_that_come_during_a_wait_go_with_the_next_one() {
    let (began, wait_began) = channel();
    let (go, may_go) = channel();
    let (report, reports) = channel();
    let wait = move || {
        began.send(()).unwrap();
        may_go.recv().map_err(io::Error::other)
    };
    let periods = GracePeriods::start_with(wait, move |grace| report.send(grace).unwrap()).unwrap();
    assert!(periods.request(1));
    wait_began.recv_timeout(PATIENCE).unwrap();
    for ticket in [2, 3, 4] {
        assert!(periods.request(ticket));
    }
    go.send(()).unwrap();
    assert_eq!(over(reports.recv_timeout(PATIENCE).unwrap()), [1]);
    wait_began.recv_timeout(PATIENCE).unwrap();
    go.send(()).unwrap();
    assert_eq!(over(reports.recv_timeout(PATIENCE).unwrap()), [2, 3, 4]);
}

#[test]
fn a_wait_that_fails_keeps_its_tickets() {
    let (report, reports) = channel();
    let mut failures = 1;
    let wait = move || {
        if failures == 0 {
            return Ok(());
        }
        failures -= 1;
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    };
    let periods = GracePeriods::start_with(wait, move |grace| report.send(grace).unwrap()).unwrap();
    assert!(periods.request("run"));
    match reports.recv_timeout(PATIENCE).unwrap() {
        Grace::Failed { error, kept } => {
            assert_eq!((error.raw_os_error(), kept), (Some(libc::EINVAL), 1));
        }
        Grace::Over { .. } => panic!("a failed wait was reported as over"),
    }
    // Without another ticket: the retry.
    assert_eq!(over(reports.recv_timeout(PATIENCE).unwrap()), ["run"]);
}

#[test]
fn dropping_waits_for_the_thread_and_reports_no_ticket_twice() {
    let (report, reports) = channel();
    let periods = GracePeriods::start_with(|| Ok(()), move |grace| report.send(grace).unwrap()).unwrap();
    assert!((0..100).all(|ticket| periods.request(ticket)));
    drop(periods);
    // The channel is closed, so this ends.
    let reported: Vec<i32> = reports.iter().flat_map(over).collect();
    assert_eq!(reported, (0..100).collect::<Vec<_>>());
}
