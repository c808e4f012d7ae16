//! The fabric `shufflecast`: racks joined by passive splitters, with racks that relay (Shufflecast, section III).
//!
//! The relays' rules are there all the time ([`Fabric::standing_commands`]); for a group only the switches of its
//! racks learn which servers want its packets. A plan holds a share of the partitions that relay for its source:
//! plans in different partitions do not touch each other, plans that share one have a part of its rate each.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use polycast_topology::Shufflecast as Network;
use polycast_types::{Duration, Rate};

use crate::fabric::{Fabric, Replan, replan_each};
use crate::fabric_name::FabricName;
use crate::ip_multicast::{AddressPool, address_of, resource};
use crate::network_state::NetworkState;
use crate::part_name::PartName;
use crate::places::{PlaceError, Places};
use crate::plan::{Channel, DeviceCommand, Failure, Group, HostId, Part, Plan, RackPort, Refusal, Resource};
use crate::relays::{self, Recovery, StaticRules, UNREACHED};
use crate::suspects::in_common;

/// What the fabric is made of.
#[derive(Clone, Copy, Debug)]
pub struct ShufflecastConfig {
    /// The racks and splitters.
    pub network: Network,
    /// The servers of a rack.
    pub servers_per_rack: u32,
    /// Rate of a splitter.
    pub rate: Rate,
    /// How many plans may relay through a partition at a time; each has its part of the rate. At least 1.
    pub shares: u32,
    /// Interval of attempt sending.
    pub attempt_interval: Duration,
}

/// The fabric.
#[derive(Clone, Debug)]
pub struct Shufflecast {
    config: ShufflecastConfig,
    places: Places,
    pool: AddressPool,
}

impl Shufflecast {
    /// Its name.
    pub const NAME: FabricName = FabricName::new("shufflecast");

    /// The fabric, with the server of every host: rack by rack, `servers_per_rack` each.
    ///
    /// # Errors
    /// If a host is on a server that the racks do not have, or two are on the same.
    pub fn new(
        config: ShufflecastConfig,
        hosts: impl IntoIterator<Item = (HostId, u32)>,
        pool: AddressPool,
    ) -> Result<Self, PlaceError> {
        let config = ShufflecastConfig { shares: config.shares.max(1), ..config };
        let places = Places::new(config.network.tors().saturating_mul(config.servers_per_rack), hosts)?;
        Ok(Shufflecast { config, places, pool })
    }

    /// The rack that stands for a node in failures.
    #[must_use]
    pub fn part(rack: u32) -> Part {
        Part::Node { fabric: Self::NAME, node: rack }
    }

    fn failed(&self, network: &NetworkState) -> BTreeSet<u32> {
        let nodes = network.failed_parts(Self::NAME).filter_map(|part| match part {
            Part::Node { node, .. } => Some(node),
            Part::Link { .. } => None,
        });
        nodes.filter(|&node| node < self.config.network.tors()).collect()
    }

    fn plan_at(
        &self,
        network: &NetworkState,
        group: &Group,
        address: Option<([u8; 4], u16)>,
    ) -> Result<Plan, Refusal> {
        let (source, receivers) = self.places.of_group(Self::NAME, group)?;
        let source_rack = source / self.config.servers_per_rack;
        let mut racks: BTreeMap<u32, Vec<HostId>> = BTreeMap::new();
        for (host, server) in receivers {
            racks.entry(server / self.config.servers_per_rack).or_default().push(host);
        }
        let leaves_rack = racks.keys().any(|&rack| rack != source_rack);
        let relays = if leaves_rack { self.relays(network, source_rack, racks.keys())? } else { Vec::new() };
        let mut resources = self.shares(network, &relays)?;
        let address = match address {
            Some(address) => address,
            None => self.pool.lend(network)?,
        };
        resources.insert(0, resource(address));
        let (rate, shares) = (self.config.rate, u64::from(self.config.shares));
        Ok(Plan {
            fabric: Self::NAME,
            resources,
            uses: relays.into_iter().map(Self::part).collect(),
            commands: rules(group, address.0, source_rack, racks, leaves_rack),
            channel: Channel::Multicast {
                group: address,
                rate: Some(Rate(rate.0 / shares)),
                attempt_interval: self.config.attempt_interval,
            },
        })
    }

    /// The relays of a source's rack in rising order, if they reach these racks.
    fn relays<'a>(
        &self,
        network: &NetworkState,
        source: u32,
        racks: impl Iterator<Item = &'a u32>,
    ) -> Result<Vec<u32>, Refusal> {
        let failed = self.failed(network);
        if failed.contains(&source) {
            return Err(Refusal::Impossible(format!(
                "rack {source} has failed: its servers' packets have no way into its splitter"
            )));
        }
        let recovery = relays::recover_source(&self.config.network, &failed, source);
        let hops = recovery.reach(&self.config.network, source).hops;
        let unreached: Vec<u32> = racks.copied().filter(|&rack| hops[rack as usize] == UNREACHED).collect();
        if !unreached.is_empty() {
            return Err(Refusal::Impossible(format!(
                "with {} failed relays nothing relays from rack {source} to the racks {unreached:?}",
                failed.len()
            )));
        }
        Ok(recovery.relay_set(&self.config.network, source))
    }

    /// A free share of every partition that these relays are in.
    fn shares(&self, network: &NetworkState, relays: &[u32]) -> Result<Vec<Resource>, Refusal> {
        let topology = &self.config.network;
        let partitions: BTreeSet<(u32, u32)> =
            relays.iter().map(|&tor| (topology.column(tor), topology.partition(tor))).collect();
        let share_of = |(column, partition)| {
            let mut shares =
                (0..self.config.shares).map(|share| Resource::RelayPartition { column, partition, share });
            shares.find(|share| network.is_free(share)).ok_or_else(|| {
                let all = if self.config.shares == 1 { "" } else { " in all its shares" };
                Refusal::Busy(format!("partition {partition} of column {column} relays for others{all}"))
            })
        };
        partitions.into_iter().map(share_of).collect()
    }
}

