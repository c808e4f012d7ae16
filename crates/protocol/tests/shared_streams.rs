//! Shared streams in virtual time: every member sends, each to all others over the one path of the stream,
//! through losses, copies that overtake each other, joins, leaves and deaths, and a manager that begins anew.
//! What members hear is compared with a map of all that was sent, by sender and number.

use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::labels::Encoding;
use polycast_planning::labels::LabelOptions;
use polycast_planning::orca::{Orca, OrcaConfig};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Channel, Fabric, Fabrics, Fcfs, Plan, PlanId};
use polycast_protocol::leases::{
    AgentKey, HeldLease, Input, Join, Leases, LeasesConfig, OnDeviceFailure, Output, STREAMS_FROM,
    SessionsConfig, known_hosts,
};
use polycast_protocol::stream::{
    OrderConfig, OrderInput, OrderOutput, Senders, SendersConfig, SendersOutput, StreamRefusal, StreamSender,
    StreamWord, Streams, StreamsConfig, StreamsInput, StreamsOutput,
};
use polycast_topology::Clos;
use polycast_types::{Duration, Handle, Time};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};

const HOSTS: u32 = 16;
const STREAM: &str = "ticks";
const REQUEST: u64 = STREAMS_FROM + 7;
const HOLD: Duration = Duration::from_micros(400);
const PERIOD: Duration = Duration::from_micros(100);

fn name(host: u32) -> String {
    format!("h{host}")
}

fn index(name: &str) -> u32 {
    name[1..].parse().unwrap()
}

fn leases(labels: bool) -> Leases {
    let names: Vec<String> = (0..HOSTS).map(name).collect();
    let pool = AddressPool::new([239, 255, 64, 0].into(), 4, 7474).unwrap();
    let mut fabrics: Vec<Box<dyn Fabric>> = vec![Box::new(TcpChain)];
    if labels {
        let config = OrcaConfig {
            clos: Clos::new(4, 2, 2, 2, 2).unwrap(),
            labels: LabelOptions::new(69),
            encoding: Some(Encoding::Filter),
            entries_max: 64,
            trees: 1,
            rack_feedback: true,
            rate: None,
        };
        let places = known_hosts(names.iter().map(String::as_str)).map(|(_, host)| host).zip(0..);
        fabrics.push(Box::new(Orca::new(config, places, pool).unwrap()));
    } else {
        fabrics.push(Box::new(IpMulticast::new(pool)));
    }
    let config = LeasesConfig {
        lease: Duration::from_secs(30),
        silence: Duration::from_secs(300),
        sessions: SessionsConfig { of_address_max: 1_024, ..SessionsConfig::default() },
        pending_max: 8,
        leases_max: 100,
        agent_leases_max: 100,
        receiver_leases_max: 1_000,
        grant_bytes_max: u64::MAX,
        agents_max: 64,
        on_device_failure: OnDeviceFailure::Fallback,
        kept_max: 0,
        patience: Duration::ZERO,
        claims: None,
        recorded: false,
        first_plan: PlanId(1_000),
    };
    let mut leases = Leases::new(config, Fabrics::new(fabrics), Box::new(Fcfs));
    for name in &names {
        leases.know_host(name);
    }
    leases
}

/// A member: what it sends, and what it has heard.
struct Member {
    ask: u64,
    handle: Handle,
    next: u64,
    /// The path on which it sends and listens, once it was told.
    channel: Option<Channel>,
    /// Handles by the names of those that it hears.
    known: BTreeMap<String, Handle>,
    senders: Senders,
    /// Numbers of the messages that it got, with how many were said to be lost before each.
    heard: BTreeMap<Handle, Vec<(u64, u64)>>,
    refused: Option<StreamRefusal>,
}

struct World {
    now: Time,
    leases: Leases,
    streams: Streams,
    incarnations: BTreeMap<u32, u64>,
    members: BTreeMap<u32, Member>,
    /// The host that has made the stream, with its handle and the number of its next message.
    source: Option<(u32, Handle, u64)>,
    /// The plan of its path.
    plan: Option<Plan>,
    /// Copies on their way, by the time when they come: to whom, from whom, and the message.
    copies: BTreeMap<(Time, u64), (u32, Handle, u64)>,
    /// All that was sent, with the members that it went to.
    sent: BTreeMap<(Handle, u64), BTreeSet<u32>>,
    serial: u64,
    /// Copies in a thousand that are lost.
    loss: u32,
    jitter: u64,
    random: Pcg64Mcg,
}

