//! Several operators on one control plane, each by a proxy of its own.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{HealthWatch, Operator, Places};
use crate::harness::cluster::ApiClient;
use crate::harness::judge::judge;
use crate::harness::{ControlPlane, FaultProxy, Namespace, complain, eventually, process};

/// The user that operators are.
const USER: &str = "operator";
/// Where the operator's lease is.
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// Of a lease that tests can wait for. Writes have 6 − 3 − 1 = 2 seconds.
pub const SHORT_LEASE: [&str; 3] = [
    "--leader-election-lease-duration=6s",
    "--leader-election-renew-deadline=3s",
    "--leader-election-retry-period=1s",
];

/// How long it lasts.
pub const SHORT: Duration = Duration::from_secs(6);

/// A control plane with Portway's kinds, and operators. It goes away with the guard, whatever the test did.
#[derive(Debug)]
pub struct Replicas {
    // Dropped in this order: who asks, who is between, who answers.
    operators: Vec<Operator>,
    proxies: Vec<FaultProxy>,
    control_plane: ControlPlane,
    namespace: Namespace,
    /// What those said that have ended.
    ended: Vec<String>,
}

impl Replicas {
    /// Runs `body` with proxies for `replicas` operators, none of which runs yet. Where it fails or panics, says what they
    /// said.
    pub fn test(name: &str, replicas: u8, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        judge(Self::new(name, replicas)?, body, Self::report)
    }

    pub fn new(name: &str, replicas: u8) -> Result<Self> {
        let namespace = Namespace::new(name)?;
        let control_plane = ControlPlane::start(&namespace)?;
        control_plane.install_crds()?;
        let proxies = (1..=replicas).map(|number| FaultProxy::start_for(&control_plane, USER, number));
        let proxies = proxies.collect::<Result<_>>()?;
        Ok(Self { operators: Vec::new(), proxies, control_plane, namespace, ended: Vec::new() })
    }

    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    pub fn control_plane_mut(&mut self) -> &mut ControlPlane {
        &mut self.control_plane
    }

    /// As an administrator.
    pub fn client(&self) -> &ApiClient {
        self.control_plane.client()
    }

    /// By which replica `number`, from 1, asks.
    pub fn proxy(&self, number: u8) -> &FaultProxy {
        &self.proxies[usize::from(number) - 1]
    }

    pub fn proxies(&self) -> &[FaultProxy] {
        &self.proxies
    }

    fn places(&self, number: u8) -> Places {
        let kubeconfig = self.proxy(number).kubeconfig();
        Places { namespace: self.namespace.clone(), number, kubeconfig }
    }

    /// Starts replica `number` and waits until it answers, not until it leads.
    pub fn start(&mut self, number: u8, flags: &[&str]) -> Result<()> {
        self.spawn(number, flags)?;
        self.operator_mut(number)?.wait_up()
    }

    /// Starts it and does not wait.
    pub fn spawn(&mut self, number: u8, flags: &[&str]) -> Result<()> {
        let operator = Operator::spawn(&self.places(number), flags)?;
        self.operators.push(operator);
        Ok(())
    }

    /// Starts it without a proxy, and waits until it answers.
    pub fn start_direct(&mut self, number: u8, flags: &[&str]) -> Result<()> {
        let kubeconfig = self.kubeconfig()?;
        let places = Places { namespace: self.namespace.clone(), number, kubeconfig };
        self.operators.push(Operator::spawn(&places, flags)?);
        self.operator_mut(number)?.wait_up()
    }

    fn kubeconfig(&self) -> Result<PathBuf> {
        self.control_plane.kubeconfig_of(USER)
    }

    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    pub fn operator(&self, number: u8) -> Result<&Operator> {
        let found = self.operators.iter().find(|operator| operator.number() == number);
        found.with_context(|| format!("replica {number} does not run"))
    }

    pub fn operator_mut(&mut self, number: u8) -> Result<&mut Operator> {
        let found = self.operators.iter_mut().find(|operator| operator.number() == number);
        found.with_context(|| format!("replica {number} does not run"))
    }

    fn take(&mut self, number: u8) -> Result<Operator> {
        let found = self.operators.iter().position(|operator| operator.number() == number);
        let operator = self.operators.remove(found.with_context(|| format!("no replica {number} runs"))?);
        self.ended.push(format!("--- replica {number}, before:\n{}", operator.log()));
        Ok(operator)
    }

