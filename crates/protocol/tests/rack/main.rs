//! Orca's controllers in virtual time: loss, reordering, repetition, crashes and take-over.

mod hostile;
mod limits;
mod world;

use polycast_protocol::rack::{FeedConfig, Leaf, LeafConfig, LeafInput, LeafOutput, Refusal};
use polycast_types::{Duration, Time};
use polycast_wire::rack::{Heartbeat, Name, Rack, Standing, Update, Updates};
use proptest::prelude::*;
use world::{Faults, Limits, Shape, Who, World};

const MS: Duration = Duration::from_millis(1);

fn shape() -> Shape {
    Shape {
        racks: 4,
        agents: 4,
        active: 2,
        standby: 2,
        timeout: MS,
        delay: Duration::from_micros(20),
        jitter: Duration::from_micros(10),
        limits: Limits::WIDE,
    }
}

fn ms(n: u64) -> Time {
    Time::ZERO + MS * n
}

#[test]
fn labels_reach_every_agent_and_are_confirmed() {
    let mut world = World::new(shape(), Faults::default(), 1);
    for ticket in 0..200 {
        let session = (ticket % 30) as u32;
        let racks = [(ticket as u32 % 4, true), ((ticket as u32 + 1) % 4, ticket % 3 > 0)];
        world.set(ticket, session, &racks);
        world.run_until(Time::ZERO + Duration::from_micros(37) * ticket);
    }
    world.run_until(ms(30));
    world.assert_healed();
    // On a network without faults each takes a few trips and no waiting for a retry.
    let last = world.confirmed[&199];
    assert!(last < Time::ZERO + Duration::from_micros(37 * 199 + 200), "{last:?}");
}

/// A central controller that does not know all sessions yet answers every heartbeat: only news are answered
/// at once.
#[test]
fn a_leaf_answers_once_to_a_central_controller_that_is_not_settled() {
    let config = LeafConfig {
        rack: 3,
        ports: 2,
        incarnation: 5,
        active: 1,
        standby: 1,
        timeout: MS * 100,
        period: MS * 50,
        labels_max: 10,
        feed: FeedConfig::default(),
    };
    let mut leaf = Leaf::new(config, ms(1));
    let heartbeats = |leaf: &mut Leaf, now| {
        let outputs = std::iter::from_fn(|| leaf.poll(now));
        outputs.filter(|output| matches!(output, LeafOutput::ToCentral(_))).count()
    };
    assert_eq!(heartbeats(&mut leaf, ms(1)), 1);
    for (at, (stream, settled)) in (2..).zip([(9, false), (9, false), (9, true), (9, true), (10, true)]) {
        let to = Name { rack: 3, agent: None };
        let standing = Standing { to, incarnation: 5, stream, head: 0, active: false, settled };
        leaf.handle(ms(at), LeafInput::FromCentral(Rack::Standing(standing)));
        let news = [2, 4, 6].contains(&at);
        assert_eq!(heartbeats(&mut leaf, ms(at)), usize::from(news), "at {at} ms");
    }
    assert_eq!(heartbeats(&mut leaf, ms(56)), 1, "its turn has come");
}

/// The gap that receivers see when an active agent dies is T and the way to the leaf, at every point of the
/// heartbeat.
#[test]
fn an_agent_that_dies_is_replaced_within_t() {
    let every = Duration::from_micros(5);
    for (step, timeout_us) in (0..40).map(|step| (step, [1_000, 4_000][step as usize % 2])) {
        let timeout = Duration::from_micros(timeout_us);
        let shape = Shape { agents: 2, active: 1, standby: 1, racks: 1, timeout, ..shape() };
        let mut world = World::new(shape, Faults::default(), step);
        world.set(1, 7, &[(0, true)]);
        world.run_until(ms(10));
        world.packets(0, 7, every, ms(60));
        world.run_until(ms(20) + Duration::from_micros(13 * step));
        let dead = world.switches[&0].0[0];
        world.crash(Who::Agent(0, dead));
        world.run_until(ms(50));
        let gap = world.longest_gap(0);
        let most = timeout + shape.delay + shape.jitter + every * 2;
        let least = timeout - timeout / 4 - every * 2;
        assert!(gap <= most, "a gap of {gap} at T = {timeout}");
        assert!(gap >= least, "a gap of {gap} at T = {timeout}: too good to be true");
        assert_ne!(world.switches[&0].0[0], dead);
        // It comes back and stands by; the one that took over keeps its place.
        world.start(Who::Agent(0, dead));
        world.run_until(ms(60));
        world.assert_healed();
        assert_ne!(world.switches[&0].0[0], dead);
    }
}

