//! Choice of the groups that get circuits and splitters now (Blast, section III-C).
//!
//! The groups that win are a matching in a hyper-graph: a rack serves at most b groups at a time, and all
//! groups together have the splitters that there are. [`schedule`] is the paper's greedy algorithm, and
//! [`search`] looks for a better choice; groups that are sending already keep their circuits and splitters.
//! [`setup`] turns a granted group into the cross
//! connections of the circuit switch.

mod remedies;
mod search;
mod setup;

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use polycast_topology::optics::{racks_reachable, splitters_needed};

pub(crate) use remedies::Means;
pub use remedies::Remedies;
pub use search::{Claim, Room, SEARCH_STEPS, search};
pub use setup::{CircuitSetup, Connection, PortPool, SetupError, setup};

/// The most racks of a network.
const RACKS_MAX: u32 = 1 << 20;

/// The optical resources of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitNetwork {
    /// The racks.
    pub racks: u32,
    /// The fibres from a rack to the circuit switch: b.
    pub ports_per_rack: u32,
    /// The splitters on the circuit switch: K.
    pub splitters: u32,
    /// The outputs of a splitter: N.
    pub splitter_fanout: u32,
    /// The most splitters of one group: k.
    pub cascade_max: u32,
}

/// A group that asks for circuits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitGroup {
    /// Its name in the answer.
    pub id: u64,
    /// The racks of its members, the source's among them; each once, in any order.
    pub racks: Vec<u32>,
    /// The bytes to send.
    pub bytes: u64,
    /// The receivers.
    pub receivers: u32,
}

impl CircuitGroup {
    /// The traffic that circuits would take over: bytes times receivers.
    #[must_use]
    pub fn volume(&self) -> u128 {
        u128::from(self.bytes) * u128::from(self.receivers)
    }

    /// The splitters that the group takes (constraint 2).
    #[must_use]
    pub fn splitters(&self, network: &CircuitNetwork) -> u32 {
        splitters_needed(self.racks.len() as u32, network.splitter_fanout)
    }

    fn claim(&self, network: &CircuitNetwork) -> Claim {
        let racks = self.racks.iter().map(|&rack| (rack, 1)).collect();
        Claim { racks, splitters: self.splitters(network), volume: self.volume() }
    }
}

/// A request that is wrong, whatever else waits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CircuitError {
    /// A rack that does not exist.
    #[error("group {group} names rack {rack}: the racks are 0 to {last}")]
    RackRange {
        /// The group.
        group: u64,
        /// The refused rack.
        rack: u32,
        /// The last rack.
        last: u32,
    },
    /// A rack that a group names twice.
    #[error("group {group} names rack {rack} twice: name every rack of a group once")]
    SameRack {
        /// The group.
        group: u64,
        /// The rack.
        rack: u32,
    },
    /// Two groups of one name.
    #[error("two groups are called {group}: give every group its own id")]
    SameId {
        /// The name.
        group: u64,
    },
    /// A running group that was not described.
    #[error("running group {group} is not among the groups: list it there with its racks")]
    UnknownRunning {
        /// The name.
        group: u64,
    },
    /// Running groups hold more than there is.
    #[error(
        "the running groups cannot all be running: {what} {value} is used more than {limit} times at once"
    )]
    RunningTooMuch {
        /// Kind of resource that is used too much.
        what: &'static str,
        /// Number of the resource.
        value: u32,
        /// Number of times that it can be used.
        limit: u32,
    },
    /// A splitter that does not split.
    #[error("splitters have {fanout} outputs: they need at least 2")]
    SplitterFanout {
        /// The refused number.
        fanout: u32,
    },
    /// More racks than can be counted.
    #[error("the network has {racks} racks: choose at most {limit}")]
    TooManyRacks {
        /// The refused number.
        racks: u32,
        /// The most there can be.
        limit: u32,
    },
    /// A network without racks or fibres.
    #[error("the network has {what} = 0: there must be at least 1")]
    Empty {
        /// Kind of part that is missing.
        what: &'static str,
    },
}

