//! Ending a process in order: a signal is told to everyone, who then has a while to finish.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

/// Says that the end has come and waits for the [`Drain`]s.
#[derive(Debug)]
pub struct Shutdown {
    begin: watch::Sender<bool>,
    // Held so that clones can be made; dropped when draining begins.
    busy: Option<mpsc::Sender<()>>,
    idle: mpsc::Receiver<()>,
}

/// Held by whoever must finish something before the process ends. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Drain {
    begun: watch::Receiver<bool>,
    _busy: mpsc::Sender<()>,
}

impl Shutdown {
    pub fn new() -> Self {
        let (begin, _) = watch::channel(false);
        let (busy, idle) = mpsc::channel(1);
        Self { begin, busy: Some(busy), idle }
    }

    /// A drain; `None` once draining has begun.
    pub fn drain(&self) -> Option<Drain> {
        Some(Drain { begun: self.begin.subscribe(), _busy: self.busy.clone()? })
    }

    /// Tells every drain that the end has come and waits until all are dropped; false if `deadline` passed first.
    pub async fn finish(mut self, deadline: Duration) -> bool {
        self.busy = None;
        // No receiver is left where every drain is already gone.
        let _ = self.begin.send(true);
        tokio::time::timeout(deadline, self.idle.recv()).await.is_ok()
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Drain {
    /// Returns when the end has come.
    pub async fn begun(&mut self) {
        // The sender is dropped only after it said so, or with the whole process.
        let _ = self.begun.wait_for(|begun| *begun).await;
    }
}

/// Returns the name of the first SIGTERM or SIGINT.
///
/// # Errors
/// The handlers could not be set up.
pub async fn signalled() -> io::Result<&'static str> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_every_drain() {
        let shutdown = Shutdown::new();
        let mut drain = shutdown.drain().unwrap();
        let work = tokio::spawn(async move {
            drain.begun().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
        assert!(shutdown.finish(Duration::from_secs(5)).await);
        assert!(work.is_finished() || work.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_hangs_is_given_up_at_the_deadline() {
        let shutdown = Shutdown::new();
        let _held = shutdown.drain().unwrap();
        assert!(!shutdown.finish(Duration::from_secs(5)).await);
    }
}
