//! Netlink in the node's and in other namespaces, without a trace of it in the calling thread.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use futures_util::stream::TryStreamExt as _;
use nix::sched::{CloneFlags, setns};
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::{Handle, new_connection};

use super::{LinkError, errno, failed};

/// How long one piece of work may take. The kernel answers at once unless somebody has the lock of all interfaces; a
/// message that was lost is never answered.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `work` with a netlink socket of the calling thread's namespace. Blocks, for [`PATIENCE`] at most; not for a thread
/// that polls futures.
pub(super) fn netlink<T>(work: impl AsyncFnOnce(&Handle) -> Result<T, LinkError>) -> Result<T, LinkError> {
    within(PATIENCE, work)
}

fn within<T>(
    patience: Duration,
    work: impl AsyncFnOnce(&Handle) -> Result<T, LinkError>,
) -> Result<T, LinkError> {
    let io = |action: &str| {
        let action = action.to_owned();
        move |source| LinkError::Io { action, source }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(io("start a runtime for netlink"))?;
    runtime.block_on(async {
        let (connection, handle, _) = new_connection().map_err(io("open a netlink socket"))?;
        let connection = tokio::spawn(connection);
        let result = tokio::time::timeout(patience, work(&handle)).await;
        connection.abort();
        result.unwrap_or(Err(LinkError::Silent { waited: patience }))
    })
}

/// Runs `work` on a thread of its own in a network namespace: that thread ends with it, so that nobody works there by
/// mistake and nothing keeps the namespace.
pub(super) fn inside<T: Send>(
    netns: BorrowedFd<'_>,
    work: impl FnOnce() -> Result<T, LinkError> + Send,
) -> Result<T, LinkError> {
    std::thread::scope(|scope| {
        let body = || {
            setns(netns, CloneFlags::CLONE_NEWNET).map_err(|errno| LinkError::Io {
                action: "enter the pod's network namespace".to_owned(),
                source: errno.into(),
            })?;
            work()
        };
        let thread = std::thread::Builder::new().name("pod-netns".to_owned()).spawn_scoped(scope, body);
        let thread =
            thread.map_err(|source| LinkError::Io { action: "start a thread".to_owned(), source })?;
        thread.join().map_err(|_| LinkError::Panicked)?
    })
}

/// `SO_NETNS_COOKIE` of a namespace's sockets.
pub(in crate::endpoints) fn netns_cookie(netns: BorrowedFd<'_>) -> Result<u64, LinkError> {
    inside(netns, || {
        crate::node::netns_cookie().map_err(|error| LinkError::Io {
            action: "read the cookie of the pod's network namespace".to_owned(),
            source: std::io::Error::other(error),
        })
    })
}

/// `None` where there is no such interface.
pub(super) async fn link_named(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, LinkError> {
    match handle.link().get().match_name(name.to_owned()).execute().try_next().await {
        Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(None),
        other => other.map_err(failed("look at the interface", name)),
    }
}

pub(super) async fn index_of(handle: &Handle, name: &str) -> Result<u32, LinkError> {
    let found = link_named(handle, name).await?;
    found.map(|message| message.header.index).ok_or_else(|| LinkError::Netlink {
        action: "find the interface",
        what: name.to_owned(),
        source: rtnetlink::Error::RequestFailed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_answer_is_not_waited_for_without_end() {
        let error = within(Duration::from_millis(1), async |_| std::future::pending::<Result<(), _>>().await);
        let error = error.unwrap_err();
        assert!(matches!(error, LinkError::Silent { .. }), "{error}");
    }
}
