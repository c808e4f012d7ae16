//! The fabric `datacast`: several arc-disjoint trees with caches in a BCube, torus or fat-tree (Datacast,
//! section 4).
//!
//! Receivers pull along source routes, and forwarders keep no state of groups. Groups share links and adapt
//! their rates, so that a plan holds nothing; it names all nodes and links of its trees. After a failure,
//! trees that still work stay as they are, and a receiver that no tree can reach any more is left out.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use core::cell::RefCell;

use polycast_topology::{Graph as _, Network, Node};
use polycast_types::Rate;

use crate::fabric::{Fabric, Replan, replan_each};
use crate::fabric_name::FabricName;
use crate::network_state::NetworkState;
use crate::orca::failures_of;
use crate::part::Part;
use crate::places::{PlaceError, Places};
use crate::plan::{Channel, Failure, Group, HostId, Plan, PlanId, Pulling, Refusal, TreeRoutes};
use crate::shared::Shared;
use crate::trees::{TreePlan, TreePlanner};

/// Limits of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatacastConfig {
    /// Settings with which receivers pull.
    pub pulling: Pulling,
    /// No group gets more trees than this.
    pub trees_max: usize,
    /// The longest source route that packets can carry, in hops.
    pub hops_max: usize,
    /// The most ports of a node that a hop can name.
    pub ports_max: u32,
    /// One tree of shortest ways, and every node on them keeps packets: the content centric networking that
    /// the paper compares with (section 7).
    pub single_tree: bool,
}

impl Default for DatacastConfig {
    /// Packets of 8 KiB over links of 1 Gbit/s, the paper's 16 credits (section 7), and routes without
    /// bounds.
    fn default() -> Self {
        let (link_rate, tuning) = (Rate(1_000_000_000), crate::PullTuning::default());
        let pulling = Pulling { payload_bytes: 8_192, credits: 16, link_rate, tuning };
        DatacastConfig {
            pulling,
            trees_max: usize::MAX,
            hops_max: usize::MAX,
            ports_max: u32::MAX,
            single_tree: false,
        }
    }
}

/// The fabric.
#[derive(Clone, Debug)]
pub struct Datacast {
    network: Network,
    places: Places,
    config: DatacastConfig,
    /// Room to work in: plans depend on the network's state alone.
    planner: RefCell<TreePlanner>,
}

/// A group with its servers.
struct Servers {
    source: Node,
    /// In the order of the hosts.
    receivers: Vec<(HostId, Node)>,
}

impl Datacast {
    /// Its name.
    pub const NAME: FabricName = FabricName::new("datacast");

    /// The fabric, with the server of every host.
    ///
    /// # Errors
    /// If a host is on a server that the network does not have, or two are on the same.
    pub fn new(
        network: Network,
        config: DatacastConfig,
        hosts: impl IntoIterator<Item = (HostId, u32)>,
    ) -> Result<Self, PlaceError> {
        let places = Places::new(network.server_count(), hosts)?;
        let mut planner = TreePlanner::new(network);
        planner.limit_depth(u32::try_from(config.hops_max).unwrap_or(u32::MAX));
        Ok(Datacast { network, places, config, planner: RefCell::new(planner) })
    }

