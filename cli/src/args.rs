use std::path::PathBuf;

use clap::{Args as ClapArgs, CommandFactory as _, Parser, Subcommand};

use crate::config;
use crate::output::Format;

/// Look at Portway, the replacement of kube-proxy on this node
#[derive(Debug, Parser)]
#[command(
    name = "portway",
    bin_name = "portway",
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the agent does not answer, 4 the agent is not ready (status)."
)]
pub(crate) struct Args {
    /// The agent's unix socket
    #[arg(
        long,
        global = true,
        env = "PORTWAY_SOCKET_PATH",
        value_name = "FILE",
        default_value = "/var/run/portway/portway.sock"
    )]
    pub(crate) socket_path: PathBuf,
    /// How to print
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Format,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// How the agent is, and what it does for kube-proxy
    Status {
        /// Everything: sources, maps, the kernel's self-test, the KubeProxyReplacement block
        #[arg(short, long)]
        verbose: bool,
    },
    /// Services as the agent has programmed them
    Service {
        #[command(subcommand)]
        verb: Service,
    },
    /// The nodes of the cluster, and whether they answer this one's probes
    Node {
        #[command(subcommand)]
        verb: Node,
    },
    /// The pods of this node that Portway's CNI plugin has given a network
    Endpoint {
        #[command(subcommand)]
        verb: Endpoint,
    },
    /// The addresses for this node's pods: prefixes, and who has what
    Ipam,
    /// Which number stands for which labels
    Identity {
        #[command(subcommand)]
        verb: Identity,
    },
    /// The addresses of the cluster, and who is there
    Ip {
        #[command(subcommand)]
        verb: Ip,
    },
    /// What is in the kernel's maps, read from there; works with the agent down
    Bpf {
        #[command(subcommand)]
        verb: Bpf,
    },
    /// Compare what the kernel holds with what the agent wrote and what is wanted. Exits with 1 if a difference remains
    Audit {
        /// Put right what differs; without this nothing is changed
        #[arg(long)]
        fix: bool,
    },
    /// The agent's configuration: each key, its value, where that came from and what becomes of it
    Config {
        /// Also the keys that have their default
        #[arg(short, long)]
        all: bool,
        /// Every key of one class, with what there is to say of it
        #[arg(long, value_enum, value_name = "CLASS", conflicts_with = "all")]
        class: Option<config::Wanted>,
    },
    /// The cluster's operator
    Operator {
        #[command(subcommand)]
        verb: Operator,
    },
    /// What manifests would program on a node, without a kernel, a cluster or an agent
    ///
    /// Takes the configuration keys of the agent too, as flags and from the environment; those that decide what is
    /// programmed count, e.g. --k8s-service-proxy-name=NAME.
    /// Refused objects go to standard error, one JSON object a line; they do not change the exit code.
    Plan(Plan),
    /// Take Portway out of the kernel: its programs, links and maps. The agent must be down
    Cleanup {
        /// The BPF file system in which everything is pinned
        #[arg(long, env = "PORTWAY_BPF_ROOT", value_name = "DIR", default_value = "/sys/fs/bpf")]
        bpf_root: PathBuf,
        /// Where the agent noted what it changed on the node
        #[arg(long, env = "PORTWAY_STATE_DIR", value_name = "DIR", default_value = "/var/run/portway")]
        state_dir: PathBuf,
        /// Do it without asking
        #[arg(short, long)]
        yes: bool,
    },
    /// A completion script for a shell
    ///
    /// bash: source <(portway completion bash). zsh: write it to a file _portway in a directory of $fpath. fish:
    /// portway completion fish | source.
    Completion {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// The version of this command
    Version,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Service {
    /// All frontends with their backends
    List,
    /// The frontends of one service
    Get {
        /// namespace/name, the name alone, or the ID that `service list` shows
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Node {
    /// All nodes with their addresses
    List {
        /// Probe every node first
        #[arg(long)]
        probe: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Endpoint {
    /// All endpoints with their addresses and states
    List,
    /// One endpoint with everything that is known of it
    Get {
        /// Its number, the pod's namespace/name or name, an address, or how the container's ID begins
        name: String,
    },
    /// The states that an endpoint has been through, and why
    Log {
        /// As for `endpoint get`
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Identity {
    /// All identities: reserved ones, the cluster's, and those of this node alone
    List {
        /// Those that have this label, such as k8s:app=web or app=web; may be given several times. Without a label: which
        /// labels make the cluster's identities many, and whose they are
        #[arg(long, value_name = "LABEL", num_args = 0..=1, default_missing_value = "")]
        by_label: Vec<String>,
    },
    /// One identity
    Get { id: u32 },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Ip {
    /// All prefixes with the identities at them, as the agent wants them to be in the kernel
    List,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Operator {
    /// How a replica is, which one leads, and what its controllers do
    Status {
        /// Where the replica serves its API, as operator-api-serve-addr of its configuration
        #[arg(
            long,
            env = "PORTWAY_OPERATOR_ADDRESS",
            value_name = "URL",
            default_value = "http://localhost:9234"
        )]
        address: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bpf {
    /// The load balancer's maps
    Lb {
        #[command(subcommand)]
        verb: BpfLb,
    },
    /// The flows of this node's pods
    Ct {
        #[command(subcommand)]
        verb: BpfFlows,
    },
    /// Masqueraded flows
    Nat {
        #[command(subcommand)]
        verb: BpfFlows,
    },
    /// Who is where: identities and ways by prefix
    Ipcache {
        #[command(subcommand)]
        verb: BpfIpcache,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BpfIpcache {
    /// One line a prefix
    List {
        /// The BPF file system in which the maps are pinned
        #[arg(long, env = "PORTWAY_BPF_ROOT", value_name = "DIR", default_value = "/sys/fs/bpf")]
        bpf_root: PathBuf,
    },
    /// The entry that programs find for an address: that of the longest prefix
    Get {
        address: std::net::IpAddr,
        /// The BPF file system in which the maps are pinned
        #[arg(long, env = "PORTWAY_BPF_ROOT", value_name = "DIR", default_value = "/sys/fs/bpf")]
        bpf_root: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BpfFlows {
    /// One line an entry
    List {
        /// The BPF file system in which the maps are pinned
        #[arg(long, env = "PORTWAY_BPF_ROOT", value_name = "DIR", default_value = "/sys/fs/bpf")]
        bpf_root: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BpfLb {
    /// Frontends and their backends. As JSON: the rows of `portway plan`
    List {
        #[command(flatten)]
        part: Parts,
        /// The BPF file system in which the maps are pinned
        #[arg(long, env = "PORTWAY_BPF_ROOT", value_name = "DIR", default_value = "/sys/fs/bpf")]
        bpf_root: PathBuf,
    },
}

#[derive(Debug, ClapArgs)]
#[group(multiple = false)]
pub(crate) struct Parts {
    /// Frontends alone
    #[arg(long)]
    frontends: bool,
    /// The slots that remember backends for affinity and UDP
    #[arg(long)]
    backends: bool,
    /// Source ranges alone
    #[arg(long)]
    source_ranges: bool,
}

/// What `bpf lb list` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Frontends,
    Backends,
    SourceRanges,
}

impl Parts {
    pub(crate) const fn part(&self) -> Part {
        match self {
            Self { frontends: true, .. } => Part::Frontends,
            Self { backends: true, .. } => Part::Backends,
            Self { source_ranges: true, .. } => Part::SourceRanges,
            Self { .. } => Part::All,
        }
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Plan {
    /// A directory of manifests, YAML or JSON
    #[arg(long, value_name = "DIR")]
    pub(crate) source_dir: PathBuf,
    /// The node to plan for
    #[arg(long, value_name = "NAME")]
    pub(crate) node: String,
}

/// The command with the agent's configuration keys as flags of `plan`.
pub(crate) fn command() -> clap::Command {
    Args::command().mut_subcommand("plan", crate::plan::with_keys)
}
