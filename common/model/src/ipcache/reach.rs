//! From nodes to what programs and routes know of addresses outside this node's pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portway_datapath::{Addr, Family, IpcacheValue, NumericIdentity};

use crate::k8s::{ObjectKind, Reject};
use crate::node::{ClusterNode, ClusterView, Prefix};

/// How the pod network is, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Pods of other nodes are reached by the tunnel, whose own packets are IPv4.
    pub tunnel: bool,
    pub ipv4: bool,
    pub ipv6: bool,
    /// What is inside beside pods and nodes.
    pub native_cidrs: Vec<Prefix>,
    /// Nodes have an endpoint each that the others probe.
    pub health_endpoints: bool,
    /// Who says the prefixes of pods: for what is refused.
    pub prefixes_of: ObjectKind,
}

/// What is known of the cluster's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// By prefixes as [`Addr`] counts them. Who is at an address is said of nodes alone.
    pub ipcache: BTreeMap<(Addr, u8), IpcacheValue>,
    /// Addresses of all nodes' health endpoints.
    pub health: BTreeSet<Addr>,
    /// Prefixes of other nodes' pods.
    pub remote: Vec<RemotePrefix>,
    /// Prefixes of this node's pods.
    pub local: Vec<Prefix>,
    /// Prefixes of pods that there is no way to: they are of nobody that is known, not of the world.
    pub unreached: Vec<Prefix>,
    /// What of nodes is not used.
    pub rejects: Vec<Reject>,
}

/// Where pods of another node are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemotePrefix {
    pub prefix: Prefix,
    pub node: Arc<str>,
    /// The node's address of the prefix's family, if it has one.
    pub address: Option<Addr>,
}

/// What the nodes make. O(n log n) in their addresses and prefixes.
///
/// Of two nodes that claim overlapping prefixes, or an address, the older one has it (then the one whose name is first);
/// a node without a time of creation counts as the newest. The other one is named, and the rest of it lives.
pub fn reach(view: &ClusterView, options: &Options) -> Reach {
    let mut nodes: Vec<_> = view.remote.values().chain(&view.this).collect();
    nodes.sort_by_key(|node| (node.created.unwrap_or(i64::MAX), &node.name));
    let is_this = |node: &ClusterNode| view.this.as_ref().is_some_and(|this| this.name == node.name);
    let mut claims = Claims::default();
    let mut reach = Reach::default();
    for prefix in options.native_cidrs.iter().filter(|prefix| options.has(prefix.family())) {
        reach.add(*prefix, nobody(None, IpcacheValue::INSIDE));
    }
    for node in nodes {
        let is_this = is_this(node);
        let tunnel = node.address(Family::V4).filter(|_| options.tunnel && !is_this);
        let flags = if is_this { IpcacheValue::INSIDE } else { IpcacheValue::INSIDE | IpcacheValue::PODS };
        for prefix in node.pod_cidrs.iter().copied().filter(|prefix| options.has(prefix.family())) {
            if let Some(owner) = claims.prefix(prefix, &node.name) {
                reach.refuse(options.prefixes_of, node, options.prefixes_field(), &prefix.to_string(), format!(
                    "overlaps {} of node {}, which is older and keeps it: give one of them another prefix",
                    owner.prefix, owner.node
                ));
                // What of it is not the other node's.
                if owner.prefix.bits() > prefix.bits() {
                    reach.add_unreached(prefix, flags);
                }
                continue;
            }
            if is_this {
                reach.add(prefix, nobody(None, flags));
                reach.local.push(prefix);
                continue;
            }
            if options.tunnel && tunnel.is_none() {
                reach.refuse(
                    ObjectKind::Node,
                    node,
                    "status.addresses",
                    "",
                    format!(
                        "has no IPv4 address, which the tunnel needs: its pods in {prefix} are not reached"
                    ),
                );
                reach.add_unreached(prefix, flags);
                continue;
            }
            reach.add(prefix, nobody(tunnel, flags));
            let address = node.address(prefix.family());
            reach.remote.push(RemotePrefix { prefix, node: Arc::clone(&node.name), address });
        }
    }
    reach.add_nodes(view, options);
    if options.health_endpoints {
        let nodes = view.remote.values().chain(&view.this);
        let health = nodes.flat_map(|node| node.health_addresses().map(move |addr| (addr, &node.name)));
        // In another node's prefix it is one of that node's pods.
        let own = health.filter(|(addr, node)| claims.owner(*addr).is_none_or(|owner| owner == *node));
        reach.health = own.map(|(addr, _)| addr).filter(|addr| options.has(addr.family())).collect();
    }
    reach.add_bounds();
    reach.remote.sort();
    reach
}

impl Options {
    const fn has(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }

    const fn prefixes_field(&self) -> &'static str {
        if matches!(self.prefixes_of, ObjectKind::CiliumNode) {
            "spec.ipam.podCIDRs"
        } else {
            "spec.podCIDRs"
        }
    }
}

impl Reach {
    /// Prefixes of pods, this node's and the others', with and without a way to them.
    pub fn pod_prefixes(&self) -> impl Iterator<Item = Prefix> {
        let reached = self.local.iter().copied().chain(self.remote.iter().map(|remote| remote.prefix));
        reached.chain(self.unreached.iter().copied())
    }

