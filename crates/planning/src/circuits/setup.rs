//! The cross connections of granted groups: from the source's rack through a cascade of splitters to the
//! other racks.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::plan::Resource;
use polycast_topology::optics::{Cascade, PowerBudget, PowerError, PowerPlan, splitters_needed};
use polycast_topology::{Hybrid, PortOwner, PortTable, SplitterPorts};

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
    ports: Arc<PortTable>,
    free_splitters: Vec<u32>,
    /// Free uplinks by rack, as a stack.
    free_uplinks: Vec<Vec<u32>>,
    /// Circuits that are there already, by the port where light enters: one that is wanted again costs
    /// nothing.
    there: BTreeMap<u32, u32>,
}

impl PortPool {
    /// Everything is free, and cabled in the program's own order.
    #[must_use]
    pub fn new(hybrid: Hybrid) -> Self {
        let ports = Arc::new(PortTable::of(&hybrid));
        let racks = (0..ports.racks()).collect();
        PortPool::of_free(ports, &racks, |_| true, |_| true)
    }

    /// Makes a pool of the free splitters and the free fibres of these racks; other racks have none.
    pub(crate) fn of_free(
        ports: Arc<PortTable>,
        racks: &BTreeSet<u32>,
        port_is_free: impl Fn(u32) -> bool,
        splitter_is_free: impl Fn(u32) -> bool,
    ) -> Self {
        let mut free_uplinks = vec![Vec::new(); ports.racks() as usize];
        for &rack in racks {
            let fibres = ports.of_rack(rack);
            let uplinks = (0..fibres.len() as u32).rev();
            free_uplinks[rack as usize] =
                uplinks.filter(|&uplink| port_is_free(fibres[uplink as usize])).collect();
        }
        let splitters = ports.splitters().len() as u32;
        let free_splitters = (0..splitters).rev().filter(|&splitter| splitter_is_free(splitter)).collect();
        PortPool { ports, free_splitters, free_uplinks, there: BTreeMap::new() }
    }

    /// The same, where these circuits are there already.
    pub(crate) fn with_circuits(self, there: BTreeMap<u32, u32>) -> Self {
        PortPool { there, ..self }
    }

