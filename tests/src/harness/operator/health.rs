//! Whether operators say that they are well, all the time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Operator, body};
use crate::harness::Namespace;

/// Between two looks, as often as no kubelet does.
const APART: Duration = Duration::from_millis(100);

/// Looks at `/healthz` of operators until its end.
#[derive(Debug)]
pub struct HealthWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u32, Vec<String>)>,
}

impl HealthWatch {
    /// They are up, and nobody ends or freezes them meanwhile.
    pub fn start<'a>(operators: impl IntoIterator<Item = &'a Operator>) -> Result<Self> {
        let all: Vec<(Namespace, SocketAddr)> = operators
            .into_iter()
            .map(|operator| (operator.places.namespace.clone(), operator.places.http()))
            .collect();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("watch healthz".to_owned())
            .spawn(move || watch(&all, &told))
            .context("start a thread")?;
        Ok(Self { stop, thread })
    }

    /// How often it looked. Anything but a 200 is an error.
    pub fn end(self) -> Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let (looks, bad) = self.thread.join().map_err(|_| anyhow::anyhow!("the watch panicked"))?;
        ensure!(bad.is_empty(), "{} of {looks} times not healthy: {bad:#?}", bad.len());
        ensure!(looks > 0, "nobody has looked");
        Ok(looks)
    }
}

fn watch(all: &[(Namespace, SocketAddr)], stop: &AtomicBool) -> (u32, Vec<String>) {
    let (begin, mut looks, mut bad) = (Instant::now(), 0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        for (namespace, server) in all {
            looks += 1;
            if let Err(error) = body(namespace, *server, "/healthz") {
                bad.push(format!("{server} after {:?}: {error:#}", begin.elapsed()));
            }
        }
        std::thread::sleep(APART);
    }
    (looks, bad)
}
