//! A host that sends to the data channel of a transfer that is not its own: what it makes up may cost a
//! little time, never bytes, and never much.

use crate::geometry;
use crate::settings::{config, receiver};
use crate::world::{Faults, World};
use polycast_protocol::push::{
    PeerId, Receiver, ReceiverInput, ReceiverOutput, Sender, SenderInput, SenderOutput,
};
use polycast_types::{Duration, Location, RangeSet, Time};
use polycast_wire::control::Control;
use polycast_wire::data::{FLAG_PATCH, FLAG_REPORT};
use proptest::prelude::*;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

/// Packets that the stranger sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The last positions that there are, one after the other.
    Last,
    /// Any fragment, in a round that may be the stream's.
    Anywhere,
    /// Any fragment as a patch.
    Patches,
    /// The next packets, before the source sends them.
    Ahead,
    /// Packets that were sent before, as they were.
    Replay,
}

/// One of his packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strange {
    pub round: u32,
    pub sn: u64,
    pub flags: u8,
    /// Set if its bytes are wrong.
    pub forged: bool,
}

/// The stranger.
pub(crate) struct Stranger {
    manner: Manner,
    pub begins_at: Time,
    interval: Duration,
    packets: u64,
    heard: Vec<(Time, (u32, u64, u8))>,
    rng: Pcg64Mcg,
}

/// Packets that he remembers.
const HEARD_MAX: usize = 1_000;
/// Minimum age of packets that the stranger sends again.
const OLD: Duration = Duration::from_millis(5);

impl Stranger {
    fn new(seed: u64, manner: Manner, begins_at: Time, (packets, interval): (u64, Duration)) -> Self {
        let rng = Pcg64Mcg::new(u128::from(seed) << 1 | 1);
        Stranger { manner, begins_at, interval, packets, heard: Vec::new(), rng }
    }

    /// He hears a packet of the source.
    pub(crate) fn hear(&mut self, now: Time, packet: (u32, u64, u8)) {
        if self.heard.len() < HEARD_MAX {
            self.heard.push((now, packet));
        } else {
            let at = self.rng.next_u64() as usize % HEARD_MAX;
            self.heard[at] = (now, packet);
        }
    }

    /// His next packet, and when the one after it follows.
    pub(crate) fn next(&mut self, now: Time, fragments: u64) -> Option<(Strange, Option<Time>)> {
        self.packets = self.packets.checked_sub(1)?;
        let mut below = |most: u64| self.rng.next_u64() % most;
        let forged = |round, sn, flags| Strange { round, sn, flags, forged: true };
        let newest = self.heard.iter().map(|(_, (round, sn, _))| (*round, *sn)).max();
        let strange = match (self.manner, newest) {
            (Manner::Last, _) => {
                let sn = (fragments - 1).saturating_sub(self.packets);
                forged(u32::MAX, sn, FLAG_REPORT)
            }
            (Manner::Anywhere, _) | (_, None) => forged(below(3) as u32, below(fragments), FLAG_REPORT),
            (Manner::Patches, _) => forged(0, below(fragments), FLAG_PATCH),
            (Manner::Ahead, Some((round, sn))) => {
                let sn = sn + 1 + below(60);
                forged(round + (sn / fragments) as u32, sn % fragments, FLAG_REPORT)
            }
            (Manner::Replay, Some(_)) => {
                // He cannot send it again before it has come to him.
                let old = |(at, _): &&(Time, _)| now.since(*at) >= OLD;
                let heard = self.heard.iter().cycle().skip(below(HEARD_MAX as u64) as usize);
                let (_, (round, sn, flags)) =
                    *heard.take(self.heard.len()).find(old).unwrap_or(&self.heard[0]);
                Strange { round, sn, flags, forged: false }
            }
        };
        Some((strange, (self.packets > 0).then(|| now + self.interval)))
    }
}

const MANNERS: [Manner; 5] = [Manner::Last, Manner::Anywhere, Manner::Patches, Manner::Ahead, Manner::Replay];
/// Time that a packet of the source takes on the channel.
const PACKET: Duration = Duration::from_micros(8);