impl World {
    fn new(labels: bool, seed: u64) -> Self {
        let mut world = World {
            now: Time(1),
            leases: leases(labels),
            streams: Streams::new(StreamsConfig { senders_max: 6, ..StreamsConfig::default() }, Time(1)),
            incarnations: (0..HOSTS).map(|host| (host, 1)).collect(),
            members: BTreeMap::new(),
            source: None,
            plan: None,
            copies: BTreeMap::new(),
            sent: BTreeMap::new(),
            serial: 0,
            loss: 0,
            jitter: 1,
            random: Pcg64Mcg::new(seed.into()),
        };
        (0..HOSTS).for_each(|host| world.arrive(host, Vec::new()));
        world
    }

    fn agent(&self, host: u32) -> AgentKey {
        AgentKey { name: name(host), incarnation: self.incarnations[&host] }
    }

    fn arrive(&mut self, host: u32, held: Vec<HeldLease>) {
        let agent = self.agent(host);
        let (address, from) = (([10, 0, 0, host as u8].into(), 7401), [127, 0, 0, 1].into());
        self.leases.handle(self.now, Input::Join(Join { agent: agent.clone(), address, from, leases: held }));
        self.table(StreamsInput::Arrived { agent });
    }

    fn table(&mut self, input: StreamsInput) {
        self.streams.handle(self.now, input);
        self.drain();
    }

