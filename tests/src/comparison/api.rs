//! An API server in memory and watches of it that see all that a watch may see: everything follows from a seed.
//!
//! What a watch does about what it sees is what `portway_runtime::kubernetes` does: it resumes where it was, lists
//! again where that version is gone or where versions go backwards, and tells what it got.

use std::collections::{BTreeMap, VecDeque};

use portway_model::k8s::{ObjectKind, Watched};
use serde_json::Value;

use crate::oracle::random::Random;
use crate::oracle::world::{Key, Kind, Mutation, Object, World};

pub const KINDS: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Pod, Kind::Node];

pub const fn object_kind(kind: Kind) -> ObjectKind {
    match kind {
        Kind::Service => ObjectKind::Service,
        Kind::EndpointSlice => ObjectKind::EndpointSlice,
        Kind::Pod => ObjectKind::Pod,
        Kind::Node => ObjectKind::Node,
    }
}

/// Objects and their history.
#[derive(Clone, Debug, Default)]
pub struct ApiServer {
    pub world: World,
    version: u64,
    objects: BTreeMap<Key, (u64, String)>,
    history: Vec<Entry>,
    /// Watches from before it are refused.
    oldest: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    version: u64,
    kind: Kind,
    told: Told,
}

/// What a watch told.
#[derive(Clone, Debug)]
pub enum Told {
    ListBegins,
    Listed(String),
    ListEnds,
    Applied(String),
    Deleted(String),
}

impl Told {
    pub fn watched(&self) -> Watched<'_> {
        match self {
            Self::ListBegins => Watched::ListBegins,
            Self::Listed(text) => Watched::Listed(text),
            Self::ListEnds => Watched::ListEnds,
            Self::Applied(text) => Watched::Applied(text),
            Self::Deleted(text) => Watched::Deleted(text),
        }
    }
}

impl ApiServer {
    pub fn change(&mut self, mutation: &Mutation) {
        let (key, new) = match mutation {
            Mutation::Put(object) => (object.key(), Some(object)),
            Mutation::Delete(key) => (key.clone(), None),
        };
        let uid = |object: &Object| object.clone().metadata_mut().uid.clone();
        let old = self.world.objects.get(&key).cloned();
        // An object of another UID is another object: its predecessor goes first.
        if let Some(old) = old.filter(|old| new.is_none_or(|new| uid(new) != uid(old))) {
            self.objects.remove(&key);
            self.version += 1;
            let told = Told::Deleted(text(&old, self.version));
            self.history.push(Entry { version: self.version, kind: key.kind, told });
        }
        if let Some(new) = new {
            self.version += 1;
            let text = text(new, self.version);
            self.objects.insert(key.clone(), (self.version, text.clone()));
            self.history.push(Entry { version: self.version, kind: key.kind, told: Told::Applied(text) });
        }
        self.world.apply(mutation);
    }

    /// Forgets the history.
    pub fn compact(&mut self) {
        self.history.clear();
        self.oldest = self.version;
    }

    /// As an audit asks: `namespace/name` and versions of a kind, in order.
    pub fn versions(&self, kind: Kind) -> BTreeMap<String, u64> {
        let of_kind = self.objects.iter().filter(|(key, _)| key.kind == kind);
        of_kind
            .map(|(key, (version, _))| {
                let name = match kind {
                    Kind::Node => key.name.clone(),
                    Kind::Service | Kind::EndpointSlice | Kind::Pod => {
                        format!("{}/{}", key.namespace, key.name)
                    }
                };
                (name, *version)
            })
            .collect()
    }

    fn list(&self, kind: Kind) -> VecDeque<String> {
        let of_kind = self.objects.iter().filter(|(key, _)| key.kind == kind);
        of_kind.map(|(_, (_, text))| text.clone()).collect()
    }

    /// What came after `version`; `None` where that is not known any more, or was never reached.
    fn after(&self, kind: Kind, version: u64) -> Option<Vec<&Entry>> {
        let is_known = self.oldest <= version && version <= self.version;
        is_known.then(|| {
            self.history.iter().filter(|entry| entry.kind == kind && entry.version > version).collect()
        })
    }
}

/// One watch.
#[derive(Debug)]
pub struct Watch {
    pub kind: Kind,
    /// Where it is; `None` where it has to list.
    at: Option<u64>,
    listing: Option<(u64, VecDeque<String>)>,
    last: Option<Told>,
    pub has_synced: bool,
}

impl Watch {
    pub const fn new(kind: Kind) -> Self {
        Self { kind, at: None, listing: None, last: None, has_synced: false }
    }

    /// As an audit asks for.
    pub fn relist(&mut self) {
        self.at = None;
        self.listing = None;
    }

    pub fn is_idle(&self, server: &ApiServer) -> bool {
        let waiting = self.at.and_then(|at| server.after(self.kind, at)).map(|entries| entries.len());
        self.listing.is_none() && waiting == Some(0)
    }

    /// The next that it tells; `None` where there is nothing. In a hundred, `trouble` go wrong in some way.
    pub fn step(&mut self, server: &ApiServer, random: &mut Random, trouble: u64) -> Vec<Told> {
        if self.listing.is_some() {
            return self.page(server, random, trouble);
        }
        let Some(entries) = self.at.and_then(|at| server.after(self.kind, at)) else {
            return self.begin(server);
        };
        let Some(next) = entries.first() else { return Vec::new() };
        let told = next.told.clone();
        if !random.chance(trouble) {
            self.at = Some(next.version);
            self.last = Some(told.clone());
            return vec![told];
        }
        match random.below(6) {
            // Cut, and resumed from where it was.
            0 => Vec::new(),
            // Cut, and resumed from further back: what was told is told again.
            1 => self.last.iter().cloned().collect(),
            2 => {
                self.at = Some(next.version);
                vec![told.clone(), told]
            }
            // Skipped without a word.
            3 => {
                self.at = Some(next.version);
                Vec::new()
            }
            // 410.
            4 => {
                self.relist();
                Vec::new()
            }
            // Out of order: a version that goes backwards lists again. The older event may have been told.
            _ => {
                let mut all: Vec<_> = entries.get(1).into_iter().map(|later| later.told.clone()).collect();
                if random.chance(50) {
                    all.push(told);
                }
                self.relist();
                all
            }
        }
    }

    fn begin(&mut self, server: &ApiServer) -> Vec<Told> {
        self.listing = Some((server.version, server.list(self.kind)));
        vec![Told::ListBegins]
    }

    fn page(&mut self, server: &ApiServer, random: &mut Random, trouble: u64) -> Vec<Told> {
        // The token is too old, or the connection went: from the start.
        if random.chance(trouble / 2) {
            return self.begin(server);
        }
        let Some((version, items)) = &mut self.listing else { return Vec::new() };
        let len = items.len().min(1 + random.below(4) as usize);
        let mut told: Vec<_> = items.drain(..len).map(Told::Listed).collect();
        // A page that was read by half is read again.
        if random.chance(trouble) {
            told.extend(told.clone());
        }
        if items.is_empty() {
            told.push(Told::ListEnds);
            self.at = Some(*version);
            self.listing = None;
            self.last = None;
            self.has_synced = true;
        }
        told
    }
}

/// As the API server writes it, without kind and apiVersion, as in lists.
fn text(object: &Object, version: u64) -> String {
    let mut value = match object {
        Object::Service(o) => serde_json::to_value(o),
        Object::EndpointSlice(o) => serde_json::to_value(o),
        Object::Pod(o) => serde_json::to_value(o),
        Object::Node(o) => serde_json::to_value(o),
    }
    .unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), Value::String(version.to_string()));
    }
    value.to_string()
}
