//! What a network lends to a transfer, and who decides how.
//!
//! The manager's side of Republic section III-B: the network's state (what is held by whom), the fabrics
//! that make plans from it, and the plans themselves. A fabric never changes the state: whoever accepts a
//! plan does, with [`NetworkState::hold`] and [`NetworkState::release`].

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use polycast_types::{Duration, Rate};
use serde::{Deserialize, Serialize};

/// The name of a fabric, as it is in the program.
pub type FabricName = &'static str;

/// Names of fabrics as text, for plans that are written down.
mod fabric_name {
    use crate::{datacast::Datacast, ip_multicast::IpMulticast, ocs::Ocs, orca::Orca};
    use crate::{shufflecast::Shufflecast, tcp_chain::TcpChain};
    use alloc::format;
    use alloc::string::String;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    const NAMES: [&str; 6] =
        [IpMulticast::NAME, TcpChain::NAME, Ocs::NAME, Shufflecast::NAME, Orca::NAME, Datacast::NAME];

    pub fn serialize<S: Serializer>(name: &&'static str, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = NAMES.into_iter().find(|name| *name == text);
        known.ok_or_else(|| D::Error::custom(format!("there is no fabric '{text}'")))
    }
}

use crate::trees::{SteinerTree, TreeHop};

/// A host that can send and receive, by a number that the manager gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct HostId(pub u32);

/// One source and its receivers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Who sends.
    pub source: HostId,
    /// Who receives; never the source, never empty.
    pub receivers: BTreeSet<HostId>,
}

/// A plan that is in force (Republic's `responseID`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PlanId(pub u64);

/// Something of the network that only one plan can hold at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Resource {
    /// An IP multicast group with its UDP port.
    MulticastAddress {
        /// IPv4 group address.
        address: [u8; 4],
        /// UDP port.
        port: u16,
    },
    /// A port of the optical circuit switch that leads to a rack, in both directions.
    CircuitPort {
        /// Its number at the switch.
        port: u32,
    },
    /// An optical splitter.
    Splitter {
        /// Its number.
        splitter: u32,
    },
    /// A share of the relays of one partition of a Shufflecast.
    RelayPartition {
        /// The column.
        column: u32,
        /// The partition of this column.
        partition: u32,
        /// Which of the shares of the relays' rate.
        share: u32,
    },
    /// A place in the table of a spine switch.
    SpineEntry {
        /// The switch, by its number in the network.
        spine: u32,
        /// The place.
        slot: u32,
    },
}

impl Resource {
    /// Whether it belongs to the optical circuit switch.
    fn is_of_circuits(&self) -> bool {
        matches!(self, Resource::CircuitPort { .. } | Resource::Splitter { .. })
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::MulticastAddress { address: [a, b, c, d], port } => write!(f, "{a}.{b}.{c}.{d}:{port}"),
            Resource::CircuitPort { port } => write!(f, "port {port} of the circuit switch"),
            Resource::Splitter { splitter } => write!(f, "splitter {splitter}"),
            Resource::RelayPartition { column, partition, share } => {
                write!(f, "share {share} of partition {partition} of column {column}")
            }
            Resource::SpineEntry { spine, slot } => write!(f, "entry {slot} of spine {spine}"),
        }
    }
}

/// Something of a network that many plans use at the same time and that can fail. Its numbers are those of
/// the fabric's own network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Part {
    /// A server or switch.
    Node {
        /// The fabric's name.
        #[serde(with = "fabric_name")]
        fabric: FabricName,
        /// The node.
        node: u32,
    },
    /// A link.
    Link {
        /// The fabric's name.
        #[serde(with = "fabric_name")]
        fabric: FabricName,
        /// Its two ends, the lower number first.
        ends: (u32, u32),
    },
}

impl Part {
    /// The link between two nodes.
    #[must_use]
    pub fn link(fabric: &'static str, one: u32, other: u32) -> Self {
        Part::Link { fabric, ends: (one.min(other), one.max(other)) }
    }

