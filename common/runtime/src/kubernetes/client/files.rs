use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

use super::Client;
use crate::kubernetes::connection::Connection;

/// Files of credentials are looked at this often, before a request.
pub(super) const FILES_CHECK: Duration = Duration::from_secs(10);
/// A server that refuses the credentials has them read again at most this often.
const REFUSED_CHECK: Duration = Duration::from_secs(5);

/// When files of credentials were last looked at.
pub(super) struct Checked {
    pub(super) any: Instant,
    /// Because the server refused what they held.
    pub(super) refused: Option<Instant>,
}

impl Client {
    /// Reads files of credentials again where they changed, or where the server `refused` what was read. True if the
    /// connection is a new one. Meanwhile other requests go on with the old one: nothing is held over a wait, because who
    /// waits for a request of this client may keep its other requests from being polled.
    pub(super) async fn look_at_files(&self, refused: bool) -> bool {
        if !self.must_look(refused) {
            return false;
        }
        let is_due = {
            let connection = self.inner.connection.read().unwrap_or_else(PoisonError::into_inner);
            connection.is_from_files() && (refused || connection.is_outdated())
        };
        if !is_due {
            return false;
        }
        match Connection::load(&self.inner.options).await {
            Ok(connection) => {
                *self.inner.connection.write().unwrap_or_else(PoisonError::into_inner) = connection;
                tracing::debug!("read the credentials for the API server again");
                self.inner.ledger.reloaded(Ok(()));
                true
            }
            Err(error) => {
                tracing::warn!(%error, "credentials for the API server changed and cannot be used; the old ones stay");
                self.inner.ledger.reloaded(Err(error.to_string()));
                false
            }
        }
    }

    /// Whether it is time to look; whoever is told so is the only one for a while.
    fn must_look(&self, refused: bool) -> bool {
        // Two times: a panic elsewhere leaves them usable.
        let mut checked = self.inner.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_too_soon = if refused {
            checked.refused.is_some_and(|at| at.elapsed() < REFUSED_CHECK)
        } else {
            checked.any.elapsed() < FILES_CHECK
        };
        if !is_too_soon {
            checked.any = Instant::now();
            checked.refused = refused.then_some(checked.any).or(checked.refused);
        }
        !is_too_soon
    }
}
