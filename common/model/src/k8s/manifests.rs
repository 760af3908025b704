use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::{Event, Format, ManifestError, Names, Object, ObjectKind, Reject, decode, document};

mod watched;

use watched::Sightings;
pub use watched::Watched;

/// The objects of a directory of manifests and of the API server, and what is wrong with them.
///
/// Of an object that several files have, the one in the first path counts, and in a file the first one; any file's
/// counts before the API server's. The others are named, and take over when it goes. A file that cannot be read keeps
/// the objects it had when it could.
#[derive(Debug, Default)]
pub struct Manifests {
    names: Names,
    files: BTreeMap<Arc<Path>, File>,
    objects: HashMap<Key, Vec<Holder>>,
    /// Objects that more than one has.
    by_rivalry: BTreeSet<Key>,
    watched: Sightings,
    /// Counts changes.
    pass: u64,
}

/// A file whose text is not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileProblem {
    pub path: PathBuf,
    /// With the line and the column, where there is one.
    pub reason: String,
    /// Objects of its last good text, which stay.
    pub kept_objects: usize,
}

/// What a file's new text, or its end, or what the API server told changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Deletions first, then what is new or different in the order of the file.
    pub events: Vec<Event>,
    /// The text was not used.
    pub problem: Option<FileProblem>,
    /// What is refused that was not before, for the log. [`Manifests::rejects`] has all there are.
    pub rejects: Vec<Reject>,
    /// Objects of the API server's that were not used, for newer ones are held.
    pub older: u64,
}

type Key = (ObjectKind, Arc<str>);

#[derive(Debug, Default)]
struct File {
    objects: Vec<Key>,
    rejects: Vec<Reject>,
    problem: Option<String>,
}

/// Who has an object. The smallest counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    File(Arc<Path>),
    ApiServer,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::ApiServer => f.write_str("the API server"),
        }
    }
}

#[derive(Debug)]
struct Holder {
    origin: Origin,
    object: Object,
    /// The pass that saw it last.
    pass: u64,
}

impl Manifests {
    pub fn new() -> Self {
        Self::default()
    }

    /// The text of a new or changed file. O(file), whatever the other files hold; an object that is as it was gives
    /// no event.
    pub fn apply(&mut self, path: &Path, bytes: &[u8]) -> Change {
        self.pass += 1;
        let path: Arc<Path> = match self.files.get_key_value(path) {
            Some((path, _)) => Arc::clone(path),
            None => Arc::from(path),
        };
        let origin = Origin::File(Arc::clone(&path));
        let mut rejects = Vec::new();
        let read = document::each(bytes, Format::Detect, |items| {
            let mut events = Vec::new();
            let mut keys = Vec::with_capacity(items.len());
            for item in &items {
                let Some(object) = decode::object(item, &mut self.names, &mut rejects) else {
                    continue;
                };
                let key = (object.kind(), Arc::clone(object.name()));
                match hold(&mut self.objects, &origin, key.clone(), object, self.pass) {
                    Held::Twice => rejects.push(twice(&key, "is in this file before; the first one counts")),
                    Held::Shadowed => keys.push(key),
                    Held::Same => keys.push(key),
                    Held::Wins(object) => {
                        events.push(Event::Apply(object));
                        keys.push(key);
                    }
                }
            }
            (events, keys)
        });
        match read {
            Err(error) => self.broken(&path, &error),
            Ok((events, keys)) => self.read(&path, events, keys, rejects),
        }
    }

    fn broken(&mut self, path: &Arc<Path>, error: &ManifestError) -> Change {
        let file = self.files.entry(Arc::clone(path)).or_default();
        let reason = error.to_string();
        file.problem = Some(reason.clone());
        let problem = FileProblem { path: path.to_path_buf(), reason, kept_objects: file.objects.len() };
        Change { problem: Some(problem), ..Change::default() }
    }

    fn read(
        &mut self,
        path: &Arc<Path>,
        applied: Vec<Event>,
        keys: Vec<Key>,
        rejects: Vec<Reject>,
    ) -> Change {
        let file = self.files.entry(Arc::clone(path)).or_default();
        file.problem = None;
        let old_keys = std::mem::replace(&mut file.objects, keys);
        let old_rejects: BTreeSet<Reject> = std::mem::take(&mut file.rejects).into_iter().collect();
        let mut new_rejects: Vec<_> = rejects.iter().filter(|r| !old_rejects.contains(r)).cloned().collect();
        file.rejects = rejects;
        let mut events = Vec::new();
        let origin = Origin::File(Arc::clone(path));
        for key in old_keys {
            events.extend(self.release(&origin, &key, self.pass));
        }
        events.extend(applied);
        self.note_rivals(path, &mut new_rejects);
        // Deletions first: what takes over a frontend then finds it free.
        events.sort_by_key(|event| matches!(event, Event::Apply(_)));
        Change { events, rejects: new_rejects, ..Change::default() }
    }

    /// A file that is gone. O(objects it had).
    pub fn remove(&mut self, path: &Path) -> Change {
        let Some((path, file)) = self.files.remove_entry(path) else {
            return Change::default();
        };
        self.pass += 1;
        let origin = Origin::File(path);
        let mut events: Vec<_> =
            file.objects.iter().filter_map(|key| self.release(&origin, key, self.pass)).collect();
        events.sort_by_key(|event| matches!(event, Event::Apply(_)));
        Change { events, ..Change::default() }
    }

