//! The fabric `shufflecast`: racks joined by passive splitters, with racks that relay (Shufflecast, section
//! III).
//!
//! The relays' rules are there all the time ([`Fabric::standing_commands`]); for a group only the switches of
//! its racks learn which servers ask for its packets. A plan holds a share of the partitions that relay for
//! its source: plans in different partitions do not touch each other, plans that share one have a part of its
//! rate each. A stream of messages holds no share: it takes of its relays' rate what transfers leave, and its
//! channel has no rate by which it is known again.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use polycast_topology::{Shufflecast as Network, Wiring};
use polycast_types::{Duration, Rate};

use crate::fabric::{Fabric, Replan, replan_each};
use crate::fabric_name::FabricName;
use crate::ip_multicast::{AddressPool, address_of, resource};
use crate::network_state::NetworkState;
use crate::part::Part;
use crate::part_name::PartName;
use crate::places::{PlaceError, Places};
use crate::plan::{Channel, DeviceCommand, Failure, Group, HostId, Plan, RackPort, Refusal, Resource};
use crate::relays::{self, Entry, Recovery, StaticRules};
use crate::suspects::in_common;

/// The most shares of a partition.
pub const SHARES_MAX: u32 = 4_096;

/// Configuration of the fabric.
#[derive(Clone, Copy, Debug)]
pub struct ShufflecastConfig {
    /// The racks and splitters. Where there are fewer racks than logical ToRs, some racks stand for several.
    pub network: Wiring,
    /// The servers of a rack.
    pub servers_per_rack: u32,
    /// Rate of a splitter.
    pub rate: Rate,
    /// Number of plans that may relay through a partition at a time; each has its part of the rate. 1 to
    /// [`SHARES_MAX`].
    pub shares: u32,
    /// Interval of attempt sending.
    pub attempt_interval: Duration,
}

/// Purpose of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Transfer,
    Stream,
}

impl Kind {
    /// A transfer's channel has a rate that is its own.
    fn of(channel: &Channel) -> Self {
        match channel {
            Channel::Multicast { rate: None, .. } => Kind::Stream,
            _ => Kind::Transfer,
        }
    }
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
    pub const NAME: FabricName = FabricName::SHUFFLECAST;

    /// The fabric, with the server of every host: rack by rack, `servers_per_rack` each.
    ///
    /// # Errors
    /// If a host is on a server that the racks do not have, or two are on the same.
    pub fn new(
        config: ShufflecastConfig,
        hosts: impl IntoIterator<Item = (HostId, u32)>,
        pool: AddressPool,
    ) -> Result<Self, PlaceError> {
        let config = ShufflecastConfig { shares: config.shares.clamp(1, SHARES_MAX), ..config };
        let places = Places::new(config.network.tors().saturating_mul(config.servers_per_rack), hosts)?;
        Ok(Shufflecast { config, places, pool })
    }

    /// A splitter, and the rack's way into it, as a part that can fail. A rack that stands for itself alone
    /// has the number of its splitter.
    #[must_use]
    pub fn part(splitter: u32) -> Part {
        Part::Node { fabric: Self::NAME, node: splitter }
    }

    fn logical(&self) -> Network {
        self.config.network.logical()
    }

    /// The logical ToR that a rack is as a source: the first one whose splitter works.
    fn home(&self, rack: u32, failed: &BTreeSet<u32>) -> Option<u32> {
        self.config.network.logical_of(rack).into_iter().find(|splitter| !failed.contains(splitter))
    }

    fn failed(&self, network: &NetworkState) -> BTreeSet<u32> {
        let nodes = network.failed_parts(Self::NAME).filter_map(|part| match part {
            Part::Node { node, .. } => Some(node),
            Part::Link { .. } => None,
        });
        nodes.filter(|&node| node < self.logical().tors()).collect()
    }

