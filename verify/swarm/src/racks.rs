//! Cases of Orca's controllers (Orca section 3.4): a central one, those of leafs, and agents, over a network
//! that loses, delays, reorders and repeats, while each of them may crash and begin anew.
//!
//! Labels carry versions, so that their order shows: at an agent they only rise. A change that is confirmed
//! is known to every agent that was in its place all the time, also where the central controller has begun
//! anew meanwhile. In the end every agent of a rack has the newest labels and no other ones, and every change
//! is confirmed.

use super::coverage::{self, Coverage};
use super::draw::Random;
use super::{Plant, Verdict};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_protocol::rack::{
    Agent, AgentConfig, AgentInput, AgentOutput, Central, CentralConfig, CentralInput, CentralOutput, Change,
    FeedConfig, Leaf, LeafConfig, LeafInput, LeafOutput,
};
use polycast_simulator::{Agenda, Wakes};
use polycast_types::{Duration, Time};
use polycast_wire::rack::Rack;

/// After healing, and when a new central controller knows all sessions, everything is known and confirmed
/// within so many T of the leafs.
const LIVENESS: u64 = 2_000;
/// Sessions of a case.
const SESSIONS: u64 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Central,
    Leaf(u32),
    Agent(u32, u32),
}

#[derive(Debug)]
enum Event {
    Deliver {
        to: Who,
        from: Who,
        datagram: Vec<u8>,
    },
    Wake(Who),
    Start(Who),
    /// Some labels change.
    Change,
    /// A packet of some session comes to a rack.
    Packet(u32),
    Crash,
}

/// Parameters of a case.
#[derive(Clone, Copy, Debug)]
struct Shape {
    racks: u32,
    agents: u32,
    active: usize,
    standby: usize,
    /// T of the leafs.
    timeout: Duration,
    delay: Duration,
    jitter: Duration,
    loss: u64,
    duplication: u64,
    /// Time for which a new central controller may not know all sessions.
    settle: Duration,
    labels_max: usize,
}

struct AgentNode {
    machine: Agent,
    /// The version of each label that it has.
    labels: BTreeMap<u32, u64>,
    /// The newest version that it ever had in this run.
    newest: BTreeMap<u32, u64>,
    /// The newest stream that it was sent.
    stream: u64,
    mute_until: Time,
}

/// A change that waits for its confirmation.
struct Ticket {
    /// Rack, session, version.
    wants: Vec<(u32, u32, u64)>,
    /// The agents that have been in their places since it was made.
    steady: BTreeSet<(u32, u32)>,
    /// Versions that were requested before, for a change that is refused.
    before: Vec<((u32, u32), u64)>,
}

struct World<'r> {
    random: &'r mut Random,
    shape: Shape,
    plant: Option<Plant>,
    now: Time,
    heal_at: Time,
    central: Option<Central>,
    /// The last stream that the central controller has told each leaf of, and the last number in it.
    told: BTreeMap<u32, (u64, u64)>,
    leafs: BTreeMap<u32, Leaf>,
    agents: BTreeMap<(u32, u32), AgentNode>,
    switches: BTreeMap<u32, (Vec<u32>, usize)>,
    relabelled: BTreeMap<(u32, u32), Time>,
    /// The version of each label that every rack should have in the end; 0 for none.
    wanted: BTreeMap<(u32, u32), u64>,
    removals: BTreeSet<(u32, u32, u64)>,
    tickets: BTreeMap<u64, Ticket>,
    next_ticket: u64,
    versions: u64,
    agenda: Agenda<Event>,
    wakes: Wakes<Who>,
    runs: u64,
    hash: u64,
    failure: Option<String>,
    coverage: Coverage,
}

