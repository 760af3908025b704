use std::time::Duration;

use portway_agent::api::{ClusterHealth, Node, path};

use crate::agent::Agent;
use crate::failure::Failure;
use crate::output::{Format, print, print_json};
use crate::table::Table;

/// A probe of ten thousand nodes of which none answers.
const PROBING: Duration = Duration::from_secs(600);

/// All nodes; with `probe` after a probe of each.
pub(crate) fn list(agent: &Agent, probe: bool, format: Format) -> Result<(), Failure> {
    if probe {
        let _: ClusterHealth = agent.patient(PROBING).post(path::HEALTH)?;
    }
    let nodes: Vec<Node> = agent.get(path::NODES)?;
    match format {
        Format::Json => Ok(print_json(&nodes)?),
        Format::Text => Ok(print(&text(&nodes))?),
    }
}

fn text(nodes: &[Node]) -> String {
    let mut table = Table::new(&["Name", "Internal addresses", "Pod CIDRs", "Health endpoint", "Reachable"]);
    for node in nodes {
        let all = |texts: &[String]| if texts.is_empty() { "-".to_owned() } else { texts.join(", ") };
        let name = if node.is_this_node { format!("{} (this node)", node.name) } else { node.name.clone() };
        let reachable = match node.state.as_str() {
            "reachable" => "yes",
            "unreachable" => "NO",
            "" => "not probed",
            other => other,
        };
        table.row([
            name,
            all(&node.internal_addresses),
            all(&node.pod_cidrs),
            all(&node.health_addresses),
            reachable.to_owned(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_line_and_one_that_does_not_answer_is_seen() {
        let nodes: Vec<Node> = serde_json::from_str(include_str!("../tests/data/nodes.json")).unwrap();
        assert_eq!(text(&nodes), include_str!("../tests/data/nodes.txt"));
    }
}
