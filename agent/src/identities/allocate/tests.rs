use futures_util::FutureExt as _;
use portway_model::identity::{home_of, numbers_from};
use portway_model::k8s::{CiliumIdentity, ObjectKey, Uid};
use portway_model::labels::Label;

use super::*;

fn labels(app: &str) -> Labels {
    Labels::new([Label::new("k8s", "app", app)])
}

fn identity(number: NumericIdentity, app: &str) -> Event {
    let identity = CiliumIdentity {
        name: number.to_string().into(),
        number,
        uid: Uid::NONE,
        version: 0,
        created: None,
        labels: labels(app),
        heartbeat: None,
        claim: None,
    };
    Event::Apply(Object::CiliumIdentity(identity.into()))
}

fn gone(number: NumericIdentity) -> Event {
    let name = number.to_string().into();
    Event::Delete(ObjectKey { kind: ObjectKind::CiliumIdentity, name, uid: "".into() })
}

fn changes(allocator: &mut Allocator) -> Vec<(Labels, News)> {
    let next = || allocator.next().now_or_never();
    std::iter::from_fn(next).map(|change| (change.labels, change.news)).collect()
}

#[test]
fn without_an_api_server_a_label_set_has_its_home_number_at_once() {
    let mut allocator = Allocator::alone(0);
    let home = home_of(&labels("web"), 0);
    assert_eq!(allocator.hold(&labels("web"), None), Place::Held(home));
    assert_eq!(allocator.hold(&labels("web"), None), Place::Held(home), "of a second endpoint");
    allocator.release(&labels("web"));
    assert_eq!(allocator.place(&labels("web")), Some(Place::Held(home)));
    allocator.release(&labels("web"));
    assert_eq!(allocator.place(&labels("web")), None);
    assert_eq!(changes(&mut allocator), []);
}

#[test]
fn an_identity_of_the_directory_goes_before_what_this_node_gave() {
    let mut allocator = Allocator::alone(0);
    let home = home_of(&labels("web"), 0);
    allocator.hold(&labels("web"), None);
    let written = NumericIdentity::new(4711);
    allocator.observe(&identity(written, "web"));
    assert_eq!(changes(&mut allocator), [(labels("web"), News::Held(written))]);
    allocator.observe(&gone(written));
    assert_eq!(changes(&mut allocator), [(labels("web"), News::Held(home))]);
}

#[test]
fn who_has_the_number_of_an_identity_of_the_directory_gets_another() {
    let mut allocator = Allocator::alone(0);
    let home = home_of(&labels("web"), 0);
    allocator.hold(&labels("web"), None);
    allocator.observe(&identity(home, "db"));
    let next = numbers_from(home).nth(1).unwrap();
    assert_eq!(changes(&mut allocator), [(labels("web"), News::Held(next))]);
    assert_eq!(allocator.hold(&labels("db"), None), Place::Held(home));
}

#[test]
fn a_number_from_before_a_restart_is_kept() {
    let mut allocator = Allocator::alone(0);
    let before = NumericIdentity::new(4711);
    assert_eq!(allocator.hold(&labels("web"), Some(before)), Place::Held(before));
}

#[test]
fn that_numbers_come_to_an_end_is_said_before_they_do() {
    let mut allocator = Allocator::alone(0);
    let numbers: Vec<_> = numbers_from(NumericIdentity::new(256)).take(ALARMING).collect();
    for (n, number) in numbers.iter().enumerate() {
        assert_eq!(allocator.alarm(), None);
        allocator.observe(&identity(*number, &format!("app-{n}")));
    }
    assert!(allocator.alarm().is_some_and(|alarm| alarm.starts_with("52224 ")), "{:?}", allocator.alarm());
    allocator.observe(&gone(numbers[0]));
    assert_eq!(allocator.alarm(), None);
}
