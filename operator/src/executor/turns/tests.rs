use std::sync::{Arc, Mutex};

use portway_runtime::kubernetes::WatchEvent;
use serde_json::json;

use super::*;
use crate::controller::Pace;

/// Wants its writes again and again until they are done.
struct Wants {
    writes: Vec<Write>,
    pace: Pace,
    again: Option<Duration>,
    done: Arc<Mutex<Vec<(String, Outcome)>>>,
}

impl Controller for Wants {
    fn name(&self) -> &'static str {
        "wants"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::CiliumNode, Kind::Node]
    }

    fn pace(&self, _observed: &Observed) -> Pace {
        self.pace
    }

    fn plan(&mut self, observed: &Observed, _now: Now) -> Plan {
        let is_wanted = |write: &&Write| match &write.change {
            Change::Delete { .. } => observed.meta(write.kind, &write.object).is_some(),
            Change::Create(_) | Change::Patch { .. } => observed.meta(write.kind, &write.object).is_none(),
        };
        let writes = self.writes.iter().filter(is_wanted).cloned().collect();
        Plan { writes, again: self.again, troubles: Vec::new() }
    }

    fn done(&mut self, write: &Write, outcome: &Outcome) {
        self.done.lock().unwrap().push((write.object.clone(), outcome.clone()));
    }
}

struct World {
    turns: Turns,
    observed: Observed,
    now: Duration,
    done: Arc<Mutex<Vec<(String, Outcome)>>>,
}

const SLOW: Pace = Pace { batch: 10, per_second: 1.0 };

fn creations(names: &[&str]) -> Vec<Write> {
    names.iter().map(|name| Write::create(Kind::CiliumNode, *name, json!({}), "test")).collect()
}

fn world(writes: Vec<Write>, pace: Pace) -> World {
    let done = Arc::new(Mutex::new(Vec::new()));
    let controller = Wants { writes, pace, again: None, done: Arc::clone(&done) };
    let mut world = World {
        turns: Turns::new(Box::new(controller)),
        observed: Observed::default(),
        now: Duration::from_secs(1000),
        done,
    };
    world.list(Kind::CiliumNode);
    world.list(Kind::Node);
    world
}

const fn done(version: u64) -> Answer {
    outcome(Outcome::Done { version })
}

const fn late() -> Answer {
    outcome(Outcome::Late)
}

const fn outcome(outcome: Outcome) -> Answer {
    Answer::Outcome { outcome, blames_server: false, is_refusal: false, retry_after: None }
}

fn failed(blames_server: bool) -> Answer {
    let outcome = Outcome::Failed("no".to_owned());
    Answer::Outcome { outcome, blames_server, is_refusal: false, retry_after: None }
}

fn refused() -> Answer {
    let outcome = Outcome::Failed("403".to_owned());
    Answer::Outcome { outcome, blames_server: false, is_refusal: true, retry_after: None }
}

impl World {
    fn now(&self) -> Now {
        Now { wall: self.now, monotonic: self.now }
    }

    fn list(&mut self, kind: Kind) {
        self.observed.take(kind, WatchEvent::ListBegins);
        self.observed.take(kind, WatchEvent::ListEnds { version: 1 });
        self.turns.note(kind);
    }

    fn tell(&mut self, name: &str, version: u64, is_there: bool) {
        let text = json!({"metadata": {"name": name, "uid": name, "resourceVersion": version.to_string()}});
        let object = serde_json::value::to_raw_value(&text).unwrap();
        let event = match is_there {
            true => WatchEvent::Applied { object, version },
            false => WatchEvent::Deleted { object, version },
        };
        self.observed.take(Kind::CiliumNode, event);
        self.turns.note(Kind::CiliumNode);
    }

    /// The writes of a turn that is due now.
    fn turn(&mut self) -> Vec<Write> {
        let now = self.now();
        self.turns.step(&self.observed, now).map(|turn| turn.writes).unwrap_or_default()
    }

    fn names(&mut self) -> Vec<String> {
        self.turn().into_iter().map(|write| write.object).collect()
    }

    /// The writes of the next turn that there is without another event, and how long it was waited for.
    fn next_turn(&mut self) -> (Vec<Write>, Duration) {
        let began = self.now;
        for _ in 0..1000 {
            let now = self.now();
            if let Some(turn) = self.turns.step(&self.observed, now)
                && !turn.writes.is_empty()
            {
                return (turn.writes, self.now - began);
            }
            let Some(next) = self.turns.next() else { break };
            self.now = next.max(self.now);
        }
        (Vec::new(), self.now - began)
    }

