//! The rules between crates: data, so that a change of the design is a change of one line.

/// What a crate of the workspace may use.
pub(super) struct CrateRule {
    pub(super) package: &'static str,
    /// Crates of the workspace that it may use directly.
    pub(super) may_use: &'static [&'static str],
    /// Where it is a list, the only foreign crates that it may use directly.
    pub(super) foreign: Option<&'static [&'static str]>,
    /// Foreign crates that it must not use directly; below others they may be.
    pub(super) never_directly: &'static [&'static str],
    /// Crates that must not be in its tree at all, not even through others. Development dependencies do not count.
    pub(super) never: &'static [&'static str],
}

pub(super) const CRATES: &[CrateRule] = &[
    CrateRule {
        package: "portway-datapath",
        may_use: &[],
        // aya for its `Pod` marker, behind the feature `user`.
        foreign: Some(&["aya"]),
        never_directly: &[],
        never: &["tokio", "serde"],
    },
    CrateRule {
        package: "portway-model",
        may_use: &["portway-datapath"],
        foreign: None,
        never_directly: &[],
        never: &["aya", "clap", "hyper", "kube", "kube-client", "libc", "nix", "notify", "tokio"],
    },
    CrateRule {
        package: "portway-runtime",
        may_use: &[],
        foreign: None,
        never_directly: &[],
        never: &["aya", "portway-datapath", "portway-model"],
    },
    CrateRule {
        package: "portway-claims",
        may_use: &["portway-datapath", "portway-model", "portway-runtime"],
        foreign: None,
        never_directly: &["k8s-openapi", "kube"],
        never: &["aya", "portway-agent", "portway-operator"],
    },
    CrateRule {
        package: "portway-ebpf",
        may_use: &["portway-datapath"],
        foreign: Some(&["aya-ebpf", "aya-log-ebpf", "network-types"]),
        never_directly: &[],
        never: &["aya", "serde", "tokio"],
    },
    CrateRule {
        package: "portway-cni",
        may_use: &[],
        // Run once for each pod, so small and without threads.
        foreign: Some(&["nix", "serde", "serde_json", "thiserror"]),
        never_directly: &[],
        never: &["aya", "clap", "tokio"],
    },
    CrateRule {
        package: "portway-agent",
        may_use: &["portway-claims", "portway-cni", "portway-datapath", "portway-model", "portway-runtime"],
        foreign: None,
        // The API server is spoken to by the runtime, and its objects are decoded by the model alone. k8s-openapi is
        // in the tree because kube cannot be built without it.
        never_directly: &["k8s-openapi", "kube"],
        never: &["aya-ebpf", "portway-operator"],
    },
    CrateRule {
        package: "portway-operator",
        may_use: &["portway-claims", "portway-datapath", "portway-model", "portway-runtime"],
        foreign: None,
        never_directly: &["k8s-openapi", "kube"],
        never: &["aya", "aya-ebpf", "portway-agent"],
    },
    CrateRule {
        package: "portway",
        may_use: &["portway-agent", "portway-datapath", "portway-model", "portway-runtime"],
        foreign: None,
        never_directly: &["k8s-openapi", "kube"],
        never: &["aya-ebpf", "portway-operator"],
    },
    CrateRule {
        package: "portway-tests",
        may_use: &[
            "portway-agent",
            "portway-claims",
            "portway-datapath",
            "portway-model",
            "portway-operator",
            "portway-runtime",
        ],
        foreign: None,
        never_directly: &[],
        never: &["aya-ebpf"],
    },
    CrateRule {
        package: "xtask",
        may_use: &["portway-model"],
        foreign: Some(&["anyhow", "clap", "serde_json"]),
        never_directly: &[],
        never: &["aya", "portway-agent", "portway-operator", "tokio"],
    },
];
