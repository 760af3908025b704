use portway_datapath::Family;
use portway_runtime::config::{Invalid, Origin, Reader, parse_bool};

use crate::ipam::{self, PATIENCE, Pool};

/// Where nodes have their pods' prefixes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ipam {
    /// From the operator, which cuts them from pools of the cluster.
    ClusterPool(ipam::Config),
    /// From `spec.podCIDRs` of their Nodes.
    Kubernetes,
    /// Pods' network is somebody else's business.
    Other,
}

pub(super) fn read(reader: &mut Reader<'_>, namespace: &str) -> Ipam {
    let mode = reader.text("ipam");
    let has_network = has_pod_network(reader, &mode);
    let is_pool = has_network && mode == "cluster-pool";
    // Both of them, also where they have no effect: a mistake is named at once.
    let pools = [Family::V4, Family::V6].map(|family| pool(reader, family, is_pool));
    let config = ipam::Config {
        namespace: namespace.to_owned(),
        pools: pools.into_iter().flatten().collect(),
        workers: reader.number("parallel-alloc-workers"),
        patience: PATIENCE,
    };
    // Of clouds' interfaces, which nobody asks.
    for name in ["limit-ipam-api-qps", "limit-ipam-api-burst"] {
        reader.number::<u32>(name);
    }
    match mode.as_str() {
        _ if !has_network => Ipam::Other,
        "cluster-pool" => {
            if config.pools.is_empty() {
                reader.refuse(
                    &["cluster-pool-ipv4-cidr", "cluster-pool-ipv6-cidr"],
                    "a range for pods of at least one family that is on, where ipam is cluster-pool",
                    "set one, or ipam=kubernetes",
                );
            }
            Ipam::ClusterPool(config)
        }
        "kubernetes" => Ipam::Kubernetes,
        other => {
            let message = format!(
                "{other} is not offered, so nodes get no prefixes from this operator: set it to cluster-pool or kubernetes"
            );
            reader.warn("ipam", message);
            Ipam::Other
        }
    }
}

/// As agents decide it: unless told to, where someone said which addresses pods get.
fn has_pod_network(reader: &mut Reader<'_>, ipam: &str) -> bool {
    match reader.text("enable-pod-network").as_str() {
        "true" => true,
        "false" => false,
        _ => is_said(reader, "ipam") && ipam != "delegated-plugin",
    }
}

/// `None` where there is no range, or the family is off.
fn pool(reader: &mut Reader<'_>, family: Family, is_used: bool) -> Option<Pool> {
    let (on, cidr, mask) = match family {
        Family::V4 => ("enable-ipv4", "cluster-pool-ipv4-cidr", "cluster-pool-ipv4-mask-size"),
        Family::V6 => ("enable-ipv6", "cluster-pool-ipv6-cidr", "cluster-pool-ipv6-mask-size"),
    };
    let bits: u8 = reader.number(mask);
    let parse = |text: &str| match text.trim() {
        "" => Ok(None),
        text => Pool::parse(family, text, bits).map(Some).map_err(|error| {
            Invalid::new(
                "",
                format!("{error}: write ranges that do not overlap, and a {mask} that fits into each"),
            )
        }),
    };
    let pool = reader.parse(cidr, parse).flatten();
    let is_on = reader.bool(on);
    let is_asked_for = reader
        .said(on)
        .is_some_and(|said| said.origin != Origin::Default && parse_bool(&said.value) == Ok(true));
    if is_used && is_asked_for && pool.is_none() {
        reader.refuse(
            &[on, cidr],
            "a range for the pods of each family that is on, where ipam is cluster-pool",
            format!("set {cidr}, or {on}=false"),
        );
    }
    pool.filter(|_| is_on)
}

