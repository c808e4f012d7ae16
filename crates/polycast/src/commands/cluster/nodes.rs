//! `polycast nodes`: the machines of the cluster, a line each.

use super::{connect, runtime};
use crate::args::cluster::LocalArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::table::Table;
use polycast_api::documents::{Node, nodes, place};
use polycast_api::manager::{AgentStatus, NodeReport};
use polycast_types::{Printable, format_bytes};
use serde_json::Value;

const HEADINGS: [&str; 9] =
    ["NAME", "STATE", "ADDRESS", "RACK", "ZONE", "VERSION", "STORE", ">OBJECTS", "TRANSFERS"];
/// Columns that are left out where no machine has anything in them.
const OPTIONAL: [usize; 2] = [3, 4];

/// `polycast nodes`
pub(super) fn run(local: &LocalArgs, format: Format) -> Result<Exit, Failure> {
    let (_, status) =
        runtime()?.block_on(async { Ok::<_, Failure>(connect(local).await?.manager_status().await?) })?;
    let nodes = nodes(&status);
    let documents: Vec<Value> = nodes.iter().map(Node::document).collect();
    output::result(format, &documents, &text(&nodes))?;
    Ok(Exit::Done)
}

/// Cells below the headings.
fn cells(node: &Node) -> [String; 9] {
    let AgentStatus { name, control_address, silent_ms, unreachable_by, node: report, .. } = &node.agent;
    let ago = || format!("{} ago", crate::report::seconds(*silent_ms as f64 / 1e3));
    let mut state = match node.state {
        "unreachable" => format!("unreachable by {}", Printable(unreachable_by)),
        state @ ("silent" | "lost") => format!("{state}, heard {}", ago()),
        state => state.to_string(),
    };
    if let Some(drain) = node.drain.filter(|drain| *drain != node.state) {
        state = format!("{state}, {drain}");
    }
    let said = |words: fn(&NodeReport) -> String| report.as_ref().map_or_else(|| "-".to_string(), words);
    let store = said(|node| {
        // Where the store has no limit of its own, its file system has one.
        let most =
            node.store_max_bytes.unwrap_or(node.store_used_bytes.saturating_add(node.store_free_bytes));
        format!("{} of {}", format_bytes(node.store_used_bytes), format_bytes(most))
    });
    let transfers = said(|node| match (node.sending, node.receiving) {
        (0, 0) => "-".to_string(),
        (sending, 0) => format!("{sending} out"),
        (0, receiving) => format!("{receiving} in"),
        (sending, receiving) => format!("{sending} out, {receiving} in"),
    });
    let address = if control_address.is_empty() { "-" } else { control_address };
    [
        Printable(name).to_string(),
        state,
        address.to_string(),
        said(|node| place(&node.rack).map_or_else(|| "-".to_string(), |rack| Printable(rack).to_string())),
        said(|node| place(&node.zone).map_or_else(|| "-".to_string(), |zone| Printable(zone).to_string())),
        said(|node| Printable(&node.version).to_string()),
        store,
        said(|node| node.objects.to_string()),
        transfers,
    ]
}

/// The table for people.
fn text(nodes: &[Node]) -> String {
    let rows: Vec<[String; 9]> = nodes.iter().map(cells).collect();
    let is_shown = |column: usize| !OPTIONAL.contains(&column) || rows.iter().any(|row| row[column] != "-");
    let columns: Vec<usize> = (0..HEADINGS.len()).filter(|column| is_shown(*column)).collect();
    let mut table = Table::new(&Vec::from_iter(columns.iter().map(|column| HEADINGS[*column])));
    for row in rows {
        table.row(columns.iter().map(|column| row[*column].clone()));
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_api::manager::StatusResponse;
    use serde_json::json;

    #[test]
    fn racks_and_zones_have_columns_where_there_are_any() {
        let agent = |name: &str, rack: &str| AgentStatus {
            name: name.into(),
            node: Some(NodeReport { rack: rack.into(), ..NodeReport::default() }),
            ..AgentStatus::default()
        };
        let agents = vec![agent("a", "r1"), agent("b", "")];
        let nodes = nodes(&StatusResponse { agents, ..StatusResponse::default() });
        let text = text(&nodes);
        assert!(text.contains("RACK") && text.contains("r1") && !text.contains("ZONE"), "{text}");
        assert_eq!(
            (&nodes[0].document()["rack"], &nodes[1].document()["rack"]),
            (&json!("r1"), &Value::Null)
        );
    }

    /// One that is drained says so beside what else is the matter with it.
    #[test]
    fn drained_machines_are_shown() {
        let agent =
            |name: &str, silent_ms| AgentStatus { name: name.into(), silent_ms, ..Default::default() };
        let drained = |name: &str, transfers| polycast_api::manager::DrainedHost {
            name: name.into(),
            transfers,
            ..Default::default()
        };
        let status = StatusResponse {
            agents: vec![agent("a", 0), agent("b", 0), agent("c", 9_000), agent("d", 0)],
            drained_hosts: vec![drained("a", 1), drained("b", 0), drained("c", 0)],
            ..StatusResponse::default()
        };
        let nodes = nodes(&status);
        let states: Vec<String> = nodes.iter().map(|node| cells(node)[1].clone()).collect();
        assert_eq!(states, ["draining", "drained", "silent, heard 9.00 s ago, drained", "ready"]);
    }

    #[test]
    fn each_machine_has_a_line() {
        let agent = |name: &str, silent_ms, unreachable_by: &str, node| AgentStatus {
            name: name.into(),
            control_address: "10.0.0.1:7401".into(),
            silent_ms,
            unreachable_by: unreachable_by.into(),
            unreachable_ms: 0,
            node,
        };
        let node = NodeReport {
            version: "0.1.0".into(),
            store_used_bytes: 3 << 30,
            store_free_bytes: 5 << 30,
            objects: 7,
            sending: 1,
            ..NodeReport::default()
        };
        let status = StatusResponse {
            agents: vec![
                agent("gpu2", 100, "", Some(node)),
                agent("gpu1", 9_000, "", None),
                agent(
                    "gpu3",
                    100,
                    "gpu2",
                    Some(NodeReport { store_max_bytes: Some(1 << 30), ..NodeReport::default() }),
                ),
            ],
            lost: vec![AgentStatus { name: "gpu0".into(), silent_ms: 120_000, ..AgentStatus::default() }],
            ..StatusResponse::default()
        };
        let nodes = nodes(&status);
        let text = text(&nodes);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[0].starts_with("NAME  STATE"), "{text}");
        assert!(
            lines[1].contains("lost, heard 120.0 s ago") && lines[2].contains("silent, heard 9.00 s ago"),
            "{text}"
        );
        assert!(lines[3].contains("3.00 GiB of 8.00 GiB") && lines[3].ends_with("1 out"), "{text}");
        assert!(lines[4].contains("unreachable by gpu2") && lines[4].contains("0 B of 1.00 GiB"), "{text}");
        assert_eq!(nodes[0].document()["control_address"], Value::Null);
        assert!(!text.contains("RACK") && nodes[0].document()["rack"].is_null(), "none has one: {text}");
    }
}
