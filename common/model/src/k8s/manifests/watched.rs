//! Objects that the API server told of.
//!
//! Versions are the API server's `metadata.resourceVersion`: all objects of a cluster count in one sequence.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;

use super::{Key, Manifests, note_rivals_of};
use crate::k8s::{Change, Event, Names, Object, ObjectKind, Reject, decode, raw::Text};

/// What a watch of one kind told. Objects are JSON; those of a list may lack kind and apiVersion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched<'a> {
    /// A list of everything there is begins. One that had begun and did not end is void.
    ListBegins,
    /// An element of the list. It replaces what is held even if it is older: a cluster that was put back to an
    /// earlier state has older objects.
    Listed(&'a str),
    /// The list is whole: what it lacked is gone. Without a beginning it says nothing.
    ListEnds,
    /// An object is new or different, unless it is older than the one held.
    Applied(&'a str),
    /// An object is gone, unless this one is older than the one held.
    Deleted(&'a str),
}

/// What is known of the API server's objects beside what they say.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    kinds: BTreeMap<ObjectKind, Kind>,
    /// Of objects that are there, those refused as a whole included.
    rejects: BTreeMap<Key, Vec<Reject>>,
}

#[derive(Debug, Default)]
struct Kind {
    objects: HashMap<Arc<str>, Sighting>,
    /// How many of them have something in them.
    whole: usize,
    /// The list that is being read.
    listing: Option<u64>,
    /// The last list that began.
    last_list: u64,
}

#[derive(Debug)]
struct Sighting {
    /// 0 where it says none.
    version: u64,
    /// 0 where it has none. In bytes: there are as many as pods in the cluster, and a number would have gaps around it.
    uid: [u8; 16],
    /// The list that was being read, or had been read last, when it was seen last.
    list: u64,
    /// `None` where it is refused as a whole.
    object: Option<Object>,
}

const _: () = assert!(size_of::<Sighting>() == 48);

impl Manifests {
    /// What the API server told of objects of a kind. O(object); the end of a list O(objects of the kind).
    ///
    /// An object that is refused as a whole counts as there, without anything in it. Of an object that a file has too,
    /// the file's counts.
    pub fn watched(&mut self, kind: ObjectKind, event: Watched<'_>) -> Change {
        let known = self.watched.kinds.entry(kind).or_default();
        match event {
            Watched::ListBegins => {
                known.last_list += 1;
                known.listing = Some(known.last_list);
                Change::default()
            }
            Watched::ListEnds => self.list_ends(kind),
            Watched::Listed(text) => self.seen(kind, text, true),
            Watched::Applied(text) => self.seen(kind, text, false),
            Watched::Deleted(text) => {
                let seen = Identity::read(kind, text);
                match known.objects.get_key_value(&*seen.name) {
                    None => Change::default(),
                    Some((_, held)) if seen.is_older(held.version) => {
                        Change { older: 1, ..Change::default() }
                    }
                    Some((name, _)) => {
                        let name = Arc::clone(name);
                        Change { events: self.gone((kind, name)).into_iter().collect(), ..Change::default() }
                    }
                }
            }
        }
    }

    /// The API server's objects of a kind with their versions, for a comparison with what it has. In no order.
    pub fn versions(&self, kind: ObjectKind) -> impl Iterator<Item = (&str, u64)> {
        let objects = self.watched.kinds.get(&kind).into_iter().flat_map(|kind| &kind.objects);
        objects.filter(|(name, _)| !name.is_empty()).map(|(name, sighting)| (&**name, sighting.version))
    }

    /// The API server's objects of a kind.
    pub fn watched_count(&self, kind: ObjectKind) -> usize {
        self.watched.kinds.get(&kind).map_or(0, |kind| kind.objects.len())
    }

    /// `metadata.uid` of an object of the API server's. `name` is `namespace/name`, a Node's its name.
    pub fn uid(&self, kind: ObjectKind, name: &str) -> Option<String> {
        let uid = u128::from_be_bytes(self.watched.kinds.get(&kind)?.objects.get(name)?.uid);
        (uid != 0).then(|| uid_text(uid))
    }

    fn seen(&mut self, kind: ObjectKind, text: &str, in_list: bool) -> Change {
        let seen = Identity::read(kind, text);
        let Some(known) = self.watched.kinds.get_mut(&kind) else {
            return Change::default();
        };
        // Nobody else names these, of which there are as many as pods.
        let mut of_one = Names::default();
        let names = if kind == ObjectKind::CiliumEndpoint { &mut of_one } else { &mut self.names };
        let name = match known.objects.get_key_value(&*seen.name) {
            Some((name, _)) => names.hold(name),
            None => names.get(&seen.name),
        };
        let list = known.last_list;
        let held = known.objects.entry(Arc::clone(&name)).or_insert(Sighting {
            version: 0,
            uid: [0; 16],
            list,
            object: None,
        });
        if !in_list && seen.is_older(held.version) {
            return Change { older: 1, ..Change::default() };
        }
        held.list = list;
        // In a list also an object of the same version is read: of a cluster that was put back to an earlier state
        // versions come again.
        if !in_list && seen.version != 0 && held.version == seen.version {
            return Change::default();
        }
        (held.version, held.uid) = (seen.version, seen.uid.to_be_bytes());
        let mut rejects = Vec::new();
        let object = decode::of_the_kind(kind, text, None, names, &mut rejects);
        let key = (kind, name);
        let mut new_rejects = self.watched.keep_rejects(&key, rejects);
        let event = match object {
            None => self.empty(&key),
            Some(object) => {
                let is_news = self.watched.fill(&key, &object);
                note_rivals_of(&self.objects, &self.watched, &mut self.by_rivalry, &key, &mut new_rejects);
                (is_news && !self.objects.contains_key(&key)).then_some(Event::Apply(object))
            }
        };
        Change { events: event.into_iter().collect(), rejects: new_rejects, ..Change::default() }
    }

    fn list_ends(&mut self, kind: ObjectKind) -> Change {
        let Some(known) = self.watched.kinds.get_mut(&kind) else {
            return Change::default();
        };
        let Some(list) = known.listing.take() else {
            return Change::default();
        };
        let lacked = known.objects.iter().filter(|(_, sighting)| sighting.list != list);
        let mut lacked: Vec<Key> = lacked.map(|(name, _)| (kind, Arc::clone(name))).collect();
        lacked.sort_unstable();
        let mut events: Vec<_> = lacked.into_iter().filter_map(|key| self.gone(key)).collect();
        // What takes over a frontend then finds it free.
        events.sort_by_key(|event| matches!(event, Event::Apply(_)));
        Change { events, ..Change::default() }
    }

    /// The API server has it no more.
    fn gone(&mut self, key: Key) -> Option<Event> {
        let event = self.empty(&key);
        if let Some(known) = self.watched.kinds.get_mut(&key.0) {
            known.objects.remove(&key.1);
        }
        self.watched.rejects.remove(&key);
        event
    }

    /// The API server's object has nothing in it any more; what changes by that.
    fn empty(&mut self, key: &Key) -> Option<Event> {
        let gone = self.watched.empty(key)?;
        let files = self.objects.get(key).map_or(0, Vec::len);
        if files < 2 {
            self.by_rivalry.remove(key);
        }
        (files == 0).then(|| Event::Delete(gone.key()))
    }
}

impl Sightings {
    /// What an object of the API server's says.
    pub(super) fn object(&self, (kind, name): &Key) -> Option<&Object> {
        self.kinds.get(kind)?.objects.get(name)?.object.as_ref()
    }

    /// Objects that are not refused as a whole.
    pub(super) fn object_count(&self) -> usize {
        self.kinds.values().map(|kind| kind.whole).sum()
    }

    /// Notes what a known object says. Whether that is another thing than before; one that is as it was stays the one that
    /// others hold too.
    fn fill(&mut self, (kind, name): &Key, object: &Object) -> bool {
        let Some(kind) = self.kinds.get_mut(kind) else { return false };
        let Some(held) = kind.objects.get_mut(name) else { return false };
        if held.object.as_ref() == Some(object) {
            return false;
        }
        if held.object.replace(object.clone()).is_none() {
            kind.whole += 1;
        }
        true
    }

    /// Takes out what an object says.
    fn empty(&mut self, (kind, name): &Key) -> Option<Object> {
        let kind = self.kinds.get_mut(kind)?;
        let gone = kind.objects.get_mut(name)?.object.take()?;
        kind.whole -= 1;
        Some(gone)
    }

    pub(super) fn rejects(&self) -> impl Iterator<Item = &Reject> {
        self.rejects.values().flatten()
    }

    /// Those of `rejects` that the object did not have before.
    fn keep_rejects(&mut self, key: &Key, rejects: Vec<Reject>) -> Vec<Reject> {
        if rejects.is_empty() {
            self.rejects.remove(key);
            return rejects;
        }
        let old = self.rejects.insert(key.clone(), rejects.clone()).unwrap_or_default();
        rejects.into_iter().filter(|reject| !old.contains(reject)).collect()
    }
}

/// Which object a text is.
struct Identity {
    /// `namespace/name`; "" where it says none.
    name: String,
    version: u64,
    uid: u128,
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    metadata: Option<Metadata<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    namespace: Option<Text<'a>>,
    #[serde(borrow)]
    uid: Option<Text<'a>>,
    #[serde(borrow)]
    resource_version: Option<Text<'a>>,
}

impl Identity {
    fn read(kind: ObjectKind, text: &str) -> Self {
        // One that cannot be read is refused when it is decoded.
        let metadata = serde_json::from_str::<Named<'_>>(text).ok().and_then(|named| named.metadata);
        let field = |of: for<'m> fn(&'m Metadata<'_>) -> Option<&'m str>| {
            metadata.as_ref().and_then(of).unwrap_or("")
        };
        let name = field(|m| m.name.as_deref());
        let namespace = field(|m| m.namespace.as_deref());
        let name = match name {
            "" => String::new(),
            name if kind.is_namespaced() => {
                format!("{}/{name}", if namespace.is_empty() { "default" } else { namespace })
            }
            name => name.to_owned(),
        };
        Self {
            name,
            version: field(|m| m.resource_version.as_deref()).parse().unwrap_or(0),
            uid: uid_number(field(|m| m.uid.as_deref())),
        }
    }

    const fn is_older(&self, than: u64) -> bool {
        self.version != 0 && self.version < than
    }
}

/// A UID as the API server writes them (RFC 9562, lower case) in a third of the memory; 0 for any other text.
fn uid_number(text: &str) -> u128 {
    let number = u128::from_str_radix(&text.replace('-', ""), 16).unwrap_or(0);
    if uid_text(number) == text { number } else { 0 }
}

fn uid_text(uid: u128) -> String {
    let digits = format!("{uid:032x}");
    let part = |from, to| digits.get(from..to).unwrap_or("");
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

#[cfg(test)]
mod tests;
