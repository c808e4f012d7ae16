//! A scenario: a network, transfers over it, other traffic and what fails when; and its run.
//!
//! The command `polycast simulate` reads one from a file; experiments and the swarm make them. The checks
//! are here, so that a scenario that makes no sense cannot be run: a [`Problem`] names the key that a
//! file would have and says what would be right.

mod detection;
mod layout;
mod pull;
mod report;
mod transfers;

pub use detection::Detection;
pub use layout::{Change, Layout};
pub use pull::PullConfig;
pub use report::{
    LinkReport, LinkSample, Probe, ReceiverReport, ReceiverSample, Report, Sample, TransferReport, Trees,
};

use super::tcp::TcpConfig;
use super::world::{Cluster, Datagram, Flow, Happening, PushConfig};
use super::{LinkConfig, Network, NodeId, Packet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_types::{Duration, Time};

/// Error in a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct Problem {
    /// The key, such as `transfer.receivers` or `link[2].to`; the first of a list is 0.
    pub key: String,
    /// Description of the error and of a correct setting.
    pub message: String,
}

impl Problem {
    fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Problem { key: key.into(), message: message.into() }
    }
}

/// Transport of a transfer.
#[derive(Clone, Debug)]
pub enum Transport {
    /// Republic's push.
    Push(PushConfig),
    /// Datacast's pull.
    Pull(PullConfig),
    /// One TCP connection a receiver.
    Tcp,
}

/// Forwarding of the packets of a push transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routing {
    /// A tree of shortest paths; on Shufflecast the static rules of its relays.
    Natural,
    /// These links as (from, to).
    Tree(Vec<(u32, u32)>),
    /// Orca's labels with a filter of so many bits.
    Labels {
        /// Size of the filter.
        filter_bits: u32,
    },
}

/// The transfer.
#[derive(Clone, Debug)]
pub struct TransferPlan {
    /// Transport of the transfer.
    pub transport: Transport,
    /// Forwarding of a push transfer.
    pub routing: Routing,
    /// The source's host.
    pub source: u32,
    /// The receivers' hosts; all but the source if `None`.
    pub receivers: Option<Vec<u32>>,
    /// Size of the object in bytes.
    pub bytes: u64,
    /// Start time of the transfer.
    pub start: Time,
}

/// A background flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPlan {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Number of bytes; without end if `None`.
    pub bytes: Option<u64>,
    /// Start time of the flow.
    pub start: Time,
}

/// Part that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A node with all of its links.
    Node(u32),
    /// A link.
    Link {
        /// One end.
        from: u32,
        /// The other.
        to: u32,
        /// Only in this direction.
        one_way: bool,
    },
}

/// A failure at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailurePlan {
    /// Time of the failure.
    pub at: Time,
    /// Part that fails.
    pub what: Failed,
    /// Time at which the part works again.
    pub until: Option<Time>,
    /// Time after each change until paths and trees follow it.
    pub reroute_after: Option<Duration>,
}

/// Special properties of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverPlan {
    /// Its host.
    pub node: u32,
    /// Time that it takes for one packet.
    pub service: Option<Duration>,
    /// Time of the crash.
    pub crash: Option<Time>,
    /// Time of the restart.
    pub restart: Option<Time>,
}

/// An optical switch that turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpticalPlan {
    /// Its node.
    pub node: u32,
    /// Time at which the circuits are ready.
    pub ready_at: Time,
    /// Loss until then, in parts of a million.
    pub loss_ppm: u32,
}

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Everything random comes from it.
    pub seed: u64,
    /// The nodes and links.
    pub layout: Layout,
    /// Settings of all links that are not changed.
    pub links: LinkConfig,
    /// Links with other settings, or the links of an explicit network.
    pub changes: Vec<Change>,
    /// The transfers, one at least; all of them are by pull, or none is.
    pub transfers: Vec<TransferPlan>,
    /// Settings of all connections.
    pub tcp: TcpConfig,
    /// Other traffic.
    pub flows: Vec<FlowPlan>,
    /// Failures of the run.
    pub failures: Vec<FailurePlan>,
    /// Settings by which a manager finds failures, in place of [`FailurePlan::reroute_after`].
    pub detection: Option<Detection>,
    /// Special properties of receivers.
    pub receivers: Vec<ReceiverPlan>,
    /// Optical switches that turn.
    pub optical: Vec<OpticalPlan>,
    /// The run ends here if it is not over before.
    pub time_limit: Time,
}

