use std::time::Duration;

use portway_runtime::config::Reader;
use portway_runtime::config::values::patience;
use portway_runtime::kubernetes::LeaseTimes;

const KEYS: [&str; 3] =
    ["leader-election-lease-duration", "leader-election-renew-deadline", "leader-election-retry-period"];

/// Writes must end between the moment the leader stops and the one at which another begins.
const LEAST_BETWEEN: Duration = Duration::from_secs(2);

pub(super) fn read(reader: &mut Reader<'_>) -> LeaseTimes {
    let [duration, renew, retry] = KEYS;
    let mut time = |name| reader.parse(name, patience).unwrap_or_default();
    let times = LeaseTimes { duration: time(duration), renew: time(renew), retry: time(retry) };
    if times.renew <= times.retry {
        reader.refuse(
            &[renew, retry],
            "a renew deadline that is longer than the retry period: it is tried once at least",
            "leave them out, for 10s and 2s",
        );
    }
    if times.duration < times.renew.saturating_add(LEAST_BETWEEN) {
        reader.refuse(
            &[duration, renew],
            "a lease duration that is at least 2s longer than the renew deadline: writes end in between",
            "leave them out, for 15s and 10s, or raise the lease duration",
        );
    }
    times
}