    /// The fabric's name.
    #[must_use]
    pub fn fabric(&self) -> &'static str {
        match self {
            Part::Node { fabric, .. } | Part::Link { fabric, .. } => fabric,
        }
    }
}

/// What a device keeps while a plan is in force: set before the path is used, and taken away after it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DeviceCommand {
    /// The optical circuit switch leads light that enters at one port to another.
    CrossConnect {
        /// Where it enters.
        from: u32,
        /// Where it leaves.
        to: u32,
    },
    /// The switch of a rack copies the packets of a multicast group.
    RackRule {
        /// The rack.
        rack: u32,
        /// The group address.
        group: [u8; 4],
        /// The port that they come from.
        from: RackPort,
        /// The ports that they go to.
        to: Vec<RackPort>,
    },
    /// The switch of a rack relays what comes from the servers of a source rack into its splitter. At the
    /// source itself the rule matches only packets from its servers, or they would circle for ever.
    RelayRule {
        /// The switch that relays.
        rack: u32,
        /// The rack of the source.
        source: u32,
    },
    /// A spine switch leaves a link out for a session, although the label's filter says yes to it.
    SpineEntry {
        /// The switch.
        spine: u32,
        /// The session.
        session: u32,
        /// The leaf at the other end of the link.
        leaf: u32,
    },
    /// The agents of a rack put this label in for a session.
    LeafLabel {
        /// The leaf switch of the rack.
        leaf: u32,
        /// The session.
        session: u32,
        /// The label.
        label: Vec<u8>,
    },
    /// The agents of the rack that a pod's spine asks for a session put this label in (pod labels).
    SpineLabel {
        /// The leaf switch of that rack.
        leaf: u32,
        /// The session.
        session: u32,
        /// The label.
        label: Vec<u8>,
    },
}

/// A port of a rack's switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum RackPort {
    /// To a server.
    Host(HostId),
    /// To the optical circuit switch: which of the rack's fibres.
    Circuit(u32),
    /// To the rack's splitter, or from the splitters that feed the rack.
    Splitter,
}

/// How the transport reaches the receivers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Channel {
    /// One send reaches all of them.
    Multicast {
        /// Group address and UDP port of the data channel.
        group: ([u8; 4], u16),
        /// The rate of a dedicated path; `None` on a shared network, where the sender adapts.
        rate: Option<Rate>,
        /// Interval of attempt sending (Republic's `i_a`).
        attempt_interval: Duration,
    },
    /// One send reaches all of them; the label before every packet says where it goes (Orca).
    Label {
        /// Group address and UDP port of the data channel.
        group: ([u8; 4], u16),
        /// The session that switches and agents look up; it travels beside the label.
        session: u32,
        /// The source label.
        label: Vec<u8>,
        /// Source labels of further trees of the same receivers, as long as the first: packets take turns among all.
        further: Vec<Vec<u8>>,
        /// The racks of receivers: where several share one, the source need hear only one of them. None where it is to hear
        /// all.
        #[serde(default)]
        racks: Vec<(HostId, u32)>,
        /// The rate of a dedicated path; `None` on a shared network, where the sender adapts.
        rate: Option<Rate>,
    },
    /// Receivers pull over several trees that share no arc (Datacast).
    SourceRoutes {
        /// How many trees there are when nothing has failed; trees are numbered below that.
        tree_count: u32,
        /// How receivers pull.
        pulling: Pulling,
        /// The trees in use.
        trees: Vec<TreeRoutes>,
    },
    /// Over TCP from the source to the first, from there to the second, and so on.
    Chain {
        /// The receivers in this order.
        order: Vec<HostId>,
    },
}