fn shape(random: &mut Random) -> Shape {
    let (active, standby) = (random.within(1..=2) as usize, random.below(3) as usize);
    let delay = Duration(random.magnitude(20_000..=200_000));
    Shape {
        racks: random.within(1..=3) as u32,
        // In one case of four there are more agents than places.
        agents: (active + standby) as u32 + u32::from(random.one_in(4)),
        active,
        standby,
        timeout: delay * random.within(8..=60),
        delay,
        jitter: Duration(random.magnitude(1_000..=400_000)),
        loss: if random.one_in(2) { random.magnitude(1..=300) } else { 0 },
        duplication: if random.one_in(2) { random.magnitude(1..=300) } else { 0 },
        settle: Duration(random.magnitude(500_000..=20_000_000)),
        labels_max: if random.one_in(3) { random.within(2..=4) as usize } else { SESSIONS as usize },
    }
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let shape = shape(random);
    let case = format!(
        "controllers of {} racks with {} agents, {} active, loss of {} in 1,000",
        shape.racks, shape.agents, shape.active, shape.loss
    );
    let heal_at = Time(random.magnitude(3_000_000..=60_000_000));
    let mut world = World {
        random,
        shape,
        plant,
        now: Time(1),
        heal_at,
        central: None,
        told: BTreeMap::new(),
        leafs: BTreeMap::new(),
        agents: BTreeMap::new(),
        switches: BTreeMap::new(),
        relabelled: BTreeMap::new(),
        wanted: BTreeMap::new(),
        removals: BTreeSet::new(),
        tickets: BTreeMap::new(),
        next_ticket: 0,
        versions: 0,
        agenda: Agenda::default(),
        wakes: Wakes::default(),
        runs: 0,
        hash: seed | 1,
        failure: None,
        coverage: Coverage::default(),
    };
    let failure = world.live().err();
    let World { hash, agenda, coverage, .. } = world;
    Verdict { seed, case, failure, trace_hash: hash, events: agenda.planned(), coverage }
}

