//! A proxy between the agent and an API server that misbehaves as it is told, and counts what it is asked.
//!
//! It ends TLS with the control plane's own certificate and speaks HTTP/1.1 on both sides, so it can give answers of its
//! own, cut others short, and drop, double and swap single events of a watch. Who asks is passed on: users have tokens.

pub mod chaos;
mod events;
pub mod script;
mod serve;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::ControlPlane;
use super::cluster::api::{runtime, within};
pub use chaos::Chaos;
pub use script::{Asked, Event, EventFault, RequestFault};

/// The port of a test's first proxy.
const PORT: u16 = 7443;

/// A proxy on the loopback of the control plane's namespace. It ends with this guard.
#[derive(Debug)]
pub struct FaultProxy {
    // Ends every task when it is dropped.
    _runtime: Runtime,
    shared: Arc<Shared>,
    address: SocketAddr,
    kubeconfig: PathBuf,
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    pub asked: Asked,
}

/// Whether connections are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Requests are passed on.
    Up,
    /// Nobody listens: connects are refused.
    Refused,
    /// Connects succeed, then nothing is ever heard.
    Silent,
}

#[derive(Clone, Copy, Debug)]
struct State {
    reach: Reach,
    /// Raised to cut all connections, all watches, or to stall all watches that run then.
    cuts: u64,
    watch_cuts: u64,
    stalls: u64,
    /// Raised to let what is held go.
    releases: u64,
}