/// An agent that is late loses no packet: its packets count, for a while; then another takes over, and it
/// stands by when it is heard again.
#[test]
fn an_agent_that_is_late_costs_no_packet() {
    let every = Duration::from_micros(50);
    let shape = Shape { agents: 2, active: 1, standby: 1, racks: 1, ..shape() };
    let mut world = World::new(shape, Faults::default(), 8);
    world.set(1, 7, &[(0, true)]);
    world.run_until(ms(10));
    world.packets(0, 7, every, ms(400));
    let late = world.switches[&0].0[0];
    // T is 1 ms: packets count for 100 ms without a heartbeat.
    world.mute.insert((0, late), ms(90));
    world.run_until(ms(100));
    assert_eq!((world.switches[&0].0[0], world.returned), (late, 0));
    world.mute.insert((0, late), ms(250));
    world.run_until(ms(190));
    assert_eq!(world.switches[&0].0[0], late);
    world.run_until(ms(240));
    assert_ne!(world.switches[&0].0[0], late, "it may be deaf to new labels");
    world.run_until(ms(400));
    assert_eq!(world.returned, 1);
    assert!(world.longest_gap(0) <= every, "{}", world.longest_gap(0));
    world.assert_healed();
}

/// Packets still go to an agent that has fallen silent where no other can take over: it may only be late.
#[test]
fn the_last_agent_goes_on_being_handed_packets() {
    let every = Duration::from_micros(50);
    let shape = Shape { agents: 1, active: 1, standby: 0, racks: 1, ..shape() };
    let mut world = World::new(shape, Faults::default(), 9);
    world.set(1, 7, &[(0, true)]);
    world.run_until(ms(10));
    world.mute.insert((0, 0), ms(2_500));
    world.run_until(ms(2_000));
    assert_eq!(world.leafs[&0].agents().count(), 0);
    world.packets(0, 7, every, ms(3_000));
    world.run_until(ms(3_000));
    assert_eq!(world.returned, 1);
    assert!(world.longest_gap(0) <= every, "{}", world.longest_gap(0));
    assert_eq!(world.through[&0][0], ms(2_000));
    world.assert_healed();
}

/// A leaf with two agents, and what it finds when it looks.
struct LeafAlone(Leaf);

impl LeafAlone {
    fn new(timeout: Duration) -> Self {
        let mut leaf = LeafAlone::idle(timeout);
        // Without a session it would not mind for long.
        leaf.begin_session(ms(0));
        leaf
    }

    fn idle(timeout: Duration) -> Self {
        let config = LeafConfig {
            rack: 3,
            ports: 2,
            incarnation: 5,
            active: 1,
            standby: 1,
            timeout,
            period: MS * 50,
            labels_max: 10,
            feed: FeedConfig::default(),
        };
        LeafAlone(Leaf::new(config, ms(0)))
    }

    fn begin_session(&mut self, now: Time) {
        let to = Name { rack: 3, agent: None };
        let standing = Standing { to, incarnation: 5, stream: 1, head: 1, active: false, settled: true };
        self.0.handle(now, LeafInput::FromCentral(Rack::Standing(standing)));
        let mut updates = Updates::new(to, 1, 0);
        assert!(updates.push(Update { number: 1, session: 7, label: &[0x80] }));
        self.0.handle(now, LeafInput::FromCentral(Rack::Updates(updates)));
    }

