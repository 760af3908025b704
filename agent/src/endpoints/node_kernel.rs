use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use portway_datapath::{Addr, EndpointValue, NetnsOptions, NumericIdentity};

use super::kernel::{Found, Kernel, KernelError, Tables};
use super::{Endpoint, Link, link, record};
use crate::conntrack::Conntrack;
use crate::maps::{MendedPin, PodTables};
use crate::programs::{InterfacePrograms, Side};

/// The kernel of this node.
#[derive(Debug)]
pub struct NodeKernel {
    tables: PodTables,
    programs: Arc<Mutex<InterfacePrograms>>,
    conntrack: Conntrack,
    bpf_root: PathBuf,
}

impl NodeKernel {
    pub fn new(
        bpf_root: &Path,
        tables: PodTables,
        programs: Arc<Mutex<InterfacePrograms>>,
        conntrack: Conntrack,
    ) -> Self {
        Self { tables, programs, conntrack, bpf_root: bpf_root.to_owned() }
    }

    fn programs<T>(&self, work: impl FnOnce(&InterfacePrograms) -> T) -> T {
        work(&self.programs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Kernel for NodeKernel {
    fn netns_cookie(&self, netns: BorrowedFd<'_>) -> Result<u64, KernelError> {
        Ok(link::netns_cookie(netns)?)
    }

    fn create_link(&self, link: &Link, netns: BorrowedFd<'_>, interface: &str) -> Result<u32, KernelError> {
        Ok(link::create(link, netns, interface)?)
    }

    fn adopt_link(&self, netns: BorrowedFd<'_>, interface: &str) -> Result<Link, KernelError> {
        Ok(link::adopt(netns, interface)?)
    }

    fn route(&self, endpoint: &Endpoint) -> Result<(), KernelError> {
        Ok(link::route(endpoint)?)
    }

    fn configure_pod(&self, endpoint: &Endpoint, netns: BorrowedFd<'_>) -> Result<(), KernelError> {
        Ok(link::configure_pod(endpoint, netns)?)
    }

    fn differences(&self, endpoint: &Endpoint, netns: BorrowedFd<'_>) -> Result<Vec<String>, KernelError> {
        Ok(link::differences(endpoint, netns)?)
    }

    fn delete_link(&self, name: &str) -> Result<(), KernelError> {
        Ok(link::delete(name)?)
    }

    fn links(&self) -> Result<BTreeMap<String, Found>, KernelError> {
        Ok(link::links()?)
    }

    fn link(&self, name: &str) -> Result<Option<Found>, KernelError> {
        Ok(link::find(name)?)
    }

    fn set_endpoint(&self, addr: Addr, value: EndpointValue) -> Result<(), KernelError> {
        self.tables.set_endpoint(addr, value)?;
        Ok(())
    }

    fn delete_endpoint(&self, addr: Addr) -> Result<(), KernelError> {
        if self.tables.delete_endpoint(addr)? {
            // The address may have another pod soon.
            self.conntrack.forget(vec![addr]);
        }
        Ok(())
    }

    fn set_identity(&self, id: u16, identity: Option<NumericIdentity>) -> Result<(), KernelError> {
        match identity {
            Some(identity) => self.tables.set_endpoint_identity(id, identity)?,
            None => self.tables.clear_endpoint_policy(id)?,
        }
        Ok(())
    }

    fn tables(&self) -> Result<Tables, KernelError> {
        let reader = self.tables.reader();
        Ok((reader.endpoints()?, reader.netns()?))
    }

    fn set_tables(
        &self,
        endpoints: &BTreeMap<Addr, EndpointValue>,
        netns: &BTreeMap<u64, NetnsOptions>,
    ) -> Result<(), KernelError> {
        self.tables.set_endpoints(endpoints)?;
        self.tables.set_all_netns(netns)?;
        Ok(())
    }

    fn set_netns(&self, cookie: u64, options: Option<NetnsOptions>) -> Result<(), KernelError> {
        match options {
            Some(options) => {
                self.tables.set_netns(cookie, options)?;
            }
            None => {
                self.tables.delete_netns(cookie)?;
            }
        }
        Ok(())
    }

    fn attach(&self, ifindex: u32, interface: &str) -> Result<(), KernelError> {
        self.programs(|programs| programs.attach(ifindex, interface, Side::Pod))?;
        Ok(())
    }

    fn settle(&self, link: &Link) -> Result<bool, KernelError> {
        Ok(self.programs(|programs| programs.settle(link.ifindex, &link.name))?)
    }

    fn detach(&self, interface: &str) -> Result<(), KernelError> {
        self.programs(|programs| programs.detach(interface))?;
        Ok(())
    }

    fn damage(&self, endpoint: &Endpoint) -> Result<Vec<String>, KernelError> {
        let (reader, link) = (self.tables.reader(), &endpoint.link);
        let mut damage = Vec::new();
        if !self.programs(|programs| programs.is_attached(link.ifindex, &link.name, Side::Pod))? {
            damage.push(format!("programs do not run at {}", link.name));
        }
        for (addr, value) in endpoint.table() {
            if reader.endpoint(&addr)? != Some(value) {
                damage.push(format!("pw_endpoints does not lead {addr} there"));
            }
        }
        let published = reader.endpoint_policy(endpoint.id)?.identity();
        if endpoint.identity.as_ref().is_some_and(|identity| identity.number() != published) {
            damage.push(format!("pw_endpoint_policy says that it is identity {published}"));
        }
        let options = reader.netns_options(endpoint.netns_cookie)?;
        let translates = options.is_none_or(NetnsOptions::translates_sockets);
        if !endpoint.socket_lb && translates {
            damage.push("pw_netns does not leave its sockets alone".to_owned());
        }
        Ok(damage)
    }

    fn pin_again(&self) -> Result<Vec<MendedPin>, KernelError> {
        Ok(self.tables.mend_pins(&self.bpf_root)?)
    }

    fn detach_others(&self, wanted: &BTreeSet<String>) -> Result<(), KernelError> {
        self.programs(|programs| {
            let attached = programs.attached()?;
            let others = attached
                .iter()
                .map(|at| &at.interface)
                .filter(|name| record::is_link_name(name) && !wanted.contains(*name));
            let mut result = Ok(());
            for interface in others.collect::<BTreeSet<_>>() {
                result = result.and(programs.detach(interface).map(drop));
            }
            // Those of other plugins' links that are gone.
            result.and(programs.remove_gone().map(drop))
        })?;
        Ok(())
    }
}