impl World<'_> {
    fn live(&mut self) -> Result<(), String> {
        self.plan_storm();
        self.start(Who::Central);
        for rack in 0..self.shape.racks {
            self.start(Who::Leaf(rack));
            (0..self.shape.agents).for_each(|agent| self.start(Who::Agent(rack, agent)));
        }
        self.run_until(self.heal_at)?;
        // All that are down come back, and the network is whole.
        (self.shape.loss, self.shape.duplication) = (0, 0);
        self.agents.values_mut().for_each(|node| node.mute_until = Time::ZERO);
        let mut absent = Vec::new();
        for rack in 0..self.shape.racks {
            absent.extend((!self.leafs.contains_key(&rack)).then_some(Who::Leaf(rack)));
            let agents = (0..self.shape.agents).filter(|agent| !self.agents.contains_key(&(rack, *agent)));
            absent.extend(agents.map(|agent| Who::Agent(rack, agent)));
        }
        absent.extend(self.central.is_none().then_some(Who::Central));
        absent.into_iter().for_each(|who| self.start(who));
        let step = self.shape.timeout * 40;
        self.run_until(self.now + self.shape.settle + step)?;
        let end = self.now + self.shape.timeout * LIVENESS;
        while self.now < end && self.check_healed().is_err() {
            self.run_until(self.now + step)?;
        }
        self.check_healed()
    }

    /// Plans what happens in the safety phase.
    fn plan_storm(&mut self) {
        for _ in 0..self.random.within(3..=40) {
            let at = self.random.time_below(self.heal_at);
            self.agenda.plan(at, Event::Change);
        }
        for _ in 0..self.random.below(8) {
            let at = self.random.time_below(self.heal_at);
            self.agenda.plan(at, Event::Crash);
        }
        for _ in 0..self.random.within(5..=60) {
            let at = self.random.time_below(self.heal_at);
            let rack = self.random.below(self.shape.racks.into()) as u32;
            self.agenda.plan(at, Event::Packet(rack));
        }
    }

    fn feed(&self) -> FeedConfig {
        FeedConfig { window: 4, retry: self.shape.delay * 3 + self.shape.jitter * 2 }
    }

    /// A new run of one of them.
    fn start(&mut self, who: Who) {
        self.crash(who);
        self.runs += 1;
        // Far enough apart that streams of different runs do not meet.
        let (incarnation, feed, shape) = (self.runs * 1_000_000, self.feed(), self.shape);
        let labels_max = shape.labels_max * 4;
        match who {
            Who::Central => {
                self.central = Some(Central::new(CentralConfig {
                    leafs: shape.racks,
                    incarnation,
                    silence: shape.timeout * 10,
                    settles_at: self.now + shape.settle,
                    tickets_max: 30,
                    labels_max: shape.labels_max,
                    feed,
                }));
                self.tell_anew();
            }
            Who::Leaf(rack) => {
                let (active, standby) = (shape.active, shape.standby);
                let (timeout, period) = (shape.timeout, shape.timeout / 2);
                let ports = shape.agents + 2;
                let config = LeafConfig {
                    rack,
                    ports,
                    incarnation,
                    active,
                    standby,
                    timeout,
                    period,
                    labels_max,
                    feed,
                };
                self.leafs.insert(rack, Leaf::new(config, self.now));
            }
            Who::Agent(rack, port) => {
                let period = shape.timeout / 4;
                let config = AgentConfig { rack, port, incarnation, period, labels_max };
                let machine = Agent::new(config, self.now);
                let (labels, newest, mute_until) = (BTreeMap::new(), BTreeMap::new(), Time::ZERO);
                self.agents
                    .insert((rack, port), AgentNode { machine, labels, newest, stream: 0, mute_until });
            }
        }
        self.drain(who);
    }

    fn crash(&mut self, who: Who) {
        match who {
            Who::Central => {
                self.central = None;
                self.told.clear();
                // No controller will say any more that they are confirmed.
                self.tickets.clear();
            }
            Who::Leaf(rack) => {
                self.leafs.remove(&rack);
                self.tickets.values_mut().for_each(|ticket| ticket.steady.retain(|(of, _)| *of != rack));
            }
            Who::Agent(rack, port) => {
                self.agents.remove(&(rack, port));
                self.disturb(rack, port);
            }
        }
    }

    fn disturb(&mut self, rack: u32, port: u32) {
        self.tickets.values_mut().for_each(|ticket| {
            ticket.steady.remove(&(rack, port));
        });
    }

    /// A new central controller is told by the manager what every rack should have.
    fn tell_anew(&mut self) {
        let wanted: Vec<_> = self.wanted.iter().filter(|(_, version)| **version > 0).collect();
        let wants: Vec<(u32, u32, u64)> =
            wanted.into_iter().map(|(&(rack, session), &version)| (rack, session, version)).collect();
        if !wants.is_empty() {
            self.set(wants, Vec::new());
        }
    }

    /// Changes labels of a session in some racks, or takes them away.
    fn change(&mut self) {
        if self.central.is_none() {
            return;
        }
        self.versions += 1;
        let session = self.random.below(SESSIONS) as u32;
        let (mut wants, mut before) = (Vec::new(), Vec::new());
        for rack in 0..self.shape.racks {
            if self.random.one_in(3) {
                continue;
            }
            let version = self.versions;
            wants.push((rack, session, version));
            let member = !self.random.one_in(3);
            let old = self.wanted.insert((rack, session), if member { version } else { 0 });
            before.push(((rack, session), old.unwrap_or(0)));
            if !member {
                self.removals.insert((rack, session, version));
            }
        }
        self.set(wants, before);
    }

    fn set(&mut self, wants: Vec<(u32, u32, u64)>, before: Vec<((u32, u32), u64)>) {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let label = |&(leaf, session, version): &(u32, u32, u64)| {
            let is_removed = self.removals.contains(&(leaf, session, version));
            let label = if is_removed { Vec::new() } else { version.to_be_bytes().to_vec() };
            Change { leaf, session, label }
        };
        let changes: Vec<Change> = wants.iter().map(label).collect();
        let places = self.leafs.iter();
        let steady = places.flat_map(|(rack, leaf)| leaf.agents().map(|agent| (*rack, agent.port))).collect();
        self.tickets.insert(ticket, Ticket { wants, steady, before });
        self.central_takes(CentralInput::Set { ticket, changes });
        self.drain(Who::Central);
        if self.random.one_in(20) && self.tickets.remove(&ticket).is_some() {
            self.central_takes(CentralInput::Forget { ticket });
            self.drain(Who::Central);
        }
    }

    fn central_takes(&mut self, input: CentralInput<'_>) {
        if let Some(central) = &mut self.central {
            self.coverage.hit(coverage::of_central(&input));
            central.handle(self.now, input);
        }
    }

    fn run_until(&mut self, end: Time) -> Result<(), String> {
        while let Some((at, event)) = self.agenda.next_until(end) {
            self.now = at;
            self.step(event);
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
        }
        self.now = end;
        Ok(())
    }

    fn note(&mut self, word: u64) {
        self.hash = (self.hash ^ word ^ self.now.0).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Start(who) => {
                let is_there = match who {
                    Who::Central => self.central.is_some(),
                    Who::Leaf(rack) => self.leafs.contains_key(&rack),
                    Who::Agent(rack, port) => self.agents.contains_key(&(rack, port)),
                };
                if !is_there {
                    self.start(who);
                }
            }
            Event::Wake(who) => {
                if self.wakes.take(&who, self.now) {
                    self.drain(who);
                }
            }
            Event::Change => self.change(),
            Event::Packet(rack) => self.packet(rack),
            Event::Crash => self.crash_someone(),
            Event::Deliver { to, from, datagram } => self.deliver(to, from, &datagram),
        }
    }

    fn crash_someone(&mut self) {
        let rack = self.random.below(self.shape.racks.into()) as u32;
        let port = self.random.below(self.shape.agents.into()) as u32;
        let who = match self.random.below(6) {
            0 | 1 => {
                self.coverage.hit(coverage::CENTRAL_CRASHES);
                Who::Central
            }
            2 => {
                self.coverage.hit(coverage::LEAF_CRASHES);
                Who::Leaf(rack)
            }
            3 | 4 => {
                self.coverage.hit(coverage::RACK_AGENT_CRASHES);
                Who::Agent(rack, port)
            }
            _ => {
                let until = self.now + self.shape.timeout * self.random.within(1..=20);
                if let Some(node) = self.agents.get_mut(&(rack, port)) {
                    node.mute_until = until;
                    self.coverage.hit(coverage::RACK_AGENT_MUTE);
                }
                return;
            }
        };
        self.crash(who);
        let back = self.now + Duration(self.random.magnitude(1_000..=20_000_000));
        self.agenda.plan(back, Event::Start(who));
    }

    fn send(&mut self, from: Who, to: Who, datagram: Vec<u8>) {
        let copies = if self.random.below(1_000) < self.shape.loss {
            self.coverage.hit(coverage::RACK_MESSAGE_LOST);
            0
        } else if self.random.below(1_000) < self.shape.duplication {
            self.coverage.hit(coverage::RACK_MESSAGE_DOUBLED);
            2
        } else {
            1
        };
        for _ in 0..copies {
            let delay = self.shape.delay + Duration(self.random.below(self.shape.jitter.0 + 1));
            self.agenda.plan(self.now + delay, Event::Deliver { to, from, datagram: datagram.clone() });
        }
    }

    fn deliver(&mut self, to: Who, from: Who, datagram: &[u8]) {
        let Ok(mut message) = Rack::parse(datagram) else {
            self.failure = Some(format!("{from:?} wrote what cannot be read"));
            return;
        };
        match (to, from) {
            (Who::Central, Who::Leaf(leaf)) => {
                if self.plant == Some(Plant::OldConfirmation)
                    && let (Rack::Heartbeat(heartbeat), Some(&(stream, last))) =
                        (&mut message, self.told.get(&leaf))
                    && heartbeat.stream != stream
                {
                    // As if what confirms an earlier run were of this one.
                    heartbeat.stream = stream;
                    (heartbeat.applied, heartbeat.confirmed) = (last, last);
                }
                self.central_takes(CentralInput::FromLeaf { leaf, message });
            }
            (Who::Leaf(rack), from) => {
                if let Some(leaf) = self.leafs.get_mut(&rack) {
                    let input = match from {
                        Who::Agent(_, port) => LeafInput::FromAgent { port, message },
                        _ => LeafInput::FromCentral(message),
                    };
                    self.coverage.hit(coverage::of_leaf(&input));
                    leaf.handle(self.now, input);
                }
            }
            (Who::Agent(rack, port), _) => {
                if let Some(node) = self.agents.get_mut(&(rack, port)) {
                    if let Rack::Updates(updates) = &mut message {
                        node.stream = node.stream.max(updates.stream);
                        if self.plant == Some(Plant::OldLabels) {
                            // As if every message were of the newest stream, and the next one.
                            (updates.stream, updates.after) = (node.stream, 0);
                        }
                    }
                    let input = AgentInput::Message(message);
                    self.coverage.hit(coverage::of_rack_agent(&input));
                    node.machine.handle(self.now, input);
                }
            }
            (Who::Central, _) => {}
        }
        self.drain(to);
    }

    fn drain(&mut self, who: Who) {
        let now = self.now;
        let deadline = match who {
            Who::Central => {
                while let Some(output) = self.central.as_mut().and_then(|central| central.poll(now)) {
                    self.do_central(output);
                }
                self.central.as_ref().and_then(Central::deadline)
            }
            Who::Leaf(rack) => {
                while let Some(output) = self.leafs.get_mut(&rack).and_then(|leaf| leaf.poll(now)) {
                    self.do_leaf(rack, output);
                }
                self.leafs.get(&rack).and_then(Leaf::deadline)
            }
            Who::Agent(rack, port) => {
                let node = (rack, port);
                while let Some(output) = self.agents.get_mut(&node).and_then(|node| node.machine.poll(now)) {
                    self.do_agent(rack, port, output);
                }
                self.agents.get(&node).and_then(|node| node.machine.deadline())
            }
        };
        if let Some(at) = deadline {
            let at = at.max(now + Duration(1));
            if self.wakes.note(who, at) {
                self.agenda.plan(at, Event::Wake(who));
            }
        }
    }

    fn do_central(&mut self, output: CentralOutput) {
        match output {
            CentralOutput::ToLeaf { leaf, datagram } => {
                match Rack::parse(&datagram) {
                    Ok(Rack::Standing(standing)) => {
                        let told = self.told.entry(leaf).or_default();
                        if told.0 != standing.stream {
                            *told = (standing.stream, 0);
                        }
                    }
                    Ok(Rack::Updates(updates)) => {
                        self.told.insert(leaf, (updates.stream, updates.last()));
                    }
                    _ => {}
                }
                self.send(Who::Central, Who::Leaf(leaf), datagram);
            }
            CentralOutput::Confirmed { ticket } => {
                self.coverage.hit(coverage::RACK_CONFIRMED);
                self.note(ticket);
                self.check_known(ticket);
            }
            CentralOutput::Refused { ticket, .. } => {
                self.coverage.hit(coverage::RACK_FULL);
                // None of the changes is made.
                let ticket = self.tickets.remove(&ticket);
                self.wanted.extend(ticket.into_iter().flat_map(|ticket| ticket.before));
            }
            CentralOutput::Silent { .. } => {}
        }
    }

    /// Checks that every agent that has been in its place all the time knows a confirmed change.
    fn check_known(&mut self, ticket: u64) {
        let Some(Ticket { wants, steady, .. }) = self.tickets.remove(&ticket) else {
            self.failure = Some(format!("{ticket} was confirmed, which was not asked for"));
            return;
        };
        for (rack, session, version) in wants {
            for &(_, port) in steady.iter().filter(|(of, _)| *of == rack) {
                let Some(node) = self.agents.get(&(rack, port)) else { continue };
                let known = node.newest.get(&session).copied();
                let removal = self.removals.range((rack, session, version)..).next();
                let is_removed = removal.is_some_and(|(r, s, _)| (*r, *s) == (rack, session));
                let gone = is_removed && !node.labels.contains_key(&session);
                if !gone && known.is_none_or(|known| known < version) {
                    self.failure = Some(format!(
                        "{ticket} is confirmed, but agent {port} of rack {rack} has {known:?}, not {version}"
                    ));
                }
            }
        }
    }

    fn do_leaf(&mut self, rack: u32, output: LeafOutput) {
        match output {
            LeafOutput::ToAgent { port, datagram } => {
                self.send(Who::Leaf(rack), Who::Agent(rack, port), datagram);
            }
            LeafOutput::ToCentral(datagram) => self.send(Who::Leaf(rack), Who::Central, datagram),
            LeafOutput::Agents { active, rack: all } => {
                if active.len() > self.shape.active || active.iter().any(|port| all >> port & 1 == 0) {
                    self.failure =
                        Some(format!("the switch of rack {rack} is told of {active:?} in {all:b}"));
                }
                self.switches.insert(rack, (active, 0));
            }
            LeafOutput::Look { port } => {
                if let (Some(&at), Some(leaf)) =
                    (self.relabelled.get(&(rack, port)), self.leafs.get_mut(&rack))
                {
                    let input = LeafInput::Relabelled { port, at };
                    self.coverage.hit(coverage::of_leaf(&input));
                    leaf.handle(self.now, input);
                }
            }
            LeafOutput::Returned { .. } => self.coverage.hit(coverage::RACK_AGENT_RETURNS),
            LeafOutput::Lost { port, .. } => self.disturb(rack, port),
            LeafOutput::Refused { .. } => {}
            LeafOutput::Full => self.failure = Some(format!("the leaf of rack {rack} is full")),
        }
    }

    fn do_agent(&mut self, rack: u32, port: u32, output: AgentOutput) {
        let now = self.now;
        let Some(node) = self.agents.get_mut(&(rack, port)) else { return };
        match output {
            AgentOutput::Send(_) if now < node.mute_until => {}
            AgentOutput::Send(datagram) => self.send(Who::Agent(rack, port), Who::Leaf(rack), datagram),
            AgentOutput::Set { session, label } => {
                let Ok(bytes) = <[u8; 8]>::try_from(label) else {
                    self.failure =
                        Some(format!("agent {port} of rack {rack} has a label that was never made"));
                    return;
                };
                let version = u64::from_be_bytes(bytes);
                let before = node.newest.insert(session, version);
                node.labels.insert(session, version);
                if let Some(before) = before.filter(|before| *before > version) {
                    self.failure = Some(format!(
                        "agent {port} of rack {rack} got version {version} of session {session} after {before}"
                    ));
                }
                self.note(version);
            }
            AgentOutput::Remove { session } => {
                node.labels.remove(&session);
            }
            AgentOutput::Active(_) => {}
            AgentOutput::Full => self.failure = Some(format!("agent {port} of rack {rack} is full")),
        }
    }

    /// A packet from above: to the next active agent, which needs a label for it.
    fn packet(&mut self, rack: u32) {
        let Some((active, turn)) = self.switches.get_mut(&rack) else { return };
        if active.is_empty() {
            return;
        }
        *turn = (*turn + 1) % active.len();
        let port = active[*turn];
        if self.agents.get(&(rack, port)).is_some_and(|node| !node.labels.is_empty()) {
            self.relabelled.insert((rack, port), self.now);
        }
    }

    /// Every agent in its place has every label in its newest version and nothing else, and everything is
    /// confirmed.
    fn check_healed(&self) -> Result<(), String> {
        for (&rack, leaf) in &self.leafs {
            let places: Vec<u32> = leaf.agents().map(|agent| agent.port).collect();
            let count = (self.shape.active + self.shape.standby).min(self.shape.agents as usize);
            let active = leaf.agents().filter(|agent| agent.active).count();
            if places.len() != count || active != self.shape.active.min(count) {
                return Err(format!("rack {rack} has agents {places:?}, {active} of them active"));
            }
            let wanted: BTreeMap<u32, u64> = self
                .wanted
                .range((rack, 0)..(rack + 1, 0))
                .filter(|(_, version)| **version > 0)
                .map(|((_, session), version)| (*session, *version))
                .collect();
            for port in places {
                let node = self.agents.get(&(rack, port));
                let labels = node.map(|node| &node.labels);
                if labels != Some(&wanted) {
                    return Err(format!(
                        "agent {port} of rack {rack} has {labels:?} in the end, not {wanted:?}"
                    ));
                }
            }
        }
        match self.tickets.first_key_value() {
            Some((ticket, waiting)) => Err(format!("{ticket} is never confirmed: {:?}", waiting.wants)),
            None => Ok(()),
        }
    }
}
