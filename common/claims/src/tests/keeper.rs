//! What the operator's claims cost and come to.

use std::collections::BTreeSet;
use std::time::Instant;

use portway_model::k8s::{Format, Names, decode};

use super::*;

fn range(first: u32, last: u32) -> NumberRange {
    NumberRange::narrowed(0, first, last).unwrap()
}

async fn keeper(range: NumberRange) -> (FakeApi, Allocator) {
    let (api, client) = FakeApi::start().await;
    (api, Allocator::keeper(client, range))
}

/// What a watch tells of the object at a path.
pub(super) fn shown(api: &FakeApi, number: NumericIdentity) -> Event {
    let object = api.get(&format!("{COLLECTION}/{number}")).unwrap().to_string();
    let decoded = decode(object.as_bytes(), Format::Json, &mut Names::default()).unwrap();
    Event::Apply(decoded.objects.into_iter().next().unwrap())
}

/// The next changes, by label set.
async fn held(allocator: &mut Allocator, count: usize) -> BTreeMap<Labels, NumericIdentity> {
    let mut held = BTreeMap::new();
    while held.len() < count {
        match timeout(PATIENCE, allocator.next()).await.expect("a change") {
            Change { labels, news: News::Held(number) } => held.insert(labels, number),
            other => panic!("{other:?}"),
        };
    }
    held
}

#[tokio::test]
async fn a_label_set_that_nobody_has_costs_a_create_a_list_and_a_confirmation() {
    let (api, mut allocator) = keeper(NumberRange::of_cluster(0)).await;
    let home = home_of(&labels("web"), 0);
    assert_eq!(allocator.hold(&labels("web"), None), Place::Pending);
    assert_eq!(held(&mut allocator, 1).await, BTreeMap::from([(labels("web"), home)]));
    let (post, patch) = (format!("POST {COLLECTION}"), format!("PATCH {COLLECTION}/{home}"));
    assert_eq!((api.writes(), api.reads()), (vec![post, patch], 1));
    assert_eq!(allocator.place(&labels("web")), Some(Place::Held(home)));
}

#[tokio::test]
async fn what_a_watch_has_shown_is_held_without_a_request() {
    let (api, mut allocator) = keeper(NumberRange::of_cluster(0)).await;
    allocator.observe(&identity(NUMBER, "web"));
    assert_eq!(allocator.hold(&labels("web"), None), Place::Held(NUMBER));
    assert_eq!(allocator.next().now_or_never(), None);
    assert_eq!((api.writes(), api.reads()), (Vec::new(), 0));
}

#[tokio::test]
async fn many_label_sets_share_their_lists() {
    let (api, mut allocator) = keeper(NumberRange::of_cluster(0)).await;
    let sets: Vec<_> = (0..100).map(|n| labels(&format!("app-{n}"))).collect();
    for set in &sets {
        assert_eq!(allocator.hold(set, None), Place::Pending);
    }
    let held = held(&mut allocator, 100).await;
    assert_eq!(held.values().collect::<BTreeSet<_>>().len(), 100);
    let (writes, reads) = (api.writes().len(), api.reads());
    assert!((200..=210).contains(&writes), "{writes} writes");
    assert!(reads <= 40, "{reads} lists");
}

#[tokio::test]
async fn one_that_is_far_behind_in_a_long_list_is_found() {
    let (api, mut allocator) = keeper(NumberRange::of_cluster(0)).await;
    for number in 10_000..11_000 {
        let mut object = object(&format!("app-{number}"));
        object["metadata"]["name"] = json!(number.to_string());
        api.put(&format!("{COLLECTION}/{number}"), &object);
    }
    // No watch has told of any of them; its create makes a second one, which the list finds to be one too many.
    allocator.hold(&labels("app-10999"), None);
    let held = held(&mut allocator, 1).await;
    assert_eq!(held, BTreeMap::from([(labels("app-10999"), NumericIdentity::new(10_999))]));
    assert_eq!(api.reads(), 5, "two lists of 1,001 and 1,000, in pages of 500");
    assert_eq!(api.all().len(), 1000);
}

