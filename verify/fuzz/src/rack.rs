//! The controllers of racks and the one voice of a rack's receivers, which hear whatever others may say.

use crate::words::{INPUTS_MAX, Words, drain, emitted, hear};
use polycast_protocol::push::feedback::{Feedback, FeedbackConfig, FeedbackInput, FeedbackOutput};
use polycast_protocol::rack::{
    Agent, AgentConfig, AgentInput, AgentOutput, Central, CentralConfig, CentralInput, CentralOutput, Change,
    FeedConfig, Leaf, LeafConfig, LeafInput, LeafOutput,
};
use polycast_types::{Duration, Time};
use polycast_wire::rack::{Heartbeat, Name, Rack, Standing, Update, Updates};

const MS: Duration = Duration::from_millis(1);
const FEED: FeedConfig = FeedConfig { window: 2, retry: MS };
const LABELS_MAX: usize = 5;

fn name(words: &mut Words<'_>) -> Name {
    let agent = words.flip().then(|| words.small(3).min(u32::MAX - 1));
    Name { rack: words.small(3), agent }
}

/// A message as it comes out of a datagram; what is no message is nothing.
fn datagram(words: &mut Words<'_>) -> Vec<u8> {
    let mut datagram = Vec::new();
    let at = name(words);
    let (incarnation, stream) = (words.number(2), words.number(4));
    match words.below(6) {
        0 => return words.bytes(200).to_vec(),
        1 | 2 => {
            let (applied, confirmed, active, settled) =
                (words.number(6), words.number(6), words.flip(), words.flip());
            let beat = Heartbeat { from: at, incarnation, stream, applied, confirmed, active, settled };
            Rack::Heartbeat(beat).emit(&mut datagram);
        }
        3 => {
            let (head, active, settled) = (words.number(6), words.flip(), words.flip());
            Rack::Standing(Standing { to: at, incarnation, stream, head, active, settled })
                .emit(&mut datagram);
        }
        _ => {
            let updates: Vec<_> =
                (0..=words.below(5)).map(|_| (words.number(3), words.small(8), words.bytes(2))).collect();
            let mut message = Updates::new(at, stream, words.number(6));
            for (step, session, label) in updates {
                let Some(number) = message.last().checked_add(step.max(1)) else { break };
                message.push(Update { number, session, label });
            }
            if !message.updates.is_empty() {
                Rack::Updates(message).emit(&mut datagram);
            }
        }
    }
    datagram
}

/// Checks that a controller's datagram is a message.
fn sent(datagram: &[u8]) {
    let message = Rack::parse(datagram).expect("what a controller says is a message");
    let mut again = Vec::new();
    message.emit(&mut again);
    assert_eq!(again, datagram);
}

/// The central controller survives all that leafs say, whatever it is told to hand out.
pub fn rack_central(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let mut now = Time::ZERO;
    let mut central = Central::new(CentralConfig {
        leafs: 3,
        incarnation: 1,
        silence: MS * 3,
        settles_at: Time(2_000_000),
        tickets_max: 4,
        labels_max: LABELS_MAX,
        feed: FEED,
    });
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        match words.below(8) {
            0 | 1 => {
                let change = |words: &mut Words<'_>| Change {
                    leaf: words.small(2),
                    session: words.small(8),
                    label: words.bytes(170).to_vec(),
                };
                let changes = (0..words.below(5)).map(|_| change(&mut words)).collect();
                central.handle(now, CentralInput::Set { ticket: words.below(9), changes });
            }
            2 => central.handle(now, CentralInput::Forget { ticket: words.below(9) }),
            _ => {
                let datagram = datagram(&mut words);
                if let Ok(message) = Rack::parse(&datagram) {
                    central.handle(now, CentralInput::FromLeaf { leaf: words.small(2), message });
                }
            }
        }
        central.check();
        drain(
            &mut central,
            |central| central.poll(now),
            |_, output| {
                if let CentralOutput::ToLeaf { leaf, datagram } = output {
                    assert!(leaf < 3, "there is no leaf {leaf}");
                    sent(&datagram);
                }
            },
        );
        central.check();
        assert!(central.waiting() <= 4 && central.deadline().is_none_or(|at| at > now));
    }
}

