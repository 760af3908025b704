//! The loop: what the owner tells, what becomes of endpoints.

use portway_datapath::NumericIdentity;
use portway_model::labels::Labels;

use crate::config::{Config, PodNetwork};
use crate::endpoints::{EndpointIdentity, Endpoints};

use super::{FromOwner, Told};

/// Until an error that no retry mends.
pub(super) async fn follow(
    config: &Config,
    network: &PodNetwork,
    owner: FromOwner,
    endpoints: Endpoints,
) -> anyhow::Result<()> {
    let FromOwner { mut told, recorder } = owner;
    let mut changes = endpoints.changes();
    tracing::debug!(
        node = config.node_name,
        mode = network.identities.mode.name(),
        has_api_server = recorder.is_some(),
        "identities"
    );
    loop {
        tokio::select! {
            news = told.recv() => match news {
                Some(Told { events, synced }) => tracing::trace!(events = events.len(), ?synced, "told"),
                // The owner ended, and with it the agent.
                None => return std::future::pending().await,
            },
            Ok(()) = changes.changed() => {}
        }
        for endpoint in endpoints.list().into_iter().filter(|endpoint| endpoint.identity.is_none()) {
            let identity = EndpointIdentity::new(
                NumericIdentity::INIT,
                &Labels::of_reserved(NumericIdentity::INIT).unwrap_or_default(),
            );
            if endpoints.set_identity(&endpoint, &identity, "its labels are not followed")? {
                endpoints.set_announced(&endpoint);
            }
        }
    }
}
