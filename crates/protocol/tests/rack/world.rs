//! A small world in virtual time: a central controller, racks with agents, and a network that loses, delays,
//! reorders and repeats messages. The checkers stand here, outside the machines.

use polycast_protocol::rack::{
    Agent, AgentConfig, AgentInput, AgentOutput, Central, CentralConfig, CentralInput, CentralOutput, Change,
    FeedConfig, Leaf, LeafConfig, LeafInput, LeafOutput,
};
use polycast_types::{Duration, Time};
use polycast_wire::rack::{Heartbeat, Rack};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};

/// Faults of the network; parts of 1,000.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub loss: u64,
    pub duplication: u64,
    /// Messages that come once more at any later time, when those who said them, or heard them, may have
    /// started anew.
    pub replays: u64,
    /// Heartbeats that are followed by one that claims what was never sent.
    pub lies: u64,
}

/// Limits of the machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub tickets: usize,
    pub central: usize,
    pub leaf: usize,
    pub agent: usize,
}

impl Limits {
    pub(crate) const WIDE: Limits = Limits { tickets: 10_000, central: 10_000, leaf: 10_000, agent: 10_000 };
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub racks: u32,
    pub agents: u32,
    pub active: usize,
    pub standby: usize,
    pub timeout: Duration,
    pub delay: Duration,
    pub jitter: Duration,
    pub limits: Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
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
    /// A packet of the session reaches a rack's leaf.
    Packet {
        rack: u32,
        session: u32,
        every: Duration,
        until: Time,
    },
}

pub(crate) struct AgentNode {
    pub machine: Agent,
    /// Labels that packets of each session get, as the versions that they carry.
    pub labels: BTreeMap<u32, u64>,
    /// The newest version ever applied in this run.
    newest: BTreeMap<u32, u64>,
}

pub(crate) struct World {
    pub shape: Shape,
    pub faults: Faults,
    pub now: Time,
    pub central: Central,
    /// Set while it runs.
    central_lives: bool,
    /// The newest run of each leaf controller that this run of it has heard.
    heard: BTreeMap<u32, u64>,
    pub leafs: BTreeMap<u32, Leaf>,
    pub agents: BTreeMap<(u32, u32), AgentNode>,
    /// Agents that the leaf switches hand packets to, and the next one in turn.
    pub switches: BTreeMap<u32, (Vec<u32>, usize)>,
    /// State that every rack should have in the end: the version of each label, 0 for none.
    pub wanted: BTreeMap<(u32, u32), u64>,
    removals: BTreeSet<(u32, u32, u64)>,
    tickets: BTreeMap<u64, Vec<(u32, u32, u64)>>,
    /// Agents that were in their places when a change was made, and have been there ever since.
    steady: BTreeMap<u64, BTreeSet<(u32, u32)>>,
    pub confirmed: BTreeMap<u64, Time>,
    /// Times when packets came through, by rack.
    pub through: BTreeMap<u32, Vec<Time>>,
    /// Times when the agents at ports of racks last relabelled a packet.
    relabelled: BTreeMap<(u32, u32), Time>,
    /// Agents that say nothing until then.
    pub mute: BTreeMap<(u32, u32), Time>,
    /// Number of messages of agents.
    pub beats: u64,
    /// Number of agents that were lost.
    pub lost: u64,
    /// Number of lost agents that lived, and reported so later.
    pub returned: u64,
    pub refused: u64,
    /// Number of reports that a machine is full.
    pub full: u64,
    versions: u64,
    /// Messages that may come once more.
    past: Vec<(Who, Who, Vec<u8>)>,
    events: BTreeMap<(Time, u64), Event>,
    wakes: BTreeMap<Who, Time>,
    sequence: u64,
    runs: u64,
    rng: Pcg64Mcg,
}

