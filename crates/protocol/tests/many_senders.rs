//! A session in which every member sends, in virtual time: label switches, agents of racks and receivers as
//! the machines that they are, with the labels of one plan, through joins, leaves and failures.

use polycast_planning::labels::{LabelOptions, LabelPlanner, ManySession, ManyUpdate, SpineState};
use polycast_protocol::stream::{
    Order, OrderConfig, OrderInput, OrderOutput, PIECE_COST, Senders, SendersConfig, SendersCounts,
    SendersError, SendersOutput,
};
use polycast_protocol::switch::{Input, Output, RackLabels, Switch};
use polycast_topology::{Clos, Failures, Graph, Network, Node};
use polycast_types::{Duration, Handle, Time};
use polycast_wire::label::{Header, LabelKind, header_len};
use polycast_wire::stream;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SESSION: u32 = 0xef01_0203;
const HOLD: Duration = Duration::from_micros(500);
/// Time between two messages of a member.
const PERIOD: Duration = Duration::from_micros(100);
/// Time after a failure at which the controller has new labels for it.
const NOTICED: Duration = Duration::from_micros(400);

fn config(own: Option<Handle>) -> SendersConfig {
    let order = OrderConfig { hold: HOLD, messages_max: 64, bytes_max: 1 << 20 };
    SendersConfig { order, senders_max: 64, own }
}

fn handle_of(host: Node) -> Handle {
    Handle(u64::from(host) + 1_000)
}

/// Event at a time.
enum Event {
    /// A frame comes in at a node by a port.
    Frame { node: Node, port: u32, bytes: Vec<u8> },
    /// A member sends its next message.
    Send { host: Node },
    /// The controller plans anew.
    Plan,
}

/// A member: what it sends, and what it has heard.
struct Member {
    next: u64,
    senders: Senders,
    /// Messages that it got, by sender: their numbers, and how many were said to be lost before each.
    heard: BTreeMap<Handle, Vec<(u64, u64)>>,
}

struct World {
    planner: Arc<LabelPlanner>,
    many: ManySession,
    failures: Failures,
    switches: BTreeMap<Node, Switch>,
    racks: BTreeMap<u32, RackLabels>,
    members: BTreeMap<Node, Member>,
    events: BTreeMap<(Time, u64), Event>,
    now: Time,
    count: u64,
    random: Pcg64Mcg,
    /// One in so many frames is lost on the way to a server; 0 for none.
    lost_one_in: u32,
}

impl World {
    fn new(network: &str, filter_bits: u32, members: &[Node], seed: u128) -> World {
        let clos = network.parse::<Network>().unwrap().as_clos().unwrap();
        let planner = LabelPlanner::with_options(clos, LabelOptions::new(filter_bits)).unwrap();
        let planner = Arc::new(planner);
        let failures = Failures::none();
        let many = ManySession::new(&planner, SESSION.into(), members, &failures).unwrap();
        let switches = (clos.hosts()..clos.node_count())
            .map(|node| (node, Switch::new(Arc::clone(&planner), node, 10)))
            .collect();
        let mut world = World {
            many,
            failures,
            switches,
            racks: BTreeMap::new(),
            members: BTreeMap::new(),
            events: BTreeMap::new(),
            now: Time::ZERO,
            count: 0,
            random: Pcg64Mcg::new(seed),
            lost_one_in: 0,
            planner,
        };
        // Server 0 of each rack is its agent.
        for leaf in 0..clos.leafs() {
            let agents = Input::Agents { active: vec![0], rack: 1 };
            world.switch(clos.leaf(leaf), agents);
            let labels = RackLabels::new(world.planner.format().bytes() as usize, 4);
            world.racks.insert(leaf, labels);
        }
        let update = ManyUpdate {
            leafs: world.many.leaf_hosts().iter().map(|entry| entry.leaf).collect(),
            added: world.many.spine_state().to_vec(),
            ..ManyUpdate::default()
        };
        world.tell(&update);
        members.iter().for_each(|&host| world.add_member(host));
        world
    }

