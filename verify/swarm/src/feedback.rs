//! Cases of a rack that speaks with one voice (Orca appendix A.4): receivers that tell their rack's speaker
//! what they have and lack, over a network that loses, delays and repeats; some fall behind, some begin anew.
//!
//! What the speaker reports is never more than any receiver has that it speaks for, it asks only for what
//! some receiver lacks, and in the end every receiver has everything.

use super::coverage::{self, Coverage};
use super::draw::Random;
use super::{Plant, Verdict};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use polycast_protocol::push::feedback::{Feedback, FeedbackConfig, FeedbackInput, FeedbackOutput};
use polycast_simulator::Agenda;
use polycast_types::{Duration, Time};
use polycast_wire::control::Control;

const TICK: Duration = Duration::from_micros(500);
const OWN: u32 = 0;
/// After healing every receiver has everything within this time.
const LIVENESS: Duration = Duration::from_secs(2);

/// A receiver of the rack.
struct Receiver {
    /// Fragments that the receiver has.
    has: Vec<bool>,
    /// Position in the source's stream that it has reached.
    position: u64,
    lost: u64,
    /// It hears nothing until then.
    stalled_until: Time,
    next_report: Time,
    /// Number of its session: messages of an earlier session no longer count.
    session: u64,
    /// It speaks for itself.
    is_out: bool,
}

impl Receiver {
    fn verified(&self) -> u64 {
        self.has.iter().filter(|has| **has).count() as u64
    }
}

struct World<'r> {
    random: &'r mut Random,
    plant: Option<Plant>,
    now: Time,
    machine: Feedback,
    receivers: Vec<Receiver>,
    fragments: u64,
    sent: u64,
    /// The source sends in one tick of so many.
    pace: u64,
    every: Duration,
    /// Parts of 1,000 of fragments, and of messages, that are lost.
    loss: u64,
    message_loss: u64,
    delay: Duration,
    /// Messages on their way to the speaker: from whom, in which session.
    on_way: Agenda<(u32, u64, Control<'static>)>,
    /// Number of outputs of the speaker.
    outputs: u64,
    /// For whom the speaker speaks.
    spoken_for: BTreeSet<u32>,
    /// The most losses that each has told of in its session.
    told_lost: BTreeMap<u32, u64>,
    hash: u64,
    coverage: Coverage,
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let count = random.within(1..=5) as u32;
    let fragments = random.magnitude(20..=400);
    let case = format!("feedback of {count} receivers, {fragments} fragments");
    let receiver = |_| Receiver {
        has: vec![false; fragments as usize],
        position: 0,
        lost: 0,
        stalled_until: Time::ZERO,
        next_report: Time::ZERO,
        session: 0,
        is_out: false,
    };
    let config = FeedbackConfig {
        own: OWN,
        gather: Duration(random.magnitude(100_000..=2_000_000)),
        hold: Duration(random.magnitude(1_000_000..=20_000_000)),
        heartbeat: Duration::from_millis(50),
        patience: Duration(random.magnitude(20_000_000..=100_000_000)),
        ranges_max: random.magnitude(4..=1_000) as usize,
    };
    let receivers = (0..count).map(receiver).collect();
    let mut world = World {
        plant,
        now: Time(1),
        machine: Feedback::new(config),
        receivers,
        fragments,
        sent: 0,
        pace: random.magnitude(1..=16),
        every: Duration(random.magnitude(500_000..=4_000_000)),
        loss: if random.one_in(4) { 0 } else { random.magnitude(1..=300) },
        message_loss: if random.one_in(2) { 0 } else { random.magnitude(1..=300) },
        delay: Duration(random.magnitude(50_000..=5_000_000)),
        random,
        on_way: Agenda::default(),
        outputs: 0,
        spoken_for: BTreeSet::new(),
        told_lost: BTreeMap::new(),
        hash: seed | 1,
        coverage: Coverage::default(),
    };
    let failure = world.live().err();
    let World { hash, on_way, outputs, coverage, .. } = world;
    Verdict { seed, case, failure, trace_hash: hash, events: on_way.planned() + outputs, coverage }
}

