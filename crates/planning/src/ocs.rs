//! The fabric `ocs`: racks joined by an optical circuit switch and splitters (Blast, section III; Republic,
//! section II).
//!
//! A group holds one fibre of each of its racks, the splitters of its cascade, and a multicast address. The
//! circuit switch leads the source's light through the cascade; the switches of the racks copy between the
//! servers and the fibre. The path is the group's alone, so it has a rate.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use polycast_topology::Hybrid;
use polycast_topology::optics::{PowerBudget, racks_reachable, splitters_needed};
use polycast_types::{Duration, Rate};

use crate::circuits::{CircuitSetup, PortPool, Rejection, SetupError, setup};
use crate::fabric::{Fabric, Replan, replan_each};
use crate::fabric_name::FabricName;
use crate::ip_multicast::{AddressPool, address_of, resource};
use crate::network_state::NetworkState;
use crate::part_name::PartName;
use crate::places::{PlaceError, Places};
use crate::plan::{Channel, DeviceCommand, Failure, Group, HostId, Plan, RackPort, Refusal, Resource};
use crate::suspects::in_common;

/// What the fabric is made of.
#[derive(Clone, Copy, Debug)]
pub struct OcsConfig {
    /// The racks, fibres and splitters.
    pub hybrid: Hybrid,
    /// The most splitters of one group: k.
    pub cascade_max: u32,
    /// What the light may lose.
    pub budget: PowerBudget,
    /// Rate of a fibre.
    pub rate: Rate,
    /// Interval of attempt sending while circuits are being set up.
    pub attempt_interval: Duration,
}

/// The fabric.
#[derive(Clone, Debug)]
pub struct Ocs {
    config: OcsConfig,
    places: Places,
    pool: AddressPool,
}

impl Ocs {
    /// Its name.
    pub const NAME: FabricName = FabricName::new("ocs");

    /// The fabric, with the server of every host: rack by rack, `servers_per_rack` each.
    ///
    /// # Errors
    /// If a host is on a server that the racks do not have, or two are on the same.
    pub fn new(
        config: OcsConfig,
        hosts: impl IntoIterator<Item = (HostId, u32)>,
        pool: AddressPool,
    ) -> Result<Self, PlaceError> {
        let hybrid = config.hybrid;
        let places = Places::new(hybrid.racks.saturating_mul(hybrid.servers_per_rack), hosts)?;
        Ok(Ocs { config, places, pool })
    }

    /// What a port of the circuit switch belongs to: a fibre of a rack, or a splitter.
    fn resource_of(&self, port: u32) -> Option<Resource> {
        let hybrid = self.config.hybrid;
        let fibres = hybrid.racks * hybrid.ports_per_rack;
        if port < fibres {
            return Some(Resource::CircuitPort { port });
        }
        let splitter = (port - fibres) / (1 + hybrid.splitter_fanout);
        (splitter < hybrid.splitters).then_some(Resource::Splitter { splitter })
    }

    /// The hosts of the group by rack, and the source's rack.
    fn racks(&self, group: &Group) -> Result<(u32, BTreeMap<u32, Vec<HostId>>), Refusal> {
        let (source, receivers) = self.places.of_group(Self::NAME, group)?;
        let source_rack = source / self.config.hybrid.servers_per_rack;
        let mut racks: BTreeMap<u32, Vec<HostId>> = BTreeMap::new();
        for (host, server) in receivers {
            racks.entry(server / self.config.hybrid.servers_per_rack).or_default().push(host);
        }
        Ok((source_rack, racks))
    }

    /// Whether the group could have circuits if nothing else were held (constraints 1 and 2).
    fn check(&self, network: &NetworkState, racks: &BTreeSet<u32>) -> Result<(), Refusal> {
        let OcsConfig { hybrid, cascade_max, .. } = self.config;
        let count = racks.len() as u32;
        let refuse = |why: Rejection| Err(Refusal::Impossible(format!("for circuits {why}")));
        if count < 2 {
            return refuse(Rejection::OneRack { racks: count });
        }
        let reachable = racks_reachable(cascade_max, hybrid.splitter_fanout);
        if count > reachable {
            let fanout = hybrid.splitter_fanout;
            return refuse(Rejection::Cascade { racks: count, cascade_max, fanout, reachable });
        }
        let works = |splitter: &u32| !network.has_failed(&Resource::Splitter { splitter: *splitter });
        let splitters = (0..hybrid.splitters).filter(works).count() as u32;
        let needed = splitters_needed(count, hybrid.splitter_fanout);
        if needed > splitters {
            return refuse(Rejection::Splitters { needed, splitters });
        }
        let dark = |rack: &&u32| {
            let mut ports = (0..hybrid.ports_per_rack).map(|uplink| hybrid.rack_port(**rack, uplink));
            ports.all(|port| network.has_failed(&Resource::CircuitPort { port }))
        };
        match racks.iter().find(dark) {
            Some(rack) => Err(Refusal::Impossible(format!(
                "all {} fibres of rack {rack} to the circuit switch have failed",
                hybrid.ports_per_rack
            ))),
            None => Ok(()),
        }
    }