    fn beat(&mut self, now: Time, port: u32) {
        let from = Name { rack: 3, agent: Some(port) };
        let (incarnation, stream, applied, confirmed) = (1, 0, 0, 0);
        let heartbeat =
            Heartbeat { from, incarnation, stream, applied, confirmed, active: port == 0, settled: true };
        self.0.handle(now, LeafInput::FromAgent { port, message: Rack::Heartbeat(heartbeat) });
    }

    /// The agents that are lost, and those that are told how they stand.
    fn look(&mut self, now: Time) -> (Vec<u32>, Vec<u32>) {
        let (mut lost, mut told) = (Vec::new(), Vec::new());
        while let Some(output) = self.0.poll(now) {
            match output {
                LeafOutput::Lost { port, .. } => lost.push(port),
                LeafOutput::ToAgent { port, datagram } => {
                    told.extend(matches!(Rack::parse(&datagram), Ok(Rack::Standing(_))).then_some(port));
                }
                _ => {}
            }
        }
        (lost, told)
    }
}

/// A leaf controller that was held up itself does not judge agents by the time that it was away.
#[test]
fn a_leaf_that_comes_late_gives_its_agents_time() {
    let mut leaf = LeafAlone::new(MS * 4);
    (0..2).for_each(|port| leaf.beat(ms(1), port));
    leaf.look(ms(1));
    // Heartbeats that waited with it count.
    leaf.beat(ms(30), 0);
    leaf.beat(ms(30), 1);
    assert_eq!(leaf.look(ms(30)).0, []);
    // None waits: it looks again, half of T later.
    assert_eq!(leaf.look(ms(60)).0, []);
    leaf.beat(ms(61), 0);
    assert_eq!(leaf.look(ms(62)).0, [1]);
    // In time, T is T.
    leaf.beat(ms(63), 0);
    assert_eq!(leaf.look(ms(66)).0, []);
    assert_eq!(leaf.look(ms(67)).0, [0]);
}

/// An agent that is replaced may name hosts for a second; a host that never was an agent may not.
#[test]
fn an_agent_that_is_replaced_is_trusted_for_a_while() {
    let mut leaf = LeafAlone::new(MS * 4);
    let agents = |leaf: &mut LeafAlone, now: Time| {
        let outputs = std::iter::from_fn(|| leaf.0.poll(now));
        outputs
            .filter_map(|output| match output {
                LeafOutput::Agents { active, rack } => Some((active, rack)),
                _ => None,
            })
            .last()
    };
    leaf.beat(ms(1), 0);
    assert_eq!(agents(&mut leaf, ms(1)), Some((vec![0], 0b01)));
    leaf.beat(ms(2), 1);
    assert_eq!(agents(&mut leaf, ms(2)), Some((vec![0], 0b11)));
    leaf.beat(ms(5), 1);
    assert_eq!(agents(&mut leaf, ms(5)), Some((vec![1], 0b11)));
    for at in (6..1_005).step_by(3) {
        leaf.beat(ms(at), 1);
        assert_eq!(agents(&mut leaf, ms(at)), None, "at {at} ms");
    }
    leaf.beat(ms(1_005), 1);
    assert_eq!(leaf.0.deadline(), Some(ms(1_005)));
    assert_eq!(agents(&mut leaf, ms(1_005)), Some((vec![1], 0b10)));
}

/// A rack without sessions is in no hurry; with the first one T is T again, from then on.
#[test]
fn a_rack_without_sessions_says_little() {
    let shape = Shape { agents: 2, active: 1, standby: 1, racks: 1, ..shape() };
    let mut world = World::new(shape, Faults::default(), 10);
    world.run_until(ms(10));
    let sent = world.beats;
    world.run_until(ms(90));
    let mut other = World::new(shape, Faults::default(), 11);
    for at in [30, 61, 93] {
        other.run_until(ms(at));
        other.set(at, 7, &[(0, true)]);
        other.run_until(ms(at + 9));
        other.set(at + 1, 7, &[(0, false)]);
    }
    other.run_until(ms(110));
    assert_eq!((other.lost, other.confirmed.len()), (0, 6), "the first session finds all prepared");
    // Two agents, a heartbeat each in 4 ms.
    assert!((38..=42).contains(&(world.beats - sent)), "{}", world.beats - sent);
    let dead = world.switches[&0].0[0];
    world.crash(Who::Agent(0, dead));
    world.run_until(ms(94));
    world.set(1, 7, &[(0, true)]);
    world.run_until(ms(95) + shape.delay * 2 + shape.jitter * 2);
    assert_eq!(world.switches[&0].0, [1 - dead]);
    world.run_until(ms(96));
    assert!(world.confirmed.contains_key(&1));
    world.set(2, 7, &[(0, false)]);
    world.run_until(ms(100));
    assert_eq!(world.leafs[&0].agents().count(), 1);
    world.run_until(ms(400));
    assert_eq!((world.leafs[&0].agents().count(), world.returned), (1, 0), "it is not lost for being quiet");
}

