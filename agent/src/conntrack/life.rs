//! How long an entry may be idle. The words are Cilium's (`bpf-ct-timeout-…`).

use std::time::Duration;

use portway_datapath::{FlowKey, FlowValue, NatKey, NatValue};

use crate::config::FlowTimeouts;

/// `IPPROTO_TCP`.
const TCP: u8 = 6;

/// What is known of a flow: of one entry, or of the two that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Nanoseconds on the coarse monotonic clock.
    pub(super) last_seen: u64,
    pub(super) is_tcp: bool,
    /// A packet went each way and, of TCP, the handshake is over.
    pub(super) is_established: bool,
    /// TCP: a reset, or a FIN each way.
    pub(super) is_closed: bool,
    /// To a service by packets.
    pub(super) is_service: bool,
}

impl Facts {
    /// `is_established`: the entry is in `pw_conntrack`, or would be if there were room.
    pub(super) fn of_flow(key: &FlowKey, value: &FlowValue, is_established: bool) -> Self {
        Self {
            last_seen: value.last_seen,
            is_tcp: key.protocol == TCP,
            is_established: is_established || value.is(FlowValue::REFUSED),
            is_closed: value.is_closed(),
            is_service: key.kind == FlowKey::SERVICE || value.other().is_some(),
        }
    }

    /// Of one half or both. A masqueraded flow may be one to a service.
    pub(super) fn of_nat(
        key: &NatKey,
        value: &NatValue,
        other: Option<&NatValue>,
        is_established: bool,
    ) -> Self {
        let there = other.map_or(0, |half| half.seen);
        let seen = value.seen | there;
        Self {
            last_seen: other.map_or(0, |half| half.last_seen).max(value.last_seen),
            is_tcp: key.protocol == TCP,
            is_established,
            is_closed: seen & FlowValue::RST != 0 || value.seen & there & FlowValue::FIN != 0,
            is_service: false,
        }
    }

    /// Of a flow's two entries: what either knows.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            last_seen: self.last_seen.max(other.last_seen),
            is_tcp: self.is_tcp,
            is_established: self.is_established || other.is_established,
            is_closed: self.is_closed || other.is_closed,
            is_service: self.is_service || other.is_service,
        }
    }

    /// Whether it has been idle for too long. Programs store the time once a second, so what they saw in that second is not
    /// held against an entry.
    pub(super) fn is_over(&self, now: u64, life: Duration) -> bool {
        const GRANULARITY: u64 = 1_000_000_000;
        let life = u64::try_from(life.as_nanos()).unwrap_or(u64::MAX);
        now.saturating_sub(self.last_seen) > life.saturating_add(GRANULARITY)
    }

    /// Of a flow.
    pub(super) fn life(&self, timeouts: &FlowTimeouts) -> Duration {
        let FlowTimeouts { tcp, tcp_syn, tcp_fin, any, service_tcp, service_tcp_grace, service_any } =
            *timeouts;
        match (self.is_tcp, self.is_service) {
            (true, false) if self.is_closed => tcp_fin,
            (true, true) if self.is_closed => service_tcp_grace,
            (true, _) if !self.is_established => tcp_syn,
            (true, false) => tcp,
            (true, true) => service_tcp,
            (false, false) => any,
            (false, true) => service_any,
        }
    }

    /// Of a masqueraded flow: no less than of the flow that it carries.
    pub(super) fn nat_life(&self, timeouts: &FlowTimeouts) -> Duration {
        let as_service = Self { is_service: true, ..*self };
        self.life(timeouts).max(as_service.life(timeouts))
    }
}

#[cfg(test)]
mod tests {
    use portway_datapath::{Addr, Port};

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const TIMEOUTS: FlowTimeouts = FlowTimeouts {
        tcp: Duration::from_secs(1000),
        tcp_syn: Duration::from_secs(60),
        tcp_fin: Duration::from_secs(10),
        any: Duration::from_secs(61),
        service_tcp: Duration::from_secs(2000),
        service_tcp_grace: Duration::from_secs(62),
        service_any: Duration::from_secs(63),
    };