    fn add_unreached(&mut self, prefix: Prefix, flags: u32) {
        self.ipcache.entry((prefix.addr(), prefix.bits())).or_insert(nobody(None, flags));
        self.unreached.push(prefix);
    }

    fn add(&mut self, prefix: Prefix, value: IpcacheValue) {
        self.ipcache.insert((prefix.addr(), prefix.bits()), value);
    }

    /// Addresses of nodes, this one's first: nobody else can have them. Of those that nodes are not reached at only who is
    /// there is said; several nodes may have one of them, behind a translation.
    fn add_nodes(&mut self, view: &ClusterView, options: &Options) {
        let mut owners: BTreeMap<Addr, Arc<str>> = BTreeMap::new();
        let mut remote: Vec<_> = view.remote.values().collect();
        remote.sort_by_key(|node| (node.created.unwrap_or(i64::MAX), &node.name));
        for (node, is_this) in
            view.this.iter().map(|node| (node, true)).chain(remote.into_iter().map(|node| (node, false)))
        {
            let tunnel = node.address(Family::V4).filter(|_| options.tunnel && !is_this);
            let (identity, flags) = match is_this {
                true => (NumericIdentity::HOST, IpcacheValue::INSIDE),
                false => (NumericIdentity::REMOTE_NODE, IpcacheValue::INSIDE | IpcacheValue::NODE),
            };
            for addr in node.addresses.iter().copied().filter(|addr| options.has(addr.family())) {
                match owners.get(&addr) {
                    Some(owner) if *owner != node.name => {
                        let why = format!("is an address of node {owner} too, which keeps it");
                        self.refuse(ObjectKind::Node, node, "status.addresses", &addr.to_string(), why);
                    }
                    Some(_) => {}
                    None => {
                        owners.insert(addr, Arc::clone(&node.name));
                        self.add(Prefix::host(addr), IpcacheValue::new(identity, tunnel, flags));
                    }
                }
            }
        }
        let this = view.this.iter().map(|node| (node, NumericIdentity::HOST));
        let remote = view.remote.values().map(|node| (node, NumericIdentity::REMOTE_NODE));
        for (node, identity) in this.chain(remote) {
            for addr in node.other_addresses.iter().copied().filter(|addr| options.has(addr.family())) {
                let is_inside = options.native_cidrs.iter().any(|cidr| cidr.contains(addr));
                let flags = if is_inside { IpcacheValue::INSIDE } else { 0 };
                let prefix = Prefix::host(addr);
                let entry = self.ipcache.entry((prefix.addr(), prefix.bits()));
                entry.or_insert(IpcacheValue::new(identity, None, flags));
            }
        }
    }

    /// `::/0` says nothing of IPv4, whose addresses are mapped ones.
    fn add_bounds(&mut self) {
        if self.ipcache.contains_key(&(Addr::ANY_V6, 0)) {
            self.ipcache.entry((Addr::ANY_V4, 96)).or_insert(nobody(None, 0));
        }
    }

    fn refuse(&mut self, kind: ObjectKind, node: &ClusterNode, field: &str, value: &str, reason: String) {
        self.rejects.push(Reject {
            kind: kind.name().to_owned(),
            name: node.name.to_string(),
            field: field.to_owned(),
            value: value.to_owned(),
            reason,
        });
    }
}

/// A prefix of which only the way is known.
const fn nobody(tunnel: Option<Addr>, flags: u32) -> IpcacheValue {
    IpcacheValue::new(NumericIdentity::UNKNOWN, tunnel, flags)
}

/// Which node has which prefix: disjoint ones, for what lies within another one of its node is left out.
#[derive(Default)]
struct Claims {
    by_first: BTreeMap<Addr, Claim>,
}

#[derive(Clone)]
struct Claim {
    prefix: Prefix,
    node: Arc<str>,
}

impl Claims {
    /// Whose prefix an address is in.
    fn owner(&self, addr: Addr) -> Option<&Arc<str>> {
        let (_, claim) = self.by_first.range(..=addr).next_back()?;
        claim.prefix.contains(addr).then_some(&claim.node)
    }

    /// Gives a prefix to a node, unless another one has a part of it: that claim.
    fn prefix(&mut self, prefix: Prefix, node: &Arc<str>) -> Option<Claim> {
        let around = self.by_first.range(..=prefix.addr()).next_back();
        if let Some((_, claim)) = around.filter(|(_, claim)| claim.prefix.overlaps(prefix)) {
            if claim.node != *node {
                return Some(claim.clone());
            }
            if claim.prefix.bits() <= prefix.bits() {
                return None;
            }
        }
        let inside = self.by_first.range(prefix.addr()..);
        let inside: Vec<_> =
            inside.take_while(|(_, claim)| claim.prefix.overlaps(prefix)).map(|(_, claim)| claim).collect();
        if let Some(other) = inside.iter().find(|claim| claim.node != *node) {
            return Some((*other).clone());
        }
        let inside: Vec<_> = inside.into_iter().map(|claim| claim.prefix.addr()).collect();
        for first in inside {
            self.by_first.remove(&first);
        }
        self.by_first.insert(prefix.addr(), Claim { prefix, node: Arc::clone(node) });
        None
    }
}

#[cfg(test)]
mod tests;
