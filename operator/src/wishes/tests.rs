use portway_runtime::kubernetes::WatchEvent;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::*;
use crate::observed::Kind;

fn rules() -> Rules {
    Rules {
        filter: LabelFilter::default(),
        cluster_name: "default".to_owned(),
        namespace: "portway".to_owned(),
    }
}

fn pod(name: &str, app: &str, created: &str) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    let uid = format!("{namespace}-{name}");
    json!({
        "metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": {"app": app},
            "creationTimestamp": created},
        "spec": {"serviceAccountName": "default"},
        "status": {"phase": "Running"},
    })
}

fn namespace(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/metadata.name": name}}})
}

fn tell(observed: &mut Observed, kind: Kind, objects: &[Value]) {
    let version = observed.version(kind) + 1;
    let raw = |object: &Value| RawValue::from_string(object.to_string()).unwrap();
    observed.take(kind, WatchEvent::ListBegins);
    observed.take(kind, WatchEvent::Listed(objects.iter().map(raw).collect()));
    observed.take(kind, WatchEvent::ListEnds { version });
}

fn wishes(pods: &[Value], namespaces: &[Value]) -> (Observed, Wishes) {
    let mut observed = Observed::default();
    tell(&mut observed, Kind::Pod, pods);
    tell(&mut observed, Kind::Namespace, namespaces);
    let mut wishes = Wishes::new(rules());
    wishes.update(&observed);
    (observed, wishes)
}

fn apps(wishes: &Wishes) -> Vec<(String, Wish)> {
    let app = |labels: &Labels| labels.get("k8s", "app").unwrap().to_string();
    let mut apps: Vec<_> = wishes.iter().map(|(labels, wish)| (app(labels), *wish)).collect();
    apps.sort_by(|a, b| a.0.cmp(&b.0));
    apps
}

const OLD: &str = "1970-01-01T00:00:10Z";
const NEW: &str = "1970-01-01T00:00:20Z";

#[test]
fn pods_with_the_same_labels_are_one_wish_since_the_oldest() {
    let pods = [pod("shop/a", "web", NEW), pod("shop/b", "web", OLD), pod("shop/c", "db", NEW)];
    let (_, wishes) = wishes(&pods, &[namespace("shop")]);
    let ordinary = |since, pods| Wish { urgency: Urgency::Ordinary, since, pods };
    let expected = [("db".to_owned(), ordinary(20, 1)), ("web".to_owned(), ordinary(10, 2))];
    assert_eq!(apps(&wishes), expected);
    let (labels, _) = wishes.iter().next().unwrap();
    let text = labels.to_string();
    let parts = [
        "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop",
        "k8s:io.cilium.k8s.policy.cluster=default",
        "k8s:io.cilium.k8s.policy.serviceaccount=default",
        "k8s:io.kubernetes.pod.namespace=shop",
    ];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn who_has_no_endpoint_wishes_nothing() {
    let mut of_host = pod("shop/a", "host", OLD);
    of_host["spec"]["hostNetwork"] = json!(true);
    let mut over = pod("shop/b", "over", OLD);
    over["status"]["phase"] = json!("Succeeded");
    let mut leaving = pod("shop/c", "leaving", OLD);
    leaving["metadata"]["deletionTimestamp"] = json!(NEW);
    let lost = pod("nowhere/d", "lost", OLD);
    let (_, wishes) = wishes(&[of_host, over, leaving, lost], &[namespace("shop")]);
    let apps: Vec<_> = apps(&wishes).into_iter().map(|(app, _)| app).collect();
    assert_eq!(apps, ["leaving"], "one that is being deleted has its endpoint still");
}

#[test]
fn system_namespaces_go_before_priority_and_those_before_others() {
    let pods = [pod("shop/a", "a", OLD), pod("kube-system/b", "b", NEW), pod("portway/c", "c", NEW)];
    let pods = [&pods[..], &[pod("fast/d", "d", NEW)]].concat();
    let mut fast = namespace("fast");
    fast["metadata"]["annotations"] = json!({"cilium.io/ces-namespace": "priority"});
    let (_, wishes) =
        wishes(&pods, &[namespace("shop"), namespace("kube-system"), namespace("portway"), fast]);
    let urgencies: Vec<_> = apps(&wishes).into_iter().map(|(_, wish)| wish.urgency).collect();
    assert_eq!(urgencies, [Urgency::Ordinary, Urgency::System, Urgency::System, Urgency::Priority]);
}

#[test]
fn changed_labels_of_pods_and_namespaces_are_seen() {
    let (mut observed, mut wishes) = wishes(&[pod("shop/a", "web", OLD)], &[namespace("shop")]);
    let first = wishes.iter().next().unwrap().0.clone();
    assert!(!wishes.is_behind(&observed));
    tell(&mut observed, Kind::Pod, &[pod("shop/a", "db", OLD)]);
    assert!(wishes.is_behind(&observed));
    wishes.update(&observed);
    assert_eq!(apps(&wishes)[0].0, "db");
    let mut labelled = namespace("shop");
    labelled["metadata"]["labels"]["team"] = json!("red");
    tell(&mut observed, Kind::Namespace, &[labelled]);
    tell(&mut observed, Kind::Pod, &[pod("shop/a", "web", OLD)]);
    wishes.update(&observed);
    assert_eq!(wishes.len(), 1);
    assert!(wishes.get(&first).is_none(), "the namespace has another label");
    tell(&mut observed, Kind::Pod, &[]);
    wishes.update(&observed);
    assert!(wishes.is_empty() && wishes.by_pod.is_empty());
}
