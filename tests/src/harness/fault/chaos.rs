//! Faults at random, from a seed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{EventFault, FaultProxy, RequestFault, lock};
use crate::oracle::random::Random;

/// How often what goes wrong. Which event comes when depends on the machine, so a seed does not repeat a run exactly.
#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    pub seed: u64,
    /// Requests in a hundred that have a fault.
    pub requests: u64,
    /// Events in a hundred that have a fault.
    pub events: u64,
    /// Whether events may get lost without a trace, which only an audit can notice.
    pub skips: bool,
}

const REQUEST_FAULTS: [RequestFault; 9] = [
    RequestFault::Status(410, None),
    RequestFault::Status(429, Some(1)),
    RequestFault::Status(500, None),
    RequestFault::Status(503, None),
    RequestFault::Refuse,
    RequestFault::Delay(Duration::from_millis(200)),
    RequestFault::Half,
    RequestFault::HalfInChunks,
    RequestFault::HalfJson,
];

const EVENT_FAULTS: [EventFault; 8] = [
    EventFault::Duplicate,
    EventFault::Swap,
    EventFault::Delay(Duration::from_millis(50)),
    EventFault::HalfLine,
    EventFault::Garbage,
    EventFault::Gone,
    EventFault::Cut,
    EventFault::End,
];

impl Chaos {
    /// Lets it loose on everything that passes `proxy`, until it behaves again.
    pub fn on(self, proxy: &FaultProxy) {
        let random = Arc::new(Mutex::new(Random::new(self.seed)));
        let requests = Arc::clone(&random);
        proxy.on_requests(move |_| {
            let mut random = lock(&requests);
            if random.chance(self.requests) { *random.pick(&REQUEST_FAULTS) } else { RequestFault::None }
        });
        proxy.on_events(move |_, event| {
            let mut random = lock(&random);
            if !random.chance(self.events) {
                EventFault::None
            } else if self.skips && event.kind != "BOOKMARK" && random.chance(10) {
                EventFault::Skip
            } else {
                *random.pick(&EVENT_FAULTS)
            }
        });
    }
}