    fn fresh(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn create(&mut self, host: u32) {
        if self.source.is_none() {
            self.source = Some((host, Handle(self.fresh() << 8), 0));
        }
        let (agent, handle) = (self.agent(host), self.source.unwrap().1);
        let key = agent.request(REQUEST);
        let lease = self.leases.leases().find(|lease| *lease.key == key);
        let held =
            lease.map(|lease| (lease.grant.plan.clone(), lease.grant.receiver_names().cloned().collect()));
        let (name, request) = (STREAM.to_string(), REQUEST);
        self.table(StreamsInput::Create { agent, name, request, handle, shared: true, held });
    }

    fn join(&mut self, host: u32) {
        let ask = self.fresh();
        let own = self.source.filter(|(source, _, _)| *source == host).map(|(_, handle, _)| handle);
        let handle = own.unwrap_or(Handle(self.fresh() << 8));
        let order = OrderConfig { hold: HOLD, messages_max: 64, bytes_max: 1 << 20 };
        let member = Member {
            ask,
            handle,
            next: 0,
            channel: None,
            known: BTreeMap::new(),
            senders: Senders::new(SendersConfig { order, senders_max: 8, own: Some(handle) }),
            heard: BTreeMap::new(),
            refused: None,
        };
        self.members.insert(host, member);
        self.say_join(host);
    }

    fn say_join(&mut self, host: u32) {
        let (agent, Member { ask, handle, .. }) = (self.agent(host), &self.members[&host]);
        let (ask, sends) = (*ask, Some(*handle));
        self.table(StreamsInput::Join { agent, name: STREAM.into(), ask, sends });
    }

    fn leave(&mut self, host: u32) {
        self.members.remove(&host);
        let agent = self.agent(host);
        self.table(StreamsInput::Leave { agent, name: STREAM.into() });
    }

    /// An agent dies, and another run of it comes.
    fn die(&mut self, host: u32) {
        self.members.remove(&host);
        let agent = self.agent(host);
        self.leases.handle(self.now, Input::Leave { agent, keeps: false });
        self.drain();
        *self.incarnations.get_mut(&host).unwrap() += 1;
        self.arrive(host, Vec::new());
    }

    fn drain(&mut self) {
        loop {
            while let Some(output) = self.leases.poll(self.now) {
                if let Some(input) = self.obey(output) {
                    self.streams.handle(self.now, input);
                }
            }
            match self.streams.poll(self.now) {
                None => return,
                Some(StreamsOutput::Lease(input)) => self.leases.handle(self.now, input),
                Some(StreamsOutput::Tell { agent, word, .. }) => self.hear_word(index(&agent.name), word),
            }
        }
    }

    fn obey(&mut self, output: Output) -> Option<StreamsInput> {
        match output {
            Output::Response { request, response } => {
                self.plan = response.as_ref().ok().map(|grant| grant.plan.clone());
                Some(StreamsInput::Response { request, response })
            }
            Output::Extended { request, result } => Some(StreamsInput::Changed { request, result }),
            Output::Replanned { request, plan, .. } => {
                self.plan = Some(plan.clone());
                Some(StreamsInput::Replanned { request, plan })
            }
            Output::Released { request, .. } => {
                self.plan = None;
                Some(StreamsInput::Ended { request })
            }
            Output::Gone { agent, .. } => Some(StreamsInput::Gone { agent }),
            _ => None,
        }
    }

    fn next_of(&self, host: u32) -> u64 {
        match self.source {
            Some((source, _, next)) if source == host => next,
            _ => self.members.get(&host).map_or(0, |member| member.next),
        }
    }

    fn hear_word(&mut self, host: u32, word: StreamWord) {
        match word {
            StreamWord::Where { receiver, ask } => {
                let (agent, next) = (self.agent(host), self.next_of(host));
                let input = StreamsInput::At { agent, name: STREAM.into(), receiver, ask, next };
                self.streams.handle(self.now, input);
            }
            StreamWord::Refused(refusal) => {
                if let Some(member) = self.members.get_mut(&host) {
                    member.refused = Some(refusal);
                }
            }
            StreamWord::Joined { channel, source, handle, ask, from, others, .. } => {
                let Some(member) = self.members.get_mut(&host).filter(|member| member.ask == ask) else {
                    return;
                };
                member.channel = Some(channel);
                let own = StreamSender { name: source, handle: Some(handle), from: Some(from) };
                let all: Vec<StreamSender> = others.expect("it is shared").into_iter().chain([own]).collect();
                let stays = |name: &String, handle: &mut Handle| {
                    let told = all.iter().find(|sender| sender.name == *name);
                    told.is_some_and(|told| told.handle.is_none_or(|told| told == *handle))
                };
                let gone: Vec<_> = member.known.extract_if(.., |name, handle| !stays(name, handle)).collect();
                for (_, handle) in gone {
                    let _counts = member.senders.leave(handle);
                }
                for sender in all {
                    if let (Some(handle), Some(from)) = (sender.handle, sender.from)
                        && handle != member.handle
                    {
                        member.senders.join(handle, from).unwrap();
                        member.known.insert(sender.name, handle);
                    }
                }
            }
            StreamWord::Created | StreamWord::Ended => {}
        }
    }

    /// A host that may sends a message: copies go to all other members of the path.
    fn send(&mut self, host: u32) {
        let Some((channel, handle, number)) = self.pen(host) else { return };
        let lease = self.leases.leases().find(|lease| lease.key.request == REQUEST);
        let Some(grant) = lease.map(|lease| lease.grant.clone()) else { return };
        // A door takes what a source of the path sends, and of no other host.
        let key = self.source.map(|(source, _, _)| name(source)).unwrap();
        let may = grant.further_sources.contains(&name(host)) || name(host) == key;
        if !may || grant.plan.channel != channel {
            return;
        }
        let to: Vec<u32> = grant.receiver_names().map(|name| index(name)).filter(|to| *to != host).collect();
        self.sent.insert((handle, number), to.iter().copied().collect());
        for to in to {
            if self.random.next_u32() % 1_000 >= self.loss {
                let at = self.now + Duration(self.random.next_u64() % self.jitter);
                let serial = self.fresh();
                self.copies.insert((at, serial), (to, handle, number));
            }
        }
    }

    /// The channel, handle and number for the next message of a host, which counts it.
    fn pen(&mut self, host: u32) -> Option<(Channel, Handle, u64)> {
        match &mut self.source {
            Some((source, handle, next)) if *source == host => {
                let channel = self.plan.as_ref()?.channel.clone();
                *next += 1;
                Some((channel, *handle, *next - 1))
            }
            _ => {
                let member = self.members.get_mut(&host)?;
                let channel = member.channel.clone()?;
                member.next += 1;
                Some((channel, member.handle, member.next - 1))
            }
        }
    }

    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some((&(at, serial), _)) = self.copies.first_key_value().filter(|((at, _), _)| *at <= end) {
            let (to, handle, number) = self.copies.remove(&(at, serial)).unwrap();
            self.now = self.now.max(at);
            if let Some(member) = self.members.get_mut(&to) {
                let input = OrderInput::Piece { number, piece: 0, pieces: 1, len: 100 };
                member.senders.handle(self.now, handle, input);
            }
            self.deliver();
        }
        self.now = end;
        self.deliver();
        self.drain();
    }

