//! Whether operators say that they are well, all the time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Operator, body};
use crate::harness::{Beside, Ending, Namespace};

/// Between two looks, as often as no kubelet does.
const APART: Duration = Duration::from_millis(100);

/// Looks at `/healthz` of operators until its end.
#[derive(Debug)]
pub struct HealthWatch(Beside<(u32, Vec<String>)>);

impl HealthWatch {
    /// They are up, and nobody ends or freezes them meanwhile.
    pub fn start<'a>(operators: impl IntoIterator<Item = &'a Operator>) -> Result<Self> {
        let all: Vec<(Namespace, SocketAddr)> = operators
            .into_iter()
            .map(|operator| (operator.places.namespace.clone(), operator.places.http()))
            .collect();
        Beside::start("watch healthz", move |end| Ok(watch(&all, end))).map(Self)
    }

    /// How often it looked. Anything but a 200 is an error.
    pub fn end(self) -> Result<u32> {
        let (looks, bad) = self.0.end()?;
        ensure!(bad.is_empty(), "{} of {looks} times not healthy: {bad:#?}", bad.len());
        ensure!(looks > 0, "nobody has looked");
        Ok(looks)
    }
}

fn watch(all: &[(Namespace, SocketAddr)], end: &Ending) -> (u32, Vec<String>) {
    let (begin, mut looks, mut bad) = (Instant::now(), 0, Vec::new());
    while !end.has_come() {
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
