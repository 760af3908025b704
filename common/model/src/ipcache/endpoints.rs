//! Who has an address: of all that say so the newest that lives.

use std::collections::BTreeMap;
use std::mem;

use portway_datapath::{Addr, NumericIdentity};

use super::prefixes::{Key, addresses};
use crate::k8s::Uid;

/// Who tells of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EndpointSource {
    /// An element of a CiliumEndpointSlice.
    Slice,
    /// A CiliumEndpoint.
    Object,
    /// This node, of its own pods. It knows best.
    Local,
}

/// An address that an endpoint has, as one source tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointAddress {
    pub addr: Addr,
    /// Unknown while the endpoint has none.
    pub identity: NumericIdentity,
    /// The address of its node; `None` where it is not told.
    pub node: Option<Addr>,
    /// Whose address it is: of the pod, where that is known.
    pub uid: Uid,
    /// When its owner was made, in seconds since 1970; `None` counts as the oldest.
    pub created: Option<i64>,
}

/// Who has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Who tells of it.
    pub(super) source: EndpointSource,
    pub(super) identity: NumericIdentity,
    pub(super) node: Option<Addr>,
}

/// All that is said of endpoints, by address.
#[derive(Clone, Debug, Default)]
pub(super) struct Endpoints {
    by_addr: BTreeMap<Addr, Claims>,
    nodes: Nodes,
}

/// An [`EndpointAddress`] without its address, in 32 bytes: there are as many as pods in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    uid: Uid,
    /// In seconds since 1970, as far as they fit; 0 is the oldest.
    created: u32,
    node: u32,
    identity: NumericIdentity,
    source: EndpointSource,
}

const _: () = assert!(size_of::<Claims>() <= 32);

/// Sorted: the last one has the address.
#[derive(Clone, Debug)]
enum Claims {
    One(Claim),
    /// At least two.
    Several(Box<[Claim]>),
}

impl Endpoints {
    /// A source tells of an address. One that it has told of the same owner before is replaced.
    pub(super) fn set(&mut self, source: EndpointSource, told: &EndpointAddress) {
        let claim = Claim {
            uid: told.uid,
            created: told.created.map_or(0, |created| u32::try_from(created.max(0)).unwrap_or(u32::MAX)),
            node: self.nodes.number(told.node),
            identity: told.identity,
            source,
        };
        match self.by_addr.get_mut(&told.addr) {
            None => drop(self.by_addr.insert(told.addr, Claims::One(claim))),
            Some(claims) => claims.set(claim),
        }
    }

    /// A source tells no more that an owner has an address.
    pub(super) fn remove(&mut self, source: EndpointSource, addr: Addr, uid: Uid) {
        let Some(claims) = self.by_addr.get_mut(&addr) else { return };
        let left: Vec<_> = claims.all().iter().filter(|claim| !claim.is(source, uid)).copied().collect();
        match Claims::new(left) {
            Some(left) => *claims = left,
            None => drop(self.by_addr.remove(&addr)),
        }
    }

    /// The newest owner.
    pub(super) fn owner(&self, addr: Addr) -> Option<Owner> {
        let Claim { node, identity, source, .. } = *self.by_addr.get(&addr)?.all().last()?;
        Some(Owner { source, identity, node: self.nodes.addr(node) })
    }

    /// Addresses within a prefix.
    pub(super) fn within(&self, prefix: Key) -> impl Iterator<Item = Addr> {
        self.by_addr.range(addresses(prefix)).map(|(addr, _)| *addr)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = Addr> {
        self.by_addr.keys().copied()
    }
}

impl Claim {
    fn is(&self, source: EndpointSource, uid: Uid) -> bool {
        self.source == source && self.uid == uid
    }

    /// A pod of this node before all others, then the newer one, then the better source.
    fn rank(&self) -> (bool, u32, EndpointSource) {
        (self.source == EndpointSource::Local, self.created, self.source)
    }
}

impl Claims {
    fn new(claims: Vec<Claim>) -> Option<Self> {
        match claims.as_slice() {
            [] => None,
            [one] => Some(Self::One(*one)),
            [..] => Some(Self::Several(claims.into())),
        }
    }

    fn all(&self) -> &[Claim] {
        match self {
            Self::One(claim) => std::slice::from_ref(claim),
            Self::Several(claims) => claims,
        }
    }

    /// Of equals the one that was told first of stays before: whoever came last has the address, and a word more about
    /// the one before does not give it back.
    fn set(&mut self, claim: Claim) {
        if let Self::One(held) = self
            && held.is(claim.source, claim.uid)
        {
            *held = claim;
            return;
        }
        let mut claims = match mem::replace(self, Self::One(claim)) {
            Self::One(held) => vec![held],
            Self::Several(held) => held.into_vec(),
        };
        match claims.iter_mut().find(|held| held.is(claim.source, claim.uid)) {
            Some(held) => *held = claim,
            None => claims.push(claim),
        }
        claims.sort_by_key(Claim::rank);
        if let Some(claims) = Self::new(claims) {
            *self = claims;
        }
    }
}

/// Addresses of nodes, each held once. They are not forgotten: a cluster sees few of them.
#[derive(Clone, Debug, Default)]
struct Nodes {
    numbers: BTreeMap<Addr, u32>,
    addrs: Vec<Addr>,
}

impl Nodes {
    /// 0 is none.
    fn number(&mut self, addr: Option<Addr>) -> u32 {
        let Some(addr) = addr else { return 0 };
        let next = self.addrs.len() as u32 + 1;
        *self.numbers.entry(addr).or_insert_with(|| {
            self.addrs.push(addr);
            next
        })
    }

