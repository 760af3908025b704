//! The service that most kernel tests use.

use super::manifest::{Service, TCP, UDP};

/// Cluster addresses of [`web`].
pub const WEB_V4: &str = "10.96.0.10";
pub const WEB_V6: &str = "fd00:10:96::10";

/// [`web`]'s port 80, TCP and UDP.
pub const WEB: [&str; 2] = ["10.96.0.10:80", "[fd00:10:96::10]:80"];

/// A dual-stack service on port 80, TCP and UDP.
pub fn web() -> Service {
    Service::new("web", &[WEB_V4, WEB_V6]).port("http", TCP, 80).port("quic", UDP, 80)
}

/// As [`web`], with NodePort 30080, TCP and UDP.
pub fn node_port_web() -> Service {
    Service::new("web", &[WEB_V4, WEB_V6])
        .node_port("http", TCP, 80, NODE_PORT)
        .node_port("quic", UDP, 80, NODE_PORT)
}

pub const NODE_PORT: u16 = 30_080;