/// Two receivers of 4,000 fragments; ends with all of them done.
fn beside(seed: u64, faults: Faults, stranger: Option<Stranger>) -> World {
    let mut world = World::new(seed, 2, config(geometry(4_000)), faults);
    world.start();
    world.close();
    stranger.into_iter().for_each(|stranger| world.disturb(stranger));
    world.run(Time(1) + Duration::from_secs(60));
    world.assert_all_done();
    for (peer, node) in &world.nodes {
        assert!(node.wrong.is_empty() && node.done, "receiver {peer} has wrong bytes: {:?}", node.wrong);
    }
    world
}

fn took_of(world: &World) -> f64 {
    world.finished_at.expect("it is over").since(Time(1)).as_secs_f64()
}

fn repaired(world: &World) -> u64 {
    world.patch_packets + world.unicast_fragments
}

/// A packet of a stranger, whenever it comes and whatever it says, costs next to nothing; nor do some that
/// agree with each other, while the stream says otherwise.
#[test]
fn one_packet_costs_nothing_to_speak_of() {
    let honest = beside(1, Faults::default(), None);
    for (manner, packets) in MANNERS.map(|manner| (manner, 1)).into_iter().chain([(Manner::Last, 5)]) {
        for micros in [1, 60, 600, 5_000, 20_000, 31_000] {
            let stranger = Stranger::new(micros, manner, Time(micros * 1_000), (packets, PACKET));
            let world = beside(1, Faults::default(), Some(stranger));
            let (took, usually) = (took_of(&world), took_of(&honest));
            // A first packet that is none leads this end astray until nothing has come from there for 5 ms.
            assert!(
                took <= 1.1 * usually + 0.006,
                "{manner:?} after {micros} us: {took} s, else {usually} s"
            );
            // Wrong bytes cost a group, and a position no more than what is on its way.
            let most = if manner == Manner::Ahead { 320 } else { 40 };
            assert!(repaired(&world) <= most, "{manner:?} after {micros} us: {}", repaired(&world));
        }
    }
}

/// As many packets as the source itself sends.
const SPAN: Duration = Duration::from_millis(60);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever a stranger sends, for longer than the transfer would take, and over a bad channel too: all
    /// have the right bytes in the end, soon after he is silent.
    #[test]
    fn as_many_packets_as_the_source_sends_cost_a_little_time(
        seed: u64, manner in 0usize..5, begins in 0u64..30_000, micros in 6u64..100, loss in 0u64..20, reordering in 0u64..20,
    ) {
        let packets = SPAN.0 / 1_000 / micros;
        let interval = Duration::from_micros(micros);
        let stranger = Stranger::new(seed, MANNERS[manner], Time(1 + begins * 1_000), (packets, interval));
        let faults = Faults { loss, reordering, ..Faults::default() };
        let honest = took_of(&beside(seed, faults, None));
        let disturbed = took_of(&beside(seed, faults, Some(stranger)));
        // What is asked for again waits for tens of milliseconds, however short the transfer is.
        prop_assert!(disturbed <= 4.0 * honest + 0.3, "{:?}: {disturbed} s, else {honest} s", MANNERS[manner]);
    }
}

/// A packet that is sent again, as it was, is no news.
#[test]
fn replays_cost_nothing_to_speak_of() {
    let honest = took_of(&beside(1, Faults::default(), None));
    let stranger = Stranger::new(1, Manner::Replay, Time(2_000_000), (5_000, PACKET));
    let world = beside(1, Faults::default(), Some(stranger));
    assert!(took_of(&world) <= 1.1 * honest, "{} s, else {honest} s", took_of(&world));
    assert!(repaired(&world) <= 40, "{}", repaired(&world));
    assert!(world.watch.received <= world.data_packets, "{} of {}", world.watch.received, world.data_packets);
}

fn outputs(machine: &mut Receiver, now: Time) -> Vec<ReceiverOutput> {
    std::iter::from_fn(|| machine.poll(now)).collect()
}

