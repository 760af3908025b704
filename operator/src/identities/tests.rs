use portway_claims::fake_api::FakeApi;
use portway_runtime::kubernetes::WatchEvent;
use prometheus::Registry;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::fake_api::Dice;

const PATH: &str = "/apis/cilium.io/v2/ciliumidentities";
const PATIENCE: Duration = Duration::from_secs(10);

/// An API server, and one operator of it.
struct Rig {
    api: FakeApi,
    observed: Observed,
    identities: Identities,
    clock: Duration,
}

fn config(range: NumberRange) -> Config {
    let rules = Rules {
        filter: portway_model::labels::LabelFilter::default(),
        cluster_name: "default".to_owned(),
        namespace: "portway".to_owned(),
    };
    Config { range, rules }
}

fn all() -> NumberRange {
    NumberRange::of_cluster(0)
}

impl Rig {
    async fn new(range: NumberRange) -> Self {
        let (api, client) = FakeApi::start().await;
        Self::of(api, client, range)
    }

    fn of(api: FakeApi, client: Client, range: NumberRange) -> Self {
        let metrics = Metrics::new(&Registry::new()).unwrap();
        let identities = Identities::new(config(range), client, metrics);
        let mut rig = Self { api, observed: Observed::default(), identities, clock: Duration::ZERO };
        let names = ["shop", "kube-system"];
        let namespaces = names.map(|name| json!({"metadata": {"name": name, "uid": name}}));
        tell(&mut rig.observed, Kind::Namespace, &namespaces);
        rig.pods(&[]);
        rig.watch();
        rig
    }

    /// A second one of the same API server.
    async fn beside(&self, range: NumberRange) -> Self {
        Self::of(self.api.clone(), self.api.client().await, range)
    }

    fn now(&mut self) -> Now {
        self.clock += Duration::from_secs(1);
        Now { wall: self.clock, monotonic: self.clock }
    }

    /// These pods are there: `namespace/app`.
    fn pods(&mut self, pods: &[String]) {
        let pod = |name: &String| {
            let (namespace, app) = name.split_once('/').unwrap();
            json!({"metadata": {"namespace": namespace, "name": app, "uid": name, "labels": {"app": app}}})
        };
        let pods: Vec<_> = pods.iter().map(pod).collect();
        tell(&mut self.observed, Kind::Pod, &pods);
    }

    /// The watch of identities tells what is.
    fn watch(&mut self) {
        let objects: Vec<_> = self.api.all().into_values().collect();
        let version = self.api.version().max(1);
        tell_at(&mut self.observed, Kind::CiliumIdentity, &objects, version);
    }

    fn step(&mut self) {
        let now = self.now();
        self.identities.step(&self.observed, now);
    }

    /// Until there is nothing under way.
    async fn settle(&mut self) {
        self.step();
        while self.identities.under_way > 0 {
            let change = timeout(PATIENCE, self.identities.next()).await.expect("a change");
            let now = self.now();
            self.identities.take(change, now);
        }
    }

    fn count(&self, state: State) -> usize {
        self.identities.work.values().filter(|work| work.state == state).count()
    }
}

fn tell(observed: &mut Observed, kind: Kind, objects: &[Value]) {
    let version = observed.version(kind) + 1;
    tell_at(observed, kind, objects, version);
}

fn tell_at(observed: &mut Observed, kind: Kind, objects: &[Value], version: u64) {
    let raw = |object: &Value| RawValue::from_string(object.to_string()).unwrap();
    observed.take(kind, WatchEvent::ListBegins);
    observed.take(kind, WatchEvent::Listed(objects.iter().map(raw).collect()));
    observed.take(kind, WatchEvent::ListEnds { version });
}

/// The confirmed identities, by the value of `app`.
fn confirmed(api: &FakeApi) -> BTreeMap<String, Vec<String>> {
    let mut by_app: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for object in api.all().into_values() {
        if object.pointer("/metadata/annotations/portway.io~1claim").is_none() {
            let app = object["security-labels"]["k8s:app"].as_str().unwrap().to_owned();
            by_app.entry(app).or_default().push(object["metadata"]["name"].as_str().unwrap().to_owned());
        }
    }
    by_app
}

fn apps(namespace: &str, apps: std::ops::Range<usize>) -> Vec<String> {
    apps.map(|n| format!("{namespace}/app-{n}")).collect()
}

#[tokio::test]
async fn every_label_set_of_pods_gets_one_identity_and_a_restart_writes_nothing() {
    let mut rig = Rig::new(all()).await;
    rig.pods(&apps("shop", 0..100));
    rig.settle().await;
    let made = confirmed(&rig.api);
    assert_eq!((made.len(), rig.count(State::Held)), (100, 100));
    assert!(made.values().all(|numbers| numbers.len() == 1), "{made:?}");
    rig.watch();
    rig.settle().await;
    let writes = rig.api.writes().len();
    assert!(writes <= 220, "{writes} writes for 100 label sets");
    assert!(rig.api.reads() <= 100);
    let mut next = rig.beside(all()).await;
    next.pods(&apps("shop", 0..100));
    next.settle().await;
    assert_eq!(next.count(State::Held), 100);
    assert_eq!((rig.api.writes(), rig.api.reads()), (Vec::new(), 0));
}