impl Channel {
    /// Whether receivers of one hear the other: the same, but for labels, and for ways over trees, which receivers are told
    /// anew.
    #[must_use]
    pub fn is_heard_like(&self, other: &Channel) -> bool {
        match (self, other) {
            (
                Channel::Label { group, session, label, .. },
                Channel::Label { group: other_group, session: other_session, label: other_label, .. },
            ) => (group, session, label.len()) == (other_group, other_session, other_label.len()),
            (
                Channel::SourceRoutes { tree_count, pulling, .. },
                Channel::SourceRoutes { tree_count: other_count, pulling: other_pulling, .. },
            ) => (tree_count, pulling) == (other_count, other_pulling),
            _ => self == other,
        }
    }
}

/// One tree as interests travel it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TreeRoutes {
    /// The tree; its number stays the same however it is repaired.
    pub tree: SteinerTree,
    /// For each receiver the way of its interests to the source.
    pub routes: Vec<(HostId, Vec<TreeHop>)>,
}

/// How receivers pull, the same for all transfers of a fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pulling {
    /// Bytes of the object in a packet.
    pub payload_bytes: u16,
    /// How many packets a receiver may ask for at a time in each tree (w of Datacast, section 5.1).
    pub credits: u32,
    /// The rate of a link: no tree is ever sent faster.
    pub link_rate: Rate,
}

/// How one group is served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the fabric that made it.
    #[serde(with = "fabric_name")]
    pub fabric: FabricName,
    /// What it holds while it is in force.
    pub resources: Vec<Resource>,
    /// What it uses beside others, in rising order: when one of these fails the plan is touched.
    pub uses: Vec<Part>,
    /// What devices have to do to set it up.
    pub commands: Vec<DeviceCommand>,
    /// How the transport uses it.
    pub channel: Channel,
}

impl Plan {
    /// Whether a failure touches this plan, which serves `group`. A receiver that is down does not: the others go
    /// on without it.
    #[must_use]
    pub fn is_touched(&self, group: &Group, failure: &Failure) -> bool {
        match failure {
            Failure::Host(host) => group.source == *host,
            Failure::Resource(resource) => self.resources.contains(resource),
            Failure::Part(part) => self.uses.binary_search(part).is_ok(),
        }
    }
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Not now: what it needs is held by others.
    #[error("{0}")]
    Busy(String),
    /// Not ever, as this network is.
    #[error("{0}")]
    Impossible(String),
    /// Not ever, for the settings do not say where one of the group is. Whoever knows the host's name should say that.
    #[error("the settings of the fabric {fabric} do not say where host {} is", host.0)]
    NoPlace {
        /// The host.
        host: HostId,
        /// The fabric.
        fabric: String,
    },
}

/// Something that broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// A host is down.
    Host(HostId),
    /// A resource can no longer be used.
    Resource(Resource),
    /// A part of a network has failed.
    Part(Part),
}

/// What becomes of a running plan that a failure touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replan {
    /// The plan.
    pub id: PlanId,
    /// What becomes of it.
    pub outcome: ReplanOutcome,
}

/// What a failure means for a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplanOutcome {
    /// This plan takes its place.
    Replaced(Plan),
    /// There is no other plan.
    Lost(Refusal),
}

/// A kind of network that can carry transfers.
pub trait Fabric: fmt::Debug + Send {
    /// Its name in plans, settings and reports.
    fn name(&self) -> &'static str;

    /// How `group` can be served by what is free in `network`.
    ///
    /// # Errors
    /// It cannot: not now, or not ever.
    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal>;

    /// The running plans of this fabric that `failure` touches, in the order of their numbers, and what
    /// becomes of each. `network` knows of the failure already; new plans do not collide with each other.
    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan>;

    /// The running plans of this fabric that can be better now that something works again, and those better plans.
    fn improve(&self, _network: &NetworkState) -> Vec<(PlanId, Plan)> {
        Vec::new()
    }

    /// The plan of a transfer that runs already, from the channel that its source knows, for a manager that has
    /// restarted. `None` if the channel does not tell what the plan holds: then the transfer loses its path.
    fn adopt(&self, network: &NetworkState, group: &Group, channel: &Channel) -> Option<Plan>;