    fn deliver(&mut self) {
        for member in self.members.values_mut() {
            while let Some(SendersOutput { sender, output }) = member.senders.poll(self.now) {
                if let OrderOutput::Deliver { number, lost } = output {
                    member.heard.entry(sender).or_default().push((number, lost));
                }
            }
        }
    }

    /// Every host that may sends, so many times.
    fn talk(&mut self, rounds: u32) {
        for _ in 0..rounds {
            let hosts: BTreeSet<u32> =
                self.members.keys().copied().chain(self.source.map(|(host, _, _)| host)).collect();
            for host in hosts {
                self.send(host);
            }
            self.pass(PERIOD);
        }
    }

    /// Looks whether each member has heard each sender in the order of its numbers, each gap said, and
    /// nothing that was not sent to it.
    fn check(&self) {
        for (host, member) in &self.members {
            for (handle, heard) in &member.heard {
                assert_ne!(*handle, member.handle, "h{host} hears itself");
                let mut last = None;
                for &(number, lost) in heard {
                    let to = self.sent.get(&(*handle, number));
                    assert!(to.is_some_and(|to| to.contains(host)), "h{host} heard {number} of {handle:?}");
                    if let Some(last) = last {
                        assert_eq!(number, last + 1 + lost, "h{host}: each gap is said");
                    }
                    last = Some(number);
                }
            }
        }
    }

    /// The numbers that a member has heard of a sender.
    fn heard(&self, host: u32, of: Handle) -> Vec<u64> {
        self.members[&host].heard.get(&of).into_iter().flatten().map(|(number, _)| *number).collect()
    }

    /// Forgets what was heard and sent so far.
    fn forget(&mut self) {
        self.members.values_mut().for_each(|member| member.heard.clear());
    }

    /// Each of these hears all that each of them sends from now on, when nothing is lost.
    fn hear_each_other(&mut self, hosts: &[u32]) {
        (self.loss, self.jitter) = (0, 1);
        self.pass(HOLD + HOLD);
        self.forget();
        let begun: BTreeMap<u32, u64> = hosts.iter().map(|host| (*host, self.next_of(*host))).collect();
        self.talk(5);
        self.pass(HOLD + HOLD);
        for (sender, begun) in begun {
            let own = self.source.filter(|(source, _, _)| *source == sender).map(|(_, handle, _)| handle);
            let handle = own.unwrap_or_else(|| self.members[&sender].handle);
            for host in hosts.iter().filter(|host| **host != sender && self.members.contains_key(host)) {
                let expected: Vec<u64> = (begun..begun + 5).collect();
                assert_eq!(self.heard(*host, handle), expected, "h{host} hears h{sender}");
            }
        }
        self.check();
    }
}

#[test]
fn every_member_hears_every_other_one_in_its_order() {
    for labels in [true, false] {
        let mut world = World::new(labels, 1);
        world.create(0);
        for host in [3, 9, 14] {
            world.join(host);
        }
        // The source sends, and does not listen.
        world.hear_each_other(&[0, 3, 9, 14]);
        world.join(0);
        world.hear_each_other(&[0, 3, 9, 14]);
        world.leave(9);
        world.hear_each_other(&[0, 3, 14]);
        world.leave(3);
        world.leave(14);
        assert_eq!(world.leases.leases().count(), 0, "only the source listens");
        world.join(5);
        world.hear_each_other(&[0, 5]);
    }
}