fn is_said(reader: &Reader<'_>, name: &'static str) -> bool {
    reader.said(name).is_some_and(|said| said.origin != Origin::Default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Invocation, load};

    fn read(arguments: &[&str]) -> Result<Config, String> {
        let server = "--k8s-api-server=http://192.0.2.1";
        let arguments = arguments.iter().chain([&server]).map(Into::into).collect();
        let loaded = load(Invocation { arguments, ..Invocation::default() });
        loaded.map(|loaded| loaded.config).map_err(|problems| problems.to_string())
    }

    fn pools(arguments: &[&str]) -> Vec<String> {
        let Ipam::ClusterPool(config) = read(arguments).unwrap().ipam else {
            panic!("no pools: {arguments:?}")
        };
        config.pools.iter().flat_map(Pool::cidrs).map(ToString::to_string).collect()
    }

    #[test]
    fn nodes_have_pools_of_the_families_that_are_on() {
        let on = "--ipam=cluster-pool";
        assert_eq!(pools(&[on]), ["10.0.0.0/8"]);
        assert_eq!(pools(&["--enable-pod-network=true"]), ["10.0.0.0/8"]);
        let v6 = "--cluster-pool-ipv6-cidr=fd00::/104";
        assert_eq!(pools(&[on, v6]), ["10.0.0.0/8", "fd00::/104"]);
        assert_eq!(pools(&[on, v6, "--enable-ipv4=false"]), ["fd00::/104"]);
        assert_eq!(pools(&[on, v6, "--enable-ipv6=false"]), ["10.0.0.0/8"]);
        assert_eq!(
            pools(&[on, "--cluster-pool-ipv4-cidr=10.1.0.0/16 10.2.0.0/16,"]),
            ["10.1.0.0/16", "10.2.0.0/16"]
        );
    }

    #[test]
    fn without_a_pod_network_nothing_of_it_is_done() {
        for arguments in
            [&[][..], &["--ipam=delegated-plugin"], &["--ipam=cluster-pool", "--enable-pod-network=false"]]
        {
            let config = read(arguments).unwrap();
            assert_eq!(config.ipam, Ipam::Other, "{arguments:?}");
            assert!(config.nodes.discovery.is_none() && config.nodes.unmanaged.is_none());
            assert!(config.nodes.readiness.is_some_and(|of| of.remove_taint && !of.set_condition));
        }
        let config = read(&["--ipam=kubernetes"]).unwrap();
        assert_eq!(config.ipam, Ipam::Kubernetes);
        assert!(config.nodes.discovery.unwrap().has_pod_cidrs_of_nodes && config.nodes.unmanaged.is_some());
    }

    #[test]
    fn pools_that_cannot_be_used_are_named_with_their_keys() {
        let on = "--ipam=cluster-pool";
        let told = |arguments: &[&str], texts: &[&str]| {
            let problems = read(arguments).unwrap_err();
            texts.iter().for_each(|text| assert!(problems.contains(text), "{text}: {problems}"));
        };
        let key = "cluster-pool-ipv4-cidr";
        told(
            &[on, "--cluster-pool-ipv4-cidr=10.0.0.0/8,10.9.0.0/16"],
            &[key, "10.9.0.0/16 overlaps 10.0.0.0/8"],
        );
        told(
            &[on, "--cluster-pool-ipv4-cidr=10.0.0.0/25"],
            &[key, "smaller than a node's part of it, a /24"],
        );
        told(&[on, "--cluster-pool-ipv4-mask-size=31"], &["cluster-pool-ipv4-mask-size", "from 8 to 30"]);
        told(&[on, "--enable-ipv6=true"], &["enable-ipv6 and cluster-pool-ipv6-cidr"]);
        told(&[on, "--cluster-pool-ipv4-cidr="], &["cluster-pool-ipv4-cidr and cluster-pool-ipv6-cidr"]);
        // Also where it has no effect.
        told(&["--cluster-pool-ipv6-cidr=10.0.0.0/8"], &["cluster-pool-ipv6-cidr", "is no IPv6 range"]);
    }

    #[test]
    fn selectors_and_taint_keys_are_checked() {
        for (argument, text) in [
            ("--cilium-pod-labels=", "selects every pod"),
            ("--cilium-pod-labels=a b", "is none of"),
            ("--pod-restart-selector=in (x)", "is none of"),
            ("--agent-not-ready-taint-key=a b", "agent-not-ready-taint-key"),
        ] {
            let problems = read(&[argument]).unwrap_err();
            assert!(problems.contains(text), "{argument}: {problems}");
        }
        let config = read(&["--ipam=kubernetes", "--pod-restart-selector="]).unwrap();
        assert_eq!(config.nodes.unmanaged, None);
    }
}
