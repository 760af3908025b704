//! What a planner that missed a change says of it.

use portway_datapath::FrontendKind;

use super::super::{Aspect, Difference};
use super::random::Run;
use super::restored::{programmed, two};
use super::world::{frontend, key, service};
use crate::loadbalancer::{Desired as _, Dirty};

const A: &str = "service ns/a port http TCP IPv4";
const B: &str = "service ns/b TCP IPv4";

impl Run {
    fn differences(&self) -> Vec<Difference> {
        self.planner.differences(self.wanted(), &self.dirty, true)
    }

    fn told(&self) -> Vec<String> {
        self.differences().iter().map(ToString::to_string).collect()
    }
}

#[test]
fn what_was_never_marked_dirty_is_named_and_mended_and_what_waits_is_pending() {
    let mut run = programmed(two());
    assert_eq!(run.differences(), []);
    let mut next = two();
    let mut outside = service(&["10.1.0.3:8080"]);
    outside.affinity_seconds = 60;
    let c = key("ns/c", "");
    next.services.insert(key("ns/a", "http"), service(&["10.1.0.2:8080", "10.1.0.5:8080+l"]));
    next.services.insert(key("ns/b", ""), outside);
    next.services.insert(c.clone(), service(&[]));
    next.frontends.remove(&frontend("10.96.0.2:80/TCP"));
    let next = next.at(frontend("10.96.0.3:443/TCP"), FrontendKind::LoadBalancer, &c);
    let dirty = two().diff(&next);
    run.worlds.push(next);
    run.tables.inner.allow(&run.worlds);
    let expected = [
        format!("{A}: backends: 10.1.0.1:8080 (cluster), wanted 10.1.0.5:8080 (cluster, local)"),
        format!(
            "{B}: settings: flags 0x0, affinity 0 s, without Maglev tables if they are asked for, wanted flags 0x0, affinity 60 s, without Maglev tables if they are asked for"
        ),
        "service ns/c TCP IPv4: version: nothing, wanted a version".to_owned(),
        format!("frontend 10.96.0.2:80/TCP: frontend: ClusterIP of {B}, wanted nothing"),
        "frontend 10.96.0.3:443/TCP: frontend: nothing, wanted LoadBalancer of service ns/c TCP IPv4"
            .to_owned(),
    ];
    assert_eq!(run.told(), expected);
    run.dirty = dirty;
    assert_eq!(run.told(), expected.map(|text| format!("{text} (not written yet)")));
    // A lost mark: a full comparison writes all the same.
    run.dirty = run.wanted().everything();
    let outcome = run.planner.prune(run.worlds.last().unwrap(), &mut run.dirty, &mut run.tables);
    assert!(outcome.failures.is_empty());
    run.settle();
    assert_eq!(run.differences(), []);
}

#[test]
fn a_version_that_nobody_wants_and_a_frontend_of_another_kind_are_named() {
    let mut run = programmed(two());
    let mut next = two();
    next.services.remove(&key("ns/b", ""));
    next.frontends.remove(&frontend("10.96.0.2:80/TCP"));
    let next = next.at(frontend("10.96.0.1:80/TCP"), FrontendKind::ExternalIps, &key("ns/a", "http"));
    run.worlds.push(next);
    assert_eq!(
        run.told(),
        [
            format!("{B}: version: a version, wanted nothing"),
            format!("frontend 10.96.0.1:80/TCP: frontend: ClusterIP of {A}, wanted ExternalIPs of {A}"),
            format!("frontend 10.96.0.2:80/TCP: frontend: ClusterIP of {B}, wanted nothing"),
        ]
    );
}

#[test]
fn of_many_backends_the_first_are_named_and_the_others_counted() {
    let mut run = programmed(two());
    let many: Vec<_> = (10..30).map(|n| format!("10.1.0.{n}:8080")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    run.worlds.push(two().with(key("ns/b", ""), service(&many)));
    let [difference] = &run.differences()[..] else { panic!("{:?}", run.differences()) };
    assert_eq!(difference.aspect, Aspect::Backends);
    assert!(difference.wanted.ends_with("10.1.0.17:8080 (cluster), 12 more"), "{difference}");
    let json = serde_json::to_string(difference).unwrap();
    assert!(json.contains(r#""aspect":"backends","held":"10.1.0.3:8080 (cluster)","#), "{json}");
    assert!(json.ends_with(r#""isPending":false}"#), "{json}");
    assert_eq!(serde_json::from_str::<Difference>(&json).unwrap(), *difference);
    run.dirty = Dirty { services: [key("ns/b", "")].into(), ..Dirty::default() };
    assert!(run.differences()[0].is_pending);
}
