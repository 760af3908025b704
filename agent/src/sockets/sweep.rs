use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use portway_datapath::{Addr, Family, Port, Protocol, ServiceIndex, SocketTranslation};

use super::diag::{Diag, DiagError, Socket};
use super::endpoints::Endpoints;
use super::life::{Life, Lives};
use super::namespaces::{Namespaces, sees_every_process};
use super::tally::{Tally, reason};
use crate::maps::{MapError, SocketTable};

/// So long must nobody have had an address, and so long must a TCP connection to it have been silent, before the backend
/// is asked whether it lives: one that speaks or acknowledges need not be. Also a slice that is written anew in two
/// steps is no reason.
pub(super) const TCP_GRACE: Duration = Duration::from_secs(10);
/// An entry whose socket is nowhere is looked for once more after this.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// All entries are looked for this often: sockets of the kernel itself (NFS, SMB) go without passing `sock_release`.
const COLLECT_EVERY: Duration = Duration::from_mins(10);
/// The same where the map is nearly full.
const COLLECT_FULL_EVERY: Duration = Duration::from_mins(1);

/// Compares the sockets that programs have translated with what is wanted.
///
/// A sweep costs O(entries of `pw_sock`); only where some of them are stale, also O(processes) for finding the
/// namespaces, and in each namespace O(sockets of the kernel) until all are found.
pub(super) struct Sweeper {
    pub(super) endpoints: Endpoints,
    table: SocketTable,
    tally: Tally,
    /// The kernel can close sockets.
    closes: bool,
    /// Whether those live that have nobody's address.
    lives: Lives,
    /// Connections to nobody's address whose peer spoke or answered, and when they are looked at again.
    spared: HashMap<u64, Instant>,
    /// Entries whose socket was nowhere at the last look.
    unseen: HashSet<u64>,
    started: Instant,
    collected_at: Option<Instant>,
}

/// All that the verdict about a socket depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Route {
    frontend: (Addr, Port),
    backend: (Addr, Port),
    service: ServiceIndex,
    protocol: Protocol,
}

#[derive(Clone, Copy)]
enum Verdict {
    Valid,
    /// Stale, and the annotation of its service keeps it.
    Kept,
    Stale,
    /// Nobody has had the address for so long.
    Absent(Duration),
}

/// A socket that is to be closed.
struct Target {
    translation: SocketTranslation,
    /// If the backend is gone; so long nobody has had its address.
    absent_for: Option<Duration>,
}

/// What a look at all entries found.
#[derive(Default)]
struct Scan {
    cookies: Vec<u64>,
    /// Those that were nowhere at the last look.
    unseen: HashMap<u64, SocketTranslation>,
    targets: HashMap<u64, Target>,
    kept: u64,
    /// Connections to nobody's address whose time has not come.
    waiting: u64,
    /// When the first of them has.
    due: Option<Instant>,
}

impl Sweeper {
    pub(super) fn new(table: SocketTable, tally: Tally, closes: bool, now: Instant) -> Self {
        Self {
            endpoints: Endpoints::default(),
            table,
            tally,
            closes,
            lives: Lives::default(),
            spared: HashMap::new(),
            unseen: HashSet::new(),
            started: now,
            collected_at: None,
        }
    }

    /// One comparison. Returns when the next one is due, unless something changes earlier.
    pub(super) fn sweep(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.lives.listen(now, |outcome| self.tally.asked(outcome));
        let mut scan = match self.scan(now) {
            Ok(scan) => scan,
            Err(error) => {
                tracing::warn!(%error, "stale sockets are not looked for; it is tried again");
                self.tally.failed("map", &error);
                return None;
            }
        };
        let tracked = scan.cookies.len() as u64;
        self.spared.retain(|cookie, again| *again > now && scan.targets.contains_key(cookie));
        scan.targets.retain(|cookie, _| !self.spared.contains_key(cookie));
        if !self.closes {
            scan.targets.clear();
        }
        let is_full = tracked * 10 >= u64::from(self.table.size()) * 9;
        let since = |at: Instant| now.saturating_duration_since(at);
        let collects = since(self.collected_at.unwrap_or(self.started)) >= COLLECT_EVERY
            || is_full && self.collected_at.is_none_or(|at| since(at) >= COLLECT_FULL_EVERY);
        let mut missing: HashSet<u64> = scan.targets.keys().chain(scan.unseen.keys()).copied().collect();
        let lists = if collects {
            self.collected_at = Some(now);
            missing.extend(&scan.cookies);
            all_lists()
        } else {
            lists(scan.targets.values().map(|target| &target.translation).chain(scan.unseen.values()))
        };
        if missing.is_empty() {
            self.unseen.clear();
        } else {
            self.look(&scan, &lists, missing);
        }
        let is_asked = |(cookie, target): &(&u64, &Target)| {
            target.absent_for.is_some() && !self.spared.contains_key(cookie) && !self.unseen.contains(cookie)
        };
        let asked = scan.targets.iter().filter(is_asked).count();
        let waiting = scan.waiting + (self.spared.len() + asked) as u64;
        self.tally.swept(now.elapsed(), tracked, scan.kept, waiting);
        let again = (!self.unseen.is_empty()).then(|| now + SECOND_LOOK);
        let spared = self.spared.values().copied().min();
        [scan.due, again, spared, self.lives.due()].into_iter().flatten().min()
    }