impl Scenario {
    /// Runs the scenario with this seed.
    ///
    /// # Errors
    /// If something in it makes no sense.
    pub fn run(&self, seed: u64) -> Result<Report, Problem> {
        self.run_with(seed, None)
    }

    /// The same with a look at the run while it goes on. It is the same run: the trace hash does not change.
    ///
    /// # Errors
    /// If something in it makes no sense.
    pub fn run_with(&self, seed: u64, probe: Option<Probe<'_>>) -> Result<Report, Problem> {
        if self.is_by_pull()? {
            return self.run_pull(seed, probe);
        }
        let (mut net, mut cluster) = self.prepare(seed)?;
        let groups = self.check_transfers()?;
        self.run_watched(&mut net, &mut cluster, &groups, probe);
        Ok(Report::new(self, &net, &cluster))
    }

    /// Makes the network and the world of transfers by push or TCP, with everything planned; a run brings
    /// it about.
    ///
    /// # Errors
    /// If something in it makes no sense, or there is a transfer by pull.
    pub fn prepare(&self, seed: u64) -> Result<(Network<Datagram>, Cluster), Problem> {
        self.check_detection()?;
        let mut net = self.layout.build(self.links, &self.changes, seed)?;
        let groups = self.check_transfers()?;
        self.check_ways(&net, &groups)?;
        let mut cluster = Cluster::new(seed, self.tcp);
        for (plan, transfer) in self.transfers.iter().zip(0u32..) {
            self.add_transfer(&net, &mut cluster, transfer as usize, &groups[transfer as usize])?;
            cluster.plan(&mut net, plan.start, Happening::StartTransfer { transfer });
        }
        self.plan_flows(&mut net, &mut cluster)?;
        self.plan_failures(&mut net, &mut cluster, &groups)?;
        self.plan_receivers(&mut net, &mut cluster, &groups)?;
        for (index, optical) in self.optical.iter().enumerate() {
            self.layout.check_node(&format!("optical[{index}].node"), optical.node)?;
            cluster.set_turning(NodeId(optical.node), optical.ready_at, optical.loss_ppm);
        }
        self.begin_watch(&mut net, &mut cluster);
        Ok((net, cluster))
    }

    fn check_flows(&self) -> Result<(), Problem> {
        for (index, plan) in self.flows.iter().enumerate() {
            self.layout.check_host(&format!("flow[{index}].from"), plan.from)?;
            self.layout.check_host(&format!("flow[{index}].to"), plan.to)?;
            if plan.from == plan.to {
                let message = format!("host {} would send to itself: name another host", plan.to);
                return Err(Problem::new(format!("flow[{index}].to"), message));
            }
        }
        Ok(())
    }

    fn plan_flows(&self, net: &mut Network<Datagram>, cluster: &mut Cluster) -> Result<(), Problem> {
        self.check_flows()?;
        for plan in &self.flows {
            let bytes = plan.bytes.unwrap_or(u64::MAX);
            let flow = cluster.add_flow(Flow::new(NodeId(plan.from), NodeId(plan.to), bytes));
            cluster.plan(net, plan.start, Happening::StartFlow { flow });
        }
        Ok(())
    }