/// Copies are lost and overtake each other while members come, go and die; what they hear is in order, and
/// each gap said; in the end all hear each other.
#[test]
fn losses_and_deaths_leave_gaps_that_are_said() {
    for seed in 0..40 {
        let mut world = World::new(seed % 2 == 0, seed);
        world.create(0);
        (world.loss, world.jitter) = (50 * (seed as u32 % 5), 1 + 200_000 * (seed % 4));
        for step in 0..60 {
            let host = 1 + world.random.next_u32() % 6;
            match (world.random.next_u32() % 8, world.members.contains_key(&host)) {
                (0..5, false) => world.join(host),
                (0, true) => world.leave(host),
                (1, true) => world.die(host),
                // Its session breaks: it says again what it asks for.
                (2, true) => {
                    world.arrive(host, Vec::new());
                    world.say_join(host);
                }
                (3, _) if step % 3 == 0 => {
                    world.arrive(0, Vec::new());
                    world.create(0);
                }
                _ => {}
            }
            world.talk(4);
            world.check();
            world.streams.check();
        }
        world.pass(Duration::from_secs(10));
        let all: Vec<u32> = world.members.keys().copied().chain([0]).collect();
        let refused: Vec<_> = world.members.values().filter_map(|member| member.refused.clone()).collect();
        assert!(refused.is_empty(), "seed {seed}: {refused:?}");
        world.hear_each_other(&all);
    }
}

/// Another manager learns the stream from its members, and none of them hears less of the others.
#[test]
fn a_manager_that_begins_anew_learns_who_sends() {
    for labels in [true, false] {
        let mut world = World::new(labels, 3);
        world.create(0);
        [3, 9, 14].into_iter().for_each(|host| world.join(host));
        world.talk(3);
        let held: Vec<HeldLease> = world
            .leases
            .leases()
            .map(|lease| HeldLease {
                request: lease.key.request,
                plan: lease.grant.plan_id,
                object: lease.object,
                further_sources: lease.grant.further_sources.clone(),
                receivers: lease.grant.receiver_names().cloned().collect(),
                bytes: 0,
                fabric: lease.grant.plan.fabric.into(),
                channel: lease.grant.plan.channel.clone(),
                left: None,
                kept: Some(lease.grant.plan.clone()),
                only: false,
            })
            .collect();
        assert_eq!((held.len(), held[0].further_sources.len()), (1, 3));
        world.leases = leases(labels);
        world.streams = Streams::new(StreamsConfig::default(), world.now);
        // One member says first that it listens, and one comes late.
        world.arrive(3, Vec::new());
        world.say_join(3);
        world.arrive(0, held);
        world.create(0);
        world.arrive(14, Vec::new());
        world.say_join(14);
        let before = world.members[&3].heard.clone();
        world.talk(3);
        world.arrive(9, Vec::new());
        world.say_join(9);
        world.talk(3);
        world.pass(HOLD + HOLD);
        world.check();
        for (handle, heard) in &world.members[&3].heard {
            let gaps: u64 = heard.iter().skip(before[handle].len()).map(|(_, lost)| lost).sum();
            assert_eq!(gaps, 0, "the path stays, and so does what is known of its senders");
        }
        world.pass(Duration::from_secs(20));
        world.hear_each_other(&[0, 3, 9, 14]);
    }
}

#[test]
fn mistakes_are_said_in_a_sentence() {
    let mut world = World::new(false, 4);
    world.create(0);
    (1..=6).for_each(|host| world.join(host));
    world.join(7);
    let refusal = world.members[&7].refused.clone().expect("there are six");
    assert!(refusal.to_string().contains("has 6 members, the most"), "{refusal}");
    world.leave(1);
    world.join(7);
    assert_eq!(world.members[&7].refused, None);
    // A handle that another one has is no member's.
    world.leave(2);
    world.join(1);
    let handle = world.members[&3].handle;
    world.members.get_mut(&1).unwrap().handle = handle;
    world.say_join(1);
    let refusal = world.members[&1].refused.clone().expect("two cannot be told apart");
    assert_eq!(refusal, StreamRefusal::SameHandle(handle.0));
    world.leave(1);
    // Another run says that its stream is not shared.
    let (agent, name, request) = (world.agent(0), STREAM.to_string(), REQUEST);
    let handle = world.source.unwrap().1;
    world.table(StreamsInput::Create { agent, name, request, handle, shared: false, held: None });
    world.hear_each_other(&[0, 3, 4, 5, 6, 7]);
}