    /// Returns the number of hops of the longest source routes where nothing has failed.
    #[must_use]
    pub fn whole_depth(&self) -> u32 {
        self.planner.borrow().whole_depth()
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

    fn servers(&self, group: &Group) -> Result<Servers, Refusal> {
        let (source, receivers) = self.places.of_group(Self::NAME, group)?;
        Ok(Servers { source, receivers })
    }

    /// The plan for planned trees. Trees whose routes no packet can carry are left out.
    fn plan_of(&self, servers: &Servers, mut planned: TreePlan) -> Result<Plan, Refusal> {
        let planner = self.planner.borrow();
        let DatacastConfig { pulling, trees_max, hops_max, ports_max, single_tree } = self.config;
        let deepest = |tree: &crate::trees::SteinerTree| tree.nodes.iter().map(|n| n.depth as usize).max();
        let shortest = planned.trees.iter().filter_map(deepest).min().unwrap_or(0);
        planned.trees.retain(|tree| deepest(tree).is_none_or(|depth| depth <= hops_max));
        planned.trees.truncate(trees_max);
        if planned.trees.is_empty() {
            return Err(Refusal::Impossible(format!(
                "the least deep tree of this group has {shortest} hops, and source routes have at most {hops_max}"
            )));
        }
        let graph = planner.graph();
        let mut ways = planned.ways(graph);
        if single_tree {
            ways.iter_mut().flatten().flatten().for_each(|hop| hop.non_branching = false);
        }
        if ways.iter().flatten().flatten().any(|hop| hop.port >= ports_max) {
            let reason = format!("a node of its trees has more than {ports_max} ports");
            return Err(Refusal::Impossible(reason));
        }
        let mut uses = BTreeSet::from([Self::node(servers.source)]);
        for entry in planned.trees.iter().flat_map(|tree| &tree.nodes) {
            uses.extend([Self::node(entry.node), Self::link(entry.parent, entry.node)]);
        }
        let routes = |at: usize| {
            let reached = servers.receivers.iter().filter_map(|&(host, server)| {
                let place = planned.receivers.binary_search(&server).ok()?;
                Some((host, ways[place][at].clone()))
            });
            reached.collect()
        };
        let of_tree = |(at, tree): (usize, _)| TreeRoutes { routes: routes(at), tree };
        let trees = planned.trees.iter().cloned().enumerate().map(of_tree).collect();
        let most = if single_tree { 1 } else { planner.tree_count() as usize };
        let tree_count = most.min(trees_max) as u32;
        Ok(Plan {
            fabric: Self::NAME,
            resources: Vec::new(),
            uses: uses.into_iter().collect(),
            commands: Shared::default(),
            channel: Channel::SourceRoutes { tree_count, pulling, trees },
        })
    }

    /// The trees of a plan in force, as the planner knows them.
    fn planned(&self, servers: &Servers, plan: &Plan) -> Option<TreePlan> {
        let Channel::SourceRoutes { trees, .. } = &plan.channel else { return None };
        let reached: BTreeSet<HostId> =
            trees.iter().flat_map(|tree| &tree.routes).map(|(host, _)| *host).collect();
        let split = |is_reached: bool| {
            let of =
                |(host, server): &(HostId, Node)| (reached.contains(host) == is_reached).then_some(*server);
            let mut servers: Vec<Node> = servers.receivers.iter().filter_map(of).collect();
            servers.sort_unstable();
            servers
        };
        Some(TreePlan {
            source: servers.source,
            receivers: split(true),
            left_out: split(false),
            trees: trees.iter().map(|tree| tree.tree.clone()).collect(),
            released: 0,
            bound: u32::MAX,
        })
    }

    /// The plan of a running transfer after a failure.
    fn mend(&self, network: &NetworkState, old: &Plan, group: &Group) -> Result<Plan, Refusal> {
        let servers = self.servers(group)?;
        let planned = self.planned(&servers, old);
        let planned = planned.ok_or_else(|| Refusal::Impossible("it is not over trees".into()))?;
        let failures = failures_of(Self::NAME, network, &self.network);
        let mut planner = self.planner.borrow_mut();
        let mended = match self.config.single_tree {
            true => planner.plan_shortest(servers.source, &planned.receivers, &failures),
            false => planner.replan(planned, &failures),
        };
        drop(planner);
        self.plan_of(&servers, mended.map_err(|error| Refusal::Impossible(format!("{error}")))?)
    }

    /// A plan with more trees, if there can be one.
    fn regained(&self, network: &NetworkState, old: &Plan, group: &Group) -> Option<Plan> {
        let Channel::SourceRoutes { trees: running, tree_count, .. } = &old.channel else { return None };
        if running.len() >= *tree_count as usize {
            return None;
        }
        let servers = self.servers(group).ok()?;
        let planned = self.planned(&servers, old)?;
        let failures = failures_of(Self::NAME, network, &self.network);
        let planned = self.planner.borrow_mut().regain(planned, &failures).ok()?;
        let plan = self.plan_of(&servers, planned).ok()?;
        let Channel::SourceRoutes { trees, .. } = &plan.channel else { return None };
        (trees.len() > running.len()).then_some(plan)
    }
}

impl Fabric for Datacast {
    fn name(&self) -> FabricName {
        Self::NAME
    }

    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        let servers = self.servers(group)?;
        let receivers: Vec<Node> = servers.receivers.iter().map(|(_, server)| *server).collect();
        let failures = failures_of(Self::NAME, network, &self.network);
        let mut planner = self.planner.borrow_mut();
        let planned = match self.config.single_tree {
            true => planner.plan_shortest(servers.source, &receivers, &failures),
            false => planner.plan(servers.source, &receivers, &failures),
        };
        drop(planner);
        let planned = planned.map_err(|error| Refusal::Impossible(format!("{error}")))?;
        if planned.left_out.is_empty() {
            return self.plan_of(&servers, planned);
        }
        let out = |(host, server): &(HostId, Node)| planned.left_out.contains(server).then_some(host.0);
        let hosts: Vec<u32> = servers.receivers.iter().filter_map(out).collect();
        Err(Refusal::Impossible(format!(
            "failed links and nodes cut the hosts {hosts:?} off from the source"
        )))
    }

    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        replan_each(Self::NAME, network, failure, |network, old| self.mend(network, &old.plan, &old.group))
    }

    fn improve(&self, network: &NetworkState) -> Vec<(PlanId, Plan)> {
        let ours = network.running().filter(|(_, running)| running.plan.fabric == Self::NAME);
        let better = |(id, running): (PlanId, &crate::Running)| {
            Some((id, self.regained(network, &running.plan, &running.group)?))
        };
        ours.filter_map(better).collect()
    }

    /// Forwarders keep nothing of a group, so that its trees can be planned anew; receivers on them hear of
    /// that.
    fn adopt(&self, network: &NetworkState, group: &Group, channel: &Channel) -> Option<Plan> {
        let Channel::SourceRoutes { .. } = channel else { return None };
        self.plan(network, group).ok()
    }
}
