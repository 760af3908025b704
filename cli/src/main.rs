//! `portway`, the command people type: asks the agent on its unix socket or the operator by HTTP, reads the kernel's maps, or plans without
//! either. It changes nothing but by `cleanup` and `audit --fix`.

#![forbid(unsafe_code)]

mod agent;
mod app;
mod args;
mod audit;
mod cleanup;
mod config;
mod endpoint;
mod failure;
mod flows;
mod identity;
mod ipcache;
mod lb;
mod node;
mod operator;
mod output;
mod plan;
mod service;
mod status;
mod table;
mod time;

use std::process::ExitCode;

fn main() -> ExitCode {
    app::main()
}