    /// Objects, each once whoever has it.
    pub fn object_count(&self) -> usize {
        self.objects.len()
    }

    /// Whether a file's counts of an object. `name` is `namespace/name`, a Node's its name.
    pub fn is_from_file(&self, kind: ObjectKind, name: &Arc<str>) -> bool {
        let holders = self.objects.get(&(kind, Arc::clone(name)));
        holders
            .and_then(|holders| holders.first())
            .is_some_and(|first| matches!(first.origin, Origin::File(_)))
    }

    /// Files whose text is not used, in order of their paths. O(files).
    pub fn problems(&self) -> impl Iterator<Item = FileProblem> {
        self.files.iter().filter_map(|(path, file)| {
            let reason = file.problem.clone()?;
            Some(FileProblem { path: path.to_path_buf(), reason, kept_objects: file.objects.len() })
        })
    }

    /// Objects that a file has, those that another file's counts for too.
    pub fn object_count_of(&self, path: &Path) -> usize {
        self.files.get(path).map_or(0, |file| file.objects.len())
    }

    /// Everything that is refused at present: file by file, of the API server's objects, then objects that somebody
    /// else has too. O(files + refused).
    pub fn rejects(&self) -> impl Iterator<Item = Reject> {
        let of_files = self.files.values().flat_map(|file| file.rejects.iter().cloned());
        let rivals = self.by_rivalry.iter().filter_map(|key| Some((key, self.objects.get(key)?)));
        let of_watched = self.watched.rejects().cloned();
        of_files.chain(of_watched).chain(rivals.flat_map(|(key, holders)| {
            let winner = holders.first();
            holders.iter().skip(1).filter_map(move |loser| Some(rival(key, winner?, loser)))
        }))
    }

    /// Takes an object from `origin` unless `pass` saw it there; what changes by that.
    fn release(&mut self, origin: &Origin, key: &Key, pass: u64) -> Option<Event> {
        let holders = self.objects.get_mut(key)?;
        let at = holders.iter().position(|holder| holder.origin == *origin && holder.pass != pass)?;
        let gone = holders.remove(at);
        if holders.len() < 2 {
            self.by_rivalry.remove(key);
        }
        match holders.first() {
            None => {
                self.objects.remove(key);
                Some(Event::Delete(gone.object.key()))
            }
            Some(next) if at == 0 && next.object != gone.object => Some(Event::Apply(next.object.clone())),
            Some(_) => None,
        }
    }

    /// Names the rivalries that a file has part in and had not before.
    fn note_rivals(&mut self, path: &Path, rejects: &mut Vec<Reject>) {
        let Some(file) = self.files.get(path) else {
            return;
        };
        for key in &file.objects {
            note_rivals_of(&self.objects, &mut self.by_rivalry, key, rejects);
        }
    }
}

/// Names who has an object beside the one that counts, if nobody did before.
fn note_rivals_of(
    objects: &HashMap<Key, Vec<Holder>>,
    by_rivalry: &mut BTreeSet<Key>,
    key: &Key,
    rejects: &mut Vec<Reject>,
) {
    let Some([winner, losers @ ..]) = objects.get(key).map(Vec::as_slice) else {
        return;
    };
    if !losers.is_empty() && by_rivalry.insert(key.clone()) {
        rejects.extend(losers.iter().map(|loser| rival(key, winner, loser)));
    }
}

enum Held {
    /// It counts, and is new or different.
    Wins(Object),
    /// It counts, and is as it was.
    Same,
    /// Somebody else's counts.
    Shadowed,
    /// This pass has seen it there.
    Twice,
}

/// Notes that `origin` has `object`.
fn hold(
    objects: &mut HashMap<Key, Vec<Holder>>,
    origin: &Origin,
    key: Key,
    object: Object,
    pass: u64,
) -> Held {
    let holders = objects.entry(key).or_default();
    let at = holders.partition_point(|holder| holder.origin < *origin);
    let wins = at == 0;
    // An object that is as it was stays the one that others hold too.
    let (object, same) = match holders.first().filter(|_| wins) {
        Some(winner) if winner.object == object => (winner.object.clone(), true),
        Some(_) | None => (object, false),
    };
    match holders.get_mut(at).filter(|holder| holder.origin == *origin) {
        Some(holder) if holder.pass == pass => return Held::Twice,
        Some(holder) => {
            holder.pass = pass;
            holder.object = object.clone();
        }
        None => {
            holders.reserve_exact(1);
            holders.insert(at, Holder { origin: origin.clone(), object: object.clone(), pass });
        }
    }
    match (wins, same) {
        (false, _) => Held::Shadowed,
        (true, true) => Held::Same,
        (true, false) => Held::Wins(object),
    }
}

fn twice(key: &Key, reason: &str) -> Reject {
    let (kind, name) = key;
    let value = name.split_once('/').map_or(&**name, |(_, name)| name).to_owned();
    Reject {
        kind: kind.name().to_owned(),
        name: name.to_string(),
        field: "metadata.name".to_owned(),
        value,
        reason: reason.to_owned(),
    }
}

fn rival(key: &Key, winner: &Holder, loser: &Holder) -> Reject {
    let (winner, loser) = (&winner.origin, &loser.origin);
    let why = match loser {
        Origin::File(_) => "which counts as the first path",
        Origin::ApiServer => "which counts before the API server",
    };
    twice(key, &format!("is in {winner} too, {why}; {loser} is not used for it"))
}

#[cfg(test)]
mod tests;
