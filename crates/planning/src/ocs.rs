//! The fabric `ocs`: racks joined by an optical circuit switch and splitters (Blast, section III; Republic,
//! section II).
//!
//! A group holds one fibre of each of its racks, the splitters of its cascade, and a multicast address. The
//! circuit switch leads the source's light through the cascade; the switches of the racks copy between the
//! servers and the fibre. The path is the group's alone, so it has a rate. Where one cascade is too short or
//! too dark, the source's rack feeds several, each by a fibre of its own. Where sources are in several racks,
//! each of these has cascades of its own, and others have a fibre for each of them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use polycast_topology::optics::{PowerBudget, racks_reachable, splitters_needed};
use polycast_topology::{Hybrid, PortOwner, PortTable};
use polycast_types::{Duration, Rate};

use crate::circuits::{CircuitSetup, Claim, Means, PortPool, Room, SetupError, setup};
use crate::fabric::{Fabric, Replan, replan_each};
use crate::fabric_name::FabricName;
use crate::ip_multicast::{AddressPool, address_of, resource};
use crate::network_state::NetworkState;
use crate::part_name::PartName;
use crate::places::{PlaceError, Places, Servers};
use crate::plan::{Channel, DeviceCommand, Failure, Group, HostId, Plan, RackPort, Refusal, Resource};
use crate::shared::Uses;
use crate::suspects::in_common;

/// Configuration of the fabric.
#[derive(Clone, Copy, Debug)]
pub struct OcsConfig {
    /// The racks, fibres and splitters.
    pub hybrid: Hybrid,
    /// The most splitters of one group: k.
    pub cascade_max: u32,
    /// Loss that the light may have.
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
    /// Owners of the circuit switch's ports.
    ports: Arc<PortTable>,
    places: Places,
    pool: AddressPool,
}

/// Hosts by rack.
type Racks = BTreeMap<u32, Vec<HostId>>;

