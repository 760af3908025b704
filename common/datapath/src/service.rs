use crate::{Addr, BackendIndex, FrontendKind, Membership, Port};

/// A service port of one family. All its frontends share the index, so one store switches them all. 0 is none.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceIndex(u32);

impl ServiceIndex {
    /// The index travels in 24 bits of [`crate::FrontendValue`].
    pub const MAX: u32 = 0x00ff_ffff;

    #[inline(always)]
    pub const fn new(index: u32) -> Self {
        Self(index & Self::MAX)
    }

    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Where a run begins in `pw_runs`, in records. 0 is no run: record 0 is never used.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunOffset(u32);

impl RunOffset {
    #[inline(always)]
    pub const fn new(record: u32) -> Self {
        Self(record)
    }

    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The `n`th record from here.
    #[inline(always)]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }
}

/// The publishing word, element of `pw_services`: storing it switches every frontend of a service at once.
///
/// Low half: [`RunOffset`]. High half: a generation that goes up with each publication, so that a dump can tell
/// that it was overtaken.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceWord(u64);

impl ServiceWord {
    /// No such service.
    pub const NONE: Self = Self(0);

    #[inline(always)]
    pub const fn new(run: RunOffset, generation: u32) -> Self {
        Self((generation as u64) << 32 | run.0 as u64)
    }

    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// `None` where no run is published.
    #[inline(always)]
    pub const fn run(self) -> Option<RunOffset> {
        match self.0 as u32 {
            0 => None,
            record => Some(RunOffset(record)),
        }
    }

    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Words in a record of `pw_runs`.
pub const RECORD_WORDS: usize = 6;

/// A record of `pw_runs`, 24 bytes: [`RunHeader`] takes the first [`RunHeader::RECORDS`] of a run, each
/// [`RunBackend`] one.
pub type Record = [u32; RECORD_WORDS];

/// Bits of [`RunHeader::flags`].
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ServiceFlags(u32);

impl ServiceFlags {
    /// `internalTrafficPolicy: Local`.
    pub const INTERNAL_LOCAL: Self = Self(1);
    /// `externalTrafficPolicy: Local`.
    pub const EXTERNAL_LOCAL: Self = Self(1 << 1);
    /// `pw_source_ranges` has entries for this service; they filter its load-balancer and external addresses.
    pub const SOURCE_RANGES: Self = Self(1 << 2);
    /// The source ranges filter every frontend (`bpf-lb-source-range-all-types`).
    pub const SOURCE_RANGES_ALL: Self = Self(1 << 3);

    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.0
    }

    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the source ranges apply to a frontend of this kind.
    pub const fn filters(self, kind: FrontendKind) -> bool {
        self.has(Self::SOURCE_RANGES)
            && (self.has(Self::SOURCE_RANGES_ALL)
                || matches!(kind, FrontendKind::LoadBalancer | FrontendKind::ExternalIps))
    }
}

/// The head of a run: an immutable version of one service.
///
/// Its backends follow, sorted *local only | local and cluster | cluster only*, so that the set of each traffic
/// policy is one contiguous range: local `[0, local_len)`, cluster `[cluster_start, cluster_start + cluster_len)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RunHeader {
    pub flags: ServiceFlags,
    /// Session affinity in seconds; 0 is none.
    pub affinity_seconds: u32,
    pub local_len: u32,
    pub cluster_start: u32,
    pub cluster_len: u32,
    /// Slots in each Maglev table; 0 is none.
    pub maglev_size: u32,
    /// First slot of the cluster table in `pw_maglev`; each slot holds a position in the run. The table of the local
    /// set follows where a flag asks for the Local policy.
    pub maglev_at: u32,
}

impl RunHeader {
    /// Records that a header takes.
    pub const RECORDS: u32 = 2;

    /// The number of backends that follow.
    #[inline(always)]
    pub const fn backends(&self) -> u32 {
        self.cluster_start.wrapping_add(self.cluster_len)
    }

    /// The position in the run of the first backend, and their number, that `membership` selects.
    #[inline(always)]
    pub const fn range(&self, membership: Membership) -> (u32, u32) {
        match membership {
            Membership::Local => (0, self.local_len),
            Membership::Cluster => (self.cluster_start, self.cluster_len),
        }
    }

