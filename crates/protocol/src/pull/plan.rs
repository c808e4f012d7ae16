//! From planned trees to the source routes that receivers put into their interests.

use alloc::vec::Vec;

use polycast_planning::trees::{TreeHop, TreePlan};
use polycast_topology::CompactGraph;

use super::{Hop, Route, RouteError};

/// The routes of a plan's receivers, in their order; of each receiver, one for every tree.
///
/// A node is marked as non-branching if it is no receiver and feeds a single node.
///
/// # Errors
/// If a tree is deeper than a route is long, or has a node of more ports than a hop can name.
pub fn plan_routes(plan: &TreePlan, graph: &CompactGraph) -> Result<Vec<Vec<Route>>, RouteError> {
    let of = |ways: &Vec<Vec<TreeHop>>| ways.iter().map(|way| route_of(way)).collect();
    plan.ways(graph).iter().map(of).collect()
}

/// The route of one way.
///
/// # Errors
/// If it is longer than a route can be, or has a node of more ports than a hop can name.
pub fn route_of(way: &[TreeHop]) -> Result<Route, RouteError> {
    let hop = |hop: &TreeHop| Hop {
        port: u8::try_from(hop.port).unwrap_or(u8::MAX),
        non_branching: hop.non_branching,
    };
    Route::new(&way.iter().map(hop).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use polycast_planning::trees::TreePlanner;
    use polycast_topology::{Failures, Network, Node};

    /// The nodes of a route with a mark behind those that keep nothing.
    fn written(graph: &CompactGraph, receiver: Node, route: &Route) -> String {
        let mut node = receiver;
        let mut text = format!("{node}");
        for &hop in route.bytes() {
            node = graph.target(graph.arcs(node).start + u32::from(hop & 0x7f));
            text = format!("{}{} {node}", text, if hop & 0x80 != 0 { "'" } else { "" });
        }
        text
    }

    #[test]
    fn routes_lead_to_the_source_and_mark_the_nodes_that_keep_nothing() {
        let network: Network = "bcube:4,2".parse().unwrap();
        let mut planner = TreePlanner::new(network);
        let plan = planner.plan(0, &[2, 4, 9, 11, 13, 15], &Failures::none()).unwrap();
        let routes = plan_routes(&plan, planner.graph()).unwrap();
        // Figure 4, Tree A: 10 <0,1> 13 <1,3> 03 <0,0> 00, where 13 and <0,1> and 03 feed one node each.
        assert_eq!(written(planner.graph(), 4, &routes[1][0]), "4 17' 7' 23 3' 16 0");
        // Tree B: 02 <1,2> 32 <0,3> 30 <1,0> 00.
        assert_eq!(written(planner.graph(), 2, &routes[0][1]), "2 22' 14' 19 12' 20 0");
        // Tree B: 10 is a receiver below <1,0>.
        assert_eq!(written(planner.graph(), 4, &routes[1][1]), "4 20 0");
    }

    #[test]
    fn deep_trees_are_refused_with_their_depth() {
        let network: Network = "torus:16,3".parse().unwrap();
        let mut planner = TreePlanner::new(network);
        let receivers: Vec<Node> = (1..4096).collect();
        let plan = planner.plan(0, &receivers, &Failures::none()).unwrap();
        let error = plan_routes(&plan, planner.graph()).unwrap_err();
        assert!(matches!(error, RouteError::Length { hops: 15.. }), "{error}");
    }
}