impl World {
    pub(crate) fn new(shape: Shape, faults: Faults, seed: u64) -> World {
        let mut world = World {
            shape,
            faults,
            now: Time::ZERO,
            central: central(&shape, 1, Time::ZERO),
            central_lives: true,
            heard: BTreeMap::new(),
            leafs: BTreeMap::new(),
            agents: BTreeMap::new(),
            switches: BTreeMap::new(),
            wanted: BTreeMap::new(),
            removals: BTreeSet::new(),
            tickets: BTreeMap::new(),
            steady: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            through: BTreeMap::new(),
            relabelled: BTreeMap::new(),
            mute: BTreeMap::new(),
            beats: 0,
            lost: 0,
            returned: 0,
            refused: 0,
            full: 0,
            versions: 0,
            past: Vec::new(),
            events: BTreeMap::new(),
            wakes: BTreeMap::new(),
            sequence: 0,
            runs: 0,
            rng: Pcg64Mcg::new(u128::from(seed) << 1 | 1),
        };
        for rack in 0..shape.racks {
            world.start(Who::Leaf(rack));
            (0..shape.agents).for_each(|agent| world.start(Who::Agent(rack, agent)));
        }
        world
    }

    pub(crate) fn random(&mut self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    /// A new run of a leaf controller or an agent.
    pub(crate) fn start(&mut self, who: Who) {
        self.crash(who);
        self.runs += 1;
        // Far enough apart that streams of different runs do not meet.
        let incarnation = self.runs * 1_000_000;
        match who {
            Who::Leaf(rack) => {
                let config = LeafConfig {
                    rack,
                    ports: self.shape.agents + 2,
                    incarnation,
                    active: self.shape.active,
                    standby: self.shape.standby,
                    timeout: self.shape.timeout,
                    period: self.shape.timeout / 2,
                    labels_max: self.shape.limits.leaf,
                    feed: feed(&self.shape),
                };
                self.leafs.insert(rack, Leaf::new(config, self.now));
            }
            Who::Agent(rack, port) => {
                let period = self.shape.timeout / 4;
                let config =
                    AgentConfig { rack, port, incarnation, period, labels_max: self.shape.limits.agent };
                let machine = Agent::new(config, self.now);
                let node = AgentNode { machine, labels: BTreeMap::new(), newest: BTreeMap::new() };
                self.agents.insert((rack, port), node);
            }
            Who::Central => {
                // It may not know all sessions for a while.
                self.central = central(&self.shape, incarnation, self.now + self.shape.timeout * 2);
                self.central_lives = true;
            }
        }
        self.drain(who);
    }

    /// The central controller dies and begins anew after a while: it is told again what labels there are, bit
    /// by bit.
    pub(crate) fn restart_central(&mut self, away: Duration) {
        self.crash(Who::Central);
        self.run_until(self.now + away);
        self.start(Who::Central);
        let wanted: Vec<_> = self.wanted.iter().map(|(place, version)| (*place, *version)).collect();
        for ((leaf, session), version) in wanted.into_iter().filter(|(_, version)| *version > 0) {
            self.versions += 1;
            let ticket = u64::MAX - self.versions;
            let label = version.to_be_bytes().to_vec();
            self.make(ticket, [Change { leaf, session, label }].into(), [(leaf, session, version)].into());
            self.run_until(self.now + self.shape.delay / 4);
        }
    }

    pub(crate) fn crash(&mut self, who: Who) {
        match who {
            Who::Leaf(rack) => {
                self.leafs.remove(&rack);
                self.steady.values_mut().for_each(|agents| agents.retain(|(of, _)| *of != rack));
            }
            Who::Agent(rack, port) => {
                self.agents.remove(&(rack, port));
                self.disturb(rack, port);
            }
            Who::Central => {
                self.central_lives = false;
                self.heard.clear();
                // Those that wait are not told; what they asked for is told to the next run.
                let confirmed = &self.confirmed;
                self.tickets.retain(|ticket, _| confirmed.contains_key(ticket));
                self.steady.clear();
            }
        }
    }

    fn disturb(&mut self, rack: u32, port: u32) {
        self.steady.values_mut().for_each(|agents| {
            agents.remove(&(rack, port));
        });
    }

    pub(crate) fn start_at(&mut self, at: Time, who: Who) {
        self.at(at, Event::Start(who));
    }

    /// Changes labels of a session in these racks; whether it has receivers there.
    pub(crate) fn set(&mut self, ticket: u64, session: u32, racks: &[(u32, bool)]) {
        self.versions += 1;
        let version = self.versions;
        let mut changes = Vec::new();
        let mut wants = Vec::new();
        for &(leaf, member) in racks {
            let label = if member { version.to_be_bytes().to_vec() } else { Vec::new() };
            changes.push(Change { leaf, session, label });
            wants.push((leaf, session, version));
            self.wanted.insert((leaf, session), if member { version } else { 0 });
            if !member {
                self.removals.insert((leaf, session, version));
            }
        }
        self.make(ticket, changes, wants);
    }

    fn make(&mut self, ticket: u64, changes: Vec<Change>, wants: Vec<(u32, u32, u64)>) {
        let places = self.leafs.iter();
        let places = places.flat_map(|(rack, leaf)| leaf.agents().map(|agent| (*rack, agent.port)));
        self.steady.insert(ticket, places.collect());
        self.tickets.insert(ticket, wants);
        self.central.handle(self.now, CentralInput::Set { ticket, changes });
        self.drain(Who::Central);
    }

    /// Packets of a session come to a rack from now on.
    pub(crate) fn packets(&mut self, rack: u32, session: u32, every: Duration, until: Time) {
        self.at(self.now, Event::Packet { rack, session, every, until });
    }

    pub(crate) fn run_until(&mut self, end: Time) {
        while let Some((&(at, _), _)) = self.events.first_key_value()
            && at <= end
        {
            let Some((_, event)) = self.events.pop_first() else { break };
            self.now = at;
            self.step(event);
        }
        self.now = end;
    }

    /// Every agent has every label in its newest version and nothing else, and everything is confirmed.
    pub(crate) fn assert_healed(&self) {
        for (&(rack, port), node) in &self.agents {
            let wanted: BTreeMap<u32, u64> = self
                .wanted
                .iter()
                .filter(|((leaf, _), version)| *leaf == rack && **version > 0)
                .map(|((_, session), version)| (*session, *version))
                .collect();
            assert_eq!(node.labels, wanted, "agent {port} of rack {rack} at {:?}", self.now);
        }
        assert_eq!(self.central.waiting(), 0, "confirmations at {:?}", self.now);
        let unconfirmed: BTreeSet<_> =
            self.tickets.keys().filter(|ticket| !self.confirmed.contains_key(ticket)).collect();
        assert!(unconfirmed.is_empty(), "never confirmed: {unconfirmed:?}");
        for (rack, leaf) in &self.leafs {
            let there: Vec<_> = leaf.agents().collect();
            let wanted = (self.shape.active + self.shape.standby).min(self.shape.agents as usize);
            assert_eq!(there.len(), wanted, "agents of rack {rack}");
            let active: Vec<u32> =
                there.iter().filter(|agent| agent.active).map(|agent| agent.port).collect();
            assert_eq!(active.len(), self.shape.active.min(wanted), "active agents of rack {rack}");
            assert_eq!(self.switches[rack].0, active);
            for view in there {
                assert_eq!(self.agents[&(*rack, view.port)].machine.is_active(), view.active);
            }
        }
    }

    /// The longest time without a packet in a rack.
    pub(crate) fn longest_gap(&self, rack: u32) -> Duration {
        let times = &self.through[&rack];
        times.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap_or(Duration::ZERO)
    }

    pub(crate) fn send(&mut self, from: Who, to: Who, datagram: Vec<u8>) {
        let copies = if self.rng.next_u64() % 1000 < self.faults.loss {
            0
        } else if self.rng.next_u64() % 1000 < self.faults.duplication {
            2
        } else {
            1
        };
        let mut messages = vec![(from, to, datagram.clone()); copies];
        if self.faults.replays > 0 {
            self.past.push((from, to, datagram));
            if self.rng.next_u64() % 1000 < self.faults.replays {
                let which = self.rng.next_u64() as usize % self.past.len();
                messages.push(self.past[which].clone());
            }
        }
        for (from, to, datagram) in messages {
            let delay = self.shape.delay.0 + self.rng.next_u64() % (self.shape.jitter.0 + 1);
            self.at(self.now + Duration(delay), Event::Deliver { to, from, datagram });
        }
    }

    fn at(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Start(who) => self.start(who),
            Event::Wake(who) => {
                if self.wakes.get(&who).is_some_and(|at| *at <= self.now) {
                    self.wakes.remove(&who);
                    self.drain(who);
                }
            }
            Event::Packet { rack, session, every, until } => {
                self.packet(rack, session);
                if self.now + every <= until {
                    self.at(self.now + every, Event::Packet { rack, session, every, until });
                }
            }
            Event::Deliver { to, from, datagram } => {
                self.deliver(to, from, &datagram);
                if self.rng.next_u64() % 1000 < self.faults.lies
                    && let Ok(Rack::Heartbeat(heartbeat)) = Rack::parse(&datagram)
                {
                    let which = self.random(3);
                    self.deliver(to, from, &lie(heartbeat, which));
                }
            }
        }
    }

