use portway_claims::fake_api::{FakeApi, uid};
use portway_cni::protocol::PodName;
use portway_model::cluster::{Cluster, PodCidrs};
use portway_model::identity::Right;
use portway_model::k8s::{Event, Format, Names, Namespace, Object, ObjectKey, ObjectKind, decode};
use portway_model::labels::LabelFilter;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::config::{Invocation, load};
use crate::endpoints::tests::{end_the_one_pod, is_announced, of_one_pod};

/// What a turn is made of, with one pod that runs: shop/web, endpoint 7.
struct Rig {
    api: FakeApi,
    dir: TempDir,
    endpoints: Endpoints,
    pods: Pods,
    follow: Follow,
    allocator: Allocator,
    writes: Option<Writes>,
}

impl Rig {
    fn new(allocator: Allocator, identity: Option<EndpointIdentity>) -> Self {
        let pod = PodName { namespace: "shop".to_owned(), name: "web".to_owned(), uid: uid(0xa1) };
        let (dir, endpoints) = of_one_pod(pod, identity);
        let pods = Pods::new(endpoints.clone(), Ipcache::new(true, false), Duration::from_secs(5));
        let mut follow = Follow::new(LabelFilter::default(), "default".to_owned(), "node-1".into(), true);
        follow.synced.pods = true;
        follow.apply(&Event::Apply(Object::Namespace(Namespace::implied(&"shop".into()).into())));
        Self { api: FakeApi::default(), dir, endpoints, pods, follow, allocator, writes: None }
    }

    /// Every label set has a number at once.
    fn alone(identity: Option<EndpointIdentity>) -> Self {
        Self::new(Allocator::alone(0), identity)
    }

    /// Numbers come from an API server that nobody asks, and objects are written to it.
    async fn with_api() -> Self {
        let (api, client) = FakeApi::start().await;
        let arguments = ["--source-dir=/m", "--cgroup-root=/c", "--enable-pod-network=true"];
        let invocation = Invocation { arguments: arguments.map(Into::into).into(), ..Invocation::default() };
        let config = load(invocation).unwrap().config;
        let writes = Writes::new(&client, &config, config.pod_network.as_ref().unwrap());
        Self { api, writes: Some(writes), ..Self::alone(None) }
    }

    /// Other nodes reach this one.
    fn reach(&mut self) {
        let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}"#;
        let node = decode(node.as_bytes(), Format::Json, &mut Names::default()).unwrap().objects.remove(0);
        let mut cluster = Cluster::new("node-1".into(), PodCidrs::Node);
        cluster.apply(&Event::Apply(node));
        self.writes.as_mut().unwrap().follow(cluster.view());
    }

    fn labelled(&mut self, app: &str, uid: &str) -> Labels {
        let pod = Pod {
            name: "shop/web".into(),
            uid: uid.into(),
            created: Some(1),
            node: Some("node-1".into()),
            live: true,
            ips: Box::default(),
            host_ports: Box::default(),
            labels: Box::new([("app".into(), app.into())]),
            service_account: Some("default".into()),
            annotations: Box::default(),
        };
        self.follow.apply(&Event::Apply(Object::Pod(pod.into())));
        let who = self.follow.who(&self.endpoints.get(7).unwrap().pod);
        let Who::Labelled { labels, .. } = who else { panic!("{who:?}") };
        labels
    }

    fn gone(&mut self, kind: ObjectKind, name: &str) {
        self.follow.apply(&Event::Delete(ObjectKey { kind, name: name.into(), uid: "".into() }));
    }

    fn turn(&mut self) -> Turn {
        self.turn_at(Instant::now())
    }

    fn turn_at(&mut self, now: Instant) -> Turn {
        let Self { pods, follow, allocator, writes, .. } = self;
        pods.turn(follow, allocator, writes, now)
    }

    /// What its pod is told.
    fn troubles(&mut self) -> Vec<String> {
        self.turn().troubles.into_iter().map(|trouble| trouble.reason).collect()
    }

    fn number(&self) -> NumericIdentity {
        self.endpoints.get(7).unwrap().identity.unwrap().number()
    }
}

fn identity(app: &str) -> EndpointIdentity {
    let labels = Labels::new([portway_model::labels::Label::new("k8s", "app", app)]);
    EndpointIdentity::new(NumericIdentity::new(300), &labels)
}

#[tokio::test]
async fn why_changed_labels_have_no_number_is_told_once_with_the_identity_that_stays() {
    let (_, client) = FakeApi::start().await;
    let allocator = Allocator::from_api(client, Right::Wait, 0);
    let mut rig = Rig::new(allocator, Some(identity("before")));
    let labels = rig.labelled("after", &uid(0xa1));
    assert_eq!(rig.troubles(), Vec::<String>::new());
    rig.pods.told(Change { labels, news: News::Obstacle("no number is free".to_owned()) });
    let expected = "it keeps identity 300 until its labels have a number: no number is free";
    assert_eq!(rig.troubles(), [expected]);
    assert_eq!((rig.troubles(), rig.troubles()), (vec![], vec![]), "each turn of the same");
    assert_eq!(rig.number(), NumericIdentity::new(300));
}

