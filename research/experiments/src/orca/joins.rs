//! Orca, figure 6c: how soon a receiver that joins gets a packet, by how far controllers and hosts are from
//! each other.
//!
//! The controllers are `protocol::rack`'s, the labels `planning::labels`'. Every message between two of
//! source, receiver, central controller, leaf controllers and agents takes half of a round trip, as the paper
//! delays all that leaves a workstation. No program takes time here, so what is not the network's is waiting:
//! for a controller's timer, or for the source's next packet.

use std::collections::BTreeMap;

use polycast_planning::labels::{LabelPlanner, Session, Update};
use polycast_protocol::rack::{
    Agent, AgentConfig, AgentInput, AgentOutput, Central, CentralConfig, CentralInput, CentralOutput, Change,
    FeedConfig, Leaf, LeafConfig, LeafInput, LeafOutput,
};
use polycast_simulator::{Agenda, Wakes};
use polycast_topology::{Clos, Failures, FatTree, Node};
use polycast_types::{Duration, Time};
use polycast_wire::rack::Rack;

use crate::Row;
use crate::random::Random;
use crate::report::{Axis, Figure, Options, Outcome, Series};

/// Mean round trips of the placements P1 to P4: the paper has the first and the last, and 200 us a step.
const ROUND_TRIPS_US: [u32; 4] = [479, 679, 879, 1_120];
/// A round trip differs from the mean by at most this: the paper's longest one of P4 has 1,326 us.
const SPREAD_US: u32 = 206;
/// Joins of a placement.
const JOINS: u32 = 30;
/// From one packet of the source to the next.
const EVERY: Duration = Duration::from_micros(100);
/// T of the paper.
const TIMEOUT: Duration = Duration::from_millis(1);
/// Between two joins: all is confirmed, and all heartbeats are as they were.
const SETTLES: Duration = Duration::from_millis(50);
/// A join that takes so long has failed.
const PATIENCE: Duration = Duration::from_secs(1);
const AGENTS: u32 = 2;
const SESSION: u32 = 7;

/// Time when the source receives a label with one leaf more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// At the same time as the rack: so the manager does it. A packet may come to a rack that has no label
    /// yet, and is lost there.
    AtOnce,
    /// After the agents of the rack have confirmed theirs.
    Confirmed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Central,
    Leaf(u32),
    Agent(u32, u32),
}

enum Event {
    Deliver { from: Who, to: Who, datagram: Vec<u8> },
    Wake(Who),
}

/// The controllers of a network, and one session whose receivers come and go.
struct World {
    now: Time,
    round_trip_us: u32,
    random: Random,
    central: Central,
    leafs: BTreeMap<u32, Leaf>,
    agents: BTreeMap<(u32, u32), Agent>,
    /// The agent to which each leaf hands packets.
    active: BTreeMap<u32, Vec<u32>>,
    /// The labels that agents have.
    labels: BTreeMap<(u32, u32), Vec<u8>>,
    /// The newest changes that were confirmed.
    confirmed: u64,
    agenda: Agenda<Event>,
    wakes: Wakes<Who>,
    ticket: u64,
}

impl World {
    fn new(clos: &Clos, round_trip_us: u32, seed: u64) -> Self {
        let feed = FeedConfig::default();
        let central = Central::new(CentralConfig {
            leafs: clos.leafs(),
            incarnation: 1,
            silence: TIMEOUT * 10,
            settles_at: Time::ZERO,
            tickets_max: 16,
            labels_max: 16,
            feed,
        });
        let leaf = |rack| LeafConfig {
            rack,
            ports: clos.hosts_per_leaf(),
            incarnation: 1,
            active: 1,
            standby: AGENTS as usize - 1,
            // With what heartbeats of far controllers are late by.
            timeout: TIMEOUT * 4,
            period: TIMEOUT / 2,
            labels_max: 16,
            feed,
        };
        let agent =
            |rack, port| AgentConfig { rack, port, incarnation: 1, period: TIMEOUT / 4, labels_max: 16 };
        let places = (0..clos.leafs()).flat_map(|rack| (0..AGENTS).map(move |port| (rack, port)));
        let mut world = World {
            now: Time::ZERO,
            round_trip_us,
            random: Random::new(seed),
            central,
            leafs: (0..clos.leafs()).map(|rack| (rack, Leaf::new(leaf(rack), Time::ZERO))).collect(),
            agents: places
                .map(|(rack, port)| ((rack, port), Agent::new(agent(rack, port), Time::ZERO)))
                .collect(),
            active: BTreeMap::new(),
            labels: BTreeMap::new(),
            confirmed: 0,
            agenda: Agenda::default(),
            wakes: Wakes::default(),
            ticket: 0,
        };
        let leafs: Vec<Who> = world.leafs.keys().map(|rack| Who::Leaf(*rack)).collect();
        let agents: Vec<Who> = world.agents.keys().map(|(rack, port)| Who::Agent(*rack, *port)).collect();
        [Who::Central].into_iter().chain(leafs).chain(agents).for_each(|who| world.drain(who));
        world
    }

