//! An API server that misbehaves in every way at once, by a seed: whatever it did, what was told is what is.
//!
//! It never leaves an event out, which no watch can notice: that is the audit's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::time::sleep;

use super::*;

/// SplitMix64: the same choices for the same seed. (The watch's own jitter differs each time.)
#[derive(Clone)]
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// What etcd holds: every change there was.
#[derive(Default)]
struct Store {
    /// Name, and whether it was deleted; the version is the index and [`FIRST`].
    log: Vec<(String, bool)>,
    /// Watches that begin before it are told 410.
    oldest: u64,
}

const FIRST: u64 = 100;

impl Store {
    fn version(&self) -> u64 {
        FIRST + self.log.len() as u64
    }

    /// What there was at a version.
    fn at(&self, version: u64) -> BTreeMap<String, u64> {
        let mut objects = BTreeMap::new();
        for (version, (name, deleted)) in (FIRST + 1..=version).zip(&self.log) {
            if *deleted {
                objects.remove(name);
            } else {
                objects.insert(name.clone(), version);
            }
        }
        objects
    }

    /// The event that led to a version.
    fn event(&self, version: u64) -> Option<String> {
        let (name, deleted) = self.log.get((version - FIRST).checked_sub(1)? as usize)?;
        let kind = if *deleted { "DELETED" } else { "MODIFIED" };
        Some(format!("{}\n", json!({"type": kind, "object": object(name, version)})))
    }

    fn change(&mut self, choices: &mut Choices) {
        let name = format!("o{}", choices.below(9));
        let exists = self.at(self.version()).contains_key(&name);
        self.log.push((name, exists && choices.one_in(2)));
        if choices.one_in(40) {
            self.oldest = self.version();
        }
    }
}

#[derive(Clone)]
struct Api {
    store: Arc<Mutex<Store>>,
    changed: tokio::sync::watch::Sender<bool>,
    choices: Choices,
}

impl Api {
    /// Whether it misbehaves still.
    fn is_wild(&self) -> bool {
        *self.changed.borrow()
    }

    async fn answer(mut self, asked: Asked) {
        if self.is_wild() {
            match self.choices.below(16) {
                0 => return asked.refuse(),
                1 => return asked.status(503, &[]),
                2 => return asked.status(429, &[("Retry-After", "1")]),
                3 if self.choices.one_in(4) => return asked.status(410, &[]),
                4 => return sleep(Duration::from_secs(20)).await,
                _ => {}
            }
        }
        if asked.is_watch() { self.watch(asked).await } else { self.list(asked) }
    }

    /// A page of what there was when the first one was asked for.
    fn list(&mut self, asked: Asked) {
        let store = self.store.lock().unwrap();
        let (version, from) = match asked.query.get("continue") {
            Some(token) => {
                let (version, from) = token.split_once('.').unwrap();
                (version.parse().unwrap(), from.parse().unwrap())
            }
            None => (store.version(), 0),
        };
        let limit: usize = asked.query["limit"].parse().unwrap();
        let objects: Vec<Value> =
            store.at(version).iter().map(|(name, version)| object(name, *version)).collect();
        drop(store);
        let page: Vec<Value> = objects.iter().skip(from).take(limit).cloned().collect();
        let next =
            if from + limit < objects.len() { format!("{version}.{}", from + limit) } else { String::new() };
        let text =
            json!({"metadata": {"resourceVersion": version.to_string(), "continue": next}, "items": page})
                .to_string();
        let stream = asked.stream();
        if self.is_wild() && self.choices.one_in(10) {
            stream.write(&text[..self.choices.below(text.len() as u64) as usize]);
            if self.choices.one_in(2) {
                stream.cut();
            }
            return;
        }
        stream.write(&text);
    }

    async fn watch(&mut self, asked: Asked) {
        let mut version: u64 = asked.from().parse().unwrap();
        if version < self.store.lock().unwrap().oldest {
            return asked.status(410, &[]);
        }
        let stream = asked.stream();
        let mut changed = self.changed.subscribe();
        loop {
            let (next, after) = {
                let store = self.store.lock().unwrap();
                (store.event(version + 1), store.event(version + 2))
            };
            let Some(event) = next else {
                if timeout(Duration::from_secs(60), changed.changed()).await.is_err() {
                    stream.event("BOOKMARK", &object("", version));
                }
                if self.is_wild() && self.choices.one_in(40) {
                    // Silent from now on.
                    return stream.closed().await;
                }
                continue;
            };
            version += 1;
            match if self.is_wild() { self.choices.below(24) } else { u64::MAX } {
                0 => return stream.cut(),
                1 => return stream.write(&event[..self.choices.below(event.len() as u64) as usize]),
                2 => return stream.closed().await,
                3 => stream.write("{\"type\":\"MODIFIED\"\n"),
                4 if self.choices.one_in(4) => stream.event("ERROR", &json!({"code": 410})),
                5 => stream.event("ERROR", &json!({"code": 500})),
                6 => stream.write(&event.repeat(2)),
                7 => sleep(Duration::from_secs(self.choices.below(100))).await,
                8 | 9 if after.is_none() => {
                    // Its bookmark first.
                    stream.event("BOOKMARK", &object("", version));
                }
                8 | 9 if after.is_some() => {
                    // The later one first; both in one piece, as what is lost in between nobody could know.
                    stream.write(&(after.unwrap_or_default() + &event));
                    version += 1;
                    continue;
                }
                10 => return,
                _ => {}
            }
            stream.write(&event);
        }
    }
}

