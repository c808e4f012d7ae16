//! Bounds of Orca's controllers: what is just allowed is taken, one more is refused, and nothing grows
//! beyond.

use super::world::{Faults, Limits, Shape, World};
use super::{MS, ms, shape};
use polycast_protocol::rack::{
    Agent, AgentConfig, AgentCounts, AgentInput, AgentOutput, Central, CentralConfig, CentralInput,
    CentralOutput, Change, FeedConfig, Leaf, LeafConfig, LeafInput, LeafOutput, SetRefusal,
};
use polycast_types::{Duration, Time};
use polycast_wire::rack::LABELS_LEN_MAX;
use polycast_wire::rack::{Heartbeat, Name, Rack, Standing, Update, Updates};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A world whose machines are too small for what is asked of them: each keeps to its bound.
#[test]
fn nothing_grows_beyond_its_bound() {
    let limits = Limits { tickets: 6, central: 12, leaf: 9, agent: 6 };
    let (mut refused, mut full) = (0, 0);
    for seed in 0..30 {
        let shape = Shape { racks: 2, limits, ..shape() };
        let faults = Faults { loss: 100, duplication: 100, lies: 50, ..Faults::default() };
        let mut world = World::new(shape, faults, seed);
        for ticket in 0..120 {
            let (session, leaf) = (world.random(20) as u32, world.random(2) as u32);
            let is_member = world.random(3) > 0;
            world.set(ticket, session, &[(leaf, is_member)]);
            world.run_until(world.now + Duration::from_micros(100));
            assert!(world.central.waiting() <= limits.tickets);
            world.central.check();
            for leaf in world.leafs.values() {
                leaf.check();
                assert!(leaf.labels() <= limits.leaf);
            }
            for node in world.agents.values() {
                node.machine.check();
                assert!(node.machine.labels() <= limits.agent && node.labels.len() <= limits.agent);
            }
        }
        (refused, full) = (refused + world.refused, full + world.full);
    }
    assert!(refused > 0 && full > 0, "{refused} refused, {full} full: the bounds were not reached");
}

fn central(tickets_max: usize, labels_max: usize) -> Central {
    Central::new(CentralConfig {
        leafs: 2,
        incarnation: 100,
        silence: MS * 10,
        settles_at: Time::ZERO,
        tickets_max,
        labels_max,
        feed: FeedConfig::default(),
    })
}

/// Makes a set of changes and returns its refusal, or `None` while it waits.
fn set(central: &mut Central, ticket: u64, changes: &[(u32, u32, usize)]) -> Option<SetRefusal> {
    let label = |len: &usize| vec![0x80; *len];
    let changes = changes.iter().map(|(leaf, session, len)| Change {
        leaf: *leaf,
        session: *session,
        label: label(len),
    });
    central.handle(ms(1), CentralInput::Set { ticket, changes: changes.collect() });
    std::iter::from_fn(|| central.poll(ms(1))).find_map(|output| match output {
        CentralOutput::Refused { ticket: of, why } => {
            assert_eq!(of, ticket);
            Some(why)
        }
        _ => None,
    })
}

#[test]
fn a_central_controller_takes_what_is_just_allowed_and_no_more() {
    let mut central = central(3, 2);
    assert_eq!(set(&mut central, 1, &[(0, 1, LABELS_LEN_MAX)]), None);
    assert_eq!(
        set(&mut central, 2, &[(0, 1, LABELS_LEN_MAX + 1)]),
        Some(SetRefusal::LabelLength(LABELS_LEN_MAX + 1))
    );
    assert_eq!(set(&mut central, 2, &[(2, 1, 1)]), Some(SetRefusal::NoLeaf { leaf: 2, last: 1 }));
    assert_eq!(set(&mut central, 1, &[(0, 1, 1)]), Some(SetRefusal::TicketTaken(1)));
    let full = |sessions| Some(SetRefusal::RackFull { leaf: 0, sessions });
    assert_eq!(set(&mut central, 2, &[(0, 2, 1), (0, 3, 1)]), full(1), "all of it or nothing");
    assert_eq!(set(&mut central, 2, &[(0, 2, 1), (0, 2, 2), (0, 1, 3)]), None, "two sessions have room");
    assert_eq!(set(&mut central, 3, &[(0, 3, 1)]), full(2));
    assert_eq!(set(&mut central, 3, &[(1, 3, 1)]), None, "another rack has room");
    assert_eq!(set(&mut central, 4, &[(1, 3, 1)]), Some(SetRefusal::TooMany(3)));
    central.handle(ms(1), CentralInput::Forget { ticket: 2 });
    assert_eq!(set(&mut central, 4, &[(1, 3, 2)]), None);
    assert_eq!(central.waiting(), 3);
}