/// Reason why a group can never have circuits in this network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Constraint 1.
    #[error(
        "it spans {racks} racks and {cascade_max} cascaded splitters of {fanout} outputs reach {reachable}: \
         {remedies}"
    )]
    Cascade {
        /// Its racks.
        racks: u32,
        /// The most splitters of one group.
        cascade_max: u32,
        /// The outputs of a splitter.
        fanout: u32,
        /// The racks that can be reached.
        reachable: u32,
        /// Changes that would help.
        remedies: Remedies,
    },
    /// More splitters than the network has.
    #[error("it needs {needed} splitter{} and the network has {splitters}: {remedies}", if *needed == 1 { "" } else { "s" })]
    Splitters {
        /// Number of splitters that it needs.
        needed: u32,
        /// Number of splitters in the network.
        splitters: u32,
        /// Changes that would help.
        remedies: Remedies,
    },
    /// Nothing for circuits to do.
    #[error("it has {racks} rack to join: circuits join at least 2 racks")]
    OneRack {
        /// Its racks.
        racks: u32,
    },
}

/// The answer to all groups at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The groups that get circuits now, best first; running ones are not among them.
    pub granted: Vec<u64>,
    /// The groups that do not fit now, best first.
    pub waiting: Vec<u64>,
    /// The groups that never fit.
    pub rejected: Vec<(u64, Rejection)>,
    /// Bytes times receivers over all granted groups.
    pub volume: u128,
    /// The splitters in use, by running and granted groups.
    pub splitters_used: u32,
}

/// The groups that may be chosen, and what running groups have left over: the input of any scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residual {
    /// Indices of the groups that constraint 1 allows and that do not run.
    pub candidates: Vec<usize>,
    /// The groups that never fit.
    pub rejected: Vec<(u64, Rejection)>,
    /// Free fibres of every rack.
    pub free_ports: Vec<u32>,
    /// Free splitters.
    pub free_splitters: u32,
}

/// Checks the requests and takes what the running groups hold out of the network.
///
/// # Errors
/// If a request is wrong in itself.
pub fn residual(
    network: &CircuitNetwork,
    groups: &[CircuitGroup],
    running: &BTreeSet<u64>,
) -> Result<Residual, CircuitError> {
    check(network, groups, running)?;
    let mut residual = Residual {
        candidates: Vec::with_capacity(groups.len()),
        rejected: Vec::new(),
        free_ports: vec![network.ports_per_rack; network.racks as usize],
        free_splitters: network.splitters,
    };
    for (index, group) in groups.iter().enumerate() {
        if running.contains(&group.id) {
            residual.take_running(network, group)?;
        } else if let Some(why) = rejection(network, group) {
            residual.rejected.push((group.id, why));
        } else {
            residual.candidates.push(index);
        }
    }
    Ok(residual)
}

impl Residual {
    fn take_running(&mut self, network: &CircuitNetwork, group: &CircuitGroup) -> Result<(), CircuitError> {
        for &rack in &group.racks {
            let free = &mut self.free_ports[rack as usize];
            *free = free.checked_sub(1).ok_or(CircuitError::RunningTooMuch {
                what: "rack",
                value: rack,
                limit: network.ports_per_rack,
            })?;
        }
        let needed = group.splitters(network);
        self.free_splitters =
            self.free_splitters.checked_sub(needed).ok_or(CircuitError::RunningTooMuch {
                what: "splitter number",
                value: network.splitters,
                limit: 1,
            })?;
        Ok(())
    }

    /// Returns true if a group fits into the free resources.
    #[must_use]
    pub fn fits(&self, network: &CircuitNetwork, group: &CircuitGroup) -> bool {
        group.splitters(network) <= self.free_splitters
            && group.racks.iter().all(|&rack| self.free_ports[rack as usize] > 0)
    }

    fn take(&mut self, network: &CircuitNetwork, group: &CircuitGroup) {
        self.free_splitters -= group.splitters(network);
        group.racks.iter().for_each(|&rack| self.free_ports[rack as usize] -= 1);
    }
}

/// The paper's greedy algorithm: most traffic per rack first.
///
/// # Errors
/// If a request is wrong in itself.
pub fn schedule(
    network: &CircuitNetwork,
    groups: &[CircuitGroup],
    running: &BTreeSet<u64>,
) -> Result<Schedule, CircuitError> {
    let residual = residual(network, groups, running)?;
    let order = greedy_order(groups, &residual);
    Ok(grant(network, groups, residual, &order))
}

