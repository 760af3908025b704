//! Who works on a cluster's objects: the controller manager and the scheduler.

use anyhow::Result;

use super::{Clients, ControlPlane, SERVICE_RANGES, binary, flag, spawn, wait_for};

/// Ranges that the controller manager gives nodes their pod ranges of: a /24 and a /64 each.
pub const POD_RANGES: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/56"];

impl ControlPlane {
    /// The controller manager: endpoint slices of pods, service accounts, namespaces that end; with machines also pod
    /// ranges of nodes and what becomes of nodes that do not report.
    ///
    /// # Errors
    ///
    /// Where it ends, or makes no service account within a minute.
    pub fn start_controllers(&mut self) -> Result<()> {
        let kubeconfig = self.identity.kubeconfig("admin", &self.url())?;
        let mut command = self.namespace.command(binary("kube-controller-manager")?);
        command.arg(flag("kubeconfig", kubeconfig.display()));
        command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
        command.arg(flag("service-account-private-key-file", self.identity.service_account_key().display()));
        command.arg(flag("root-ca-file", self.identity.ca_file().display()));
        command.arg(flag("service-cluster-ip-range", SERVICE_RANGES));
        match self.clients {
            Clients::Loopback | Clients::Agents => {
                command.arg("--allocate-node-cidrs=false");
                // Those two would remove pods of nodes that no kubelet answers for.
                command.arg("--controllers=*,-node-lifecycle-controller,-pod-garbage-collector-controller");
            }
            Clients::Machines => {
                command.arg("--allocate-node-cidrs=true");
                command.arg(flag("cluster-cidr", POD_RANGES.join(",")));
            }
        }
        let mut process = spawn("kube-controller-manager", command)?;
        wait_for(&mut process, "the default service account", || {
            self.client.get("/api/v1/namespaces/default/serviceaccounts/default").map(drop)
        })?;
        self.controllers.push(process);
        Ok(())
    }

    /// The scheduler, which gives pods a node.
    pub fn start_scheduler(&mut self) -> Result<()> {
        let kubeconfig = self.identity.kubeconfig("admin", &self.url())?;
        let mut command = self.namespace.command(binary("kube-scheduler")?);
        for name in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
            command.arg(flag(name, kubeconfig.display()));
        }
        command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
        self.controllers.push(spawn("kube-scheduler", command)?);
        Ok(())
    }
}