/// The kind of a rack's fibres.
fn fibres_of(rack: u32) -> String {
    format!("fibres of rack {rack}")
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
        Ok(Ocs { config, ports: Arc::new(PortTable::of(&hybrid)), places, pool })
    }

    /// The same where racks and splitters are at these ports of the circuit switch, and not in the program's
    /// own order.
    #[must_use]
    pub fn with_ports(self, ports: PortTable) -> Self {
        Ocs { ports: Arc::new(ports), ..self }
    }

    /// Returns the resource that a port of the circuit switch belongs to: a fibre of a rack, or a splitter.
    fn resource_of(&self, port: u32) -> Option<Resource> {
        Some(match self.ports.owner(port)? {
            PortOwner::Rack(_) => Resource::CircuitPort { port },
            PortOwner::Splitter(splitter) => Resource::Splitter { splitter },
        })
    }

    /// The fewest cascades that could reach so many receivers' racks.
    fn cascades_for(&self, receivers: u32) -> u32 {
        let reached = racks_reachable(self.config.cascade_max, self.config.hybrid.splitter_fanout) - 1;
        receivers.div_ceil(reached).max(1)
    }

    /// The sources and the receivers of the group by rack.
    fn racks(&self, group: &Group) -> Result<(Racks, Racks), Refusal> {
        let (sources, receivers) = self.places.of_sources(Self::NAME, group)?;
        let by_rack = |hosts: Servers| {
            let mut racks = Racks::new();
            for (host, server) in hosts {
                racks.entry(server / self.config.hybrid.servers_per_rack).or_default().push(host);
            }
            racks
        };
        Ok((by_rack(sources), by_rack(receivers)))
    }

    /// Checks whether the group could have circuits if nothing else were held (constraints 1 and 2).
    fn check(&self, network: &NetworkState, source_rack: u32, racks: &BTreeSet<u32>) -> Result<(), Refusal> {
        let works = |splitter: &u32| !network.has_failed(&Resource::Splitter { splitter: *splitter });
        let table = self.ports.splitters();
        let working: Vec<u32> = (0..table.len() as u32).filter(works).collect();
        let means = Means {
            splitters: working.iter().map(|splitter| table[*splitter as usize].fanout()).collect(),
            fanout: self.config.hybrid.splitter_fanout,
            cascade_max: self.config.cascade_max,
            fibres: self.ports.of_rack(source_rack).len() as u32,
        };
        if let Some(why) = means.rejection(racks.len() as u32, working.len() as u32, true) {
            return Err(Refusal::Impossible(format!("for circuits {why}")));
        }
        let dark = |rack: &&u32| {
            let mut ports = self.ports.of_rack(**rack).iter();
            ports.all(|port| network.has_failed(&Resource::CircuitPort { port: *port }))
        };
        match racks.iter().find(dark) {
            Some(rack) => Err(Refusal::Impossible(format!(
                "all {} fibres of rack {rack} to the circuit switch have failed",
                self.ports.of_rack(*rack).len()
            ))),
            None => Ok(()),
        }
    }

    /// The same of a group, whose sources' racks each need circuits of their own: a rack gives a fibre to
    /// each of those that send to it, and as many as reach the others to its own sources.
    fn check_sources(&self, network: &NetworkState, sources: &Racks, racks: &Racks) -> Result<(), Refusal> {
        for &source in sources.keys() {
            self.check(network, source, &racks.keys().copied().chain([source]).collect())?;
        }
        if sources.len() == 1 {
            return Ok(());
        }
        let needed = self.fibres(sources, racks);
        let has = |rack: u32| self.ports.of_rack(rack).len() as u32;
        match needed.into_iter().find(|(rack, count)| *count > has(*rack)) {
            Some((rack, count)) => Err(Refusal::Impossible(format!(
                "for circuits from {} racks with sources rack {rack} needs {count} fibres to the circuit switch and has {}",
                sources.len(),
                has(rack)
            ))),
            None => Ok(()),
        }
    }

    /// The fewest fibres of each rack that the circuits of a group can do with.
    fn fibres(&self, sources: &Racks, racks: &Racks) -> BTreeMap<u32, u32> {
        let mut fibres: BTreeMap<u32, u32> = BTreeMap::new();
        for source in sources.keys() {
            let others: Vec<u32> = racks.keys().copied().filter(|rack| rack != source).collect();
            // A group within its only source's rack counts as one that has a fibre.
            if !others.is_empty() || sources.len() == 1 {
                *fibres.entry(*source).or_default() += self.cascades_for(others.len() as u32);
            }
            others.into_iter().for_each(|rack| *fibres.entry(rack).or_default() += 1);
        }
        fibres
    }

    /// Circuits to all these racks, from as few fibres of the source's rack as reach them, taken out of the
    /// pool.
    fn circuits(
        &self,
        free: &mut PortPool,
        source_rack: u32,
        others: &[u32],
    ) -> Result<Vec<CircuitSetup>, SetupError> {
        let fibres = (self.ports.of_rack(source_rack).len() as u32).min(others.len() as u32).max(1);
        let mut refusal = None;
        for cascades in self.cascades_for(others.len() as u32)..=fibres {
            let mut pool = free.clone();
            let size = others.len().div_ceil(cascades as usize).max(1);
            let one = |racks: &[u32]| setup(&mut pool, source_rack, racks, &self.config.budget);
            match others.chunks(size).map(one).collect::<Result<Vec<_>, _>>() {
                Ok(setups) => {
                    let longest = setups.iter().map(|setup| setup.splitters.len()).max();
                    // Small splitters make long cascades; the next try has shorter ones.
                    if longest <= Some(self.config.cascade_max as usize) || cascades == fibres {
                        *free = pool;
                        return Ok(setups);
                    }
                }
                // More light for each, or none at all.
                Err(dark @ SetupError::Power(_)) => refusal = refusal.or(Some(dark)),
                Err(busy) => return Err(refusal.unwrap_or(busy)),
            }
        }
        Err(refusal.unwrap_or(SetupError::RackBusy { rack: source_rack, ports: fibres }))
    }

    /// The circuits that devices hold for no plan, and those of a plan that is to be replaced.
    fn standing_circuits(&self, network: &NetworkState, old: Option<&Plan>) -> BTreeMap<u32, u32> {
        let kept = network.kept().map(|running| &running.plan);
        let ours = kept.chain(old).filter(|plan| plan.fabric == Self::NAME);
        ours.flat_map(|plan| plan.commands.iter())
            .filter_map(|command| match *command {
                DeviceCommand::CrossConnect { from, to } => Some((from, to)),
                _ => None,
            })
            .collect()
    }

    fn commands(
        address: IpAddr,
        (sources, racks): (&Racks, &Racks),
        circuits: &BTreeMap<u32, Vec<CircuitSetup>>,
    ) -> Vec<DeviceCommand> {
        let cross = circuits.values().flatten().flat_map(|circuits| &circuits.connections);
        let mut commands: Vec<DeviceCommand> = cross
            .map(|connection| DeviceCommand::CrossConnect { from: connection.from, to: connection.to })
            .collect();
        let hosts = |rack| racks.get(&rack).into_iter().flatten().map(|&host| RackPort::Host(host));
        let rule = |rack, from, to| DeviceCommand::RackRule { rack, group: address, from, to };
        for (&source_rack, circuits) in circuits {
            let uplinks = circuits.iter().flat_map(|circuits| &circuits.uplinks);
            let (lit, fed): (Vec<_>, Vec<_>) = uplinks.copied().partition(|(rack, _)| *rack == source_rack);
            commands.extend(sources[&source_rack].iter().map(|&source| {
                let fibres = lit.iter().map(|&(_, uplink)| RackPort::Circuit(uplink));
                rule(source_rack, RackPort::Host(source), hosts(source_rack).chain(fibres).collect())
            }));
            let copies = |(rack, uplink)| rule(rack, RackPort::Circuit(uplink), hosts(rack).collect());
            commands.extend(fed.into_iter().map(copies));
        }
        commands
    }

    /// The plan with this group address, or one that is free.
    fn plan_at(&self, network: &NetworkState, group: &Group, old: Option<&Plan>) -> Result<Plan, Refusal> {
        let (sources, racks) = self.racks(group)?;
        let members: BTreeSet<u32> = racks.keys().chain(sources.keys()).copied().collect();
        self.check_sources(network, &sources, &racks)?;
        let ports = PortPool::of_free(
            Arc::clone(&self.ports),
            &members,
            |port| network.is_free(&Resource::CircuitPort { port }),
            |splitter| network.is_free(&Resource::Splitter { splitter }),
        );
        let mut ports = ports.with_circuits(self.standing_circuits(network, old));
        ports.put_last(|resource| network.is_doubtful(resource));
        let refusal = |error| match error {
            SetupError::RackBusy { .. } | SetupError::SplittersBusy { .. } => {
                Refusal::Busy(network.circuits_wait_for().map_or_else(|| format!("{error}"), String::from))
            }
            SetupError::Power(_) | SetupError::RackRange { .. } => Refusal::Impossible(format!("{error}")),
        };
        let mut circuits: BTreeMap<u32, Vec<CircuitSetup>> = BTreeMap::new();
        for &rack in sources.keys() {
            let others: Vec<u32> = racks.keys().copied().filter(|other| *other != rack).collect();
            circuits.insert(rack, self.circuits(&mut ports, rack, &others).map_err(refusal)?);
        }
        // A transfer that runs keeps its address where it can, so that its source and receivers notice
        // nothing.
        let address = old.and_then(|old| address_of(network, old));
        let address = match address {
            Some(address) => address,
            None => self.pool.lend(network)?,
        };
        let each = || circuits.values().flatten();
        let uplinks = each().flat_map(|circuits| &circuits.uplinks);
        let fibres = uplinks.map(|&(rack, uplink)| self.ports.of_rack(rack)[uplink as usize]);
        let mut resources = Vec::from([resource(address)]);
        resources.extend(fibres.map(|port| Resource::CircuitPort { port }));
        let splitters = each().flat_map(|circuits| &circuits.splitters);
        resources.extend(splitters.map(|&splitter| Resource::Splitter { splitter }));
        Ok(Plan {
            fabric: Self::NAME,
            resources,
            uses: Uses::default(),
            commands: Self::commands(address.0, (&sources, &racks), &circuits).into(),
            channel: Channel::Multicast {
                group: address,
                rate: Some(self.config.rate),
                attempt_interval: self.config.attempt_interval,
            },
        })
    }
}

