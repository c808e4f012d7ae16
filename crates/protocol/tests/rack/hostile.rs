//! Whatever others say, in whatever order: no controller panics, and each keeps to its bounds.

use super::MS;
use polycast_protocol::push::feedback::{Feedback, FeedbackConfig, FeedbackInput, FeedbackOutput};
use polycast_protocol::rack::{
    Agent, AgentConfig, AgentInput, Central, CentralConfig, CentralInput, Change, FeedConfig, Leaf,
    LeafConfig, LeafInput,
};
use polycast_types::{Duration, Time};
use polycast_wire::control::{Control, MEMBERS_MAX};
use polycast_wire::rack::{Heartbeat, Name, Rack, Standing, Update, Updates};
use proptest::collection::vec;
use proptest::prelude::*;

/// Small numbers, which meet, and the largest ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0u64..12, 1 => any::<u64>(), 1 => (0u64..3).prop_map(|n| u64::MAX - n)]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![9 => 0u32..4, 1 => any::<u32>()]
}

fn name() -> impl Strategy<Value = Name> {
    let agent = proptest::option::of(small().prop_map(|port| port.min(u32::MAX - 1)));
    (small(), agent).prop_map(|(rack, agent)| Name { rack, agent })
}

#[derive(Clone, Debug)]
enum Word {
    Heartbeat(Heartbeat),
    Standing(Standing),
    Updates { to: Name, stream: u64, after: u64, updates: Vec<(u64, u32, Vec<u8>)> },
}

impl Word {
    /// As it comes out of a datagram; `None` if no datagram holds it.
    fn datagram(&self) -> Option<Vec<u8>> {
        let mut datagram = Vec::new();
        match self {
            Word::Heartbeat(heartbeat) => Rack::Heartbeat(*heartbeat).emit(&mut datagram),
            Word::Standing(standing) => Rack::Standing(*standing).emit(&mut datagram),
            Word::Updates { to, stream, after, updates } => {
                let mut message = Updates::new(*to, *stream, *after);
                for (step, session, label) in updates {
                    let number = message.last().checked_add((*step).max(1));
                    let Some(number) = number else { break };
                    message.push(Update { number, session: *session, label });
                }
                if message.updates.is_empty() {
                    return None;
                }
                Rack::Updates(message).emit(&mut datagram);
            }
        }
        Some(datagram)
    }
}

fn word() -> impl Strategy<Value = Word> {
    let heartbeat = (name(), number(), number(), number(), number(), any::<bool>(), any::<bool>()).prop_map(
        |(from, incarnation, stream, applied, confirmed, active, settled)| {
            Word::Heartbeat(Heartbeat { from, incarnation, stream, applied, confirmed, active, settled })
        },
    );
    let standing = (name(), number(), number(), number(), any::<bool>(), any::<bool>()).prop_map(
        |(to, incarnation, stream, head, active, settled)| {
            Word::Standing(Standing { to, incarnation, stream, head, active, settled })
        },
    );
    let updates = vec((number(), 0u32..9, vec(any::<u8>(), 0..3)), 1..6);
    let updates = (name(), number(), number(), updates)
        .prop_map(|(to, stream, after, updates)| Word::Updates { to, stream, after, updates });
    prop_oneof![3 => heartbeat, 1 => standing, 2 => updates]
}

/// A time that goes on by these steps.
fn pass(now: &mut Time, step: u64) -> Time {
    *now += Duration::from_micros(if step < 12 { step * 100 } else { step % 100_000 });
    *now
}

/// Takes what is to be done, which comes to an end.
fn drain<T>(mut poll: impl FnMut() -> Option<T>) -> usize {
    let outputs = std::iter::from_fn(&mut poll).take(10_001).count();
    assert!(outputs <= 10_000, "it never comes to an end");
    outputs
}

const FEED: FeedConfig = FeedConfig { window: 2, retry: Duration::from_millis(1) };

#[derive(Clone, Debug)]
enum Order {
    Set(u64, Vec<(u32, u32, Vec<u8>)>),
    Forget(u64),
    Word(u32, Word),
}

