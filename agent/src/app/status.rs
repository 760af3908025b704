//! What `portway status` shows of the owner's side.

mod sources;

use super::metrics::Tallies;
use crate::api::{
    self, Counts, Device, Kernel, KubeProxyReplacement, ServiceSupport, Status, Writes, counted,
};
use crate::config::Config;
use crate::maps::MapId;
use crate::node::{self, LocalAddresses};

/// Since 6.7 the kernel keeps the address that its own NFS and SMB clients were given (commits 0bdf399342c5,
/// 86a7e0b69bd5, 01b2885d9415, cedc019b9f26).
const KEEPS_KERNEL_SOCKET_ADDRESSES: (u32, u32) = (6, 7);

/// What the owner knows.
pub(super) struct Facts<'a> {
    pub(super) config: &'a Config,
    pub(super) addresses: &'a LocalAddresses,
    pub(super) kernel: Kernel,
    pub(super) sources: Vec<api::Source>,
    /// What no source has told to its end although `k8s-sync-timeout` is over.
    pub(super) late: Vec<String>,
    pub(super) tallies: Tallies,
    pub(super) writes: Writes,
    pub(super) stale_sockets: api::StaleSockets,
    pub(super) audit: api::AuditStatus,
    pub(super) without_maglev: usize,
    pub(super) serving: bool,
    /// Files that are broken since the start; what the maps hold of an earlier agent is not removed for them.
    pub(super) silent_files: usize,
}

/// The kernel's name, what the self-test found, and what this kernel cannot do.
pub(super) fn kernel(self_test: &[api::Check]) -> Kernel {
    let release = node::kernel_release();
    let mut notes = Vec::new();
    notes.extend(kernel_clients(&release));
    if self_test.iter().any(|check| check.detail.contains("no IPv6")) {
        notes.push("this kernel has no IPv6; IPv6 frontends are programmed and never reached".to_owned());
    }
    Kernel { release, self_test: self_test.to_vec(), notes }
}

/// What happens to the kernel's own clients of services. A release is all that is known here: a distribution may have
/// taken the fixes under an older number, and no file tells, so the note leaves that open.
fn kernel_clients(release: &str) -> Option<String> {
    version(release).is_some_and(|version| version < KEEPS_KERNEL_SOCKET_ADDRESSES).then(|| {
        "before Linux 6.7, unless the distribution has the fixes: NFS and SMB mounts of a service address reconnect \
         to the backend they first got, also when it is gone"
            .to_owned()
    })
}

/// Major and minor version.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-', '+']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// All but what the maps themselves and the process tell ([`super::http`] adds that).
pub(super) fn build(facts: Facts<'_>) -> Status {
    let Facts {
        config,
        addresses,
        mut kernel,
        sources,
        late,
        tallies,
        writes,
        stale_sockets,
        audit,
        without_maglev,
        serving,
        silent_files,
    } = facts;
    let Tallies { rejects, clashes, broken_files: _, local_addresses, usage } = tallies;
    kernel.notes.extend(stale_sockets.unsupported.clone());
    let mut warnings = config.warnings.clone();
    if let Some(error) = &writes.last_error {
        let outstanding = counted(
            writes.outstanding,
            "service or frontend is not as wanted",
            "services or frontends are not as wanted",
        );
        warnings.push(format!("{outstanding}: {error}"));
    }
    warnings.extend(sources::warnings(&sources, &late));
    if silent_files > 0 {
        let files = counted(silent_files as u64, "file", "files");
        warnings.push(format!(
            "what an earlier agent made of {files} that cannot be used, or of files that are gone, is still served until they can"
        ));
    }
    if rejects > 0 {
        let rejects = counted(rejects, "value of an object is", "values of objects are");
        warnings.push(format!("{rejects} not used; `portway status --verbose` lists them"));
    }
    if clashes > 0 {
        let clashes = counted(clashes, "frontend is", "frontends are");
        warnings.push(format!("{clashes} wanted by more than one service"));
    }
    if without_maglev > 0 {
        let services = counted(without_maglev as u64, "service chooses", "services choose");
        warnings.push(format!("{services} at random: the Maglev tables are full"));
    }
    warnings.extend(super::audit::warnings(&audit));
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: config.node_name.clone(),
        pid: std::process::id(),
        uptime_seconds: 0.0,
        ready: serving,
        waiting_for: Vec::new(),
        kube_proxy_replacement: replacement(config, addresses, serving),
        kernel,
        sources,
        counts: Counts {
            service_ports: usage.services.into(),
            frontends: usage.frontends.into(),
            backends: usage.backends.into(),
            rejects,
            clashes,
            local_addresses,
            unremembered: 0,
        },
        maps: Vec::new(),
        writes,
        stale_sockets,
        audit,
        pod_network: None,
        identities: None,
        warnings,
    }
}

