use std::time::Duration;

use portway_claims::fake_api::{FakeApi, uid};
use portway_model::k8s::{Manifests, Watched};
use tokio::time::timeout;

use super::super::objects::News;
use super::*;

const PATH: &str = "/apis/cilium.io/v2/ciliumnodes/a";

fn wanted() -> Wanted {
    Wanted {
        name: "a".to_owned(),
        node_uid: uid(0xa0),
        addresses: vec![NodeAddress { is_external: false, address: "192.0.2.1".parse().unwrap() }],
        health: vec!["10.0.1.5".parse().unwrap()],
        pod_cidrs: None,
        boot_id: "b1".to_owned(),
    }
}

async fn start() -> (FakeApi, NodeObject) {
    let (api, client) = FakeApi::start().await;
    (api, NodeObject::new(client, "a"))
}

async fn kept(object: &mut NodeObject) {
    let change = timeout(Duration::from_secs(20), object.next()).await.expect("a change");
    assert_eq!(change.news, News::Kept);
}

#[tokio::test]
async fn a_node_without_an_object_gets_one_and_a_restart_writes_nothing() {
    let (api, mut object) = start().await;
    object.set(wanted());
    kept(&mut object).await;
    let made = api.get(PATH).unwrap();
    assert_eq!(made["spec"]["addresses"], json!([{"type": "InternalIP", "ip": "192.0.2.1"}]));
    assert_eq!(
        (&made["spec"]["health"]["ipv4"], &made["spec"]["bootid"]),
        (&json!("10.0.1.5"), &json!("b1"))
    );
    assert_eq!(made["metadata"]["ownerReferences"][0]["kind"], "Node");
    assert_eq!(api.writes().len(), 1);
    let mut again = NodeObject::new(api.client().await, "a");
    again.set(wanted());
    kept(&mut again).await;
    assert_eq!(api.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn the_operators_prefixes_and_others_addresses_stay() {
    let (api, mut object) = start().await;
    let ipam = json!({"podCIDRs": ["10.0.1.0/24"], "pre-allocate": 8});
    api.put(PATH, &json!({"kind": "CiliumNode", "metadata": {"name": "a"}, "spec": {"ipam": ipam,
        "addresses": [{"type": "CiliumInternalIP", "ip": "10.0.1.9"}, {"type": "InternalIP", "ip": "192.0.2.7"}]}}));
    object.set(wanted());
    kept(&mut object).await;
    let spec = &api.get(PATH).unwrap()["spec"];
    assert_eq!(spec["ipam"], ipam);
    let addresses =
        json!([{"type": "InternalIP", "ip": "192.0.2.1"}, {"type": "CiliumInternalIP", "ip": "10.0.1.9"}]);
    assert_eq!(spec["addresses"], addresses);
    // Of Kubernetes' prefixes this agent is the one that writes them.
    object.set(Wanted { pod_cidrs: Some(vec![Prefix::parse("10.0.2.0/24").unwrap()]), ..wanted() });
    kept(&mut object).await;
    let spec = &api.get(PATH).unwrap()["spec"];
    assert_eq!(spec["ipam"], json!({"podCIDRs": ["10.0.2.0/24"], "pre-allocate": 8}));
}

#[tokio::test]
async fn what_somebody_changes_is_mended_and_an_echo_is_not_even_read() {
    let (api, mut object) = start().await;
    let mut manifests = Manifests::new();
    let mut tell = |object: &mut NodeObject, of: &Value| {
        let change = manifests.watched(ObjectKind::CiliumNode, Watched::Listed(&of.to_string()));
        change.events.iter().for_each(|event| object.observe(event));
    };
    object.set(wanted());
    kept(&mut object).await;
    let mut made = api.get(PATH).unwrap();
    tell(&mut object, &made);
    timeout(Duration::from_millis(200), object.next()).await.ok();
    assert_eq!((api.writes().len(), api.reads()), (1, 1));
    made["spec"]["health"] = json!({});
    api.put(PATH, &made);
    tell(&mut object, &made);
    timeout(Duration::from_millis(500), object.next()).await.ok();
    assert_eq!(api.writes(), [format!("PATCH {PATH}")]);
    assert_eq!(api.get(PATH).unwrap()["spec"]["health"]["ipv4"], "10.0.1.5");
}

#[tokio::test]
async fn a_field_that_the_server_does_not_keep_is_told_and_does_not_make_a_storm() {
    let (api, mut object) = start().await;
    api.drop_field("/spec/bootid");
    object.set(wanted());
    let change = timeout(Duration::from_secs(20), object.next()).await.expect("a change");
    let News::Obstacle(reason) = change.news else { panic!("{change:?}") };
    assert!(reason.contains("keeps it otherwise"), "{reason}");
    timeout(Duration::from_millis(700), object.next()).await.ok();
    assert!(api.writes().len() <= 3, "a pause between writes");
}
