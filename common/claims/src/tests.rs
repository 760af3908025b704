use std::time::Duration;

use futures_util::FutureExt as _;
use portway_model::identity::{home_of, numbers_from};
use portway_model::k8s::{CiliumIdentity, ObjectKey, Uid};
use portway_model::labels::Label;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::fake_api::{FakeApi, uid};

mod keeper;
mod reserve;

const PATIENCE: Duration = Duration::from_secs(5);

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

/// An allocator for whom the directory has given away all numbers but one: that one, and the others.
fn all_but_one() -> (Allocator, NumericIdentity, Vec<NumericIdentity>) {
    let mut allocator = Allocator::alone(0);
    let mut others: Vec<_> = numbers_from(NumericIdentity::new(256)).collect();
    let mine = others.pop().unwrap();
    for (n, number) in others.iter().enumerate() {
        allocator.observe(&identity(*number, &format!("app-{n}")));
    }
    (allocator, mine, others)
}

/// Said where no number is free.
fn exhausted() -> News {
    News::Obstacle(holding::exhausted(NumberRange::of_cluster(0), 0))
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
    let numbers: Vec<_> =
        numbers_from(NumericIdentity::new(256)).take(alarming(NumberRange::of_cluster(0))).collect();
    for (n, number) in numbers.iter().enumerate() {
        assert_eq!(allocator.alarm(), None);
        allocator.observe(&identity(*number, &format!("app-{n}")));
    }
    assert!(allocator.alarm().is_some_and(|alarm| alarm.starts_with("52224 ")), "{:?}", allocator.alarm());
    allocator.observe(&gone(numbers[0]));
    assert_eq!(allocator.alarm(), None);
}

#[test]
fn a_number_of_the_directory_that_means_other_labels_now_is_given_up() {
    let mut allocator = Allocator::alone(0);
    let number = NumericIdentity::new(4711);
    allocator.observe(&identity(number, "web"));
    assert_eq!(allocator.hold(&labels("web"), None), Place::Held(number));
    allocator.observe(&identity(number, "db"));
    let home = home_of(&labels("web"), 0);
    assert_eq!(changes(&mut allocator), [(labels("web"), News::Held(home))]);
    assert_eq!(allocator.hold(&labels("db"), None), Place::Held(number));
}

#[test]
fn without_an_api_server_exhaustion_is_told_and_ends_with_the_first_number_that_is_free() {
    let (mut allocator, mine, others) = all_but_one();
    let exhausted = |app| (labels(app), exhausted());
    assert_eq!(allocator.hold(&labels("web"), None), Place::Held(mine));
    assert_eq!(allocator.hold(&labels("db"), None), Place::Pending);
    assert_eq!(allocator.hold(&labels("dns"), None), Place::Pending);
    assert_eq!(changes(&mut allocator), [exhausted("db"), exhausted("dns")]);
    allocator.release(&labels("web"));
    assert_eq!(changes(&mut allocator), [(labels("db"), News::Held(mine))]);
    allocator.observe(&gone(others[0]));
    assert_eq!(changes(&mut allocator), [(labels("dns"), News::Held(others[0]))]);
}

#[test]
fn a_number_of_the_directory_is_lost_to_other_labels_though_no_other_is_free() {
    let (mut allocator, mine, others) = all_but_one();
    assert_eq!(allocator.hold(&labels("web"), None), Place::Held(mine));
    assert_eq!(allocator.hold(&labels("app-7"), None), Place::Held(others[7]));
    let lost = |app, number| [(labels(app), News::Lost(number)), (labels(app), exhausted())];
    allocator.observe(&identity(others[7], "db"));
    assert_eq!(changes(&mut allocator), lost("app-7", others[7]));
    allocator.observe(&identity(mine, "db"));
    assert_eq!(changes(&mut allocator), lost("web", mine));
}

const COLLECTION: &str = "/apis/cilium.io/v2/ciliumidentities";
const NUMBER: NumericIdentity = NumericIdentity::new(300);
const OBJECT: &str = "/apis/cilium.io/v2/ciliumidentities/300";

/// As the API server has it.
fn object(app: &str) -> Value {
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumIdentity",
        "metadata": {"name": "300", "uid": uid(1), "resourceVersion": "1"},
        "security-labels": {"k8s:app": app},
    })
}

/// As a collector marks it.
fn marked(app: &str) -> Value {
    let mut marked = object(app);
    marked["metadata"]["annotations"] = json!({"io.cilium.heartbeat": "2026-11-30T00:00:00Z"});
    marked
}

/// What a list is answered.
fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})
}

/// An API server that has these identities, and a claimant.
async fn claimant(right: Right, listed: &[Value]) -> (FakeApi, Allocator) {
    let (api, client) = FakeApi::start().await;
    api.put(COLLECTION, &list(listed));
    (api, Allocator::from_api(client, right, 0))
}

/// One for whom the number of `web` has settled.
async fn settled() -> (FakeApi, Allocator) {
    let (api, mut allocator) = claimant(Right::Create, &[object("web")]).await;
    allocator.hold(&labels("web"), None);
    assert_eq!(next(&mut allocator).await, News::Settled(NUMBER));
    (api, allocator)
}