/// With the first session T begins for all, whenever they were heard last.
#[test]
fn t_begins_with_the_first_session() {
    let mut leaf = LeafAlone::idle(MS * 4);
    (0..2).for_each(|port| leaf.beat(ms(1), port));
    assert_eq!(leaf.look(ms(40)).0, []);
    (0..2).for_each(|port| leaf.beat(ms(41), port));
    let begun = ms(45) + Duration::from_micros(100);
    leaf.begin_session(begun);
    assert_eq!(leaf.look(begun).0, []);
    assert_eq!(leaf.look(begun + (MS * 4 - Duration(1))).0, []);
    assert_eq!(leaf.look(begun + MS * 4).0, [0]);
}

/// One that stands by may be silent for longer; when it takes over it is told so at once, and has T to say
/// something.
#[test]
fn a_standby_says_less_and_more_when_it_takes_over() {
    let mut leaf = LeafAlone::new(MS * 4);
    (0..2).for_each(|port| leaf.beat(ms(1), port));
    leaf.look(ms(1));
    for at in (2..=12).step_by(2) {
        leaf.beat(ms(at), 0);
        assert_eq!(leaf.look(ms(at)).0, []);
    }
    assert_eq!(leaf.look(ms(16)), (vec![0], vec![1]));
    assert_eq!(leaf.look(ms(19)).0, []);
    assert_eq!(leaf.look(ms(20)).0, [1]);
}

/// A crash that is over before T replaces the agent at once: what it knew is gone.
#[test]
fn an_agent_that_comes_back_at_once_is_noticed() {
    let mut world = World::new(shape(), Faults::default(), 3);
    for session in 0..40 {
        world.set(u64::from(session), session, &[(0, true), (1, true)]);
    }
    world.run_until(ms(10));
    let dead = world.switches[&0].0[0];
    world.crash(Who::Agent(0, dead));
    world.run_until(ms(10) + Duration::from_micros(100));
    world.start(Who::Agent(0, dead));
    world.run_until(ms(10) + Duration::from_micros(200));
    assert!(!world.switches[&0].0.contains(&dead), "a standby that knows all labels is in its place");
    world.run_until(ms(20));
    world.assert_healed();
}

/// A leaf controller that starts anew disturbs no packet: agents keep their labels until they have the new
/// ones.
#[test]
fn a_new_leaf_controller_takes_over_while_packets_flow() {
    let mut world = World::new(shape(), Faults::default(), 4);
    for session in 0..300 {
        world.set(u64::from(session), session, &[(2, true)]);
    }
    world.run_until(ms(10));
    world.packets(2, 299, Duration::from_micros(5), ms(40));
    world.run_until(ms(12));
    world.crash(Who::Leaf(2));
    // Meanwhile one session ends: no agent may keep its label in the end.
    world.set(1000, 5, &[(2, false)]);
    world.run_until(ms(15));
    world.start(Who::Leaf(2));
    world.run_until(ms(40));
    assert!(world.longest_gap(2) <= Duration::from_micros(10), "{}", world.longest_gap(2));
    world.assert_healed();
}