    fn clos(&self) -> Clos {
        *self.planner.clos()
    }

    fn switch(&mut self, node: Node, input: Input<'_>) -> Vec<Output> {
        let switch = self.switches.get_mut(&node).expect("a switch");
        switch.handle(self.now, input);
        std::iter::from_fn(|| switch.poll(Time::ZERO)).collect()
    }

    fn below(&mut self, n: u32) -> u32 {
        self.random.next_u32() % n
    }

    fn at(&mut self, delay: Duration, event: Event) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), event);
    }

    /// A member that hears all others from now on, and they it.
    fn add_member(&mut self, host: Node) {
        let own = handle_of(host);
        let mut senders = Senders::new(config(Some(own)));
        for (&other, member) in &mut self.members {
            senders.join(handle_of(other), member.next).unwrap();
            member.senders.join(own, 0).unwrap();
        }
        self.members.insert(host, Member { next: 0, senders, heard: BTreeMap::new() });
        let delay = Duration::from_micros(self.below(100).into());
        self.at(delay, Event::Send { host });
    }

    /// Switches and agents learn what has changed; senders look their label up when they send.
    fn tell(&mut self, update: &ManyUpdate) {
        let clos = self.clos();
        let spines: BTreeSet<Node> =
            update.added.iter().chain(&update.removed).map(|entry| entry.spine).collect();
        for spine in spines {
            let entries: Vec<SpineState> =
                self.many.spine_state().iter().filter(|entry| entry.spine == spine).copied().collect();
            let bit = |entry: &SpineState| 1u128 << clos.port_to(spine, entry.leaf).unwrap();
            let ports = entries.iter().fold(0, |ports, entry| ports | bit(entry));
            let said = self.switch(spine, Input::Block { session: SESSION, ports });
            assert_eq!(said, [], "there is room");
        }
        for &leaf in &update.leafs {
            let hosts =
                self.many.leaf_hosts().iter().find(|entry| entry.leaf == leaf).map(|entry| entry.hosts);
            let rack = self.racks.get_mut(&leaf).unwrap();
            match hosts {
                Some(hosts) => rack.set(SESSION, &self.planner.format().leaf_label(hosts).0).unwrap(),
                None => drop(rack.remove(SESSION)),
            }
        }
    }

    /// A frame leaves a node by a port, if the link works.
    fn transmit(&mut self, node: Node, port: u32, bytes: Vec<u8>) {
        let clos = self.clos();
        if !self.failures.link_works(&clos, node, port) {
            return;
        }
        let peer = clos.neighbor(node, port);
        if peer < clos.hosts() && self.lost_one_in > 0 && self.below(self.lost_one_in) == 0 {
            return;
        }
        let port = clos.port_to(peer, node).unwrap();
        // Frames overtake each other.
        let delay = Duration::from_nanos(1_000 + u64::from(self.below(50_000)));
        self.at(delay, Event::Frame { node: peer, port, bytes });
    }

    fn send(&mut self, host: Node) {
        let Some(member) = self.members.get_mut(&host) else { return };
        let number = member.next;
        member.next += 1;
        if let Some(label) = self.many.label(&self.planner, host) {
            let mut bytes = Vec::new();
            Header { kind: LabelKind::Filter, session: SESSION, label: &label.0 }.emit(&mut bytes);
            let header =
                stream::Header { stream: handle_of(host), number, piece: 0, pieces: 1, sealed: false };
            header.emit(&mut bytes);
            bytes.extend(b"message");
            self.transmit(host, 0, bytes);
        }
        self.at(PERIOD, Event::Send { host });
    }

    /// A frame at a server: one with a source label is for the rack's agent, and goes back to the leaf.
    fn at_server(&mut self, host: Node, mut bytes: Vec<u8>) {
        let leaf = self.clos().leaf_index_of(host);
        let header_len = header_len(self.planner.format().bytes() as usize);
        if self.racks[&leaf].relabel(&mut bytes).is_ok() {
            self.transmit(host, 0, bytes);
        } else if let (Some(member), Ok((header, payload))) =
            (self.members.get_mut(&host), stream::Header::parse(&bytes[header_len..]))
        {
            let stream::Header { stream, number, piece, pieces, .. } = header;
            let input = OrderInput::Piece { number, piece, pieces, len: payload.len() };
            member.senders.handle(self.now, stream, input);
        }
    }

    fn hear(&mut self) {
        for member in self.members.values_mut() {
            while let Some(SendersOutput { sender, output }) = member.senders.poll(self.now) {
                if let OrderOutput::Deliver { number, lost } = output {
                    member.heard.entry(sender).or_default().push((number, lost));
                }
            }
        }
    }

    /// Lets time pass.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let due = self.members.values().filter_map(|member| member.senders.deadline()).min();
            let next = self.events.first_key_value().map(|((at, _), _)| *at);
            let Some(at) = next.into_iter().chain(due).min().filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            if next == Some(at) {
                let (_, event) = self.events.pop_first().unwrap();
                match event {
                    Event::Send { host } => self.send(host),
                    Event::Plan => self.plan(),
                    Event::Frame { node, bytes, .. } if node < self.clos().hosts() => {
                        self.at_server(node, bytes)
                    }
                    Event::Frame { node, port, bytes } => {
                        for output in self.switch(node, Input::Packet { port, header: &bytes }) {
                            if let Output::Copy { port } = output {
                                self.transmit(node, port, bytes.clone());
                            }
                        }
                    }
                }
            }
            self.hear();
        }
        self.now = end;
    }

    fn plan(&mut self) {
        let planner = Arc::clone(&self.planner);
        let update = self.many.replan(&planner, SESSION.into(), &self.failures).unwrap();
        self.tell(&update);
    }

    fn join(&mut self, host: Node) {
        let planner = Arc::clone(&self.planner);
        let update = self.many.join(&planner, SESSION.into(), host, &self.failures).unwrap();
        self.tell(&update);
        self.add_member(host);
    }

    fn leave(&mut self, host: Node) {
        let planner = Arc::clone(&self.planner);
        let update = self.many.leave(&planner, SESSION.into(), host, &self.failures).unwrap();
        self.tell(&update);
        self.members.remove(&host);
        for member in self.members.values_mut() {
            member.senders.leave(handle_of(host));
        }
    }

    /// At each receiver the numbers of each sender rise, and what is missing between two is said.
    fn orders_hold(&self) {
        for (host, member) in &self.members {
            for (sender, heard) in &member.heard {
                assert_ne!(*sender, handle_of(*host), "a member does not hear itself");
                for pair in heard.windows(2) {
                    let [(before, _), (number, lost)] = pair else { unreachable!() };
                    assert_eq!(*number, before + 1 + lost, "host {host} hears {sender:?}");
                }
            }
        }
    }

    /// Each member has heard all messages of each other one in this time, without a gap.
    fn all_hear_all(&mut self, time: Duration) {
        // What was lost before is said by then.
        self.run(HOLD + PERIOD * 4);
        self.members.values_mut().for_each(|member| member.heard.clear());
        self.run(time);
        let least = (time.0 / PERIOD.0) as usize - 5;
        for (host, member) in &self.members {
            for other in self.members.keys().filter(|other| *other != host) {
                let heard = member.heard.get(&handle_of(*other)).map_or(&[][..], |heard| heard);
                assert!(heard.len() >= least, "host {host} heard {} of host {other}", heard.len());
                assert!(heard.iter().all(|(_, lost)| *lost == 0), "host {host} lost some of host {other}");
            }
        }
        self.orders_hold();
    }
}

