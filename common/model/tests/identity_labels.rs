//! 203 pods and namespaces as a Kubernetes 1.37 control plane gave them (`labels/recorded.json`: its controllers made the
//! pods of some hundred workloads as charts and operators write them; every third pod was bound to a node with a zone), and
//! which of their labels make identities, as a table written by hand says (`labels/table.txt`).

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portway_model::k8s::{Format, Names, Namespace, Object, Pod, decode};
use portway_model::labels::{LabelFilter, Labels, security_labels};

const RECORDED: &str = include_str!("labels/recorded.json");
const TABLE: &str = include_str!("labels/table.txt");
const PREFIXES: &str = include_str!("labels/prefixes.json");
const CLUSTER: &str = "default";
/// The columns of the table.
const COLUMNS: [&str; 5] = ["default", "include", "team", "exclude", "file"];

fn filters() -> [LabelFilter; 5] {
    [
        LabelFilter::default(),
        LabelFilter::parse(r"k8s:io\.kubernetes\.pod\.namespace k8s:k8s-app k8s:app k8s:name").unwrap(),
        LabelFilter::parse("k8s:team").unwrap(),
        LabelFilter::parse("k8s:!controller-uid k8s:!job-name").unwrap(),
        LabelFilter::from_file(PREFIXES).unwrap(),
    ]
}

/// By key, whether each column has it.
fn table() -> BTreeMap<&'static str, [bool; 5]> {
    let mut table = BTreeMap::new();
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_ascii_whitespace();
        let columns = COLUMNS.map(|column| match words.next() {
            Some("yes") => true,
            Some("no") => false,
            other => panic!("{line}: {column} is {other:?}"),
        });
        let key = words.next().unwrap_or_else(|| panic!("{line}: no key"));
        // A reason follows a colon, which is in no key.
        assert_eq!(table.insert(key.trim_end_matches(':'), columns), None, "{line}: twice");
    }
    table
}

type Namespaces = BTreeMap<Arc<str>, Arc<Namespace>>;

fn recorded() -> (Namespaces, Vec<Arc<Pod>>) {
    let decoded = decode(RECORDED.as_bytes(), Format::Json, &mut Names::default()).unwrap();
    assert_eq!(decoded.rejects, []);
    let (mut namespaces, mut pods) = (BTreeMap::new(), Vec::new());
    for object in decoded.objects {
        if let Object::Pod(pod) = object {
            pods.push(pod);
        } else if let Object::Namespace(namespace) = object {
            namespaces.insert(Arc::clone(&namespace.name), namespace);
        }
    }
    (namespaces, pods)
}

fn labels_of(pod: &Pod, namespaces: &Namespaces, filter: &LabelFilter) -> Labels {
    let namespace = pod.name.split_once('/').unwrap().0;
    let account = pod.service_account.as_deref().unwrap_or("");
    security_labels(filter, &pod.labels, namespace, &namespaces[namespace].labels, account, CLUSTER)
}

/// What the recorded text says of a pod, read without Portway's decoder: every label that an identity may have.
fn said(text: &str) -> (String, BTreeMap<String, String>) {
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    let at = |pointer: &str| value.pointer(pointer).and_then(serde_json::Value::as_str).map(str::to_owned);
    let map = |pointer: &str| {
        let map = value.pointer(pointer).and_then(serde_json::Value::as_object).into_iter().flatten();
        map.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
    };
    let mut labels: BTreeMap<String, String> = map("/metadata/labels");
    let name = at("/metadata/name").unwrap();
    let Some(namespace) = at("/metadata/namespace") else { return (name, labels) };
    labels.retain(|key, _| !key.starts_with("io.cilium.k8s"));
    labels.insert("io.kubernetes.pod.namespace".into(), namespace.clone());
    labels.insert("io.cilium.k8s.policy.cluster".into(), CLUSTER.into());
    let account = at("/spec/serviceAccountName");
    labels.extend(account.map(|account| ("io.cilium.k8s.policy.serviceaccount".to_owned(), account)));
    (format!("{namespace}/{name}"), labels)
}

