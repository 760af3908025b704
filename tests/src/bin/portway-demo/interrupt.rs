use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{SigSet, Signal};

/// Ctrl-C, as something to ask for: the demo ends by its guards, which clean up.
#[derive(Clone)]
pub(crate) struct Interrupt {
    state: Arc<(AtomicBool, Mutex<()>, Condvar)>,
}

impl Interrupt {
    /// From here on SIGINT and SIGTERM wait to be asked for; a second one ends the process at once. Call it before
    /// there are other threads.
    pub(crate) fn catch() -> Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().context("hold back Ctrl-C")?;
        let interrupt = Self { state: Arc::default() };
        let state = Arc::clone(&interrupt.state);
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let (came, lock, wake) = &*state;
                while signals.wait().is_ok() {
                    if came.swap(true, Ordering::SeqCst) {
                        // Leftovers are removed by the next run.
                        std::process::exit(130);
                    }
                    let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
                    wake.notify_all();
                }
            })
            .context("start a thread")?;
        Ok(interrupt)
    }

    pub(crate) fn came(&self) -> bool {
        self.state.0.load(Ordering::SeqCst)
    }

    /// An error if it came.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.came(), "interrupted");
        Ok(())
    }

    /// Until it comes.
    pub(crate) fn wait(&self) {
        let (_, lock, wake) = &*self.state;
        let mut guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.came() {
            guard = wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