    /// Reads all entries and judges them, each route once.
    fn scan(&mut self, now: Instant) -> Result<Scan, MapError> {
        let Self { endpoints, table, unseen, lives, .. } = self;
        let mut scan = Scan::default();
        let mut verdicts: HashMap<Route, Verdict> = HashMap::new();
        let mut absent = HashSet::new();
        let mut failure = None;
        table.for_each(|cookie, translation| {
            scan.cookies.push(cookie);
            if unseen.contains(&cookie) {
                scan.unseen.insert(cookie, translation);
            }
            let Some(route) = Route::of(&translation) else { return };
            let verdict = match verdicts.get(&route) {
                Some(verdict) => *verdict,
                None => match judge(table, endpoints, &route, now) {
                    Ok(verdict) => *verdicts.entry(route).or_insert(verdict),
                    Err(error) => {
                        failure.get_or_insert(error);
                        Verdict::Valid
                    }
                },
            };
            match verdict {
                Verdict::Valid => {}
                Verdict::Kept => scan.kept += 1,
                Verdict::Stale => {
                    scan.targets.insert(cookie, Target { translation, absent_for: None });
                }
                Verdict::Absent(absent_for) => {
                    absent.insert(translation.backend);
                    if absent_for >= TCP_GRACE {
                        let absent_for = Some(absent_for);
                        scan.targets.insert(cookie, Target { translation, absent_for });
                    } else {
                        scan.waiting += 1;
                        let over = now + (TCP_GRACE - absent_for);
                        scan.due = Some(scan.due.map_or(over, |due| due.min(over)));
                    }
                }
            }
        })?;
        endpoints.retain_absent(&absent);
        lives.retain(|addr| absent.contains(&addr));
        match failure {
            Some(error) => Err(error),
            None => Ok(scan),
        }
    }

    /// Looks for these sockets in every namespace, closes those that are stale, and forgets those that are nowhere.
    fn look(&mut self, scan: &Scan, lists: &[(Family, Protocol)], mut missing: HashSet<u64>) {
        let mut closed = HashSet::new();
        let namespaces = match Namespaces::find() {
            Ok(namespaces) => namespaces,
            Err(error) => {
                tracing::warn!(%error, "stale sockets are not looked for; it is tried again");
                return self.tally.failed("namespace", &error);
            }
        };
        let errors = namespaces.each(|diag| {
            for &(family, protocol) in lists {
                let mut found = Vec::new();
                diag.connected(family, protocol, |socket| {
                    if missing.remove(&socket.cookie) && scan.targets.contains_key(&socket.cookie) {
                        found.push(socket);
                    }
                })?;
                for socket in &found {
                    if let Some(target) = scan.targets.get(&socket.cookie)
                        && self.close(diag, socket, target)
                    {
                        closed.insert(socket.cookie);
                    }
                }
            }
            Ok(!missing.is_empty())
        });
        for error in &errors {
            tracing::debug!(%error, "a namespace's sockets cannot be seen");
            self.tally.failed("namespace", error);
        }
        if errors.is_empty() && sees_every_process() {
            for cookie in &missing {
                if self.unseen.remove(cookie) {
                    self.forget(*cookie);
                    closed.remove(cookie);
                } else {
                    closed.insert(*cookie);
                }
            }
        }
        // What was closed is no connection any more, though its owner may keep the socket.
        self.unseen = closed;
    }

    /// Closes a socket if it still is what the scan saw, and nobody lives at its other end; whether it did.
    fn close(&mut self, diag: &mut Diag, socket: &Socket, target: &Target) -> bool {
        let Target { translation, absent_for } = target;
        if socket.peer != (translation.backend, translation.backend_port) {
            return false;
        }
        if absent_for.is_some_and(|absent_for| !self.is_gone(socket, absent_for)) {
            return false;
        }
        let remembered = |table: &SocketTable| {
            table.get(socket.cookie).is_ok_and(|entry| entry.as_ref() == Some(translation))
        };
        if !remembered(&self.table) {
            return false;
        }
        let protocol = Protocol::from_number(translation.protocol).unwrap_or(Protocol::TCP);
        let (backend, port) = socket.peer;
        match diag.destroy(socket) {
            Ok(()) => {
                tracing::debug!(%protocol, %backend, %port, "closed a socket: its backend is gone");
                self.tally.closed(protocol);
                true
            }
            // It ended by itself.
            Err(DiagError::Refused(nix::errno::Errno::ENOENT)) if !remembered(&self.table) => false,
            Err(error) => {
                tracing::debug!(%protocol, %backend, %port, %error, "a stale socket cannot be closed");
                self.tally.failed(reason(&error), &error);
                false
            }
        }
    }

