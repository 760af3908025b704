//! A kernel in memory that can refuse each step.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use portway_datapath::{Addr, EndpointValue, NetnsOptions, NumericIdentity};

use crate::endpoints::kernel::Tables;
use crate::endpoints::{Endpoint, Found, Kernel, KernelError, Link, Mac};
use crate::maps::MendedPin;

#[derive(Clone, Default)]
pub(super) struct FakeKernel(Arc<Mutex<State>>);

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    pub(super) links: BTreeMap<String, Found>,
    pub(super) endpoints: BTreeMap<Addr, EndpointValue>,
    pub(super) netns: BTreeMap<u64, NetnsOptions>,
    pub(super) identities: BTreeMap<u16, NumericIdentity>,
    pub(super) attached: BTreeSet<String>,
    pub(super) settled: BTreeSet<String>,
    /// Numbers of configured pods.
    pub(super) configured: BTreeSet<u16>,
    pub(super) refuses: Option<&'static str>,
    /// The one interface that programs cannot be detached from.
    pub(super) keeps: Option<String>,
    pub(super) cookie: u64,
    /// Links that a list of all of them leaves out.
    pub(super) skipped: BTreeSet<String>,
    /// Links that were there when their programs ended.
    pub(super) unguarded: Vec<String>,
    last_ifindex: u32,
}

pub(super) const STEPS: [&str; 6] =
    ["create_link", "attach", "set_endpoint", "set_netns", "route", "configure_pod"];

impl FakeKernel {
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap())
    }

    /// What there is of pods.
    pub(super) fn traces(&self) -> (usize, usize, usize, usize) {
        self.with(|state| (state.links.len(), state.endpoints.len(), state.netns.len(), state.attached.len()))
    }

    fn step<T>(&self, name: &'static str, work: impl FnOnce(&mut State) -> T) -> Result<T, KernelError> {
        self.with(|state| {
            if state.refuses == Some(name) {
                return Err(KernelError::Refused(name));
            }
            Ok(work(state))
        })
    }
}

impl Kernel for FakeKernel {
    fn netns_cookie(&self, _: BorrowedFd<'_>) -> Result<u64, KernelError> {
        self.step("netns_cookie", |state| state.cookie)
    }

    fn create_link(&self, link: &Link, _: BorrowedFd<'_>, _: &str) -> Result<u32, KernelError> {
        self.step("create_link", |state| {
            state.last_ifindex += 1;
            let ifindex = state.last_ifindex;
            let found = state.links.insert(link.name.clone(), Found { ifindex, mac: link.node_mac });
            assert_eq!(found, None, "{} is there", link.name);
            ifindex
        })
    }

    fn adopt_link(&self, _: BorrowedFd<'_>, _: &str) -> Result<Link, KernelError> {
        let mac = Mac::default();
        self.step("adopt_link", |_| Link {
            name: "veth1".to_owned(),
            ifindex: 77,
            node_mac: mac,
            pod_mac: mac,
            mtu: 1500,
            is_chained: true,
        })
    }

    fn route(&self, endpoint: &Endpoint) -> Result<(), KernelError> {
        self.step("route", |state| assert!(state.links.contains_key(&endpoint.link.name)))
    }

    fn configure_pod(&self, endpoint: &Endpoint, _: BorrowedFd<'_>) -> Result<(), KernelError> {
        self.step("configure_pod", |state| {
            state.configured.insert(endpoint.id);
        })
    }

    fn differences(&self, endpoint: &Endpoint, _: BorrowedFd<'_>) -> Result<Vec<String>, KernelError> {
        self.step("differences", |state| {
            let is_there = state.links.contains_key(&endpoint.link.name);
            if is_there { Vec::new() } else { vec!["it is gone".to_owned()] }
        })
    }

    fn delete_link(&self, name: &str) -> Result<(), KernelError> {
        self.step("delete_link", |state| {
            state.links.remove(name);
        })
    }

    fn links(&self) -> Result<BTreeMap<String, Found>, KernelError> {
        self.step("links", |state| {
            let listed = state.links.iter().filter(|(name, _)| !state.skipped.contains(*name));
            listed.map(|(name, found)| (name.clone(), *found)).collect()
        })
    }

    fn link(&self, name: &str) -> Result<Option<Found>, KernelError> {
        self.step("link", |state| state.links.get(name).copied())
    }

    fn set_endpoint(&self, addr: Addr, value: EndpointValue) -> Result<(), KernelError> {
        self.step("set_endpoint", |state| {
            state.endpoints.insert(addr, value);
        })
    }

    fn delete_endpoint(&self, addr: Addr) -> Result<(), KernelError> {
        self.step("delete_endpoint", |state| {
            state.endpoints.remove(&addr);
        })
    }

    fn set_identity(&self, id: u16, identity: Option<NumericIdentity>) -> Result<(), KernelError> {
        self.step("set_identity", |state| match identity {
            Some(identity) => drop(state.identities.insert(id, identity)),
            None => drop(state.identities.remove(&id)),
        })
    }

    fn tables(&self) -> Result<Tables, KernelError> {
        self.step("tables", |state| (state.endpoints.clone(), state.netns.clone()))
    }

    fn set_tables(
        &self,
        endpoints: &BTreeMap<Addr, EndpointValue>,
        netns: &BTreeMap<u64, NetnsOptions>,
    ) -> Result<(), KernelError> {
        self.step("set_tables", |state| {
            (state.endpoints, state.netns) = (endpoints.clone(), netns.clone());
        })
    }

    fn set_netns(&self, cookie: u64, options: Option<NetnsOptions>) -> Result<(), KernelError> {
        self.step("set_netns", |state| match options {
            Some(options) => drop(state.netns.insert(cookie, options)),
            None => drop(state.netns.remove(&cookie)),
        })
    }

    fn attach(&self, ifindex: u32, interface: &str) -> Result<(), KernelError> {
        assert_ne!(ifindex, 0);
        self.step("attach", |state| {
            state.attached.insert(interface.to_owned());
        })
    }

    fn settle(&self, link: &Link) -> Result<bool, KernelError> {
        self.step("settle", |state| state.settled.insert(link.name.clone()))
    }

    fn detach(&self, interface: &str) -> Result<(), KernelError> {
        if self.with(|state| state.keeps.as_deref() == Some(interface)) {
            return Err(KernelError::Refused("detach"));
        }
        self.step("detach", |state| {
            state.attached.remove(interface);
            state.unguarded.extend(state.links.contains_key(interface).then(|| interface.to_owned()));
        })
    }

    fn damage(&self, endpoint: &Endpoint) -> Result<Vec<String>, KernelError> {
        self.step("damage", |state| {
            let is_there = state.attached.contains(&endpoint.link.name)
                && endpoint.table().all(|(addr, value)| state.endpoints.get(&addr) == Some(&value));
            if is_there { Vec::new() } else { vec!["a part is missing".to_owned()] }
        })
    }

    fn pin_again(&self) -> Result<Vec<MendedPin>, KernelError> {
        self.step("pin_again", |_| Vec::new())
    }

    fn detach_others(&self, wanted: &BTreeSet<String>) -> Result<(), KernelError> {
        self.step("detach_others", |state| state.attached.retain(|name| wanted.contains(name)))
    }
}