/// What is said of `number` connections that `pw_sock`, of `entries`, had no room for; the other maps that programs
/// fill drop their oldest entry instead.
pub(super) fn unremembered(number: u64, entries: u32) -> Option<String> {
    let key = MapId::Sock.size_key().unwrap_or_default();
    let connections = counted(number, "connection was", "connections were");
    (number > 0).then(|| {
        format!(
            "{connections} not remembered since the kernel maps were made, so getpeername shows the backend there: \
             {} with its {entries} entries was full or the kernel had no memory; raise {key}",
            MapId::Sock.name()
        )
    })
}

/// The block in Cilium's words (reference/services.md, 1.5).
fn replacement(config: &Config, addresses: &LocalAddresses, serving: bool) -> KubeProxyReplacement {
    let on = config.kube_proxy_replacement;
    let word = |on: bool| if on { "Enabled" } else { "Disabled" }.to_owned();
    let serves = |addr| {
        config.node_port_addresses.is_empty()
            || config.node_port_addresses.iter().any(|cidr| cidr.contains(addr))
    };
    let devices = addresses.interfaces.iter().map(|interface| Device {
        name: interface.name.clone(),
        addresses: interface
            .addresses
            .iter()
            .filter(|addr| serves(**addr))
            .map(ToString::to_string)
            .collect(),
    });
    let services = [
        ("ClusterIP", word(on)),
        ("NodePort", if on { format!("Enabled (Range: {})", config.node_port_range) } else { word(on) }),
        ("LoadBalancer", word(on)),
        ("externalIPs", word(on && config.services.external_ips)),
        ("HostPort", word(on && config.services.host_ports)),
    ];
    KubeProxyReplacement {
        status: if on && serving { "True" } else { "False" }.to_owned(),
        socket_lb: match (on, config.host_namespace_only) {
            (false, _) => "Disabled",
            (true, true) => "Host namespace only",
            (true, false) => "Enabled",
        }
        .to_owned(),
        protocols: vec!["TCP".to_owned(), "UDP".to_owned()],
        devices: devices.filter(|device| !device.addresses.is_empty()).collect(),
        mode: "SNAT".to_owned(),
        backend_selection: match config.maglev {
            None => "Random".to_owned(),
            Some(maglev) => format!("Maglev (Table Size: {})", maglev.table_size),
        },
        session_affinity: word(config.services.session_affinity),
        graceful_termination: word(config.services.terminating_endpoints),
        nat46x64: "Disabled".to_owned(),
        xdp_acceleration: "Disabled".to_owned(),
        services: services
            .into_iter()
            .map(|(kind, status)| ServiceSupport { kind: kind.to_owned(), status })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_counts_in_the_singular_too() {
        assert_eq!(unremembered(0, 1024), None);
        assert!(unremembered(1, 1024).unwrap().starts_with("1 connection was not remembered"));
    }

    #[test]
    fn pain_87_a_kernel_that_may_send_its_own_clients_to_a_dead_backend_is_named() {
        for older in ["6.1.0-57-amd64", "5.15.0", "6.6.30"] {
            assert!(kernel_clients(older).unwrap().contains("NFS and SMB mounts"), "{older}");
        }
        for fixed in ["6.7.0", "6.18.44-fc", "7.0"] {
            assert_eq!(kernel_clients(fixed), None);
        }
    }

    #[test]
    fn versions_of_kernels_are_compared_by_number() {
        assert_eq!(version("6.18.0-rc3"), Some((6, 18)));
        assert_eq!(version("6.1.0-57-amd64"), Some((6, 1)));
        assert!(version("6.10.1").unwrap() > version("6.7").unwrap());
        assert_eq!(version("none"), None);
    }
}
