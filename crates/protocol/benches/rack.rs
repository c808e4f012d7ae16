//! Orca, figure 6d: confirmed updates of a central controller, its leaf controllers and their agents, all in
//! one thread, with every message written and read again. Confirmations are heartbeats; those that nothing
//! but time asks for come when no message is on its way.

use criterion::measurement::{Measurement, WallTime};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use polycast_protocol::rack::{
    Agent, AgentConfig, AgentInput, AgentOutput, Central, CentralConfig, CentralInput, CentralOutput, Change,
    FeedConfig, Leaf, LeafConfig, LeafInput, LeafOutput,
};
use polycast_types::{Duration, Time};
use polycast_wire::rack::Rack;
use std::collections::VecDeque;
use std::hint::black_box;

const AGENTS: u32 = 2;
/// T of the paper.
const TIMEOUT: Duration = Duration::from_millis(1);
/// Updates in one measured step, and how many of them may wait for confirmation.
const UPDATES: u64 = 1_000;
const WAITING_MAX: u64 = 64;

#[derive(Clone, Copy)]
enum Who {
    Central,
    Leaf(u32),
    Agent(u32, u32),
}

struct Tree {
    start: <WallTime as Measurement>::Intermediate,
    central: Central,
    leafs: Vec<Leaf>,
    agents: Vec<Agent>,
    messages: VecDeque<(Who, Who, Vec<u8>)>,
    confirmed: u64,
    ticket: u64,
}

impl Tree {
    fn new(leafs: u32) -> Tree {
        let feed = FeedConfig::default();
        let central = Central::new(CentralConfig {
            leafs,
            incarnation: 1,
            silence: Duration::from_secs(1),
            settles_at: Time::ZERO,
            tickets_max: 1_000,
            labels_max: 100_000,
            feed,
        });
        let leaf = |rack| LeafConfig {
            rack,
            ports: 24,
            incarnation: 1,
            active: 1,
            standby: 1,
            // A pause of the machine that measures is no failure.
            timeout: TIMEOUT * 1_000,
            period: TIMEOUT / 2,
            labels_max: 100_000,
            feed,
        };
        let agent =
            |rack, port| AgentConfig { rack, port, incarnation: 1, period: TIMEOUT / 4, labels_max: 100_000 };
        let places = (0..leafs).flat_map(|rack| (0..AGENTS).map(move |port| (rack, port)));
        Tree {
            start: WallTime.start(),
            central,
            leafs: (0..leafs).map(|rack| Leaf::new(leaf(rack), Time::ZERO)).collect(),
            agents: places.map(|(rack, port)| Agent::new(agent(rack, port), Time::ZERO)).collect(),
            messages: VecDeque::new(),
            confirmed: 0,
            ticket: 0,
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + Duration::from(WallTime.end(self.start))
    }

    /// One label of one session changes, as with a join.
    fn change(&mut self) {
        self.ticket += 1;
        let leaf = (self.ticket % self.leafs.len() as u64) as u32;
        let session = (self.ticket.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u32;
        let mut label = vec![0; 19];
        label[..8].copy_from_slice(&(self.ticket | 1 << 63).to_be_bytes());
        let changes = vec![Change { leaf, session, label }];
        self.central.handle(self.now(), CentralInput::Set { ticket: self.ticket, changes });
        self.drain(Who::Central);
    }

    /// Changes labels until so many more are confirmed.
    fn confirm(&mut self, count: u64) -> u64 {
        let goal = self.confirmed + count;
        while self.confirmed < goal {
            while self.ticket < goal && self.ticket - self.confirmed < WAITING_MAX {
                self.change();
            }
            match self.messages.pop_front() {
                Some((from, to, datagram)) => self.deliver(from, to, &datagram),
                None => self.wake(),
            }
        }
        self.confirmed
    }

    /// Nothing is on its way: only time goes on.
    fn wake(&mut self) {
        let now = self.now();
        for rack in 0..self.leafs.len() as u32 {
            for port in 0..AGENTS {
                let due = self.agents[(rack * AGENTS + port) as usize].deadline();
                if due.is_some_and(|at| at <= now) {
                    self.drain(Who::Agent(rack, port));
                }
            }
            if self.leafs[rack as usize].deadline().is_some_and(|at| at <= now) {
                self.drain(Who::Leaf(rack));
            }
        }
        self.drain(Who::Central);
    }

    fn deliver(&mut self, from: Who, to: Who, datagram: &[u8]) {
        let now = self.now();
        let message = Rack::parse(datagram).expect("machines write what parses");
        match (from, to) {
            (Who::Leaf(leaf), Who::Central) => {
                self.central.handle(now, CentralInput::FromLeaf { leaf, message });
            }
            (Who::Central, Who::Leaf(leaf)) => {
                self.leafs[leaf as usize].handle(now, LeafInput::FromCentral(message));
            }
            (Who::Agent(_, port), Who::Leaf(leaf)) => {
                self.leafs[leaf as usize].handle(now, LeafInput::FromAgent { port, message });
            }
            (_, Who::Agent(rack, port)) => {
                self.agents[(rack * AGENTS + port) as usize].handle(now, AgentInput::Message(message));
            }
            _ => {}
        }
        self.drain(to);
    }

    fn drain(&mut self, who: Who) {
        let now = self.now();
        match who {
            Who::Central => {
                while let Some(output) = self.central.poll(now) {
                    match output {
                        CentralOutput::ToLeaf { leaf, datagram } => {
                            self.messages.push_back((who, Who::Leaf(leaf), datagram));
                        }
                        CentralOutput::Confirmed { .. } => self.confirmed += 1,
                        CentralOutput::Refused { why, .. } => panic!("{why}"),
                        CentralOutput::Silent { .. } => {}
                    }
                }
            }
            Who::Leaf(leaf) => {
                while let Some(output) = self.leafs[leaf as usize].poll(now) {
                    match output {
                        LeafOutput::ToAgent { port, datagram } => {
                            self.messages.push_back((who, Who::Agent(leaf, port), datagram));
                        }
                        LeafOutput::ToCentral(datagram) => {
                            self.messages.push_back((who, Who::Central, datagram));
                        }
                        _ => {}
                    }
                }
            }
            Who::Agent(rack, port) => {
                while let Some(output) = self.agents[(rack * AGENTS + port) as usize].poll(now) {
                    if let AgentOutput::Send(datagram) = output {
                        self.messages.push_back((who, Who::Leaf(rack), datagram));
                    }
                }
            }
        }
    }
}

fn updates(c: &mut Criterion) {
    let mut group = c.benchmark_group("rack");
    group.throughput(Throughput::Elements(UPDATES));
    for leafs in [1, 16, 576] {
        let mut tree = Tree::new(leafs);
        group.bench_function(format!("confirmed updates, {leafs} leafs of {AGENTS} agents"), |b| {
            b.iter(|| black_box(tree.confirm(UPDATES)));
        });
    }
    group.finish();
}

criterion_group!(benches, updates);
criterion_main!(benches);
