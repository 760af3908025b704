//! The kernel's side compared with what was written and what is wanted.

use portway_datapath::NodeConfig;
use portway_model::loadbalancer::Union;

use super::Owner;
use crate::api;
use crate::app::datapath::Expected;
use crate::config::Config;
use crate::node::LocalAddresses;

impl Owner {
    /// The periodic look.
    pub(super) fn look(&mut self) -> anyhow::Result<()> {
        let expected = expected(&self.config, self.host_netns, &self.local_addresses, !self.prune_is_due);
        // Nothing is restored any more once everything is exact.
        let desired = Union { balancer: &self.balancer, restored: &self.restored };
        if self.audit.look(&mut self.datapath, &desired, &expected) {
            self.program()?;
        }
        Ok(())
    }

    /// A comparison on demand. The inner error is the answer.
    pub(super) fn compare(&mut self, fix: bool) -> anyhow::Result<Result<api::Audit, String>> {
        if !self.serves {
            return Ok(Err("the agent has not programmed the kernel yet; try again".to_owned()));
        }
        let found = match self.compare_once(fix) {
            Ok((found, false)) => return Ok(Ok(found)),
            Ok((found, true)) => found,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        self.program()?;
        let left = self.compare_once(false).map_err(|error| format!("{error:#}"));
        Ok(left.map(|(left, _)| api::Audit {
            found: found.found,
            seconds: found.seconds + left.seconds,
            ..left
        }))
    }

    /// What was found, and whether a reconcile is to follow.
    fn compare_once(&mut self, fix: bool) -> anyhow::Result<(api::Audit, bool)> {
        let expected = expected(&self.config, self.host_netns, &self.local_addresses, !self.prune_is_due);
        let desired = Union { balancer: &self.balancer, restored: &self.restored };
        self.audit.compare(&mut self.datapath, &desired, &expected, fix)
    }
}

fn expected<'a>(
    config: &'a Config,
    host_netns: u64,
    addresses: &LocalAddresses,
    leftovers: bool,
) -> Expected<'a> {
    Expected {
        leftovers,
        bpf_root: &config.bpf_root,
        node: NodeConfig { host_netns, settings: config.node_settings().word() },
        addresses: addresses.table(&config.node_port_addresses),
    }
}