    /// The set that a client on this node gets from a frontend of this kind: the internal policy rules the cluster
    /// address, and who asks an external address from inside gets the cluster set (Kubernetes API, Service
    /// `internalTrafficPolicy`; kube-proxy's short circuit of external addresses).
    #[inline(always)]
    pub const fn inside(&self, kind: FrontendKind) -> Membership {
        if matches!(kind, FrontendKind::ClusterIp) && self.flags.has(ServiceFlags::INTERNAL_LOCAL) {
            Membership::Local
        } else {
            Membership::Cluster
        }
    }

    /// The set that a client outside the cluster gets: the external policy rules all but the cluster address.
    #[inline(always)]
    pub const fn outside(&self, kind: FrontendKind) -> Membership {
        if !matches!(kind, FrontendKind::ClusterIp) && self.flags.has(ServiceFlags::EXTERNAL_LOCAL) {
            Membership::Local
        } else {
            self.inside(kind)
        }
    }

    #[inline(always)]
    pub const fn records(&self) -> [Record; Self::RECORDS as usize] {
        [
            [
                self.flags.bits(),
                self.affinity_seconds,
                self.local_len,
                self.cluster_start,
                self.cluster_len,
                self.maglev_size,
            ],
            [self.maglev_at, 0, 0, 0, 0, 0],
        ]
    }

    /// From the run's first record alone: all but [`Self::maglev_at`], which only outside traffic needs.
    #[inline(always)]
    pub const fn from_first(r: &Record) -> Self {
        Self {
            flags: ServiceFlags::from_bits(r[0]),
            affinity_seconds: r[1],
            local_len: r[2],
            cluster_start: r[3],
            cluster_len: r[4],
            maglev_size: r[5],
            maglev_at: 0,
        }
    }

    pub const fn from_records(first: &Record, second: &Record) -> Self {
        let mut header = Self::from_first(first);
        header.maglev_at = second[0];
        header
    }
}

/// A backend in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunBackend {
    pub addr: Addr,
    pub port: Port,
    pub index: BackendIndex,
}

impl RunBackend {
    #[inline(always)]
    pub const fn record(&self) -> Record {
        let [a, b, c, d] = self.addr.words();
        [a, b, c, d, self.port.network(), self.index.get()]
    }

    #[inline(always)]
    pub const fn from_record(r: &Record) -> Self {
        Self {
            addr: Addr::from_words([r[0], r[1], r[2], r[3]]),
            port: Port::from_network(r[4]),
            index: BackendIndex::new(r[5]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let header = RunHeader {
            flags: ServiceFlags::INTERNAL_LOCAL.with(ServiceFlags::SOURCE_RANGES),
            affinity_seconds: 10_800,
            local_len: 2,
            cluster_start: 1,
            cluster_len: 9,
            maglev_size: 251,
            maglev_at: 1004,
        };
        let [first, second] = header.records();
        assert_eq!(RunHeader::from_records(&first, &second), header);
        let backend =
            RunBackend { addr: Addr::v4([10, 0, 0, 7]), port: Port::new(8080), index: BackendIndex::new(9) };
        assert_eq!(RunBackend::from_record(&backend.record()), backend);
    }

    #[test]
    fn each_policy_rules_the_frontends_it_is_for() {
        let local = |flags| RunHeader { flags, ..RunHeader::default() };
        let (internal, external) = (local(ServiceFlags::INTERNAL_LOCAL), local(ServiceFlags::EXTERNAL_LOCAL));
        assert_eq!(internal.inside(FrontendKind::ClusterIp), Membership::Local);
        assert_eq!(internal.inside(FrontendKind::NodePort), Membership::Cluster);
        assert_eq!(external.inside(FrontendKind::NodePort), Membership::Cluster);
        assert_eq!(external.outside(FrontendKind::NodePort), Membership::Local);
        assert_eq!(external.outside(FrontendKind::ClusterIp), Membership::Cluster);
    }

    #[test]
    fn source_ranges_filter_the_addresses_that_come_from_a_load_balancer() {
        let flags = ServiceFlags::SOURCE_RANGES;
        assert!(flags.filters(FrontendKind::LoadBalancer) && flags.filters(FrontendKind::ExternalIps));
        assert!(!flags.filters(FrontendKind::NodePort));
        assert!(flags.with(ServiceFlags::SOURCE_RANGES_ALL).filters(FrontendKind::NodePort));
    }
}