type OnRequest = Box<dyn FnMut(&Asked) -> RequestFault + Send>;
type OnEvent = Box<dyn FnMut(&Asked, Event<'_>) -> EventFault + Send>;

struct Shared {
    upstream: SocketAddr,
    /// Who it says asks; `None`: the proxy itself.
    from: Option<IpAddr>,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    state: watch::Sender<State>,
    on_request: Mutex<OnRequest>,
    on_event: Mutex<OnEvent>,
    seen: Mutex<Vec<Seen>>,
    abandoned: Mutex<Vec<Seen>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

impl FaultProxy {
    /// Before the first API server of `control_plane`; does no harm until it is told to.
    pub fn start(control_plane: &ControlPlane) -> Result<Self> {
        Self::start_before(control_plane, &control_plane.url(), PORT)
    }

    /// Before the API server at `url` (`https://address:port`), on a port of its own.
    pub fn start_before(control_plane: &ControlPlane, url: &str, port: u16) -> Result<Self> {
        Self::new(control_plane, url, port, "agent", None)
    }

    /// Number `number` of several before the first API server, for `user` alone. The API server's record says that it is
    /// `192.0.2.number` (of the documentation's prefix) who asks.
    pub fn start_for(control_plane: &ControlPlane, user: &str, number: u8) -> Result<Self> {
        let from = asker(number);
        Self::new(control_plane, &control_plane.url(), PORT + u16::from(number), user, Some(from))
    }

    fn new(
        control_plane: &ControlPlane,
        url: &str,
        port: u16,
        user: &str,
        from: Option<IpAddr>,
    ) -> Result<Self> {
        let upstream = url.trim_start_matches("https://").parse().with_context(|| format!("read {url}"))?;
        let identity = control_plane.identity();
        let (certificate, key) = identity.server();
        let provider = Arc::new(ring::default_provider());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_vec()));
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from(certificate.to_vec())], key)
            .context("use the server's certificate")?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(identity.ca().to_vec()))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let shared = Arc::new(Shared {
            upstream,
            from,
            acceptor: TlsAcceptor::from(Arc::new(server)),
            connector: TlsConnector::from(Arc::new(client)),
            state: watch::Sender::new(State {
                reach: Reach::Up,
                cuts: 0,
                watch_cuts: 0,
                stalls: 0,
                releases: 0,
            }),
            on_request: Mutex::new(Box::new(|_| RequestFault::None)),
            on_event: Mutex::new(Box::new(|_, _| EventFault::None)),
            seen: Mutex::default(),
            abandoned: Mutex::default(),
        });
        let runtime = runtime(control_plane.namespace())?;
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let listening = Arc::clone(&shared);
        within(&runtime, async move {
            let listener = serve::listen(address).await?;
            tokio::spawn(serve::accept(listening, address, listener));
            Ok(())
        })?;
        let kubeconfig = identity.kubeconfig(user, &format!("https://{address}"))?;
        Ok(Self { _runtime: runtime, shared, address, kubeconfig })
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Of who asks (the agent), by this proxy.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Asks `script` about each request from now on.
    pub fn on_requests(&self, script: impl FnMut(&Asked) -> RequestFault + Send + 'static) {
        *lock(&self.shared.on_request) = Box::new(script);
    }

    /// Asks `script` about each event of each watch from now on, bookmarks included.
    pub fn on_events(&self, script: impl FnMut(&Asked, Event<'_>) -> EventFault + Send + 'static) {
        *lock(&self.shared.on_event) = Box::new(script);
    }

    /// No more faults of scripts.
    pub fn behave(&self) {
        self.on_requests(|_| RequestFault::None);
        self.on_events(|_, _| EventFault::None);
    }

    /// Cuts every connection (without the end of what is being answered), and is then as `reach` says.
    pub fn set_reach(&self, reach: Reach) {
        self.shared.state.send_modify(|state| {
            state.reach = reach;
            state.cuts += 1;
        });
    }

    /// Cuts the watches that run.
    pub fn cut_watches(&self) {
        self.shared.state.send_modify(|state| state.watch_cuts += 1);
    }

    /// Nothing comes out of the watches that run any more, and they do not end: what the API server says is swallowed.
    pub fn stall_watches(&self) {
        self.shared.state.send_modify(|state| state.stalls += 1);
    }

    /// What [`RequestFault::Hold`] has held so far goes on to the API server.
    pub fn release(&self) {
        self.shared.state.send_modify(|state| state.releases += 1);
    }

    /// Everything that was asked, oldest first.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// Watches that stalled and that the agent has given up, and when it did.
    pub fn abandoned(&self) -> Vec<Seen> {
        lock(&self.shared.abandoned).clone()
    }

    /// Lists of whole objects of `path` (`/api/v1/services`) that were begun.
    pub fn lists(&self, path: &str) -> usize {
        self.count(|asked| asked.path == path && asked.is_list() && !asked.is_next_page())
    }

    /// Watches of `path` that were begun.
    pub fn watches(&self, path: &str) -> usize {
        self.count(|asked| asked.path == path && asked.is_watch())
    }

    pub fn count(&self, mut of: impl FnMut(&Asked) -> bool) -> usize {
        lock(&self.shared.seen).iter().filter(|seen| of(&seen.asked)).count()
    }

    /// The most requests of any second since `since`.
    pub fn peak_per_second(&self, since: Instant) -> usize {
        let times: Vec<Instant> =
            lock(&self.shared.seen).iter().map(|seen| seen.at).filter(|at| *at >= since).collect();
        busiest_second(&times)
    }
}

/// Who asks by proxy `number`, as the API server records it.
pub fn asker(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

/// How many of `times`, which are in order, lie in the second that has the most.
fn busiest_second(times: &[Instant]) -> usize {
    let from = |(n, begin): (usize, &Instant)| {
        let is_in = |at: &&Instant| at.saturating_duration_since(*begin) < Duration::from_secs(1);
        times.iter().skip(n).take_while(is_in).count()
    };
    times.iter().enumerate().map(from).max().unwrap_or(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A script that panicked has failed its test already.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_second_begins_anywhere() {
        let begin = Instant::now();
        let at = |ms: &[u64]| ms.iter().map(|ms| begin + Duration::from_millis(*ms)).collect::<Vec<_>>();
        assert_eq!(busiest_second(&[]), 0);
        assert_eq!(busiest_second(&at(&[0, 999, 1_000, 1_500, 1_998, 2_900])), 4);
    }
}