#[test]
fn identities_of_200_recorded_pods_and_namespaces_are_those_of_the_table() {
    let (table, (namespaces, pods)) = (table(), recorded());
    assert!(namespaces.len() + pods.len() >= 200, "{} and {}", namespaces.len(), pods.len());
    let said: BTreeMap<_, _> = RECORDED.lines().map(said).collect();
    let mut used = BTreeSet::new();
    let filters = filters();
    for pod in &pods {
        let mut all = said[&*pod.name].clone();
        let of_namespace = &said[pod.name.split_once('/').unwrap().0];
        all.extend(
            of_namespace
                .iter()
                .map(|(key, value)| (format!("io.cilium.k8s.namespace.labels.{key}"), value.clone())),
        );
        for (column, filter) in filters.iter().enumerate() {
            let expected = all.iter().filter(|(key, _)| {
                let (key, columns) =
                    table.get_key_value(key.as_str()).unwrap_or_else(|| panic!("no row for {key}"));
                used.insert(*key);
                columns[column]
            });
            let expected: Vec<String> = expected
                .map(|(key, value)| format!("k8s:{key}{}{value}", if value.is_empty() { "" } else { "=" }))
                .collect();
            let labels = labels_of(pod, &namespaces, filter);
            let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
            assert_eq!(labels, expected, "{} with {}", pod.name, COLUMNS[column]);
        }
    }
    // Namespaces without pods have labels that the table names, too.
    for (name, namespace) in &namespaces {
        let read: BTreeMap<_, _> =
            namespace.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        assert_eq!(read, said[&**name], "{name}");
        for key in read.into_keys() {
            let key = format!("io.cilium.k8s.namespace.labels.{key}");
            let (key, columns) =
                table.get_key_value(key.as_str()).unwrap_or_else(|| panic!("no row for {key}"));
            used.insert(*key);
            let kept: Vec<bool> = filters.iter().map(|filter| filter.lets_through("k8s", key)).collect();
            assert_eq!(kept, columns, "{key}");
        }
    }
    let unused: Vec<_> = table.keys().filter(|key| !used.contains(*key)).collect();
    assert!(unused.is_empty(), "rows that no object has: {unused:?}");
}

#[test]
fn some_identities_are_written_out() {
    let (namespaces, pods) = recorded();
    let filter = LabelFilter::default();
    let labels = |name: &str| {
        let pod = pods.iter().find(|pod| &*pod.name == name).unwrap_or_else(|| panic!("no {name}"));
        labels_of(pod, &namespaces, &filter).to_string()
    };
    assert_eq!(
        labels("data/etcd-main-1"),
        "k8s:app=etcd,k8s:etcd_cluster=main,k8s:io.cilium.k8s.namespace.labels.k8s.io/description=databases,\
         k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=data,\
         k8s:io.cilium.k8s.namespace.labels.scheduler.alpha.kubernetes.io/class=slow,\
         k8s:io.cilium.k8s.policy.cluster=default,k8s:io.cilium.k8s.policy.serviceaccount=default,\
         k8s:io.kubernetes.pod.namespace=data"
    );
    let tenant = "k8s:io.cilium.k8s.namespace.labels.capsule.clastix.io/tenant=seven,\
                  k8s:io.cilium.k8s.namespace.labels.env=prod,\
                  k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=tenant-7,\
                  k8s:io.cilium.k8s.namespace.labels.kubernetes.io/tenant=seven,k8s:io.cilium.k8s.policy.cluster=default";
    assert_eq!(
        labels("tenant-7/db-1"),
        format!(
            "k8s:app=db,k8s:env=prod,{tenant},k8s:io.cilium.k8s.policy.serviceaccount=default,\
             k8s:io.kubernetes.pod.namespace=tenant-7"
        )
    );
    // It says that it were of another namespace, cluster and account.
    assert_eq!(
        labels("tenant-7/liar"),
        format!(
            "k8s:app=api,k8s:env=prod,{tenant},k8s:io.cilium.k8s.policy.serviceaccount=api,k8s:io.cilium.other=kept,\
             k8s:io.kubernetes.pod.namespace=tenant-7"
        )
    );
    // What is ignored makes no other identity.
    assert_eq!(labels("legacy/only-ignored"), labels("legacy/nothing"));
    assert_eq!(labels("shop/redis-cart-0"), labels("shop/redis-cart-1"));
}