    fn commands(
        &self,
        group: &Group,
        address: [u8; 4],
        source_rack: u32,
        racks: &BTreeMap<u32, Vec<HostId>>,
        circuits: &CircuitSetup,
    ) -> Vec<DeviceCommand> {
        let cross = circuits.connections.iter();
        let mut commands: Vec<DeviceCommand> = cross
            .map(|connection| DeviceCommand::CrossConnect { from: connection.from, to: connection.to })
            .collect();
        for &(rack, uplink) in &circuits.uplinks {
            let fibre = RackPort::Circuit(uplink);
            let hosts = racks.get(&rack).into_iter().flatten().map(|&host| RackPort::Host(host));
            let (from, to) = if rack == source_rack {
                (RackPort::Host(group.source), hosts.chain([fibre]).collect())
            } else {
                (fibre, hosts.collect())
            };
            commands.push(DeviceCommand::RackRule { rack, group: address, from, to });
        }
        commands
    }

    /// The plan with this group address, or one that is free.
    fn plan_at(
        &self,
        network: &NetworkState,
        group: &Group,
        address: Option<([u8; 4], u16)>,
    ) -> Result<Plan, Refusal> {
        let (source_rack, racks) = self.racks(group)?;
        let members: BTreeSet<u32> = racks.keys().copied().chain([source_rack]).collect();
        self.check(network, &members)?;
        let hybrid = self.config.hybrid;
        let mut ports = PortPool::of_free(
            hybrid,
            &members,
            |port| network.is_free(&Resource::CircuitPort { port }),
            |splitter| network.is_free(&Resource::Splitter { splitter }),
        );
        ports.put_last(|resource| network.is_doubtful(resource));
        let others: Vec<u32> = racks.keys().copied().filter(|rack| *rack != source_rack).collect();
        let circuits =
            setup(&mut ports, source_rack, &others, &self.config.budget).map_err(|error| match error {
                SetupError::RackBusy { .. } | SetupError::SplittersBusy { .. } => {
                    Refusal::Busy(format!("{error}"))
                }
                SetupError::Power(_) | SetupError::RackRange { .. } => {
                    Refusal::Impossible(format!("{error}"))
                }
            })?;
        let address = match address {
            Some(address) => address,
            None => self.pool.lend(network)?,
        };
        let fibres = circuits.uplinks.iter().map(|&(rack, uplink)| hybrid.rack_port(rack, uplink));
        let mut resources = Vec::from([resource(address)]);
        resources.extend(fibres.map(|port| Resource::CircuitPort { port }));
        resources.extend(circuits.splitters.iter().map(|&splitter| Resource::Splitter { splitter }));
        Ok(Plan {
            fabric: Self::NAME,
            resources,
            uses: Vec::new(),
            commands: self.commands(group, address.0, source_rack, &racks, &circuits),
            channel: Channel::Multicast {
                group: address,
                rate: Some(self.config.rate),
                attempt_interval: self.config.attempt_interval,
            },
        })
    }
}

/// What may be why these hosts got nothing: their light is followed through the plan's circuits, from the source's fibre through
/// the splitters to the fibre of their rack. Splitters come first, then the source's fibre, then the rack's.
fn suspects(
    plan: &Plan,
    unreached: &BTreeSet<HostId>,
    resource_of: impl Fn(u32) -> Option<Resource>,
    rack_port: impl Fn(u32, u32) -> u32,
) -> Vec<Failure> {
    let mut feeds: BTreeMap<u32, u32> = BTreeMap::new();
    let mut into_splitter: BTreeMap<u32, u32> = BTreeMap::new();
    for command in &plan.commands {
        if let DeviceCommand::CrossConnect { from, to } = *command {
            feeds.insert(to, from);
            if let Some(Resource::Splitter { splitter }) = resource_of(to) {
                into_splitter.insert(splitter, to);
            }
        }
    }
    let way = |end: u32| {
        let (mut splitters, mut port) = (Vec::new(), end);
        // A cascade has fewer steps than there are circuits.
        for _ in 0..=plan.commands.len() {
            let Some(from) = feeds.get(&port).copied() else { break };
            match resource_of(from) {
                Some(Resource::Splitter { splitter }) => {
                    splitters.push(Failure::Resource(Resource::Splitter { splitter }));
                    let Some(input) = into_splitter.get(&splitter) else { break };
                    port = *input;
                }
                source => {
                    splitters.reverse();
                    splitters.extend(source.map(Failure::Resource));
                    break;
                }
            }
        }
        splitters.extend(resource_of(end).map(Failure::Resource));
        splitters
    };
    let (mut dark, mut lit) = (Vec::new(), Vec::new());
    for command in &plan.commands {
        let DeviceCommand::RackRule { rack, from: RackPort::Circuit(uplink), to, .. } = command else {
            continue;
        };
        let hosts = || {
            to.iter().filter_map(|port| match port {
                RackPort::Host(host) => Some(host),
                _ => None,
            })
        };
        let way = way(rack_port(*rack, *uplink));
        // A rack where one host has got something has light; what keeps the others from it is not the path's.
        if hosts().all(|host| unreached.contains(host)) { dark.push(way) } else { lit.push(way) }
    }
    in_common(&dark, &lit)
}

