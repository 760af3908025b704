//! Which CIDRs which node gets, and what is written for it.

mod seen;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portway_datapath::{Addr, Family};
use portway_model::node::Prefix;

use seen::Seen;

use super::Config;
use super::book::{Book, Epoch};
use super::ledger::{Clash, Holding, Taken, Title, clashes};
use super::metrics::Figures;
use super::pools::Pool;
use crate::controller::{Now, Plan, Trouble};
use crate::observed::{ClusterPool, Kind, Observed};

/// Of keys and values together; the API server takes 1 MiB.
const LARGEST_BOOK: usize = 1_000_000;

/// Both objects of a node are gone for so long before others get its CIDRs.
const GONE: Duration = Duration::from_secs(60);

/// Since when nodes that have claims are gone, by their names.
type Gone = BTreeMap<String, Duration>;

/// What a leader remembers from turn to turn.
#[derive(Debug, Default)]
pub(super) struct Memory {
    gone: Gone,
    /// What the pool object said before somebody deleted or changed it.
    book: Book,
}

/// What is planned, and figures for metrics.
#[derive(Debug, Default)]
pub(super) struct Decision {
    pub(super) plan: Plan,
    pub(super) figures: Figures,
}

pub(super) fn plan(config: &Config, memory: &mut Memory, observed: &Observed, now: Now) -> Decision {
    let object = config.object();
    let pool = observed.pool.get(&object);
    if pool.is_none() && observed.pool.is_there(&object) {
        // Whatever it says, it may be claims.
        let message = "it cannot be read: no node gets pod CIDRs until it is mended or deleted".to_owned();
        let trouble = Trouble {
            kind: Kind::ClusterPool,
            object,
            uid: String::new(),
            reason: "PoolObjectUnreadable",
            message,
        };
        return Decision { plan: Plan { troubles: vec![trouble], ..Plan::default() }, ..Decision::default() };
    }
    let Memory { gone, book } = memory;
    let mut turn = Turn::new(config, observed, now, pool.map(|pool| &**pool), book);
    turn.adopt();
    let mut holdings = turn.holdings();
    let clashes = clashes(&mut holdings);
    turn.judge(&clashes);
    let taken = Taken::of(&holdings);
    turn.claim(&taken);
    turn.release(gone, now);
    let seen = (pool.is_some() && !turn.book.is_damaged).then(|| turn.book.clone());
    let decision = turn.decide(&taken);
    *book = seen.unwrap_or_else(|| std::mem::take(book));
    decision
}