    /// Draws the time that a message is on its way.
    fn delay(&mut self) -> Duration {
        let round_trip_us = self.round_trip_us - SPREAD_US + self.random.below(2 * SPREAD_US + 1);
        Duration::from_nanos(u64::from(round_trip_us) * 500)
    }

    fn send(&mut self, from: Who, to: Who, datagram: Vec<u8>) {
        let delay = self.delay();
        self.agenda.plan(self.now + delay, Event::Deliver { from, to, datagram });
    }

    /// Goes on until this time, or until something is so.
    fn run(&mut self, end: Time, until: impl Fn(&World) -> bool) {
        while !until(self)
            && let Some((at, event)) = self.agenda.next_until(end)
        {
            self.now = at;
            match event {
                Event::Wake(who) if self.wakes.take(&who, at) => self.drain(who),
                Event::Wake(_) => {}
                Event::Deliver { from, to, datagram } => self.deliver(from, to, &datagram),
            }
        }
        if !until(self) {
            self.now = end;
        }
    }

    fn deliver(&mut self, from: Who, to: Who, datagram: &[u8]) {
        let (now, message) = (self.now, Rack::parse(datagram).expect("controllers write what parses"));
        match (to, from) {
            (Who::Central, Who::Leaf(leaf)) => {
                self.central.handle(now, CentralInput::FromLeaf { leaf, message });
            }
            (Who::Leaf(rack), Who::Agent(_, port)) => {
                self.leaf(rack).handle(now, LeafInput::FromAgent { port, message });
            }
            (Who::Leaf(rack), _) => self.leaf(rack).handle(now, LeafInput::FromCentral(message)),
            (Who::Agent(rack, port), _) => self.agent(rack, port).handle(now, AgentInput::Message(message)),
            (Who::Central, _) => unreachable!("only leaf controllers speak to the central one"),
        }
        self.drain(to);
    }

    fn leaf(&mut self, rack: u32) -> &mut Leaf {
        self.leafs.get_mut(&rack).expect("every rack has a leaf controller")
    }

    fn agent(&mut self, rack: u32, port: u32) -> &mut Agent {
        self.agents.get_mut(&(rack, port)).expect("every rack has these agents")
    }

    fn drain(&mut self, who: Who) {
        let now = self.now;
        let deadline = match who {
            Who::Central => {
                while let Some(output) = self.central.poll(now) {
                    match output {
                        CentralOutput::ToLeaf { leaf, datagram } => self.send(who, Who::Leaf(leaf), datagram),
                        CentralOutput::Confirmed { ticket } => self.confirmed = ticket,
                        CentralOutput::Refused { why, .. } => panic!("{why}"),
                        CentralOutput::Silent { .. } => {}
                    }
                }
                self.central.deadline()
            }
            Who::Leaf(rack) => {
                while let Some(output) = self.leaf(rack).poll(now) {
                    match output {
                        LeafOutput::ToAgent { port, datagram } => {
                            self.send(who, Who::Agent(rack, port), datagram)
                        }
                        LeafOutput::ToCentral(datagram) => self.send(who, Who::Central, datagram),
                        LeafOutput::Agents { active, .. } => {
                            self.active.insert(rack, active);
                        }
                        _ => {}
                    }
                }
                self.leaf(rack).deadline()
            }
            Who::Agent(rack, port) => {
                while let Some(output) = self.agent(rack, port).poll(now) {
                    match output {
                        AgentOutput::Send(datagram) => self.send(who, Who::Leaf(rack), datagram),
                        AgentOutput::Set { label, .. } => {
                            self.labels.insert((rack, port), label);
                        }
                        AgentOutput::Remove { .. } => {
                            self.labels.remove(&(rack, port));
                        }
                        AgentOutput::Active(_) | AgentOutput::Full => {}
                    }
                }
                self.agent(rack, port).deadline()
            }
        };
        let Some(at) = deadline.map(|at| at.max(now + Duration::from_nanos(1))) else { return };
        if self.wakes.note(who, at) {
            self.agenda.plan(at, Event::Wake(who));
        }
    }