    /// Whether a plan that a transfer's source has kept for a manager that restarted can be this fabric's plan for the
    /// group: it uses what it says that it holds, and nothing else. `false` where [`Fabric::adopt`] tells as much.
    fn vouches(&self, _group: &Group, _plan: &Plan) -> bool {
        false
    }

    /// What a device that keeps this has in use, whoever told it.
    fn resources_of(&self, _command: &DeviceCommand) -> Vec<Resource> {
        Vec::new()
    }

    /// Whether any number of its paths can be there at the same time, so that one may be lent for as long as somebody
    /// wants it, without waiting for others.
    fn is_shared(&self) -> bool {
        false
    }

    /// The plan by which a transfer that runs goes on when its group changes. `network` does not hold the old
    /// plan any more. The channel has to stay as it is; of one with labels that may be others, which are the source's
    /// business alone, and of one over trees the ways, which receivers are told anew.
    ///
    /// # Errors
    /// What the new group needs is not free, or the channel cannot stay.
    fn regroup(&self, network: &NetworkState, old: &Plan, group: &Group) -> Result<Plan, Refusal> {
        let cannot =
            || Refusal::Impossible(alloc::format!("a path of {} cannot change its group", old.fabric));
        self.adopt(network, group, &old.channel).ok_or_else(cannot)
    }

    /// What devices keep all the time while the fabric is in use, as far as nothing of `network` prevents it.
    fn standing_commands(&self, _network: &NetworkState) -> Vec<DeviceCommand> {
        Vec::new()
    }
}

/// Replans the touched plans of one fabric, one after the other, each with what the others leave free.
pub(crate) fn replan_each(
    name: &str,
    network: &NetworkState,
    failure: &Failure,
    plan: impl Fn(&NetworkState, &Running) -> Result<Plan, Refusal>,
) -> Vec<Replan> {
    let is_touched =
        |running: &Running| running.plan.fabric == name && running.plan.is_touched(&running.group, failure);
    let touched: Vec<PlanId> =
        network.running().filter(|(_, running)| is_touched(running)).map(|(id, _)| id).collect();
    if touched.is_empty() {
        return Vec::new();
    }
    let mut draft = network.clone();
    let mut outcome_of = |id| {
        let old = draft.release(id)?;
        if matches!(failure, Failure::Host(_)) {
            return Some(ReplanOutcome::Lost(Refusal::Impossible("the source is down".into())));
        }
        Some(match plan(&draft, &old) {
            Ok(plan) => {
                let held = draft.hold(id, old.group, plan.clone());
                assert!(held, "a fabric plans with what is free");
                ReplanOutcome::Replaced(plan)
            }
            Err(refusal) => ReplanOutcome::Lost(refusal),
        })
    };
    touched.into_iter().filter_map(|id| Some(Replan { id, outcome: outcome_of(id)? })).collect()
}

/// A plan in force and the group that it serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running {
    /// Whom it serves.
    pub group: Group,
    /// The plan.
    pub plan: Plan,
}

/// What is held and what has failed.
#[derive(Clone, Default, Debug)]
pub struct NetworkState {
    running: BTreeMap<PlanId, Running>,
    holders: BTreeMap<Resource, PlanId>,
    failed: BTreeSet<Resource>,
    /// What may be in use by transfers that have not been heard of yet.
    reserved: BTreeSet<Resource>,
    /// Whether the circuit switch has yet to say what it holds.
    circuits_unknown: bool,
    failed_parts: BTreeSet<Part>,
    /// Where fabrics begin to look for free resources, so that what was just released rests for a while.
    turn: u64,
    /// Plans that nobody holds any more and that devices still do, oldest first.
    kept: Vec<Running>,
}

impl NetworkState {
    /// A network where nothing is held. Fabrics with many equal resources begin to look at the one of this
    /// number, so that two managers, one after the other, are unlikely to begin with the same.
    #[must_use]
    pub fn new(first_turn: u64) -> Self {
        NetworkState { turn: first_turn, ..NetworkState::default() }
    }