struct Turn<'a> {
    config: &'a Config,
    observed: &'a Observed,
    pool: Option<&'a ClusterPool>,
    /// The oldest first.
    nodes: Vec<Seen<'a>>,
    /// What the pool object said when nobody had meddled with it.
    known: &'a Book,
    /// What it says.
    book: Book,
    /// What it is to say.
    wanted: Book,
    /// No CIDR can still be written that this pool object does not know of, but to nodes that are touched first.
    is_settled: bool,
    /// That was waited for long enough.
    is_patience_over: bool,
    /// Claims that somebody else has, too.
    lost: BTreeSet<(&'a str, Prefix)>,
    /// What is wrong, by the names of nodes.
    errors: BTreeMap<&'a str, BTreeSet<String>>,
    troubles: Vec<Trouble>,
    /// Nodes and families for which nothing is left.
    exhausted: BTreeSet<(&'a str, Family)>,
    /// When it is time for what nothing tells of.
    again: Option<Duration>,
}

impl<'a> Turn<'a> {
    fn new(
        config: &'a Config,
        observed: &'a Observed,
        now: Now,
        pool: Option<&'a ClusterPool>,
        known: &'a Book,
    ) -> Self {
        let mut nodes: Vec<_> = observed.cilium_nodes.iter().map(|node| Seen::new(node)).collect();
        nodes.sort_unstable_by_key(|seen| (seen.node.meta.created, &*seen.node.meta.name));
        let book = pool.map_or_else(Book::default, |pool| Book::read(&pool.data));
        let wanted = match pool {
            None => Book { epoch: None, ..known.clone() },
            Some(pool) if book.is_damaged => {
                Book { as_of: pool.meta.version.max(known.as_of), ..book.mended(known) }
            }
            Some(pool) => {
                let new = Epoch { version: pool.meta.version, began: now.seconds() };
                Book { epoch: book.epoch.or(Some(new)), ..book.clone() }
            }
        };
        let mut turn = Self {
            config,
            observed,
            pool,
            nodes,
            known,
            book,
            wanted,
            is_settled: false,
            is_patience_over: false,
            lost: BTreeSet::new(),
            errors: BTreeMap::new(),
            troubles: Vec::new(),
            exhausted: BTreeSet::new(),
            again: None,
        };
        if let Some(epoch) = turn.epoch() {
            let waited = now.seconds().saturating_sub(epoch.began);
            turn.is_patience_over = waited >= i64::try_from(config.patience.as_secs()).unwrap_or(i64::MAX);
            turn.is_settled = turn.is_patience_over || turn.lacking().all(|seen| seen.is_of(epoch));
        }
        turn
    }

    /// That of a pool object that nobody has meddled with.
    fn epoch(&self) -> Option<Epoch> {
        self.book.epoch.filter(|_| !self.book.is_damaged)
    }

    /// What CiliumNodes have is theirs, and what was claimed for an earlier one of the name is the later one's.
    fn adopt(&mut self) {
        for Seen { node, cidrs, .. } in &self.nodes {
            let name = &*node.meta.name;
            if cidrs.is_empty() && !self.wanted.claims.contains_key(name) {
                continue;
            }
            let claim = self.wanted.claims.entry(name.to_owned()).or_default();
            if *claim.uid != *node.meta.uid {
                claim.uid = node.meta.uid.to_string();
                self.wanted.as_of = self.wanted.as_of.max(node.meta.version);
            }
            let new = cidrs.iter().filter(|cidr| !claim.cidrs.contains(cidr)).copied().collect::<Vec<_>>();
            claim.cidrs.extend(new);
        }
    }

    /// Who has what.
    fn holdings(&self) -> Vec<Holding<'a>> {
        let observed = self.observed;
        let mut holdings = Vec::new();
        for Seen { node, cidrs, .. } in &self.nodes {
            let holding = |cidr: &Prefix, title| Holding {
                cidr: *cidr,
                node: &node.meta.name,
                title,
                created: node.meta.created,
            };
            holdings.extend(cidrs.iter().map(|cidr| holding(cidr, Title::Written)));
            let claimed = self.wanted.claims.get(&*node.meta.name).map_or(&[][..], |claim| &claim.cidrs);
            let claimed = claimed.iter().filter(|cidr| !cidrs.contains(cidr));
            holdings.extend(claimed.map(|cidr| holding(cidr, Title::Claimed)));
        }
        holdings.extend(self.absent());
        let mut addresses = BTreeSet::new();
        for node in observed.nodes.iter() {
            let of = node.addresses.iter().map(|at| (&*at.address_type, &*at.address));
            addresses.extend(machines(of).map(|addr| (addr, &*node.meta.name)));
        }
        for node in observed.cilium_nodes.iter() {
            let of = node.spec.addresses.iter().map(|at| (&*at.address_type, &*at.ip));
            addresses.extend(machines(of).map(|addr| (addr, &*node.meta.name)));
        }
        let address = |(addr, node): &(Addr, &'a str)| Holding {
            cidr: Prefix::host(*addr),
            node,
            title: Title::Address,
            created: 0,
        };
        holdings.extend(addresses.iter().map(address));
        holdings
    }

    /// What nodes had whose CiliumNodes are not there.
    fn absent(&self) -> impl Iterator<Item = Holding<'a>> {
        let nodes = &self.observed.cilium_nodes;
        // Of the object itself and what it said, which live as long as what is observed.
        let names = self.pool.map(|pool| pool.data.keys()).into_iter().flatten();
        let names: BTreeSet<_> = names.chain(self.known.claims.keys()).collect();
        let absent = names.into_iter().filter(|name| nodes.get(name).is_none());
        absent.flat_map(|name| {
            let cidrs = self.wanted.claims.get(name).map_or(&[][..], |claim| &claim.cidrs);
            let holding =
                |cidr: &Prefix| Holding { cidr: *cidr, node: name, title: Title::Claimed, created: 0 };
            cidrs.iter().map(holding).collect::<Vec<_>>()
        })
    }

    /// Says what is wrong, and which claims are not written: those that somebody else has, too. They stay claimed, for
    /// they may be on their way.
    fn judge(&mut self, clashes: &[Clash<'a>]) {
        for Clash { holding, with } in clashes {
            if holding.title == Title::Claimed {
                // Of two claims only one can have come by it rightly, and nobody knows which.
                self.lost.insert((holding.node, holding.cidr));
                continue;
            }
            if holding.rank() < with.rank() {
                continue;
            }
            let (cidr, other, of) = (holding.cidr, with.cidr, with.node);
            let error = if with.title == Title::Address {
                format!(
                    "spec.ipam.podCIDRs has {cidr}, which the address {} of node {of} lies in",
                    other.addr()
                )
            } else {
                format!(
                    "spec.ipam.podCIDRs has {cidr}, which overlaps {other} of CiliumNode {of}, which is older"
                )
            };
            let mend = "; drain the node and delete its CiliumNode: it then gets another one";
            self.wrong(holding.node, error + mend);
        }
        for seen in &self.nodes {
            for text in &seen.unreadable {
                let error = format!("spec.ipam.podCIDRs has {text:?}, which is no CIDR of pods: take it out");
                self.errors.entry(&seen.node.meta.name).or_default().insert(error);
            }
        }
    }

    fn wrong(&mut self, node: &'a str, error: String) {
        self.errors.entry(node).or_default().insert(error);
    }

    fn lacking(&self) -> impl Iterator<Item = &Seen<'a>> {
        let lacks = |seen: &&Seen<'a>| self.config.pools.iter().any(|pool| seen.lacks(pool.family()));
        self.nodes.iter().filter(lacks)
    }

    /// The CIDR of a pool that is a node's already, though its CiliumNode does not say so.
    fn claimed(&self, book: &Book, seen: &Seen<'_>, pool: &Pool) -> Option<Prefix> {
        let claim = book.claims.get(seen.name()).filter(|claim| *claim.uid == *seen.node.meta.uid)?;
        let is_usable = |cidr: &Prefix| pool.offers(*cidr) && !self.lost.contains(&(seen.name(), *cidr));
        claim.cidrs.iter().copied().find(is_usable)
    }

    /// Puts down what each node that lacks one is to get.
    fn claim(&mut self, taken: &Taken) {
        if !self.is_settled {
            return;
        }
        let mut size: usize = self.wanted.data().iter().map(|(key, value)| key.len() + value.len()).sum();
        let config = self.config;
        for pool in &config.pools {
            let last = self.wanted.last.iter().copied().find(|last| last.family() == pool.family());
            let mut free = taken.free(pool, last);
            for seen in self.nodes.iter().filter(|seen| seen.lacks(pool.family())) {
                if self.claimed(&self.wanted, seen, pool).is_some() {
                    continue;
                }
                let meta = &seen.node.meta;
                let Some(cidr) = free.next() else {
                    self.exhausted.insert((&meta.name, pool.family()));
                    continue;
                };
                size += cidr.to_string().len() + 1;
                if !self.wanted.claims.contains_key(&*meta.name) {
                    size += meta.name.len() + meta.uid.len() + 1;
                }
                if size > LARGEST_BOOK {
                    let message = "it is full: no more nodes get pod CIDRs".to_owned();
                    self.troubles.push(self.trouble_of_pool("PoolObjectFull", message));
                    return;
                }
                let claim = self.wanted.claims.entry(meta.name.to_string()).or_default();
                claim.uid = meta.uid.to_string();
                claim.cidrs.push(cidr);
                self.wanted.last.retain(|last| last.family() != pool.family());
                self.wanted.last.push(cidr);
                self.wanted.as_of = self.wanted.as_of.max(meta.version);
            }
        }
        for (node, family) in self.exhausted.clone() {
            let Some(pool) = config.pools.iter().find(|pool| pool.family() == family) else { continue };
            let ranges: Vec<_> = pool.cidrs().iter().map(ToString::to_string).collect();
            let error = format!(
                "no /{} of {} {} is free: add a range to it, or remove nodes",
                node_bits(pool),
                pool.key(),
                ranges.join(",")
            );
            self.wrong(node, error);
        }
    }

    /// Lets go of what was claimed by nodes that are gone. They are free in the next turn.
    fn release(&mut self, gone: &mut Gone, now: Now) {
        let before = std::mem::take(gone);
        let (nodes, cilium_nodes) = (&self.observed.nodes, &self.observed.cilium_nodes);
        let is_known = self.observed.are_fresh(&[Kind::Node, Kind::CiliumNode], now)
            && cilium_nodes.version() >= self.book.as_of.max(self.known.as_of);
        if !is_known {
            return;
        }
        let is_gone = |name: &str| !cilium_nodes.is_there(name) && !nodes.is_there(name);
        gone.extend(self.wanted.claims.keys().filter(|name| is_gone(name)).map(|name| {
            let since = before.get(name).copied().unwrap_or(now.monotonic);
            (name.clone(), since)
        }));
        if self.book.is_damaged {
            // It is mended first.
            return;
        }
        let left = |since: &Duration| (*since + GONE).saturating_sub(now.monotonic);
        self.wanted.claims.retain(|name, _| gone.get(name).is_none_or(|since| !left(since).is_zero()));
        self.again = gone.values().map(left).filter(|left| !left.is_zero()).min();
    }

    fn trouble_of_pool(&self, reason: &'static str, message: String) -> Trouble {
        let uid = self.pool.map(|pool| pool.meta.uid.to_string()).unwrap_or_default();
        Trouble { kind: Kind::ClusterPool, object: self.config.object(), uid, reason, message }
    }
}

/// The addresses of a machine, as opposed to those that it gives its pods or itself among them.
fn machines<'a>(addresses: impl Iterator<Item = (&'a str, &'a str)>) -> impl Iterator<Item = Addr> {
    let of_machine = addresses.filter(|(of, _)| *of == "InternalIP" || *of == "ExternalIP");
    of_machine.filter_map(|(_, text)| text.parse::<std::net::IpAddr>().ok()).map(Addr::from)
}

fn node_bits(pool: &Pool) -> u8 {
    match pool.family() {
        Family::V4 => pool.bits() - 96,
        Family::V6 => pool.bits(),
    }
}
