use std::time::Duration;

use portway_claims::fake_api::{FakeApi, uid};
use portway_datapath::NumericIdentity;
use portway_model::k8s::{ObjectKey, Watched};
use portway_model::labels::{Label, Labels};
use tokio::time::timeout;

use super::*;

const PATH: &str = "/apis/cilium.io/v2/namespaces/shop/ciliumendpoints/web-0";
const POST: &str = "POST /apis/cilium.io/v2/namespaces/shop/ciliumendpoints";
/// Of pods; objects have small numbers.
const POD: u64 = 0xa1;
const OTHER_POD: u64 = 0xa2;

fn wanted(pod: u64, number: u32) -> Wanted {
    let labels =
        Labels::new([Label::new("k8s", "app", "web"), Label::new("k8s", SERVICE_ACCOUNT, "shopper")]);
    Wanted {
        namespace: "shop".to_owned(),
        pod: "web-0".to_owned(),
        pod_uid: uid(pod),
        pod_created: Some(1000),
        container: "c1".to_owned(),
        endpoint_id: 211,
        addresses: vec!["10.0.1.200".parse().unwrap(), "fd00::c8".parse().unwrap()],
        node: Some("192.0.2.1".parse().unwrap()),
        identity: EndpointIdentity::new(NumericIdentity::new(number), &labels),
    }
}

struct Rig {
    api: FakeApi,
    objects: EndpointObjects,
    /// Turns texts into events as the owner does.
    manifests: k8s::Manifests,
}

impl Rig {
    async fn start(is_watched: bool) -> Self {
        let (api, client) = FakeApi::start().await;
        let mut objects = EndpointObjects::new(client, is_watched);
        objects.set_node(Some("192.0.2.1".parse().unwrap()));
        Self { api, objects, manifests: k8s::Manifests::new() }
    }

    /// Its pod's object is written, as that of a new one.
    async fn with_object() -> Self {
        let mut rig = Self::start(true).await;
        rig.objects.set_synced();
        rig.objects.set(wanted(POD, 300), true);
        assert_eq!(rig.next().await, News::Kept);
        rig
    }

    async fn next(&mut self) -> News {
        let change = timeout(Duration::from_secs(20), self.objects.next()).await.expect("a change");
        assert_eq!(change.name, "shop/web-0");
        change.news
    }

    async fn obstacle(&mut self) -> String {
        let News::Obstacle(reason) = self.next().await else { panic!("an obstacle") };
        reason
    }

    /// What the watch told of is mended, if it is to be.
    async fn mends(&mut self) {
        timeout(Duration::from_millis(500), self.objects.next()).await.ok();
    }

    /// Nothing is under way.
    async fn rests(&mut self) {
        let change = timeout(Duration::from_millis(200), self.objects.next()).await;
        assert!(change.is_err(), "{change:?}");
    }

    /// The watch tells what is there now.
    fn told(&mut self) {
        let object = self.api.get(PATH).expect("an object");
        self.told_of(&object);
    }

    fn told_of(&mut self, object: &Value) {
        let change = self.manifests.watched(ObjectKind::CiliumEndpoint, Watched::Listed(&object.to_string()));
        change.events.iter().for_each(|event| self.objects.observe(event));
    }

    fn told_gone(&mut self) {
        self.objects.observe(&Event::Delete(ObjectKey {
            kind: ObjectKind::CiliumEndpoint,
            name: Arc::from("shop/web-0"),
            uid: Arc::from(""),
        }));
    }
}

/// As another agent has written it.
fn of_pod(pod: u64, number: u32) -> Value {
    json!(wanted(pod, number).object())
}

/// That was made after the pod that is wanted.
fn of_newer_pod() -> Value {
    let mut object = of_pod(OTHER_POD, 301);
    object["metadata"]["creationTimestamp"] = json!("1970-01-01T00:16:41Z");
    object
}