    /// `kill -9`.
    pub fn kill(&mut self, number: u8) -> Result<()> {
        self.take(number)?.kill()
    }

    /// SIGTERM; gives how long it took.
    pub fn stop(&mut self, number: u8) -> Result<Duration> {
        self.take(number)?.stop()
    }

    /// None has ended.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.operators.iter_mut().try_for_each(Operator::ensure_running)
    }

    pub fn watch_health(&self) -> Result<HealthWatch> {
        HealthWatch::start(&self.operators)
    }

    /// Those that say that they lead.
    pub fn leaders(&self) -> Result<Vec<u8>> {
        let mut leaders = Vec::new();
        for operator in &self.operators {
            if operator.is_leading()? {
                leaders.push(operator.number());
            }
        }
        Ok(leaders)
    }

    /// Until exactly one leads: its number.
    pub fn wait_leader(&mut self, limit: Duration) -> Result<u8> {
        self.ensure_running()?;
        let waited = eventually(limit, "one replica to lead", || match self.leaders()?[..] {
            [leader] => Ok(leader),
            ref leaders => bail!("{leaders:?} lead"),
        });
        self.ensure_running()?;
        waited
    }

    /// Until replica `number` leads, and nobody else among those that can say so.
    pub fn wait_leads(&mut self, number: u8, limit: Duration) -> Result<()> {
        let operator = self.operator(number)?;
        eventually(limit, &format!("replica {number} to lead"), || {
            ensure!(operator.is_leading()?, "it does not lead: {}", operator.status()?);
            Ok(())
        })
    }

    /// Until the leader `number` knows that the API server refuses what was written in terms before its own.
    pub fn wait_guarded(&mut self, number: u8, limit: Duration) -> Result<()> {
        let operator = self.operator(number)?;
        eventually(limit, "writes of earlier terms to be refused", || {
            let status = operator.status()?;
            let guard = &status["leadership"]["earlier_terms"];
            ensure!(guard == "refused", "{guard}: {}", status["leadership"]);
            Ok(())
        })
    }

    /// Until nobody leads.
    pub fn wait_no_leader(&mut self, limit: Duration) -> Result<()> {
        eventually(limit, "nobody to lead", || {
            let leaders = self.leaders()?;
            ensure!(leaders.is_empty(), "{leaders:?} lead");
            Ok(())
        })?;
        self.ensure_running()
    }

    /// The operators' lease, as it is.
    pub fn lease(&self) -> Result<Value> {
        let leases = self.client().list(LEASES)?;
        let is_operators =
            |lease: &Value| lease["metadata"]["name"].as_str().is_some_and(|name| name.contains("operator"));
        let mut found = leases.into_iter().filter(is_operators);
        let lease = found.next().context("there is no lease of operators")?;
        ensure!(found.next().is_none(), "there are two leases of operators");
        Ok(lease)
    }

    /// What `portway-operator plan FLAGS` would write, by controller.
    pub fn plan(&self, flags: &[&str]) -> Result<Vec<(String, Value)>> {
        let places = Places { namespace: self.namespace.clone(), number: 0, kubeconfig: self.kubeconfig()? };
        let printed = process::output(places.command(&["plan", "-o", "json"])?.args(flags))?;
        let plans: Vec<Value> = serde_json::from_str(&printed).with_context(|| format!("read {printed}"))?;
        ensure!(!plans.is_empty(), "it has no controllers");
        let mut writes = Vec::new();
        for plan in plans {
            let name = plan["controller"].as_str().with_context(|| format!("who plans {plan}?"))?;
            let all = plan["writes"].as_array().with_context(|| format!("no writes: {plan}"))?;
            writes.extend(all.iter().map(|write| (name.to_owned(), write.clone())));
        }
        Ok(writes)
    }

    fn report(&self, failure: &str) {
        complain(&format!("--- the control plane:\n{}", self.control_plane.log()));
        for said in &self.ended {
            complain(said);
        }
        for operator in &self.operators {
            complain(&format!("--- replica {}:\n{}", operator.number(), operator.log()));
        }
        complain(&format!("failed: {failure}"));
    }
}
