//! The cross connections of granted groups: from the source's rack through a cascade of splitters to the
//! other racks.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::plan::Resource;
use polycast_topology::Hybrid;
use polycast_topology::optics::{Cascade, PowerBudget, PowerError, PowerPlan};

/// One circuit of the optical switch: light that enters at one port leaves at the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// The port whose fibre brings the light.
    pub from: u32,
    /// The port whose fibre takes it on.
    pub to: u32,
}

impl Connection {
    /// The TL1 command that makes this circuit.
    #[must_use]
    pub fn tl1_enter(&self, tag: u32) -> String {
        format!("ENT-CRS-FIBER::{},{}:{tag};", self.from + 1, self.to + 1)
    }

    /// The TL1 command that takes this circuit down.
    #[must_use]
    pub fn tl1_delete(&self, tag: u32) -> String {
        format!("DLT-CRS-FIBER::{},{}:{tag};", self.from + 1, self.to + 1)
    }
}

/// The free splitters and fibres of a network.
#[derive(Clone, Debug)]
pub struct PortPool {
    hybrid: Hybrid,
    free_splitters: Vec<u32>,
    /// Free uplinks by rack, as a stack.
    free_uplinks: Vec<Vec<u32>>,
}

impl PortPool {
    /// Everything is free.
    #[must_use]
    pub fn new(hybrid: Hybrid) -> Self {
        let uplinks: Vec<u32> = (0..hybrid.ports_per_rack).rev().collect();
        PortPool {
            hybrid,
            free_splitters: (0..hybrid.splitters).rev().collect(),
            free_uplinks: (0..hybrid.racks).map(|_| uplinks.clone()).collect(),
        }
    }

    /// What is free of the splitters and of the fibres of these racks; other racks have none.
    pub(crate) fn of_free(
        hybrid: Hybrid,
        racks: &BTreeSet<u32>,
        port_is_free: impl Fn(u32) -> bool,
        splitter_is_free: impl Fn(u32) -> bool,
    ) -> Self {
        let mut free_uplinks = vec![Vec::new(); hybrid.racks as usize];
        for &rack in racks {
            let uplinks = (0..hybrid.ports_per_rack).rev();
            free_uplinks[rack as usize] =
                uplinks.filter(|&uplink| port_is_free(hybrid.rack_port(rack, uplink))).collect();
        }
        let free_splitters =
            (0..hybrid.splitters).rev().filter(|&splitter| splitter_is_free(splitter)).collect();
        PortPool { hybrid, free_splitters, free_uplinks }
    }

    /// What may have failed is taken only where nothing else is left.
    pub(crate) fn put_last(&mut self, is_doubtful: impl Fn(&Resource) -> bool) {
        // They are stacks: what is first is taken last. The sort is stable.
        self.free_splitters.sort_by_key(|splitter| !is_doubtful(&Resource::Splitter { splitter: *splitter }));
        let hybrid = self.hybrid;
        for (rack, uplinks) in (0..).zip(&mut self.free_uplinks) {
            uplinks.sort_by_key(|uplink| {
                !is_doubtful(&Resource::CircuitPort { port: hybrid.rack_port(rack, *uplink) })
            });
        }
    }

    /// Gives back what a group held.
    pub fn release(&mut self, setup: &CircuitSetup) {
        self.free_splitters.extend(setup.splitters.iter().rev());
        for &(rack, uplink) in setup.uplinks.iter().rev() {
            self.free_uplinks[rack as usize].push(uplink);
        }
    }
}

/// The circuits of one group and what they hold.
#[derive(Clone, Debug, PartialEq)]
pub struct CircuitSetup {
    /// The circuits, from the source outwards.
    pub connections: Vec<Connection>,
    /// The splitters that it holds.
    pub splitters: Vec<u32>,
    /// The (rack, uplink) pairs that it holds.
    pub uplinks: Vec<(u32, u32)>,
    /// Amplifiers and what is left of the power budget.
    pub power: PowerPlan,
}

