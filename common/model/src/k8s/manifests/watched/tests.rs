use std::path::Path;

use super::super::tests::told;
use super::{Manifests, Watched, uid_number, uid_text};
use crate::k8s::{Change, ObjectKind};

fn service(name: &str, last: u8, version: u64) -> String {
    format!(
        r#"{{"metadata": {{"name": "{name}", "namespace": "ns", "resourceVersion": "{version}",
            "uid": "00000000-0000-4000-8000-0000000000{last:02x}"}},
            "spec": {{"clusterIPs": ["10.96.0.{last}"], "ports": [{{"port": 80}}]}}}}"#
    )
}

/// A Service whose type nobody knows, so all of it is refused.
fn refused(name: &str, version: u64) -> String {
    service(name, 1, version).replace("\"ports\"", "\"type\": \"Odd\", \"ports\"")
}

fn watch(manifests: &mut Manifests, event: Watched<'_>) -> Change {
    manifests.watched(ObjectKind::Service, event)
}

fn list(manifests: &mut Manifests, services: &[String]) -> Vec<String> {
    let mut seen = told(&watch(manifests, Watched::ListBegins));
    for service in services {
        seen.extend(told(&watch(manifests, Watched::Listed(service))));
    }
    seen.extend(told(&watch(manifests, Watched::ListEnds)));
    seen
}

fn versions(manifests: &Manifests) -> Vec<(&str, u64)> {
    let mut versions: Vec<_> = manifests.versions(ObjectKind::Service).collect();
    versions.sort_unstable();
    versions
}

#[test]
fn a_list_replaces_what_was_held() {
    let mut manifests = Manifests::new();
    assert_eq!(
        list(&mut manifests, &[service("a", 1, 5), service("b", 2, 6)]),
        ["+ns/a 10.96.0.1", "+ns/b 10.96.0.2"]
    );
    assert_eq!(
        list(&mut manifests, &[service("b", 3, 9), service("c", 4, 8)]),
        ["+ns/b 10.96.0.3", "+ns/c 10.96.0.4", "-ns/a"]
    );
    assert_eq!(versions(&manifests), [("ns/b", 9), ("ns/c", 8)]);
    assert_eq!((manifests.object_count(), manifests.watched_count(ObjectKind::Service)), (2, 2));
    assert_eq!(list(&mut manifests, &[]), ["-ns/b", "-ns/c"]);
}

#[test]
fn a_list_that_does_not_end_deletes_nothing_and_its_successor_does() {
    let mut manifests = Manifests::new();
    list(&mut manifests, &[service("a", 1, 5), service("b", 2, 6)]);
    watch(&mut manifests, Watched::ListBegins);
    assert_eq!(told(&watch(&mut manifests, Watched::Listed(&service("a", 1, 5)))), [""; 0]);
    // The page after it was gone: another list begins.
    assert_eq!(list(&mut manifests, &[service("b", 2, 6)]), ["-ns/a"]);
    assert_eq!(told(&watch(&mut manifests, Watched::ListEnds)), [""; 0]);
    assert_eq!(versions(&manifests), [("ns/b", 6)]);
}

#[test]
fn an_older_object_is_dropped_and_counted() {
    let mut manifests = Manifests::new();
    list(&mut manifests, &[service("a", 1, 5)]);
    let change = watch(&mut manifests, Watched::Applied(&service("a", 2, 7)));
    assert_eq!((told(&change), change.older), (vec!["+ns/a 10.96.0.2".to_owned()], 0));
    for late in [Watched::Applied(&service("a", 1, 6)), Watched::Deleted(&service("a", 1, 6))] {
        let change = watch(&mut manifests, late);
        assert_eq!((told(&change), change.older), (Vec::new(), 1));
    }
    let same = watch(&mut manifests, Watched::Applied(&service("a", 2, 7)));
    assert_eq!(same, Change::default());
    assert_eq!(told(&watch(&mut manifests, Watched::Deleted(&service("a", 2, 8)))), ["-ns/a"]);
    assert_eq!(watch(&mut manifests, Watched::Deleted(&service("a", 2, 8))), Change::default());
    assert_eq!(versions(&manifests), []);
}

#[test]
fn a_list_of_older_objects_counts() {
    // Somebody put the cluster back to an earlier state.
    let mut manifests = Manifests::new();
    list(&mut manifests, &[service("a", 1, 500)]);
    assert_eq!(list(&mut manifests, &[service("a", 2, 5)]), ["+ns/a 10.96.0.2"]);
    assert_eq!(told(&watch(&mut manifests, Watched::Applied(&service("a", 3, 6)))), ["+ns/a 10.96.0.3"]);
    // And a version of before may come again with something else.
    assert_eq!(list(&mut manifests, &[service("a", 4, 6)]), ["+ns/a 10.96.0.4"]);
}

