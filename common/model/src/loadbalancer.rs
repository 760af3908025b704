//! Services, endpoints, pods and the node as they are wanted: which frontends there are, and which backends each
//! service port has on this node.
//!
//! Choices that the Kubernetes API leaves open, or that differ from kube-proxy:
//! - A service is served in the families of its cluster IPs; none of its ports is in another (as in kube-proxy).
//! - Source ranges of which none is of a family close that family: its only range is the unspecified address, which
//!   nobody has. So is a service whose ranges are all unusable. kube-proxy opens a family without ranges.
//! - Endpoints that slices disagree about: see `backends`. Frontends that several want: see `clash`.

mod backends;
mod balancer;
mod claims;
mod clash;
mod config;
mod desired;
mod restored;
mod wanted;

pub use balancer::LoadBalancer;
pub use config::Config;
pub use desired::{Desired, DesiredBackend, DesiredFrontend, DesiredService, Dirty, Owner, ServicePortKey};
pub use restored::{Restored, Union};
