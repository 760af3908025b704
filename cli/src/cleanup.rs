use std::io::{BufRead as _, IsTerminal as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use portway_agent::cleanup::cleanup;

use crate::failure::Failure;
use crate::output::{Format, complain, print, print_json};

/// Takes away what the agent left on the node, after asking unless `yes`.
pub(crate) fn run(
    bpf_root: &Path,
    state_dir: &Path,
    socket: &Path,
    yes: bool,
    format: Format,
) -> Result<(), Failure> {
    if !yes && !confirmed(bpf_root)? {
        return Err(anyhow::anyhow!("nothing was changed").into());
    }
    let done = cleanup(bpf_root, state_dir, socket)
        .context("cannot clean up everything; run it again once this is mended")?;
    match format {
        Format::Json => print_json(&done)?,
        Format::Text if done.is_empty() => print("there was nothing to clean up")?,
        Format::Text => print(&done.join("\n"))?,
    }
    Ok(())
}

fn confirmed(bpf_root: &Path) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("cleanup takes services away from this node: say --yes where nobody can be asked");
    }
    complain(&format!(
        "This detaches Portway's programs and removes everything in {}/portway: connections that are open go on, new \
         ones to services fail, and pods whose interfaces are Portway's lose their network. Type yes to do it:",
        bpf_root.display()
    ));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("reading the answer")?;
    Ok(answer.trim() == "yes")
}