#[test]
fn a_spare_agent_waits_for_a_place() {
    let shape = Shape { agents: 4, active: 1, standby: 1, racks: 1, ..shape() };
    let mut world = World::new(shape, Faults::default(), 5);
    world.set(1, 7, &[(0, true)]);
    world.run_until(ms(5));
    let places: Vec<u32> = world.leafs[&0].agents().map(|agent| agent.port).collect();
    assert_eq!(places.len(), 2);
    assert!(world.leafs[&0].counts().refused["no place"] > 0);
    places.iter().for_each(|port| world.crash(Who::Agent(0, *port)));
    world.run_until(ms(10));
    let now: Vec<u32> = world.leafs[&0].agents().map(|agent| agent.port).collect();
    assert!(now.len() == 2 && now.iter().all(|port| !places.contains(port)), "{now:?}");
    assert_eq!(world.central.waiting(), 0);
}

fn heartbeat(rack: u32, agent: Option<u32>, incarnation: u64) -> Rack<'static> {
    let from = Name { rack, agent };
    Rack::Heartbeat(Heartbeat {
        from,
        incarnation,
        stream: 0,
        applied: 0,
        confirmed: 0,
        active: false,
        settled: true,
    })
}

/// Claims of another rack or port, runs that are over, and nonsense: refused, counted, and named once.
#[test]
fn wrong_agents_are_refused() {
    let mut world = World::new(shape(), Faults::default(), 6);
    world.run_until(ms(3));
    let now = world.now;
    let leaf = world.leafs.get_mut(&0).unwrap();
    let before: Vec<_> = leaf.agents().map(|agent| (agent.port, agent.active)).collect();
    let wrong = [
        (1, heartbeat(3, Some(1), 9), Refusal::OtherRack(3)),
        (1, heartbeat(0, Some(2), 9), Refusal::OtherPort(2)),
        (1, heartbeat(0, Some(1), 9), Refusal::OldRun),
        (1, heartbeat(0, None, 9), Refusal::Senseless),
        (99, heartbeat(0, Some(99), 9), Refusal::NoPort),
        (4, heartbeat(0, Some(4), 9), Refusal::NoPlace),
    ];
    for (port, message, why) in wrong {
        let mut said = Vec::new();
        for _ in 0..3 {
            leaf.handle(now, LeafInput::FromAgent { port, message: message.clone() });
            said.extend(std::iter::from_fn(|| leaf.poll(now)));
        }
        let named = |output: &&LeafOutput| **output == LeafOutput::Refused { port, why };
        assert_eq!(said.iter().filter(named).count(), 1, "{why}: {said:?}");
        assert!(!said.iter().any(|output| matches!(output, LeafOutput::Agents { .. })));
    }
    assert_eq!(leaf.counts().refused.values().sum::<u64>(), 18);
    assert_eq!(leaf.counts().refused["another rack"], 3);
    assert_eq!(leaf.agents().map(|agent| (agent.port, agent.active)).collect::<Vec<_>>(), before);
}

/// A leaf controller that has heard nothing yet does not say that there is nothing.
#[test]
fn a_leaf_that_knows_nothing_lets_agents_keep_their_labels() {
    let mut leaf = LeafAlone::idle(MS * 4);
    let settled = |leaf: &mut LeafAlone, now| {
        leaf.beat(now, 0);
        let told = std::iter::from_fn(|| leaf.0.poll(now)).filter_map(|output| match output {
            LeafOutput::ToAgent { datagram, .. } => match Rack::parse(&datagram) {
                Ok(Rack::Standing(standing)) => Some(standing.settled),
                _ => None,
            },
            _ => None,
        });
        told.last().expect("an agent of another stream is told")
    };
    assert!(!settled(&mut leaf, ms(1)));
    leaf.begin_session(ms(2));
    assert!(!settled(&mut leaf, ms(2)), "it has a stream, and may not have all of it");
    let to = Name { rack: 3, agent: None };
    let standing = Standing { to, incarnation: 5, stream: 1, head: 1, active: false, settled: true };
    leaf.0.handle(ms(3), LeafInput::FromCentral(Rack::Standing(standing)));
    assert!(settled(&mut leaf, ms(3)));
}

