use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::*;

fn prefix(text: &str) -> Prefix {
    Prefix::parse(text).unwrap()
}

fn addr(text: &str) -> Addr {
    Addr::from(text.parse::<IpAddr>().unwrap())
}

fn ipam(prefixes: &[&str]) -> Ipam {
    let mut ipam = Ipam::default();
    ipam.set_prefixes(&prefixes.iter().map(|text| prefix(text)).collect::<Vec<_>>());
    ipam
}

fn all(ipam: &mut Ipam, family: Family, now: Instant) -> Vec<String> {
    std::iter::from_fn(|| ipam.allocate(family, now).ok())
        .map(|addr| IpAddr::from(addr).to_string())
        .collect()
}

#[test]
fn network_broadcast_and_health_endpoint_are_not_given() {
    let now = Instant::now();
    let mut ipam = ipam(&["10.0.0.0/29", "fd00::/126"]);
    assert_eq!(all(&mut ipam, Family::V4, now), ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    assert_eq!(all(&mut ipam, Family::V6, now), ["fd00::2", "fd00::3"]);
    let error = ipam.allocate(Family::V4, now).unwrap_err();
    assert_eq!(error.to_string(), "no IPv4 address is free for a pod: 10.0.0.0/29 has 5 and all are in use");
}

#[test]
fn prefixes_with_no_room_for_a_pod_give_none() {
    let now = Instant::now();
    for small in ["10.0.0.0/32", "10.0.0.0/31", "10.0.0.0/30"] {
        let given = all(&mut ipam(&[small]), Family::V4, now);
        assert_eq!(given.len(), usize::from(small.ends_with("/30")), "{small}: {given:?}");
    }
    assert_eq!(all(&mut ipam(&["fd00::/128"]), Family::V6, now), Vec::<String>::new());
    assert_eq!(ipam(&[]).allocate(Family::V4, now), Err(IpamError::NoPrefix));
}

#[test]
fn the_second_prefix_of_a_family_is_used_after_the_first_and_can_become_the_first() {
    let now = Instant::now();
    let mut ipam = ipam(&["10.0.0.0/30", "10.0.1.0/30"]);
    // 10.0.1.1 is the health endpoint's once 10.0.1.0/30 is the node's first one.
    assert_eq!(all(&mut ipam, Family::V4, now), ["10.0.0.2", "10.0.1.2"]);
}

#[test]
fn an_address_that_a_pod_has_is_not_given_again_when_the_prefix_around_it_changes() {
    let now = Instant::now();
    for (before, after) in [
        (["10.0.1.0/24"].as_slice(), ["10.0.0.0/23"].as_slice()),
        (&["10.0.0.0/23"], &["10.0.1.0/24"]),
        // What an earlier word of the node leaves out is taken over too.
        (&["10.0.0.0/24", "10.0.1.0/24"], &["10.0.0.0/23", "10.0.1.0/24"]),
        (&["fd00::/120"], &["fd00::/119"]),
    ] {
        let mut ipam = ipam(before);
        let family = prefix(before[0]).family();
        let mut held: BTreeSet<_> = all(&mut ipam, family, now).into_iter().collect();
        let rests = held.iter().next_back().unwrap().clone();
        held.remove(&rests);
        ipam.release(addr(&rests), now);
        ipam.set_prefixes(&after.iter().map(|text| prefix(text)).collect::<Vec<_>>());
        let used: usize = ipam.usage(now).iter().map(|pool| pool.used).sum();
        assert_eq!(used, held.len(), "{before:?} {after:?}");
        // Each is known, wherever it is now, and what rests comes last.
        assert!(held.iter().all(|addr_| !ipam.restore(addr(addr_))), "{before:?} {after:?}");
        let given = all(&mut ipam, family, now);
        assert!(given.iter().all(|addr| !held.contains(addr)), "{before:?} {after:?}: {given:?}");
        if prefix(after[0]).contains(addr(&rests)) {
            assert_eq!(given.last(), Some(&rests), "{before:?} {after:?}");
        }
        for addr_ in held.iter().chain(&given) {
            ipam.release(addr(addr_), now);
        }
        let left: Vec<_> = ipam.usage(now).iter().map(|pool| (pool.is_retired, pool.used)).collect();
        assert_eq!(left, [(false, 0)], "{before:?} {after:?}");
    }
}

#[test]
fn what_was_freed_rests_though_its_prefix_is_gone_in_between() {
    let now = Instant::now();
    let mut ipam = ipam(&["10.0.0.0/29"]);
    let pods: Vec<_> = (0..2).map(|_| ipam.allocate(Family::V4, now).unwrap()).collect();
    ipam.release(pods[0], now);
    ipam.set_prefixes(&[prefix("10.0.1.0/29")]);
    ipam.release(pods[1], now);
    ipam.set_prefixes(&[prefix("10.0.0.0/28")]);
    assert_eq!(ipam.allocate(Family::V4, now).unwrap(), addr("10.0.0.4"));
    assert_eq!(ipam.usage(now)[0].resting, 2);
}

#[test]
fn what_the_health_endpoint_has_is_given_to_nobody_and_what_a_pod_has_not_to_it() {
    let now = Instant::now();
    let mut ipam = ipam(&["10.0.0.4/30"]);
    assert_eq!(ipam.reserve(&[addr("10.0.0.5")]), Ok(()));
    let pod = ipam.allocate(Family::V4, now).unwrap();
    // It moves in a while; the address is within the new prefix, and not its first.
    ipam.set_prefixes(&[prefix("10.0.0.0/29")]);
    assert_eq!(all(&mut ipam, Family::V4, now), ["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    assert_eq!(ipam.reserve(&[addr("10.0.0.1")]), Ok(()));
    assert_eq!(all(&mut ipam, Family::V4, now), ["10.0.0.5"]);
    assert_eq!(ipam.reserve(&[pod]), Err(pod));
    assert!(!ipam.restore(addr("10.0.0.1")), "a pod took the health endpoint's address");
}

#[test]
fn a_freed_address_rests_while_there_are_others() {
    let now = Instant::now();
    let mut ipam = ipam(&["10.0.0.0/29"]);
    let first = ipam.allocate(Family::V4, now).unwrap();
    ipam.release(first, now);
    // 3, 4, 5 and 6; only then the one that rests.
    let given: Vec<_> = (0..4).map(|_| ipam.allocate(Family::V4, now).unwrap()).collect();
    assert!(!given.contains(&first), "{given:?}");
    assert_eq!(ipam.usage(now)[0].resting, 1);
    assert_eq!(ipam.allocate(Family::V4, now).unwrap(), first);
    assert!(ipam.allocate(Family::V4, now).is_err());
    // Of several that rest the one that was freed first.
    ipam.release(given[2], now);
    ipam.release(given[0], now + Duration::from_secs(1));
    assert_eq!(ipam.allocate(Family::V4, now + Duration::from_secs(2)).unwrap(), given[2]);
}

#[test]
fn a_freed_address_does_not_come_at_once_after_a_restart() {
    let now = Instant::now();
    let mut ipam = ipam(&["10.0.0.0/24"]);
    for restored in ["10.0.0.2", "10.0.0.9"] {
        assert!(ipam.restore(addr(restored)));
        assert!(!ipam.restore(addr(restored)), "{restored} was given twice");
    }
    assert_eq!(ipam.allocate(Family::V4, now).unwrap(), addr("10.0.0.10"));
}

#[test]
fn addresses_that_were_restored_before_the_prefixes_came_are_not_given_again() {
    let now = Instant::now();
    let mut ipam = Ipam::default();
    for restored in ["10.0.0.2", "10.0.0.4", "192.0.2.1"] {
        ipam.restore(addr(restored));
    }
    ipam.set_prefixes(&[prefix("10.0.0.0/29")]);
    assert_eq!(ipam.outside().collect::<Vec<_>>(), [addr("192.0.2.1")]);
    assert_eq!(all(&mut ipam, Family::V4, now), ["10.0.0.5", "10.0.0.6", "10.0.0.3"]);
    ipam.release(addr("192.0.2.1"), now);
    assert_eq!(ipam.outside().count(), 0);
}

#[test]
fn an_address_that_was_freed_before_the_prefixes_came_rests_too() {
    let now = Instant::now();
    let mut ipam = Ipam::default();
    for restored in ["10.0.0.2", "10.0.0.3"] {
        ipam.restore(addr(restored));
    }
    ipam.release(addr("10.0.0.3"), now);
    ipam.set_prefixes(&[prefix("10.0.0.0/29")]);
    assert_eq!(ipam.allocate(Family::V4, now).unwrap(), addr("10.0.0.4"));
}

#[test]
fn a_prefix_that_leaves_the_node_gives_nothing_and_goes_with_its_last_pod() {
    let now = Instant::now();
    let mut ipam = ipam(&["10.0.0.0/24"]);
    let pod = ipam.allocate(Family::V4, now).unwrap();
    ipam.set_prefixes(&[prefix("10.0.1.0/24")]);
    let usage = ipam.usage(now);
    assert_eq!(
        usage.iter().map(|pool| (pool.is_retired, pool.used)).collect::<Vec<_>>(),
        [(false, 0), (true, 1)]
    );
    assert_eq!(ipam.allocate(Family::V4, now).unwrap(), addr("10.0.1.2"));
    ipam.release(pod, now);
    assert_eq!(ipam.usage(now).len(), 1);
}

#[test]
fn of_prefixes_that_overlap_the_first_counts() {
    let now = Instant::now();
    let mut ipam = ipam(&["10.0.0.0/29", "10.0.0.0/24"]);
    assert_eq!(all(&mut ipam, Family::V4, now).len(), 5);
}

#[test]
fn a_hundred_thousand_pods_come_and_go_and_nothing_leaks_or_is_given_twice() {
    let mut now = Instant::now();
    // Each change leaves pods in prefixes that the node has no longer, and in others that overlap them.
    const CHANGES: [&[&str]; 5] = [
        &["10.0.0.0/25", "10.0.3.0/27", "fd00::/64"],
        &["10.0.0.64/26", "fd00::/65", "10.0.3.0/24"],
        &["10.0.3.0/27", "10.0.0.0/22", "fd00::/63"],
        &["fd00::/120", "10.0.0.0/22", "10.0.0.0/25"],
        &["10.0.1.0/24"],
    ];
    let mut ipam = ipam(CHANGES[0]);
    let (mut held, mut reserved) = (BTreeSet::new(), Vec::new());
    let mut random = 1u64;
    for _ in 0..100_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        now += Duration::from_millis(random >> 53);
        if random >> 20 & 0xff == 0 {
            let change = CHANGES[usize::try_from(random >> 48).unwrap() % CHANGES.len()];
            ipam.set_prefixes(&change.iter().map(|text| prefix(text)).collect::<Vec<_>>());
            let health = change.iter().map(|text| prefix(text).nth(1).unwrap());
            let health: Vec<_> = health.filter(|addr| !held.contains(addr)).collect();
            assert_eq!(ipam.reserve(&health), Ok(()));
            reserved = health;
        }
        let family = if random >> 40 & 1 == 0 { Family::V4 } else { Family::V6 };
        if random >> 33 & 1 == 0 || held.len() > 250 {
            let nth = usize::try_from(random >> 48).unwrap() % held.len().max(1);
            if let Some(addr) = held.iter().nth(nth).copied() {
                held.remove(&addr);
                ipam.release(addr, now);
                ipam.release(addr, now);
            }
        } else if let Ok(addr) = ipam.allocate(family, now) {
            assert!(!reserved.contains(&addr), "{addr:?} is the health endpoint's");
            assert!(held.insert(addr), "{addr:?} was given twice");
        }
        let used: usize = ipam.usage(now).iter().map(|pool| pool.used).sum();
        assert_eq!(used, held.len());
    }
    for addr in held {
        ipam.release(addr, now);
    }
    ipam.set_prefixes(&CHANGES[0].iter().map(|text| prefix(text)).collect::<Vec<_>>());
    assert_eq!(ipam.reserve(&[]), Ok(()));
    assert_eq!(ipam.usage(now).len(), 3);
    assert_eq!(all(&mut ipam, Family::V4, now).len(), 125 + 29);
}
