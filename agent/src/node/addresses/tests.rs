use super::*;

#[test]
fn node_ports_answer_where_the_prefixes_say() {
    let found = LocalAddresses {
        interfaces: vec![Interface {
            name: "eth0".to_owned(),
            addresses: vec![
                "10.0.0.1".parse().unwrap(),
                "192.0.2.1".parse().unwrap(),
                "fd00::1".parse().unwrap(),
            ],
        }],
    };
    let serving = |prefixes: &[&str]| -> Vec<String> {
        let arguments: Vec<_> = ["--source-dir=/m", "--cgroup-root=/c"]
            .into_iter()
            .map(str::to_owned)
            .chain([format!("--nodeport-addresses={}", prefixes.join(","))])
            .map(Into::into)
            .collect();
        let invocation = crate::config::Invocation { arguments, ..Default::default() };
        let config = crate::config::load(invocation).unwrap().config;
        let table = found.table(&config.node_port_addresses);
        assert_eq!(table.len(), 3);
        table.into_iter().filter(|(_, v)| v.serves_node_ports()).map(|(a, _)| a.to_string()).collect()
    };
    assert_eq!(serving(&[]), ["10.0.0.1", "192.0.2.1", "fd00::1"]);
    assert_eq!(serving(&["10.0.0.0/8", "fd00::/8"]), ["10.0.0.1", "fd00::1"]);
}
