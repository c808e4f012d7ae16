//! The table of streams on top of real leases: agents that join and leave, die, and come back.

use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::labels::Encoding;
use polycast_planning::labels::LabelOptions;
use polycast_planning::orca::{Orca, OrcaConfig};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{
    Channel, Fabric, FabricName, Fabrics, Failure, Fcfs, HostId, Plan, PlanId, Resource,
};
use polycast_protocol::leases::{
    AgentKey, Denial, Grant, HeldLease, Input, Join, LeaseView, Leases, LeasesConfig, OnDeviceFailure,
    Output, Record, STREAMS_FROM, SessionsConfig, known_hosts,
};
use polycast_protocol::stream::{
    Order, OrderConfig, OrderInput, OrderOutput, StreamRefusal, StreamWord, Streams, StreamsConfig,
    StreamsInput, StreamsOutput,
};
use polycast_topology::Clos;
use polycast_types::{Duration, Handle, Time};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const HOME: core::net::IpAddr = core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
const SESSIONS: SessionsConfig =
    SessionsConfig { reconnect: Duration::from_secs(3_600), alive: Duration::ZERO, of_address_max: 1_024 };
const HOSTS: u32 = 16;
const SETTLE: Duration = Duration::from_secs(5);

fn name(host: u32) -> String {
    format!("h{host}")
}

fn config() -> LeasesConfig {
    LeasesConfig {
        lease: Duration::from_secs(30),
        silence: Duration::from_secs(300),
        sessions: SESSIONS,
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
    }
}

/// A manager with its table, and what agents were told last of each stream.
struct World {
    leases: Leases,
    streams: Streams,
    now: Time,
    incarnations: BTreeMap<u32, u64>,
    /// By agent and stream.
    told: BTreeMap<(String, String), StreamWord>,
    /// Lease of the source of each request: its number, and the channel.
    lent: BTreeMap<(String, u64), (PlanId, Channel)>,
    words: usize,
    /// The number of each stream's next message.
    next: BTreeMap<String, u64>,
    /// Set while sources do not answer where they are; the questions to them follow, by source, stream and
    /// receiver.
    silent: bool,
    questions: Vec<(AgentKey, String, String, u64)>,
    asks: u64,
}

impl World {
    fn new(labels: bool, addresses: u32) -> Self {
        let mut world = Self::empty(labels, addresses);
        for host in 0..HOSTS {
            world.arrive(host, Vec::new());
        }
        world
    }

    /// A manager that begins: no agent is here.
    fn empty(labels: bool, addresses: u32) -> Self {
        let names: Vec<String> = (0..HOSTS).map(name).collect();
        let pool = AddressPool::new([239, 255, 64, 0].into(), addresses, 7474).unwrap();
        let mut fabrics: Vec<Box<dyn Fabric>> = Vec::new();
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
        // First in the line for objects, and never for streams.
        fabrics.insert(0, Box::new(TcpChain));
        let mut leases = Leases::new(config(), Fabrics::new(fabrics), Box::new(Fcfs));
        for name in &names {
            leases.know_host(name);
        }
        World {
            leases,
            streams: Streams::new(StreamsConfig::default(), Time(0)),
            now: Time(0),
            incarnations: (0..HOSTS).map(|host| (host, 1)).collect(),
            told: BTreeMap::new(),
            lent: BTreeMap::new(),
            words: 0,
            next: BTreeMap::new(),
            silent: false,
            questions: Vec::new(),
            asks: 0,
        }
    }

    fn agent(&self, host: u32) -> AgentKey {
        AgentKey { name: name(host), incarnation: self.incarnations[&host] }
    }

    fn arrive(&mut self, host: u32, leases: Vec<HeldLease>) {
        let agent = self.agent(host);
        let address = ([10, 0, 0, host as u8].into(), 7401);
        self.leases.handle(self.now, Input::Join(Join { agent: agent.clone(), address, from: HOME, leases }));
        self.streams.handle(self.now, StreamsInput::Arrived { agent });
        self.drain();
    }

    fn stream(&mut self, input: StreamsInput) {
        self.streams.handle(self.now, input);
        self.drain();
    }

    fn create(&mut self, host: u32, stream: &str) {
        let request = STREAMS_FROM + 7;
        let agent = self.agent(host);
        let key = agent.request(request);
        let lease = self.leases.leases().find(|lease| *lease.key == key);
        let held =
            lease.map(|lease| (lease.grant.plan.clone(), lease.grant.receiver_names().cloned().collect()));
        let handle = Handle(u64::from(host) << 32 | agent.incarnation);
        self.stream(StreamsInput::Create {
            agent,
            name: stream.into(),
            request,
            handle,
            shared: false,
            held,
        });
    }

    fn join(&mut self, host: u32, stream: &str) {
        self.asks += 1;
        self.join_as(host, stream, self.asks);
    }

    /// Joins with a number that was drawn; the same again is the same join, said again.
    fn join_as(&mut self, host: u32, stream: &str, ask: u64) {
        let agent = self.agent(host);
        self.stream(StreamsInput::Join { agent, name: stream.into(), ask, sends: None });
    }

