//! Waiting until no program looks at something old any more: an RCU grace period.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::sys::{Expect, MapInfo, RawMap, membarrier_global, online_cpus};

/// Number of `BPF_MAP_TYPE_ARRAY` and `BPF_MAP_TYPE_ARRAY_OF_MAPS` (include/uapi/linux/bpf.h).
const ARRAY: u32 = 2;
const ARRAY_OF_MAPS: u32 = 12;

/// Waits for grace periods on a thread of its own. Tickets that come in while a wait runs go with the next one:
/// they may name something that a program found after the wait had begun.
#[derive(Debug)]
pub struct GracePeriods<T> {
    tickets: Option<Sender<T>>,
    thread: Option<JoinHandle<()>>,
}

/// The outcome of one wait.
#[derive(Debug)]
pub enum Grace<T> {
    /// No program that ran when these tickets were handed in runs any more.
    Over { tickets: Vec<T>, took: Duration },
    /// The kernel would not wait. The tickets are kept; the wait is tried again with the next ticket or after
    /// [`RETRY`].
    Failed { error: io::Error, kept: usize },
}

/// When a wait that failed is tried again. No wait ends by time.
pub const RETRY: Duration = Duration::from_secs(1);

impl<T: Send + 'static> GracePeriods<T> {
    /// `report` runs on the waiting thread; it hands the outcome to the owner, for example by
    /// `move |grace| drop(sender.send(grace))` with a `tokio::sync::mpsc::UnboundedSender`.
    pub fn start(report: impl FnMut(Grace<T>) + Send + 'static) -> io::Result<Self> {
        let waiter = RcuWaiter::new()?;
        Self::start_with(move || waiter.wait(), report)
    }

    /// Hands in a ticket for something that programs can no longer find anew. `false`: the waiting thread is gone
    /// and the ticket will never be reported.
    #[must_use]
    pub fn request(&self, ticket: T) -> bool {
        self.tickets.as_ref().is_some_and(|tickets| tickets.send(ticket).is_ok())
    }

    fn start_with(
        wait: impl FnMut() -> io::Result<()> + Send + 'static,
        report: impl FnMut(Grace<T>) + Send + 'static,
    ) -> io::Result<Self> {
        let (tickets, incoming) = channel();
        let thread = std::thread::Builder::new()
            .name("grace-periods".to_owned())
            .spawn(move || serve(&incoming, wait, report))?;
        Ok(Self { tickets: Some(tickets), thread: Some(thread) })
    }
}

impl<T> Drop for GracePeriods<T> {
    fn drop(&mut self) {
        // Without a sender the thread ends after the wait it is in.
        self.tickets = None;
        if let Some(thread) = self.thread.take() {
            // It can only have panicked in `report`, which printed that.
            drop(thread.join());
        }
    }
}

fn serve<T>(
    incoming: &Receiver<T>,
    mut wait: impl FnMut() -> io::Result<()>,
    mut report: impl FnMut(Grace<T>),
) {
    let mut tickets = Vec::new();
    loop {
        if tickets.is_empty() {
            match incoming.recv() {
                Ok(ticket) => tickets.push(ticket),
                Err(_) => return,
            }
        } else {
            match incoming.recv_timeout(RETRY) {
                Ok(ticket) => tickets.push(ticket),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        tickets.extend(incoming.try_iter());
        let start = Instant::now();
        match wait() {
            Ok(()) => {
                let tickets = std::mem::take(&mut tickets);
                report(Grace::Over { tickets, took: start.elapsed() });
            }
            Err(error) => report(Grace::Failed { error, kept: tickets.len() }),
        }
    }
}

/// Waits for a grace period on the calling thread, for some milliseconds.
#[derive(Debug)]
pub struct RcuWaiter {
    outer: RawMap,
    inner: RawMap,
}

impl RcuWaiter {
    pub fn new() -> io::Result<Self> {
        let info = |kind| MapInfo { kind, key_size: 4, value_size: 4, entries: 1, flags: 0 };
        let inner = RawMap::create("pw_grace_inner", info(ARRAY), None)?;
        let outer = RawMap::create("pw_grace", info(ARRAY_OF_MAPS), Some(&inner))?;
        Ok(Self { outer, inner })
    }

    /// By `membarrier`, and where that does not wait by [`Self::wait_by_map`].
    ///
    /// `membarrier` is `synchronize_rcu` unless there is one CPU, where it returns at once although a program may
    /// have been preempted (kernel/sched/membarrier.c); with nohz_full it is EINVAL.
    pub fn wait(&self) -> io::Result<()> {
        let several = online_cpus()? > 1 && membarrier_global().is_ok() && online_cpus()? > 1;
        if several { Ok(()) } else { self.wait_by_map() }
    }

    /// An update of an element of a map of maps returns after `synchronize_rcu` (`maybe_wait_bpf_programs` of
    /// kernel/bpf/syscall.c).
    pub fn wait_by_map(&self) -> io::Result<()> {
        use std::os::fd::AsRawFd as _;
        let inner = self.inner.fd().as_raw_fd();
        self.outer.update(&0u32.to_ne_bytes(), &inner.to_ne_bytes(), Expect::Any)
    }
}

#[cfg(test)]
mod tests;