    fn answer(&mut self, write: &Write, answer: &Answer) {
        let now = self.now();
        self.turns.answered(write, answer, now);
    }
}

#[test]
fn there_is_no_turn_before_everything_was_listed_and_one_at_once_then() {
    let mut world = world(creations(&["a"]), SLOW);
    world.observed = Observed::default();
    assert_eq!(world.names(), [""; 0]);
    world.list(Kind::CiliumNode);
    assert_eq!(world.names(), [""; 0]);
    assert_eq!(world.turns.next(), None);
    world.list(Kind::Node);
    assert_eq!(world.names(), ["a"]);
}

#[test]
fn what_was_written_is_seen_before_the_next_plan() {
    let mut world = world(creations(&["a"]), SLOW);
    let written = world.turn();
    world.now += Duration::from_secs(1);
    world.turns.note(Kind::Node);
    assert_eq!(world.names(), [""; 0], "its answer is not there");
    world.answer(&written[0], &done(7));
    world.now += Duration::from_secs(1);
    assert_eq!(world.names(), [""; 0], "nobody has seen it");
    world.tell("other", 6, true);
    assert_eq!(world.names(), [""; 0], "that was before");
    world.tell("a", 7, true);
    assert_eq!(world.next_turn(), (Vec::new(), Duration::ZERO), "nothing more is wanted");
    assert_eq!(world.turns.report.plans, 2);
    assert_eq!(*world.done.lock().unwrap(), [("a".to_owned(), Outcome::Done { version: 7 })]);
}

#[test]
fn what_the_watches_never_tell_is_waited_for_half_a_minute() {
    let mut world = world(creations(&["a"]), SLOW);
    let written = world.turn();
    world.answer(&written[0], &done(7));
    let (writes, waited) = world.next_turn();
    assert_eq!((writes.len(), waited), (1, Duration::from_secs(30)));
}

#[test]
fn a_deletion_is_seen_when_the_object_is_gone_or_goes() {
    let meta = |uid: &str| crate::observed::Meta {
        namespace: "".into(),
        name: "a".into(),
        uid: uid.into(),
        version: 5,
        created: 0,
        is_deleting: false,
    };
    let mut world = world(vec![Write::delete(Kind::CiliumNode, &meta("a"), "test")], SLOW);
    world.tell("a", 5, true);
    let written = world.turn();
    world.answer(&written[0], &done(0));
    world.now += Duration::from_secs(1);
    world.tell("b", 6, true);
    assert_eq!(world.names(), [""; 0]);
    world.tell("a", 7, false);
    world.now += Duration::from_secs(1);
    world.turn();
    assert_eq!(world.turns.report.plans, 2);
}