/// A number that is given to other changes says nothing about those that had it before.
#[test]
fn changes_that_are_forgotten_confirm_no_others() {
    let mut central = central(10, 10);
    let from = Name { rack: 0, agent: None };
    let beat = |central: &mut Central, stream, applied| {
        let heartbeat = Heartbeat {
            from,
            incarnation: 7,
            stream,
            applied,
            confirmed: applied,
            active: false,
            settled: true,
        };
        central.handle(ms(2), CentralInput::FromLeaf { leaf: 0, message: Rack::Heartbeat(heartbeat) });
        let outputs: Vec<_> = std::iter::from_fn(|| central.poll(ms(2))).collect();
        outputs
    };
    let told = beat(&mut central, 0, 0).into_iter().find_map(|output| match output {
        CentralOutput::ToLeaf { datagram, .. } => Some(datagram),
        _ => None,
    });
    let Ok(Rack::Standing(Standing { stream, .. })) = Rack::parse(told.as_deref().unwrap()) else { panic!() };
    assert_eq!(set(&mut central, 1, &[(0, 1, 1)]), None);
    central.handle(ms(1), CentralInput::Forget { ticket: 1 });
    assert_eq!(set(&mut central, 1, &[(0, 2, 1)]), None);
    let confirmed = CentralOutput::Confirmed { ticket: 1 };
    assert!(!beat(&mut central, stream, 1).contains(&confirmed), "these changes are number 2");
    assert!(beat(&mut central, stream, 2).contains(&confirmed));
    assert_eq!((central.waiting(), central.confirmed_updates()), (0, 2));
}

fn updates(to: Name, stream: u64, first: u64, sessions: &[u32]) -> Rack<'static> {
    let mut updates = Updates::new(to, stream, first - 1);
    for (number, session) in (first..).zip(sessions) {
        assert!(updates.push(Update { number, session: *session, label: &[0x80] }));
    }
    Rack::Updates(updates)
}

fn standing(to: Name, stream: u64, head: u64) -> Rack<'static> {
    Rack::Standing(Standing { to, incarnation: 5, stream, head, active: true, settled: true })
}

#[test]
fn a_leaf_takes_as_many_sessions_as_it_may_have() {
    let mut leaf = Leaf::new(
        LeafConfig {
            rack: 3,
            ports: 2,
            incarnation: 5,
            active: 1,
            standby: 1,
            timeout: MS * 4,
            period: MS,
            labels_max: 3,
            feed: FeedConfig::default(),
        },
        ms(0),
    );
    let to = Name { rack: 3, agent: None };
    let mut take = |message| {
        leaf.handle(ms(1), LeafInput::FromCentral(message));
        let full =
            std::iter::from_fn(|| leaf.poll(ms(1))).filter(|output| *output == LeafOutput::Full).count();
        (leaf.labels(), full)
    };
    take(standing(to, 1, 0));
    assert_eq!(take(updates(to, 1, 1, &[1, 2, 1, 3])), (3, 0));
    assert_eq!(take(updates(to, 1, 5, &[3, 4, 1])), (3, 1));
    assert_eq!(take(updates(to, 1, 6, &[4, 1])), (3, 0), "it is said once");
    // Another stream begins with nothing.
    take(standing(to, 2, 0));
    assert_eq!(take(updates(to, 2, 1, &[7, 8, 9])), (3, 0));
    // What an earlier stream has named makes room while the next one is not complete.
    take(standing(to, 3, 9));
    assert_eq!(take(updates(to, 3, 1, &[4, 5, 6])), (3, 0));
    leaf.check();
    assert_eq!(leaf.held(), (3, 3), "labels of one byte each");
}

