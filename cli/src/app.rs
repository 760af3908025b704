use std::process::ExitCode;

use clap::FromArgMatches as _;
use portway_runtime::command::explain;

use crate::args::{
    Args, Bpf, BpfFlows, BpfIpcache, BpfLb, Endpoint, Identity, Ip, Node, Operator, Service, Verb, command,
};
use crate::failure::Failure;
use crate::output::Format;
use crate::{
    agent, audit, cleanup, config, endpoint, flows, identity, ipcache, lb, node, operator, output, plan,
    service, status,
};

pub(crate) fn main() -> ExitCode {
    let matches = command().get_matches();
    let args = match Args::from_arg_matches(&matches) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    match run(args, &matches) {
        Ok(code) => code,
        Err(failure) => {
            output::complain(&format!("error: {}", explain(failure.error.as_ref())));
            failure.code()
        }
    }
}

fn run(args: Args, matches: &clap::ArgMatches) -> Result<ExitCode, Failure> {
    let format = args.output;
    let ask = || agent::Agent::at(&args.socket_path);
    match args.verb {
        Verb::Status { verbose } => return status::run(&ask(), verbose, format),
        Verb::Audit { fix } => return audit::run(&ask(), fix, format),
        Verb::Service { verb: Service::List } => service::list(&ask(), format)?,
        Verb::Service { verb: Service::Get { name } } => service::get(&ask(), &name, format)?,
        Verb::Node { verb: Node::List { probe } } => node::list(&ask(), probe, format)?,
        Verb::Endpoint { verb: Endpoint::List } => endpoint::list(&ask(), format)?,
        Verb::Endpoint { verb: Endpoint::Get { name } } => endpoint::get(&ask(), &name, format)?,
        Verb::Endpoint { verb: Endpoint::Log { name } } => endpoint::log(&ask(), &name, format)?,
        Verb::Ipam => endpoint::ipam(&ask(), format)?,
        Verb::Identity { verb: Identity::List { by_label } } => identity::list(&ask(), &by_label, format)?,
        Verb::Identity { verb: Identity::Get { id } } => identity::get(&ask(), id, format)?,
        Verb::Ip { verb: Ip::List } => ipcache::ip_list(&ask(), format)?,
        Verb::Bpf { verb: Bpf::Ipcache { verb: BpfIpcache::List { bpf_root } } } => {
            ipcache::list(&bpf_root, format)?;
        }
        Verb::Bpf { verb: Bpf::Ipcache { verb: BpfIpcache::Get { address, bpf_root } } } => {
            ipcache::get(&bpf_root, address, format)?;
        }
        Verb::Bpf { verb: Bpf::Lb { verb: BpfLb::List { part, bpf_root } } } => {
            lb::list(&bpf_root, part.part(), format)?;
        }
        Verb::Bpf { verb: Bpf::Ct { verb: BpfFlows::List { bpf_root } } } => {
            flows::list_flows(&bpf_root, format)?;
        }
        Verb::Bpf { verb: Bpf::Nat { verb: BpfFlows::List { bpf_root } } } => {
            flows::list_nat(&bpf_root, format)?;
        }
        Verb::Config { all, class } => config::run(&ask(), all, class, format)?,
        Verb::Operator { verb: Operator::Status { address } } => operator::status(&address, format)?,
        Verb::Plan(_) => plan::run(matches, format)?,
        Verb::Cleanup { bpf_root, state_dir, yes } => {
            cleanup::run(&bpf_root, &state_dir, &args.socket_path, yes, format)?;
        }
        Verb::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "portway", &mut script);
            output::write(&script)?;
        }
        Verb::Version => match format {
            Format::Text => output::print(&format!("portway {}", env!("CARGO_PKG_VERSION")))?,
            Format::Json => output::print_json(&serde_json::json!({ "version": env!("CARGO_PKG_VERSION") }))?,
        },
    }
    Ok(ExitCode::SUCCESS)
}
