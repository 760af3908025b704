//! The kernel's table beside what it should be. Whoever writes goes on meanwhile.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use portway_datapath::IpcacheValue;
use portway_model::ipcache::{EntryChange, Key};

use super::Ipcache;
use crate::maps::MapError;

/// So many entries are compared or listed at a time, in a few milliseconds: then whoever waits to write may.
pub(super) const AT_ONCE: usize = 4096;

/// What a comparison with the kernel found.
#[derive(Debug, Default)]
pub struct Comparison {
    pub differences: Vec<EntryDifference>,
    /// Why they, or some of them, could not be put right.
    pub refused: Option<MapError>,
}

/// An entry that is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryDifference {
    pub key: Key,
    pub held: Option<IpcacheValue>,
    pub wanted: Option<IpcacheValue>,
    /// The kernel refused it before, and it is tried again.
    pub is_pending: bool,
}

impl Ipcache {
    /// Compares the kernel's table with what it should be, and with `fix` puts right what differs. About a microsecond an
    /// entry. What is written meanwhile is left to the next comparison.
    ///
    /// # Errors
    /// The kernel would not be read.
    pub fn compare(&self, fix: bool) -> Result<Comparison, MapError> {
        let _alone = self.comparing.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = {
            let mut state = self.lock();
            let Some(tables) = state.tables.clone() else { return Ok(Comparison::default()) };
            state.written = Some(BTreeSet::new());
            tables
        };
        let found = tables.reader().ipcache_entries();
        let compared = found.map(|found| self.compare_with(&found, fix));
        self.lock().written = None;
        compared
    }

    /// `found`, sorted, was read since `State::written` began.
    fn compare_with(&self, found: &[(Key, IpcacheValue)], fix: bool) -> Comparison {
        let held = |key: &Key| {
            let at = found.binary_search_by_key(key, |(key, _)| *key).ok()?;
            found.get(at).map(|(_, value)| *value)
        };
        let mut keys = self.lock().model.keys();
        keys.extend(found.iter().map(|(key, _)| *key));
        keys.sort_unstable();
        keys.dedup();
        let mut differences = Vec::new();
        for keys in keys.chunks(AT_ONCE) {
            let state = self.lock();
            let compared = keys.iter().map(|key| EntryDifference {
                key: *key,
                held: held(key),
                wanted: state.model.value(*key),
                is_pending: state.outstanding.contains_key(key),
            });
            differences.extend(compared.filter(|compared| compared.held != compared.wanted));
        }
        let mut state = self.lock();
        let written = state.written.take().unwrap_or_default();
        differences.retain(|difference| !written.contains(&difference.key));
        let mut refused = None;
        if fix {
            let foreign = differences.iter().filter(|difference| !difference.is_pending).count();
            state.status.healed += foreign as u64;
            if written.is_empty() {
                state.status.entries = found.len() as u64;
            }
            // What it holds of the others was seen just now.
            state.outstanding.retain(|key, _| written.contains(key));
            let changes = differences.iter().map(|difference| EntryChange {
                key: difference.key,
                value: difference.wanted,
                replaces: difference.held.is_some(),
            });
            refused = state.write(changes).err();
        }
        Comparison { differences, refused }
    }
}
