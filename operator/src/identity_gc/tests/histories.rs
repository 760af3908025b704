use portway_runtime::kubernetes::WatchEvent;

use super::*;

/// How the history of a cluster goes.
struct Story {
    config: Config,
    /// The shortest time between mark and delete, in seconds.
    marked: i64,
    /// Pods' labels alone show who is used; else it is endpoints.
    are_pods: bool,
}

/// Who uses numbers, and since when that is so.
#[derive(Default)]
struct Users {
    numbers: BTreeSet<u32>,
    /// Of those whose references are still to be written.
    due: BTreeMap<u32, i64>,
}

impl Users {
    /// As an agent does: it has the identity, unmarked, uses its number, and writes the reference in a while.
    fn begin(&mut self, rig: &mut Rig, number: u32, story: &Story, until: i64) {
        let name = number.to_string();
        if rig.api.get(Kind::CiliumIdentity, &name).is_none() {
            rig.identity(number, &format!("app-{number}"));
        }
        if story.are_pods {
            let fields = json!({"metadata": {"labels": {"app": format!("app-{number}")}},
                "spec": {"serviceAccountName": "default"}});
            rig.api.put(Kind::Pod, &format!("shop/pod-{number}"), fields);
        }
        let unmarked = json!({"metadata": {"annotations": {HEARTBEAT: null}}});
        rig.api.put(Kind::CiliumIdentity, &name, unmarked);
        self.numbers.insert(number);
        self.due.insert(number, until);
    }

    fn refer(&mut self, rig: &mut Rig, story: &Story) {
        for (number, until) in std::mem::take(&mut self.due) {
            if rig.api.clock < until {
                self.due.insert(number, until);
            } else if !story.are_pods {
                rig.endpoint(&format!("pod-{number}"), number);
            }
        }
    }

    fn end(&mut self, rig: &mut Rig, number: u32) {
        rig.api.remove(Kind::CiliumEndpoint, &format!("shop/pod-{number}"));
        rig.api.remove(Kind::Pod, &format!("shop/pod-{number}"));
        self.numbers.remove(&number);
        self.due.remove(&number);
    }
}

/// Its watches tell everything, and bookmarks that it was everything.
fn catch_up(replica: &mut Replica, api: &FakeApi) {
    replica.catch_up(api);
    let version = Kind::ALL.map(|kind| replica.observed.version(kind)).into_iter().max().unwrap();
    for kind in Kind::ALL {
        replica.observed.take(kind, WatchEvent::Bookmark { version });
    }
}

/// Identities come into use and out of it, references are written late, watches tell late, writes fail, and two collectors
/// are at work: what is in use, marked or not, is never deleted, and at rest all others are. How many were deleted.
fn history(seed: u64, story: &Story) -> usize {
    let mut dice = Dice(seed);
    let mut rig = Rig::new(story.config.clone());
    rig.api.put(Kind::Namespace, "shop", json!({}));
    rig.replica.catch_up(&rig.api);
    let mut other = Replica::new(&rig.api);
    let mut second = IdentityGc::new(story.config.clone(), Metrics::new(&Registry::new()).unwrap());
    let (mut users, mut heard, mut deleted) = (Users::default(), rig.api.clock, 0);
    // Reference and watch are late by so much and a step each, together less than the wait.
    let (late, step) = (story.marked * 8 / 30, story.marked as usize / 10);
    for _ in 0..300 {
        rig.api.clock += dice.roll(step) as i64;
        let number = 300 + dice.roll(6) as u32;
        match dice.roll(5) {
            0 if !users.numbers.contains(&number) => {
                let until = rig.api.clock + dice.roll(late as usize) as i64;
                users.begin(&mut rig, number, story, until);
            }
            1 => users.end(&mut rig, number),
            2 => {
                let kind = [Kind::CiliumIdentity, Kind::CiliumEndpoint, Kind::Pod][dice.roll(3)];
                rig.replica.follow(&rig.api, kind, dice.roll(4));
                other.follow(&rig.api, kind, dice.roll(4));
            }
            _ => {
                let now = rig.now();
                let (gc, replica) =
                    if dice.roll(2) == 0 { (&mut rig.gc, &rig.replica) } else { (&mut second, &other) };
                for write in gc.plan(&replica.observed, now).writes {
                    let outcome = match dice.roll(4) {
                        0 => Outcome::Failed("503".to_owned()),
                        _ => rig.api.write(&write),
                    };
                    let is_delete = matches!(write.change, Change::Delete { .. });
                    deleted += usize::from(is_delete && matches!(outcome, Outcome::Done { .. }));
                    gc.done(&write, &outcome);
                }
            }
        }
        users.refer(&mut rig, story);
        if rig.api.clock - heard > late {
            catch_up(&mut rig.replica, &rig.api);
            catch_up(&mut other, &rig.api);
            heard = rig.api.clock;
        }
        let there: BTreeSet<u32> = rig.numbers().iter().map(|name| name.parse().unwrap()).collect();
        assert!(users.numbers.is_subset(&there), "seed {seed}: {:?} {there:?}", users.numbers);
    }
    rig.api.clock += late;
    users.refer(&mut rig, story);
    for _ in 0..20 {
        rig.after(story.config.timeout.as_secs() as i64);
    }
    let there: BTreeSet<u32> = rig.numbers().iter().map(|name| name.parse().unwrap()).collect();
    assert_eq!(there, users.numbers, "seed {seed}");
    deleted
}

#[test]
fn no_history_takes_an_identity_from_its_users() {
    let of_endpoints = Story { config: config(), marked: TIMEOUT, are_pods: false };
    let of_pods = Story { config: with_pods(), marked: TIMEOUT, are_pods: true };
    // Six numbers, which are often all taken.
    let few = NumberRange::narrowed(0, 300, 305).unwrap();
    let short = |config| Config { range: few, timeout: HALF_AN_HOUR, ..config };
    let short_of_numbers = Story { config: short(config()), marked: 180, are_pods: false };
    let short_of_pods = Story { config: short(with_pods()), marked: 180, are_pods: true };
    for (name, story) in [
        ("endpoints", of_endpoints),
        ("pods", of_pods),
        ("endpoints, few numbers", short_of_numbers),
        ("pods, few numbers", short_of_pods),
    ] {
        let deleted: usize = (0..50).map(|seed| history(seed, &story)).sum();
        assert!(deleted > 100, "{name}: {deleted} deletes in 50 histories say little");
    }
}