/// Updates meant for an earlier run of a leaf controller begin nothing: only a `Standing` names the run.
#[test]
fn updates_of_a_stream_that_was_not_begun_change_nothing() {
    let mut leaf = LeafAlone::idle(MS * 4);
    let to = Name { rack: 3, agent: None };
    let mut updates = Updates::new(to, 9, 0);
    assert!(updates.push(Update { number: 1, session: 7, label: &[0x80] }));
    let message = Rack::Updates(updates);
    let standing = |incarnation| {
        Rack::Standing(Standing { to, incarnation, stream: 9, head: 0, active: false, settled: true })
    };
    for (message, labels) in
        [(message.clone(), 0), (standing(4), 0), (message.clone(), 0), (standing(5), 0), (message, 1)]
    {
        leaf.0.handle(ms(1), LeafInput::FromCentral(message));
        assert_eq!(leaf.0.labels(), labels);
    }
    assert_eq!((leaf.0.counts().gaps, leaf.0.counts().misdirected), (2, 1));
}

/// Repeated or late updates are refused by their numbers, and change nothing.
#[test]
fn stale_numbers_are_refused() {
    let mut world = World::new(shape(), Faults::default(), 7);
    world.set(1, 7, &[(0, true)]);
    world.run_until(ms(3));
    world.set(2, 7, &[(0, true)]);
    world.run_until(ms(6));
    let (&(rack, port), node) = world.agents.first_key_value().unwrap();
    let (labels, stale) = (node.labels.clone(), node.machine.counts().stale);
    let stream = 0;
    let to = Name { rack, agent: Some(port) };
    let mut old = Updates::new(to, stream, 0);
    let label = 1u64.to_be_bytes();
    assert!(old.push(Update { number: 1, session: 7, label: &label }));
    let mut datagram = Vec::new();
    Rack::Updates(old).emit(&mut datagram);
    world.send(Who::Leaf(rack), Who::Agent(rack, port), datagram);
    world.run_until(ms(8));
    let node = &world.agents[&(rack, port)];
    assert_eq!((node.labels.clone(), node.machine.counts().stale), (labels, stale + 1));
    world.assert_healed();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Whatever is lost, late, repeated or crashes: no label is applied out of order, nothing is confirmed
    /// that an active agent does not have, and in the end every agent has the newest labels.
    #[test]
    fn in_the_end_every_agent_has_the_newest_labels(
        seed: u64,
        loss in 0u64..250,
        duplication in 0u64..200,
        jitter_us in 0u64..200,
        active in 1usize..4,
        standby in 0usize..3,
        crashes in 0u64..6,
        replays in prop_oneof![Just(0), 1u64..200],
        lies in prop_oneof![Just(0), 1u64..200],
    ) {
        let agents = (active + standby) as u32;
        let jitter = Duration::from_micros(jitter_us);
        let shape = Shape { racks: 3, agents, active, standby, timeout: MS * 2, jitter, ..shape() };
        let mut world = World::new(shape, Faults { loss, duplication, replays, lies }, seed);
        let mut ticket = 0;
        let crash_every = 40 / (crashes + 1) + 1;
        for step in 0..40 {
            for _ in 0..world.random(4) {
                ticket += 1;
                let session = world.random(25) as u32;
                let first = world.random(3) as u32;
                let racks = [(first, world.random(4) > 0), ((first + 1) % 3, world.random(4) > 0)];
                let count = 1 + world.random(2) as usize;
                world.set(ticket, session, &racks[..count]);
            }
            if step % crash_every == crash_every - 1 {
                let rack = world.random(3) as u32;
                let port = world.random(agents.into()) as u32;
                let away = Duration::from_micros(world.random(6_000));
                if world.random(5) == 0 {
                    world.restart_central(away);
                } else {
                    let who = if world.random(4) == 0 { Who::Leaf(rack) } else { Who::Agent(rack, port) };
                    world.crash(who);
                    world.start_at(world.now + away, who);
                }
            }
            world.run_until(world.now + Duration::from_micros(300));
        }
        world.faults = Faults::default();
        world.run_until(world.now + MS * 200);
        world.assert_healed();
    }
}
