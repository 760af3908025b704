use portway_model::labels::LabelFilter;
use prometheus::Registry;
use serde_json::json;

use super::*;
use crate::fake_api::{Dice, FakeApi, Replica};

const TIMEOUT: i64 = 30;

fn config() -> Config {
    Config {
        interval: Duration::from_secs(10),
        timeout: Duration::from_secs(TIMEOUT.unsigned_abs()),
        rate_interval: Duration::from_secs(60),
        rate_limit: 6000,
        range: NumberRange::narrowed(0, 300, 1299).unwrap(),
        rules: None,
        has_slices: true,
    }
}

fn with_pods() -> Config {
    let rules = Rules {
        filter: LabelFilter::default(),
        cluster_name: "default".to_owned(),
        namespace: "portway".to_owned(),
    };
    Config { rules: Some(rules), ..config() }
}

/// An API server and a collector.
struct Rig {
    api: FakeApi,
    replica: Replica,
    gc: IdentityGc,
}

impl Rig {
    fn new(config: Config) -> Self {
        let mut api = FakeApi::default();
        api.clock = 1000;
        let gc = IdentityGc::new(config, Metrics::new(&Registry::new()).unwrap());
        Self { replica: Replica::new(&api), api, gc }
    }

    fn identity(&mut self, number: u32, app: &str) {
        let labels = json!({"k8s:app": app, "k8s:io.cilium.k8s.policy.cluster": "default",
            "k8s:io.cilium.k8s.policy.serviceaccount": "default", "k8s:io.kubernetes.pod.namespace": "shop"});
        let object =
            json!({"apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "security-labels": labels});
        self.api.put(Kind::CiliumIdentity, &number.to_string(), object);
    }

    fn endpoint(&mut self, name: &str, number: u32) {
        let status = json!({"identity": {"id": number}});
        self.api.put(Kind::CiliumEndpoint, &format!("shop/{name}"), json!({"status": status}));
    }

    fn now(&self) -> Now {
        let since = Duration::from_secs(self.api.clock.unsigned_abs());
        // Of 2026-01-01, as the fake writes it.
        Now { wall: Duration::from_secs(1_767_225_600) + since, monotonic: since }
    }

    /// One turn after the other until nothing is written, at this time. Gives what was written.
    fn turns(&mut self) -> Vec<String> {
        let mut written = Vec::new();
        loop {
            self.replica.catch_up(&self.api);
            let now = self.now();
            let writes = self.gc.plan(&self.replica.observed, now).writes;
            if writes.is_empty() {
                return written;
            }
            for write in writes.iter().take(BATCH) {
                let outcome = self.api.write(write);
                let verb = match (&write.change, &outcome) {
                    (_, Outcome::Late) => "late",
                    (Change::Delete { .. }, _) => "delete",
                    (Change::Patch { body, .. }, _)
                        if body["metadata"]["annotations"][HEARTBEAT].is_null() =>
                    {
                        "unmark"
                    }
                    _ => "mark",
                };
                written.push(format!("{verb} {}", write.object));
                self.gc.done(write, &outcome);
            }
        }
    }

    fn after(&mut self, seconds: i64) -> Vec<String> {
        self.api.clock += seconds;
        self.turns()
    }

    fn numbers(&self) -> Vec<&str> {
        self.api
            .all(Kind::CiliumIdentity)
            .map(|object| object["metadata"]["name"].as_str().unwrap())
            .collect()
    }
}

#[test]
fn what_nobody_uses_is_marked_and_deleted_a_timeout_later() {
    let mut rig = Rig::new(config());
    rig.identity(300, "web");
    rig.identity(301, "db");
    rig.endpoint("db-0", 301);
    assert_eq!(rig.turns(), [""; 0], "it is young");
    assert_eq!(rig.after(TIMEOUT), ["mark 300"]);
    assert_eq!(rig.after(TIMEOUT - 1), [""; 0]);
    assert_eq!(rig.after(10), ["delete 300"]);
    assert_eq!(rig.numbers(), ["301"]);
    rig.api.remove(Kind::CiliumEndpoint, "shop/db-0");
    assert_eq!(rig.after(10), ["mark 301"]);
}

#[test]
fn a_collector_that_restarts_goes_on_where_the_last_was() {
    let mut rig = Rig::new(config());
    rig.identity(300, "web");
    assert_eq!(rig.after(TIMEOUT), ["mark 300"]);
    rig.gc = IdentityGc::new(config(), Metrics::new(&Registry::new()).unwrap());
    assert_eq!(rig.turns(), [""; 0], "a restart writes nothing");
    assert_eq!(rig.after(TIMEOUT), ["delete 300"]);
}

#[test]
fn what_is_used_again_loses_its_mark_whoever_uses_it() {
    let mut rig = Rig::new(with_pods());
    for (number, app) in [(300, "endpoint"), (301, "slice"), (302, "pod")] {
        rig.identity(number, app);
    }
    assert_eq!(rig.after(TIMEOUT), ["mark 300", "mark 301", "mark 302"]);
    rig.endpoint("a", 300);
    let core = json!({"name": "b", "id": 301});
    rig.api.put(Kind::CiliumEndpointSlice, "slice", json!({"namespace": "shop", "endpoints": [core]}));
    rig.api.put(Kind::Namespace, "shop", json!({}));
    let pod = json!({"metadata": {"labels": {"app": "pod"}}, "spec": {"serviceAccountName": "default"}});
    rig.api.put(Kind::Pod, "shop/pod", pod);
    assert_eq!(rig.after(TIMEOUT), ["unmark 300", "unmark 301", "unmark 302"]);
    assert_eq!(rig.after(TIMEOUT * 100), [""; 0]);
}

#[test]
fn of_several_identities_of_a_pods_labels_only_the_one_that_counts_stays() {
    let mut rig = Rig::new(with_pods());
    rig.identity(310, "web");
    rig.api.clock += 1;
    rig.identity(300, "web");
    rig.api.put(Kind::Namespace, "shop", json!({}));
    let pod = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"serviceAccountName": "default"}});
    rig.api.put(Kind::Pod, "shop/web", pod);
    assert_eq!(rig.after(TIMEOUT), ["mark 300"], "310 is older");
    assert_eq!(rig.after(TIMEOUT), ["delete 300"]);
}