#[tokio::test]
async fn claims_are_under_way_a_few_at_a_time_and_those_of_the_system_go_first() {
    let mut rig = Rig::new(all()).await;
    rig.pods(&[apps("shop", 0..100), apps("kube-system", 0..2)].concat());
    rig.step();
    assert_eq!((rig.count(State::UnderWay), rig.count(State::Waiting)), (UNDER_WAY, 102 - UNDER_WAY));
    let work = &rig.identities.work;
    let of_system =
        |labels: &&Labels| labels.namespace().is_some_and(|namespace| **namespace == *"kube-system");
    let states: Vec<_> = work.keys().filter(of_system).map(|labels| work[labels].state).collect();
    assert_eq!(states, [State::UnderWay, State::UnderWay]);
    rig.settle().await;
    assert_eq!(rig.count(State::Held), 102);
}

#[tokio::test]
async fn the_last_numbers_are_left_to_the_system_and_what_waits_is_told() {
    let mut rig = Rig::new(NumberRange::narrowed(0, 300, 363).unwrap()).await;
    rig.pods(&apps("shop", 0..70));
    rig.settle().await;
    assert_eq!((rig.count(State::Held), rig.count(State::Waiting)), (63, 7));
    let troubles = rig.identities.troubles();
    let [Trouble { object, reason, message, .. }] = &troubles[..] else { panic!("{troubles:?}") };
    assert_eq!((object.as_str(), *reason), ("shop", "IdentitiesExhausted"));
    assert!(message.starts_with("7 label sets"), "{message}");
    rig.pods(&[apps("shop", 0..70), apps("kube-system", 0..1)].concat());
    rig.watch();
    rig.settle().await;
    assert_eq!((rig.count(State::Held), rig.count(State::Waiting)), (64, 7));
    // One goes, and collection takes its identity.
    let victim = rig.identities.work.iter().find(|(labels, work)| {
        work.state == State::Held && labels.namespace().is_some_and(|namespace| **namespace == *"shop")
    });
    let victim = victim.unwrap().0.get("k8s", "app").unwrap().to_string();
    let left: Vec<_> =
        apps("shop", 0..70).into_iter().filter(|pod| *pod != format!("shop/{victim}")).collect();
    rig.pods(&[left, apps("kube-system", 0..1)].concat());
    let number = confirmed(&rig.api)[&victim][0].clone();
    rig.api.take(&format!("{PATH}/{number}"));
    rig.watch();
    rig.settle().await;
    assert_eq!((rig.count(State::Held), rig.count(State::Waiting)), (63, 7), "it is the system's now");
    // And another one, whose number others get.
    rig.pods(&[apps("shop", 0..5), apps("kube-system", 0..1)].concat());
    for (app, numbers) in confirmed(&rig.api) {
        if !apps("shop", 0..5).contains(&format!("shop/{app}")) {
            rig.api.take(&format!("{PATH}/{}", numbers[0]));
        }
    }
    rig.watch();
    rig.settle().await;
    assert_eq!((rig.count(State::Held), rig.count(State::Waiting)), (6, 0));
    assert_eq!(rig.identities.troubles(), []);
}

#[tokio::test]
async fn what_somebody_deletes_is_made_again_with_its_number_as_long_as_a_pod_has_the_labels() {
    let mut rig = Rig::new(all()).await;
    rig.pods(&apps("shop", 0..2));
    rig.settle().await;
    rig.watch();
    rig.step();
    let before = confirmed(&rig.api);
    for numbers in before.values() {
        rig.api.take(&format!("{PATH}/{}", numbers[0]));
    }
    rig.pods(&apps("shop", 0..1));
    rig.watch();
    rig.step();
    let again = async {
        while confirmed(&rig.api).is_empty() {
            let _ = timeout(Duration::from_millis(1), rig.identities.next()).await;
        }
    };
    timeout(PATIENCE, again).await.expect("an identity");
    assert_eq!(confirmed(&rig.api), BTreeMap::from([("app-0".to_owned(), before["app-0"].clone())]));
}

#[tokio::test]
async fn an_identity_that_an_agent_makes_is_held_and_a_mark_on_it_goes() {
    let mut rig = Rig::new(all()).await;
    rig.pods(&apps("shop", 0..1));
    rig.settle().await;
    let (path, object) = rig.api.all().into_iter().next().unwrap();
    let mut marked = object.clone();
    marked["metadata"]["annotations"] = json!({"io.cilium.heartbeat": "2026-11-30T00:00:00Z"});
    rig.api.put(&path, &marked);
    rig.api.writes();
    let mut next = rig.beside(all()).await;
    next.pods(&apps("shop", 0..1));
    next.settle().await;
    assert_eq!((next.count(State::Held), rig.api.writes()), (1, vec![format!("PATCH {path}")]));
    assert_eq!(rig.api.get(&path).unwrap()["metadata"]["annotations"], json!({}));
}

