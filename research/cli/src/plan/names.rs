//! Names of the nodes of a network for people; lab and simulator use the same names.

use polycast_topology::{Graph, Hybrid, Kind, Network, Node};

/// The name of a node: `h5` is a server, `leaf2`, `spine0` and `core1` are switches of a Clos network counted
/// among their kind, and `s16` is the switch of another network with the number 16.
pub(crate) fn node(network: &Network, node: Node) -> String {
    if let Some(clos) = network.as_clos() {
        let (kind, index) = clos.kind(node);
        let word = match kind {
            Kind::Host => "h",
            Kind::Leaf => "leaf",
            Kind::Spine => "spine",
            Kind::Core => "core",
        };
        return format!("{word}{index}");
    }
    if node < network.server_count() { format!("h{node}") } else { format!("s{node}") }
}

/// Names with spaces between them, or a dash where there is none; many are cut short.
pub(crate) fn list(names: impl IntoIterator<Item = String>) -> String {
    const SHOWN_MAX: usize = 48;
    let names: Vec<String> = names.into_iter().collect();
    if names.is_empty() {
        return "-".into();
    }
    let shown = names[..names.len().min(SHOWN_MAX)].join(" ");
    if names.len() > SHOWN_MAX { format!("{shown} and {} more", names.len() - SHOWN_MAX) } else { shown }
}

/// Lists the numbers of the nodes, by which `--failed-nodes` and JSON know them.
pub(crate) fn numbers(network: &Network) -> String {
    let span = |first: Node, count: u32| {
        let last = first + count - 1;
        let (from, to) = (node(network, first), node(network, last));
        if count == 1 {
            format!("{from} is node {first}")
        } else {
            format!("{from} to {to} are nodes {first} to {last}")
        }
    };
    let servers = network.server_count();
    let mut spans = vec![span(0, servers)];
    let mut first = servers;
    let counts = match network.as_clos() {
        Some(clos) => vec![clos.leafs(), clos.spines(), clos.cores()],
        None => vec![network.node_count() - servers],
    };
    for count in counts.into_iter().filter(|count| *count > 0) {
        spans.push(span(first, count));
        first += count;
    }
    spans.join(", ")
}

/// Returns the name of the device at a port of a circuit switch.
pub(crate) fn port(hybrid: &Hybrid, port: u32) -> String {
    let of_racks = hybrid.rack_port(hybrid.racks, 0);
    if port < of_racks {
        let (rack, uplink) = (port / hybrid.ports_per_rack, port % hybrid.ports_per_rack);
        return if hybrid.ports_per_rack == 1 {
            format!("rack{rack}")
        } else {
            format!("rack{rack}.{uplink}")
        };
    }
    let width = 1 + hybrid.splitter_fanout;
    let (splitter, at) = ((port - of_racks) / width, (port - of_racks) % width);
    match at.checked_sub(1) {
        None => format!("splitter{splitter}.in"),
        Some(output) => format!("splitter{splitter}.out{output}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_ports_have_names() {
        let fat_tree: Network = "fat-tree:4,3".parse().unwrap();
        let names: Vec<String> = [0, 15, 16, 24, 32].iter().map(|&at| node(&fat_tree, at)).collect();
        assert_eq!(names, ["h0", "h15", "leaf0", "spine0", "core0"]);
        let leaf_spine: Network = "leaf-spine:2,1,2".parse().unwrap();
        assert_eq!(
            numbers(&leaf_spine),
            "h0 to h3 are nodes 0 to 3, leaf0 to leaf1 are nodes 4 to 5, spine0 is node 6"
        );
        assert_eq!(node(&"bcube:4,2".parse().unwrap(), 16), "s16");
        let hybrid =
            Hybrid { racks: 6, servers_per_rack: 1, ports_per_rack: 2, splitters: 2, splitter_fanout: 4 };
        assert_eq!(port(&hybrid, hybrid.rack_port(4, 1)), "rack4.1");
        assert_eq!(port(&hybrid, hybrid.splitter_input(1)), "splitter1.in");
        assert_eq!(port(&hybrid, hybrid.splitter_output(1, 3)), "splitter1.out3");
    }
}
