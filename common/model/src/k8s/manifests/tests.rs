use std::collections::BTreeMap;
use std::path::Path;

use super::{Change, Event, Manifests, Object};

fn service(name: &str, last: u8) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{clusterIPs: [10.96.0.{last}], ports: [{{port: 80}}]}}\n"
    )
}

fn file(services: &[(&str, u8)]) -> String {
    services.iter().map(|(name, last)| service(name, *last)).collect::<Vec<_>>().join("---\n")
}

fn apply(manifests: &mut Manifests, path: &str, text: &str) -> Change {
    manifests.apply(Path::new(path), text.as_bytes())
}

/// `+name address` and `-name`.
pub(super) fn told(change: &Change) -> Vec<String> {
    let event = |event: &Event| match event {
        Event::Apply(Object::Service(service)) => {
            format!("+{} {}", service.name, service.cluster_ips.first().unwrap())
        }
        Event::Apply(other) => format!("+{}", other.name()),
        Event::Delete(key) => format!("-{}", key.name),
    };
    change.events.iter().map(event).collect()
}

#[test]
fn only_what_changed_in_a_rewritten_file_gives_events_and_deletions_come_first() {
    let mut manifests = Manifests::new();
    let change = apply(&mut manifests, "a.yaml", &file(&[("a", 1), ("b", 2), ("c", 3)]));
    assert_eq!(told(&change), ["+default/a 10.96.0.1", "+default/b 10.96.0.2", "+default/c 10.96.0.3"]);
    let change = apply(&mut manifests, "a.yaml", &file(&[("a", 1), ("b", 2), ("c", 3)]));
    assert_eq!(told(&change), [""; 0]);
    let change = apply(&mut manifests, "a.yaml", &file(&[("d", 4), ("c", 3), ("b", 9)]));
    assert_eq!(told(&change), ["-default/a", "+default/d 10.96.0.4", "+default/b 10.96.0.9"]);
    assert_eq!(told(&manifests.remove(Path::new("none.yaml"))), [""; 0]);
    let change = manifests.remove(Path::new("a.yaml"));
    assert_eq!(told(&change), ["-default/d", "-default/c", "-default/b"]);
    assert_eq!(manifests.object_count(), 0);
}

#[test]
fn a_takeover_by_an_equal_object_changes_nothing() {
    let mut manifests = Manifests::new();
    apply(&mut manifests, "b.yaml", &file(&[("a", 1)]));
    assert_eq!(told(&apply(&mut manifests, "a.yaml", &file(&[("a", 1)]))), [""; 0]);
    assert_eq!(manifests.rejects().count(), 1);
    assert_eq!(told(&manifests.remove(Path::new("a.yaml"))), [""; 0]);
    assert_eq!(manifests.rejects().count(), 0);
}

#[test]
fn a_refusal_is_told_once_and_kept_as_long_as_it_holds() {
    let mut manifests = Manifests::new();
    let bad =
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIPs: [x], ports: [{port: 80}]}\n";
    let field = |rejects: &[super::Reject]| rejects.iter().map(|r| r.field.clone()).collect::<Vec<_>>();
    assert_eq!(field(&apply(&mut manifests, "a.yaml", bad).rejects), ["spec.clusterIPs[0]"]);
    let worse = bad.replace("port: 80", "port: 0");
    assert_eq!(field(&apply(&mut manifests, "a.yaml", &worse).rejects), ["spec.ports[0].port"]);
    assert_eq!(manifests.rejects().count(), 2);
    assert_eq!(field(&apply(&mut manifests, "a.yaml", &service("a", 1)).rejects), [""; 0]);
    assert_eq!(manifests.rejects().count(), 0);
}

#[test]
fn a_broken_file_changes_nothing_until_it_is_whole_again() {
    let mut manifests = Manifests::new();
    apply(&mut manifests, "a.yaml", &file(&[("a", 1), ("b", 2)]));
    for broken in [&b"{"[..], b"a: [", b"\xff\xfe", b"{\"apiVersion\": \"v1\"", b"- a\nb: c\n"] {
        let change = manifests.apply(Path::new("a.yaml"), broken);
        assert_eq!(told(&change), [""; 0]);
        assert_eq!(change.problem.as_ref(), manifests.problems().next().as_ref());
        assert_eq!(change.problem.unwrap().kept_objects, 2);
    }
    let change = apply(&mut manifests, "a.yaml", &file(&[("a", 1), ("b", 3)]));
    assert_eq!(told(&change), ["+default/b 10.96.0.3"]);
    assert_eq!(manifests.problems().count(), 0);
    apply(&mut manifests, "b.yaml", "}");
    assert_eq!(manifests.problems().map(|problem| problem.kept_objects).collect::<Vec<_>>(), [0]);
    manifests.remove(Path::new("b.yaml"));
    assert_eq!(manifests.problems().count(), 0);
}

#[test]
fn whatever_happens_to_files_the_first_path_of_each_object_is_what_events_add_up_to() {
    let mut random = 7u64;
    let mut pick = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let names = ["a", "b", "c", "d"];
    let paths = ["1.yaml", "2.yaml", "sub/3.yaml", "4.yaml"];
    let mut manifests = Manifests::new();
    let mut files: BTreeMap<&Path, Vec<(&str, u8)>> = BTreeMap::new();
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for step in 0..3000 {
        let path = Path::new(paths[pick(4) as usize]);
        let change = match pick(5) {
            0 => {
                files.remove(path);
                manifests.remove(path)
            }
            1 => manifests.apply(path, b"half: [written"),
            _ => {
                let services: Vec<_> =
                    (0..pick(5)).map(|_| (names[pick(4) as usize], pick(3) as u8 + 1)).collect();
                files.insert(path, services.clone());
                manifests.apply(path, file(&services).as_bytes())
            }
        };
        for event in told(&change) {
            match event.strip_prefix('-') {
                Some(name) => assert!(seen.remove(name).is_some(), "step {step}: {name} was not there"),
                None => {
                    let (name, address) = event[1..].split_once(' ').unwrap();
                    let old = seen.insert(name.to_owned(), address.to_owned());
                    assert_ne!(old.as_deref(), Some(address), "step {step}: {name} is as it was");
                }
            }
        }
        let mut expected = BTreeMap::new();
        for (name, last) in files.values().flatten() {
            expected.entry(format!("default/{name}")).or_insert(format!("10.96.0.{last}"));
        }
        assert_eq!(seen, expected, "step {step}");
        assert_eq!(manifests.object_count(), expected.len());
        let named = manifests.rejects().count();
        let written: usize = files.values().map(Vec::len).sum();
        assert_eq!(named, written - expected.len(), "step {step}: every unused copy is named once");
    }
}
