//! What a process still waits for before it is ready.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open tasks. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    waiting_for: Arc<Mutex<BTreeSet<String>>>,
}

/// A task that must end before the process is ready: dropping the guard ends it.
#[derive(Debug)]
#[must_use = "dropping the guard says that the task is done"]
pub struct Guard {
    readiness: Readiness,
    task: String,
}

impl Readiness {
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a task; its name is what a probe prints while it is open. Two open tasks need two names.
    pub fn task(&self, name: impl Into<String>) -> Guard {
        let task = name.into();
        self.lock().insert(task.clone());
        Guard { readiness: self.clone(), task }
    }

    /// The open tasks by name; empty when ready.
    pub fn waiting_for(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    pub fn is_ready(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A set of names is whole after every operation, also one that panicked.
        self.waiting_for.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.readiness.lock().remove(&self.task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_every_guard_is_gone() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let (sync, maps) = (readiness.task("first sync"), readiness.task("maps"));
        assert_eq!(readiness.waiting_for(), ["first sync", "maps"]);
        drop(sync);
        assert_eq!(readiness.waiting_for(), ["maps"]);
        drop(maps);
        assert!(readiness.is_ready());
    }
}
