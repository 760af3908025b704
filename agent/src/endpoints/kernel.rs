use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use portway_datapath::{Addr, EndpointValue, NetnsOptions, NumericIdentity};

use super::link::LinkError;
use super::{Endpoint, Link};
use crate::maps::{MapError, MendedPin};
use crate::programs::ProgramError;

/// What the kernel refused.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Of a test.
    #[cfg(test)]
    #[error("{0} was made to fail")]
    Refused(&'static str),
}

/// An interface of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub ifindex: u32,
    pub mac: super::Mac,
}

/// `pw_endpoints` and `pw_netns`.
pub(super) type Tables = (BTreeMap<Addr, EndpointValue>, BTreeMap<u64, NetnsOptions>);

/// What endpoints need of the kernel: links, tables and programs. All calls may be made on any thread of the node's
/// namespace, and everything may be repeated.
pub trait Kernel: Send + Sync {
    /// The cookie of a namespace.
    fn netns_cookie(&self, netns: BorrowedFd<'_>) -> Result<u64, KernelError>;

    /// Makes a link as `link` says, down, with the end `interface` in a pod's namespace. The number of the node's end.
    fn create_link(&self, link: &Link, netns: BorrowedFd<'_>, interface: &str) -> Result<u32, KernelError>;

    /// The link that another plugin made, with its addresses.
    fn adopt_link(&self, netns: BorrowedFd<'_>, interface: &str) -> Result<Link, KernelError>;

    /// The node's end up, with routes and neighbours to the pod's addresses.
    fn route(&self, endpoint: &Endpoint) -> Result<(), KernelError>;

    /// The pod's end up, with addresses, routes and neighbours.
    fn configure_pod(&self, endpoint: &Endpoint, netns: BorrowedFd<'_>) -> Result<(), KernelError>;

    /// What is not as [`Self::create_link`], [`Self::route`] and [`Self::configure_pod`] leave it, in words.
    fn differences(&self, endpoint: &Endpoint, netns: BorrowedFd<'_>) -> Result<Vec<String>, KernelError>;

    /// That there is none is no error.
    fn delete_link(&self, name: &str) -> Result<(), KernelError>;

    /// Every interface of the node, by name.
    ///
    /// One may be missing that is there: the kernel goes through a table that changes meanwhile. [`Self::link`] is sure.
    fn links(&self) -> Result<BTreeMap<String, Found>, KernelError>;

    /// The interface of a name, if there is one.
    fn link(&self, name: &str) -> Result<Option<Found>, KernelError>;

    fn set_endpoint(&self, addr: Addr, value: EndpointValue) -> Result<(), KernelError>;

    fn delete_endpoint(&self, addr: Addr) -> Result<(), KernelError>;

    /// Publishes who an endpoint is. `None`: its number is nobody's.
    fn set_identity(&self, id: u16, identity: Option<NumericIdentity>) -> Result<(), KernelError>;

    /// What both tables hold.
    fn tables(&self) -> Result<Tables, KernelError>;

    /// Makes both tables hold exactly this.
    fn set_tables(
        &self,
        endpoints: &BTreeMap<Addr, EndpointValue>,
        netns: &BTreeMap<u64, NetnsOptions>,
    ) -> Result<(), KernelError>;

    /// `None`: as everybody.
    fn set_netns(&self, cookie: u64, options: Option<NetnsOptions>) -> Result<(), KernelError>;

    fn attach(&self, ifindex: u32, interface: &str) -> Result<(), KernelError>;

    /// Moves the programs of a link of our own to where packets cost least. For a quiet time: everybody who changes
    /// interfaces waits for it, some 10 ms. Whether there was something to move.
    fn settle(&self, link: &Link) -> Result<bool, KernelError>;

    fn detach(&self, interface: &str) -> Result<(), KernelError>;

    /// What is not as [`Self::attach`], [`Self::set_endpoint`] and [`Self::set_netns`] leave it, in words. Changes nothing.
    fn damage(&self, endpoint: &Endpoint) -> Result<Vec<String>, KernelError>;

    /// Pins the maps again that lost their pins. What was wrong, whether or not it could be mended.
    fn pin_again(&self) -> Result<Vec<MendedPin>, KernelError>;

    /// Ends the programs at pod links that are not in `wanted`.
    fn detach_others(&self, wanted: &BTreeSet<String>) -> Result<(), KernelError>;
}