    fn deliver(&mut self, to: Who, from: Who, datagram: &[u8]) {
        let message = Rack::parse(datagram).expect("machines write what parses");
        match (to, from) {
            (Who::Central, Who::Leaf(leaf)) if self.central_lives => {
                let Rack::Heartbeat(Heartbeat { incarnation, .. }) = message else { panic!("{message:?}") };
                let newest = self.heard.entry(leaf).or_default();
                *newest = incarnation.max(*newest);
                let (is_old, refused) = (incarnation < *newest, self.central.refused());
                self.central.handle(self.now, CentralInput::FromLeaf { leaf, message });
                let is_refused = self.central.refused() > refused;
                assert!(is_refused || !is_old, "leaf {leaf} of an earlier run was heard");
            }
            (Who::Central, Who::Leaf(_)) => return,
            (Who::Leaf(rack), from) => {
                let Some(leaf) = self.leafs.get_mut(&rack) else { return };
                let input = match from {
                    Who::Agent(_, port) => LeafInput::FromAgent { port, message },
                    _ => LeafInput::FromCentral(message),
                };
                leaf.handle(self.now, input);
            }
            (Who::Agent(rack, port), _) => {
                let Some(node) = self.agents.get_mut(&(rack, port)) else { return };
                node.machine.handle(self.now, AgentInput::Message(message));
            }
            _ => unreachable!("{from:?} does not speak to {to:?}"),
        }
        self.drain(to);
    }