const MEMBERS: [Node; 7] = [0, 1, 6, 9, 14, 20, 31];

#[test]
fn every_member_hears_all_others_in_their_order() {
    let mut world = World::new("fat-tree:4,3", 5, &[0, 1, 6, 9, 14], 1);
    world.all_hear_all(Duration::from_millis(5));
    for member in world.members.values() {
        let SendersCounts { own, strangers } = member.senders.counts();
        assert!(own > 0 && strangers == 0, "its own packets come back to a sender, which drops them");
    }
}

#[test]
fn joins_and_leaves_change_what_others_hear_by_that_member_alone() {
    let mut world = World::new("clos:4,4,2,2,2", 6, &MEMBERS, 2);
    world.all_hear_all(Duration::from_millis(2));
    // Into a known rack, and into one of its own.
    for host in [7, 26] {
        world.join(host);
        world.orders_hold();
        world.all_hear_all(Duration::from_millis(2));
    }
    for host in [6, 31, 0] {
        world.leave(host);
        world.all_hear_all(Duration::from_millis(2));
        assert!(world.members.values().all(|member| member.senders.counts_of(handle_of(host)).is_none()));
    }
}

#[test]
fn a_failure_costs_messages_that_are_said_and_then_none() {
    for seed in 0..8u32 {
        let mut world = World::new("clos:4,4,2,2,2", 6, &MEMBERS, u128::from(seed));
        let clos = world.clos();
        world.all_hear_all(Duration::from_millis(2));
        let path = world.many.plan_of(&world.planner, 0).unwrap().tree.path;
        let link = match seed % 4 {
            0 => clos.link(clos.leaf(0), clos.hosts_per_leaf() + path.plane),
            1 => clos.link(clos.spine(1, path.plane), clos.leafs_per_pod() + path.core),
            2 => clos.link(clos.leaf(3), clos.hosts_per_leaf() + path.plane),
            _ => {
                // It comes back with empty tables.
                let spine = clos.spine(0, path.plane);
                world.switches.insert(spine, Switch::new(Arc::clone(&world.planner), spine, 10));
                world.failures.fail_node(spine);
                clos.link(clos.leaf(0), clos.hosts_per_leaf() + path.plane)
            }
        };
        world.failures.fail_link(link);
        world.at(NOTICED, Event::Plan);
        world.run(Duration::from_millis(3));
        world.orders_hold();
        let lost: u64 = world
            .members
            .values()
            .flat_map(|member| member.heard.values().flatten())
            .map(|(_, lost)| lost)
            .sum();
        assert!(lost > 0, "seed {seed}: the failure cost something");
        world.all_hear_all(Duration::from_millis(3));
        // It comes back.
        world.failures = Failures::none();
        world.at(NOTICED, Event::Plan);
        world.run(Duration::from_millis(1));
        world.all_hear_all(Duration::from_millis(2));
    }
}