/// An agent that was away and says that it has what it never was sent is brought up to date from the
/// beginning.
#[test]
fn who_comes_back_with_what_was_never_sent_begins_anew() {
    for (applied, stays) in [(0, true), (3, false)] {
        let (rack, feed) = (3, FeedConfig::default());
        let (ports, incarnation, active, standby, labels_max) = (2, 5, 1, 1, 10);
        let (timeout, period) = (MS * 4, MS);
        let config =
            LeafConfig { rack, ports, incarnation, active, standby, timeout, period, labels_max, feed };
        let mut leaf = Leaf::new(config, ms(0));
        let to = Name { rack, agent: None };
        let streams = |leaf: &mut Leaf, now| -> Vec<u64> {
            let of = |output| match output {
                LeafOutput::ToAgent { datagram, .. } => match Rack::parse(&datagram) {
                    Ok(Rack::Standing(standing)) => Some(standing.stream),
                    _ => None,
                },
                _ => None,
            };
            std::iter::from_fn(|| leaf.poll(now)).filter_map(of).collect()
        };
        let beat = |leaf: &mut Leaf, now, stream, applied| {
            let from = Name { rack, agent: Some(1) };
            let (incarnation, confirmed, active, settled) = (9, applied, false, false);
            let message = Heartbeat { from, incarnation, stream, applied, confirmed, active, settled };
            leaf.handle(now, LeafInput::FromAgent { port: 1, message: Rack::Heartbeat(message) });
        };
        leaf.handle(ms(1), LeafInput::FromCentral(standing(to, 1, 0)));
        beat(&mut leaf, ms(1), 0, 0);
        let first = *streams(&mut leaf, ms(1)).last().unwrap();
        // It is lost before anything is sent to it.
        (2..200).for_each(|now| _ = streams(&mut leaf, ms(now)));
        leaf.handle(ms(200), LeafInput::FromCentral(updates(to, 1, 1, &[1, 2, 3])));
        streams(&mut leaf, ms(200));
        beat(&mut leaf, ms(201), first, applied);
        let now = streams(&mut leaf, ms(201)).last().copied().unwrap_or(first);
        assert_eq!(now == first, stays, "applied {applied}: stream {now} after {first}");
        leaf.check();
    }
}

#[test]
fn an_agent_takes_as_many_labels_as_it_may_have() {
    let config = AgentConfig { rack: 3, port: 1, incarnation: 5, period: MS, labels_max: 3 };
    let mut agent = Agent::new(config, ms(0));
    let to = Name { rack: 3, agent: Some(1) };
    let mut take = |message| {
        agent.handle(ms(1), AgentInput::Message(message));
        let outputs: Vec<_> = std::iter::from_fn(|| agent.poll(ms(1))).collect();
        let removed: Vec<u32> = outputs
            .iter()
            .filter_map(|output| match output {
                AgentOutput::Remove { session } => Some(*session),
                _ => None,
            })
            .collect();
        (agent.labels(), outputs.contains(&AgentOutput::Full), removed)
    };
    take(standing(to, 1, 0));
    assert_eq!(take(updates(to, 1, 1, &[1, 2, 1, 3])), (3, false, vec![]));
    assert_eq!(take(updates(to, 1, 5, &[3, 4, 1])), (3, true, vec![]));
    assert_eq!(take(updates(to, 1, 6, &[4, 1])), (3, false, vec![]), "it is said once");
    // What an earlier run has named makes room, or what is new would never be complete.
    take(standing(to, 2, 9));
    assert_eq!(take(updates(to, 2, 1, &[3, 8, 9])), (3, false, vec![1, 2]));
}

/// An agent lives in its rack's eyes by what it says each time that is due, neither before nor after.
#[test]
fn an_agent_speaks_when_it_is_due() {
    let config = AgentConfig { rack: 3, port: 1, incarnation: 5, period: MS, labels_max: 3 };
    let mut agent = Agent::new(config, ms(7));
    for _ in 0..5 {
        let at = agent.deadline().unwrap();
        assert_eq!(agent.poll(Time(at.0 - 1)), None, "before {at:?}");
        assert!(matches!(agent.poll(at), Some(AgentOutput::Send(_))), "at {at:?}");
        assert_eq!(agent.poll(at), None, "twice at {at:?}");
    }
}