    fn plan_at(
        &self,
        network: &NetworkState,
        group: &Group,
        address: Option<(IpAddr, u16)>,
        kind: Kind,
    ) -> Result<Plan, Refusal> {
        let (sources, receivers) = self.places.of_sources(Self::NAME, group)?;
        let mut racks: BTreeMap<u32, Vec<HostId>> = BTreeMap::new();
        for (host, server) in receivers {
            racks.entry(server / self.config.servers_per_rack).or_default().push(host);
        }
        let (mut relays, mut ways): (BTreeSet<u32>, Vec<Entering>) = (BTreeSet::new(), Vec::new());
        for (host, server) in sources {
            let rack = server / self.config.servers_per_rack;
            let leaves_rack = racks.keys().any(|&other| other != rack);
            let own = if leaves_rack { self.relays(network, rack, racks.keys())? } else { Vec::new() };
            ways.push(Entering { host, rack, splitters: self.own_splitters(rack, &own) });
            relays.extend(own);
        }
        let relays: Vec<u32> = relays.into_iter().collect();
        let mut resources = match kind {
            Kind::Transfer => self.shares(network, &relays)?,
            Kind::Stream => Vec::new(),
        };
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
            commands: rules(address.0, &ways, &racks).into(),
            channel: Channel::Multicast {
                group: address,
                rate: (kind == Kind::Transfer).then_some(Rate(rate.0 / shares)),
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
        let (failed, topology) = (self.failed(network), self.logical());
        let Some(home) = self.home(source, &failed) else {
            return Err(Refusal::Impossible(format!(
                "rack {source} has failed: its servers' packets have no way into its splitter"
            )));
        };
        let recovery = relays::recover_source(&topology, &failed, home);
        let is_relay = |splitter| recovery.is_relay(&topology, splitter, home);
        let entries = relays::entries(&self.config.network, source, &failed, is_relay);
        let is_unreached = |rack: &&u32| **rack != source && entries[**rack as usize].is_none();
        let unreached: Vec<u32> = racks.filter(is_unreached).copied().collect();
        if !unreached.is_empty() {
            return Err(Refusal::Impossible(format!(
                "with {} failed relays nothing relays from rack {source} to the racks {unreached:?}",
                failed.len()
            )));
        }
        Ok(recovery.relay_set(&topology, home))
    }

    /// Returns those of a rack's splitters that are among these.
    fn own_splitters(&self, rack: u32, relays: &[u32]) -> Vec<u32> {
        let wiring = &self.config.network;
        let own = relays.iter().filter(|relay| wiring.physical(**relay) == rack);
        own.map(|relay| wiring.nth(*relay)).collect()
    }

    /// The rules where some racks stand for several logical ToRs.
    fn wired_rules(&self, failed: &BTreeSet<u32>, recovery: &Recovery) -> Vec<DeviceCommand> {
        let (wiring, topology) = (&self.config.network, self.logical());
        let mut commands = Vec::new();
        for source in 0..wiring.tors() {
            let Some(home) = self.home(source, failed) else { continue };
            let is_relay = |splitter: u32| recovery.is_relay(&topology, splitter, home);
            let entries = relays::entries(wiring, source, failed, is_relay);
            let rules = (0..).zip(&entries).filter_map(|(rack, entry): (u32, &Option<Entry>)| {
                let entry = (*entry)?;
                let splitters = wiring.logical_of(rack);
                let several = splitters.len() > 1;
                let to: Vec<u32> = splitters
                    .into_iter()
                    .filter(|relay| is_relay(*relay))
                    .map(|relay| wiring.nth(relay))
                    .collect();
                // One that has one splitter gets one copy, and takes it wherever it comes in.
                let from = several.then_some(entry.fibre);
                (several || !to.is_empty()).then_some(DeviceCommand::RelayRule { rack, source, from, to })
            });
            commands.extend(rules);
        }
        commands
    }

    /// A free share of every partition that these relays are in.
    fn shares(&self, network: &NetworkState, relays: &[u32]) -> Result<Vec<Resource>, Refusal> {
        let topology = self.logical();
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

/// A source of a group, and the splitters of its rack that its packets go into.
struct Entering {
    host: HostId,
    rack: u32,
    splitters: Vec<u32>,
}

/// Makes the rules for the switches of the group's racks. A rack's switch copies to the same members wherever
/// packets come in; what its own hosts have sent and comes back by a splitter it drops.
fn rules(address: IpAddr, sources: &[Entering], racks: &BTreeMap<u32, Vec<HostId>>) -> Vec<DeviceCommand> {
    let hosts = |rack: u32| racks.get(&rack).into_iter().flatten().map(|&host| RackPort::Host(host));
    let mut commands: Vec<DeviceCommand> = sources
        .iter()
        .map(|Entering { host, rack, splitters }| {
            let out = splitters.iter().map(|&splitter| RackPort::Splitter(splitter));
            let (from, to) = (RackPort::Host(*host), hosts(*rack).chain(out).collect());
            DeviceCommand::RackRule { rack: *rack, group: address, from, to }
        })
        .collect();
    let is_fed = |rack: &&u32| sources.iter().any(|source| source.rack != **rack);
    commands.extend(racks.keys().filter(is_fed).map(|&rack| {
        let (from, to) = (RackPort::FromSplitters, hosts(rack).collect());
        DeviceCommand::RackRule { rack, group: address, from, to }
    }));
    commands
}

impl Fabric for Shufflecast {
    fn name(&self) -> FabricName {
        Self::NAME
    }

    /// Rules go by addresses alone.
    fn carries_any_packets(&self) -> bool {
        true
    }

    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        self.plan_at(network, group, None, Kind::Transfer)
    }

    fn plan_stream(&self, network: &NetworkState, group: &Group) -> Option<Result<Plan, Refusal>> {
        Some(self.plan_at(network, group, None, Kind::Stream))
    }

    fn free(&self, network: &NetworkState) -> Vec<(String, u64)> {
        let topology = self.logical();
        let partitions: BTreeSet<(u32, u32)> =
            (0..topology.tors()).map(|tor| (topology.column(tor), topology.partition(tor))).collect();
        let shares_of = |(column, partition): (u32, u32)| {
            let share = |share| Resource::RelayPartition { column, partition, share };
            let free = (0..self.config.shares).filter(|number| network.is_free(&share(*number))).count();
            (share(0).kind(), free as u64)
        };
        core::iter::once(self.pool.free(network)).chain(partitions.into_iter().map(shares_of)).collect()
    }

    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        replan_each(Self::NAME, network, failure, |network, old| {
            // A transfer that runs keeps its address where it can, so that its source and receivers notice
            // nothing.
            let kind = Kind::of(&old.plan.channel);
            self.plan_at(network, &old.group, address_of(network, &old.plan), kind)
        })
    }

    /// The partitions follow from the source alone, so that the address is all that has to be known.
    fn adopt(&self, network: &NetworkState, group: &Group, channel: &Channel) -> Option<Plan> {
        let Channel::Multicast { group: address, .. } = channel else { return None };
        let plan = self.plan_at(network, group, Some(*address), Kind::of(channel)).ok()?;
        Some(Plan { channel: channel.clone(), ..plan })
    }

    /// The ways lead over relays, and before them the source's own splitter.
    fn suspects(
        &self,
        network: &NetworkState,
        group: &Group,
        plan: &Plan,
        unreached: &BTreeSet<HostId>,
    ) -> Vec<Failure> {
        let Ok((source, receivers)) = self.places.of_group(Self::NAME, group) else { return Vec::new() };
        let wiring = &self.config.network;
        let source = source / self.config.servers_per_rack;
        let entries = relays::entries(wiring, source, &self.failed(network), |splitter| {
            plan.uses.contains(&Self::part(splitter))
        });
        let way = |rack: u32| {
            let splitters = relays::way(wiring, &entries, rack);
            splitters.into_iter().map(|relay| Failure::Part(Self::part(relay))).collect::<Vec<Failure>>()
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

    /// A splitter and the rack's way into it are one, and a rack relays no more without its switch.
    fn part(&self, name: PartName) -> Vec<Failure> {
        let failure = |splitter| Failure::Part(Self::part(splitter));
        match name {
            PartName::Tor(rack) if rack < self.config.network.tors() => {
                self.config.network.logical_of(rack).into_iter().map(failure).collect()
            }
            PartName::Splitter(splitter) if splitter < self.logical().tors() => {
                Vec::from([failure(splitter)])
            }
            _ => Vec::new(),
        }
    }

    fn part_names(&self) -> Vec<String> {
        let last = |count: u32| count.saturating_sub(1);
        let (tors, splitters) = (last(self.config.network.tors()), last(self.logical().tors()));
        Vec::from([format!("tor:0 to tor:{tors}"), format!("splitter:0 to splitter:{splitters}")])
    }

    /// The rules of all relays: the static ones, and what recovery changes in them after failures.
    fn standing_commands(&self, network: &NetworkState) -> Vec<DeviceCommand> {
        let topology = &self.logical();
        let failed = self.failed(network);
        let recovery =
            if failed.is_empty() { Recovery::default() } else { relays::recover(topology, &failed) };
        if !self.config.network.is_whole() {
            return self.wired_rules(&failed, &recovery);
        }
        let statics = StaticRules::new(topology);
        let mut rules: BTreeSet<(u32, u32)> = (0..topology.tors())
            .flat_map(|rack| statics.sources(rack).iter().map(move |&source| (rack, source)))
            .collect();
        recovery.deactivated.iter().for_each(|rule| {
            rules.remove(rule);
        });
        rules.extend(recovery.activated.iter().filter(|(relay, _)| !failed.contains(relay)));
        let rule = |(rack, source)| DeviceCommand::RelayRule { rack, source, from: None, to: Vec::from([0]) };
        rules.into_iter().map(rule).collect()
    }
}