    /// Whether `resource` can be lent now.
    #[must_use]
    pub fn is_free(&self, resource: &Resource) -> bool {
        self.can_hold(resource) && !(self.circuits_unknown && resource.is_of_circuits())
    }

    /// Whether it can be held by whoever has it already, as far as anybody knows.
    fn can_hold(&self, resource: &Resource) -> bool {
        !self.holders.contains_key(resource)
            && !self.failed.contains(resource)
            && !self.reserved.contains(resource)
    }

    /// Whether it is known what the circuit switch holds. Until then none of its ports and splitters is lent to anybody
    /// new, and other fabrics serve those who do not wait.
    pub fn set_circuits_known(&mut self, known: bool) {
        self.circuits_unknown = !known;
    }

    /// Who holds `resource`.
    #[must_use]
    pub fn holder(&self, resource: &Resource) -> Option<PlanId> {
        self.holders.get(resource).copied()
    }

    /// Where to begin the search among equal resources.
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Sets where to begin the search, when what moved it on is undone.
    pub(crate) fn set_turn(&mut self, turn: u64) {
        self.turn = turn;
    }

    /// The plans in force, in the order of their numbers.
    pub fn running(&self) -> impl Iterator<Item = (PlanId, &Running)> {
        self.running.iter().map(|(id, running)| (*id, running))
    }

    /// The plan of this number, if it is in force.
    #[must_use]
    pub fn get(&self, id: PlanId) -> Option<&Running> {
        self.running.get(&id)
    }

    /// Puts a plan in force. Gives whether that was possible: it is not if the number is in use or a
    /// resource is not free, and then nothing has changed.
    #[must_use]
    pub fn hold(&mut self, id: PlanId, group: Group, plan: Plan) -> bool {
        if self.running.contains_key(&id) || !plan.resources.iter().all(|resource| self.can_hold(resource)) {
            return false;
        }
        self.holders.extend(plan.resources.iter().map(|resource| (*resource, id)));
        self.running.insert(id, Running { group, plan });
        self.turn = self.turn.wrapping_add(1);
        true
    }

    /// Ends a plan; what it held is free again.
    pub fn release(&mut self, id: PlanId) -> Option<Running> {
        let running = self.running.remove(&id)?;
        for resource in &running.plan.resources {
            self.holders.remove(resource);
        }
        Some(running)
    }

    /// Remembers a plan that has ended and that devices still hold: the same group can have it again as it is.
    pub fn keep(&mut self, running: Running) {
        self.kept.push(running);
    }

    /// The plans that devices hold for nobody, oldest first.
    pub fn kept(&self) -> impl Iterator<Item = &Running> {
        self.kept.iter()
    }

    /// Forgets the oldest of the kept plans.
    pub fn forget_oldest(&mut self) -> Option<Running> {
        (!self.kept.is_empty()).then(|| self.kept.remove(0))
    }

    /// Forgets the kept plans that have a resource in common with `plan`, which is about to be set up.
    pub fn displace(&mut self, plan: &Plan) -> Vec<Running> {
        let shares = |running: &mut Running| {
            running.plan.resources.iter().any(|resource| plan.resources.contains(resource))
        };
        self.kept.extract_if(.., shares).collect()
    }

    /// The kept plan of a fabric for exactly this group, if all of it is free and works.
    fn ready(&self, fabric: &str, group: &Group) -> Option<&Plan> {
        let fits = |running: &&Running| {
            running.plan.fabric == fabric
                && running.group == *group
                && running.plan.resources.iter().all(|resource| self.is_free(resource))
                && !running.plan.uses.iter().any(|part| self.failed_parts.contains(part))
        };
        self.kept.iter().rev().find(fits).map(|running| &running.plan)
    }

    /// Lends these to nobody until [`NetworkState::claim`] or [`NetworkState::end_reservations`].
    pub fn reserve(&mut self, resources: impl IntoIterator<Item = Resource>) {
        self.reserved.extend(resources);
    }

    /// What was reserved for whoever has this plan is theirs: it can be held.
    pub fn claim(&mut self, plan: &Plan) {
        plan.resources.iter().for_each(|resource| {
            self.reserved.remove(resource);
        });
    }

