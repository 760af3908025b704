//! Threads with a runtime of their own, for what must not wait for the work of another part of the agent.

use anyhow::Context as _;
use tokio::sync::oneshot;

/// What a thread ended with; an error where it panicked.
pub(crate) type Ended = oneshot::Receiver<anyhow::Result<()>>;

/// Starts a thread that runs what `body` makes, which need not be `Send`, to its end.
///
/// # Errors
/// There can be no thread.
pub(crate) fn spawn<F>(name: &str, body: impl FnOnce() -> F + Send + 'static) -> anyhow::Result<Ended>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let (ended, result) = oneshot::channel();
    let run = move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
        runtime.block_on(body())
    };
    // The receiver is gone only where the process ends anyway.
    let body = move || drop(ended.send(run()));
    std::thread::Builder::new().name(name.to_owned()).spawn(body).context("cannot start a thread")?;
    Ok(result)
}
