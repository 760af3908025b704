use std::ffi::OsString;
use std::fs;

use super::*;

const KEYS: &[Key] = &[
    key("bpf-lb-map-max", Kind::Integer { min: 0, max: 100 }, "0", Class::Honoured),
    Key {
        aliases: &["node-port-mode"],
        ..key("bpf-lb-mode", Kind::OneOf(&["snat", "dsr"]), "snat", Class::Honoured)
    },
    key("bpf-root", Kind::Path, "/sys/fs/bpf", Class::Honoured),
    key("config-dir", Kind::Path, "", Class::Honoured),
    key("enable-ipv6", Kind::Bool, "true", Class::Honoured),
    key("enable-hubble", Kind::Bool, "false", Class::NotOffered),
    key("enable-ipsec", Kind::Bool, "false", Class::Dangerous),
    key("sockops-enable", Kind::Bool, "false", Class::Retired),
    Key { off: Off::At(&["", "none"]), ..key("l7-mode", Kind::Text("a mode"), "envoy", Class::NotOffered) },
    Key { off: Off::Always, ..key("hubble-port", Kind::Text(""), "4244", Class::NotOffered) },
    key("nodes-gc-interval", Kind::Text(""), "5m", Class::Operator),
];

const fn key(name: &'static str, kind: Kind, default: &'static str, class: Class) -> Key {
    Key { name, aliases: &[], class, kind, default, off: Off::Default, help: "what it does", group: "Group" }
}

#[derive(Debug, PartialEq, Eq)]
struct Config {
    max: u64,
    mode: String,
    root: String,
    ipv6: bool,
}

fn load(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(Config, Vec<String>), Problems> {
    let settings = Sources {
        arguments: arguments.iter().map(OsString::from),
        environment: environment.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))),
    }
    .read(KEYS);
    let mut reader = settings.reader();
    let config = Config {
        max: reader.number("bpf-lb-map-max"),
        mode: reader.text("bpf-lb-mode"),
        root: reader.text("bpf-root"),
        ipv6: reader.bool("enable-ipv6"),
    };
    reader
        .finish(config)
        .map(|(config, warnings)| (config, warnings.iter().map(ToString::to_string).collect()))
}

fn problems(arguments: &[&str], environment: &[(&str, &str)]) -> Vec<String> {
    load(arguments, environment).unwrap_err().0.iter().map(ToString::to_string).collect()
}