#[tokio::test]
async fn label_sets_that_the_api_server_refuses_do_not_keep_others_from_their_numbers() {
    let mut rig = Rig::new(all()).await;
    rig.api.deny(Some("kube-system"));
    rig.pods(&[apps("kube-system", 0..UNDER_WAY + 8), apps("shop", 0..5)].concat());
    timeout(PATIENCE, rig.settle()).await.expect("those that are refused hold no place");
    assert_eq!((rig.count(State::Held), rig.count(State::Refused)), (5, UNDER_WAY + 8));
    assert_eq!(rig.identities.allocator.free(), all().count() as usize - 5, "they keep no numbers");
    let troubles = rig.identities.troubles();
    let [Trouble { object, reason, message, .. }] = &troubles[..] else { panic!("{troubles:?}") };
    assert_eq!((object.as_str(), *reason), ("kube-system", "IdentitiesRefused"));
    assert!(message.starts_with("40 label sets") && message.contains("403"), "{message}");
    rig.api.deny(None);
    while rig.count(State::Held) < UNDER_WAY + 13 {
        let change = timeout(PATIENCE, rig.identities.next()).await.expect("a change");
        let now = rig.now();
        rig.identities.take(change, now);
    }
    assert_eq!(rig.identities.troubles(), []);
}

/// Two operators that both believe they lead, with watches that tell late, while pods come and go and identities vanish.
#[tokio::test]
async fn two_operators_make_no_duplicates() {
    for seed in 0..20 {
        let mut dice = Dice(seed);
        let range = NumberRange::narrowed(0, 300, 363).unwrap();
        let first = Rig::new(range).await;
        let second = first.beside(range).await;
        let mut rigs = [first, second];
        let mut pods = Vec::new();
        for _ in 0..60 {
            let rig = &mut rigs[dice.roll(2)];
            match dice.roll(6) {
                0 => {
                    let wanted = apps("shop", 0..40);
                    pods = wanted.into_iter().filter(|_| dice.roll(3) > 0).collect();
                }
                1 => rig.pods(&pods),
                2 => rig.watch(),
                3 => rig.step(),
                4 => {
                    let objects = rig.api.all();
                    if dice.roll(3) == 0
                        && let Some(path) = objects.keys().nth(dice.roll(objects.len().max(1)))
                    {
                        rig.api.take(path);
                    }
                }
                _ => {
                    for _ in 0..dice.roll(40) {
                        if let Ok(change) = timeout(Duration::from_micros(200), rig.identities.next()).await {
                            let now = rig.now();
                            rig.identities.take(change, now);
                        }
                    }
                }
            }
            let made = confirmed(&rigs[0].api);
            assert!(made.values().all(|numbers| numbers.len() == 1), "{seed}: {made:?}");
        }
        for rig in &mut rigs {
            rig.pods(&pods);
        }
        let at_rest = async {
            loop {
                for rig in &mut rigs {
                    rig.watch();
                    rig.step();
                    while let Ok(change) = timeout(Duration::from_millis(2), rig.identities.next()).await {
                        let now = rig.now();
                        rig.identities.take(change, now);
                    }
                }
                let made = confirmed(&rigs[0].api);
                assert!(made.values().all(|numbers| numbers.len() == 1), "{seed}: {made:?}");
                if pods.iter().all(|pod| made.contains_key(pod.strip_prefix("shop/").unwrap())) {
                    break;
                }
            }
        };
        if timeout(PATIENCE, at_rest).await.is_err() {
            let made = confirmed(&rigs[0].api);
            let missing: Vec<_> = pods.iter().filter(|pod| !made.contains_key(&pod[5..])).collect();
            let all = rigs[0].api.all();
            let states = rigs.each_ref().map(|rig| rig.identities.status());
            panic!("{seed}: {} {missing:?} {states:#?} {all:#?}", all.len());
        }
    }
}

#[tokio::test]
async fn a_preview_says_what_would_be_made_and_makes_nothing() {
    let mut rig = Rig::new(all()).await;
    rig.pods(&apps("shop", 0..2));
    let writes = preview(config(all()), &rig.observed);
    assert_eq!(writes.len(), 2);
    rig.settle().await;
    let made: Vec<_> = confirmed(&rig.api).into_values().flatten().collect();
    let mut planned: Vec<_> = writes.iter().map(|write| write.object.clone()).collect();
    planned.sort();
    let mut sorted = made.clone();
    sorted.sort();
    assert_eq!(planned, sorted);
    rig.watch();
    assert_eq!(preview(config(all()), &rig.observed), []);
}