#[test]
fn a_mark_that_an_agent_removed_at_the_last_moment_is_honoured() {
    let mut rig = Rig::new(config());
    rig.identity(300, "web");
    rig.after(TIMEOUT);
    rig.api.clock += TIMEOUT;
    rig.replica.catch_up(&rig.api);
    let now = rig.now();
    let writes = rig.gc.plan(&rig.replica.observed, now).writes;
    assert_eq!(writes.len(), 1);
    rig.api.put(Kind::CiliumIdentity, "300", json!({"metadata": {"annotations": {HEARTBEAT: null}}}));
    assert_eq!(rig.api.write(&writes[0]), Outcome::Late);
}

#[test]
fn one_that_cannot_be_written_does_not_keep_the_others_from_it() {
    let mut rig = Rig::new(config());
    rig.identity(300, "web");
    rig.identity(301, "db");
    rig.api.clock += TIMEOUT;
    rig.replica.catch_up(&rig.api);
    let now = rig.now();
    let writes = rig.gc.plan(&rig.replica.observed, now).writes;
    rig.gc.done(&writes[0], &Outcome::Failed("403".to_owned()));
    assert_eq!(rig.turns(), ["mark 301"], "300 is the next round's");
    assert_eq!(rig.after(10), ["mark 300"]);
}

/// Identities come at every turn, so that the round never ends.
#[test]
fn one_that_could_not_be_written_is_tried_again_though_new_ones_keep_coming() {
    let registry = Registry::new();
    let mut rig = Rig::new(config());
    rig.gc = IdentityGc::new(config(), Metrics::new(&registry).unwrap());
    rig.identity(300, "web");
    let mut tried = 0;
    for number in 301..400 {
        rig.identity(number, &format!("app-{number}"));
        rig.api.clock += 2;
        rig.replica.catch_up(&rig.api);
        let now = rig.now();
        for write in rig.gc.plan(&rig.replica.observed, now).writes {
            let is_refused = write.object == "300";
            tried += u32::from(is_refused);
            let outcome = if is_refused { Outcome::Failed("403".to_owned()) } else { rig.api.write(&write) };
            rig.gc.done(&write, &outcome);
        }
    }
    assert!((14..=17).contains(&tried), "{tried} times in 168 s, an interval of 10 s apart");
    let runs = registry.gather().into_iter().find(|family| family.name().ends_with("_gc_runs")).unwrap();
    let count: f64 = runs.get_metric().iter().map(|metric| metric.get_counter().get_value()).sum();
    assert!(count >= 14.0, "{count} rounds");
}

#[test]
fn who_leads_no_more_shows_no_identities() {
    let registry = Registry::new();
    let mut rig = Rig::new(config());
    rig.gc = IdentityGc::new(config(), Metrics::new(&registry).unwrap());
    let shows = || registry.gather().iter().any(|family| family.name().ends_with("_gc_entries"));
    rig.identity(300, "web");
    rig.turns();
    assert!(shows());
    drop(rig);
    assert!(!shows());
}