    fn key(protocol: u8, kind: u8) -> FlowKey {
        let local = (Addr::v4([10, 1, 0, 7]), Port::new(4000));
        FlowKey::new(local, (Addr::v4([10, 96, 0, 1]), Port::new(80)), protocol, kind)
    }

    fn seconds(protocol: u8, kind: u8, established: bool, change: impl Fn(&mut FlowValue)) -> u64 {
        let key = key(protocol, kind);
        let mut value = FlowValue::new(&key, 0, 0);
        change(&mut value);
        Facts::of_flow(&key, &value, established).life(&TIMEOUTS).as_secs()
    }

    #[test]
    fn each_state_of_a_flow_has_its_own_time() {
        let nothing = |_: &mut FlowValue| {};
        assert_eq!(seconds(TCP, FlowKey::PLAIN, true, nothing), 1000);
        assert_eq!(seconds(TCP, FlowKey::PLAIN, false, nothing), 60);
        assert_eq!(seconds(TCP, FlowKey::SERVICE, true, nothing), 2000);
        assert_eq!(seconds(17, FlowKey::PLAIN, true, nothing), 61);
        assert_eq!(seconds(17, FlowKey::SERVICE, false, nothing), 63);
        // The flow under the backend is the service's too.
        let to_service = |value: &mut FlowValue| value.other = Addr::v4([10, 96, 0, 1]);
        assert_eq!(seconds(TCP, FlowKey::PLAIN, true, to_service), 2000);
        // Where pw_conntrack is full, an established flow is one all the same.
        assert_eq!(seconds(TCP, FlowKey::PLAIN, false, |value| value.flags = FlowValue::REFUSED), 1000);
    }

    #[test]
    fn tcp_is_closed_by_a_reset_or_by_both_sides() {
        let fin = |value: &mut FlowValue| value.seen_out = FlowValue::FIN;
        assert_eq!(seconds(TCP, FlowKey::PLAIN, true, fin), 1000, "half closed");
        let both = |value: &mut FlowValue| (value.seen_out, value.seen_in) = (FlowValue::FIN, FlowValue::FIN);
        assert_eq!(seconds(TCP, FlowKey::PLAIN, true, both), 10);
        assert_eq!(seconds(TCP, FlowKey::SERVICE, true, both), 62);
        let reset = |value: &mut FlowValue| value.seen_in = FlowValue::RST;
        assert_eq!(seconds(TCP, FlowKey::PLAIN, false, reset), 10);
    }

    #[test]
    fn an_entry_is_over_after_its_time_and_the_second_in_which_programs_store_nothing() {
        let key = key(17, FlowKey::PLAIN);
        let facts = Facts::of_flow(&key, &FlowValue::new(&key, 0, 100 * SECOND), true);
        let life = Duration::from_secs(60);
        assert!(!facts.is_over(161 * SECOND, life));
        assert!(facts.is_over(161 * SECOND + 1, life));
        assert!(!facts.is_over(0, life), "a clock that is behind");
    }

    #[test]
    fn both_halves_decide_about_a_masqueraded_flow() {
        let key = NatKey::new(
            (Addr::v4([10, 1, 0, 7]), Port::new(4000)),
            (Addr::v4([1, 1, 1, 1]), Port::new(53)),
            TCP,
            NatKey::OUT,
        );
        let half = |seen, now| NatValue::new(&key, (Addr::v4([192, 0, 2, 1]), Port::new(4000)), seen, now);
        let (out, back) = (half(FlowValue::FIN, 5), half(FlowValue::SEEN, 9));
        let facts = Facts::of_nat(&key, &out, Some(&back), true);
        assert_eq!((facts.last_seen, facts.is_closed), (9, false));
        assert_eq!(facts.nat_life(&TIMEOUTS).as_secs(), 2000, "a flow to a service may be masqueraded");
        let facts = Facts::of_nat(&key, &out, Some(&half(FlowValue::FIN, 9)), true);
        assert!(facts.is_closed);
        assert_eq!(facts.nat_life(&TIMEOUTS).as_secs(), 62);
        assert!(!Facts::of_nat(&key, &out, None, true).is_closed);
    }
}