#[test]
fn what_is_refused_is_kept_by_object_and_goes_with_it() {
    let mut manifests = Manifests::new();
    list(&mut manifests, &[service("a", 1, 5), service("b", 2, 6)]);
    let change = watch(&mut manifests, Watched::Applied(&refused("a", 7)));
    assert_eq!(told(&change), ["-ns/a"]);
    let [reject] = &change.rejects[..] else { panic!("{change:?}") };
    assert_eq!((&*reject.kind, &*reject.name, &*reject.field), ("Service", "ns/a", "spec.type"));
    assert_eq!(
        manifests.uid(ObjectKind::Service, "ns/a").as_deref(),
        Some("00000000-0000-4000-8000-000000000001")
    );
    // It is there, so an audit does not miss it.
    assert_eq!(versions(&manifests), [("ns/a", 7), ("ns/b", 6)]);
    // The same refusal is not told twice.
    assert_eq!(watch(&mut manifests, Watched::Applied(&refused("a", 8))).rejects, []);
    assert_eq!(manifests.rejects().count(), 1);
    let change = watch(&mut manifests, Watched::Applied(&service("a", 1, 9)));
    assert_eq!((told(&change), manifests.rejects().count()), (vec!["+ns/a 10.96.0.1".to_owned()], 0));
    watch(&mut manifests, Watched::Applied(&refused("b", 10)));
    assert_eq!(list(&mut manifests, &[service("a", 1, 9)]), [""; 0]);
    assert_eq!((manifests.rejects().count(), manifests.object_count()), (0, 1));
    watch(&mut manifests, Watched::Applied(&refused("a", 11)));
    watch(&mut manifests, Watched::Deleted(&refused("a", 12)));
    assert_eq!((manifests.rejects().count(), versions(&manifests).len()), (0, 0));
}

#[test]
fn an_object_without_a_name_is_refused_until_the_next_list() {
    let mut manifests = Manifests::new();
    for nameless in [r#"{"metadata": {}}"#, "{}", "[]", r#"{"metadata": {"name": 7}}"#] {
        watch(&mut manifests, Watched::ListBegins);
        let change = watch(&mut manifests, Watched::Listed(nameless));
        assert!(!change.rejects.is_empty(), "{nameless}");
        watch(&mut manifests, Watched::ListEnds);
        assert_eq!((versions(&manifests), manifests.rejects().count()), (vec![], change.rejects.len()));
        list(&mut manifests, &[]);
        assert_eq!(manifests.rejects().count(), 0);
    }
}

#[test]
fn a_files_object_counts_before_the_api_servers() {
    let file = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: ns}\n\
                spec: {clusterIPs: [10.96.0.9], ports: [{port: 80}]}\n";
    let mut manifests = Manifests::new();
    list(&mut manifests, &[service("a", 1, 5)]);
    let change = manifests.apply(Path::new("a.yaml"), file.as_bytes());
    assert_eq!(told(&change), ["+ns/a 10.96.0.9"]);
    let [reject] = &change.rejects[..] else { panic!("{change:?}") };
    assert_eq!(
        reject.reason,
        "is in a.yaml too, which counts before the API server; the API server is not used for it"
    );
    assert_eq!(told(&watch(&mut manifests, Watched::Applied(&service("a", 2, 6)))), [""; 0]);
    assert_eq!((versions(&manifests), manifests.rejects().count()), (vec![("ns/a", 6)], 1));
    assert_eq!(told(&manifests.remove(Path::new("a.yaml"))), ["+ns/a 10.96.0.2"]);
    manifests.apply(Path::new("a.yaml"), file.as_bytes());
    assert_eq!(list(&mut manifests, &[]), [""; 0]);
    assert_eq!((manifests.object_count(), manifests.rejects().count()), (1, 0));
    let change = watch(&mut manifests, Watched::Applied(&service("a", 3, 7)));
    assert_eq!((told(&change).len(), change.rejects.len()), (0, 1));
}

#[test]
fn a_uid_survives_and_what_is_none_is_unknown() {
    let uid = "3e1d6ab2-90c4-4d57-8f6b-0a1b2c3d4e5f";
    assert_eq!(uid_text(uid_number(uid)), uid);
    for other in ["", "my-pod", "3E1D6AB2-90C4-4D57-8F6B-0A1B2C3D4E5F", "3e1d6ab290c44d578f6b0a1b2c3d4e5f"] {
        assert_eq!(uid_number(other), 0, "{other}");
    }
}
