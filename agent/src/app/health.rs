//! kube-proxy's `/healthz` and `/livez`, for load balancers that probe nodes on 10256.
//!
//! As in kube-proxy (pkg/proxy/healthcheck/proxy_health.go): `/healthz` is 503 if an update that was queued is not made
//! within twice the sync period of 30 s, or if the node is about to go; `/livez` leaves the node out. Before the first
//! update all is well. An API server that is silent queues nothing, so it never makes a node unhealthy; nor does an
//! object that no map has room for: it would take every node of the cluster out of every load balancer at once.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use portway_runtime::admin::{self, AdminError};
use portway_runtime::shutdown::Drain;
use tokio::net::TcpListener;

/// How often an address that another process has is asked for again.
const BETWEEN_TRIES: Duration = Duration::from_secs(2);
/// An update that waits for longer is overdue.
const OVERDUE: Duration = Duration::from_secs(60);

/// What the owner tells and the probes read. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct ProxyHealth(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Since when the oldest update waits that is not made.
    queued: Option<Instant>,
    last_updated: Option<SystemTime>,
    node_is_eligible: bool,
}

/// One answer.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    is_healthy: bool,
    body: String,
}

impl ProxyHealth {
    pub(super) fn new() -> Self {
        let state = State { queued: None, last_updated: None, node_is_eligible: true };
        Self(Arc::new(Mutex::new(state)))
    }

    /// An update is to be made.
    pub(super) fn queued(&self, now: Instant) {
        self.lock().queued.get_or_insert(now);
    }

    /// Every update was made.
    pub(super) fn updated(&self, now: SystemTime) {
        let mut state = self.lock();
        (state.queued, state.last_updated) = (None, Some(now));
    }

    pub(super) fn set_node_eligible(&self, is_eligible: bool) {
        self.lock().node_is_eligible = is_eligible;
    }

    fn healthz(&self, now: Instant, clock: SystemTime) -> Verdict {
        let state = self.lock();
        let is_healthy = state.is_updated(now) && state.node_is_eligible;
        let (updated, current) = (state.shown_update(is_healthy, clock), go_time(Some(clock)));
        let eligible = state.node_is_eligible;
        let body = format!(
            r#"{{"lastUpdated": "{updated}","currentTime": "{current}", "nodeEligible": {eligible}}}"#
        );
        Verdict { is_healthy, body }
    }

