use portway_model::labels::{Label, Labels};
use prometheus::Registry;
use serde_json::json;

use super::*;
use crate::fake_api::{FakeApi, Replica};

fn labels(namespace: &str, app: &str, job: Option<usize>) -> Labels {
    let of_job = job.map(|job| Label::new("k8s", "job-id", job.to_string()));
    let own = [
        Label::new("k8s", "app", app),
        Label::new("k8s", "io.kubernetes.pod.namespace", namespace),
        Label::new("k8s", "io.cilium.k8s.policy.cluster", "default"),
    ];
    own.into_iter().chain(of_job).collect()
}

struct Rig {
    api: FakeApi,
    replica: Replica,
    alarm: IdentityAlarm,
    clock: u64,
}

impl Rig {
    fn new() -> Self {
        let api = FakeApi::default();
        let range = NumberRange::narrowed(0, 300, 1299).unwrap();
        let alarm = IdentityAlarm::new(range, Metrics::new(&Registry::new()).unwrap());
        Self { replica: Replica::new(&api), api, alarm, clock: 0 }
    }

    /// So many more identities, and so much later.
    fn grow(&mut self, more: usize, seconds: u64) -> Vec<Trouble> {
        let before = self.api.all(Kind::CiliumIdentity).count();
        for n in before..before + more {
            let labels = labels("batch", "worker", Some(n));
            let entries: serde_json::Map<_, _> =
                labels.iter().map(|label| (label.entry(), json!(&*label.value))).collect();
            let object =
                json!({"apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "security-labels": entries});
            self.api.put(Kind::CiliumIdentity, &(300 + n).to_string(), object);
        }
        self.clock += seconds;
        self.replica.catch_up(&self.api);
        let monotonic = Duration::from_secs(self.clock);
        let plan = self.alarm.plan(&self.replica.observed, Now { wall: monotonic, monotonic });
        assert_eq!(plan.writes, []);
        plan.troubles
    }
}

#[test]
fn from_half_of_the_range_on_the_label_and_the_namespace_to_blame_are_told() {
    let mut rig = Rig::new();
    rig.api.put(Kind::Namespace, "batch", json!({}));
    assert_eq!(rig.grow(499, 3600), []);
    let troubles = rig.grow(1, 3600);
    let [Trouble { kind, object, reason, message, uid }] = &troubles[..] else { panic!("{troubles:?}") };
    assert_eq!((*kind, object.as_str(), *reason), (Kind::Namespace, "batch", "IdentitiesRunOut"));
    assert!(!uid.is_empty());
    let said = [
        "500 of 1000",
        "(50 %)",
        "label k8s:job-id has 500 values",
        "there would be 1",
        "!job-id",
        "batch has 500",
    ];
    assert!(said.iter().all(|part| message.contains(part)), "{message}");
}

#[test]
fn growth_that_ends_soon_is_told_before_half_is_gone() {
    let mut rig = Rig::new();
    assert_eq!(rig.grow(150, 10), []);
    assert_eq!(rig.grow(1, 60), [], "850 at one a minute are 14 hours");
    let troubles = rig.grow(60, 60);
    assert_eq!(troubles.len(), 1);
    assert!(troubles[0].message.contains("at this speed all are within 26 minutes"), "{troubles:?}");
    assert_eq!(rig.grow(0, 5), troubles, "it is looked at now and then");
    assert_eq!(rig.grow(0, 700), [], "it has stopped");
}

#[test]
fn label_sets_that_come_and_go_are_no_growth() {
    let mut rig = Rig::new();
    // As many as there are of them at a moment; a tenth and more.
    let counts = [113, 237, 151, 140, 300, 160, 280, 290];
    for (n, count) in counts.into_iter().cycle().take(80).enumerate() {
        let there = rig.api.all(Kind::CiliumIdentity).count();
        for number in count..there {
            rig.api.remove(Kind::CiliumIdentity, &(300 + number).to_string());
        }
        assert_eq!(rig.grow(count.saturating_sub(there), 10), [], "the look number {n}");
    }
    // More than there ever were at once are.
    assert_eq!(rig.grow(20, 30), []);
    assert_eq!(rig.grow(100, 31).len(), 1);
}

#[test]
fn who_leads_no_more_shows_no_alarm() {
    let registry = Registry::new();
    let mut rig = Rig::new();
    let range = NumberRange::narrowed(0, 300, 1299).unwrap();
    let metrics = Metrics::new(&registry).unwrap();
    rig.alarm = IdentityAlarm::new(range, metrics);
    let shown = || -> f64 {
        let families = registry.gather();
        families
            .iter()
            .flat_map(|family| family.get_metric())
            .map(|metric| metric.get_gauge().get_value())
            .sum()
    };
    rig.grow(600, 10);
    assert_eq!(shown(), 1601.0, "600 of 1000, and an alarm");
    drop(rig);
    assert_eq!(shown(), 0.0);
}
