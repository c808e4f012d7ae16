//! The fabric `datacast`: several arc-disjoint trees with caches in a BCube, torus or fat-tree (Datacast, section 4).
//!
//! Receivers pull along source routes, and forwarders keep no state of groups. Groups share links and adapt their
//! rates, so that a plan holds nothing; it names all nodes and links of its trees.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use core::cell::RefCell;

use polycast_topology::{Graph, Network, Node};

use crate::fabric::{
    Channel, Fabric, Failure, Group, HostId, NetworkState, Part, Plan, Refusal, Replan, TreeRoutes,
    replan_each,
};
use crate::orca::failures_of;
use crate::places::{PlaceError, Places};
use crate::trees::{SteinerTree, TreePlan, TreePlanner};

/// The fabric.
#[derive(Clone, Debug)]
pub struct Datacast {
    network: Network,
    places: Places,
    /// Room to work in: plans depend on the network's state alone.
    planner: RefCell<TreePlanner>,
}

impl Datacast {
    /// Its name.
    pub const NAME: &str = "datacast";

    /// The fabric, with the server of every host.
    ///
    /// # Errors
    /// If a host is on a server that the network does not have, or two are on the same.
    pub fn new(network: Network, hosts: impl IntoIterator<Item = (HostId, u32)>) -> Result<Self, PlaceError> {
        let places = Places::new(network.server_count(), hosts)?;
        Ok(Datacast { network, places, planner: RefCell::new(TreePlanner::new(network)) })
    }

    /// A node of the network, for failures.
    #[must_use]
    pub fn node(node: Node) -> Part {
        Part::Node { fabric: Self::NAME, node }
    }

    /// A link of the network, for failures.
    #[must_use]
    pub fn link(one: Node, other: Node) -> Part {
        Part::link(Self::NAME, one, other)
    }

    fn routes(&self, tree: &SteinerTree, receivers: &[(HostId, u32)]) -> TreeRoutes {
        let planner = self.planner.borrow();
        let graph = planner.graph();
        let by_node: BTreeMap<Node, _> = tree.nodes.iter().map(|entry| (entry.node, entry)).collect();
        let route = |server: Node| {
            let mut ports = Vec::new();
            let mut at = server;
            while let Some(entry) = by_node.get(&at) {
                ports.push(graph.reverse(entry.arc) - graph.arcs(at).start);
                at = entry.parent;
            }
            ports
        };
        let mut parents: Vec<Node> = tree.nodes.iter().map(|entry| entry.parent).collect();
        parents.sort_unstable();
        let caches =
            parents.chunk_by(|a, b| a == b).filter(|same| same.len() > 1).map(|same| same[0]).collect();
        TreeRoutes { routes: receivers.iter().map(|&(host, server)| (host, route(server))).collect(), caches }
    }

    fn trees(
        &self,
        network: &NetworkState,
        source: Node,
        receivers: &[(HostId, u32)],
    ) -> Result<TreePlan, Refusal> {
        let servers: Vec<Node> = receivers.iter().map(|(_, server)| *server).collect();
        let failures = failures_of(Self::NAME, network, &self.network);
        let plan = self.planner.borrow_mut().plan(source, &servers, &failures);
        let plan = plan.map_err(|error| Refusal::Impossible(format!("{error}")))?;
        if plan.left_out.is_empty() {
            return Ok(plan);
        }
        let out = |(host, server): &(HostId, u32)| plan.left_out.contains(server).then_some(host.0);
        let hosts: Vec<u32> = receivers.iter().filter_map(out).collect();
        Err(Refusal::Impossible(format!(
            "failed links and nodes cut the hosts {hosts:?} off from the source"
        )))
    }
}

impl Fabric for Datacast {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        let (source, receivers) = self.places.of_group(Self::NAME, group)?;
        let plan = self.trees(network, source, &receivers)?;
        let mut uses = BTreeSet::from([Self::node(source)]);
        for entry in plan.trees.iter().flat_map(|tree| &tree.nodes) {
            uses.extend([Self::node(entry.node), Self::link(entry.parent, entry.node)]);
        }
        Ok(Plan {
            fabric: Self::NAME,
            resources: Vec::new(),
            uses: uses.into_iter().collect(),
            commands: Vec::new(),
            channel: Channel::SourceRoutes {
                trees: plan.trees.iter().map(|tree| self.routes(tree, &receivers)).collect(),
            },
        })
    }

    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        replan_each(Self::NAME, network, failure, |network, old| self.plan(network, &old.group))
    }

    /// Routes that are still those of the group's trees go on.
    fn adopt(&self, network: &NetworkState, group: &Group, channel: &Channel) -> Option<Plan> {
        self.plan(network, group).ok().filter(|plan| plan.channel == *channel)
    }
}