    /// What is reserved still can be lent.
    pub fn end_reservations(&mut self) {
        self.reserved.clear();
    }

    /// Takes a resource out of use; whoever holds it keeps it until its release.
    pub fn fail(&mut self, resource: Resource) {
        self.failed.insert(resource);
    }

    /// Whether a resource is out of use.
    #[must_use]
    pub fn has_failed(&self, resource: &Resource) -> bool {
        self.failed.contains(resource)
    }

    /// The resources between two in their order that plans hold.
    pub fn held_between(&self, first: Resource, last: Resource) -> impl Iterator<Item = Resource> {
        self.holders.range(first..=last).map(|(resource, _)| *resource)
    }

    /// Takes a part of a network out of use; the plans that use it stay until they are planned anew.
    pub fn fail_part(&mut self, part: Part) {
        self.failed_parts.insert(part);
    }

    /// Takes a part that had failed into use again.
    pub fn repair_part(&mut self, part: &Part) {
        self.failed_parts.remove(part);
    }

    /// The parts of a fabric's network that are out of use, in rising order.
    pub fn failed_parts(&self, fabric: &str) -> impl Iterator<Item = Part> {
        self.failed_parts.iter().copied().filter(move |part| part.fabric() == fabric)
    }

    /// The same network, with the same failures, where nothing is held.
    #[must_use]
    pub fn idle(&self) -> Self {
        NetworkState {
            failed: self.failed.clone(),
            failed_parts: self.failed_parts.clone(),
            turn: self.turn,
            ..NetworkState::default()
        }
    }

    /// Takes a resource that had failed into use again.
    pub fn repair(&mut self, resource: &Resource) {
        self.failed.remove(resource);
    }
}

/// The fabrics of a network, best first; and whether a group waits for the best one that could carry it.
#[derive(Debug)]
pub struct Fabrics(Vec<Box<dyn Fabric>>, bool);

impl Fabrics {
    /// These fabrics, in this order of preference.
    #[must_use]
    pub fn new(fabrics: Vec<Box<dyn Fabric>>) -> Self {
        Fabrics(fabrics, false)
    }

    /// A group waits for the best fabric that could carry it, instead of taking the next one that is free.
    #[must_use]
    pub fn waiting_for_the_best(self) -> Self {
        Fabrics(self.0, true)
    }