    /// Puts resources that may have failed last: they are taken only where nothing else is left.
    pub(crate) fn put_last(&mut self, is_doubtful: impl Fn(&Resource) -> bool) {
        // They are stacks: what is first is taken last. The sort is stable.
        self.free_splitters.sort_by_key(|splitter| !is_doubtful(&Resource::Splitter { splitter: *splitter }));
        for (rack, uplinks) in (0..).zip(&mut self.free_uplinks) {
            let fibres = self.ports.of_rack(rack);
            uplinks.sort_by_key(|uplink| {
                !is_doubtful(&Resource::CircuitPort { port: fibres[*uplink as usize] })
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

    fn rack_port(&self, &(rack, uplink): &(u32, u32)) -> u32 {
        self.ports.of_rack(rack)[uplink as usize]
    }

    fn fanout(&self, splitter: u32) -> u32 {
        self.ports.splitters()[splitter as usize].fanout()
    }

    /// The fewest free splitters that feed so many receivers, the largest first and the last no larger than
    /// it has to be; with `first` ahead of others if it costs none more. An error says how many are needed
    /// and how many are free.
    fn choose(&self, receivers: u32, first: Option<u32>) -> Result<Vec<u32>, SetupError> {
        if receivers < 2 {
            return Ok(Vec::new());
        }
        let mut candidates: Vec<u32> = self.free_splitters.iter().rev().copied().collect();
        candidates.sort_by_key(|splitter| core::cmp::Reverse(self.fanout(*splitter)));
        let take = |candidates: &[u32]| {
            let (mut reached, mut taken) = (1, Vec::new());
            for &splitter in candidates {
                if reached >= receivers {
                    break;
                }
                reached += self.fanout(splitter) - 1;
                taken.push(splitter);
            }
            (reached >= receivers).then_some((taken, reached))
        };
        let Some((mut taken, mut reached)) = take(&candidates) else {
            let largest = self.ports.splitters().iter().map(SplitterPorts::fanout).max().unwrap_or(2);
            let needed = splitters_needed(receivers + 1, largest) as usize;
            // Where small splitters are free only, more are needed than of the largest.
            let needed = needed.max(candidates.len() + 1);
            return Err(SetupError::SplittersBusy { needed, free: candidates.len() });
        };
        if let Some(first) = first.filter(|first| candidates.contains(first)) {
            let mut preferring = candidates.clone();
            preferring.retain(|splitter| *splitter != first);
            preferring.insert(0, first);
            if let Some((others, reach)) = take(&preferring).filter(|(others, _)| others.len() == taken.len())
            {
                (taken, reached) = (others, reach);
            }
        }
        // A smaller one may do in the last place; the first that is as small as any.
        if let Some(last) = taken.pop().filter(|last| Some(*last) != first || taken.is_empty()) {
            let without = reached + 1 - self.fanout(last);
            let suffices =
                |splitter: &&u32| !taken.contains(splitter) && without + self.fanout(**splitter) > receivers;
            let smallest = candidates.iter().filter(suffices).min_by_key(|splitter| self.fanout(**splitter));
            let smallest = smallest.filter(|small| self.fanout(**small) < self.fanout(last));
            taken.push(*smallest.filter(|_| Some(last) != first).unwrap_or(&last));
        }
        Ok(taken)
    }

    /// A free fibre of a rack: one where `fits` says yes if there is one.
    fn take_uplink(&mut self, rack: u32, fits: impl Fn(u32) -> bool) -> Option<(u32, u32)> {
        let ports = self.ports.of_rack(rack);
        let free = &mut self.free_uplinks[rack as usize];
        let fitting = free.iter().rposition(|uplink| fits(ports[*uplink as usize]));
        let at = fitting.or_else(|| free.len().checked_sub(1))?;
        Some((rack, free.remove(at)))
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
        /// Number that is needed.
        needed: usize,
        /// Number that is free.
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

/// The circuits from `source_rack` to `receiver_racks`, taken out of the pool. Those that are there already
/// are used again where that costs nothing else.
///
/// # Errors
/// If a fibre or splitter is missing or the light would not suffice; then the pool is as before.
pub fn setup(
    pool: &mut PortPool,
    source_rack: u32,
    receiver_racks: &[u32],
    budget: &PowerBudget,
) -> Result<CircuitSetup, SetupError> {
    let ports_of = |pool: &PortPool, rack| pool.ports.of_rack(rack).len() as u32;
    for &rack in receiver_racks.iter().chain([&source_rack]) {
        if rack >= pool.ports.racks() {
            return Err(SetupError::RackRange { rack, last: pool.ports.racks() - 1 });
        }
        if pool.free_uplinks[rack as usize].is_empty() {
            return Err(SetupError::RackBusy { rack, ports: ports_of(pool, rack) });
        }
    }
    let lit = pool.free_uplinks[source_rack as usize].iter().rev().find_map(|uplink| {
        let port = pool.ports.of_rack(source_rack)[*uplink as usize];
        match pool.ports.owner(*pool.there.get(&port)?)? {
            PortOwner::Splitter(splitter) => Some((port, splitter)),
            PortOwner::Rack(_) => None,
        }
    });
    let receivers = receiver_racks.len() as u32;
    let splitters = pool.choose(receivers, lit.map(|(_, splitter)| splitter))?;
    let fanouts: Vec<u32> = splitters.iter().map(|splitter| pool.fanout(*splitter)).collect();
    let cascade = Cascade::of(receivers, &fanouts);
    let each: Vec<(f64, f64)> = splitters
        .iter()
        .map(|splitter| &pool.ports.splitters()[*splitter as usize])
        .map(|splitter| {
            let loss_db = splitter.loss_db.unwrap_or(budget.splitter_loss_db);
            (loss_db, splitter.gain_db.unwrap_or(budget.amplifier_gain_db))
        })
        .collect();
    let power = budget.plan_each(&cascade, &each)?;
    let leads_to: BTreeSet<u32> = splitters
        .iter()
        .flat_map(|splitter| &pool.ports.splitters()[*splitter as usize].outputs)
        .filter_map(|output| pool.there.get(output).copied())
        .collect();
    let mut uplinks = Vec::with_capacity(receiver_racks.len() + 1);
    for &rack in [source_rack].iter().chain(receiver_racks) {
        let source = lit.filter(|(_, splitter)| uplinks.is_empty() && splitters.first() == Some(splitter));
        let taken = pool.take_uplink(rack, |port| match source {
            Some((lit, _)) => port == lit,
            None => leads_to.contains(&port),
        });
        let Some(uplink) = taken else {
            // The same rack was named more often than it has fibres left.
            let held = CircuitSetup { connections: Vec::new(), splitters: Vec::new(), uplinks, power };
            pool.release(&held);
            return Err(SetupError::RackBusy { rack, ports: ports_of(pool, rack) });
        };
        uplinks.push(uplink);
    }
    pool.free_splitters.retain(|splitter| !splitters.contains(splitter));
    let connections = connect(pool, &cascade, &splitters, &uplinks);
    Ok(CircuitSetup { connections, splitters, uplinks, power })
}

fn connect(pool: &PortPool, cascade: &Cascade, splitters: &[u32], uplinks: &[(u32, u32)]) -> Vec<Connection> {
    let of = |stage: u32| &pool.ports.splitters()[splitters[stage as usize] as usize];
    let output = |(stage, output): (u32, u32)| of(stage).outputs[output as usize];
    let (source, receivers) = (pool.rack_port(&uplinks[0]), &uplinks[1..]);
    let mut connections = Vec::with_capacity(splitters.len() + receivers.len());
    for (stage, number) in cascade.stages.iter().zip(0..) {
        let from = stage.fed_by.map_or(source, output);
        connections.push(Connection { from, to: of(number).input });
    }
    let mut ends: Vec<u32> = receivers.iter().map(|receiver| pool.rack_port(receiver)).collect();
    if cascade.stages.is_empty() {
        connections.extend(ends.into_iter().map(|to| Connection { from: source, to }));
        return connections;
    }
    // All outputs that feed no splitter, the nearest to the source first.
    let feeding: BTreeSet<u32> = connections.iter().map(|connection| connection.from).collect();
    let outputs = (0..splitters.len() as u32).flat_map(|stage| of(stage).outputs.iter().copied());
    let mut leaves: Vec<u32> = outputs.filter(|output| !feeding.contains(output)).collect();
    leaves.retain(|leaf| {
        let again = pool.there.get(leaf).and_then(|to| ends.iter().position(|end| end == to));
        if let Some(at) = again {
            connections.push(Connection { from: *leaf, to: ends.remove(at) });
        }
        again.is_none()
    });
    connections.extend(leaves.into_iter().zip(ends).map(|(from, to)| Connection { from, to }));
    connections
}