/// A read was answered, and the allocator does not know yet.
async fn answered(api: &FakeApi, allocator: &mut Allocator) {
    let asked = async {
        while api.reads() == 0 {
            assert_eq!(allocator.next().now_or_never(), None);
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, asked).await.expect("a read");
}

/// The object of `path` has been made.
async fn made(api: &FakeApi, allocator: &mut Allocator, path: &str) {
    let made = async {
        while api.get(path).is_none() {
            let _ = timeout(Duration::from_millis(1), allocator.next()).await;
        }
    };
    timeout(PATIENCE, made).await.expect("an identity");
}

async fn next(allocator: &mut Allocator) -> News {
    timeout(PATIENCE, allocator.next()).await.expect("a change").news
}

#[tokio::test]
async fn an_identity_that_the_operator_makes_while_it_is_looked_for_is_taken() {
    let (api, mut allocator) = claimant(Right::Wait, &[]).await;
    assert_eq!(allocator.hold(&labels("web"), None), Place::Pending);
    answered(&api, &mut allocator).await;
    api.put(COLLECTION, &list(&[object("web")]));
    allocator.observe(&identity(NUMBER, "web"));
    assert_eq!(next(&mut allocator).await, News::Settled(NUMBER));
}

#[tokio::test]
async fn an_identity_that_goes_while_it_is_read_is_made_again() {
    let (api, mut allocator) = claimant(Right::Create, &[]).await;
    api.put(OBJECT, &object("web"));
    allocator.hold(&labels("web"), Some(NUMBER));
    allocator.set_synced();
    answered(&api, &mut allocator).await;
    allocator.observe(&identity(NUMBER, "web"));
    api.take(OBJECT);
    allocator.observe(&gone(NUMBER));
    made(&api, &mut allocator, OBJECT).await;
}

#[tokio::test]
async fn a_number_from_before_a_restart_that_others_have_now_is_lost() {
    let (api, mut allocator) = claimant(Right::Create, &[]).await;
    api.put(OBJECT, &object("db"));
    allocator.hold(&labels("web"), Some(NUMBER));
    allocator.set_synced();
    assert_eq!(next(&mut allocator).await, News::Lost(NUMBER));
    assert_eq!(allocator.place(&labels("web")), Some(Place::Pending));
}

#[tokio::test]
async fn a_number_from_before_a_restart_that_cannot_be_made_again_is_lost() {
    let (api, mut allocator) = claimant(Right::Create, &[]).await;
    allocator.hold(&labels("web"), Some(NUMBER));
    allocator.set_synced();
    answered(&api, &mut allocator).await;
    api.put(OBJECT, &object("db"));
    assert_eq!(next(&mut allocator).await, News::Lost(NUMBER));
}

#[tokio::test]
async fn a_number_that_has_settled_and_turns_out_to_be_others_is_lost() {
    let (api, mut allocator) = settled().await;
    api.put(OBJECT, &object("db"));
    api.put(COLLECTION, &list(&[]));
    allocator.referred(&labels("web"), NUMBER);
    assert_eq!(next(&mut allocator).await, News::Lost(NUMBER));
}

#[tokio::test]
async fn a_mark_that_a_watch_tells_of_before_the_reference_is_written_goes() {
    let (api, mut allocator) = settled().await;
    api.put(OBJECT, &marked("web"));
    allocator.observe(&keeper::shown(&api, NUMBER));
    // The reference is written meanwhile, which is told once.
    allocator.referred(&labels("web"), NUMBER);
    assert_eq!(allocator.place(&labels("web")), Some(Place::Settled(NUMBER)));
    assert_eq!(next(&mut allocator).await, News::Held(NUMBER));
    assert_eq!(api.writes(), [format!("PATCH {OBJECT}")]);
    assert_eq!(api.get(OBJECT).unwrap()["metadata"]["annotations"], json!({}));
}

#[tokio::test]
async fn one_that_was_made_and_deleted_between_two_lists_of_the_watch_is_made_again() {
    let (api, client) = FakeApi::start().await;
    let mut allocator = Allocator::from_api(client, Right::Create, 0);
    allocator.set_synced();
    allocator.hold(&labels("web"), None);
    let News::Settled(number) = next(&mut allocator).await else { panic!("no number") };
    allocator.referred(&labels("web"), number);
    assert_eq!(next(&mut allocator).await, News::Held(number));
    let path = format!("{COLLECTION}/{number}");
    let listed = api.version();
    api.take(&path);
    allocator.told_up_to(listed - 1);
    assert_eq!(allocator.next().now_or_never(), None, "that list may be older");
    allocator.told_up_to(api.version());
    made(&api, &mut allocator, &path).await;
}

#[tokio::test]
async fn a_number_that_was_looked_for_anew_before_it_was_referred_to_is_told_again() {
    let (api, mut allocator) = settled().await;
    api.put(OBJECT, &marked("web"));
    let shown = keeper::shown(&api, NUMBER);
    // Somebody else was faster: the removal of the mark is refused.
    api.put(OBJECT, &object("web"));
    allocator.observe(&shown);
    assert_eq!(next(&mut allocator).await, News::Settled(NUMBER));
    allocator.referred(&labels("web"), NUMBER);
    assert_eq!(next(&mut allocator).await, News::Held(NUMBER));
}
