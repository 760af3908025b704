//! Services, endpoints, pods and the node as they are wanted: which frontends there are, and which backends each
//! service port has on this node.

mod desired;

pub use desired::{Desired, DesiredBackend, DesiredFrontend, DesiredService, Dirty, Owner, ServicePortKey};
