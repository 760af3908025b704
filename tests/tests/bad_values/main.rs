//! A bad value in every field that is read: no panic, the healthy rest right, each reject named.
//!
//! One case is one field of one object with one bad value, among healthy neighbours, in a random order of files. The
//! rows of the neighbours must be what they are without the victim, and something must say which object, which field
//! and why. Broken files must keep what they last held.

#![expect(clippy::expect_used, clippy::panic, reason = "a test: a case that cannot be made must fail loudly")]

mod contradictions;
mod fields;
mod files;
mod world;

use std::path::Path;

use fields::{Bad, FIELDS, Field, bad_values};
use portway_datapath::layout::Sizes;
use portway_model::k8s::Reject;
use portway_model::tables::{MemoryTables, Row, rows};
use portway_tests::comparison::{Pipeline, model_config};
use portway_tests::oracle::OracleConfig;
use portway_tests::oracle::random::Random;
use serde_json::Value;

/// What became of some files.
struct Outcome {
    rows: Vec<Row>,
    rejects: Vec<Reject>,
    problems: Vec<String>,
}

impl Outcome {
    fn healthy_rows(&self) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.service.contains("healthy")).collect()
    }
}

/// The steps are (path, text); a path may come twice.
fn run(steps: &[(String, Vec<u8>)]) -> Outcome {
    let mut pipeline = Pipeline::new(model_config(&OracleConfig::new(world::NODE)));
    let mut tables = MemoryTables::new(Sizes::DEFAULT);
    for (path, text) in steps {
        pipeline.file(Path::new(path), Some(text));
    }
    if let Err(problem) = pipeline.settle(&mut tables, 10) {
        panic!("{problem}");
    }
    Outcome {
        rows: rows(&tables.dump()),
        rejects: pipeline.manifests.rejects().chain(pipeline.balancer.rejects()).collect(),
        problems: pipeline
            .manifests
            .problems()
            .map(|p| format!("{}: {}", p.path.display(), p.reason))
            .collect(),
    }
}

fn neighbours() -> Vec<(String, Vec<u8>)> {
    let objects = world::neighbours();
    objects
        .iter()
        .enumerate()
        .map(|(n, o)| (format!("healthy-{n}.yaml"), o.to_string().into_bytes()))
        .collect()
}

/// `object` with `bad` in `pointer`.
fn spoilt(object: &Value, pointer: &str, bad: &Bad) -> Value {
    let mut object = object.clone();
    let (parent, last) = pointer.rsplit_once('/').expect("a pointer begins with /");
    match &bad.value {
        Some(value) => {
            *object.pointer_mut(pointer).unwrap_or_else(|| panic!("no field {pointer}")) = value.clone();
        }
        None => {
            let parent = object.pointer_mut(parent).and_then(Value::as_object_mut).expect("a map");
            parent.remove(&last.replace("~1", "/")).unwrap_or_else(|| panic!("no field {pointer}"));
        }
    }
    object
}

/// The parts of a reject's path: `spec.ports[0].port` is spec, ports, 0, port. A label's key is written after a dot or
/// in brackets, and has dots of its own.
fn parts(field: &str) -> Vec<&str> {
    field.split(['.', '[', ']']).filter(|part| !part.is_empty()).collect()
}

/// Whether `reject` tells of this field of this object: its path is the field's, leads into it, or is that of what
/// the field is a part of. An object whose name is the bad value can't be named.
fn names(reject: &Reject, object: &Value, pointer: &str) -> bool {
    let path = pointer.trim_start_matches('/').replace('/', ".").replace("~1", "/");
    let (path, parent) = (parts(&path), parts(path.rsplit_once('.').map_or("", |(parent, _)| parent)));
    let kind = object["kind"].as_str().unwrap_or_default();
    let nameless = pointer == "/metadata" || pointer.starts_with("/metadata/name");
    let field = parts(&reject.field);
    reject.kind == kind
        && (nameless || reject.name.contains("victim"))
        && (field.starts_with(&path) || (!parent.is_empty() && field == parent))
        && !reject.reason.is_empty()
}

/// Everything that is wrong with a case; empty if it is right.
fn judge(
    field: &Field,
    bad: &Bad,
    object: &Value,
    others: &[(String, Vec<u8>)],
    healthy: &[Row],
) -> Vec<String> {
    let spoilt = spoilt(object, field.pointer, bad);
    let mut steps = others.to_vec();
    steps.push(("victim.yaml".to_owned(), spoilt.to_string().into_bytes()));
    Random::new(field.pointer.len() as u64).shuffle(&mut steps);
    let Ok(outcome) = std::panic::catch_unwind(|| run(&steps)) else {
        return vec!["panicked".to_owned()];
    };
    let mut wrong = Vec::new();
    if !outcome.healthy_rows().into_iter().eq(healthy) {
        wrong.push("changed the rows of its neighbours".to_owned());
    }
    if !outcome.rejects.iter().any(|reject| names(reject, object, field.pointer)) {
        wrong.push(format!("named nowhere: {:?} {:?}", outcome.rejects, outcome.problems));
    }
    wrong
}

