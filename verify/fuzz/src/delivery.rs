//! The life of a delivery, and of receivers that bring an object to each other, whatever managers, carriers
//! and members say.

use crate::words::{INPUTS_MAX, Words, drain};
use polycast_protocol::delivery::{Delivery, DeliveryConfig, Ended, Input, Output, To};
use polycast_protocol::push::PeerId;
use polycast_protocol::push::overlay::{
    Candidate, Mesh, Requests, Seeding, UpstreamId, Upstreams, UpstreamsConfig, UpstreamsInput,
    UpstreamsOutput,
};
use polycast_types::Time;
use polycast_wire::control::{Fault, Share};
use std::collections::BTreeSet;

/// Groups of the objects here.
const GROUPS: u64 = 90;

fn time(words: &mut Words<'_>, now: Time) -> Option<Time> {
    let span = words.span();
    words.flip().then(|| Time((now + span).0.min(1 << 61)))
}

fn input(words: &mut Words<'_>, now: Time) -> Input {
    match words.below(12) {
        0 => {
            let len = words.number(1_000);
            Input::Start { delta_len: words.flip().then_some(len) }
        }
        1 | 2 => {
            let bytes = words.number(1_000);
            Input::Granted { bytes: words.flip().then_some(bytes), ends_at: time(words, now) }
        }
        3 => Input::Denied(words.text()),
        4 => Input::EndsAt(time(words, now)),
        5 | 6 => Input::UsedUp { bytes: words.number(1_000), receivers: words.names() },
        7 | 8 => Input::Ended(Ended::Finished { left: words.names(), rekeyed: words.flip() }),
        9 if words.below(4) == 0 => Input::Ended(Ended::Failed),
        10 => Input::Change(words.number(9)),
        11 if words.below(4) == 0 => Input::Cancel,
        _ => Input::Tick,
    }
}

/// A delivery survives whatever it hears, in any order, and ends once.
pub fn delivery(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let (mut now, lease, deadline) = (Time(1), words.span(), time(&mut words, Time(1)));
    let lease = words.flip().then_some(lease);
    let to = if words.flip() { To::All } else { To::Named(words.names()) };
    let mut machine = Delivery::new(DeliveryConfig { object_len: words.number(1_000), to, lease, deadline });
    let mut done = 0;
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        let input = input(&mut words, now);
        machine.handle(now, input);
        machine.check();
        let judge = |_: &mut Delivery, output: Output| done += usize::from(matches!(output, Output::Done(_)));
        drain(&mut machine, Delivery::poll, judge);
        assert!(done <= 1, "it is over twice");
        assert_eq!(machine.is_over(), done == 1);
        assert!(machine.deadline().is_none_or(|at| at > now), "looked at, yet due at {now:?}");
    }
}

fn candidate(number: u64, is_source: bool, share: Share) -> Candidate {
    Candidate { address: [10, 0, 0, number as u8].into(), port: 7, name: None, is_source, share }
}

/// Passes on messages of upstreams, and events that the driver sees on its own connections.
fn hear(machine: &mut Upstreams, now: Time, words: &mut Words<'_>) {
    let id = UpstreamId(words.below(8) as u32);
    match words.below(12) {
        0 => {
            let some: BTreeSet<u64> = (0..words.below(6)).map(|_| words.below(6)).collect();
            let some: Vec<Candidate> =
                some.into_iter().map(|number| candidate(number, number == 5, words.share())).collect();
            let is_behind_head = words.flip();
            machine.handle(now, UpstreamsInput::Candidates { all: &some, is_behind_head });
        }
        1 | 2 => machine.handle(now, UpstreamsInput::Opened(id)),
        3 => machine.handle(now, UpstreamsInput::Closed(id, Fault::Ended)),
        4 => machine.handle(now, UpstreamsInput::Heard(id, words.number(1 << 18))),
        5 | 6 => {
            let ranges = words.ranges(GROUPS);
            machine.handle(now, UpstreamsInput::Has(id, &ranges));
        }
        7 | 8 => machine.handle(now, UpstreamsInput::Came(id, words.number(GROUPS))),
        9 if words.flip() => machine.handle(now, UpstreamsInput::Wrong(id, words.number(GROUPS))),
        10 => machine.handle(now, UpstreamsInput::Verified(words.below(GROUPS))),
        _ => machine.handle(now, UpstreamsInput::Tick),
    }
}

/// A receiver's choice of upstreams survives whatever these say.
pub fn overlay_upstreams(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let seed = words.number(9);
    let mut machine = Upstreams::new(UpstreamsConfig { groups: GROUPS, group_len: 1 << 18, seed });
    let mut now = Time(1);
    let mut open: BTreeSet<UpstreamId> = BTreeSet::new();
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        hear(&mut machine, now, &mut words);
        machine.check();
        let judge = |_: &mut Upstreams, output: UpstreamsOutput| match output {
            UpstreamsOutput::Open(id, _) => assert!(open.insert(id), "{id:?} is opened twice"),
            UpstreamsOutput::Ask(id, groups) => {
                assert!(open.contains(&id) && !groups.is_empty());
                assert!(groups.iter().all(|group| *group < GROUPS), "{groups:?}");
            }
            UpstreamsOutput::Finish(id) => assert!(open.contains(&id), "{id:?} is not open"),
            UpstreamsOutput::Close(id) => assert!(open.remove(&id), "{id:?} is not open"),
            UpstreamsOutput::Lacks(ranges) => {
                assert!(ranges.iter().all(|range| !range.is_empty() && range.end <= GROUPS), "{ranges:?}");
            }
            UpstreamsOutput::Lost(..) => {}
        };
        drain(&mut machine, Upstreams::poll, judge);
        assert!(machine.deadline(now).is_none_or(|at| at > now));
    }
}

/// A source's end of the overlay survives whatever members ask for and say that they lack.
pub fn overlay_source(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let (mut seeding, mut mesh) = (Seeding::new(GROUPS), Mesh::new(words.number(9), words.location()));
    let (mut requests, mut now) = (Requests::new(GROUPS), Time(1));
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        let peer = PeerId(words.below(24) as u32);
        match words.below(10) {
            0 => seeding.make_ready(words.below(GROUPS)),
            1 => {
                let had = words.range_set(GROUPS);
                let _ = seeding.come(peer, had);
            }
            2 => seeding.leave(peer),
            3 if words.flip() => seeding.set_apart(peer, words.flip()),
            3 => seeding.forget(peer),
            4 => {
                let ranges = words.ranges(GROUPS);
                seeding.lack(now, peer, &ranges);
                assert!(mesh.let_take(peer).is_none_or(|told| told.takes));
            }
            5 | 6 => {
                let given = seeding.take(now, peer);
                assert!(given.is_none_or(|group| group < GROUPS));
            }
            7 => {
                let groups: Vec<u64> = (0..words.below(90)).map(|_| words.number(GROUPS)).collect();
                let _ = requests.ask(&groups, |group| group % 3 > 0);
                while requests.take().is_some_and(|group| group < GROUPS) {}
                assert!(requests.is_idle());
            }
            8 => drop(if words.flip() { mesh.join([(peer, words.location())]) } else { mesh.leave(peer) }),
            9 if words.flip() => drop(mesh.demote(peer)),
            _ => drop(mesh.lose(peer, PeerId(words.below(24) as u32), words.flip())),
        }
        seeding.check();
        mesh.check();
    }
    let most = GROUPS * (1 + 24 * INPUTS_MAX as u64);
    assert!(
        seeding.given() <= most && seeding.keepers().count() <= 16,
        "{} groups were given",
        seeding.given()
    );
}