#[test]
fn a_batch_is_sent_at_once_and_the_rest_at_the_pace() {
    let names: Vec<String> = (0..25).map(|number| format!("n{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = world(creations(&names), Pace { batch: 10, per_second: 10.0 });
    let began = world.now;
    let mut version = 10;
    let mut batches = Vec::new();
    loop {
        let (writes, _) = world.next_turn();
        if writes.is_empty() {
            break;
        }
        batches.push(writes.len());
        for write in writes {
            version += 1;
            world.answer(&write, &done(version));
            world.tell(&write.object.clone(), version, true);
        }
    }
    assert_eq!((batches[0], batches.iter().sum::<usize>()), (10, 25), "{batches:?}");
    let took = (world.now - began).as_secs_f64();
    assert!((1.4..1.8).contains(&took), "15 at ten a second in {took} s");
}

#[test]
fn turns_have_a_rest_in_between_however_many_events_come() {
    let mut world = world(Vec::new(), SLOW);
    let end = world.now + Duration::from_secs(1);
    let mut version = 10;
    while world.now < end {
        version += 1;
        world.tell("a", version, true);
        world.turn();
        world.now += Duration::from_millis(1);
    }
    let plans = world.turns.report.plans;
    assert!((10..=20).contains(&plans), "{plans} plans in a second");
}

#[test]
fn one_object_that_fails_is_left_alone_and_the_others_go_on() {
    let mut world = world(creations(&["bad", "good"]), SLOW);
    let written = world.turn();
    world.answer(&written[0], &failed(false));
    world.answer(&written[1], &done(7));
    world.tell("good", 7, true);
    let (writes, waited) = world.next_turn();
    assert_eq!(writes[0].object, "bad");
    assert!((0.5..=1.0).contains(&waited.as_secs_f64()), "{waited:?}");
    world.answer(&writes[0], &failed(false));
    let (_, waited) = world.next_turn();
    assert!((1.0..=2.0).contains(&waited.as_secs_f64()), "{waited:?}");
    assert_eq!(world.turns.report.failed, 2);
}

#[test]
fn who_came_too_late_looks_again_soon() {
    let mut world = world(creations(&["a"]), SLOW);
    let written = world.turn();
    world.answer(&written[0], &late());
    let (writes, waited) = world.next_turn();
    assert_eq!(writes.len(), 1);
    assert!(waited <= Duration::from_secs(1), "{waited:?}");
}

#[test]
fn a_server_that_fails_everything_is_left_alone_for_a_while() {
    let names: Vec<String> = (0..1000).map(|number| format!("n{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = world(creations(&names), Pace { batch: 10, per_second: 1000.0 });
    let end = world.now + Duration::from_secs(60);
    let mut sent = 0;
    while world.now < end {
        let (writes, _) = world.next_turn();
        for write in &writes {
            sent += 1;
            world.answer(write, &failed(true));
        }
    }
    assert!((50..=250).contains(&sent), "{sent} requests in a minute to a server that is away");
    // It is back.
    let (writes, waited) = world.next_turn();
    assert!(!writes.is_empty() && waited <= Duration::from_secs(5), "{waited:?}");
}

#[test]
fn a_kind_that_is_refused_is_asked_for_once_in_a_while_until_it_is_taken() {
    let names: Vec<String> = (0..5000).map(|number| format!("n{number:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = world(creations(&names), Pace { batch: 50, per_second: 1000.0 });
    let end = world.now + Duration::from_secs(600);
    let mut sent = 0;
    while world.now < end {
        let (writes, _) = world.next_turn();
        sent += writes.len();
        writes.iter().for_each(|write| world.answer(write, &refused()));
    }
    // The first batch, and three to six a minute at last.
    assert!((80..=115).contains(&sent), "{sent} writes in ten minutes");
    assert_eq!(world.turns.status(&Told::default(), world.now()).refused["CiliumNode"], "403");
    // Somebody mends the role.
    let (writes, waited) = world.next_turn();
    assert!(writes.len() == 1 && waited <= Duration::from_secs(20), "{} {waited:?}", writes.len());
    world.answer(&writes[0], &done(7));
    world.tell(&writes[0].object, 7, true);
    assert_eq!(world.next_turn().0.len(), 50);
}

#[test]
fn once_one_of_a_few_that_were_refused_is_taken_the_others_are_asked_for_at_once() {
    let mut world = world(creations(&["a", "b", "c", "d"]), Pace { batch: 50, per_second: 1000.0 });
    let end = world.now + Duration::from_secs(600);
    while world.now < end {
        let (writes, _) = world.next_turn();
        writes.iter().for_each(|write| world.answer(write, &refused()));
    }
    let (writes, waited) = world.next_turn();
    assert!(writes.len() == 1 && waited <= Duration::from_secs(20), "{} {waited:?}", writes.len());
    world.answer(&writes[0], &done(7));
    world.tell(&writes[0].object, 7, true);
    let (writes, waited) = world.next_turn();
    assert!(writes.len() == 3 && waited <= Duration::from_secs(1), "{} {waited:?}", writes.len());
}

#[test]
fn of_two_writes_of_one_object_the_first_one_counts() {
    let mut world = world(creations(&["a", "a", "b"]), SLOW);
    assert_eq!(world.names(), ["a", "b"]);
}

#[test]
fn what_a_fence_refused_is_no_failure_of_the_object() {
    let mut world = world(creations(&["a"]), SLOW);
    let written = world.turn();
    world.answer(&written[0], &Answer::Fenced);
    assert!(world.done.lock().unwrap().is_empty());
    let (writes, waited) = world.next_turn();
    assert_eq!((writes.len(), world.turns.report.fenced), (1, 1));
    assert!(waited >= FENCED_PAUSE, "{waited:?}");
}

#[test]
fn who_asks_for_a_later_turn_has_it_without_an_event() {
    let mut world = world(Vec::new(), SLOW);
    let controller =
        Wants { writes: Vec::new(), pace: SLOW, again: Some(Duration::from_secs(300)), done: Arc::default() };
    world.turns = Turns::new(Box::new(controller));
    world.turn();
    assert_eq!(world.turns.next(), Some(world.now + Duration::from_secs(300)));
    world.now += Duration::from_secs(300);
    world.turn();
    assert_eq!(world.turns.report.plans, 2);
}