/// Circuits that cannot be set up.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SetupError {
    /// Too dark.
    #[error(transparent)]
    Power(#[from] PowerError),
    /// All fibres of a rack are in use.
    #[error("all {ports} fibres of rack {rack} are in use: wait for a group to end")]
    RackBusy {
        /// The rack.
        rack: u32,
        /// Its fibres.
        ports: u32,
    },
    /// Not enough splitters are free.
    #[error("{needed} splitters are needed and {free} are free: wait for a group to end")]
    SplittersBusy {
        /// What is needed.
        needed: usize,
        /// What is free.
        free: usize,
    },
    /// A rack that the network does not have.
    #[error("rack {rack} is out of range: the racks are 0 to {last}")]
    RackRange {
        /// The rack.
        rack: u32,
        /// The last rack.
        last: u32,
    },
}

/// The circuits from `source_rack` to `receiver_racks`, taken out of the pool.
///
/// # Errors
/// If a fibre or splitter is missing or the light would not suffice; then the pool is as before.
pub fn setup(
    pool: &mut PortPool,
    source_rack: u32,
    receiver_racks: &[u32],
    budget: &PowerBudget,
) -> Result<CircuitSetup, SetupError> {
    let hybrid = pool.hybrid;
    for &rack in receiver_racks.iter().chain([&source_rack]) {
        if rack >= hybrid.racks {
            return Err(SetupError::RackRange { rack, last: hybrid.racks - 1 });
        }
        if pool.free_uplinks[rack as usize].is_empty() {
            return Err(SetupError::RackBusy { rack, ports: hybrid.ports_per_rack });
        }
    }
    let cascade = Cascade::new(receiver_racks.len() as u32, hybrid.splitter_fanout);
    let power = budget.plan(&cascade)?;
    let (needed, free) = (cascade.stages.len(), pool.free_splitters.len());
    if needed > free {
        return Err(SetupError::SplittersBusy { needed, free });
    }
    let mut uplinks = Vec::with_capacity(receiver_racks.len() + 1);
    for &rack in [source_rack].iter().chain(receiver_racks) {
        let Some(uplink) = pool.free_uplinks[rack as usize].pop() else {
            // The same rack was named more often than it has fibres left.
            let held = CircuitSetup { connections: Vec::new(), splitters: Vec::new(), uplinks, power };
            pool.release(&held);
            return Err(SetupError::RackBusy { rack, ports: hybrid.ports_per_rack });
        };
        uplinks.push((rack, uplink));
    }
    let mut splitters = pool.free_splitters.split_off(free - needed);
    splitters.reverse();
    let connections = connect(&hybrid, &cascade, &splitters, &uplinks);
    Ok(CircuitSetup { connections, splitters, uplinks, power })
}

fn connect(hybrid: &Hybrid, cascade: &Cascade, splitters: &[u32], uplinks: &[(u32, u32)]) -> Vec<Connection> {
    let port = |&(rack, uplink): &(u32, u32)| hybrid.rack_port(rack, uplink);
    let output = |(stage, output): (u32, u32)| hybrid.splitter_output(splitters[stage as usize], output);
    let (source, receivers) = (port(&uplinks[0]), &uplinks[1..]);
    let mut connections = Vec::with_capacity(splitters.len() + receivers.len());
    for (stage, &splitter) in cascade.stages.iter().zip(splitters) {
        let from = stage.fed_by.map_or(source, output);
        connections.push(Connection { from, to: hybrid.splitter_input(splitter) });
    }
    if cascade.stages.is_empty() {
        connections.extend(receivers.iter().map(|receiver| Connection { from: source, to: port(receiver) }));
    } else {
        let leaves = cascade.receivers.iter().zip(receivers);
        connections
            .extend(leaves.map(|(&leaf, receiver)| Connection { from: output(leaf), to: port(receiver) }));
    }
    connections
}