/// A leaf controller survives all that agents and the central controller say; what it has never goes back.
pub fn rack_leaf(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let mut now = Time::ZERO;
    let config = LeafConfig {
        rack: 0,
        ports: 4,
        incarnation: 1,
        active: 1,
        standby: 1,
        timeout: MS,
        period: MS,
        labels_max: LABELS_MAX,
        feed: FEED,
    };
    let (mut leaf, mut before) = (Leaf::new(config, now), (0, 0));
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        let (port, datagram) = (words.small(3), datagram(&mut words));
        match (words.below(8), Rack::parse(&datagram)) {
            (0, _) => leaf.handle(now, LeafInput::Relabelled { port, at: Time(words.number(now.0)) }),
            (1..=4, Ok(message)) => leaf.handle(now, LeafInput::FromCentral(message)),
            (_, Ok(message)) => leaf.handle(now, LeafInput::FromAgent { port, message }),
            (_, Err(_)) => continue,
        }
        leaf.check();
        drain(
            &mut leaf,
            |leaf| leaf.poll(now),
            |_, output| match output {
                LeafOutput::ToCentral(datagram) => {
                    let Ok(Rack::Heartbeat(beat)) = Rack::parse(&datagram) else {
                        panic!("only heartbeats go up")
                    };
                    assert!((beat.stream, beat.applied) >= before, "{beat:?} after {before:?}");
                    assert!(beat.confirmed <= beat.applied);
                    before = (beat.stream, beat.applied);
                }
                LeafOutput::ToAgent { port, datagram } => {
                    assert!(port < 4, "there is no port {port}");
                    sent(&datagram);
                }
                _ => {}
            },
        );
        leaf.check();
        assert!(leaf.labels() <= LABELS_MAX && leaf.deadline().is_none_or(|at| at > now));
    }
}

/// An agent's controller survives all that its leaf controller says; no label goes back.
pub fn rack_agent(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let mut now = Time::ZERO;
    let config = AgentConfig { rack: 0, port: 1, incarnation: 1, period: MS, labels_max: LABELS_MAX };
    let mut agent = Agent::new(config, now);
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        let datagram = datagram(&mut words);
        let Ok(mut message) = Rack::parse(&datagram) else { continue };
        // Those for others are refused at once: most are for this one.
        if words.below(8) > 0 {
            let own = Name { rack: 0, agent: Some(1) };
            match &mut message {
                Rack::Standing(standing) => (standing.to, standing.incarnation) = (own, 1),
                Rack::Updates(updates) => updates.to = own,
                Rack::Heartbeat(_) => {}
            }
        }
        let (stands, before) = (matches!(message, Rack::Standing(_)), agent.applied());
        agent.handle(now, AgentInput::Message(message));
        agent.check();
        assert!(agent.applied() >= before || stands, "numbers rise");
        drain(
            &mut agent,
            |agent| agent.poll(now),
            |_, output| {
                if let AgentOutput::Send(datagram) = output {
                    sent(&datagram);
                }
            },
        );
        assert!(agent.labels() <= LABELS_MAX && agent.deadline().is_none_or(|at| at > now));
    }
}

/// A rack's speaker survives all that its receivers say, and what it says to the source can be written.
pub fn rack_feedback(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let mut now = Time::ZERO;
    let config = FeedbackConfig {
        own: 3,
        gather: MS,
        hold: MS * 4,
        heartbeat: MS * 5,
        patience: MS * (1 + words.below(2_000)),
        ranges_max: 1 + words.below(8) as usize,
    };
    let mut feedback = Feedback::new(config);
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        let member = words.small(300);
        match words.below(8) {
            0 => feedback.handle(now, FeedbackInput::Left { member }),
            1..=4 => {
                let control = words.progress(40);
                feedback.handle(now, FeedbackInput::Said { member, control: &control });
            }
            _ => {
                let frame = words.frame_to_source(40, 6);
                hear(&frame, |control| feedback.handle(now, FeedbackInput::Said { member, control }));
            }
        }
        feedback.check();
        drain(
            &mut feedback,
            |feedback| feedback.poll(now),
            |_, output| {
                if let FeedbackOutput::ToSource(control) = output {
                    emitted(&control);
                }
            },
        );
        feedback.check();
        assert!(feedback.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
    }
}
