//! The nodes and links of a scenario.

use super::Problem;
use crate::packet::{Builder, LinkConfig, Network, NodeId, Packet};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use polycast_topology::{Clos, Graph, Network as Topology, Shufflecast};
use polycast_types::{Duration, Rate};

/// The most nodes of an explicit network.
pub(super) const NODES_MAX: u32 = 1 << 22;

/// Nodes of the network, and its links before [`Change`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A topology by its name.
    Topology(Topology),
    /// A Shufflecast of so many hosts a rack. Nodes: hosts rack by rack, ToRs, splitters, and one packet
    /// switch that joins the ToRs for the control connections.
    Shufflecast {
        /// The fabric.
        fabric: Shufflecast,
        /// Hosts of a rack.
        hosts_per_tor: u32,
    },
    /// Racks on a circuit switch with splitters. Nodes: hosts rack by rack, ToRs, the circuit switch, and one
    /// packet switch that joins the ToRs for the control connections.
    Blast {
        /// The racks.
        racks: u32,
        /// Hosts of a rack.
        hosts_per_rack: u32,
    },
    /// So many nodes; all links are given.
    Nodes(u32),
}

/// One link with settings of its own; in an explicit network, a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// One end.
    pub from: u32,
    /// The other.
    pub to: u32,
    /// Its settings.
    pub config: LinkConfig,
    /// Only in this direction.
    pub one_way: bool,
}

impl Layout {
    /// Returns the number of nodes.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        match self {
            Layout::Topology(topology) => topology.node_count(),
            Layout::Shufflecast { fabric, hosts_per_tor } => fabric.tors() * (hosts_per_tor + 2) + 1,
            Layout::Blast { racks, hosts_per_rack } => racks * (hosts_per_rack + 1) + 2,
            Layout::Nodes(nodes) => *nodes,
        }
    }

    /// Returns the number of nodes that may send and receive: the first ones.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        match self {
            Layout::Topology(topology) => topology.server_count(),
            Layout::Shufflecast { fabric, hosts_per_tor } => fabric.tors() * hosts_per_tor,
            Layout::Blast { racks, hosts_per_rack } => racks * hosts_per_rack,
            Layout::Nodes(nodes) => *nodes,
        }
    }

    /// The tree that a circuit switch holds for a group: its links from the source on.
    pub(super) fn circuits(&self, source: u32, receivers: &[NodeId]) -> Option<Vec<(u32, u32)>> {
        let Layout::Blast { racks, hosts_per_rack } = *self else { return None };
        let (first_tor, switch) = (racks * hosts_per_rack, racks * (hosts_per_rack + 1));
        let tor = |host: u32| first_tor + host / hosts_per_rack;
        let own = tor(source);
        let others: BTreeSet<u32> =
            receivers.iter().map(|node| tor(node.0)).filter(|tor| *tor != own).collect();
        let mut tree = alloc::vec![(source, own)];
        if !others.is_empty() {
            tree.push((own, switch));
        }
        tree.extend(others.into_iter().map(|other| (switch, other)));
        tree.extend(receivers.iter().map(|node| (tor(node.0), node.0)));
        Some(tree)
    }

    /// Returns its stages, if it is a Clos network.
    #[must_use]
    pub fn clos(&self) -> Option<Clos> {
        match self {
            Layout::Topology(topology) => topology.as_clos(),
            _ => None,
        }
    }

    /// Returns its fabric and the hosts of each ToR, if it is a Shufflecast network.
    #[must_use]
    pub fn shufflecast(&self) -> Option<(Shufflecast, u32)> {
        match self {
            Layout::Shufflecast { fabric, hosts_per_tor } => Some((*fabric, *hosts_per_tor)),
            _ => None,
        }
    }

    pub(super) fn check_node(&self, key: &str, node: u32) -> Result<(), Problem> {
        if node < self.nodes() {
            return Ok(());
        }
        let last = self.nodes().saturating_sub(1);
        Err(Problem::new(key, format!("node {node} is not there: {self} has nodes 0 to {last}")))
    }

    pub(super) fn check_host(&self, key: &str, host: u32) -> Result<(), Problem> {
        if host < self.hosts() {
            return Ok(());
        }
        let last = self.hosts().saturating_sub(1);
        Err(Problem::new(key, format!("host {host} is not there: {self} has hosts 0 to {last}")))
    }

    /// The network, with every link's settings.
    ///
    /// # Errors
    ///
    /// [`Problem`] if a change names a link that is not there.
    pub fn build<P: Packet>(
        &self,
        links: LinkConfig,
        changes: &[Change],
        seed: u64,
    ) -> Result<Network<P>, Problem> {
        let mut known = BTreeMap::new();
        for (index, change) in changes.iter().enumerate() {
            self.check_node(&format!("link[{index}].from"), change.from)?;
            self.check_node(&format!("link[{index}].to"), change.to)?;
            if change.from == change.to {
                let message =
                    format!("a link from node {} to itself is a loop: name another node", change.to);
                return Err(Problem::new(format!("link[{index}].to"), message));
            }
            let back = (!change.one_way).then_some((change.to, change.from));
            for ends in [Some((change.from, change.to)), back].into_iter().flatten() {
                if known.insert(ends, change.config).is_some() {
                    let message =
                        format!("the link from {} to {} is there already: give it once", ends.0, ends.1);
                    return Err(Problem::new(format!("link[{index}]"), message));
                }
            }
        }
        let builder = match self {
            Layout::Nodes(nodes) => {
                if *nodes < 2 || *nodes > NODES_MAX {
                    let message = format!("{nodes} nodes make no network: write 2 to {NODES_MAX}");
                    return Err(Problem::new("network.nodes", message));
                }
                return Ok(explicit(*nodes, changes).build(seed));
            }
            Layout::Topology(topology) => {
                let config = |from: NodeId, to: NodeId| known.remove(&(from.0, to.0)).unwrap_or(links);
                Builder::from_graph(topology, config)
            }
            Layout::Shufflecast { fabric, hosts_per_tor } => {
                shufflecast(fabric, *hosts_per_tor, |from, to| known.remove(&(from, to)).unwrap_or(links))
            }
            Layout::Blast { racks, hosts_per_rack } => {
                blast(*racks, *hosts_per_rack, |from, to| known.remove(&(from, to)).unwrap_or(links))
            }
        };
        if let Some(&(from, to)) = known.keys().next() {
            let index =
                changes.iter().position(|c| (c.from, c.to) == (from, to) || (c.to, c.from) == (from, to));
            let key = format!("link[{}]", index.unwrap_or(0));
            return Err(Problem::new(key, format!("{self} has no link from {from} to {to}")));
        }
        Ok(builder.build(seed))
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Topology(topology) => write!(f, "{topology}"),
            Layout::Shufflecast { fabric, hosts_per_tor } => {
                write!(f, "shufflecast:{},{},{hosts_per_tor}", fabric.fanout(), fabric.columns())
            }
            Layout::Blast { racks, hosts_per_rack } => {
                write!(f, "blast:racks={racks},hosts={hosts_per_rack}")
            }
            Layout::Nodes(nodes) => write!(f, "the network of {nodes} nodes"),
        }
    }
}