/// What someone holds who was told everything.
#[derive(Default)]
struct Held {
    objects: BTreeMap<String, u64>,
    listed: BTreeMap<String, u64>,
}

impl Held {
    fn take(&mut self, event: WatchEvent) {
        let read = |object: &RawValue| {
            let object: Value = serde_json::from_str(object.get()).unwrap();
            let text = |field: &str| object["metadata"][field].as_str().unwrap().to_owned();
            (text("name"), text("resourceVersion").parse::<u64>().unwrap())
        };
        match event {
            WatchEvent::ListBegins => self.listed.clear(),
            WatchEvent::Listed(items) => self.listed.extend(items.iter().map(|item| read(item))),
            WatchEvent::ListEnds { .. } => self.objects = std::mem::take(&mut self.listed),
            WatchEvent::Applied { object, version } => {
                assert_eq!(read(&object).1, version);
                self.objects.extend([read(&object)]);
            }
            WatchEvent::Deleted { object, .. } => {
                self.objects.remove(&read(&object).0);
            }
            WatchEvent::Bookmark { .. } | WatchEvent::KindGone => {}
        }
    }
}

/// One life of a watch; its status at the end.
async fn live(seed: u64) -> WatchStatus {
    let mut choices = Choices(seed);
    let api = Api {
        store: Arc::default(),
        changed: tokio::sync::watch::Sender::new(true),
        choices: Choices(seed ^ u64::MAX),
    };
    for _ in 0..choices.below(20) {
        api.store.lock().unwrap().change(&mut choices);
    }
    let (client, mut server) = scripted(&["http://a", "http://b"]);
    let answering = api.clone();
    let answers = tokio::spawn(async move {
        let mut api = answering;
        loop {
            let asked = server.next().await;
            api.choices.below(2);
            tokio::spawn(api.clone().answer(asked));
        }
    });
    let (to, mut told) = mpsc::channel(4);
    let options = WatchOptions { page: 3, ..WatchOptions::default() };
    let watch = Watch::start(client, services(), options, to);
    let held = Arc::new(Mutex::new(Held::default()));
    let holder = Arc::clone(&held);
    tokio::spawn(async move {
        while let Some((_, event)) = told.recv().await {
            holder.lock().unwrap().take(event);
        }
    });

    for _ in 0..60 {
        api.store.lock().unwrap().change(&mut choices);
        api.changed.send_modify(|_| {});
        let pause = if choices.one_in(20) { 70_000 } else { choices.below(2000) };
        sleep(Duration::from_millis(pause)).await;
        if choices.one_in(200) {
            watch.relist();
        }
    }
    api.changed.send_replace(false);
    let want = { api.store.lock().unwrap() }.at(u64::MAX);
    let calm = Instant::now();
    while held.lock().unwrap().objects != want {
        let status = watch.status();
        assert!(
            calm.elapsed() < Duration::from_secs(1200),
            "seed {seed}: {:?} is held and {want:?} is there: {status:?}",
            held.lock().unwrap().objects
        );
        sleep(Duration::from_secs(1)).await;
    }
    answers.abort();
    watch.status()
}

/// 200 lives; 10,000 with `PORTWAY_LONG`.
#[test]
fn whatever_an_api_server_did_what_was_told_is_what_is() {
    let lives = if std::env::var_os("PORTWAY_LONG").is_some() { 10_000 } else { 200 };
    let (mut relists, mut resumes, mut errors) = (0, 0, BTreeMap::<String, u64>::new());
    for seed in 0..lives {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let status = runtime.block_on(live(seed));
        relists += status.relists;
        resumes += status.resumes;
        for (reason, count) in status.errors {
            *errors.entry(reason).or_default() += count;
        }
    }
    println!("{resumes} resumes, {relists} relists, {errors:?}");
    // Every kind of misbehaviour came about, and most of it was answered without a list.
    for reason in [
        "410",
        "429",
        "500",
        "503",
        "backwards",
        "broken",
        "broken-answer",
        "ended",
        "gone",
        "half-line",
        "silent",
        "timeout",
        "undecodable",
        "unreachable",
    ] {
        assert!(errors.contains_key(reason), "no {reason} in {errors:?}");
    }
    assert!(resumes > 2 * relists && relists > lives / 2, "{resumes} resumes, {relists} relists");
}
