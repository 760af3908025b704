use std::collections::BTreeMap;
use std::sync::Arc;

use portway_runtime::kubernetes::WatchEvent;

use super::Meta;
use super::meta::RawMeta;

/// A sort of objects that is read from JSON as the API server writes it.
pub trait Observable: Sized {
    /// # Errors
    /// It cannot be read as one.
    fn read(text: &str) -> Result<Self, serde_json::Error>;

    fn meta(&self) -> &Meta;
}

/// An object that cannot be read; it counts as there, with nothing known of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Misfit {
    /// `namespace/name`, or the name.
    pub object: String,
    pub uid: String,
    pub problem: String,
}

/// The objects of a kind.
#[derive(Debug)]
pub struct Store<T> {
    by_name: BTreeMap<Arc<str>, Arc<T>>,
    misfits: BTreeMap<Arc<str>, Misfit>,
    /// The names that the list under way has told.
    listed: Option<Vec<Arc<str>>>,
    is_synced: bool,
    version: u64,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            misfits: BTreeMap::new(),
            listed: None,
            is_synced: false,
            version: 0,
        }
    }
}

/// What a watch told of an object, after it was taken.
#[derive(Debug)]
pub enum Change<T> {
    Applied(Arc<T>),
    Gone(Arc<T>),
}

impl<T: Observable> Store<T> {
    /// By `namespace/name`, or the name.
    pub fn get(&self, name: &str) -> Option<&Arc<T>> {
        self.by_name.get(name)
    }

    /// Those that can be read, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.by_name.values()
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Whether an object of the name is there, be it one that cannot be read.
    pub fn is_there(&self, name: &str) -> bool {
        self.by_name.contains_key(name) || self.misfits.contains_key(name)
    }

    /// Those that cannot be read, in the order of their names.
    pub fn misfits(&self) -> impl Iterator<Item = &Misfit> {
        self.misfits.values()
    }

    /// All of them were told once, and the API server still knows the kind.
    pub const fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// The newest version that was told: whatever was written before is seen.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Takes what a watch told. Gives what changed. O(log objects) for one, O(objects) at the end of a list.
    pub fn take(&mut self, event: WatchEvent) -> Vec<Change<T>> {
        match event {
            WatchEvent::ListBegins => {
                self.listed = Some(Vec::new());
                Vec::new()
            }
            WatchEvent::Listed(objects) => {
                objects.iter().filter_map(|object| self.apply(object.get())).collect()
            }
            WatchEvent::ListEnds { version } => {
                self.version = version;
                self.end_list()
            }
            WatchEvent::Applied { object, version } => {
                self.version = self.version.max(version);
                self.apply(object.get()).into_iter().collect()
            }
            WatchEvent::Deleted { object, version } => {
                self.version = self.version.max(version);
                self.remove(&identity(object.get()).0)
            }
            WatchEvent::Bookmark { version } => {
                self.version = self.version.max(version);
                Vec::new()
            }
            WatchEvent::KindGone => {
                self.is_synced = false;
                Vec::new()
            }
        }
    }

    /// Takes an object that is there.
    pub fn apply(&mut self, text: &str) -> Option<Change<T>> {
        let (name, uid) = identity(text);
        let name: Arc<str> =
            self.by_name.get_key_value(&*name).map_or_else(|| name.into(), |(name, _)| Arc::clone(name));
        if let Some(listed) = &mut self.listed {
            listed.push(Arc::clone(&name));
        }
        match T::read(text) {
            Ok(object) => {
                self.misfits.remove(&name);
                let object = Arc::new(object);
                self.by_name.insert(name, Arc::clone(&object));
                Some(Change::Applied(object))
            }
            Err(error) => {
                let misfit = Misfit { object: name.to_string(), uid, problem: error.to_string() };
                if self.misfits.insert(Arc::clone(&name), misfit.clone()).as_ref() != Some(&misfit) {
                    tracing::warn!(
                        object = misfit.object,
                        problem = misfit.problem,
                        "an object cannot be read and is passed over"
                    );
                }
                self.by_name.remove(&name).map(Change::Gone)
            }
        }
    }

    fn remove(&mut self, name: &str) -> Vec<Change<T>> {
        self.misfits.remove(name);
        self.by_name.remove(name).map(Change::Gone).into_iter().collect()
    }

    fn end_list(&mut self) -> Vec<Change<T>> {
        let Some(mut listed) = self.listed.take() else { return Vec::new() };
        self.is_synced = true;
        listed.sort_unstable();
        let is_gone = |name: &&Arc<str>| listed.binary_search(name).is_err();
        let gone: Vec<_> = self.by_name.keys().chain(self.misfits.keys()).filter(is_gone).cloned().collect();
        gone.iter().flat_map(|name| self.remove(name)).collect()
    }
}

/// `namespace/name` or the name, and the UID.
fn identity(text: &str) -> (String, String) {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Named {
        metadata: RawMeta,
    }
    let RawMeta { name, namespace, uid, .. } =
        serde_json::from_str::<Named>(text).unwrap_or_default().metadata;
    if namespace.is_empty() { (name, uid) } else { (format!("{namespace}/{name}"), uid) }
}