/// Links in the order given; both directions of a link know each other, however they were given.
fn explicit(nodes: u32, changes: &[Change]) -> Builder {
    let mut builder = Builder::new(nodes);
    let mut one_way = BTreeMap::new();
    for change in changes {
        let (from, to) = (NodeId(change.from), NodeId(change.to));
        if !change.one_way {
            builder.add_both_ways(from, to, change.config);
            continue;
        }
        let link = builder.add_link(from, to, change.config);
        one_way.insert((from, to), link);
        if let Some(&back) = one_way.get(&(to, from)) {
            builder.pair(link, back);
        }
    }
    builder
}

fn shufflecast(
    fabric: &Shufflecast,
    hosts_per_tor: u32,
    mut config: impl FnMut(u32, u32) -> LinkConfig,
) -> Builder {
    let tors = fabric.tors();
    let hosts = tors * hosts_per_tor;
    let (tor, splitter, packet_switch) = (hosts, hosts + tors, hosts + 2 * tors);
    let mut builder = Builder::new(packet_switch + 1);
    // Light is not stored in a splitter: it takes no time to send.
    let light = LinkConfig::new(Rate(u64::MAX), Duration::ZERO);
    let mut both = |builder: &mut Builder, a: u32, b: u32| {
        let there = builder.add_link(NodeId(a), NodeId(b), config(a, b));
        let back = builder.add_link(NodeId(b), NodeId(a), config(b, a));
        builder.pair(there, back);
    };
    // The order of a ToR's ports: hosts, packet switch, splitter.
    for index in 0..tors {
        for host in 0..hosts_per_tor {
            both(&mut builder, tor + index, index * hosts_per_tor + host);
        }
        both(&mut builder, tor + index, packet_switch);
    }
    for index in 0..tors {
        let settings = config(tor + index, splitter + index);
        builder.add_link(NodeId(tor + index), NodeId(splitter + index), settings);
        for child in fabric.children(index) {
            builder.add_link(NodeId(splitter + index), NodeId(tor + child), light);
        }
    }
    builder
}