    fn drain(&mut self, who: Who) {
        let now = self.now;
        let deadline = match who {
            Who::Central if !self.central_lives => None,
            Who::Central => {
                while let Some(output) = self.central.poll(now) {
                    self.do_central(output);
                }
                self.central.deadline()
            }
            Who::Leaf(rack) => {
                while let Some(output) = self.leafs.get_mut(&rack).and_then(|leaf| leaf.poll(now)) {
                    self.do_leaf(rack, output);
                }
                self.leafs.get(&rack).and_then(Leaf::deadline)
            }
            Who::Agent(rack, port) => {
                while let Some(output) =
                    self.agents.get_mut(&(rack, port)).and_then(|node| node.machine.poll(now))
                {
                    self.do_agent(rack, port, output);
                }
                self.agents.get(&(rack, port)).and_then(|node| node.machine.deadline())
            }
        };
        if let Some(at) = deadline {
            let at = at.max(now + Duration(1));
            if self.wakes.get(&who).is_none_or(|before| at < *before) {
                self.wakes.insert(who, at);
                self.at(at, Event::Wake(who));
            }
        }
    }

    fn do_central(&mut self, output: CentralOutput) {
        match output {
            CentralOutput::ToLeaf { leaf, datagram } => {
                self.send(Who::Central, Who::Leaf(leaf), datagram);
            }
            CentralOutput::Confirmed { ticket } => {
                assert!(self.confirmed.insert(ticket, self.now).is_none(), "{ticket} is confirmed twice");
                self.assert_known(ticket);
            }
            CentralOutput::Refused { ticket, .. } => {
                self.refused += 1;
                self.tickets.remove(&ticket);
                self.steady.remove(&ticket);
            }
            CentralOutput::Silent { .. } => {}
        }
    }