#[tokio::test]
async fn a_new_pods_object_is_written_once_and_says_who_has_its_addresses() {
    let mut rig = Rig::with_object().await;
    let object = rig.api.get(PATH).unwrap();
    let expected = json!({
        "id": 211,
        "state": "ready",
        "identity": {"id": 300, "labels": ["k8s:app=web", "k8s:io.cilium.k8s.policy.serviceaccount=shopper"]},
        "networking": {"addressing": [{"ipv4": "10.0.1.200", "ipv6": "fd00::c8"}], "node": "192.0.2.1"},
        "external-identifiers": {
            "container-id": "c1", "k8s-namespace": "shop", "k8s-pod-name": "web-0", "pod-name": "shop/web-0",
        },
        "encryption": {},
        "service-account": "shopper",
    });
    assert_eq!(object["status"], expected);
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": uid(POD)}]);
    assert_eq!(object["metadata"]["ownerReferences"], owner);
    // What is told of it, and what is said again, is nothing new.
    rig.told();
    rig.objects.set(wanted(POD, 300), false);
    assert_eq!(rig.next().await, News::Kept);
    rig.rests().await;
    assert_eq!((rig.api.writes(), rig.api.reads()), (vec![POST.to_owned()], 0));
}

#[tokio::test]
async fn a_changed_identity_is_patched_into_the_same_object() {
    let mut rig = Rig::with_object().await;
    let mut before = rig.api.get(PATH).unwrap();
    rig.objects.set(wanted(POD, 301), false);
    assert_eq!(rig.next().await, News::Kept);
    let after = rig.api.get(PATH).unwrap();
    before["metadata"]["resourceVersion"] = after["metadata"]["resourceVersion"].clone();
    assert_eq!(after["metadata"], before["metadata"]);
    assert_eq!(after["status"]["identity"]["id"], 301);
    assert_eq!(rig.api.writes(), [POST.to_owned(), format!("PATCH {PATH}")]);
}

#[tokio::test]
async fn after_a_restart_nothing_is_written_where_nothing_changed() {
    let mut rig = Rig::start(true).await;
    rig.api.put(PATH, &of_pod(POD, 300));
    // Before everything is told nobody knows what is there.
    rig.objects.set(wanted(POD, 300), false);
    rig.rests().await;
    rig.told();
    rig.objects.set_synced();
    assert_eq!(rig.next().await, News::Kept);
    assert_eq!((rig.api.writes(), rig.api.reads()), (Vec::<String>::new(), 0));
    // Without a watch it is read.
    let mut rig = Rig::start(false).await;
    rig.api.put(PATH, &of_pod(POD, 300));
    rig.objects.set(wanted(POD, 300), false);
    assert_eq!(rig.next().await, News::Kept);
    assert_eq!((rig.api.writes(), rig.api.reads()), (Vec::<String>::new(), 1));
}

#[tokio::test]
async fn an_object_of_the_same_pod_is_taken_over_with_what_others_wrote_into_it() {
    let mut rig = Rig::start(false).await;
    let mut object = of_pod(POD, 299);
    object["status"]["policy"] = json!({"ingress": {"state": "<status disabled>"}});
    let before = rig.api.put(PATH, &object);
    rig.objects.set(wanted(POD, 300), false);
    assert_eq!(rig.next().await, News::Kept);
    let after = rig.api.get(PATH).unwrap();
    assert_eq!(after["metadata"]["uid"], json!(before));
    assert_eq!(after["status"]["policy"], object["status"]["policy"]);
    assert_eq!(after["status"]["identity"]["id"], 300);
}

/// cilium/cilium#27123: the agent of the pod before deletes late, and must not hit the new object.
#[tokio::test]
async fn a_predecessor_of_the_same_name_is_replaced_and_its_late_delete_hits_nothing() {
    let (mut new, mut old) = (Rig::start(true).await, Rig::start(true).await);
    // Another node's agent has a client of its own.
    old.objects = EndpointObjects::new(new.api.client().await, true);
    old.objects.set_synced();
    old.objects.set(wanted(OTHER_POD, 299), true);
    assert_eq!(old.next().await, News::Kept);
    // The pod comes again, on another node, whose agent has not been told of the object yet.
    new.objects.set_synced();
    new.objects.set(wanted(POD, 300), true);
    assert_eq!(new.next().await, News::Kept);
    let object = new.api.get(PATH).unwrap();
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], json!(uid(POD)));
    // The old agent, which knows its own object still, deletes at last.
    old.objects.remove("shop", "web-0", &uid(OTHER_POD));
    assert_eq!(old.next().await, News::Kept);
    assert_eq!(new.api.get(PATH), Some(object));
}