fn blast(racks: u32, hosts_per_rack: u32, mut config: impl FnMut(u32, u32) -> LinkConfig) -> Builder {
    let first_tor = racks * hosts_per_rack;
    let (circuits, packet_switch) = (first_tor + racks, first_tor + racks + 1);
    let mut builder = Builder::new(packet_switch + 1);
    // Light is not stored on its way through mirrors and splitters: it takes no time to send.
    let light = LinkConfig::new(Rate(u64::MAX), Duration::ZERO);
    for rack in 0..racks {
        let tor = first_tor + rack;
        let below = rack * hosts_per_rack..(rack + 1) * hosts_per_rack;
        for end in below.chain([packet_switch]) {
            let there = builder.add_link(NodeId(tor), NodeId(end), config(tor, end));
            let back = builder.add_link(NodeId(end), NodeId(tor), config(end, tor));
            builder.pair(there, back);
        }
    }
    for tor in first_tor..circuits {
        builder.add_link(NodeId(tor), NodeId(circuits), config(tor, circuits));
        builder.add_link(NodeId(circuits), NodeId(tor), light);
    }
    builder
}

/// Reads `racks=R,hosts=H`.
fn read_blast(text: &str, sizes: &str) -> Result<Layout, String> {
    let wrong =
        || format!("'{text}' is no network: write blast:racks=R,hosts=H, such as blast:racks=8,hosts=2");
    let (mut racks, mut hosts_per_rack) = (None, Some(2));
    for size in sizes.split(',') {
        let (key, value) = size.split_once('=').ok_or_else(wrong)?;
        let number = value.trim().parse::<u32>().ok().filter(|number| *number > 0);
        match key.trim() {
            "racks" => racks = number,
            "hosts" => hosts_per_rack = number,
            _ => return Err(wrong()),
        }
    }
    let (Some(racks), Some(hosts_per_rack)) = (racks, hosts_per_rack) else { return Err(wrong()) };
    if u64::from(racks) * (u64::from(hosts_per_rack) + 1) + 2 > u64::from(NODES_MAX) {
        return Err(format!("{text} is too large: {NODES_MAX} nodes are the most"));
    }
    Ok(Layout::Blast { racks, hosts_per_rack })
}

impl core::str::FromStr for Layout {
    type Err = String;

    /// Reads a topology's name, `shufflecast:p,k,hosts`, or `blast:racks=R,hosts=H`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(sizes) = text.strip_prefix("blast:") {
            return read_blast(text, sizes);
        }
        let Some(sizes) = text.strip_prefix("shufflecast:") else {
            return text
                .parse()
                .map(Layout::Topology)
                .map_err(|error: polycast_topology::TopologyError| error.to_string());
        };
        let wrong =
            || format!("'{text}' is no network: write shufflecast:p,k,hosts, such as shufflecast:2,2,4");
        // Labs write shufflecast:2,2,hosts=4.
        let bare = |size: &str| size.trim().trim_start_matches("hosts=").parse::<u32>();
        let mut numbers = sizes.split(',').map(bare);
        let mut next = || numbers.next().and_then(Result::ok).filter(|&n| n > 0).ok_or_else(wrong);
        let (p, k, hosts_per_tor) = (next()?, next()?, next()?);
        if numbers.next().is_some() {
            return Err(wrong());
        }
        let fabric = Shufflecast::new(p, k).map_err(|error| error.to_string())?;
        if u64::from(fabric.tors()) * (u64::from(hosts_per_tor) + 2) >= u64::from(NODES_MAX) {
            return Err(format!("{text} is too large: {NODES_MAX} nodes are the most"));
        }
        Ok(Layout::Shufflecast { fabric, hosts_per_tor })
    }
}
