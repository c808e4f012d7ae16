//! Failures that are found out: greetings and probes share the links with all else, a manager hears of what
//! they tell, and plans anew around what it knows.

use super::transfers::Broken;
use super::{Layout, Probe, Problem, Scenario};
use crate::packet::world::{Cluster, Datagram, Happening};
use crate::packet::{LinkId, Network, NodeId};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use polycast_protocol::pull::NeighbourConfig;
use polycast_topology::{Failures, Graph, Network as Topology};
use polycast_types::Duration;

/// Settings by which a manager finds failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detection {
    /// With pull the time between greetings of neighbours, otherwise that between probes of switches; above
    /// zero.
    pub period: Duration,
    /// Time for which a link must have changed before one of its ends reports it, with pull.
    pub damping: Duration,
    /// Set if interfaces see that nothing comes in any longer; without it only missing greetings and answers
    /// show that.
    pub carrier: bool,
    /// Delay of a message to the manager, and of one from it.
    pub control_delay: Duration,
}

impl Detection {
    /// The settings of the ends of links.
    pub(super) fn neighbour(&self) -> NeighbourConfig {
        NeighbourConfig { greeting: self.period, damping: self.damping }
    }
}

/// Returns the failures among links that are down, as a planner of this topology knows them.
pub(super) fn failures<P: crate::packet::Packet>(
    topology: &Topology,
    net: &Network<P>,
    down: &BTreeSet<LinkId>,
) -> Failures {
    let mut failures = Failures::none();
    for &link in down {
        let (from, to) = net.ends(link);
        if let Some(port) = topology.port_to(from.0, to.0) {
            failures.fail_link(topology.link(from.0, port));
        }
    }
    failures
}

impl Scenario {
    /// A failure that is found out has no time after which it is known.
    pub(super) fn check_detection(&self) -> Result<(), Problem> {
        if self.detection.is_none() {
            return Ok(());
        }
        if !matches!(self.layout, Layout::Topology(_)) {
            let message = "its switches and links must be known by the name of a topology, such as leaf-spine:4,2,8: \
                           write reroute_after for failures of other networks";
            return Err(Problem::new("manager", message));
        }
        match self.failures.iter().position(|failure| failure.reroute_after.is_some()) {
            None => Ok(()),
            Some(index) => {
                let message = "with [manager] failures are found out: take this out, or [manager]";
                Err(Problem::new(format!("failure[{index}].reroute_after"), message))
            }
        }
    }

    /// Lets switches probe each other, if a manager is to find out what has failed.
    pub(super) fn begin_watch(&self, net: &mut Network<Datagram>, cluster: &mut Cluster) {
        if let Some(detection) = &self.detection {
            cluster.watch(net, NodeId(self.layout.hosts()), detection.period, detection.carrier);
        }
    }

    /// Runs transfers by push or TCP to their end. What switches say gets to the manager, whose plan gets to
    /// hosts and switches: each takes a while.
    pub(super) fn run_watched(
        &self,
        net: &mut Network<Datagram>,
        cluster: &mut Cluster,
        groups: &[Vec<NodeId>],
        mut probe: Option<Probe<'_>>,
    ) {
        let mut down = BTreeSet::new();
        loop {
            match &mut probe {
                Some(probe) => probe.run(net, cluster, self.time_limit, Cluster::delivered),
                None => net.run(cluster, self.time_limit),
            };
            let news = cluster.take_news();
            let (Some(detection), Layout::Topology(topology)) = (&self.detection, &self.layout) else {
                break;
            };
            if news.is_empty() || cluster.is_done() {
                break;
            }
            let at = net.now() + detection.control_delay * 2;
            for news in news {
                let changed = if news.up { down.remove(&news.link) } else { down.insert(news.link) };
                if changed {
                    let broken = Broken::of_links(failures(topology, net, &down));
                    cluster.plan(net, at, Happening::Reroute);
                    self.plan_around(net, cluster, groups, &broken, at);
                }
            }
        }
        if let Some(probe) = &mut probe {
            probe.end(net, cluster.delivered());
        }
    }
}
