use std::io;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use portway_agent::maps::{Grace, GracePeriods, RcuWaiter};

use crate::bpf::Raw;

#[test]
fn the_kernel_waits_either_way() {
    let waiter = RcuWaiter::new().expect("creating BPF maps needs root");
    let took = |wait: &dyn Fn() -> io::Result<()>| {
        let mut times: Vec<_> = (0..15)
            .map(|_| {
                let start = Instant::now();
                wait().unwrap();
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    let array = Raw::create([2, 4, 4, 1, 0]).unwrap();
    let plain = took(&|| array.update(&[0; 4], &[1; 4]));
    let (by_map, either) = (took(&|| waiter.wait_by_map()), took(&|| waiter.wait()));
    println!("plain update {plain:?}, map of maps {by_map:?}, membarrier or map of maps {either:?}");
    // A grace period needs every CPU to pass through the scheduler: orders of magnitude more than an update.
    assert!(by_map > plain * 10, "an update of a map of maps took {by_map:?}, a plain one {plain:?}");
    assert!(either > plain * 10, "a wait took {either:?}, a plain update {plain:?}");
}

#[test]
fn a_wait_on_the_kernel_is_reported() {
    let (report, reports) = channel();
    let periods = GracePeriods::start(move |grace| report.send(grace).unwrap()).expect("needs root");
    assert!(periods.request("run"));
    match reports.recv_timeout(Duration::from_secs(20)).unwrap() {
        Grace::Over { tickets, took } => {
            println!("waited {took:?}");
            assert_eq!(tickets, ["run"]);
        }
        Grace::Failed { error, .. } => panic!("the wait failed: {error}"),
    }
}