/// The same, and then a search for groups that are worth more together ([`search`]).
///
/// # Errors
/// If a request is wrong in itself.
pub fn schedule_with_search(
    network: &CircuitNetwork,
    groups: &[CircuitGroup],
    running: &BTreeSet<u64>,
    steps_max: u64,
) -> Result<Schedule, CircuitError> {
    let residual = residual(network, groups, running)?;
    let mut order = greedy_order(groups, &residual);
    let claims: Vec<Claim> = order.iter().map(|&index| groups[index].claim(network)).collect();
    let room = Room { ports: residual.free_ports.clone(), splitters: residual.free_splitters };
    let places: Vec<usize> = (0..order.len()).collect();
    if let Some(is_chosen) = search(room, &claims, &places, steps_max) {
        let (chosen, others): (Vec<usize>, Vec<usize>) = places.into_iter().partition(|&at| is_chosen[at]);
        order = chosen.into_iter().chain(others).map(|at| order[at]).collect();
    }
    Ok(grant(network, groups, residual, &order))
}

/// The candidates, the most traffic per rack first.
fn greedy_order(groups: &[CircuitGroup], residual: &Residual) -> Vec<usize> {
    let mut order = residual.candidates.clone();
    // volume / racks, compared without division; the earlier group wins a tie.
    order.sort_by(|&a, &b| {
        let score = |x: usize, y: usize| groups[x].volume() * groups[y].racks.len() as u128;
        score(b, a).cmp(&score(a, b)).then(a.cmp(&b))
    });
    order
}

/// Grants what fits, in this order.
fn grant(
    network: &CircuitNetwork,
    groups: &[CircuitGroup],
    mut residual: Residual,
    order: &[usize],
) -> Schedule {
    let mut schedule = Schedule { rejected: core::mem::take(&mut residual.rejected), ..Schedule::default() };
    for &index in order {
        let group = &groups[index];
        if residual.fits(network, group) {
            residual.take(network, group);
            schedule.granted.push(group.id);
            schedule.volume += group.volume();
        } else {
            schedule.waiting.push(group.id);
        }
    }
    schedule.splitters_used = network.splitters - residual.free_splitters;
    schedule
}

fn check(
    network: &CircuitNetwork,
    groups: &[CircuitGroup],
    running: &BTreeSet<u64>,
) -> Result<(), CircuitError> {
    for (what, value) in [("racks", network.racks), ("ports per rack", network.ports_per_rack)] {
        if value == 0 {
            return Err(CircuitError::Empty { what });
        }
    }
    if network.racks > RACKS_MAX {
        return Err(CircuitError::TooManyRacks { racks: network.racks, limit: RACKS_MAX });
    }
    if network.splitter_fanout < 2 && network.splitters > 0 {
        return Err(CircuitError::SplitterFanout { fanout: network.splitter_fanout });
    }
    let mut ids = BTreeSet::new();
    let mut named_by = vec![usize::MAX; network.racks as usize];
    for (index, group) in groups.iter().enumerate() {
        if !ids.insert(group.id) {
            return Err(CircuitError::SameId { group: group.id });
        }
        if let Some(&rack) = group.racks.iter().find(|&&rack| rack >= network.racks) {
            return Err(CircuitError::RackRange { group: group.id, rack, last: network.racks - 1 });
        }
        for &rack in &group.racks {
            if core::mem::replace(&mut named_by[rack as usize], index) == index {
                return Err(CircuitError::SameRack { group: group.id, rack });
            }
        }
    }
    match running.difference(&ids).next() {
        Some(&group) => Err(CircuitError::UnknownRunning { group }),
        None => Ok(()),
    }
}

fn rejection(network: &CircuitNetwork, group: &CircuitGroup) -> Option<Rejection> {
    let racks = group.racks.len() as u32;
    let fanout = network.splitter_fanout.max(2);
    let is_reached = (2..=racks_reachable(network.cascade_max, fanout)).contains(&racks);
    if is_reached && group.splitters(network) <= network.splitters {
        return None;
    }
    // More splitters than racks are of no use to a group, and a batch gives it one cascade, whatever fibres
    // its racks have.
    let splitters = vec![fanout; network.splitters.min(racks) as usize];
    let means = Means { fanout, cascade_max: network.cascade_max, fibres: 1, splitters };
    means.rejection(racks, network.splitters, false)
}

#[cfg(test)]
mod tests;