/// A group that was spoiled twice comes from the source alone, however it is spoiled after that; what the
/// source itself has sent stays, and is not asked for again.
#[test]
fn a_group_that_was_spoiled_twice_comes_over_the_control_connection_alone() {
    let mut machine = Receiver::new(receiver(geometry(40)));
    machine.handle(Time(1), ReceiverInput::Begin);
    let data = |sn: u64, flags| ReceiverInput::Data { round: 0, sn, count: 1, flags, arrived: Time(1) };
    let kept = |outputs: &[ReceiverOutput]| -> Vec<u64> {
        let of = |output: &ReceiverOutput| match output {
            ReceiverOutput::Keep { sn, count } => *sn..*sn + u64::from(*count),
            _ => 0..0,
        };
        outputs.iter().flat_map(of).collect()
    };
    let spoiled = ReceiverInput::Checked { group: 0, intact: false };
    (0..8).for_each(|sn| machine.handle(Time(1), data(sn, 0)));
    assert!(outputs(&mut machine, Time(1)).contains(&ReceiverOutput::Check { group: 0 }));
    machine.handle(Time(2), spoiled.clone());
    assert_eq!(
        outputs(&mut machine, Time(2)),
        [ReceiverOutput::Control(Control::PtchReq(std::iter::once(0..8).collect()))]
    );
    // The source's own words stand against those of a stranger, before and after.
    (2..8).for_each(|sn| machine.handle(Time(3), data(sn, FLAG_PATCH)));
    machine.handle(Time(3), ReceiverInput::Sent { sn: 3, count: 1 });
    assert_eq!(kept(&outputs(&mut machine, Time(3))), [2, 3, 4, 5, 6, 7, 3]);
    (0..2).for_each(|sn| machine.handle(Time(3), data(sn, FLAG_PATCH)));
    assert!(outputs(&mut machine, Time(3)).contains(&ReceiverOutput::Check { group: 0 }));
    machine.handle(Time(4), spoiled);
    let again = [ReceiverOutput::Repeat(Control::PtchReq(vec![0..3, 4..8]))];
    assert_eq!(outputs(&mut machine, Time(4)), again, "asked for at the source itself");
    for sn in 0..8 {
        machine.handle(Time(5), data(sn, FLAG_PATCH));
        machine.handle(Time(5), ReceiverInput::Patched { sn, count: 1 });
    }
    assert_eq!(kept(&outputs(&mut machine, Time(5))), [0; 0]);
    machine.handle(Time(6), ReceiverInput::Sent { sn: 0, count: 8 });
    let last = outputs(&mut machine, Time(6));
    assert_eq!(kept(&last), [0, 1, 2, 4, 5, 6, 7]);
    assert_eq!(last.last(), Some(&ReceiverOutput::Check { group: 0 }), "when all are in their place");
    assert_eq!(machine.corrupt_groups(), 2);
}

/// A receiver that asks for what was not offered to it yet has been led astray: it comes with the stream, and
/// not twice.
#[test]
fn what_is_still_to_come_is_not_patched() {
    let mut sender = Sender::new(config(geometry(4_000)));
    let say = |sender: &mut Sender, now, control: &Control<'_>| {
        sender.handle(now, SenderInput::Control { peer: PeerId(0), control });
    };
    for peer in [0, 1].map(PeerId) {
        let have = RangeSet::new();
        sender.handle(
            Time(1),
            SenderInput::Ready { peer, window_bytes: 1 << 20, have, location: Location::default() },
        );
    }
    sender.handle(Time(1), SenderInput::Start);
    while sender.poll(Time(1)).is_some() {}
    for peer in [0, 1].map(PeerId) {
        let control = &Control::IntlSeq { position: 0 };
        sender.handle(Time(2), SenderInput::Control { peer, control });
    }
    let mut offered = 0;
    while let Some(output) = sender.poll(Time(3)) {
        if let SenderOutput::Send { sn, count, .. } = output {
            offered = sn + u64::from(count);
        }
    }
    assert!((50..200).contains(&offered), "a window: {offered}");
    let progress = Control::Progress {
        position: u64::MAX,
        received: 50,
        lost: 50,
        verified_bytes: 0,
        arrived_ns: 0,
        waited_ns: 0,
    };
    say(&mut sender, Time(4), &progress);
    say(&mut sender, Time(4), &Control::PtchReq(vec![10..20, offered - 5..offered + 30, 3_000..3_500]));
    let mut patched = RangeSet::new();
    for millis in 1..40 {
        while let Some(output) = sender.poll(Time(5 + millis * 1_000_000)) {
            match output {
                SenderOutput::SendPatch(sns) => sns.into_iter().for_each(|sn| _ = patched.insert(sn..sn + 1)),
                SenderOutput::Patch { sns, .. } => _ = patched.insert(sns),
                _ => {}
            }
        }
    }
    assert_eq!(patched, [10..20, offered - 5..offered].into_iter().collect());
}
