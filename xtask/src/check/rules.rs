//! The rules between crates: data, so that a change of the design is a change of one line.

/// What a crate of the workspace may use.
pub(super) struct CrateRule {
    pub(super) package: &'static str,
    /// Crates of the workspace that it may use directly.
    pub(super) may_use: &'static [&'static str],
    /// Where it is a list, the only foreign crates that it may use directly.
    pub(super) foreign: Option<&'static [&'static str]>,
    /// Crates that must not be in its tree at all, not even through others. Development dependencies do not count.
    pub(super) never: &'static [&'static str],
}

pub(super) const CRATES: &[CrateRule] = &[
    CrateRule {
        package: "portway-datapath",
        may_use: &[],
        // aya for its `Pod` marker, behind the feature `user`.
        foreign: Some(&["aya"]),
        never: &["tokio", "serde"],
    },
    CrateRule {
        package: "portway-model",
        may_use: &["portway-datapath"],
        foreign: None,
        never: &["aya", "clap", "hyper", "kube", "kube-client", "libc", "nix", "notify", "tokio"],
    },
    CrateRule {
        package: "portway-runtime",
        may_use: &[],
        foreign: None,
        never: &["aya", "portway-datapath", "portway-model"],
    },
    CrateRule {
        package: "portway-ebpf",
        may_use: &["portway-datapath"],
        foreign: Some(&["aya-ebpf", "aya-log-ebpf", "network-types"]),
        never: &["aya", "serde", "tokio"],
    },
    CrateRule {
        package: "portway-agent",
        may_use: &["portway-datapath", "portway-model", "portway-runtime"],
        foreign: None,
        never: &["aya-ebpf", "k8s-openapi", "portway-operator"],
    },
    CrateRule {
        package: "portway",
        may_use: &["portway-agent", "portway-datapath", "portway-model", "portway-runtime"],
        foreign: None,
        never: &["aya-ebpf", "k8s-openapi", "portway-operator"],
    },
    CrateRule {
        package: "portway-tests",
        may_use: &["portway-agent", "portway-datapath", "portway-model", "portway-runtime"],
        foreign: None,
        never: &["aya-ebpf"],
    },
    CrateRule {
        package: "xtask",
        may_use: &["portway-model"],
        foreign: Some(&["anyhow", "clap", "serde_json"]),
        never: &["aya", "portway-agent", "portway-operator", "tokio"],
    },
];