/// Its own Pod is gone, and the watch of Pods has not told it yet.
#[tokio::test]
async fn the_object_of_a_newer_pod_of_the_name_stays_until_it_goes_by_itself() {
    let mut rig = Rig::with_object().await;
    rig.told();
    rig.api.writes();
    rig.api.put(PATH, &of_newer_pod());
    let newer = rig.api.get(PATH);
    rig.told();
    let reason = rig.obstacle().await;
    assert!(reason.contains(&uid(OTHER_POD)), "{reason}");
    rig.rests().await;
    assert_eq!((rig.api.get(PATH), rig.api.writes()), (newer, Vec::new()));
    // It was gone first: what waits does not wait for its pause.
    rig.api.take(PATH);
    rig.told_gone();
    assert_eq!(rig.next().await, News::Kept);
    assert_eq!(rig.api.writes(), [POST]);
}

#[tokio::test]
async fn a_pod_that_waits_for_a_newer_one_ends_without_touching_its_object() {
    let mut rig = Rig::start(false).await;
    rig.api.put(PATH, &of_newer_pod());
    rig.objects.set(wanted(POD, 300), false);
    rig.obstacle().await;
    rig.objects.remove("shop", "web-0", &uid(POD));
    assert_eq!(rig.next().await, News::Kept);
    rig.rests().await;
    assert_eq!((rig.api.get(PATH).is_some(), rig.api.writes()), (true, Vec::new()));
}

#[tokio::test]
async fn an_object_goes_with_its_pod() {
    let mut rig = Rig::with_object().await;
    // A late word of another pod of the name changes nothing.
    rig.objects.remove("shop", "web-0", &uid(OTHER_POD));
    rig.rests().await;
    rig.objects.remove("shop", "web-0", &uid(POD));
    assert_eq!(rig.next().await, News::Kept);
    assert_eq!(rig.api.get(PATH), None);
    // The garbage collector was first.
    rig.objects.set(wanted(POD, 300), true);
    assert_eq!(rig.next().await, News::Kept);
    rig.api.take(PATH);
    rig.objects.remove("shop", "web-0", &uid(POD));
    assert_eq!(rig.next().await, News::Kept);
    rig.rests().await;
}

#[tokio::test]
async fn an_object_that_somebody_deletes_or_changes_is_mended() {
    let mut rig = Rig::with_object().await;
    rig.told();
    rig.api.writes();
    rig.api.take(PATH);
    rig.told_gone();
    rig.mends().await;
    assert_eq!(rig.api.writes(), [POST]);
    let mut object = rig.api.get(PATH).unwrap();
    object["status"]["identity"]["id"] = json!(7);
    let uid = rig.api.put(PATH, &object);
    rig.told();
    rig.mends().await;
    let mended = rig.api.get(PATH).unwrap();
    assert_eq!((&mended["metadata"]["uid"], &mended["status"]["identity"]["id"]), (&json!(uid), &json!(300)));
}

#[tokio::test]
async fn old_news_of_an_object_makes_no_write() {
    let mut rig = Rig::with_object().await;
    let old = rig.api.get(PATH).unwrap();
    rig.objects.set(wanted(POD, 301), false);
    assert_eq!(rig.next().await, News::Kept);
    rig.api.writes();
    // The watch is behind.
    rig.told_of(&old);
    rig.mends().await;
    assert_eq!((rig.api.writes(), rig.api.reads()), (Vec::<String>::new(), 1));
}

#[tokio::test]
async fn that_an_object_was_as_it_shall_no_more_be_is_not_told() {
    let mut rig = Rig::with_object().await;
    // It is as it shall be, which nobody took notice of before it shall be another one.
    rig.objects.set(wanted(POD, 300), false);
    rig.objects.set(wanted(POD, 301), false);
    assert_eq!(rig.next().await, News::Kept);
    assert_eq!(rig.api.get(PATH).unwrap()["status"]["identity"]["id"], 301);
}

#[tokio::test]
async fn a_refused_write_is_told_and_tried_again() {
    let mut rig = Rig::start(true).await;
    rig.objects.set_synced();
    rig.api.refuse(&[403, 500]);
    rig.objects.set(wanted(POD, 300), true);
    let reason = rig.obstacle().await;
    assert!(reason.contains("403"), "{reason}");
    let reason = rig.obstacle().await;
    assert!(reason.contains("500"), "{reason}");
    assert_eq!(rig.next().await, News::Kept);
    assert_eq!(rig.api.get(PATH).unwrap()["status"]["identity"]["id"], 300);
}