    fn plan_failures(
        &self,
        net: &mut Network<Datagram>,
        cluster: &mut Cluster,
        groups: &[Vec<NodeId>],
    ) -> Result<(), Problem> {
        for (index, failure) in self.failures.iter().enumerate() {
            self.check_failure(net, index, failure)?;
            let times = [(Some(failure.at), false), (failure.until, true)];
            for (at, up) in times.into_iter().filter_map(|(at, up)| at.map(|at| (at, up))) {
                match failure.what {
                    Failed::Node(node) => cluster.plan(net, at, Happening::Node { node: NodeId(node), up }),
                    Failed::Link { from, to, one_way } => {
                        let link = net.link_between(NodeId(from), NodeId(to));
                        let back = link.and_then(|link| net.reverse(link)).filter(|_| !one_way);
                        for link in link.into_iter().chain(back) {
                            cluster.plan(net, at, Happening::Link { link, up });
                        }
                    }
                }
                if let Some(after) = failure.reroute_after {
                    cluster.plan(net, at + after, Happening::Reroute);
                    self.plan_relabelling(net, cluster, groups, at + after);
                }
            }
        }
        Ok(())
    }

    fn check_failure<P: Packet>(
        &self,
        net: &Network<P>,
        index: usize,
        failure: &FailurePlan,
    ) -> Result<(), Problem> {
        match failure.what {
            Failed::Node(node) => self.layout.check_node(&format!("failure[{index}].node"), node)?,
            Failed::Link { from, to, .. } => {
                let key = format!("failure[{index}].link");
                self.layout.check_node(&key, from)?;
                self.layout.check_node(&key, to)?;
                if net.link_between(NodeId(from), NodeId(to)).is_none() {
                    return Err(Problem::new(key, format!("no link leads from {from} to {to}")));
                }
            }
        }
        if failure.until.is_some_and(|until| until <= failure.at) {
            let message = "what fails is repaired later: name a later time than `at`";
            return Err(Problem::new(format!("failure[{index}].until"), message));
        }
        Ok(())
    }

    /// Applies special properties of receivers in all transfers that they take part in: each is a host.
    fn plan_receivers(
        &self,
        net: &mut Network<Datagram>,
        cluster: &mut Cluster,
        groups: &[Vec<NodeId>],
    ) -> Result<(), Problem> {
        for (index, plan) in self.receivers.iter().enumerate() {
            let places = self.places_of(index, plan, groups)?;
            if places
                .iter()
                .any(|&(transfer, _)| matches!(self.transfers[transfer as usize].transport, Transport::Tcp))
            {
                let message = "only receivers of a push transfer can be slow or crash";
                return Err(Problem::new(format!("receiver[{index}].node"), message));
            }
            for (transfer, receiver) in places {
                if let Some(service) = plan.service {
                    cluster.plan(net, Time::ZERO, Happening::Service { transfer, receiver, service });
                }
                if let Some(at) = plan.crash {
                    cluster.plan(net, at, Happening::CrashReceiver { transfer, receiver });
                }
                if let Some(at) = plan.restart {
                    cluster.plan(net, at, Happening::JoinReceiver { transfer, receiver });
                }
            }
        }
        Ok(())
    }

    /// The transfers that a host with something special takes part in, and its number in each.
    fn places_of(
        &self,
        index: usize,
        plan: &ReceiverPlan,
        groups: &[Vec<NodeId>],
    ) -> Result<Vec<(u32, u32)>, Problem> {
        let place = |(group, transfer): (&Vec<NodeId>, u32)| {
            let number = group.iter().position(|node| node.0 == plan.node)?;
            Some((transfer, number as u32))
        };
        let places: Vec<(u32, u32)> = groups.iter().zip(0..).filter_map(place).collect();
        if places.is_empty() {
            let message = match self.transfers.len() {
                1 => format!("host {} is no receiver of the transfer", plan.node),
                _ => format!("host {} is a receiver of none of the transfers", plan.node),
            };
            return Err(Problem::new(format!("receiver[{index}].node"), message));
        }
        match (plan.crash, plan.restart) {
            (Some(crash), Some(restart)) if restart <= crash => {}
            (None, Some(_)) => {}
            _ => return Ok(places),
        }
        let message = "a receiver restarts after its `crash`: name a later time";
        Err(Problem::new(format!("receiver[{index}].restart"), message))
    }
}

#[cfg(test)]
mod tests;