    /// Their names, best first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|fabric| fabric.name())
    }

    /// The plan of the first fabric that has one.
    ///
    /// # Errors
    /// None has: [`Refusal::Busy`] if one of them may have later.
    pub fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        self.plan_without(network, group, "")
    }

    /// The same, without the fabric of this name.
    ///
    /// # Errors
    /// As [`Fabrics::plan`].
    pub fn plan_without(
        &self,
        network: &NetworkState,
        group: &Group,
        without: &str,
    ) -> Result<Plan, Refusal> {
        let mut why = Refusal::Impossible("the manager has no fabric to carry it".into());
        for fabric in self.0.iter().filter(|fabric| fabric.name() != without) {
            if let Some(plan) = network.ready(fabric.name(), group) {
                return Ok(plan.clone());
            }
            match fabric.plan(network, group) {
                Ok(plan) => return Ok(plan),
                Err(busy @ Refusal::Busy(_)) if self.1 => return Err(busy),
                // The first that may be free later is the best one to wait for.
                Err(busy @ Refusal::Busy(_)) if !matches!(why, Refusal::Busy(_)) => why = busy,
                Err(Refusal::Busy(_)) => {}
                Err(impossible) if !matches!(why, Refusal::Busy(_)) => why = impossible,
                Err(_) => {}
            }
        }
        Err(why)
    }

    /// The plan of the first shared fabric ([`Fabric::is_shared`]) that has one.
    ///
    /// # Errors
    /// None has.
    pub fn plan_shared(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        let none = "no fabric of this network has paths that many can use at the same time: orca and ip-multicast have";
        let mut why = Refusal::Impossible(none.into());
        for fabric in self.0.iter().filter(|fabric| fabric.is_shared()) {
            match fabric.plan(network, group) {
                Ok(plan) => return Ok(plan),
                Err(refusal) => why = refusal,
            }
        }
        Err(why)
    }

    /// The plan of a transfer that runs already ([`Fabric::adopt`]), by the name of its fabric.
    #[must_use]
    pub fn adopt(
        &self,
        fabric: &str,
        network: &NetworkState,
        group: &Group,
        channel: &Channel,
    ) -> Option<Plan> {
        self.0.iter().find(|known| known.name() == fabric)?.adopt(network, group, channel)
    }

    /// Whether the fabric of its name vouches for a plan ([`Fabric::vouches`]).
    #[must_use]
    pub fn vouches(&self, group: &Group, plan: &Plan) -> bool {
        let fabric = self.0.iter().find(|known| known.name() == plan.fabric);
        fabric.is_some_and(|fabric| fabric.vouches(group, plan))
    }

    /// What devices that keep this have in use ([`Fabric::resources_of`]).
    #[must_use]
    pub fn resources_of(&self, command: &DeviceCommand) -> Vec<Resource> {
        self.0.iter().flat_map(|fabric| fabric.resources_of(command)).collect()
    }

    /// The plan of a running transfer with another group ([`Fabric::regroup`]).
    ///
    /// # Errors
    /// The fabric has none, or receivers would have to be told of another channel.
    pub fn regroup(&self, network: &NetworkState, old: &Plan, group: &Group) -> Result<Plan, Refusal> {
        let unknown = || Refusal::Impossible(alloc::format!("there is no fabric '{}'", old.fabric));
        let fabric = self.0.iter().find(|fabric| fabric.name() == old.fabric).ok_or_else(unknown)?;
        let plan = fabric.regroup(network, old, group)?;
        if !plan.channel.is_heard_like(&old.channel) {
            return Err(Refusal::Impossible(
                "the channel would change, and the transfer runs already".into(),
            ));
        }
        Ok(plan)
    }

    /// What devices keep all the time ([`Fabric::standing_commands`]).
    #[must_use]
    pub fn standing_commands(&self, network: &NetworkState) -> Vec<DeviceCommand> {
        self.0.iter().flat_map(|fabric| fabric.standing_commands(network)).collect()
    }

    /// The running plans that can be better now that something works again ([`Fabric::improve`]).
    #[must_use]
    pub fn improve(&self, network: &NetworkState) -> Vec<(PlanId, Plan)> {
        self.0.iter().flat_map(|fabric| fabric.improve(network)).collect()
    }

    /// The running plans that `failure` touches. One that its own fabric cannot save may be saved by another.
    pub fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        let mut touched: Vec<Replan> =
            self.0.iter().flat_map(|fabric| fabric.replan(network, failure)).collect();
        let mut draft = network.clone();
        for replan in &mut touched {
            let Some(old) = draft.release(replan.id) else { continue };
            if matches!(replan.outcome, ReplanOutcome::Lost(_))
                && *failure != Failure::Host(old.group.source)
                && let Ok(plan) = self.plan(&draft, &old.group)
            {
                replan.outcome = ReplanOutcome::Replaced(plan);
            }
            if let ReplanOutcome::Replaced(plan) = &replan.outcome {
                // Fabrics promise that their new plans do not collide; one that does loses its path.
                if !draft.hold(replan.id, old.group, plan.clone()) {
                    replan.outcome = ReplanOutcome::Lost(Refusal::Busy("another path took its place".into()));
                }
            }
        }
        touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip_multicast::IpMulticast;
    use crate::tcp_chain::TcpChain;
    use alloc::vec;

    fn group(source: u32, receivers: &[u32]) -> Group {
        Group { source: HostId(source), receivers: receivers.iter().map(|r| HostId(*r)).collect() }
    }

    fn fabrics(addresses: u32) -> Fabrics {
        let pool = crate::ip_multicast::AddressPool::new([239, 255, 64, 0], addresses, 7410).unwrap();
        Fabrics::new(vec![Box::new(IpMulticast::new(pool)), Box::new(TcpChain)])
    }

    #[test]
    fn the_best_fabric_that_is_free_carries_it() {
        let fabrics = fabrics(1);
        let mut network = NetworkState::default();
        let plan = fabrics.plan(&network, &group(0, &[1, 2])).unwrap();
        assert_eq!(plan.fabric, "ip-multicast");
        assert!(network.hold(PlanId(1), group(0, &[1, 2]), plan));
        assert_eq!(fabrics.plan(&network, &group(3, &[1])).unwrap().fabric, "tcp-chain");
        network.release(PlanId(1)).unwrap();
        assert_eq!(fabrics.plan(&network, &group(3, &[1])).unwrap().fabric, "ip-multicast");
    }

    #[test]
    fn a_group_can_wait_for_the_best_fabric() {
        let fabrics = fabrics(1).waiting_for_the_best();
        let mut network = NetworkState::default();
        let plan = fabrics.plan(&network, &group(0, &[1])).unwrap();
        assert!(network.hold(PlanId(1), group(0, &[1]), plan));
        assert!(matches!(fabrics.plan(&network, &group(2, &[1])), Err(Refusal::Busy(_))));
        network.release(PlanId(1)).unwrap();
        assert_eq!(fabrics.plan(&network, &group(2, &[1])).unwrap().fabric, "ip-multicast");
    }

    #[test]
    fn a_plan_that_is_kept_is_the_next_one_of_its_group() {
        let fabrics = fabrics(4);
        let mut network = NetworkState::default();
        let plan = fabrics.plan(&network, &group(0, &[1])).unwrap();
        network.keep(Running { group: group(0, &[1]), plan: plan.clone() });
        assert_eq!(fabrics.plan(&network, &group(0, &[1])).unwrap(), plan);
        // Not while somebody holds what it needs, and not any more when that has failed.
        assert!(network.hold(PlanId(1), group(0, &[2]), plan.clone()));
        assert_ne!(fabrics.plan(&network, &group(0, &[1])).unwrap(), plan);
        network.release(PlanId(1)).unwrap();
        network.fail(plan.resources[0]);
        assert_ne!(fabrics.plan(&network, &group(0, &[1])).unwrap(), plan);
        assert_eq!(network.displace(&plan).len(), 1);
        assert!(network.forget_oldest().is_none());
    }

    #[test]
    fn nothing_is_held_twice() {
        let fabrics = fabrics(1);
        let mut network = NetworkState::default();
        let plan = fabrics.plan(&network, &group(0, &[1])).unwrap();
        assert!(network.hold(PlanId(1), group(0, &[1]), plan.clone()));
        assert!(!network.hold(PlanId(2), group(0, &[1]), plan.clone()));
        assert!(network.get(PlanId(2)).is_none());
        assert_eq!(network.holder(&plan.resources[0]), Some(PlanId(1)));
    }

    #[test]
    fn a_path_that_fails_is_replaced_even_by_another_fabric() {
        let fabrics = fabrics(1);
        let mut network = NetworkState::default();
        let plan = fabrics.plan(&network, &group(0, &[1])).unwrap();
        let address = plan.resources[0];
        assert!(network.hold(PlanId(1), group(0, &[1]), plan));
        network.fail(address);
        let touched = fabrics.replan(&network, &Failure::Resource(address));
        assert_eq!(touched.len(), 1);
        let ReplanOutcome::Replaced(plan) = &touched[0].outcome else { panic!("{touched:?}") };
        assert_eq!(plan.fabric, "tcp-chain");
    }

    #[test]
    fn without_fabrics_nothing_is_possible() {
        let refusal = Fabrics::new(Vec::new()).plan(&NetworkState::default(), &group(0, &[1])).unwrap_err();
        assert!(matches!(refusal, Refusal::Impossible(_)));
    }
}