impl Fabric for Ocs {
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

    /// Racks that come need fibres, and splitters perhaps; those that stay may get other ones.
    fn regroup(&self, network: &NetworkState, old: &Plan, group: &Group) -> Result<Plan, Refusal> {
        self.plan_at(network, group, address_of(network, old))
    }

    /// A channel does not tell which fibres and splitters its circuits take.
    fn adopt(&self, _network: &NetworkState, _group: &Group, _channel: &Channel) -> Option<Plan> {
        None
    }

    /// Its circuits join only ports that it holds, its rules copy only what goes to its own address to members in their own
    /// racks, and it holds no more than such a group can need: fibres of its racks, and the splitters of one cascade.
    fn vouches(&self, group: &Group, plan: &Plan) -> bool {
        let Channel::Multicast { group: address, .. } = plan.channel else { return false };
        let Ok((source_rack, racks)) = self.racks(group) else { return false };
        let hybrid = self.config.hybrid;
        let rack_of = |host: &HostId| {
            let is_member = group.source == *host || group.receivers.contains(host);
            self.places.get(*host).filter(|_| is_member).map(|server| server / hybrid.servers_per_rack)
        };
        let in_group = |rack: u32| rack == source_rack || racks.contains_key(&rack);
        let holds = |port: u32| self.resource_of(port).is_some_and(|held| plan.resources.contains(&held));
        let sound = |command: &DeviceCommand| match command {
            DeviceCommand::CrossConnect { from, to } => holds(*from) && holds(*to),
            DeviceCommand::RackRule { rack, group, from, to } => {
                let is_ours = |port: &RackPort| match port {
                    RackPort::Host(host) => rack_of(host) == Some(*rack),
                    RackPort::Circuit(uplink) => {
                        *uplink < hybrid.ports_per_rack && holds(hybrid.rack_port(*rack, *uplink))
                    }
                    RackPort::Splitter => false,
                };
                in_group(*rack) && *group == address.0 && is_ours(from) && to.iter().all(is_ours)
            }
            _ => false,
        };
        let is_needed = |held: &Resource| match *held {
            Resource::MulticastAddress { .. } => *held == resource(address),
            Resource::CircuitPort { port } => port.checked_div(hybrid.ports_per_rack).is_some_and(in_group),
            Resource::Splitter { splitter } => splitter < hybrid.splitters,
            _ => false,
        };
        let splitters =
            plan.resources.iter().filter(|held| matches!(held, Resource::Splitter { .. })).count();
        plan.resources.contains(&resource(address))
            && plan.resources.iter().all(is_needed)
            && splitters <= self.config.cascade_max as usize
            && plan.uses.is_empty()
            && plan.commands.iter().all(sound)
    }

    fn suspects(&self, group: &Group, plan: &Plan, unreached: &BTreeSet<HostId>) -> Vec<Failure> {
        let _ = group;
        suspects(
            plan,
            unreached,
            |port| self.resource_of(port),
            |rack, uplink| self.config.hybrid.rack_port(rack, uplink),
        )
    }

    fn part(&self, name: PartName) -> Vec<Failure> {
        let hybrid = self.config.hybrid;
        let port = |port: u32| self.resource_of(port).map(Failure::Resource);
        match name {
            PartName::Port(number) => number.checked_sub(1).and_then(port).into_iter().collect(),
            PartName::Splitter(splitter) if splitter < hybrid.splitters => {
                Vec::from([Failure::Resource(Resource::Splitter { splitter })])
            }
            PartName::Tor(rack) if rack < hybrid.racks => {
                (0..hybrid.ports_per_rack).filter_map(|uplink| port(hybrid.rack_port(rack, uplink))).collect()
            }
            PartName::CircuitSwitch => {
                let fibres =
                    (0..hybrid.racks * hybrid.ports_per_rack).map(|port| Resource::CircuitPort { port });
                let splitters = (0..hybrid.splitters).map(|splitter| Resource::Splitter { splitter });
                fibres.chain(splitters).map(Failure::Resource).collect()
            }
            PartName::Splitter(_) | PartName::Tor(_) => Vec::new(),
        }
    }

    fn part_names(&self) -> Vec<String> {
        let hybrid = self.config.hybrid;
        Vec::from([
            format!("port:1 to port:{}", hybrid.ports_needed()),
            format!("splitter:0 to splitter:{}", hybrid.splitters.saturating_sub(1)),
            format!("tor:0 to tor:{}", hybrid.racks.saturating_sub(1)),
            String::from("ocs"),
        ])
    }

    fn resources_of(&self, command: &DeviceCommand) -> Vec<Resource> {
        match *command {
            DeviceCommand::CrossConnect { from, to } => {
                [from, to].into_iter().filter_map(|port| self.resource_of(port)).collect()
            }
            _ => Vec::new(),
        }
    }
}
