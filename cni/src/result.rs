//! The specification's result, newest shape inside, each version's shape outside.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::version::Version;

/// What a pod's network is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    #[serde(default)]
    pub ips: Vec<Ip>,
    #[serde(default)]
    pub routes: Vec<Route>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The path of the pod's network namespace; empty for the node's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ip {
    /// With its prefix length.
    pub address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Which one of the interfaces has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
}

impl Ip {
    /// The address without its prefix length; `None` where it is none.
    pub fn ip(&self) -> Option<IpAddr> {
        self.address.split_once('/').map_or(self.address.as_str(), |(ip, _)| ip).parse().ok()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub dst: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
}

impl Attached {
    /// The addresses of an interface of the pod; those of no interface that is listed are taken for its.
    pub fn addresses_of(&self, interface: &str) -> impl Iterator<Item = IpAddr> {
        let is_its = move |ip: &&Ip| {
            let of = ip.interface.and_then(|index| self.interfaces.get(index));
            of.is_none_or(|of| of.name == interface && !of.sandbox.is_empty())
        };
        self.ips.iter().filter(is_its).filter_map(Ip::ip)
    }

    /// As a runtime of `version` expects it.
    pub fn render(&self, version: Version) -> Value {
        let interfaces = self.interfaces.iter().map(|interface| {
            let mtu = interface.mtu.filter(|_| version >= Version::V1_1_0);
            json!(Interface { mtu, ..interface.clone() })
        });
        let ips = self.ips.iter().map(|ip| {
            let mut value = json!(ip);
            if let (true, Some(fields)) = (version < Version::V1_0_0, value.as_object_mut()) {
                let family = if ip.ip().is_some_and(|ip| ip.is_ipv6()) { "6" } else { "4" };
                fields.insert("version".to_owned(), family.into());
            }
            value
        });
        let routes = self.routes.iter().map(|route| {
            let mtu = route.mtu.filter(|_| version >= Version::V1_1_0);
            json!(Route { mtu, ..route.clone() })
        });
        json!({
            "cniVersion": version,
            "interfaces": interfaces.collect::<Vec<_>>(),
            "ips": ips.collect::<Vec<_>>(),
            "routes": routes.collect::<Vec<_>>(),
            "dns": {},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached() -> Attached {
        let ip = |address: &str| Ip { address: address.to_owned(), gateway: None, interface: Some(0) };
        Attached {
            interfaces: vec![Interface {
                name: "eth0".to_owned(),
                mac: "02:00:00:00:00:01".to_owned(),
                mtu: Some(1450),
                sandbox: "/run/netns/a".to_owned(),
            }],
            ips: vec![ip("10.244.1.5/32"), ip("fd00::5/128")],
            routes: vec![Route { dst: "0.0.0.0/0".to_owned(), gw: None, mtu: Some(1450) }],
        }
    }

    #[test]
    fn each_version_gets_the_fields_it_knows() {
        let old = attached().render(Version::V0_4_0);
        assert_eq!((&old["ips"][0]["version"], &old["ips"][1]["version"]), (&json!("4"), &json!("6")));
        assert!(old["interfaces"][0].get("mtu").is_none() && old["routes"][0].get("mtu").is_none());
        let middle = attached().render(Version::V1_0_0);
        assert!(middle["ips"][0].get("version").is_none() && middle["interfaces"][0].get("mtu").is_none());
        let new = attached().render(Version::V1_1_0);
        assert_eq!((&new["interfaces"][0]["mtu"], &new["cniVersion"]), (&json!(1450), &json!("1.1.0")));
    }

    #[test]
    fn an_interface_has_its_own_addresses_and_those_that_are_of_none() {
        let mut all = attached();
        let of_pod = all.interfaces[0].clone();
        // The node's end of another plugin's link, which has the same name, and a second interface of the pod.
        all.interfaces.push(Interface { sandbox: String::new(), ..of_pod.clone() });
        all.interfaces.push(Interface { name: "net1".to_owned(), ..of_pod });
        for (address, interface) in [
            ("10.0.0.1/24", Some(1)),
            ("10.1.0.1/24", Some(2)),
            ("10.2.0.1/24", None),
            ("fd01::1/64", Some(9)),
        ] {
            all.ips.push(Ip { address: address.to_owned(), gateway: None, interface });
        }
        let of = |interface| all.addresses_of(interface).map(|ip| ip.to_string()).collect::<Vec<_>>();
        assert_eq!(of("eth0"), ["10.244.1.5", "fd00::5", "10.2.0.1", "fd01::1"]);
        assert_eq!(of("net1"), ["10.1.0.1", "10.2.0.1", "fd01::1"]);
    }

    #[test]
    fn a_result_of_each_version_can_be_read_back() {
        for version in Version::ALL {
            let mut expected = attached();
            if version < Version::V1_1_0 {
                expected.interfaces[0].mtu = None;
                expected.routes[0].mtu = None;
            }
            let read: Attached = serde_json::from_value(attached().render(version)).unwrap();
            assert_eq!(read, expected, "{version}");
        }
    }
}
