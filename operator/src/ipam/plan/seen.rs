use portway_datapath::Family;
use portway_model::node::Prefix;

use crate::ipam::book::Epoch;
use crate::ipam::pools::is_for_pods;
use crate::observed::CiliumNode;

/// A CiliumNode that is so much younger than the epoch was made after it, whatever the clocks of API server and
/// operator differ. Seconds.
const CLOCKS_DIFFER: i64 = 3600;

/// A CiliumNode, with the CIDRs that it says it has.
pub(super) struct Seen<'a> {
    pub(super) node: &'a CiliumNode,
    pub(super) cidrs: Vec<Prefix>,
    pub(super) unreadable: Vec<&'a str>,
}

impl<'a> Seen<'a> {
    pub(super) fn new(node: &'a CiliumNode) -> Self {
        let mut seen = Self { node, cidrs: Vec::new(), unreadable: Vec::new() };
        for text in node.spec.ipam.iter().flat_map(|ipam| &ipam.pod_cidrs) {
            match Prefix::parse(text.trim()).filter(|cidr| is_for_pods(*cidr)) {
                Some(cidr) if seen.cidrs.contains(&cidr) => {}
                Some(cidr) => seen.cidrs.push(cidr),
                None => seen.unreadable.push(text),
            }
        }
        seen
    }

    pub(super) fn name(&self) -> &str {
        &self.node.meta.name
    }

    pub(super) fn lacks(&self, family: Family) -> bool {
        !self.node.meta.is_deleting && !self.cidrs.iter().any(|cidr| cidr.family() == family)
    }

    /// Whether nobody who knows only of claims before the epoch can write to it.
    pub(super) fn is_of(&self, epoch: Epoch) -> bool {
        match self.node.pod_cidrs_epoch {
            Some(version) => version == epoch.version,
            None => self.node.meta.created > epoch.began.saturating_add(CLOCKS_DIFFER),
        }
    }
}