    /// Whether nobody lives at the other end of a connection. As long as that is not known the backend is asked, or the
    /// connection left alone for a time.
    fn is_gone(&mut self, socket: &Socket, absent_for: Duration) -> bool {
        let now = Instant::now();
        let silent_for = socket.silent_for.unwrap_or(absent_for);
        let again = if silent_for < TCP_GRACE {
            now + (TCP_GRACE - silent_for).max(SECOND_LOOK)
        } else if self.is_translated(socket.peer) {
            now + TCP_GRACE
        } else {
            match self.lives.of(socket.peer, now) {
                Life::Unknown => return false,
                Life::Kept(until) => until,
                // It spoke to this client, and has never answered the agent: a firewall may be between the two.
                Life::Gone { has_answered_before: false } if silent_for < absent_for => now + TCP_GRACE,
                Life::Gone { .. } => return true,
            }
        };
        self.spared.insert(socket.cookie, again);
        false
    }

    /// Whether a connection from here to `to` may be led elsewhere: as long as it is, nobody can be asked there.
    fn is_translated(&self, to: (Addr, Port)) -> bool {
        match self.table.behind(to.0, to.1, Protocol::TCP) {
            Ok(service) => service.is_some(),
            Err(error) => {
                self.tally.failed("map", &error);
                true
            }
        }
    }

    fn forget(&self, cookie: u64) {
        match self.table.forget(cookie) {
            Ok(true) => self.tally.forgot(),
            Ok(false) => {}
            Err(error) => self.tally.failed("map", &error),
        }
    }
}

impl Route {
    /// `None` for an entry that no version of the programs wrote.
    fn of(translation: &SocketTranslation) -> Option<Self> {
        Some(Self {
            frontend: (translation.frontend, translation.frontend_port),
            backend: (translation.backend, translation.backend_port),
            service: translation.service,
            protocol: Protocol::from_number(translation.protocol)?,
        })
    }
}

/// Whether a socket may stay as it is.
///
/// The service is the one that the socket's frontend leads to now: an index is given to another service in time. Where
/// the frontend is no more, the one of that index counts; a service that is gone has neither a name nor backends there.
fn judge(
    table: &SocketTable,
    endpoints: &mut Endpoints,
    route: &Route,
    now: Instant,
) -> Result<Verdict, MapError> {
    let Route { frontend, backend: (addr, port), service, protocol } = *route;
    if protocol == Protocol::TCP && endpoints.has(addr) {
        return Ok(Verdict::Valid);
    }
    let service = match table.behind(frontend.0, frontend.1, protocol)? {
        Some(service) => Some(service),
        None => table.published(service)?,
    };
    if let Some(service) = &service {
        // Also where a failed write keeps the maps behind: a client that connects again would come here again.
        let is_offered = service.backends.iter().any(|backend| backend.addr == addr && backend.port == port);
        if is_offered || protocol == Protocol::UDP && endpoints.serves(&service.service, addr, port, protocol)
        {
            return Ok(Verdict::Valid);
        }
        if endpoints.keeps(&service.service) {
            return Ok(Verdict::Kept);
        }
    }
    if protocol == Protocol::UDP {
        return Ok(Verdict::Stale);
    }
    Ok(endpoints.absent_for(addr, now).map_or(Verdict::Valid, Verdict::Absent))
}

/// What must be listed to find these: an IPv4 backend is also the peer of IPv6 sockets.
fn lists<'t>(translations: impl Iterator<Item = &'t SocketTranslation>) -> Vec<(Family, Protocol)> {
    let mut wanted = HashSet::new();
    for translation in translations {
        if let Some(protocol) = Protocol::from_number(translation.protocol) {
            wanted.extend([(translation.backend.family(), protocol), (Family::V6, protocol)]);
        }
    }
    all_lists().into_iter().filter(|list| wanted.contains(list)).collect()
}

/// UDP first: it is short.
fn all_lists() -> Vec<(Family, Protocol)> {
    [Protocol::UDP, Protocol::TCP].into_iter().flat_map(|p| [(Family::V4, p), (Family::V6, p)]).collect()
}