/// What the switches of the group's racks have to know.
fn rules(
    group: &Group,
    address: [u8; 4],
    source_rack: u32,
    mut racks: BTreeMap<u32, Vec<HostId>>,
    leaves_rack: bool,
) -> Vec<DeviceCommand> {
    let hosts = |list: Vec<HostId>| list.into_iter().map(RackPort::Host);
    let mut to: Vec<RackPort> = hosts(racks.remove(&source_rack).unwrap_or_default()).collect();
    to.extend(leaves_rack.then_some(RackPort::Splitter));
    let from = RackPort::Host(group.source);
    let mut commands = Vec::from([DeviceCommand::RackRule { rack: source_rack, group: address, from, to }]);
    commands.extend(racks.into_iter().map(|(rack, list)| {
        let (from, to) = (RackPort::Splitter, hosts(list).collect());
        DeviceCommand::RackRule { rack, group: address, from, to }
    }));
    commands
}

impl Fabric for Shufflecast {
    fn name(&self) -> FabricName {
        Self::NAME
    }

    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        self.plan_at(network, group, None)
    }

    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        replan_each(Self::NAME, network, failure, |network, old| {
            // A transfer that runs keeps its address where it can, so that its source and receivers notice nothing.
            self.plan_at(network, &old.group, address_of(network, &old.plan))
        })
    }

    /// The partitions follow from the source alone, so that the address is all that has to be known.
    fn adopt(&self, network: &NetworkState, group: &Group, channel: &Channel) -> Option<Plan> {
        let Channel::Multicast { group: address, .. } = channel else { return None };
        let plan = self.plan_at(network, group, Some(*address)).ok()?;
        Some(Plan { channel: channel.clone(), ..plan })
    }

    /// The ways lead over relays, and before them the source's own splitter.
    fn suspects(&self, group: &Group, plan: &Plan, unreached: &BTreeSet<HostId>) -> Vec<Failure> {
        let Ok((source, receivers)) = self.places.of_group(Self::NAME, group) else { return Vec::new() };
        let network = &self.config.network;
        let source = source / self.config.servers_per_rack;
        let relays = |rack: u32| rack == source || plan.uses.binary_search(&Self::part(rack)).is_ok();
        let mut parents: BTreeMap<u32, u32> = BTreeMap::new();
        let mut queue = Vec::from([source]);
        let mut head = 0;
        while let Some(&rack) = queue.get(head) {
            head += 1;
            for child in network.children(rack).filter(|_| relays(rack)) {
                if child != source && !parents.contains_key(&child) {
                    parents.insert(child, rack);
                    queue.push(child);
                }
            }
        }
        let way = |rack: u32| {
            let steps = core::iter::successors(parents.get(&rack), |rack| parents.get(rack));
            steps.map(|relay| Failure::Part(Self::part(*relay))).collect::<Vec<Failure>>()
        };
        let mut racks: BTreeMap<u32, bool> = BTreeMap::new();
        for (host, server) in receivers {
            *racks.entry(server / self.config.servers_per_rack).or_insert(true) &= unreached.contains(&host);
        }
        racks.remove(&source);
        let ways = |dark: bool| {
            racks
                .iter()
                .filter(|(_, is_dark)| **is_dark == dark)
                .map(|(rack, _)| way(*rack))
                .collect::<Vec<_>>()
        };
        in_common(&ways(true), &ways(false))
    }

    /// A rack's switch and its splitter are one: without either it relays no more.
    fn part(&self, name: PartName) -> Vec<Failure> {
        match name {
            PartName::Tor(rack) | PartName::Splitter(rack) if rack < self.config.network.tors() => {
                Vec::from([Failure::Part(Self::part(rack))])
            }
            _ => Vec::new(),
        }
    }

    fn part_names(&self) -> Vec<String> {
        let last = self.config.network.tors().saturating_sub(1);
        Vec::from([format!("tor:0 to tor:{last}"), format!("splitter:0 to splitter:{last}")])
    }

    /// The rules of all relays: the static ones, and what recovery changes in them after failures.
    fn standing_commands(&self, network: &NetworkState) -> Vec<DeviceCommand> {
        let topology = &self.config.network;
        let statics = StaticRules::new(topology);
        let failed = self.failed(network);
        let recovery =
            if failed.is_empty() { Recovery::default() } else { relays::recover(topology, &failed) };
        let mut rules: BTreeSet<(u32, u32)> = (0..topology.tors())
            .flat_map(|rack| statics.sources(rack).iter().map(move |&source| (rack, source)))
            .collect();
        recovery.deactivated.iter().for_each(|rule| {
            rules.remove(rule);
        });
        rules.extend(recovery.activated.iter().filter(|(relay, _)| !failed.contains(relay)));
        rules.into_iter().map(|(rack, source)| DeviceCommand::RelayRule { rack, source }).collect()
    }
}