impl World<'_> {
    fn live(&mut self) -> Result<(), String> {
        let heal_at = Time(self.random.magnitude(50_000_000..=600_000_000));
        while self.now < heal_at {
            self.fail_something(heal_at)?;
            self.tick()?;
        }
        (self.loss, self.message_loss) = (0, 0);
        self.receivers.iter_mut().for_each(|receiver| receiver.stalled_until = Time::ZERO);
        let end = self.now + LIVENESS;
        while self.now < end && self.receivers.iter().any(|receiver| receiver.verified() < self.fragments) {
            self.tick()?;
        }
        match self.receivers.iter().position(|receiver| receiver.verified() < self.fragments) {
            Some(at) => {
                Err(format!("receiver {at} of the rack did not get everything within {LIVENESS} of healing"))
            }
            None => Ok(()),
        }
    }

    fn fail_something(&mut self, heal_at: Time) -> Result<(), String> {
        if !self.random.one_in(100) {
            return Ok(());
        }
        let at = self.random.below(self.receivers.len() as u64) as usize;
        if self.random.one_in(2) {
            let until = self.now + Duration(self.random.magnitude(1_000_000..=300_000_000));
            self.receivers[at].stalled_until = until.min(heal_at);
        } else if at as u32 != OWN {
            self.coverage.hit(coverage::RECEIVER_STARTS_ANEW);
            let receiver = &mut self.receivers[at];
            receiver.has.fill(false);
            (receiver.position, receiver.lost, receiver.is_out) = (0, 0, false);
            self.leave(at as u32)?;
        }
        Ok(())
    }

    /// The speaker sees that a receiver's session is over.
    fn leave(&mut self, member: u32) -> Result<(), String> {
        self.receivers[member as usize].session += 1;
        self.spoken_for.remove(&member);
        self.told_lost.remove(&member);
        let input = FeedbackInput::Left { member };
        self.coverage.hit(coverage::of_feedback(&input));
        self.machine.handle(self.now, input);
        self.drain()
    }

    fn tick(&mut self) -> Result<(), String> {
        self.now += TICK;
        if self.random.one_in(self.pace) {
            self.sent = (self.sent + self.random.below(8)).min(self.fragments);
        }
        for at in 0..self.receivers.len() {
            self.receive(at);
            if self.now >= self.receivers[at].next_report {
                self.receivers[at].next_report = self.now + self.every;
                self.report(at)?;
            }
        }
        while let Some((_, (member, session, control))) = self.on_way.next_until(self.now) {
            if self.receivers[member as usize].session == session {
                self.said(member, &control)?;
            }
        }
        self.drain()
    }

    /// Hears what the source has sent since.
    fn receive(&mut self, at: usize) {
        let (now, sent, loss) = (self.now, self.sent, self.loss);
        let receiver = &mut self.receivers[at];
        if now < receiver.stalled_until {
            return;
        }
        // What was sent while it heard nothing is mostly lost.
        let late = sent.saturating_sub(receiver.position) > 16;
        for fragment in receiver.position..sent {
            if receiver.has[fragment as usize] {
                continue;
            }
            if late || self.random.below(1_000) < loss {
                receiver.lost += 1;
            } else {
                receiver.has[fragment as usize] = true;
            }
        }
        receiver.position = sent;
    }

    /// Says what it has and what it lacks: to the speaker, or to the source itself.
    fn report(&mut self, at: usize) -> Result<(), String> {
        let receiver = &self.receivers[at];
        let (position, verified) = (receiver.position, receiver.verified());
        let progress = Control::Progress {
            position,
            received: verified,
            lost: receiver.lost,
            verified_bytes: verified,
            arrived_ns: 0,
            waited_ns: 0,
        };
        let lacks: Vec<Range<u64>> =
            (0..position).filter(|sn| !receiver.has[*sn as usize]).map(|sn| sn..sn + 1).take(64).collect();
        if receiver.is_out {
            return lacks.into_iter().try_for_each(|range| self.patch(&range));
        }
        let (member, session) = (at as u32, receiver.session);
        let request = (!lacks.is_empty()).then_some(Control::PtchReq(lacks));
        for control in [Some(progress), request].into_iter().flatten() {
            if member == OWN {
                self.said(OWN, &control)?;
                continue;
            }
            if self.random.below(1_000) < self.message_loss {
                self.coverage.hit(coverage::FEEDBACK_LOST);
                continue;
            }
            let copies = if self.random.below(1_000) < self.message_loss { 2 } else { 1 };
            for _ in 0..copies {
                let at = self.now + Duration(self.random.below(self.delay.0));
                self.on_way.plan(at, (member, session, control.clone()));
            }
        }
        Ok(())
    }

    /// A receiver's word has come to the speaker.
    fn said(&mut self, member: u32, control: &Control<'static>) -> Result<(), String> {
        let mut members = vec![member];
        if let Control::Progress { lost, .. } = control {
            self.spoken_for.insert(member);
            self.told_lost.insert(member, *lost);
            if self.plant == Some(Plant::SpeakerForAll) && member == OWN {
                members.extend(self.spoken_for.iter().filter(|other| **other != OWN));
            }
        }
        for member in members {
            let input = FeedbackInput::Said { member, control };
            self.coverage.hit(coverage::of_feedback(&input));
            self.machine.handle(self.now, input);
        }
        self.drain()
    }

    fn drain(&mut self) -> Result<(), String> {
        while let Some(output) = self.machine.poll(self.now) {
            self.outputs += 1;
            match output {
                FeedbackOutput::ToSource(control) => self.source_hears(control)?,
                FeedbackOutput::PutOut { member } => {
                    self.coverage.hit(coverage::RECEIVER_BEHIND);
                    if member == OWN || !self.spoken_for.remove(&member) {
                        return Err(format!("receiver {member} is put out, for which no receiver speaks"));
                    }
                    self.told_lost.remove(&member);
                    let receiver = &mut self.receivers[member as usize];
                    (receiver.is_out, receiver.session) = (true, receiver.session + 1);
                }
            }
        }
        Ok(())
    }

    fn source_hears(&mut self, control: Control<'static>) -> Result<(), String> {
        match control {
            Control::Progress { position, received, lost, verified_bytes, .. } => {
                self.hash = (self.hash ^ position ^ self.now.0).wrapping_mul(0x0000_0100_0000_01b3);
                for &member in &self.spoken_for {
                    let receiver = &self.receivers[member as usize];
                    let has = (receiver.position, receiver.verified());
                    if position > has.0 || received.max(verified_bytes) > has.1 {
                        return Err(format!(
                            "the rack says that it has {position} and {verified_bytes}, but receiver {member} has {has:?}"
                        ));
                    }
                }
                match self.told_lost.values().max() {
                    Some(most) if *most > lost => Err(format!(
                        "the rack says that it has lost {lost}, but one of its receivers has lost {most}"
                    )),
                    _ => Ok(()),
                }
            }
            Control::RackReq(ranges) | Control::PtchReq(ranges) => {
                ranges.into_iter().try_for_each(|range| self.patch(&range))
            }
            Control::Rack(members) => {
                let others: Vec<u32> =
                    self.spoken_for.iter().filter(|member| **member != OWN).copied().collect();
                // One that is named is spoken for, or was in an earlier session: words on their way are not
                // taken back.
                let never = |member: &&u32| {
                    !others.contains(member) && self.receivers[**member as usize].session == 0
                };
                match members.iter().find(never) {
                    Some(member) => {
                        Err(format!("the rack names receiver {member}, for which no receiver speaks"))
                    }
                    None => Ok(()),
                }
            }
            other => Err(format!("the rack says {other:?} to the source")),
        }
    }

    /// The source sends fragments again, to all.
    fn patch(&mut self, range: &Range<u64>) -> Result<(), String> {
        for sn in range.clone() {
            if sn >= self.sent {
                return Err(format!("fragment {sn} is asked for, which was never sent"));
            }
            for at in 0..self.receivers.len() {
                let arrives = self.random.below(1_000) >= self.loss;
                let receiver = &mut self.receivers[at];
                if arrives && self.now >= receiver.stalled_until {
                    receiver.has[sn as usize] = true;
                }
            }
        }
        Ok(())
    }
}