    fn addr(&self, number: u32) -> Option<Addr> {
        self.addrs.get((number as usize).checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDR: Addr = Addr::v4([10, 1, 0, 7]);

    fn of(uid: &str, created: Option<i64>, identity: u32) -> EndpointAddress {
        EndpointAddress {
            addr: ADDR,
            identity: NumericIdentity::new(identity),
            node: Some(Addr::v4([192, 0, 2, 1])),
            uid: Uid::new(uid),
            created,
        }
    }

    fn owner(endpoints: &Endpoints) -> Option<u32> {
        endpoints.owner(ADDR).map(|owner| owner.identity.get())
    }

    use EndpointSource::{Local, Object, Slice};

    #[test]
    fn the_newest_owner_that_lives_has_the_address_whatever_comes_first() {
        let mut endpoints = Endpoints::default();
        endpoints.set(Object, &of("new", Some(20), 302));
        endpoints.set(Object, &of("old", Some(10), 301));
        assert_eq!(owner(&endpoints), Some(302));
        // Late news of the one before changes nothing, and nor does its end.
        endpoints.set(Object, &of("old", Some(10), 309));
        assert_eq!(owner(&endpoints), Some(302));
        endpoints.remove(Object, ADDR, Uid::new("old"));
        endpoints.remove(Object, ADDR, Uid::new("old"));
        assert_eq!(owner(&endpoints), Some(302));
        endpoints.set(Object, &of("new", Some(20), 303));
        assert_eq!(owner(&endpoints), Some(303));
        endpoints.remove(Object, ADDR, Uid::new("new"));
        assert_eq!((owner(&endpoints), endpoints.addresses().count()), (None, 0));
    }

    #[test]
    fn an_owner_that_lives_takes_over_when_the_newer_one_goes() {
        let mut endpoints = Endpoints::default();
        for (uid, created, identity) in [("a", 1, 301), ("b", 2, 302), ("c", 3, 303)] {
            endpoints.set(Object, &of(uid, Some(created), identity));
        }
        endpoints.remove(Object, ADDR, Uid::new("c"));
        assert_eq!(owner(&endpoints), Some(302));
        endpoints.remove(Object, ADDR, Uid::new("a"));
        assert_eq!(owner(&endpoints), Some(302));
    }

    #[test]
    fn this_node_knows_its_own_pods_best_and_an_object_says_more_than_a_slice() {
        let mut endpoints = Endpoints::default();
        endpoints.set(Local, &of("pod", Some(10), 301));
        endpoints.set(Object, &of("pod", Some(10), 302));
        endpoints.set(Object, &of("other", Some(99), 303));
        assert_eq!(owner(&endpoints), Some(301));
        endpoints.remove(Local, ADDR, Uid::new("pod"));
        endpoints.remove(Object, ADDR, Uid::new("other"));
        endpoints.set(Slice, &of("pod", Some(10), 304));
        assert_eq!(owner(&endpoints), Some(302));
        endpoints.remove(Object, ADDR, Uid::new("pod"));
        assert_eq!(owner(&endpoints), Some(304));
    }

    #[test]
    fn of_two_that_are_equally_old_the_one_that_was_told_of_last_has_it() {
        let mut endpoints = Endpoints::default();
        endpoints.set(Slice, &of("a", None, 301));
        endpoints.set(Slice, &of("b", None, 302));
        assert_eq!(owner(&endpoints), Some(302));
        endpoints.set(Slice, &of("a", None, 303));
        assert_eq!(owner(&endpoints), Some(302));
        endpoints.set(Slice, &of("c", Some(1), 304));
        endpoints.set(Slice, &of("d", None, 305));
        assert_eq!(owner(&endpoints), Some(304));
    }

    #[test]
    fn what_was_told_comes_back() {
        let mut endpoints = Endpoints::default();
        let owner = |endpoints: &Endpoints| endpoints.owner(ADDR).map(|owner| (owner.source, owner.node));
        endpoints.set(Object, &EndpointAddress { node: None, ..of("a", None, 301) });
        assert_eq!(owner(&endpoints), Some((Object, None)));
        endpoints.set(Object, &of("a", Some(5), 301));
        assert_eq!(owner(&endpoints), Some((Object, Some(Addr::v4([192, 0, 2, 1])))));
        assert_eq!(endpoints.within((ADDR, 120)).collect::<Vec<_>>(), [ADDR]);
        assert_eq!(endpoints.within((Addr::v4([10, 2, 0, 0]), 112)).count(), 0);
    }
}