/// Returns the likely reasons why these hosts got nothing: their light is followed through the plan's
/// circuits, from the source's fibre through the splitters to the fibre of their rack. Splitters come first,
/// then the source's fibre, then the rack's.
fn suspects(
    plan: &Plan,
    unreached: &BTreeSet<HostId>,
    resource_of: impl Fn(u32) -> Option<Resource>,
    rack_port: impl Fn(u32, u32) -> Option<u32>,
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
        let Some(end) = rack_port(*rack, *uplink) else { continue };
        let way = way(end);
        // A rack where one host has got something has light; what keeps the others from it is not the path's.
        if hosts().all(|host| unreached.contains(host)) { dark.push(way) } else { lit.push(way) }
    }
    in_common(&dark, &lit)
}

impl Fabric for Ocs {
    fn name(&self) -> FabricName {
        Self::NAME
    }

    /// Circuits and rules go by addresses alone.
    fn carries_any_packets(&self) -> bool {
        true
    }

    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        self.plan_at(network, group, None)
    }

    /// Splitters count as those of the largest fan-out, so that a choice which needs many small ones may turn
    /// out to have no plan.
    fn contest(&self, network: &NetworkState, groups: &[&Group]) -> Option<(Room, Vec<Option<Claim>>)> {
        let is_free = |port: &&u32| network.is_free(&Resource::CircuitPort { port: **port });
        let free_fibres = |rack| self.ports.of_rack(rack).iter().filter(is_free).count() as u32;
        let splitters = 0..self.ports.splitters().len() as u32;
        let room = Room {
            ports: (0..self.ports.racks()).map(free_fibres).collect(),
            splitters: splitters
                .filter(|splitter| network.is_free(&Resource::Splitter { splitter: *splitter }))
                .count() as u32,
        };
        let claim = |group: &&Group| {
            let (sources, racks) = self.racks(group).ok()?;
            self.check_sources(network, &sources, &racks).ok()?;
            let splitters = |source: &u32| {
                let others = racks.keys().filter(|rack| *rack != source).count() as u32;
                // Every further cascade reaches one more rack.
                let count = others + 1 - (self.cascades_for(others) - 1);
                splitters_needed(count, self.config.hybrid.splitter_fanout)
            };
            let splitters = sources.keys().map(splitters).sum();
            Some(Claim { racks: self.fibres(&sources, &racks).into_iter().collect(), splitters, volume: 0 })
        };
        Some((room, groups.iter().map(claim).collect()))
    }

    fn free(&self, network: &NetworkState) -> Vec<(String, u64)> {
        let Some((room, _)) = self.contest(network, &[]) else { return Vec::new() };
        let splitters = (Resource::Splitter { splitter: 0 }.kind(), u64::from(room.splitters));
        let fibres = (0..).zip(room.ports).map(|(rack, free): (u32, u32)| (fibres_of(rack), u64::from(free)));
        [self.pool.free(network), splitters].into_iter().chain(fibres).collect()
    }

    /// A port that leads to a rack is one of the rack's fibres.
    fn kind_of(&self, resource: &Resource) -> String {
        match resource {
            Resource::CircuitPort { port } => match self.ports.owner(*port) {
                Some(PortOwner::Rack(rack)) => fibres_of(rack),
                Some(PortOwner::Splitter(_)) | None => resource.kind(),
            },
            other => other.kind(),
        }
    }

    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        replan_each(Self::NAME, network, failure, |network, old| {
            self.plan_at(network, &old.group, Some(&old.plan))
        })
    }

    /// Racks that come need fibres, and splitters perhaps; those that stay may get other ones.
    fn regroup(&self, network: &NetworkState, old: &Plan, group: &Group) -> Result<Plan, Refusal> {
        self.plan_at(network, group, Some(old))
    }

    /// A channel does not tell which fibres and splitters its circuits take.
    fn adopt(&self, _network: &NetworkState, _group: &Group, _channel: &Channel) -> Option<Plan> {
        None
    }

    /// Its circuits join only ports that it holds, its rules copy only what goes to its own address to
    /// members in their own racks, and it holds no more than such a group can need: fibres of its racks, and
    /// the splitters of one cascade.
    fn vouches(&self, group: &Group, plan: &Plan) -> bool {
        let Channel::Multicast { group: address, .. } = plan.channel else { return false };
        let Ok((sources, racks)) = self.racks(group) else { return false };
        let hybrid = self.config.hybrid;
        let rack_of = |host: &HostId| {
            let is_member = group.hosts().any(|member| member == *host);
            self.places.get(*host).filter(|_| is_member).map(|server| server / hybrid.servers_per_rack)
        };
        let in_group = |rack: u32| sources.contains_key(&rack) || racks.contains_key(&rack);
        let holds = |port: u32| self.resource_of(port).is_some_and(|held| plan.resources.contains(&held));
        let sound = |command: &DeviceCommand| match command {
            DeviceCommand::CrossConnect { from, to } => holds(*from) && holds(*to),
            DeviceCommand::RackRule { rack, group, from, to } => {
                let is_ours = |port: &RackPort| match port {
                    RackPort::Host(host) => rack_of(host) == Some(*rack),
                    RackPort::Circuit(uplink) => {
                        self.ports.of_rack(*rack).get(*uplink as usize).is_some_and(|port| holds(*port))
                    }
                    RackPort::Splitter(_) | RackPort::FromSplitters => false,
                };
                in_group(*rack) && *group == address.0 && is_ours(from) && to.iter().all(is_ours)
            }
            _ => false,
        };
        let is_needed = |held: &Resource| match *held {
            Resource::MulticastAddress { .. } => *held == resource(address),
            Resource::CircuitPort { port } => {
                matches!(self.ports.owner(port), Some(PortOwner::Rack(rack)) if in_group(rack))
            }
            Resource::Splitter { splitter } => (splitter as usize) < self.ports.splitters().len(),
            _ => false,
        };
        let splitters =
            plan.resources.iter().filter(|held| matches!(held, Resource::Splitter { .. })).count();
        let fibres: usize = sources.keys().map(|rack| self.ports.of_rack(*rack).len()).sum();
        plan.resources.contains(&resource(address))
            && plan.resources.iter().all(is_needed)
            && splitters <= self.config.cascade_max as usize * fibres
            && plan.uses.is_empty()
            && plan.commands.iter().all(sound)
    }

    fn suspects(
        &self,
        _network: &NetworkState,
        _group: &Group,
        plan: &Plan,
        unreached: &BTreeSet<HostId>,
    ) -> Vec<Failure> {
        let rack_port = |rack: u32, uplink: u32| self.ports.of_rack(rack).get(uplink as usize).copied();
        suspects(plan, unreached, |port| self.resource_of(port), rack_port)
    }

    fn part(&self, name: PartName) -> Vec<Failure> {
        let port = |port: u32| self.resource_of(port).map(Failure::Resource);
        let racks = self.ports.racks();
        match name {
            PartName::Port(number) => number.checked_sub(1).and_then(port).into_iter().collect(),
            PartName::Splitter(splitter) if (splitter as usize) < self.ports.splitters().len() => {
                Vec::from([Failure::Resource(Resource::Splitter { splitter })])
            }
            PartName::Tor(rack) if rack < racks => {
                self.ports.of_rack(rack).iter().filter_map(|fibre| port(*fibre)).collect()
            }
            PartName::CircuitSwitch => {
                let fibres = (0..racks).flat_map(|rack| self.ports.of_rack(rack));
                let fibres = fibres.map(|port| Resource::CircuitPort { port: *port });
                let splitters =
                    (0..self.ports.splitters().len() as u32).map(|splitter| Resource::Splitter { splitter });
                fibres.chain(splitters).map(Failure::Resource).collect()
            }
            PartName::Splitter(_) | PartName::Tor(_) => Vec::new(),
        }
    }

    fn part_names(&self) -> Vec<String> {
        let (racks, splitters) = (self.ports.racks(), self.ports.splitters());
        let of_splitters =
            splitters.iter().flat_map(|splitter| splitter.outputs.iter().chain([&splitter.input]));
        let ports: BTreeSet<u32> =
            (0..racks).flat_map(|rack| self.ports.of_rack(rack)).chain(of_splitters).copied().collect();
        let range = ports.first().zip(ports.last());
        let range = range.map(|(first, last)| format!("port:{} to port:{}", first + 1, last + 1));
        let splitters =
            (!splitters.is_empty()).then(|| format!("splitter:0 to splitter:{}", splitters.len() - 1));
        let tors = format!("tor:0 to tor:{}", racks.saturating_sub(1));
        range.into_iter().chain(splitters).chain([tors, String::from("ocs")]).collect()
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
