//! Work beside a test: what changes or watches something while the test does something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};

/// Tells work that its end has come.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<AtomicBool>);

impl Ending {
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn tell(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread that works until its end.
#[derive(Debug)]
pub struct Beside<T> {
    name: String,
    end: Ending,
    thread: JoinHandle<Result<T>>,
}

impl<T: Send + 'static> Beside<T> {
    pub fn start(
        name: impl Into<String>,
        work: impl FnOnce(&Ending) -> Result<T> + Send + 'static,
    ) -> Result<Self> {
        let (name, end) = (name.into(), Ending::default());
        let told = end.clone();
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || work(&told));
        Ok(Self { name, end, thread: thread.context("start a thread")? })
    }

    /// Ends the work. What it came to.
    pub fn end(self) -> Result<T> {
        self.end.tell();
        self.thread.join().map_err(|_| anyhow!("the thread {} panicked", self.name))?
    }

    /// The same of several, which are told at once.
    pub fn end_all(all: Vec<Self>) -> Result<Vec<T>> {
        all.iter().for_each(|one| one.end.tell());
        all.into_iter().map(Self::end).collect()
    }
}

/// Has `watch` look while `work` is done. What each came to.
pub fn meanwhile<W, S: Send>(
    work: impl FnOnce() -> Result<W>,
    watch: impl FnOnce(&Ending) -> Result<S> + Send,
) -> Result<(W, S)> {
    let end = Ending::default();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&end));
        let worked = work();
        end.tell();
        let seen = watcher.join().map_err(|_| anyhow!("the watcher panicked"))?;
        Ok((worked?, seen?))
    })
}
