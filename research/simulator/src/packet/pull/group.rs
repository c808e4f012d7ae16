//! A group and the settings of its transfer.

use alloc::vec::Vec;
use polycast_planning::trees::{TreeError, TreePlan, TreePlanner};
use polycast_protocol::pull::{
    Blocks, RateConfig, ReceiverConfig, RetryTime, Route, RouteError, SourceConfig, plan_routes,
};
use polycast_topology::{Failures, Node};
use polycast_types::{Duration, Handle};

/// One transfer: its hosts, their routes, and its settings.
#[derive(Clone, Debug)]
pub struct Group {
    /// The transfer.
    pub transfer: Handle,
    /// The source.
    pub source: Node,
    /// The receivers.
    pub receivers: Vec<Node>,
    /// For every receiver its route in each tree.
    pub routes: Vec<Vec<Option<Route>>>,
    /// The division of the object.
    pub blocks: Blocks,
    /// Credits of a receiver in each tree (w).
    pub credits: u32,
    /// Time after which receivers request again.
    pub retry: RetryTime,
    /// Number of packets that overtake one that counts as lost; the paper's receivers do not check that.
    pub overtaken: Option<u32>,
    /// Set to take single losses without a queue for chance; the paper's source takes none for that.
    pub chance: bool,
    /// Settings for changes of the source's rates.
    pub rate: RateConfig,
    /// Bytes of a packet beside its payload.
    pub header_bytes: u16,
    /// Number of packets before a block's end at which its successor is decided; 1 as in the paper.
    pub decide_ahead: u32,
}

/// Reason that there is no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The planner.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A tree that is too deep.
    #[error(transparent)]
    Route(#[from] RouteError),
}

impl Group {
    /// A group over the arc-disjoint trees that the planner finds, with the paper's settings for links of
    /// `link_bps`: packets of 1500 bytes of which 72 are header, an RTO of 20 ms and T = 1 ms, δ = 50 Mb/s.
    ///
    /// # Errors
    /// If the planner refuses the members, or a tree is too deep for source routes.
    pub fn plan(
        planner: &mut TreePlanner,
        source: Node,
        receivers: &[Node],
        blocks: Blocks,
        link_bps: u64,
    ) -> Result<Self, GroupError> {
        let plan = planner.plan(source, receivers, &Failures::none())?;
        Group::with_plan(&plan, planner, blocks, link_bps)
    }

    /// The same over trees that are planned already.
    ///
    /// # Errors
    /// If a tree is too deep for source routes.
    pub fn with_plan(
        plan: &TreePlan,
        planner: &TreePlanner,
        blocks: Blocks,
        link_bps: u64,
    ) -> Result<Self, GroupError> {
        let routes = plan_routes(plan, planner.graph())?;
        Ok(Group {
            transfer: Handle(1),
            source: plan.source,
            receivers: plan.receivers.clone(),
            routes: routes.into_iter().map(|routes| routes.into_iter().map(Some).collect()).collect(),
            blocks,
            credits: 32,
            retry: RetryTime::Fixed(Duration::from_millis(20)),
            overtaken: None,
            chance: false,
            rate: RateConfig::for_link(link_bps),
            header_bytes: 72,
            decide_ahead: 32,
        })
    }

    /// The same group with one of its trees alone.
    #[must_use]
    pub fn with_tree(mut self, tree: usize) -> Self {
        self.routes.iter_mut().for_each(|routes| *routes = alloc::vec![routes[tree]]);
        self
    }

    /// Returns the number of trees.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.routes.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The settings of the source.
    #[must_use]
    pub fn source_config(&self) -> SourceConfig {
        SourceConfig {
            transfer: self.transfer,
            blocks: self.blocks,
            trees: self.trees() as u8,
            credits: self.credits,
            rate: self.rate,
            header_bytes: self.header_bytes,
            decide_ahead: self.decide_ahead,
            waiting_max: 1 << 14,
            chance: self.chance,
        }
    }

    /// The settings of a receiver, by its place in the list.
    #[must_use]
    pub fn receiver_config(&self, at: usize) -> ReceiverConfig {
        ReceiverConfig {
            transfer: self.transfer,
            blocks: self.blocks,
            routes: self.routes[at].clone(),
            credits: self.credits,
            retry: self.retry,
            overtaken: self.overtaken,
            stalled_after: Duration::from_secs(1),
        }
    }
}
