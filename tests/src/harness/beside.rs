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

/// Tells the end when it goes: also where a test fails, by an error or by a panic.
#[derive(Debug)]
struct Telling(Ending);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.tell();
    }
}

/// A thread that works until its end, which is told when this is dropped, too: then nobody waits for it, because what it
/// waits for itself may never come in a test that failed.
#[derive(Debug)]
pub struct Beside<T> {
    name: String,
    end: Telling,
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
        Ok(Self { name, end: Telling(end), thread: thread.context("start a thread")? })
    }

    /// Ends the work. What it came to.
    pub fn end(self) -> Result<T> {
        let Self { name, end, thread } = self;
        drop(end);
        thread.join().map_err(|_| anyhow!("the thread {name} panicked"))?
    }

    /// The same of several, which are told at once.
    pub fn end_all(all: Vec<Self>) -> Result<Vec<T>> {
        all.iter().for_each(|one| one.end.0.tell());
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
        // The scope waits for the watcher, also where the work panics.
        let telling = Telling(end.clone());
        let worked = work();
        drop(telling);
        let seen = watcher.join().map_err(|_| anyhow!("the watcher panicked"))?;
        Ok((worked?, seen?))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    use anyhow::bail;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// Until the end comes. Holds what shows that it has ended.
    fn wait(end: &Ending, _held: Sender<()>) -> Result<()> {
        while !end.has_come() {
            std::thread::yield_now();
        }
        Ok(())
    }

    #[test]
    fn a_watcher_ends_when_the_work_panics() {
        let (held, ended) = channel();
        let beside = std::thread::spawn(|| {
            let work = || -> Result<()> { panic!("as an assertion that fails") };
            meanwhile(work, |end| wait(end, held))
        });
        assert_eq!(ended.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
        assert!(beside.join().is_err(), "the panic goes on");
    }

    #[test]
    fn a_thread_ends_when_the_test_that_started_it_returns_an_error() {
        let (held, ended) = channel();
        let test = || -> Result<()> {
            let _beside = Beside::start("until the end", |end| wait(end, held))?;
            bail!("as a step of the test");
        };
        assert!(test().is_err());
        assert_eq!(ended.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
    }
}
