//! Who owns a frontend that several want.
//!
//! ClusterIP comes before LoadBalancer, ExternalIPs, NodePort and HostPort; then the older object, then
//! `namespace/name`, then the port's name. Of host ports it is the *newest* pod: a pod's successor takes its port over
//! at once. Objects without a creation time count as created after all that have one, in the order in which they were
//! first seen; where there is a time, the order of arrival must not matter, or nodes and restarts would disagree.
//!
//! The order is total and depends on nothing else, so owners never flap, and the next takes over at once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use portway_datapath::{FrontendKey, FrontendKind};

use super::{DesiredFrontend, Owner, ServicePortKey};

/// When an object came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Age {
    created: i64,
    sequence: u64,
}

impl Age {
    pub(super) fn new(created: Option<i64>, sequence: u64) -> Self {
        match created {
            Some(created) => Self { created, sequence: 0 },
            None => Self { created: i64::MAX, sequence },
        }
    }
}

/// A service port that wants a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) kind: FrontendKind,
    pub(super) age: Age,
    pub(super) service: ServicePortKey,
}

impl Claim {
    /// The smallest owns.
    fn rank(&self) -> impl Ord + '_ {
        let (oldest, newest) = match self.kind {
            FrontendKind::HostPort => (None, Some(Reverse(self.age))),
            FrontendKind::ClusterIp
            | FrontendKind::LoadBalancer
            | FrontendKind::ExternalIps
            | FrontendKind::NodePort => (Some(self.age), None),
        };
        (self.kind, oldest, newest, self.service.service(), &self.service)
    }

    fn owned(&self) -> DesiredFrontend {
        DesiredFrontend { service: self.service.clone(), kind: self.kind }
    }
}

/// The claims on every frontend, the owner's first.
#[derive(Debug, Default)]
pub(super) struct Frontends {
    claims: HashMap<FrontendKey, Vec<Claim>>,
    /// Frontends that more than one service port wants.
    by_clash: BTreeSet<FrontendKey>,
}

impl Frontends {
    /// Replaces the claims of the object whose owners `is_its` knows, which were on `old`. The frontends that have
    /// another owner or kind by that.
    ///
    /// O(old + new), times the number of rivals where there are any.
    pub(super) fn replace(
        &mut self,
        is_its: impl Fn(&Owner) -> bool,
        old: &[FrontendKey],
        new: Vec<(FrontendKey, Claim)>,
    ) -> BTreeSet<FrontendKey> {
        let mut touched: BTreeSet<FrontendKey> = old.iter().copied().collect();
        touched.extend(new.iter().map(|(key, _)| *key));
        let before: Vec<_> = touched.iter().map(|key| self.owner(key)).collect();
        for key in old {
            if let Some(claims) = self.claims.get_mut(key) {
                claims.retain(|claim| !is_its(&claim.service.owner));
            }
        }
        for (key, claim) in new {
            let claims = self.claims.entry(key).or_default();
            let at = claims.partition_point(|other| other.rank() < claim.rank());
            claims.reserve_exact(1);
            claims.insert(at, claim);
        }
        let mut changed = BTreeSet::new();
        for (key, before) in touched.into_iter().zip(before) {
            if self.claims.get(&key).is_some_and(Vec::is_empty) {
                self.claims.remove(&key);
            }
            if self.clash(&key).next().is_some() {
                self.by_clash.insert(key);
            } else {
                self.by_clash.remove(&key);
            }
            if self.owner(&key) != before {
                changed.insert(key);
            }
        }
        changed
    }

    pub(super) fn owner(&self, key: &FrontendKey) -> Option<DesiredFrontend> {
        self.claims.get(key).and_then(|claims| claims.first()).map(Claim::owned)
    }

    pub(super) fn is_owned_by(&self, key: &FrontendKey, service: &ServicePortKey) -> bool {
        self.claims.get(key).and_then(|claims| claims.first()).is_some_and(|claim| claim.service == *service)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = FrontendKey> {
        self.claims.keys().copied()
    }

    /// Owner and loser, for each service port that wants a frontend and has not got it.
    pub(super) fn clashes(&self) -> impl Iterator<Item = (FrontendKey, &Claim, &Claim)> {
        self.by_clash.iter().flat_map(|key| self.clash(key).map(|(owner, loser)| (*key, owner, loser)))
    }

    /// A service port that wants a frontend twice (as an external and as a load-balancer address) does not clash.
    fn clash(&self, key: &FrontendKey) -> impl Iterator<Item = (&Claim, &Claim)> {
        let claims = self.claims.get(key).map_or(&[][..], Vec::as_slice);
        let owner = claims.first();
        claims.iter().skip(1).filter_map(move |loser| {
            let owner = owner?;
            (owner.service != loser.service).then_some((owner, loser))
        })
    }
}