fn order() -> impl Strategy<Value = Order> {
    let changes = vec((small(), 0u32..9, vec(any::<u8>(), 0..3)), 0..5);
    prop_oneof![
        3 => (0u64..9, changes).prop_map(|(ticket, changes)| Order::Set(ticket, changes)),
        1 => (0u64..9).prop_map(Order::Forget),
        6 => (small(), word()).prop_map(|(leaf, word)| Order::Word(leaf, word)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_central_controller_survives_all_words(orders in vec((order(), number()), 1..60)) {
        let mut central = Central::new(CentralConfig {
            leafs: 3,
            incarnation: 1,
            silence: MS * 3,
            settles_at: Time(2_000_000),
            tickets_max: 4,
            labels_max: 5,
            feed: FEED,
        });
        let mut now = Time::ZERO;
        for (order, step) in orders {
            let now = pass(&mut now, step);
            match order {
                Order::Set(ticket, changes) => {
                    let change = |(leaf, session, label)| Change { leaf, session, label };
                    let changes = changes.into_iter().map(change).collect();
                    central.handle(now, CentralInput::Set { ticket, changes });
                }
                Order::Forget(ticket) => central.handle(now, CentralInput::Forget { ticket }),
                Order::Word(leaf, word) => {
                    let Some(datagram) = word.datagram() else { continue };
                    let message = Rack::parse(&datagram).unwrap();
                    central.handle(now, CentralInput::FromLeaf { leaf, message });
                }
            }
            drain(|| central.poll(now));
            central.check();
            prop_assert!(central.deadline().is_none_or(|at| at > now));
        }
    }

    #[test]
    fn a_leaf_controller_survives_all_words(words in vec((word(), small(), any::<bool>(), number()), 1..80)) {
        let mut leaf = Leaf::new(
            LeafConfig {
                rack: 0,
                ports: 4,
                incarnation: 1,
                active: 1,
                standby: 1,
                timeout: MS,
                period: MS,
                labels_max: 5,
                feed: FEED,
            },
            Time::ZERO,
        );
        let (mut now, mut before) = (Time::ZERO, (0, 0));
        for (word, port, from_above, step) in words {
            let now = pass(&mut now, step);
            let Some(datagram) = word.datagram() else { continue };
            let message = Rack::parse(&datagram).unwrap();
            leaf.handle(now, match (from_above, step) {
                (true, _) => LeafInput::FromCentral(message),
                (false, 7) => LeafInput::Relabelled { port, at: Time(step) },
                (false, _) => LeafInput::FromAgent { port, message },
            });
            // What it says of itself goes up in its stream, or the stream does.
            let mut outputs = 0;
            while let Some(output) = leaf.poll(now) {
                outputs += 1;
                prop_assert!(outputs < 10_000);
                if let polycast_protocol::rack::LeafOutput::ToCentral(datagram) = output {
                    let Ok(Rack::Heartbeat(beat)) = Rack::parse(&datagram) else { panic!() };
                    prop_assert!((beat.stream, beat.applied) >= before, "{beat:?} after {before:?}");
                    prop_assert!(beat.confirmed <= beat.applied);
                    before = (beat.stream, beat.applied);
                }
            }
            leaf.check();
        }
    }

    #[test]
    fn an_agent_survives_all_words(words in vec((word(), number()), 1..80)) {
        let config = AgentConfig { rack: 0, port: 1, incarnation: 1, period: MS, labels_max: 5 };
        let mut agent = Agent::new(config, Time::ZERO);
        let (mut now, mut before) = (Time::ZERO, 0);
        for (word, step) in words {
            let now = pass(&mut now, step);
            // Those for others are refused at once: most are for this one.
            let to = Name { rack: 0, agent: Some(1) };
            let word = match word {
                Word::Standing(standing) if step % 8 > 0 => {
                    Word::Standing(Standing { to, incarnation: 1, ..standing })
                }
                Word::Updates { stream, after, updates, .. } if step % 8 > 0 => {
                    Word::Updates { to, stream, after, updates }
                }
                word => word,
            };
            let Some(datagram) = word.datagram() else { continue };
            agent.handle(now, AgentInput::Message(Rack::parse(&datagram).unwrap()));
            drain(|| agent.poll(now));
            agent.check();
            prop_assert!(agent.labels() <= 5);
            prop_assert!(agent.applied() >= before || matches!(word, Word::Standing(_)), "numbers rise");
            before = agent.applied();
        }
    }

    #[test]
    fn one_voice_survives_all_words(words in vec(
        (prop_oneof![0u32..400, any::<u32>()], number(), number(), number(), vec((number(), number()), 0..40), 0u8..8),
        1..400,
    )) {
        let config = FeedbackConfig {
            own: 3,
            gather: MS,
            hold: MS * 4,
            heartbeat: MS * 5,
            patience: MS * 2_000,
            ranges_max: 6,
        };
        let mut feedback = Feedback::new(config);
        let mut now = Time::ZERO;
        for (member, a, b, c, ranges, kind) in words {
            let now = pass(&mut now, a % 12);
            let progress = Control::Progress {
                position: a,
                received: b,
                lost: c,
                verified_bytes: b,
                arrived_ns: c,
                waited_ns: a,
            };
            let request = Control::PtchReq(ranges.into_iter().map(|(one, other)| one.min(other)..one.max(other)).collect());
            feedback.handle(now, match kind {
                0 => FeedbackInput::Left { member },
                1 | 2 => FeedbackInput::Said { member, control: &request },
                _ => FeedbackInput::Said { member, control: &progress },
            });
            let mut outputs = 0;
            while let Some(output) = feedback.poll(now) {
                outputs += 1;
                prop_assert!(outputs < 10_000);
                // What it says can be written.
                if let FeedbackOutput::ToSource(control) = output {
                    control.emit(&mut Vec::new());
                }
            }
            feedback.check();
        }
    }
}

/// A rack is as large as a speaker may speak for, and the speaker has its place beside it.
#[test]
fn a_speaker_speaks_for_as_many_as_it_may() {
    let config =
        FeedbackConfig { own: 1_000, gather: MS, hold: MS, heartbeat: MS, patience: MS, ranges_max: 6 };
    let mut feedback = Feedback::new(config);
    let progress = Control::Progress {
        position: 1,
        received: 1,
        lost: 0,
        verified_bytes: 1,
        arrived_ns: 0,
        waited_ns: 0,
    };
    let mut say = |member| {
        feedback.handle(Time::ZERO, FeedbackInput::Said { member, control: &progress });
        let named = std::iter::from_fn(|| feedback.poll(Time::ZERO)).find_map(|output| match output {
            FeedbackOutput::ToSource(Control::Rack(members)) => Some(members.len()),
            _ => None,
        });
        (named, feedback.foreign())
    };
    for member in 0..MEMBERS_MAX as u32 {
        assert_eq!(say(member), (Some(member as usize + 1), 0));
    }
    assert_eq!(say(500), (None, 1), "one more has no place");
    assert_eq!(say(1_000), (None, 1), "the speaker itself has one");
}