#[test]
fn what_is_lost_of_one_sender_is_said_of_that_one() {
    let mut world = World::new("clos:4,4,2,2,2", 6, &MEMBERS, 5);
    world.lost_one_in = 20;
    world.run(Duration::from_millis(20));
    world.orders_hold();
    let mut lost = 0;
    for (host, member) in &world.members {
        for other in MEMBERS.iter().filter(|other| *other != host) {
            let heard = &member.heard[&handle_of(*other)];
            let said: u64 = heard.iter().skip(1).map(|(_, lost)| lost).sum();
            let counts = member.senders.counts_of(handle_of(*other)).unwrap();
            assert_eq!((counts.delivered, counts.lost), (heard.len() as u64, said), "host {host}");
            lost += said;
        }
    }
    assert!(lost > 100, "{lost} were lost");
}

fn piece(number: u64, piece: u16, pieces: u16) -> OrderInput {
    OrderInput::Piece { number, piece, pieces, len: 1_000 }
}

#[test]
fn a_member_that_floods_the_others_loses_its_own_messages() {
    let bytes_max = 10 * (1_000 + PIECE_COST);
    let order = OrderConfig { hold: HOLD, messages_max: 64, bytes_max };
    let mut senders = Senders::new(SendersConfig { order, senders_max: 2, own: None });
    let (quiet, loud) = (Handle(1), Handle(2));
    senders.join(quiet, 0).unwrap();
    senders.join(loud, 0).unwrap();
    assert_eq!(senders.join(Handle(3), 0), Err(SendersError::Full(2)));
    assert_eq!(senders.join(quiet, 7), Ok(()), "it is known already");
    assert!(senders.handle(Time(1), quiet, piece(0, 0, 2)));
    for number in 0..50 {
        senders.handle(Time(2), loud, piece(number, 0, 2));
    }
    assert!(senders.handle(Time(3), quiet, piece(0, 1, 2)));
    let outputs: Vec<SendersOutput> = std::iter::from_fn(|| senders.poll(Time(3))).collect();
    let delivered = OrderOutput::Deliver { number: 0, lost: 0 };
    assert!(outputs.contains(&SendersOutput { sender: quiet, output: delivered }), "{outputs:?}");
    let forgotten = outputs.iter().filter(|said| matches!(said.output, OrderOutput::Forget { .. })).count();
    assert!(forgotten >= 40 && outputs.iter().all(|said| said.sender == loud || said.output == delivered));
    // Its gaps are said when something of it is whole again.
    assert!(senders.handle(Time(4), loud, piece(60, 0, 1)));
    let after = Time(5) + HOLD;
    let outputs: Vec<SendersOutput> = std::iter::from_fn(|| senders.poll(after)).collect();
    let said = SendersOutput { sender: loud, output: OrderOutput::Deliver { number: 60, lost: 0 } };
    assert_eq!(outputs.last(), Some(&said), "a receiver that has heard none has lost none");
    // One that leaves takes what waits of it along.
    assert!(senders.handle(after, loud, piece(70, 0, 2)));
    assert_eq!(senders.leave(loud).map(|counts| counts.delivered), Some(1));
    let forgotten = SendersOutput { sender: loud, output: OrderOutput::Forget { number: 70 } };
    assert_eq!(senders.poll(after), Some(forgotten));
    senders.check();
    // One that comes is heard from its next message on: others may have recorded what is older.
    senders.join(Handle(4), 9).unwrap();
    assert!(
        !senders.handle(after, Handle(4), piece(8, 0, 1)) && senders.handle(after, Handle(4), piece(9, 0, 1))
    );
    assert!(!senders.handle(after, loud, piece(61, 0, 1)));
    assert_eq!(senders.counts(), SendersCounts { own: 0, strangers: 1 });
}

#[test]
fn one_sender_is_as_a_stream_of_one_source() {
    let mut random = Pcg64Mcg::new(9);
    let mut order = Order::new(config(None).order);
    let mut senders = Senders::new(config(None));
    senders.join(Handle(5), 0).unwrap();
    let mut now = Time(1);
    for step in 0..20_000u64 {
        now += Duration::from_micros((random.next_u32() % 40).into());
        let number = step / 4 + u64::from(random.next_u32() % 24);
        let input = piece(number, random.next_u32() as u16 % 3, 3);
        assert_eq!(senders.handle(now, Handle(5), input), order.handle(now, input), "step {step}");
        let those: Vec<OrderOutput> =
            std::iter::from_fn(|| senders.poll(now)).map(|said| said.output).collect();
        assert_eq!(those, std::iter::from_fn(|| order.poll(now)).collect::<Vec<_>>(), "step {step}");
        assert_eq!(senders.deadline(), order.deadline());
    }
    assert_eq!(senders.counts_of(Handle(5)), Some(order.counts()));
    assert!(order.counts().lost > 0 && order.counts().delivered > 1_000, "{:?}", order.counts());
}
