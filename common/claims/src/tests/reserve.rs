//! The last numbers are the system's, whoever makes identities.

use super::*;

const ALL: NumberRange = NumberRange::of_cluster(0);

fn of(namespace: &str, app: &str) -> Labels {
    Labels::new([Label::new("k8s", "app", app), Label::new("k8s", "io.kubernetes.pod.namespace", namespace)])
}

/// An agent's, in a cluster that has all numbers but so many.
async fn but(free: usize) -> (FakeApi, Allocator, Vec<NumericIdentity>) {
    let (api, client) = FakeApi::start().await;
    let mut allocator = Allocator::from_api(client, Right::Create, 0);
    let taken: Vec<_> = ALL.numbers_from(ALL.first()).take(ALL.count() as usize - free).collect();
    for number in &taken {
        allocator.observe(&identity(*number, &format!("app-{number}")));
    }
    allocator.set_synced();
    (api, allocator, taken)
}

#[tokio::test]
async fn the_last_numbers_are_left_to_pods_of_the_system() {
    let (api, mut allocator, taken) = but(reserve(ALL)).await;
    allocator.hold(&of("shop", "web"), None);
    let change = timeout(PATIENCE, allocator.next()).await.unwrap();
    let News::Obstacle(reason) = &change.news else { panic!("{change:?}") };
    assert!(reason.contains("all 65,280 numbers") && reason.contains("but at most 1,020"), "{reason}");
    assert!(reason.contains("namespace kube-system"), "{reason}");
    assert!(allocator.is_exhausted(&of("shop", "web")));
    assert_eq!(api.writes(), Vec::<String>::new());

    allocator.hold(&of("kube-system", "dns"), None);
    let change = timeout(PATIENCE, allocator.next()).await.unwrap();
    assert_eq!(change.labels, of("kube-system", "dns"));
    assert!(matches!(change.news, News::Settled(_)), "{change:?}");
    assert_eq!(allocator.free(), reserve(ALL) - 1);

    // One that comes back is the system's still, the next is anybody's.
    assert!(!api.writes().is_empty(), "of the system's");
    allocator.observe(&gone(taken[0]));
    assert!(allocator.is_exhausted(&of("shop", "web")));
    allocator.observe(&gone(taken[1]));
    let change = timeout(PATIENCE, allocator.next()).await.unwrap();
    assert_eq!(change.labels, of("shop", "web"));
    assert!(matches!(change.news, News::Settled(_)), "{change:?}");
}

/// By the operator, or by an agent that knows no reserve.
#[tokio::test]
async fn whoever_finds_no_number_takes_the_one_that_somebody_else_makes() {
    let (api, mut allocator, _) = but(reserve(ALL)).await;
    let web = of("shop", "web");
    allocator.hold(&web, None);
    let change = timeout(PATIENCE, allocator.next()).await.unwrap();
    assert!(matches!(change.news, News::Obstacle(_)), "{change:?}");
    let number = ALL.numbers_from(ALL.first()).last().unwrap();
    let mut object = object("web");
    object["metadata"]["name"] = json!(number.to_string());
    object["security-labels"] = json!({"k8s:app": "web", "k8s:io.kubernetes.pod.namespace": "shop"});
    api.put(&format!("{COLLECTION}/{number}"), &object);
    allocator.observe(&keeper::shown(&api, number));
    let change = timeout(PATIENCE, allocator.next()).await.unwrap();
    assert_eq!(change, Change { labels: web.clone(), news: News::Settled(number) });
    assert!(!allocator.is_exhausted(&web));
    assert_eq!(api.writes(), Vec::<String>::new());
}

/// As after an agent's start.
#[tokio::test]
async fn whoever_begins_before_the_first_list_takes_none_of_the_last_numbers() {
    let (api, client) = FakeApi::start().await;
    let mut allocator = Allocator::from_api(client, Right::Create, 0);
    let (web, dns) = (of("shop", "web"), of("kube-system", "dns"));
    assert_eq!(allocator.hold(&web, None), Place::Pending);
    answered(&api, &mut allocator).await;
    allocator.hold(&dns, None);
    let change = timeout(PATIENCE, allocator.next()).await.unwrap();
    assert_eq!(change.labels, dns, "{change:?}");
    let News::Settled(number) = change.news else { panic!("{change:?}") };
    allocator.observe(&keeper::shown(&api, number));
    let others = ALL.numbers_from(ALL.first()).filter(|other| *other != number);
    for number in others.take(ALL.count() as usize - reserve(ALL) - 1) {
        allocator.observe(&identity(number, &format!("app-{number}")));
    }
    allocator.told_up_to(api.version());
    let change = timeout(PATIENCE, allocator.next()).await.unwrap();
    assert_eq!(change.labels, web);
    assert!(matches!(change.news, News::Obstacle(_)), "{change:?}");
    assert_eq!(api.writes().len(), 2, "of kube-system's");
}

#[tokio::test]
async fn whoever_begins_before_the_first_list_goes_on_after_it() {
    let (_api, client) = FakeApi::start().await;
    let mut allocator = Allocator::from_api(client, Right::Create, 0);
    let web = of("shop", "web");
    allocator.hold(&web, None);
    allocator.told_up_to(1);
    let change = timeout(PATIENCE, allocator.next()).await.unwrap();
    assert!(matches!(change.news, News::Settled(_)), "{change:?}");
}

#[tokio::test]
async fn a_label_set_that_is_being_made_does_not_stand_in_its_own_way() {
    let (api, mut allocator, _) = but(reserve(ALL) + 1).await;
    allocator.hold(&of("shop", "web"), None);
    answered(&api, &mut allocator).await;
    // Whether its identity was made is not known: the number is its own until it has come to one.
    api.refuse(&[500]);
    let change = timeout(PATIENCE, allocator.next()).await.unwrap();
    assert!(matches!(change.news, News::Obstacle(_)), "{change:?}");
    let change = timeout(PATIENCE, allocator.next()).await.unwrap();
    assert!(matches!(change.news, News::Settled(_)), "{change:?}");
}