    fn livez(&self, now: Instant, clock: SystemTime) -> Verdict {
        let state = self.lock();
        let is_healthy = state.is_updated(now);
        let (updated, current) = (state.shown_update(is_healthy, clock), go_time(Some(clock)));
        Verdict { is_healthy, body: format!(r#"{{"lastUpdated": "{updated}","currentTime": "{current}"}}"#) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Plain values: a panic elsewhere leaves them usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_updated(&self, now: Instant) -> bool {
        self.queued.is_none_or(|queued| now.duration_since(queued) < OVERDUE)
    }

    /// As kube-proxy: now, as long as all is well.
    fn shown_update(&self, is_healthy: bool, clock: SystemTime) -> String {
        go_time(if is_healthy { Some(clock) } else { self.last_updated })
    }
}

/// `None` where another process has the address, which kube-proxy does until it is removed.
///
/// # Errors
/// Anything else that keeps us from listening.
pub(super) async fn listen(address: SocketAddr) -> Result<Option<TcpListener>, AdminError> {
    match admin::listen(address).await {
        Ok((listener, _)) => Ok(Some(listener)),
        Err(AdminError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

/// Answers at `listener`, or at `address` from when it is free, until the drain begins.
///
/// # Errors
/// The listener broke.
pub(super) async fn serve(
    mut listener: Option<TcpListener>,
    address: SocketAddr,
    health: ProxyHealth,
    mut drain: Drain,
) -> io::Result<()> {
    if listener.is_none() {
        tracing::warn!(
            %address,
            "another process answers load balancers' probes of this node, most likely kube-proxy; its answers count until \
             it is gone (kube-proxy-replacement-healthz-bind-address)"
        );
    }
    let listener = loop {
        if let Some(listener) = listener {
            break listener;
        }
        tokio::select! {
            () = drain.begun() => return Ok(()),
            () = tokio::time::sleep(BETWEEN_TRIES) => {}
        }
        listener = listen(address).await.map_err(io::Error::other)?;
        if listener.is_some() {
            tracing::info!(%address, "load balancers' probes of this node are answered");
        }
    };
    admin::serve(listener, router(health), drain).await
}

fn router(health: ProxyHealth) -> Router {
    let live = health.clone();
    Router::new()
        .route("/healthz", get(async move || answer(health.healthz(Instant::now(), SystemTime::now()))))
        .route("/livez", get(async move || answer(live.livez(Instant::now(), SystemTime::now()))))
}

fn answer(verdict: Verdict) -> Response {
    let Verdict { is_healthy, body } = verdict;
    let status = if is_healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, body).into_response()
}

/// A time as Go prints it, in UTC; `None` is Go's zero time.
fn go_time(clock: Option<SystemTime>) -> String {
    let Some(since) = clock.and_then(|clock| clock.duration_since(SystemTime::UNIX_EPOCH).ok()) else {
        return "0001-01-01 00:00:00 +0000 UTC".to_owned();
    };
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second, nanos) = (second / 3600, second / 60 % 60, second % 60, since.subsec_nanos());
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanos:09} +0000 UTC")
}

/// Year, month and day of a number of days since 1970 (Gregorian calendar; years that begin in March, in eras of 400).
const fn date(days: u64) -> (u64, u64, u64) {
    let from_era = days + 719_468;
    let (era, day_of_era) = (from_era / 146_097, from_era % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + (month <= 2) as u64, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + SECOND * u32::try_from(seconds).unwrap()
    }

    #[test]
    fn an_update_that_waits_for_a_minute_is_overdue_and_nothing_else_is() {
        let (health, now, clock) = (ProxyHealth::new(), Instant::now(), at(1_796_022_606));
        let is_healthy = |seconds: u32| {
            let now = now + SECOND * seconds;
            let (healthz, livez) = (health.healthz(now, clock), health.livez(now, clock));
            assert_eq!(healthz.is_healthy, livez.is_healthy);
            livez.is_healthy
        };
        // Nothing was ever queued: the agent starts, or the API server is silent.
        assert!(is_healthy(1_000_000));
        health.queued(now);
        // The oldest one counts.
        health.queued(now + SECOND * 59);
        assert!(is_healthy(59) && !is_healthy(60));
        health.updated(clock);
        assert!(is_healthy(1_000_000));
    }

    #[test]
    fn a_node_that_is_about_to_go_takes_no_new_connections_and_lives() {
        let (health, now) = (ProxyHealth::new(), Instant::now());
        health.updated(at(951_782_400));
        health.set_node_eligible(false);
        let clock = at(1_796_022_606);
        let Verdict { is_healthy, body } = health.healthz(now, clock);
        let json: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert!(!is_healthy && json["nodeEligible"] == false, "{body}");
        assert_eq!(json["lastUpdated"], "2000-02-29 00:00:00.000000000 +0000 UTC");
        assert_eq!(json["currentTime"], "2026-11-30 07:10:06.000000000 +0000 UTC");
        let Verdict { is_healthy, body } = health.livez(now, clock);
        let json: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert!(
            is_healthy && json.get("nodeEligible").is_none() && json["lastUpdated"] == json["currentTime"]
        );
        health.set_node_eligible(true);
        assert!(health.healthz(now, clock).is_healthy);
    }

    #[tokio::test]
    async fn an_address_that_kube_proxy_has_is_taken_once_it_is_free() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        let kube_proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = kube_proxy.local_addr().unwrap();
        assert!(listen(address).await.unwrap().is_none());
        let shutdown = portway_runtime::shutdown::Shutdown::new();
        let serving = tokio::spawn(serve(None, address, ProxyHealth::new(), shutdown.drain().unwrap()));
        drop(kube_proxy);
        let answer = async {
            loop {
                let Ok(mut stream) = tokio::net::TcpStream::connect(address).await else {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                };
                let mut answer = String::new();
                stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
                stream.read_to_string(&mut answer).await.unwrap();
                break answer;
            }
        };
        let answer = tokio::time::timeout(SECOND * 20, answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
        // One that waits for its address ends with the process, too.
        let (waiting, held) = (serving, shutdown.drain().unwrap());
        let second = tokio::spawn(serve(None, address, ProxyHealth::new(), held));
        assert!(shutdown.finish(SECOND * 20).await);
        waiting.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
    }

    #[test]
    fn a_time_that_never_was_is_gos_zero_time() {
        assert_eq!(go_time(None), "0001-01-01 00:00:00 +0000 UTC");
        assert_eq!(go_time(Some(at(1_709_164_800))), "2024-02-29 00:00:00.000000000 +0000 UTC");
        assert_eq!(go_time(Some(at(1_735_689_599))), "2024-12-31 23:59:59.000000000 +0000 UTC");
    }
}
