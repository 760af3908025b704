//! What the runtime is told.

use std::net::IpAddr;

use portway_cni::failure::{Failure, code};
use portway_cni::protocol::AttachmentId;
use portway_cni::result::{Attached, Interface, Ip, Route};

use crate::endpoints::link::{GATEWAY_V4, GATEWAY_V6};
use crate::endpoints::{Endpoint, EndpointError, KernelError, Link, Mac};

pub(super) fn answer(endpoint: &Endpoint) -> Attached {
    let Link { name, node_mac, pod_mac, mtu, .. } = &endpoint.link;
    let interface = |name: &str, mac: &Mac, sandbox: &str| Interface {
        name: name.to_owned(),
        mac: mac.to_string(),
        mtu: Some(*mtu),
        sandbox: sandbox.to_owned(),
    };
    let way = |addr: &IpAddr| match addr {
        IpAddr::V4(_) => (32, IpAddr::from(GATEWAY_V4), "0.0.0.0/0"),
        IpAddr::V6(_) => (128, IpAddr::from(GATEWAY_V6), "::/0"),
    };
    let ips = endpoint.addresses.iter().map(|addr| {
        let (bits, gateway, _) = way(addr);
        Ip { address: format!("{addr}/{bits}"), gateway: Some(gateway), interface: Some(1) }
    });
    let routes = endpoint.addresses.iter().map(|addr| {
        let (_, gateway, dst) = way(addr);
        Route { dst: dst.to_owned(), gw: Some(gateway), mtu: None }
    });
    Attached {
        interfaces: vec![
            interface(name, node_mac, ""),
            interface(&endpoint.attachment.interface, pod_mac, &endpoint.netns),
        ],
        ips: ips.collect(),
        routes: routes.collect(),
    }
}

pub(super) fn not_chained() -> Failure {
    let msg = "cni-chaining-mode is generic-veth, and there is no plugin before portway-cni that has made an interface with addresses";
    Failure::new(
        code::INVALID_CONFIG,
        msg,
        "put that plugin before portway-cni in the conflist, or set cni-chaining-mode=none",
    )
}

pub(in crate::endpoints) fn gone(id: &AttachmentId) -> Failure {
    let msg = format!("the network of container {} was removed while it was made", id.container);
    Failure::new(code::TRY_AGAIN, msg, "the runtime tries again")
}

pub(super) fn no_network(id: &AttachmentId) -> Failure {
    let msg = format!("container {} has no network of this agent", id.container);
    Failure::new(code::UNKNOWN_CONTAINER, msg, "the runtime makes the pod's sandbox anew")
}

pub(super) fn unsettled(id: &AttachmentId) -> Failure {
    let msg = format!("the network of container {} is being restored, or changes", id.container);
    Failure::new(
        code::TRY_AGAIN,
        msg,
        "the runtime tries again; `portway endpoint list` shows the endpoint's state",
    )
}

pub(super) fn kernel_failure(error: &KernelError) -> Failure {
    let details = "the runtime tries again; the agent's log has more of it";
    Failure::new(code::KERNEL, error.to_string(), details)
}

pub(super) fn failure(error: &EndpointError) -> Failure {
    match error {
        EndpointError::Kernel(error) => kernel_failure(error),
        EndpointError::Store(error) => Failure::new(
            code::IO,
            error.to_string(),
            "state-dir must be writable and have room; the runtime tries again",
        ),
    }
}
