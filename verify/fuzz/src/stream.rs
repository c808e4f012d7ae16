//! Streams: the order of messages at a receiver, and the manager's table of sources and receivers.

use crate::leases::{channel, plan};
use crate::words::{HANDLE, INPUTS_MAX, Words, drain};
use polycast_planning::PlanId;
use polycast_protocol::leases::{AgentKey, Denial, Grant, Input, RequestKey, STREAMS_FROM};
use polycast_protocol::stream::{
    Order, OrderConfig, OrderInput, OrderOutput, Streams, StreamsConfig, StreamsInput, StreamsOutput,
};
use polycast_types::{Duration, Handle, Time};
use polycast_wire::stream::Header;
use std::collections::BTreeMap;

/// Whatever pieces come, messages rise in number and are whole, and what waits is bounded.
pub fn stream_order(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let mut now = Time(1);
    let config = OrderConfig {
        hold: words.span(),
        messages_max: 1 + words.below(8) as usize,
        bytes_max: words.below(4_000) as usize,
    };
    // Some have joined late.
    let from = if config.bytes_max % 2 == 1 { 4 } else { 0 };
    let mut order = Order::new(config).not_before(from);
    let (mut kept, mut last): (BTreeMap<u64, usize>, Option<u64>) = (BTreeMap::new(), None);
    let mut delivered = 0u64;
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        let piece = match words.below(4) {
            0 => match Header::parse(words.bytes(60)) {
                Ok((header, payload)) => (header.number, header.piece, header.pieces, payload.len()),
                Err(_) => continue,
            },
            _ => {
                let (number, pieces) = (words.number(last.unwrap_or(4)), words.small(3) as u16);
                (number, words.small(3) as u16, pieces, words.small(900) as usize)
            }
        };
        let (number, piece, pieces, len) = piece;
        if order.handle(now, OrderInput::Piece { number, piece, pieces, len }) {
            *kept.entry(number).or_default() += 1;
        }
        order.check();
        drain(
            &mut order,
            |order| order.poll(now),
            |_, output| match output {
                OrderOutput::Deliver { number, lost } => {
                    assert!(kept.remove(&number).is_some(), "message {number} has no piece");
                    let rises = last.is_none_or(|last| number > last && number - last > lost);
                    // The first message of all may be of any sender.
                    assert!(rises || delivered == 1, "{number} after {last:?}");
                    assert!(number >= from, "{number} is older than {from}");
                    (last, delivered) = (Some(number), delivered + 1);
                }
                OrderOutput::Forget { number } => drop(kept.remove(&number)),
            },
        );
        order.check();
        assert!(kept.len() <= config.messages_max, "{} messages are kept", kept.len());
        assert!(order.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
    }
}

fn agent(words: &mut Words<'_>) -> AgentKey {
    AgentKey { name: words.name(), incarnation: words.below(3) }
}

fn stream_name(words: &mut Words<'_>) -> String {
    match words.below(8) {
        0 => words.text(),
        n => ["news", "prices", "a"][n as usize % 3].to_string(),
    }
}

/// The requests that the table has made: what it is answered about is mostly one of them.
#[derive(Default)]
struct Asked(Vec<RequestKey>);

impl Asked {
    fn key(&self, words: &mut Words<'_>) -> RequestKey {
        match self.0.get(words.below(self.0.len() as u64 + 1) as usize) {
            Some(key) => key.clone(),
            None => agent(words).request(STREAMS_FROM + words.below(3)),
        }
    }

    fn note(&mut self, input: Input) {
        let key = match input {
            Input::Request(request) => request.agent.request(request.request),
            Input::Extend { request, .. } | Input::Release { request, .. } | Input::Withdraw { request } => {
                request
            }
            _ => return,
        };
        if !self.0.contains(&key) && self.0.len() < 16 {
            self.0.push(key);
        }
    }
}

fn grant(words: &mut Words<'_>) -> Result<Grant, Denial> {
    if words.below(4) == 0 {
        return Err(Denial::Rejected(words.text()));
    }
    Ok(Grant {
        plan_id: PlanId(words.number(4)),
        accepted_bytes: words.number(9),
        receivers: words.names().into_iter().map(|name| (name, (words.address(), 1))).collect(),
        absent: words.names(),
        missed: words.names(),
        passed_over: Vec::new(),
        further_sources: Vec::new(),
        estimate: None,
        plan: polycast_planning::Plan { channel: channel(words), ..plan(words) },
        service: None,
        lease: None,
    })
}

fn streams_input(words: &mut Words<'_>, asked: &Asked) -> StreamsInput {
    let (agent, name) = (agent(words), stream_name(words));
    match words.below(16) {
        0 => StreamsInput::Arrived { agent },
        1 => StreamsInput::Gone { agent },
        2..=4 => {
            let request = if words.below(8) == 0 { words.number(4) } else { STREAMS_FROM + words.below(3) };
            let held = words.flip().then(|| (plan(words), words.names()));
            StreamsInput::Create { agent, name, request, handle: HANDLE, shared: words.flip(), held }
        }
        5 => StreamsInput::End { agent, name },
        6..=8 => StreamsInput::Join {
            name,
            ask: agent.incarnation,
            agent,
            sends: words.flip().then(|| Handle(words.below(4))),
        },
        9 => {
            let (receiver, ask, next) = (words.name(), words.below(3), words.number(9));
            StreamsInput::At { agent, name, receiver, ask, next }
        }
        10 => StreamsInput::Leave { agent, name },
        11 | 12 => StreamsInput::Response { request: asked.key(words), response: grant(words) },
        13 => {
            let result = if words.flip() { Ok(None) } else { grant(words).map(Some) };
            StreamsInput::Changed { request: asked.key(words), result }
        }
        14 => StreamsInput::Replanned { request: asked.key(words), plan: plan(words) },
        _ => StreamsInput::Ended { request: asked.key(words) },
    }
}

/// Whatever agents ask of streams, and whatever the leases answer, the table agrees with itself.
pub fn stream_table(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let mut now = Time(1);
    let config = StreamsConfig {
        streams_max: 2,
        senders_max: 2,
        parked_max: 3,
        settle: Duration::from_millis(5_000),
        retry: Duration::from_millis(1_000),
    };
    let (mut streams, mut asked) = (Streams::new(config, now), Asked::default());
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        streams.handle(now, streams_input(&mut words, &asked));
        drain(
            &mut streams,
            |streams| streams.poll(now),
            |_, output| {
                if let StreamsOutput::Lease(input) = output {
                    asked.note(input);
                }
            },
        );
        streams.check();
        assert!(streams.streams().count() <= 2);
        assert!(streams.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
    }
}