#[tokio::test]
async fn claims_that_are_under_way_together_do_not_fight_for_the_last_numbers() {
    let (api, mut allocator) = keeper(range(300, 309)).await;
    let sets: Vec<_> = (0..10).map(|n| labels(&format!("app-{n}"))).collect();
    for set in &sets {
        assert_eq!(allocator.hold(set, None), Place::Pending);
    }
    assert_eq!(allocator.free(), 0);
    let held = held(&mut allocator, 10).await;
    assert_eq!(held.values().collect::<BTreeSet<_>>().len(), 10);
    assert_eq!(api.writes().len(), 20, "no create was refused");
}

#[tokio::test]
async fn a_number_that_becomes_free_is_taken_by_one_that_waits_for_it() {
    let (api, mut allocator) = keeper(range(300, 300)).await;
    allocator.hold(&labels("web"), None);
    held(&mut allocator, 1).await;
    allocator.observe(&shown(&api, NUMBER));
    allocator.hold(&labels("db"), None);
    allocator.hold(&labels("dns"), None);
    let waits = || News::Obstacle(holding::exhausted(range(300, 300), 0));
    assert_eq!(changes(&mut allocator), [(labels("db"), waits()), (labels("dns"), waits())]);
    assert!(allocator.is_exhausted(&labels("db")) && allocator.is_exhausted(&labels("dns")));
    allocator.release(&labels("web"));
    api.take(OBJECT);
    allocator.observe(&gone(NUMBER));
    let taken = held(&mut allocator, 1).await;
    assert_eq!(taken.into_values().next(), Some(NUMBER));
    assert_eq!(allocator.free(), 0);
}

#[tokio::test]
async fn how_many_are_refused_is_known_whatever_becomes_of_them() {
    let (api, mut allocator) = keeper(NumberRange::of_cluster(0)).await;
    let sets = ["web", "db", "dns"].map(labels);
    api.deny(Some("CiliumIdentity"));
    for set in &sets {
        allocator.hold(set, None);
    }
    while !sets.iter().all(|set| allocator.is_refused(set)) {
        let news = next(&mut allocator).await;
        assert!(matches!(news, News::Obstacle(_)), "{news:?}");
    }
    assert_eq!(allocator.refused, 3);
    // More of it changes nothing.
    next(&mut allocator).await;
    assert_eq!(allocator.refused, 3);
    allocator.release(&sets[0]);
    assert_eq!(allocator.refused, 2);
    api.deny(None);
    while allocator.place(&sets[1]) == Some(Place::Pending)
        || allocator.place(&sets[2]) == Some(Place::Pending)
    {
        next(&mut allocator).await;
    }
    assert_eq!(allocator.refused, 0);
}

/// As where somebody takes the definition away: no watch shows any of them, and every list fails.
#[tokio::test]
async fn all_that_are_held_may_go_at_once() {
    const COUNT: u32 = 30_000;
    let (api, mut allocator) = keeper(NumberRange::of_cluster(0)).await;
    let numbers = || (1_000..1_000 + COUNT).map(NumericIdentity::new);
    for number in numbers() {
        let app = format!("app-{number}");
        allocator.observe(&identity(number, &app));
        assert_eq!(allocator.hold(&labels(&app), None), Place::Held(number));
    }
    api.refuse(&[503; 2]);
    let started = Instant::now();
    for number in numbers() {
        allocator.observe(&gone(number));
    }
    let mut obstacles = 0;
    while obstacles < COUNT {
        let news = next(&mut allocator).await;
        assert!(matches!(news, News::Obstacle(_)), "{news:?}");
        obstacles += 1;
    }
    // Where each looks at all others it is a minute.
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

#[tokio::test]
async fn what_vanishes_is_made_again_with_its_number() {
    let (api, mut allocator) = keeper(NumberRange::of_cluster(0)).await;
    allocator.hold(&labels("web"), None);
    let number = held(&mut allocator, 1).await.into_values().next().unwrap();
    allocator.observe(&shown(&api, number));
    let path = format!("{COLLECTION}/{number}");
    api.take(&path);
    // Whoever would take its home has to look for another one.
    allocator.observe(&gone(number));
    let again = async {
        while api.get(&path).is_none_or(|object| object["metadata"]["annotations"] != json!({})) {
            let _ = timeout(Duration::from_millis(1), allocator.next()).await;
        }
    };
    timeout(PATIENCE, again).await.expect("an identity");
}