    /// Sources answer what they were asked.
    fn answer(&mut self) {
        for (agent, name, receiver, ask) in std::mem::take(&mut self.questions) {
            let next = self.next.get(&name).copied().unwrap_or(0);
            self.streams.handle(self.now, StreamsInput::At { agent, name, receiver, ask, next });
        }
        self.drain();
    }

    fn leave(&mut self, host: u32, stream: &str) {
        let agent = self.agent(host);
        self.stream(StreamsInput::Leave { agent, name: stream.into() });
    }

    fn end(&mut self, host: u32, stream: &str) {
        let agent = self.agent(host);
        self.stream(StreamsInput::End { agent, name: stream.into() });
    }

    fn pass(&mut self, span: Duration) {
        self.now += span;
        self.drain();
    }

    /// As the manager's core does it.
    fn drain(&mut self) {
        loop {
            while let Some(output) = self.leases.poll(self.now) {
                self.obey(output);
            }
            match self.streams.poll(self.now) {
                None => return,
                Some(StreamsOutput::Lease(input)) => self.leases.handle(self.now, input),
                Some(StreamsOutput::Tell { agent, name, word: StreamWord::Where { receiver, ask } }) => {
                    self.questions.push((agent, name, receiver, ask));
                    if !self.silent {
                        self.answer();
                    }
                }
                Some(StreamsOutput::Tell { agent, name, word }) => {
                    self.words += 1;
                    self.told.insert((agent.name, name), word);
                }
            }
        }
    }

    fn obey(&mut self, output: Output) {
        let input = match output {
            Output::Response { request, response } => {
                if let Ok(grant) = &response {
                    let key = (request.agent.name.clone(), request.request);
                    self.lent.insert(key, (grant.plan_id, grant.plan.channel.clone()));
                }
                StreamsInput::Response { request, response }
            }
            Output::Extended { request, result } => StreamsInput::Changed { request, result },
            Output::Replanned { request, plan, plan_id, .. } => {
                let key = (request.agent.name.clone(), request.request);
                self.lent.insert(key, (plan_id, plan.channel.clone()));
                StreamsInput::Replanned { request, plan }
            }
            Output::Released { request, .. } => {
                self.lent.remove(&(request.agent.name.clone(), request.request));
                StreamsInput::Ended { request }
            }
            Output::Gone { agent, .. } => StreamsInput::Gone { agent },
            _ => return,
        };
        self.streams.handle(self.now, input);
    }

    /// The receivers of the path of a stream's source.
    fn receivers(&self, host: u32) -> BTreeSet<String> {
        let agent = name(host);
        let lease = self.leases.leases().find(|lease| lease.key.agent.name == agent && lease.key.is_stream());
        lease.map_or_else(BTreeSet::new, |lease| {
            lease.grant.receivers.iter().map(|(name, _)| name.clone()).collect()
        })
    }

    /// All receivers of that path, whether or not their agents are here.
    fn group(&self, host: u32) -> BTreeSet<u32> {
        let of_path = |record| match record {
            Record::Lease { key, group, .. } if key.agent.name == name(host) => Some(group.receivers),
            _ => None,
        };
        self.leases.records().into_iter().filter_map(of_path).flatten().map(|host| host.0).collect()
    }

    /// The leases as their holders name them to another manager.
    fn held(&self) -> Vec<HeldLease> {
        let held = |lease: LeaseView<'_>| HeldLease {
            request: lease.key.request,
            plan: lease.grant.plan_id,
            object: lease.object,
            further_sources: Vec::new(),
            receivers: lease.grant.receiver_names().cloned().collect(),
            bytes: 0,
            fabric: lease.grant.plan.fabric.into(),
            channel: lease.grant.plan.channel.clone(),
            left: None,
            kept: Some(lease.grant.plan.clone()),
            only: false,
        };
        self.leases.leases().map(held).collect()
    }

    fn word(&self, host: u32, stream: &str) -> Option<&StreamWord> {
        self.told.get(&(name(host), stream.to_string()))
    }

    /// Returns true if a receiver was notified of the channel on which its source sends now.
    fn hears(&self, host: u32, stream: &str, source: u32) -> bool {
        let Some(StreamWord::Joined { channel, .. }) = self.word(host, stream) else { return false };
        let sends = self.lent.get(&(name(source), STREAMS_FROM + 7));
        self.receivers(source).contains(&name(host))
            && sends.is_some_and(|(_, sends)| sends.is_heard_like(channel))
    }
}