#[test]
fn without_a_word_everything_is_the_default() {
    let (config, warnings) = load(&[], &[]).unwrap();
    assert_eq!(config, Config { max: 0, mode: "snat".into(), root: "/sys/fs/bpf".into(), ipv6: true });
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn a_flag_wins_over_a_variable_and_that_over_a_file() {
    let dir = tempfile::tempdir().unwrap();
    // As kubelet mounts a ConfigMap: visible names are links into `..data`.
    fs::create_dir(dir.path().join("..2026")).unwrap();
    for (name, value) in [("bpf-lb-map-max", "1\n"), ("bpf-lb-mode", "dsr\n"), ("enable-ipv6", "false")] {
        fs::write(dir.path().join("..2026").join(name), value).unwrap();
        std::os::unix::fs::symlink(format!("..data/{name}"), dir.path().join(name)).unwrap();
    }
    std::os::unix::fs::symlink("..2026", dir.path().join("..data")).unwrap();
    let dir_flag = format!("--config-dir={}", dir.path().display());

    let (config, _) = load(&[&dir_flag], &[]).unwrap();
    assert_eq!((config.max, config.mode.as_str(), config.ipv6), (1, "dsr", false));
    let (config, _) = load(&[&dir_flag], &[("PORTWAY_BPF_LB_MAP_MAX", "2")]).unwrap();
    assert_eq!((config.max, config.ipv6), (2, false));
    let (config, warnings) =
        load(&[&dir_flag, "--bpf-lb-map-max=3", "--enable-ipv6"], &[("PORTWAY_BPF_LB_MAP_MAX", "2")])
            .unwrap();
    assert_eq!((config.max, config.ipv6), (3, true));
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn flags_take_their_value_with_or_without_an_equals_sign() {
    assert_eq!(load(&["--bpf-lb-map-max", "7"], &[]).unwrap().0.max, 7);
    assert_eq!(load(&["--bpf-lb-map-max=8"], &[]).unwrap().0.max, 8);
    assert!(!load(&["--enable-ipv6=false"], &[]).unwrap().0.ipv6);
    assert!(!load(&["--enable-ipv6=F"], &[]).unwrap().0.ipv6);
}

#[test]
fn an_alias_sets_its_key_and_the_keys_own_name_wins() {
    assert_eq!(load(&["--node-port-mode=dsr"], &[]).unwrap().0.mode, "dsr");
    assert_eq!(load(&["--node-port-mode=dsr", "--bpf-lb-mode=snat"], &[]).unwrap().0.mode, "snat");
    assert_eq!(load(&["--bpf-lb-mode=snat", "--node-port-mode=dsr"], &[]).unwrap().0.mode, "snat");
    assert_eq!(load(&["--node-port-mode=dsr"], &[("PORTWAY_BPF_LB_MODE", "snat")]).unwrap().0.mode, "dsr");
}

#[test]
fn every_problem_is_named_at_once_with_the_place_the_allowed_and_the_mend() {
    let problems = problems(
        &["--bpf-lb-map-max=101", "--bpf-lb-mode=hybrid", "--bpf-root=here", "extra"],
        &[("PORTWAY_ENABLE_IPV6", "yes")],
    );
    assert_eq!(
        problems,
        [
            "argument=\"extra\" (from the command line): allowed is flags only, as --key=value; remove it",
            "bpf-lb-map-max=\"101\" (from the flag --bpf-lb-map-max): allowed is a number from 0 to 100; use 0 (the \
             default)",
            "bpf-lb-mode=\"hybrid\" (from the flag --bpf-lb-mode): allowed is snat or dsr; use snat (the default)",
            "bpf-root=\"here\" (from the flag --bpf-root): allowed is an absolute path; use /sys/fs/bpf (the default)",
            "enable-ipv6=\"yes\" (from the variable PORTWAY_ENABLE_IPV6): allowed is true or false; write true or false",
        ]
    );
}

#[test]
fn a_flag_that_lacks_its_value_is_a_problem() {
    let problems = problems(&["--bpf-lb-map-max", "--enable-ipv6"], &[]);
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("write --bpf-lb-map-max=VALUE"), "{problems:?}");
}

#[test]
fn an_unknown_key_is_a_warning_that_names_the_nearest_one() {
    let (_, warnings) = load(&["--bpf-lb-map-mox=1"], &[("PORTWAY_ENABLE_IPV7", "x")]).unwrap();
    assert!(warnings[0].contains("did you mean bpf-lb-map-max?"), "{warnings:?}");
    assert!(warnings[1].contains("did you mean enable-ipv6?"), "{warnings:?}");
    let (_, warnings) = load(&["--wholly-different"], &[]).unwrap();
    assert!(warnings[0].ends_with("no such key; it is ignored"), "{warnings:?}");
}

#[test]
fn variables_that_kubernetes_sets_for_a_service_are_no_keys() {
    let (_, warnings) =
        load(&[], &[("PORTWAY_SERVICE_HOST", "10.0.0.1"), ("PORTWAY_PORT_80_TCP_ADDR", "10.0.0.1")]).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn each_class_is_told_apart() {
    let (_, warnings) = load(&["--enable-hubble", "--sockops-enable"], &[]).unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("not offered"), "{warnings:?}");
    assert_eq!(problems(&["--enable-ipsec"], &[]).len(), 1);
    load(&["--enable-ipsec=false"], &[]).unwrap();
    load(&["--enable-ipsec=F"], &[]).unwrap();
    assert!(problems(&["--enable-ipsec"], &[])[0].contains("allowed is \"false\" only"));
}

#[test]
fn a_key_that_is_not_offered_warns_where_it_asks_for_something() {
    let warns = |argument: &str| load(&[argument], &[]).unwrap().1.len();
    // Its default may well ask for something: whoever leaves the key out was not promised it.
    assert_eq!((warns("--l7-mode=envoy"), warns("--l7-mode="), warns("--l7-mode=none")), (1, 0, 0));
    assert_eq!((warns("--hubble-port=1"), warns("--nodes-gc-interval=1s")), (0, 0));
    assert_eq!(load(&[], &[]).unwrap().1.len(), 0);
    let settings = Sources {
        arguments: ["--sockops-enable", "--hubble-port", "--nodes-gc-interval=1s"].map(OsString::from),
        environment: [],
    }
    .read(KEYS);
    let without_effect: Vec<_> = settings.without_effect().iter().map(|said| said.key.as_str()).collect();
    assert_eq!(without_effect, ["sockops-enable", "hubble-port"]);
}

#[test]
fn keys_of_another_program_in_a_shared_directory_are_accepted_without_a_word() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("mtu"), "1400\n").unwrap();
    fs::write(dir.path().join("enable-ipv6"), "false\n").unwrap();
    let arguments = [format!("--config-dir={}", dir.path().display()), "--enable-ipv5=false".to_owned()];
    let sources = || Sources { arguments: arguments.iter().map(OsString::from), environment: [] };
    let settings = sources().read_shared(KEYS);
    let mut reader = settings.reader();
    let ipv6 = reader.bool("enable-ipv6");
    let (ipv6, warnings) = reader.finish(ipv6).unwrap();
    assert!(!ipv6);
    // A flag is for this program alone.
    assert_eq!(warnings.iter().map(|warning| warning.key.as_str()).collect::<Vec<_>>(), ["enable-ipv5"]);
    assert_eq!(settings.without_effect().iter().map(|said| said.key.as_str()).collect::<Vec<_>>(), ["mtu"]);
    assert_eq!(sources().read(KEYS).reader().finish(()).unwrap().1.len(), 2);
}

#[test]
fn a_config_dir_that_is_missing_is_a_problem() {
    let problems = problems(&["--config-dir=/nonexistent/portway"], &[]);
    assert!(problems[0].contains("mount the ConfigMap there"), "{problems:?}");
}

#[test]
fn help_lists_honoured_keys_with_default_and_allowed_values() {
    let text = help("portway-agent: the node agent", KEYS);
    assert!(text.contains(
        "  --bpf-lb-mode [default: snat]\n        what it does. Allowed: snat or dsr. Also: node-port-mode."
    ));
    assert!(!text.contains("enable-hubble"));
    assert!(text.lines().all(|line| line.len() <= 110));
}