#[test]
fn a_bad_value_is_named_and_leaves_the_rest_alone() {
    let others: Vec<_> = neighbours();
    let healthy = run(&others).rows;
    assert!(healthy.len() >= 7, "the neighbours have {} rows", healthy.len());
    let (mut cases, mut failures) = (0, Vec::new());
    for field in FIELDS {
        let victims = world::victims();
        let (_, object) =
            victims.iter().find(|(name, _)| *name == field.object).expect("a victim of this name");
        let good = object.pointer(field.pointer).unwrap_or_else(|| panic!("no field {}", field.pointer));
        for bad in bad_values(field, good) {
            cases += 1;
            for wrong in judge(field, &bad, object, &others, &healthy) {
                failures.push(format!("{} {}, {}: {wrong}", field.object, field.pointer, bad.what));
            }
        }
    }
    println!("{cases} cases: {} fields with bad values", FIELDS.len());
    report(cases, &failures);
}

/// The first few are enough to see the pattern.
fn report(cases: u64, failures: &[String]) {
    let shown: String =
        failures.iter().take(40).map(|f| format!("{}\n", f.chars().take(400).collect::<String>())).collect();
    assert!(failures.is_empty(), "{} of {cases} cases are wrong:\n{shown}", failures.len());
}

#[test]
fn a_contradiction_is_named_and_leaves_the_rest_alone() {
    let others = neighbours();
    let healthy = run(&others).rows;
    let (mut cases, mut failures) = (0, Vec::new());
    for case in contradictions::contradictions() {
        cases += 1;
        let mut steps = others.clone();
        for (name, mut object) in world::victims() {
            if name == case.object {
                *object.pointer_mut(case.pointer).expect("a field") = case.value.clone();
            }
            steps.push((format!("{name}.yaml"), object.to_string().into_bytes()));
        }
        Random::new(cases).shuffle(&mut steps);
        let outcome = run(&steps);
        if !outcome.healthy_rows().into_iter().eq(&healthy) {
            failures.push(format!("{}: changed the rows of its neighbours", case.what));
        }
        let is_named =
            |reject: &Reject| reject.name.contains("victim") && parts(&reject.field) == parts(case.named);
        if !outcome.rejects.iter().any(is_named) {
            failures.push(format!("{}: named nowhere: {:?}", case.what, outcome.rejects));
        }
    }
    println!("{cases} cases: contradictions");
    report(cases, &failures);
}

/// Nothing is refused of the victims as they are.
#[test]
fn sound_victims_are_not_refused() {
    let mut steps = neighbours();
    steps.extend(
        world::victims().iter().map(|(name, o)| (format!("{name}.yaml"), o.to_string().into_bytes())),
    );
    let outcome = run(&steps);
    assert_eq!((outcome.rejects.as_slice(), outcome.problems.as_slice()), (&[][..], &[][..]));
    assert!(outcome.rows.iter().any(|row| row.service == "shop/victim" && !row.backends.cluster.is_empty()));
    assert!(outcome.rows.iter().any(|row| row.service == "shop/victim-0"));
}

#[test]
fn a_broken_file_keeps_its_last_good_objects_and_leaves_others_alone() {
    let others = neighbours();
    let victims: Vec<Value> = world::victims().into_iter().map(|(_, object)| object).collect();
    let good = victims.iter().map(|object| format!("{object}\n---\n")).collect::<String>();
    let before = {
        let mut steps = others.clone();
        steps.push(("victim.yaml".to_owned(), good.clone().into_bytes()));
        run(&steps).rows
    };
    let healthy: Vec<Row> = run(&others).rows;
    let (mut cases, mut failures) = (0, Vec::new());
    for broken in files::broken_files(&yaml_of(&victims[0]), &victims[0]) {
        // Once as the first thing seen of a file, once in the place of a good text.
        for replaces_good in [false, true] {
            cases += 1;
            let mut steps = others.clone();
            Random::new(cases).shuffle(&mut steps);
            if replaces_good {
                steps.push(("victim.yaml".to_owned(), good.clone().into_bytes()));
            }
            steps.push(("victim.yaml".to_owned(), broken.bytes.clone()));
            let what = format!("{}{}", broken.what, if replaces_good { " after a good text" } else { "" });
            let Ok(outcome) = std::panic::catch_unwind(|| run(&steps)) else {
                failures.push(format!("{what}: panicked"));
                continue;
            };
            if !outcome.healthy_rows().into_iter().eq(&healthy) {
                failures.push(format!("{what}: changed the rows of its neighbours"));
            }
            if broken.unreadable
                && !outcome.problems.iter().any(|problem| problem.starts_with("victim.yaml: "))
            {
                failures.push(format!("{what}: named nowhere: {:?} {:?}", outcome.problems, outcome.rejects));
            }
            if broken.unreadable && replaces_good && outcome.rows != before {
                failures.push(format!("{what}: its last good objects are gone"));
            }
        }
    }
    println!("{cases} cases: broken files");
    report(cases, &failures);
}

/// Block style, as kubectl prints it, of the maps, lists and scalars of `value`.
fn yaml_of(value: &Value) -> String {
    fn write(value: &Value, indent: usize, out: &mut String) {
        let pad = " ".repeat(indent);
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    match value {
                        Value::Object(_) | Value::Array(_) => {
                            out.push_str(&format!("{pad}{key}:\n"));
                            write(value, indent + 2, out);
                        }
                        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                            out.push_str(&format!("{pad}{key}: {value}\n"));
                        }
                    }
                }
            }
            Value::Array(items) => {
                for item in items {
                    match item {
                        Value::Object(_) | Value::Array(_) => {
                            out.push_str(&format!("{pad}-\n"));
                            write(item, indent + 2, out);
                        }
                        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                            out.push_str(&format!("{pad}- {item}\n"));
                        }
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                out.push_str(&format!("{pad}{value}\n"));
            }
        }
    }
    let mut text = String::new();
    write(value, 0, &mut text);
    text
}