    /// Asserts that confirmed changes are known to every agent that has been in its place all the time.
    fn assert_known(&mut self, ticket: u64) {
        let steady = self.steady.remove(&ticket).unwrap_or_default();
        for &(rack, session, version) in &self.tickets[&ticket] {
            for &(_, port) in steady.iter().filter(|(of, _)| *of == rack) {
                let node = &self.agents[&(rack, port)];
                let known = node.newest.get(&session).copied();
                let has = node.labels.contains_key(&session);
                let taken_away = || self.removals.range((rack, session, version)..).next();
                let gone = !has && taken_away().is_some_and(|(r, s, _)| (*r, *s) == (rack, session));
                assert!(
                    gone || known.is_some_and(|known| known >= version),
                    "{ticket} is confirmed, but agent {port} of rack {rack} has {known:?}, not {version}"
                );
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
                assert!(active.len() <= self.shape.active, "no more than N are active");
                assert!(active.iter().all(|port| all >> port & 1 == 1), "active agents may name hosts");
                self.switches.insert(rack, (active, 0));
            }
            LeafOutput::Look { port } => {
                if let (Some(&at), Some(leaf)) =
                    (self.relabelled.get(&(rack, port)), self.leafs.get_mut(&rack))
                {
                    leaf.handle(self.now, LeafInput::Relabelled { port, at });
                }
            }
            LeafOutput::Returned { .. } => self.returned += 1,
            LeafOutput::Lost { port, .. } => {
                self.lost += 1;
                self.disturb(rack, port);
            }
            LeafOutput::Refused { .. } => {}
            LeafOutput::Full => self.full += 1,
        }
    }

    fn do_agent(&mut self, rack: u32, port: u32, output: AgentOutput) {
        let Some(node) = self.agents.get_mut(&(rack, port)) else { return };
        match output {
            AgentOutput::Send(_) if self.mute.get(&(rack, port)).is_some_and(|until| self.now < *until) => {}
            AgentOutput::Send(datagram) => {
                self.beats += 1;
                self.send(Who::Agent(rack, port), Who::Leaf(rack), datagram);
            }
            AgentOutput::Set { session, label } => {
                let version = u64::from_be_bytes(label.try_into().expect("a version has eight bytes"));
                let before = node.newest.insert(session, version);
                // A new leaf controller names everything once more.
                assert!(before.is_none_or(|before| before <= version), "{before:?} after {version}");
                node.labels.insert(session, version);
            }
            AgentOutput::Remove { session } => {
                let mut taken_away = self.removals.range((rack, session, 0)..=(rack, session, u64::MAX));
                let was_asked = taken_away.next().is_some();
                assert!(was_asked, "agent {port} of rack {rack} has lost the label of session {session}");
                node.labels.remove(&session);
            }
            AgentOutput::Active(_) => {}
            AgentOutput::Full => self.full += 1,
        }
    }

    /// A packet from above: to the next active agent, which needs a label for it.
    fn packet(&mut self, rack: u32, session: u32) {
        let Some((active, turn)) = self.switches.get_mut(&rack) else { return };
        if active.is_empty() {
            return;
        }
        *turn = (*turn + 1) % active.len();
        let port = active[*turn];
        if self.agents.get(&(rack, port)).is_some_and(|node| node.labels.contains_key(&session)) {
            self.relabelled.insert((rack, port), self.now);
            self.through.entry(rack).or_default().push(self.now);
        }
    }
}

fn central(shape: &Shape, incarnation: u64, settles_at: Time) -> Central {
    Central::new(CentralConfig {
        leafs: shape.racks,
        incarnation,
        silence: shape.timeout * 10,
        settles_at,
        tickets_max: shape.limits.tickets,
        labels_max: shape.limits.central,
        feed: feed(shape),
    })
}

/// The same heartbeat, of one that claims to have what was not sent yet.
fn lie(heartbeat: Heartbeat, which: u64) -> Vec<u8> {
    let Heartbeat { applied, confirmed, .. } = heartbeat;
    let future = applied + 1_000_000;
    let (applied, confirmed) = [(future, confirmed), (applied, future), (future, future)][which as usize];
    let mut datagram = Vec::new();
    Rack::Heartbeat(Heartbeat { applied, confirmed, ..heartbeat }).emit(&mut datagram);
    datagram
}

fn feed(shape: &Shape) -> FeedConfig {
    FeedConfig { window: 4, retry: shape.delay * 3 + shape.jitter * 2 }
}
