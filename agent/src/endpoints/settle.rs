//! Links that have come to rest get their programs where packets cost least.

use std::time::Duration;

use super::{Endpoint, Endpoints, State};

/// How long nobody has asked for anything of a pod: who does would wait for a link that settles.
const QUIET: Duration = Duration::from_secs(2);
/// Links that settle in one look, so that it ends soon.
const AT_ONCE: usize = 16;

impl Endpoints {
    /// Lets links settle while nobody asks for anything. How many did.
    pub(super) fn settle(&self) -> usize {
        let mut settled = 0;
        let mut refused = 0;
        for endpoint in self.list().into_iter().filter(can_settle) {
            if settled + refused == AT_ONCE || !self.is_quiet() {
                break;
            }
            let Some(_claim) = self.try_claim(&endpoint.attachment) else { continue };
            if self.get(endpoint.id).is_none_or(|now| !can_settle(&now) || now.link != endpoint.link) {
                continue;
            }
            match self.kernel().settle(&endpoint.link) {
                Ok(has_settled) => settled += usize::from(has_settled),
                // It is as good as before, and the next look tries again.
                Err(error) => {
                    let pod = endpoint.name();
                    tracing::warn!(endpoint = endpoint.id, pod, %error, "the programs of a link cannot be moved");
                    refused += 1;
                }
            }
        }
        settled
    }

    fn is_quiet(&self) -> bool {
        let known = self.known();
        // Of other plugins' links none settles, and so nothing ends their hooks (`NodeNetwork::OWN_LINKS`).
        known.serves
            && !self.shared.settings.is_chained
            && known.busy.is_empty()
            && known.asked.is_none_or(|asked| asked.elapsed() >= QUIET)
    }
}

/// A link that another plugin made is not ours alone.
fn can_settle(endpoint: &Endpoint) -> bool {
    endpoint.state == State::Ready && !endpoint.link.is_chained
}
