//! The machine that the agent runs on: what must be so before anything is touched, its addresses, its namespace, and
//! the ports that it keeps from handing out.

mod addresses;
mod place;
mod ports;

pub use addresses::{Addresses, AddressesError, Interface, LocalAddresses};
pub use place::{PlaceError, UnfitPlaces, check_place, host_name, kernel_release, netns_cookie};
pub use ports::{PortSet, PortsError, ReservedPorts};