/// Changes of a row as a packet to one agent: which session gets a label, or loses it.
fn changes(
    (to, stream): (Name, u64),
    row: &[(u32, bool)],
    numbers: std::ops::Range<usize>,
    labels: &[[u8; 2]],
) -> Vec<u8> {
    let mut updates = Updates::new(to, stream, numbers.start as u64);
    for number in numbers.start + 1..=numbers.end {
        let (session, is_member) = row[number - 1];
        let label = if is_member { &labels[number][..] } else { &[] };
        // Datagrams have room for so few.
        assert!(updates.push(Update { number: number as u64, session, label }));
    }
    let mut datagram = Vec::new();
    Rack::Updates(updates).emit(&mut datagram);
    datagram
}

/// The labels that are there after a row of changes.
fn members(row: &[(u32, bool)], labels: &[[u8; 2]]) -> BTreeMap<u32, Vec<u8>> {
    let mut there = BTreeMap::new();
    for (number, (session, is_member)) in (1..).zip(row) {
        if *is_member {
            there.insert(*session, labels[number].into());
        } else {
            there.remove(session);
        }
    }
    there
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Parts of one row of changes come in any order, some twice, and words for others between them: an agent
    /// has what the row says up to the last one that came in its order, counts all the rest, and takes
    /// changes of what it has though its map is full.
    #[test]
    fn an_agent_has_what_the_row_says(
        row in proptest::collection::vec((0u32..4, any::<bool>()), 1..30),
        words in proptest::collection::vec((0usize..30, 1usize..8, 0u8..9), 1..60),
    ) {
        let config = AgentConfig { rack: 3, port: 1, incarnation: 5, period: MS, labels_max: 4 };
        let mut agent = Agent::new(config, ms(0));
        let (to, other) = (Name { rack: 3, agent: Some(1) }, Name { rack: 3, agent: Some(2) });
        let all: Vec<[u8; 2]> = (0..=row.len()).map(|number| [number as u8, 0x80]).collect();
        agent.handle(ms(1), AgentInput::Message(standing(to, 1, row.len() as u64)));
        let mut labels: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        let (mut applied, mut counts) = (0, AgentCounts::default());
        for (after, count, kind) in words {
            let after = after % row.len();
            let end = row.len().min(after + count);
            let part = |to, stream| changes((to, stream), &row, after..end, &all);
            let mut word = |message: Rack<'_>| agent.handle(ms(1), AgentInput::Message(message));
            match kind {
                0 => {
                    word(Rack::parse(&part(other, 1)).unwrap());
                    counts.refused += 1;
                }
                1 => {
                    let Rack::Standing(right) = standing(to, 1, 0) else { panic!() };
                    word(Rack::Standing(Standing { incarnation: 4, ..right }));
                    counts.refused += 1;
                }
                2 => {
                    word(standing(to, 0, 0));
                    counts.refused += 1;
                }
                // Of a stream that nothing has named the run of.
                3 => {
                    word(Rack::parse(&part(to, 2)).unwrap());
                    counts.gaps += 1;
                }
                4 => {
                    word(Rack::parse(&part(to, 0)).unwrap());
                    counts.stale += (end - after) as u64;
                }
                _ => {
                    word(Rack::parse(&part(to, 1)).unwrap());
                    if after > applied {
                        counts.gaps += 1;
                    } else {
                        counts.stale += (applied.min(end) - after) as u64;
                        applied = applied.max(end);
                    }
                }
            }
            for output in std::iter::from_fn(|| agent.poll(ms(1))) {
                match output {
                    AgentOutput::Set { session, label } => _ = labels.insert(session, label),
                    AgentOutput::Remove { session } => _ = labels.remove(&session),
                    AgentOutput::Full => prop_assert!(false, "it has room for all sessions that there are"),
                    AgentOutput::Active(_) | AgentOutput::Send(_) => {}
                }
            }
            let expected = members(&row[..applied], &all);
            prop_assert_eq!(&labels, &expected);
            prop_assert_eq!((agent.applied(), agent.labels()), (applied as u64, expected.len()));
            prop_assert_eq!(agent.counts(), counts);
        }
    }
}