#[test]
fn slices_count_where_they_are_on() {
    for has_slices in [true, false] {
        let mut rig = Rig::new(Config { has_slices, ..config() });
        rig.identity(300, "web");
        let core = json!({"name": "b", "id": 300});
        rig.api.put(Kind::CiliumEndpointSlice, "slice", json!({"namespace": "shop", "endpoints": [core]}));
        assert_eq!(rig.after(TIMEOUT).is_empty(), has_slices);
    }
}

#[test]
fn no_more_are_deleted_than_the_rate_limit_allows() {
    let mut rig = Rig::new(Config { rate_limit: 60, ..config() });
    (300..500).for_each(|number| rig.identity(number, &format!("app-{number}")));
    assert_eq!(rig.after(TIMEOUT).len(), 200, "marks are not counted");
    assert_eq!(rig.after(TIMEOUT).len(), 60);
    assert_eq!(rig.after(1).len(), 1, "the round goes on with the budget");
    assert_eq!(rig.after(30).len(), 30);
}

const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

/// 970 of 1000 numbers are taken by nobody.
fn crowded() -> Rig {
    let mut rig = Rig::new(Config { timeout: HALF_AN_HOUR, ..config() });
    (300..1270).for_each(|number| rig.identity(number, &format!("app-{number}")));
    rig
}

#[test]
fn a_timeout_is_shortened_only_as_far_as_the_watches_of_endpoints_have_come() {
    let mut rig = crowded();
    rig.endpoint("other", 8);
    assert_eq!(rig.after(120).len(), 970, "all are marked early, for numbers run short");
    assert_eq!(rig.after(200), [""; 0], "no endpoint was heard of since they were marked");
    rig.endpoint("other", 9);
    assert!(rig.after(10).iter().all(|write| write.starts_with("delete")));
    assert!(rig.numbers().len() < 970);
}

#[test]
fn a_mark_of_another_clock_counts_from_when_it_was_seen_where_numbers_run_short() {
    let mut rig = crowded();
    let heartbeat = time_of(rig.now().seconds() - 600);
    for number in 300..1270 {
        let marked = json!({"metadata": {"annotations": {HEARTBEAT: heartbeat}}});
        rig.api.put(Kind::CiliumIdentity, &number.to_string(), marked);
    }
    assert_eq!(rig.turns(), [""; 0]);
    assert_eq!(rig.after(179), [""; 0]);
    assert!(!rig.after(5).is_empty());
}

#[test]
fn while_a_kind_that_shows_who_is_used_is_not_heard_of_nothing_is_marked() {
    for kind in [Kind::CiliumEndpoint, Kind::CiliumEndpointSlice, Kind::Pod, Kind::Namespace] {
        let mut rig = Rig::new(with_pods());
        rig.identity(300, "web");
        let now = rig.now();
        rig.replica.observed.hear(kind, now.monotonic.saturating_sub(Duration::from_secs(61)), now);
        assert_eq!(rig.after(TIMEOUT), [""; 0], "{kind:?}");
        rig.replica.observed.hear(kind, rig.now().monotonic, rig.now());
        assert_eq!(rig.turns(), ["mark 300"], "{kind:?}");
    }
}

#[test]
fn while_an_object_that_may_name_any_number_cannot_be_read_nothing_is_marked_and_it_is_told() {
    let broken = [
        (Kind::CiliumEndpoint, "shop/a", json!({"status": {"identity": {"id": "many"}}})),
        (Kind::CiliumEndpointSlice, "a", json!({"endpoints": "many"})),
        (Kind::Pod, "shop/a", json!({"metadata": {"labels": "many"}})),
        (Kind::Namespace, "shop", json!({"metadata": {"labels": "many"}})),
    ];
    for (kind, object, fields) in broken {
        let mut rig = Rig::new(with_pods());
        rig.identity(300, "web");
        rig.api.put(kind, object, fields);
        assert_eq!(rig.after(TIMEOUT), [""; 0], "{kind:?}");
        let now = rig.now();
        let troubles = rig.gc.plan(&rig.replica.observed, now).troubles;
        assert_eq!(troubles.len(), 1, "{kind:?}");
        assert_eq!((troubles[0].kind, troubles[0].object.as_str()), (kind, object));
        rig.api.remove(kind, object);
        assert_eq!(rig.turns(), ["mark 300"], "{kind:?}");
    }
}

mod histories;