fn refusal(word: Option<&StreamWord>) -> String {
    match word {
        Some(StreamWord::Refused(refusal)) => refusal.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn receivers_come_and_go_and_the_path_with_them() {
    for labels in [true, false] {
        let mut world = World::new(labels, 8);
        world.create(0, "ticks");
        assert_eq!(world.word(0, "ticks"), Some(&StreamWord::Created));
        assert_eq!(world.leases.leases().count(), 0, "no receiver listens");
        for host in [1, 5, 15] {
            world.join(host, "ticks");
            assert!(world.hears(host, "ticks", 0), "{host} {:?}", world.word(host, "ticks"));
        }
        assert!(world.hears(1, "ticks", 0), "those before go on");
        world.leave(5, "ticks");
        assert_eq!(world.receivers(0), BTreeSet::from([name(1), name(15)]));
        world.leave(1, "ticks");
        world.leave(15, "ticks");
        assert_eq!(world.leases.leases().count(), 0, "no receiver listens any more");
        world.join(9, "ticks");
        assert!(world.hears(9, "ticks", 0));
        world.end(0, "ticks");
        assert_eq!(world.word(9, "ticks"), Some(&StreamWord::Ended));
        assert_eq!((world.leases.leases().count(), world.streams.streams().count()), (0, 0));
    }
}

/// A receiver is told where a stream comes only with a number that its source has said after it asked.
#[test]
fn receivers_are_told_where_a_stream_is_since_they_have_joined() {
    let mut world = World::new(false, 8);
    let from = |world: &World, host| match world.word(host, "ticks") {
        Some(StreamWord::Joined { ask, from, .. }) => Some((*ask, *from)),
        _ => None,
    };
    world.create(0, "ticks");
    world.next.insert("ticks".into(), 7);
    world.join_as(1, "ticks", 100);
    assert_eq!(from(&world, 1), Some((100, 7)));
    // A source that does not answer has no receiver that could be played what is old; the path is there
    // meanwhile.
    world.silent = true;
    world.join_as(2, "ticks", 200);
    assert_eq!((from(&world, 2), world.receivers(0).len()), (None, 2));
    // One that joins again and again is asked for once at a time.
    (201..300).for_each(|ask| world.join_as(2, "ticks", ask));
    assert_eq!(world.questions.len(), 1);
    world.next.insert("ticks".into(), 8);
    world.answer();
    assert_eq!(from(&world, 2), None, "that was the answer to an earlier question");
    world.next.insert("ticks".into(), 9);
    world.answer();
    assert_eq!(from(&world, 2), Some((299, 9)));
    // What is said again in another session is no other join; what its agent asks anew is.
    world.next.insert("ticks".into(), 20);
    world.join_as(2, "ticks", 299);
    assert_eq!((world.questions.len(), from(&world, 2)), (0, Some((299, 9))));
    world.leave(2, "ticks");
    world.join_as(2, "ticks", 300);
    let asked = world.questions.clone();
    assert_eq!((asked.len(), from(&world, 2)), (1, Some((299, 9))));
    // Neither an answer to an old question nor another agent's counts; the source's session breaks, and it is
    // asked again.
    let at = |host, ask, world: &World| {
        let (agent, name, receiver) = (world.agent(host), "ticks".to_string(), name(2));
        StreamsInput::At { agent, name, receiver, ask, next: 0 }
    };
    for (host, ask) in [(0, 299), (1, 300), (2, 300)] {
        let input = at(host, ask, &world);
        world.stream(input);
        assert_eq!(from(&world, 2), Some((299, 9)), "{host} {ask}");
    }
    world.questions.clear();
    world.arrive(0, Vec::new());
    world.create(0, "ticks");
    assert_eq!(world.questions, asked);
    world.answer();
    assert_eq!((from(&world, 2), from(&world, 1)), (Some((300, 20)), Some((100, 7))));
    // Another run of an agent is another receiver, also where it draws the same.
    *world.incarnations.get_mut(&2).unwrap() += 1;
    world.arrive(2, Vec::new());
    world.next.insert("ticks".into(), 30);
    world.join_as(2, "ticks", 300);
    world.answer();
    assert_eq!(from(&world, 2), Some((300, 30)));
}

/// A path that ends though its stream goes on is asked for again, not at once and not only when a receiver
/// joins.
#[test]
fn a_path_that_is_taken_away_is_asked_for_again() {
    let retry = StreamsConfig::default().retry;
    let mut world = World::new(true, 8);
    world.create(0, "ticks");
    world.join(5, "ticks");
    let request = world.agent(0).request(STREAMS_FROM + 7);
    for _ in 0..3 {
        assert!(world.hears(5, "ticks", 0));
        world.leases.handle(world.now, Input::Withdraw { request: request.clone() });
        world.drain();
        assert_eq!(
            (world.receivers(0), world.streams.deadline()),
            (BTreeSet::new(), Some(world.now + retry))
        );
        world.pass(retry - Duration(1));
        assert_eq!(world.receivers(0), BTreeSet::new());
        world.pass(Duration(1));
    }
    assert!(world.hears(5, "ticks", 0));
}

#[test]
fn mistakes_are_said_in_a_sentence() {
    let mut world = World::new(true, 1);
    world.pass(SETTLE);
    world.create(0, "a b");
    assert!(refusal(world.word(0, "a b")).contains("'a b' cannot be a stream's name"));
    world.create(0, "a");
    world.join(0, "a");
    assert!(refusal(world.word(0, "a")).contains("'h0' is the source"));
    world.create(1, "a");
    assert!(refusal(world.word(1, "a")).contains("the agent 'h0' sends it"));
    world.join(2, "b");
    assert_eq!(world.word(2, "b"), Some(&StreamWord::Refused(StreamRefusal::Unknown("b".into()))));
    world.end(3, "a");
    assert_eq!(world.streams.streams().count(), 1, "only its source ends it");
    world.join(2, "a");
    for bad in ["", "a b", "a\tb", "\u{7}", "a,b", "/a", &"x".repeat(256)] {
        world.create(6, bad);
        let word = world.word(6, bad);
        assert!(matches!(word, Some(StreamWord::Refused(StreamRefusal::BadName(_)))), "{bad:?}: {word:?}");
    }
    // The only address is taken: the receiver is told, and may try again when it is free.
    world.create(4, "c");
    world.join(5, "c");
    assert!(refusal(world.word(5, "c")).contains("multicast addresses are in use"));
    world.end(0, "a");
    world.join(5, "c");
    assert!(world.hears(5, "c", 4));
}

/// A stream has a name of 1 to 255 bytes, without spaces, commas, slashes and control characters.
#[test]
fn names_of_streams_have_bounds() {
    let long = "x".repeat(255);
    for (stream, is_name) in [
        ("", false),
        ("x", true),
        ("a-b_c.d:e", true),
        (long.as_str(), true),
        (&format!("{long}x"), false),
        ("a b", false),
        ("a\u{a0}b", false),
        ("a,b", false),
        ("a/b", false),
        ("a\n", false),
        ("\u{7}", false),
    ] {
        let mut world = World::new(false, 4);
        world.create(1, stream);
        let word = world.word(1, stream);
        assert_eq!(word == Some(&StreamWord::Created), is_name, "{stream:?}: {word:?}");
        assert_eq!(
            matches!(word, Some(StreamWord::Refused(StreamRefusal::BadName(_)))),
            !is_name,
            "{word:?}"
        );
        world.join(2, stream);
        assert_eq!(world.hears(2, stream, 1), is_name, "{stream:?}");
    }
}

#[test]
fn a_manager_without_a_fabric_for_many_refuses() {
    let mut world = World::new(false, 4);
    world.leases = Leases::new(config(), Fabrics::new(vec![Box::new(TcpChain)]), Box::new(Fcfs));
    (0..2).for_each(|host| world.arrive(host, Vec::new()));
    world.create(0, "a");
    world.join(1, "a");
    assert!(
        refusal(world.word(1, "a"))
            .contains("no fabric of this network (tcp-chain) has paths that many can use")
    );
}

#[test]
fn a_new_manager_learns_the_streams_from_agents() {
    let mut old = World::new(true, 8);
    old.create(0, "ticks");
    [3, 7, 12].into_iter().for_each(|host| old.join(host, "ticks"));
    let held = old.held();
    let mut world = World::new(true, 8);
    // A receiver's agent may be quicker than the source's.
    world.join(3, "ticks");
    assert_eq!(world.word(3, "ticks"), None, "not refused: the manager may not know all yet");
    world.arrive(0, held);
    world.create(0, "ticks");
    world.join(7, "ticks");
    for host in [3, 7] {
        let Some(StreamWord::Joined { channel, .. }) = world.word(host, "ticks") else { panic!("{host}") };
        assert!(old.lent.values().any(|(_, before)| before.is_heard_like(channel)), "the path stays");
    }
    assert!(world.receivers(0).contains(&name(12)), "it may still come");
    world.pass(SETTLE);
    assert_eq!(world.receivers(0), BTreeSet::from([name(3), name(7)]), "it has not");
}

/// Receivers of an earlier manager whose agents have not come back to this one are in the path all the same.
#[test]
fn who_was_let_in_before_and_does_not_come_back_is_taken_out() {
    for labels in [true, false] {
        let mut old = World::new(labels, 8);
        old.create(0, "ticks");
        [3, 7, 12].into_iter().for_each(|host| old.join(host, "ticks"));
        let mut world = World::empty(labels, 8);
        world.arrive(3, vec![]);
        world.arrive(0, old.held());
        world.create(0, "ticks");
        assert_eq!(world.group(0), BTreeSet::from([3, 7, 12]), "they may still come");
        // While that is not known, others come and go.
        world.join(3, "ticks");
        world.arrive(5, vec![]);
        world.join(5, "ticks");
        assert_eq!(world.group(0), BTreeSet::from([3, 5, 7, 12]), "they may still come");
        world.arrive(7, vec![]);
        world.join(7, "ticks");
        assert!(matches!(world.word(7, "ticks"), Some(StreamWord::Joined { .. })), "it goes on hearing");
        world.pass(SETTLE);
        assert_eq!(world.group(0), BTreeSet::from([3, 5, 7]), "it has not come");
        // Late is as good as new.
        world.arrive(12, vec![]);
        world.join(12, "ticks");
        assert!(matches!(world.word(12, "ticks"), Some(StreamWord::Joined { .. })));
        assert_eq!(world.group(0), BTreeSet::from([3, 5, 7, 12]));
    }
}

/// An agent that has a new session says again what it takes part in; what it has not said for a while is
/// over.
#[test]
fn what_an_agent_does_not_say_again_is_over() {
    let mut world = World::new(false, 8);
    world.pass(SETTLE);
    world.create(0, "ticks");
    [3, 5, 7].into_iter().for_each(|host| world.join(host, "ticks"));
    [3, 5].into_iter().for_each(|host| world.arrive(host, vec![]));
    world.join(5, "ticks");
    assert_eq!(world.group(0), BTreeSet::from([3, 5, 7]), "it may still say so");
    world.pass(SETTLE);
    assert_eq!(world.group(0), BTreeSet::from([5, 7]), "one has not said so");
    let held = world.held();
    world.arrive(0, held);
    assert_eq!(world.group(0), BTreeSet::from([5, 7]));
    world.pass(SETTLE);
    assert_eq!(world.leases.leases().count(), 0, "its source has not said so");
}

/// Only receivers that cannot join are refused, of several that were to join together.
#[test]
fn one_that_cannot_join_holds_no_other_out() {
    for bad in [5, 6, 7] {
        let mut world = World::empty(false, 8);
        let good: Vec<u32> = [5, 6, 7].into_iter().filter(|host| *host != bad).collect();
        world.arrive(4, vec![]);
        good.iter().for_each(|host| world.arrive(*host, vec![]));
        [5, 6, 7].into_iter().for_each(|host| world.join(host, "c"));
        world.create(4, "c");
        world.pass(SETTLE);
        for host in &good {
            assert!(world.hears(*host, "c", 4), "{host} beside {bad}: {:?}", world.word(*host, "c"));
        }
        assert!(!world.hears(bad, "c", 4));
    }
}

/// The path goes back where none of those has come back that it was lent for.
#[test]
fn a_path_whose_receivers_do_not_come_back_is_given_back() {
    let mut old = World::new(false, 8);
    old.create(0, "ticks");
    [3, 7].into_iter().for_each(|host| old.join(host, "ticks"));
    let mut world = World::empty(false, 8);
    world.arrive(0, old.held());
    world.create(0, "ticks");
    assert_eq!(world.group(0), BTreeSet::from([3, 7]), "they may still come");
    world.pass(SETTLE);
    assert_eq!(world.leases.leases().count(), 0, "no receiver has come");
}

/// A source that has no session when its path is given back names it when it comes: it has to be given back
/// again.
#[test]
fn a_path_that_was_given_back_unheard_is_given_back_again() {
    let mut world = World::new(false, 8);
    world.create(0, "ticks");
    world.join(3, "ticks");
    let held = world.held();
    world.leave(3, "ticks");
    assert_eq!(world.leases.leases().count(), 0);
    world.arrive(0, held.clone());
    assert_eq!(world.group(0), BTreeSet::from([3]), "it is taken over");
    world.create(0, "ticks");
    assert_eq!(world.leases.leases().count(), 0, "no receiver listens");
    // With a receiver it is put to use.
    world.arrive(0, held);
    world.join(5, "ticks");
    world.create(0, "ticks");
    world.pass(SETTLE);
    assert_eq!(world.group(0), BTreeSet::from([5]));
    assert!(matches!(world.word(5, "ticks"), Some(StreamWord::Joined { .. })));
}

/// An agent that has come again, and does not name a stream any more, does not wait for it.
#[test]
fn who_waits_for_a_stream_says_so_again() {
    let mut world = World::new(false, 8);
    world.join(3, "ticks");
    world.join(5, "ticks");
    world.arrive(3, vec![]);
    world.create(0, "ticks");
    world.pass(SETTLE);
    assert_eq!(world.group(0), BTreeSet::from([5]));
}

/// One that is gone does not wait for a stream any more; others go on waiting.
#[test]
fn who_is_gone_waits_for_no_stream() {
    let mut world = World::new(false, 8);
    world.join(3, "ticks");
    world.join(5, "ticks");
    let agent = world.agent(3);
    world.leases.handle(world.now, Input::Leave { agent, keeps: false });
    world.drain();
    world.create(0, "ticks");
    world.pass(SETTLE);
    assert_eq!(world.group(0), BTreeSet::from([5]));
    assert!(world.hears(5, "ticks", 0));
}

/// The answer to the change that takes out the first does not hide the second.
#[test]
fn two_that_die_together_are_both_taken_out() {
    let mut world = World::new(false, 8);
    world.create(0, "ticks");
    [3, 7, 12].into_iter().for_each(|host| world.join(host, "ticks"));
    for host in [7, 12] {
        let agent = world.agent(host);
        world.leases.handle(world.now, Input::Leave { agent, keeps: false });
    }
    world.drain();
    assert_eq!(world.group(0), BTreeSet::from([3]));
}

#[test]
fn a_path_that_fails_is_asked_for_again() {
    let mut world = World::new(false, 1);
    world.create(0, "ticks");
    world.join(1, "ticks");
    let Some((_, Channel::Multicast { group, .. })) = world.lent.values().next().cloned() else { panic!() };
    let address = Failure::Resource(Resource::MulticastAddress { address: group.0, port: group.1 });
    world.leases.handle(world.now, Input::Failed { failures: vec![address] });
    world.drain();
    assert_eq!(world.leases.leases().count(), 0, "messages do not go over a chain");
    world.leases.handle(world.now, Input::Repaired { failures: vec![address] });
    world.drain();
    world.pass(Duration::from_secs(1));
    assert!(world.hears(1, "ticks", 0));
}

#[derive(Clone, Debug)]
enum Deed {
    Create(u32, u8),
    End(u32, u8),
    Join(u32, u8),
    Leave(u32, u8),
    /// The agent's process begins anew and has forgotten all.
    Restart(u32),
    /// Its session breaks, and it says again what it asks for.
    Again(u32),
    Die(u32),
    /// The address of a stream's path fails, and works again when another one has taken its place.
    Fail(u8),
    Pass(u16),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let (host, stream) = (0..HOSTS, 0u8..3);
    let deed = prop_oneof![
        2 => (0u32..3, stream.clone()).prop_map(|(host, stream)| Deed::Create(host, stream)),
        1 => (0u32..3, stream.clone()).prop_map(|(host, stream)| Deed::End(host, stream)),
        8 => (host.clone(), stream.clone()).prop_map(|(host, stream)| Deed::Join(host, stream)),
        6 => (host.clone(), stream).prop_map(|(host, stream)| Deed::Leave(host, stream)),
        1 => host.clone().prop_map(Deed::Restart),
        1 => host.clone().prop_map(Deed::Again),
        1 => host.prop_map(Deed::Die),
        2 => (0u8..3).prop_map(Deed::Fail),
        1 => (0u16..3_000).prop_map(Deed::Pass),
    ];
    proptest::collection::vec(deed, 1..80)
}

/// Expected state: the source and the receivers of each stream.
type Model = BTreeMap<String, (u32, BTreeSet<u32>)>;

/// Requests that agents themselves make of streams: to send one, or to hear it.
type Wants = BTreeSet<(u32, String)>;

fn perform(world: &mut World, model: &mut Model, hears: &mut Wants, deed: Deed) {
    let title = |stream: u8| format!("s{stream}");
    match deed {
        // An agent has one stream here: requests of several would need numbers of their own.
        Deed::Create(host, stream) => {
            let mine = model.values().any(|(source, _)| *source == host);
            if !mine && !hears.contains(&(host, title(stream))) {
                world.create(host, &title(stream));
                model.entry(title(stream)).or_insert_with(|| (host, BTreeSet::new()));
            }
        }
        Deed::End(host, stream) => {
            world.end(host, &title(stream));
            if model.get(&title(stream)).is_some_and(|(source, _)| *source == host) {
                model.remove(&title(stream));
                hears.retain(|(_, name)| *name != title(stream));
            }
        }
        Deed::Join(host, stream) => {
            world.join(host, &title(stream));
            if let Some((source, receivers)) = model.get_mut(&title(stream))
                && *source != host
            {
                receivers.insert(host);
                hears.insert((host, title(stream)));
            }
        }
        Deed::Leave(host, stream) => {
            world.leave(host, &title(stream));
            if let Some((_, receivers)) = model.get_mut(&title(stream)) {
                receivers.remove(&host);
            }
            hears.remove(&(host, title(stream)));
        }
        Deed::Restart(host) => {
            *world.incarnations.get_mut(&host).unwrap() += 1;
            gone(model, hears, host);
            world.arrive(host, Vec::new());
        }
        Deed::Again(host) => {
            world.arrive(host, Vec::new());
            let sends: Vec<String> = model
                .iter()
                .filter(|(_, (source, _))| *source == host)
                .map(|(name, _)| name.clone())
                .collect();
            sends.iter().for_each(|name| world.create(host, name));
            let heard: Vec<String> =
                hears.iter().filter(|(agent, _)| *agent == host).map(|(_, name)| name.clone()).collect();
            heard.iter().for_each(|name| world.join(host, name));
        }
        Deed::Die(host) => {
            let agent = world.agent(host);
            world.leases.handle(world.now, Input::Leave { agent, keeps: false });
            world.drain();
            gone(model, hears, host);
            *world.incarnations.get_mut(&host).unwrap() += 1;
            world.arrive(host, Vec::new());
        }
        Deed::Fail(stream) => {
            if let Some((source, _)) = model.get(&title(stream)) {
                fail_for_a_while(world, *source);
            }
        }
        Deed::Pass(millis) => world.pass(Duration::from_millis(millis.into())),
    }
}

/// The address of a source's stream fails, and is repaired.
fn fail_for_a_while(world: &mut World, source: u32) {
    let lent = world.lent.get(&(name(source), STREAMS_FROM + 7)).cloned();
    let Some((_, Channel::Multicast { group, .. } | Channel::Label { group, .. })) = lent else { return };
    let address = Failure::Resource(Resource::MulticastAddress { address: group.0, port: group.1 });
    world.leases.handle(world.now, Input::Failed { failures: vec![address] });
    world.drain();
    world.leases.handle(world.now, Input::Repaired { failures: vec![address] });
    world.drain();
}

fn gone(model: &mut Model, hears: &mut Wants, host: u32) {
    let ended: Vec<String> =
        model.iter().filter(|(_, (source, _))| *source == host).map(|(name, _)| name.clone()).collect();
    model.retain(|_, (source, _)| *source != host);
    model.values_mut().for_each(|(_, receivers)| receivers.retain(|other| *other != host));
    hears.retain(|(agent, name)| *agent != host && !ended.contains(name));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens, every path has the receivers that have joined, and all of them know where it is.
    #[test]
    fn paths_have_the_receivers_that_have_joined(labels: bool, deeds in deeds()) {
        let mut world = World::new(labels, 8);
        // Past the time in which unknown streams are waited for: the model has no such thing.
        world.pass(SETTLE);
        let (mut model, mut hears) = (Model::new(), Wants::new());
        for deed in deeds {
            perform(&mut world, &mut model, &mut hears, deed);
            for (stream, (source, receivers)) in &model {
                let expected: BTreeSet<String> = receivers.iter().map(|host| name(*host)).collect();
                prop_assert_eq!(&world.receivers(*source), &expected, "{}", stream);
                for host in receivers {
                    prop_assert!(world.hears(*host, stream, *source), "{host} of {stream}");
                }
            }
            let busy = model.values().filter(|(_, receivers)| !receivers.is_empty()).count();
            prop_assert_eq!(world.leases.leases().count(), busy);
            let known: Vec<String> = world.streams.streams().map(|stream| stream.name).collect();
            prop_assert_eq!(known, model.keys().cloned().collect::<Vec<_>>());
        }
    }
}

/// Returns reasons for which a request for a stream's path may be denied.
fn denial() -> impl Strategy<Value = Denial> {
    prop_oneof![
        (0u8..5).prop_map(|host| Denial::AlreadyReceiver(format!("h{host}"))),
        (0u8..5).prop_map(|host| Denial::NotReceiver(format!("h{host}"))),
        Just(Denial::NotHeld(1)),
        Just(Denial::NoReceivers),
    ]
}

/// Returns a path by multicast or along a chain.
fn any_plan() -> impl Strategy<Value = Plan> {
    (0u8..3, any::<bool>()).prop_map(|(which, chain)| {
        let group = ([239, 255, 0, which].into(), 7);
        let attempt_interval = Duration(1);
        let channel = if chain {
            Channel::Chain { order: vec![HostId(which.into())] }
        } else {
            Channel::Multicast { group, rate: None, attempt_interval }
        };
        Plan {
            fabric: FabricName::new("ip-multicast"),
            resources: vec![],
            uses: Default::default(),
            commands: Default::default(),
            channel,
        }
    })
}

/// Returns inputs of a table: agents send anything in any order, and answers to questions that were never
/// asked.
fn anything() -> impl Strategy<Value = StreamsInput> {
    let agent = || {
        (0u8..4, 0u64..3).prop_map(|(host, incarnation)| AgentKey { name: format!("h{host}"), incarnation })
    };
    let title = || prop_oneof![9 => (0u8..5).prop_map(|n| format!("s{n}")), 1 => any::<String>()];
    let number = || prop_oneof![9 => (0u64..3).prop_map(|n| STREAMS_FROM + n), 1 => any::<u64>()];
    let request = move || (agent(), number()).prop_map(|(agent, request)| agent.request(request));
    let names = || proptest::collection::vec((0u8..5).prop_map(|host| format!("h{host}")), 0..4);
    let grant = move || {
        (any_plan(), names(), any::<u64>()).prop_map(|(plan, names, number)| Grant {
            plan_id: PlanId(number),
            accepted_bytes: number,
            further_sources: Vec::new(),
            receivers: names.into_iter().map(|name| (name, ([10, 0, 0, 1].into(), 1))).collect(),
            passed_over: Vec::new(),
            estimate: None,
            absent: vec![],
            missed: vec![],
            plan,
            service: None,
            lease: None,
        })
    };
    let held = proptest::option::of((any_plan(), names()));
    prop_oneof![
        2 => agent().prop_map(|agent| StreamsInput::Arrived { agent }),
        1 => agent().prop_map(|agent| StreamsInput::Gone { agent }),
        6 => (agent(), title(), number(), 0u64..3, held).prop_map(|(agent, name, request, handle, held)| {
            StreamsInput::Create { agent, name, request, handle: Handle(handle), shared: handle % 2 == 0, held }
        }),
        1 => (agent(), title()).prop_map(|(agent, name)| StreamsInput::End { agent, name }),
        6 => (agent(), title(), 0u64..3).prop_map(|(agent, name, ask)| {
            let sends = (ask < 2).then_some(Handle(10 + ask));
            StreamsInput::Join { agent, name, ask, sends }
        }),
        3 => (agent(), title(), 0u8..4, 0u64..3, any::<u64>()).prop_map(|(agent, name, receiver, ask, next)| {
            StreamsInput::At { agent, name, receiver: format!("h{receiver}"), ask, next }
        }),
        2 => (agent(), title()).prop_map(|(agent, name)| StreamsInput::Leave { agent, name }),
        3 => (request(), grant()).prop_map(|(request, grant)| StreamsInput::Response { request, response: Ok(grant) }),
        1 => (request(), denial()).prop_map(|(request, denial)| {
            StreamsInput::Response { request, response: Err(denial) }
        }),
        2 => (request(), proptest::option::of(grant())).prop_map(|(request, grant)| {
            StreamsInput::Changed { request, result: Ok(grant) }
        }),
        2 => (request(), denial()).prop_map(|(request, denial)| {
            StreamsInput::Changed { request, result: Err(denial) }
        }),
        1 => (request(), any_plan()).prop_map(|(request, plan)| StreamsInput::Replanned { request, plan }),
        1 => request().prop_map(|request| StreamsInput::Ended { request }),
    ]
}

/// One agent alone does not take all places of the table, nor all of those that wait for streams: half of
/// them, or a quarter where others have their part of that half.
#[test]
fn one_agent_leaves_room_for_the_streams_of_others() {
    let agent = |name: &str| AgentKey { name: name.into(), incarnation: 1 };
    let config = StreamsConfig { streams_max: 64, parked_max: 64, ..StreamsConfig::default() };
    for others in [0, 20] {
        let mut streams = Streams::new(config, Time(0));
        let mut create = |source: &str, number: u64| {
            let (agent, name) = (agent(source), format!("{source}{number}"));
            let (request, handle) = (STREAMS_FROM + number, Handle(number));
            streams.handle(
                Time(0),
                StreamsInput::Create { agent, name, request, handle, shared: false, held: None },
            );
            let words: Vec<_> = std::iter::from_fn(|| streams.poll(Time(0))).collect();
            let [StreamsOutput::Tell { word, .. }] = &words[..] else { panic!("{words:?}") };
            if let StreamWord::Refused(why) = word { Err(why.to_string()) } else { Ok(()) }
        };
        assert_eq!((0..others).try_for_each(|number| create("b", number)), Ok(()));
        let most = if others == 0 { 32 } else { 16 };
        assert_eq!((0..most).find_map(|number| create("a", number).err()), None, "beside {others}");
        let why = create("a", most).unwrap_err();
        assert!(why.starts_with(&format!("this agent has {most} streams already")), "{why}");
        assert_eq!(create("a", 0), Ok(()), "it says again what it has");
        assert_eq!(create("c", 0), Ok(()));
    }
    let mut streams = Streams::new(config, Time(0));
    let mut join = |receiver: &str, number: u64| {
        let (agent, name) = (agent(receiver), format!("x{number}"));
        streams.handle(Time(0), StreamsInput::Join { agent, name, ask: number, sends: None });
        std::iter::from_fn(|| streams.poll(Time(0))).count()
    };
    assert_eq!((0..64).map(|number| join("a", number)).sum::<usize>(), 32, "half of them are refused");
    assert_eq!(join("a", 0), 0, "it says again what it waits for");
    assert_eq!(join("b", 0), 0);
}

proptest! {
    /// Whatever is said, in whatever order: the table does not panic, keeps to its bounds, and comes to an
    /// end.
    #[test]
    fn a_table_survives_all_words(inputs in proptest::collection::vec((anything(), 0u64..3_000), 1..120)) {
        let config = StreamsConfig { streams_max: 3, parked_max: 4, ..StreamsConfig::default() };
        let mut streams = Streams::new(config, Time(0));
        let mut now = Time(0);
        for (input, millis) in inputs {
            now += Duration::from_millis(if millis < 2_000 { 0 } else { millis });
            streams.handle(now, input);
            let outputs = std::iter::from_fn(|| streams.poll(now)).take(10_001).count();
            prop_assert!(outputs <= 10_000, "it never comes to an end");
            streams.check();
            prop_assert!(streams.streams().count() <= 3);
            prop_assert!(streams.deadline().is_none_or(|at| at > now));
        }
    }

    /// Whatever pieces come: numbers rise, but for the first message, which may be of any sender; nothing
    /// panics, and what waits is bounded.
    #[test]
    fn an_order_survives_all_pieces(
        pieces in proptest::collection::vec(
            (
                prop_oneof![9 => 0u64..40, 1 => any::<u64>(), 1 => (0u64..3).prop_map(|n| u64::MAX - n)],
                0u16..5, 0u16..5, prop_oneof![9 => 0usize..2_000, 1 => any::<usize>()], 0u64..50,
            ),
            1..200,
        ),
        messages_max in 1usize..6, bytes_max in 0usize..9_000,
    ) {
        let mut order = Order::new(OrderConfig { hold: Duration(100), messages_max, bytes_max });
        let (mut now, mut last, mut delivered) = (Time(0), None, 0);
        for (number, piece, pieces, len, step) in pieces {
            now += Duration(step);
            order.handle(now, OrderInput::Piece { number, piece, pieces, len });
            while let Some(output) = order.poll(now) {
                if let OrderOutput::Deliver { number, .. } = output {
                    let rises = last.is_none_or(|last| last < number);
                    prop_assert!(rises || delivered == 1, "{number} after {last:?}");
                    (last, delivered) = (Some(number), delivered + 1);
                }
            }
            order.check();
            prop_assert!(order.deadline().is_none_or(|at| at > now));
        }
    }
}
