//! `polycast plan topology`: the size of a network, the numbers of its nodes, and a picture of it.

use super::dot::{DotArgs, Picture, Role};
use super::{Answer, PlanError, names};
use clap::Args;
use polycast::table::paragraph;
use polycast_topology::{Graph, Network};
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub(super) const EXAMPLES: &str = "\
Examples:
  polycast plan topology bcube:4,2
  polycast plan topology fat-tree:4,3 --dot tree.dot && dot -Tsvg tree.dot > tree.svg

A Shufflecast is drawn by polycast plan shufflecast --dot.";

/// Arguments of `plan topology`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopologyArgs {
    /// bcube:n,k or torus:n,k or fat-tree:n,k, leaf-spine:.. or clos:..
    #[arg(value_name = "TOPOLOGY")]
    pub topology: String,
    #[command(flatten)]
    picture: DotArgs,
}

pub(super) fn plan(args: &TopologyArgs) -> Result<Answer, PlanError> {
    let network: Network = args.topology.parse()?;
    if let Some(path) = &args.picture.dot {
        picture(&network).write(path)?;
    }
    let (servers, switches) = (network.server_count(), network.node_count() - network.server_count());
    let links = network.link_count();
    let head = format!("{network}: {servers} servers, {switches} switches, {links} links");
    let text = paragraph(&head, 0) + &paragraph(&names::numbers(&network), 0);
    let document: Value = json!({
        "topology": network.to_string(), "servers": servers, "switches": switches, "links": links,
    });
    Ok(Answer { document, text })
}

/// Draws every node, and every link once.
fn picture(network: &Network) -> Picture {
    let mut picture = Picture::new(&network.to_string());
    let mut drawn = BTreeSet::new();
    for node in 0..network.node_count() {
        let role = if node < network.server_count() { Role::Receiver } else { Role::Relay };
        picture.node(&names::node(network, node), role);
    }
    for node in 0..network.node_count() {
        for port in 0..network.port_count(node) {
            if drawn.insert(network.link(node, port)) {
                let other = network.neighbor(node, port);
                picture.link(&names::node(network, node), &names::node(network, other));
            }
        }
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_is_drawn_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("network.dot");
        for (topology, servers, links) in [("bcube:4,2", 16, 32), ("torus:3,2", 9, 18)] {
            let picture = DotArgs { dot: Some(path.clone()) };
            let answer = plan(&TopologyArgs { topology: topology.into(), picture }).unwrap();
            assert_eq!(
                (&answer.document["servers"], &answer.document["links"]),
                (&json!(servers), &json!(links))
            );
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches("dir=none").count(), links, "{text}");
        }
        let picture = DotArgs { dot: None };
        assert!(plan(&TopologyArgs { topology: "ring:4".into(), picture }).is_err());
    }
}
