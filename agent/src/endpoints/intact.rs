//! Whether programs and tables are still as they were made for the endpoints.

use super::{Endpoint, Endpoints, KernelError, State};
use crate::maps::MendedPin;

impl Endpoints {
    /// Puts right what somebody else changed, and says so in the log. The number of endpoints and maps that were not as they
    /// should be. Costs some six system calls an endpoint.
    ///
    /// # Errors
    /// The kernel would not say what there is. What it refuses to put right is in the log, and tried again by the next call.
    pub fn put_right(&self) -> Result<usize, KernelError> {
        let mut wrong = 0;
        for MendedPin { fault, refused } in self.kernel().pin_again()? {
            wrong += 1;
            match refused {
                None => {
                    tracing::warn!(pin = %fault, "the kernel's side is not as it should be; it was put right");
                }
                Some(error) => tracing::warn!(
                    pin = %fault,
                    %error,
                    "the kernel's side is not as it should be; it is tried again"
                ),
            }
        }
        if !self.known().serves {
            return Ok(wrong);
        }
        for endpoint in self.list().into_iter().filter(is_ready) {
            let Some(_claim) = self.try_claim(&endpoint.attachment) else { continue };
            // It may have ended, or been made anew, since it was listed.
            let same = self.get(endpoint.id).filter(|now| is_ready(now) && now.link == endpoint.link);
            let Some(endpoint) = same else { continue };
            let damage = self.kernel().damage(&endpoint).unwrap_or_else(|error| vec![error.to_string()]);
            if damage.is_empty() {
                continue;
            }
            wrong += 1;
            let damage = damage.join(", ");
            match self.install(&endpoint) {
                Ok(()) => tracing::warn!(
                    endpoint = endpoint.id,
                    pod = endpoint.name(),
                    damage,
                    "the kernel's side is not as it should be; it was put right"
                ),
                Err(error) => tracing::warn!(
                    endpoint = endpoint.id,
                    pod = endpoint.name(),
                    damage,
                    %error,
                    "the kernel's side is not as it should be; it is tried again"
                ),
            }
        }
        Ok(wrong)
    }
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.state == State::Ready
}
