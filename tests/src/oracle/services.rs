//! Frontends of Services.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::{
    Claim, Objects, OracleConfig, OracleRow, any_address, created, endpoints, full_name, is_for_this_proxy,
};

pub(super) fn claims(objects: &Objects, config: &OracleConfig) -> Vec<Claim> {
    let mut claims = Vec::new();
    for service in &objects.services {
        let Some(spec) = &service.spec else { continue };
        if !is_proxied(service, spec, config) {
            continue;
        }
        for cluster_ip in cluster_ips(spec) {
            for port in spec.ports.iter().flatten() {
                claims.extend(claims_of_port(objects, config, service, spec, port, cluster_ip));
            }
        }
    }
    claims
}

/// "If clusterIP is "None", no virtual IP is allocated"; "ExternalName: no proxying will be involved" (ServiceSpec).
fn is_proxied(service: &Service, spec: &ServiceSpec, config: &OracleConfig) -> bool {
    is_for_this_proxy(&service.metadata, config) && spec.type_.as_deref() != Some("ExternalName")
}

/// "If clusterIPs is not specified, it will be initialized from the clusterIP field" (ServiceSpec). None for a
/// headless service. One address a family at most.
fn cluster_ips(spec: &ServiceSpec) -> Vec<IpAddr> {
    let listed = spec.cluster_ips.clone().unwrap_or_default();
    let all = if listed.is_empty() { Vec::from_iter(spec.cluster_ip.clone()) } else { listed };
    all.iter().filter_map(|ip| ip.parse().ok()).collect()
}

/// The frontends that a port has in the family of `cluster_ip`: addresses of a family the service does not have are
/// not served (kube-proxy runs once for each family, and skips services without a cluster IP of it).
fn claims_of_port(
    objects: &Objects,
    config: &OracleConfig,
    service: &Service,
    spec: &ServiceSpec,
    port: &ServicePort,
    cluster_ip: IpAddr,
) -> Vec<Claim> {
    let family = |ip: &IpAddr| ip.is_ipv4() == cluster_ip.is_ipv4();
    let number = port.port as u16;
    let mut frontends = vec![("ClusterIP", cluster_ip, number)];
    for ip in load_balancer_ips(service).into_iter().filter(family) {
        frontends.push(("LoadBalancer", ip, number));
    }
    let external_ips = spec.external_ips.iter().flatten().filter(|_| config.enable_external_ips);
    for ip in external_ips.filter_map(|ip| ip.parse().ok()).filter(family) {
        frontends.push(("ExternalIPs", ip, number));
    }
    if let Some(node_port) = port.node_port.filter(|n| *n != 0) {
        frontends.push(("NodePort", any_address(cluster_ip), node_port as u16));
    }
    let sets = endpoints::sets(objects, config, service, port, cluster_ip.is_ipv4());
    let claim = |(kind, address, number)| {
        let filtered = config.enable_svc_source_range_check
            && (matches!(kind, "LoadBalancer" | "ExternalIPs") || config.bpf_lb_source_range_all_types);
        Claim {
            row: OracleRow {
                service: full_name(&service.metadata),
                port_name: port.name.clone().unwrap_or_default(),
                kind,
                address,
                port: number,
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                cluster: sets.cluster.clone(),
                local: sets.local.clone(),
                affinity_seconds: if config.enable_session_affinity { affinity_seconds(spec) } else { 0 },
                source_ranges: if filtered { source_ranges(spec, cluster_ip.is_ipv4()) } else { Vec::new() },
                flags: flags(spec),
            },
            created: created(&service.metadata),
        }
    };
    frontends.into_iter().map(claim).collect()
}

/// "VIP" (the default): traffic is delivered with the destination set to the load balancer's IP. "Proxy": it is not,
/// so the address is none of ours (LoadBalancerIngress).
fn load_balancer_ips(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    status
        .and_then(|status| status.ingress.as_ref())
        .into_iter()
        .flatten()
        .filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"))
        .filter_map(|ingress| ingress.ip.as_ref()?.parse().ok())
        .collect()
}

/// "Default value is 10800" (ClientIPConfig).
fn affinity_seconds(spec: &ServiceSpec) -> u32 {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return 0;
    }
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    config.and_then(|client_ip| client_ip.timeout_seconds).unwrap_or(10_800) as u32
}

/// "Traffic … will be restricted to the specified client IPs" (ServiceSpec): who names only clients of one family lets
/// nobody of the other in, which is the range of the address that no client has. Host bits cleared, in order of number
/// and length, each once.
fn source_ranges(spec: &ServiceSpec, ipv4: bool) -> Vec<String> {
    let mut ranges: Vec<(IpAddr, u32)> = Vec::new();
    for range in spec.load_balancer_source_ranges.iter().flatten() {
        let Some((addr, bits)) = range.split_once('/') else { continue };
        let (Ok(addr), Ok(bits)) = (addr.parse::<IpAddr>(), bits.parse()) else { continue };
        let masked = network(addr, bits);
        if addr.is_ipv4() == ipv4 && !ranges.contains(&(masked, bits)) {
            ranges.push((masked, bits));
        }
    }
    let is_restricted = spec.load_balancer_source_ranges.as_ref().is_some_and(|ranges| !ranges.is_empty());
    if ranges.is_empty() && is_restricted {
        return vec![if ipv4 { "0.0.0.0/32" } else { "::/128" }.to_owned()];
    }
    ranges.sort();
    ranges.into_iter().map(|(addr, bits)| format!("{addr}/{bits}")).collect()
}

fn network(addr: IpAddr, bits: u32) -> IpAddr {
    match addr {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

fn flags(spec: &ServiceSpec) -> Vec<&'static str> {
    let mut flags = Vec::new();
    if spec.external_traffic_policy.as_deref() == Some("Local") {
        flags.push("eTP=Local");
    }
    if spec.internal_traffic_policy.as_deref() == Some("Local") {
        flags.push("iTP=Local");
    }
    flags
}