    /// Hands the labels of a session as it is now to the racks that an event changes.
    fn set(&mut self, planner: &LabelPlanner, session: &Session, update: &Update) {
        self.ticket += 1;
        let change = |&leaf: &u32| {
            let hosts = session.plan().leaf_hosts.iter().find(|entry| entry.leaf == leaf);
            let label = hosts.map(|entry| planner.format().leaf_label(entry.hosts).0);
            Change { leaf, session: SESSION, label: label.unwrap_or_default() }
        };
        let changes = update.leafs.iter().map(change).collect();
        self.central.handle(self.now, CentralInput::Set { ticket: self.ticket, changes });
        self.drain(Who::Central);
    }

    /// Returns true if the agent that receives packets in a rack would pass them to this port.
    fn reaches(&self, planner: &LabelPlanner, rack: u32, port: u32) -> bool {
        let agent = self.active.get(&rack).and_then(|active| active.first());
        let Some(label) = agent.and_then(|agent| self.labels.get(&(rack, *agent))) else { return false };
        let all = (0..planner.clos().hosts_per_leaf()).fold(0, |ports, port| ports | 1 << port);
        let names = |ports: u128| planner.format().leaf_label(ports).0 == *label;
        // Racks here are small enough to try all that a label may name.
        (1..=all).any(|ports: u128| ports >> port & 1 == 1 && names(ports))
    }

    /// A host asks to join: how soon it has a packet.
    fn join(&mut self, planner: &LabelPlanner, session: &mut Session, host: Node, told: Told) -> Duration {
        let asked_at = self.now;
        let request = self.delay();
        self.run(asked_at + request, |_| false);
        let update = session.join(planner, host).expect("the host is of the network");
        self.set(planner, session, &update);
        let set_at = self.now;
        let clos = planner.clos();
        let (rack, port) = (clos.leaf_index_of(host), host % clos.hosts_per_leaf());
        self.run(set_at + PATIENCE, |world| world.reaches(planner, rack, port));
        assert!(self.reaches(planner, rack, port), "the rack hears of it");
        let labelled_at = self.now;
        let ticket = self.ticket;
        self.run(set_at + PATIENCE, |world| world.confirmed == ticket);
        assert_eq!(self.confirmed, ticket, "it is confirmed");
        let (to_source, to_receiver) = (self.delay(), self.delay());
        let told_at = match (update.source_label, told) {
            (false, _) => None,
            (true, Told::Confirmed) => Some(self.now + to_source),
            (true, Told::AtOnce) => Some(set_at + to_source),
        };
        // The first packet that carries the label, and finds the rack's own.
        let first = |from: Time| Time(from.0.div_ceil(EVERY.0) * EVERY.0);
        let leaves_at = first(Time(labelled_at.max(asked_at + to_receiver).0 - to_receiver.0));
        let leaves_at = told_at.map_or(leaves_at, |at| leaves_at.max(first(at)));
        (leaves_at + to_receiver).since(asked_at)
    }
}

/// Returns the times of all joins of a placement.
fn placement(round_trip_us: u32, told: Told, seed: u64) -> Vec<Duration> {
    let clos =
        FatTree::new(4, 3).ok().and_then(|tree| tree.as_clos()).expect("fat-tree(4, 3) is a Clos network");
    let mut planner = LabelPlanner::new(clos, 69).expect("labels for this network");
    // A receiver in the source's pod and one in another: some hosts that join are in their racks.
    let plan = planner.plan(SESSION.into(), 0, &[2, 8], &Failures::none()).expect("members are hosts");
    planner.count_in(&plan.spine_state);
    let mut session = Session::new(0, plan);
    let mut world = World::new(&clos, round_trip_us, seed);
    world.run(Time::ZERO + SETTLES, |_| false);
    let all = Update {
        leafs: session.plan().leaf_hosts.iter().map(|entry| entry.leaf).collect(),
        ..Update::default()
    };
    world.set(&planner, &session, &all);
    let mut joins = Vec::new();
    while joins.len() < JOINS as usize {
        world.run(world.now + SETTLES, |_| false);
        let host = world.random.below(clos.hosts());
        if host == session.source() || session.is_receiver(&planner, host) {
            continue;
        }
        joins.push(world.join(&planner, &mut session, host, told));
        let update = session.leave(&planner, host).expect("the host is of the network");
        world.set(&planner, &session, &update);
    }
    joins
}

