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
    /// Those of files. The API server's are with what is known of them beside.
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

/// Who has an object. A file counts before the API server, and of files the first path.
#[derive(Clone, Debug)]
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

/// A file that has an object.
#[derive(Debug)]
struct Holder {
    path: Arc<Path>,
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
        let mut rejects = Vec::new();
        let read = document::each(bytes, Format::Detect, |items| {
            let mut events = Vec::new();
            let mut keys = Vec::with_capacity(items.len());
            for item in &items {
                let Some(object) = decode::object(item, &mut self.names, &mut rejects) else {
                    continue;
                };
                let key = (object.kind(), Arc::clone(object.name()));
                match hold(&mut self.objects, &self.watched, &path, key.clone(), object, self.pass) {
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
        for key in old_keys {
            events.extend(self.release(path, &key, self.pass));
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
        let mut events: Vec<_> =
            file.objects.iter().filter_map(|key| self.release(&path, key, self.pass)).collect();
        events.sort_by_key(|event| matches!(event, Event::Apply(_)));
        Change { events, ..Change::default() }
    }

    /// Objects, each once whoever has it.
    pub fn object_count(&self) -> usize {
        let twice = self.by_rivalry.iter().filter(|key| self.watched.object(key).is_some());
        self.objects.len() + self.watched.object_count() - twice.count()
    }

    /// Whether a file's counts of an object. `name` is `namespace/name`, a Node's its name.
    pub fn is_from_file(&self, kind: ObjectKind, name: &Arc<str>) -> bool {
        self.objects.contains_key(&(kind, Arc::clone(name)))
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
        let of_watched = self.watched.rejects().cloned();
        let rivals = self.by_rivalry.iter().flat_map(|key| rivals(&self.objects, &self.watched, key));
        of_files.chain(of_watched).chain(rivals)
    }

    /// Takes an object from a file unless `pass` saw it there; what changes by that.
    fn release(&mut self, path: &Arc<Path>, key: &Key, pass: u64) -> Option<Event> {
        let holders = self.objects.get_mut(key)?;
        let at = holders.iter().position(|holder| holder.path == *path && holder.pass != pass)?;
        let gone = holders.remove(at).object;
        let watched = self.watched.object(key);
        if holders.len() + usize::from(watched.is_some()) < 2 {
            self.by_rivalry.remove(key);
        }
        let next = holders.first().map(|holder| &holder.object).or(watched);
        let event = match next {
            None => Some(Event::Delete(gone.key())),
            Some(next) if at == 0 && *next != gone => Some(Event::Apply(next.clone())),
            Some(_) => None,
        };
        if holders.is_empty() {
            self.objects.remove(key);
        }
        event
    }

    /// Names the rivalries that a file has part in and had not before.
    fn note_rivals(&mut self, path: &Path, rejects: &mut Vec<Reject>) {
        let Some(file) = self.files.get(path) else {
            return;
        };
        for key in &file.objects {
            note_rivals_of(&self.objects, &self.watched, &mut self.by_rivalry, key, rejects);
        }
    }
}

/// Names who has an object beside the one that counts, if nobody did before.
fn note_rivals_of(
    objects: &HashMap<Key, Vec<Holder>>,
    watched: &Sightings,
    by_rivalry: &mut BTreeSet<Key>,
    key: &Key,
    rejects: &mut Vec<Reject>,
) {
    let mut named = rivals(objects, watched, key).peekable();
    if named.peek().is_some() && by_rivalry.insert(key.clone()) {
        rejects.extend(named);
    }
}

/// Who has an object beside the one that counts.
fn rivals<'m>(
    objects: &'m HashMap<Key, Vec<Holder>>,
    watched: &'m Sightings,
    key: &'m Key,
) -> impl Iterator<Item = Reject> + use<'m> {
    let files = objects.get(key).map_or(&[][..], Vec::as_slice);
    let of_files = files.iter().map(|holder| Origin::File(Arc::clone(&holder.path)));
    let mut all = of_files.chain(watched.object(key).map(|_| Origin::ApiServer));
    let winner = all.next();
    all.filter_map(move |loser| Some(rival(key, winner.as_ref()?, &loser)))
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

/// Notes that a file has `object`.
fn hold(
    objects: &mut HashMap<Key, Vec<Holder>>,
    watched: &Sightings,
    path: &Arc<Path>,
    key: Key,
    object: Object,
    pass: u64,
) -> Held {
    let of_api_server = watched.object(&key);
    let holders = objects.entry(key).or_default();
    let at = holders.partition_point(|holder| holder.path < *path);
    let wins = at == 0;
    // An object that is as it was stays the one that others hold too.
    let counts = holders.first().map(|holder| &holder.object).or(of_api_server);
    let (object, same) = match counts.filter(|_| wins) {
        Some(winner) if *winner == object => (winner.clone(), true),
        Some(_) | None => (object, false),
    };
    match holders.get_mut(at).filter(|holder| holder.path == *path) {
        Some(holder) if holder.pass == pass => return Held::Twice,
        Some(holder) => {
            holder.pass = pass;
            holder.object = object.clone();
        }
        None => {
            holders.reserve_exact(1);
            holders.insert(at, Holder { path: Arc::clone(path), object: object.clone(), pass });
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

fn rival(key: &Key, winner: &Origin, loser: &Origin) -> Reject {
    let why = match loser {
        Origin::File(_) => "which counts as the first path",
        Origin::ApiServer => "which counts before the API server",
    };
    twice(key, &format!("is in {winner} too, {why}; {loser} is not used for it"))
}

#[cfg(test)]
mod tests;