#[tokio::test]
async fn why_a_label_set_has_no_number_is_forgotten_with_its_last_pod() {
    let (_, client) = FakeApi::start().await;
    let mut rig = Rig::new(Allocator::from_api(client, Right::Wait, 0), None);
    let labels = rig.labelled("web", &uid(0xa1));
    rig.turn();
    rig.pods.told(Change { labels, news: News::Obstacle("no number is free".to_owned()) });
    assert_eq!(rig.troubles(), ["its network waits for its identity: no number is free"]);
    assert_eq!(rig.pods.obstacles.len(), 1);
    end_the_one_pod(&rig.endpoints);
    rig.turn();
    assert_eq!(rig.pods.obstacles.len(), 0);
}

#[test]
fn the_number_from_before_a_change_of_labels_stays_claimed_for_the_grace_and_no_longer() {
    let mut rig = Rig::alone(None);
    let (before, began) = (rig.labelled("before", &uid(0xa1)), Instant::now());
    rig.turn_at(began);
    let after = rig.labelled("after", &uid(0xa1));
    rig.turn_at(began);
    let is_claimed = |rig: &Rig, labels: &Labels| rig.allocator.place(labels).is_some();
    let until = began + Duration::from_secs(5);
    assert_eq!(rig.pods.due(), Some(until));
    rig.turn_at(until - Duration::from_millis(1));
    assert!(is_claimed(&rig, &before) && is_claimed(&rig, &after));
    rig.turn_at(until);
    assert!(!is_claimed(&rig, &before) && is_claimed(&rig, &after));
    assert_eq!(rig.pods.due(), None);
}

#[test]
fn an_identity_that_the_record_did_not_take_is_written_again() {
    let mut rig = Rig::alone(Some(identity("before")));
    rig.labelled("after", &uid(0xa1));
    let records = rig.dir.path().join("endpoints");
    std::fs::remove_dir_all(&records).unwrap();
    assert!(rig.turn().failed);
    std::fs::create_dir(&records).unwrap();
    assert!(!rig.turn().failed);
    let record: Endpoint = serde_json::from_slice(&std::fs::read(records.join("7.json")).unwrap()).unwrap();
    assert_eq!(record.identity.unwrap().number(), rig.number());
    assert_ne!(rig.number(), NumericIdentity::new(300));
}

#[tokio::test]
async fn a_pod_that_is_deleted_while_it_starts_waits_for_nobody_to_be_told() {
    let mut rig = Rig::with_api().await;
    rig.labelled("web", &uid(0xa1));
    rig.turn();
    // Where other nodes reach this one is not known yet.
    assert!(!is_announced(&rig.endpoints));
    rig.gone(ObjectKind::Pod, "shop/web");
    rig.turn();
    assert!(is_announced(&rig.endpoints));
}

#[tokio::test]
async fn a_pod_whose_namespace_is_not_known_is_not_gone() {
    let mut rig = Rig::with_api().await;
    rig.reach();
    rig.labelled("web", &uid(0xa1));
    rig.turn();
    assert!(rig.pods.by_id[&7].written.is_some());
    rig.gone(ObjectKind::Namespace, "shop");
    rig.turn();
    assert!(rig.pods.by_id[&7].written.is_some());
    rig.gone(ObjectKind::Pod, "shop/web");
    rig.turn();
    assert_eq!(rig.pods.by_id[&7].written, None);
}

#[tokio::test]
async fn a_pod_of_a_file_that_has_no_uid_is_not_written_to_the_api_server() {
    let mut rig = Rig::with_api().await;
    rig.reach();
    rig.labelled("web", "");
    rig.turn();
    assert_eq!(rig.pods.by_id[&7].written, None);
    assert!(is_announced(&rig.endpoints));
}

#[tokio::test]
async fn the_object_of_a_pod_that_ended_while_no_agent_ran_is_removed() {
    let mut rig = Rig::with_api().await;
    rig.reach();
    let path = |name: &str| format!("/apis/cilium.io/v2/namespaces/shop/ciliumendpoints/{name}");
    for (name, pod, phase) in [("ended", 0xb1, "Succeeded"), ("runs", 0xb2, "Running")] {
        let mut endpoint = json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint",
            "metadata": {"name": name, "namespace": "shop", "ownerReferences": [{"kind": "Pod", "uid": uid(pod)}]},
            "status": {"networking": {"addressing": [{"ipv4": "10.0.0.9"}], "node": "192.0.2.1"}},
        });
        endpoint["metadata"]["uid"] = json!(rig.api.put(&path(name), &endpoint));
        rig.writes.as_mut().unwrap().observe(&applied(&endpoint));
        let metadata = json!({"name": name, "namespace": "shop", "uid": uid(pod)});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"nodeName": "node-1"}, "status": {"phase": phase}});
        rig.follow.apply(&applied(&pod));
    }
    rig.turn();
    rig.follow.synced.endpoints = true;
    rig.turn();
    let writes = rig.writes.as_mut().unwrap();
    let tried = tokio::time::timeout(Duration::from_secs(20), writes.next()).await.expect("a request");
    assert_eq!((tried.pod.as_str(), tried.obstacle), ("shop/ended", None));
    assert_eq!((rig.api.get(&path("ended")), rig.api.get(&path("runs")).is_some()), (None, true));
    assert_eq!(rig.api.writes(), [format!("DELETE {}", path("ended"))]);
}

fn applied(object: &serde_json::Value) -> Event {
    let mut decoded = decode(object.to_string().as_bytes(), Format::Json, &mut Names::default()).unwrap();
    Event::Apply(decoded.objects.remove(0))
}