fn mean_ms(joins: &[Duration]) -> f64 {
    joins.iter().map(|took| took.0 as f64 / 1e6).sum::<f64>() / joins.len() as f64
}

/// Figure 6c.
#[must_use]
pub(super) fn figure_6c(options: &Options) -> Outcome {
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    let (mut took, mut confirmed) = (Vec::new(), Vec::new());
    for (at, round_trip_us) in ROUND_TRIPS_US.into_iter().enumerate() {
        let seed = options.seed ^ (at as u64 + 1) << 32;
        let joins = placement(round_trip_us, Told::AtOnce, seed);
        let later = placement(round_trip_us, Told::Confirmed, seed);
        let row = |what: &str, paper, ms| {
            Row::new(format!("P{}, a round trip of {round_trip_us} us: {what}", at + 1), paper, ms, "ms")
        };
        let x = f64::from(round_trip_us);
        took.push((x, mean_ms(&joins)));
        confirmed.push((x, mean_ms(&later)));
        let mean = row("join delay, mean", (at == 3).then_some(4.0), took[at].1);
        rows.push(if at == 3 { mean.at_most(4.0).note("the paper: less than 4 ms") } else { mean });
        rows.push(row("join delay where the source waits for the rack's word, mean", None, confirmed[at].1));
        all.extend(joins.iter().map(|join| join.0 as f64 / 1e6));
    }
    all.sort_unstable_by(f64::total_cmp);
    let quantile = |part: f64| all[((part * all.len() as f64).ceil() as usize).clamp(1, all.len()) - 1];
    rows.push(Row::new("all placements: join delay, median", Some(3.12), quantile(0.5), "ms"));
    rows.push(Row::new("all placements: join delay, 99 %", Some(6.53), quantile(0.99), "ms"));
    let most = confirmed.iter().map(|point| point.1).fold(4.0, f64::max);
    let figure = Figure::lines(
        "fig-6c",
        "How soon a receiver that joins gets a packet",
        Axis::linear("mean round trip", "us"),
        Axis::linear("join delay", "ms").range(0.0, 1.1 * most),
        vec![
            Series::ours("join delay, mean", took),
            Series::ours("where the source waits for the rack's word", confirmed),
        ],
    );
    Outcome::from(rows).figure(figure).note(format!(
        "{JOINS} joins a placement, of hosts of a fat-tree of four-port switches with two receivers; a packet of the source every {} us; two \
         agents a rack. Round trips differ by up to {SPREAD_US} us from their mean, the paper's most in P4; of P2 and P3 it says only that each \
         step adds 200 us.",
        EVERY.0 / 1_000
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message takes 136.5 to 342.5 us in P1. A host in a rack with receivers waits for the request, the
    /// leaf controller, the agent, and at most one more packet; one in another rack waits for the
    /// confirmations and the source too.
    #[test]
    fn a_join_takes_the_messages_that_it_needs() {
        let half = |us: u64| Duration::from_nanos(us * 500);
        let least = half(u64::from(ROUND_TRIPS_US[0] - SPREAD_US));
        let most = half(u64::from(ROUND_TRIPS_US[0] + SPREAD_US));
        let joins = placement(ROUND_TRIPS_US[0], Told::Confirmed, 5);
        assert_eq!(joins.len(), JOINS as usize);
        for join in &joins {
            assert!(*join >= least * 3 && *join <= most * 7 + EVERY, "{join:?}");
        }
        let short = joins.iter().filter(|join| **join <= most * 3 + EVERY).count();
        assert!(short > 0 && short < joins.len() / 2, "{short} hosts are in racks with receivers");
        let sooner = placement(ROUND_TRIPS_US[0], Told::AtOnce, 5);
        assert!(mean_ms(&sooner) < mean_ms(&joins));
    }

    #[test]
    fn far_controllers_take_longer_and_the_same_seed_gives_the_same() {
        let options = Options { quick: true, seed: 1, threads: 1 };
        let outcome = figure_6c(&options);
        let means: Vec<f64> = outcome
            .rows
            .iter()
            .filter(|row| row.name.ends_with("join delay, mean"))
            .map(|row| row.ours)
            .collect();
        assert_eq!(means.len(), 4);
        assert!(means.windows(2).all(|pair| pair[0] < pair[1]), "{means:?}");
        assert_eq!(outcome, figure_6c(&options));
    }
}
