//! Receivers that are slower than the others: they hold none of them.
//!
//! Republic's sender goes at the pace of the slowest receiver (section III-A); where one is far slower, all
//! would be. Whether one is cannot be read off its reports: as long as all go at its pace, nothing shows what
//! the others could take. So the others are tried without it. What makes a trial worth its cost is seen at
//! once: queues or losses on few paths alone, or a window that one receiver alone keeps shut. Paths that are
//! alike are tried without together: without one of them the other would hold the rest as before. If the
//! others get on faster, they stay off their pace: one whose path lets most packets through takes what it can
//! of the stream, and asks for the rest; one whose path does not leaves the data channel, and fetches over
//! TCP, so that the stream does not fill its path.
//!
//! A short transfer is over before a trial can show that. So a receiver that goes on alone for long after
//! most others have finished is named too, by what has reached it until then.
//!
//! Those that fetch over TCP hold none of the others; the slow ones among them are named all the same:
//! `members`.

mod members;

use super::{CHECK_INTERVAL, Output, PeerId, Sender, Service, SlowPolicy, Slower, unicast};
use crate::push::peer::{Peer, per_second};
use crate::session::Why;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use polycast_types::{Duration, Rate, Time};
use polycast_wire::control::{Control, NOWHERE};

/// Reports of at least this long, and of so many round trips without their queues, are looked at together:
/// behind a long queue before a narrow path the transfer would be over before the first look.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_ROUNDS: u64 = 8;
/// A shorter queue is none; nor is one of fewer packets at the present pace, which others' packets on shared
/// links make.
const QUEUE_MIN: Duration = Duration::from_millis(1);
const QUEUE_PACKETS: u64 = 8;
/// Fewer losses in a look are chance.
const LOST_MIN: u64 = 8;
/// Queues and losses of a path are its own if all others have less than one part in so many.
const OTHERS_PART: u64 = 4;
/// Multiple of the least that counts at which a value is plain, while no other path has more than one part in
/// `PLAIN_PART` of it: a look that shows it counts for `PLAIN_LOOKS` looks.
const PLAIN: u64 = 8;
const PLAIN_PART: u64 = 16;
const PLAIN_LOOKS: u64 = 4;
/// A window of which less than one part in so many is free is shut.
const SHUT_PART: u64 = 8;
/// One that most of a trial's packets have reached, all but one part in so many, takes what the others take.
const TAKES_ALL_BUT: u64 = 16;
/// A trial goes on for at least this long, and no longer than that.
const TRIAL_MIN: Duration = Duration::from_millis(40);
const TRIAL_MAX: Duration = Duration::from_millis(250);
/// One that is hardly slower than the others, or that gets less than half of what has reached it so far, may
/// have stopped for a while: it is looked at again, so often. The others do not wait for it meanwhile.
const AGAIN_MAX: u32 = 4;
/// Minimum gain of the others, in percent, to go on without it.
const GAIN: u64 = 115;
/// A gain that needs no more time to be believed.
const GAIN_CLEAR: u64 = 200;
/// After a trial in vain the next one of that receiver has to wait for this long, then for twice as long, and
/// so on.
const TRY_AGAIN: Duration = Duration::from_millis(500);
const TRY_DOUBLINGS: u32 = 6;
/// One that holds the others whenever they wait for it, and takes all that they take whenever they do not,
/// may have paused. After so many times within a while it has not, and the others wait for it no more: a
/// member could hold them for as long as it liked.
const TOOK_ALL_MAX: u32 = 2;
const TOOK_ALL_WITHIN: Duration = Duration::from_secs(60);
/// While others take the stream, one that they do not wait for gets a patch for so many packets of it:
/// patches share the source's link with the stream.
const PATCH_FOR: u64 = 12;
/// The last ones of a transfer are named when most others have been done for this long.
const LAST_AFTER: Duration = Duration::from_secs(1);

/// Receivers that are watched, and the present trial.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    /// Time when the present look began, and the packets sent until then.
    since: Time,
    packets: u64,
    /// Packets a second that were sent in the last look.
    pace: u64,
    trial: Option<Trial>,
    /// The members of the mesh.
    members: members::Members,
}

/// The others go on without some, to see whether they are faster.
#[derive(Clone, Debug)]
struct Trial {
    /// The receivers that are left out, and the others, as they were when the trial began.
    without: Vec<Standing>,
    beside: Vec<Standing>,
    since: Time,
    /// Packets sent when it began; the window and the pace before.
    packets: u64,
    window: u64,
    pace: u64,
    /// Number of times that it was checked again.
    again: u32,
    /// For how long others kept the window shut meanwhile, and when that was looked at last.
    shut: BTreeMap<PeerId, Duration>,
    looked_at: Time,
}

/// Packets that had reached a receiver by its last report, and the time of that report.
#[derive(Clone, Copy, Debug)]
struct Standing {
    id: PeerId,
    received: u64,
    reported_at: Time,
}

/// Result of a trial for one that it leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// It gets what the others get.
    TakesAll,
    /// It gets less than half of that, and as much as ever.
    Narrow,
    Unsure,
}

/// Receivers whose paths alone have queues or losses.
#[derive(Clone, Debug, Default)]
struct Narrow {
    ids: Vec<PeerId>,
    /// The difference is too large for chance.
    plain: bool,
}

/// The few of whom each measures at least so much, and all others less than one part in [`OTHERS_PART`] of
/// the least of them. If most stand out, it is the usual, and none does.
fn standing_out(mut measured: Vec<(u64, PeerId)>, least: u64) -> Narrow {
    measured.sort_unstable_by(|one, other| other.cmp(one));
    let few = (measured.len() / 2).max(1);
    let around = |count: usize| (measured[count - 1].0, measured.get(count).map_or(0, |next| next.0));
    let ends = |count: &usize| {
        let (last, next) = around(*count);
        *count < measured.len() && last >= least && next <= last / OTHERS_PART
    };
    let Some(count) = (1..=few).find(ends) else { return Narrow::default() };
    let (last, next) = around(count);
    let plain = last >= least.saturating_mul(PLAIN) && next <= last / PLAIN_PART;
    Narrow { ids: measured[..count].iter().map(|(_, id)| *id).collect(), plain }
}

impl Sender {
    /// A receiver that holds the others is tried without, and left behind where that helps.
    pub(super) fn check_slow(&mut self, now: Time) {
        self.check_members(now);
        self.make_up();
        let patience = self.config.slow.patience();
        if self.gating().next().is_none() {
            self.name_the_tried(now);
            self.serve_the_slow();
            if patience.is_some() {
                self.name_the_last(now);
            }
            return;
        }
        let Some(patience) = patience else { return };
        if let Some(trial) = self.slow.trial.take() {
            self.judge(now, trial);
            return;
        }
        let looked = self.look(now);
        let few = self.keep_shut();
        for (id, peer) in &mut self.peers {
            if few.contains(id) {
                peer.trials.held = peer.trials.held + CHECK_INTERVAL;
            } else if let Some((narrow, span)) = &looked
                && !narrow.ids.contains(id)
            {
                peer.trials.held = peer.trials.held - *span / 4;
            }
        }
        if let Some((mut narrow, span)) = looked {
            narrow.ids.retain(|id| !few.contains(id));
            self.hold_against(&narrow, span);
        }
        let due = |peer: &Peer| peer.trials.held >= patience && now >= peer.trials.try_at;
        let streaming = self.peers.iter().filter(|(_, p)| p.service == Service::Streaming);
        let without: Vec<PeerId> = streaming.clone().filter(|(_, p)| due(p)).map(|(id, _)| *id).collect();
        // Another receiver has to be there that gains by it.
        if !without.is_empty() && without.len() < streaming.count() {
            self.try_without(now, &without);
        }
    }

    /// The others are done before a trial is over: those that have got less so far, and still get something,
    /// are named.
    fn name_the_tried(&mut self, now: Time) {
        let Some(trial) = self.slow.trial.take() else { return };
        let span = now.since(trial.since);
        let others = per_second(self.packets - trial.packets, span);
        for one in trial.without.iter().filter(|_| trial.again > 0) {
            let own = self.reached_since(one).unwrap_or(0);
            if own > 0
                && self.peers.contains_key(&one.id)
                && self.verdict(now, one, others) != Verdict::TakesAll
            {
                let slower = self.slower(own, others);
                self.peers.get_mut(&one.id).expect("looked up above").trials.slower = Some(slower);
            }
        }
    }

    /// Only slow ones are left on their laps: no other receiver waits for them, so they set the pace. Those
    /// that have come again too often set it only where no other is left.
    fn serve_the_slow(&mut self) {
        let on_lap =
            |p: &Peer| p.service == Service::Patching && p.needs(self.position, self.fragments).is_some();
        let is_awaited = self.peers.values().any(|p| on_lap(p) && !p.unawaited);
        let may = |p: &Peer| p.service == Service::Patching && !(is_awaited && p.unawaited);
        for peer in self.peers.values_mut().filter(|p| may(p)) {
            peer.service = Service::Streaming;
            peer.trials.held = Duration::ZERO;
        }
    }

    /// Names the receivers that go on alone, long after most have finished: less than half of the bytes a
    /// second that the others got has reached them.
    fn name_the_last(&mut self, now: Time) {
        let Some(started_at) = self.started_at else { return };
        let rate = |p: &Peer, until: Time| {
            let got = p.has.verified_bytes.saturating_sub(self.bytes_of(p.has.held_count));
            per_second(got, until.since(started_at.max(p.signs.joined_at)))
        };
        let mut done: Vec<(u64, Time)> = Vec::new();
        let mut last: Vec<(PeerId, u64)> = Vec::new();
        for (id, peer) in &self.peers {
            if peer.service == Service::Done {
                done.push((rate(peer, peer.signs.verified_at), peer.signs.verified_at));
            } else if peer.is_on_channel() && peer.spoken_by.is_none() && peer.trials.slower.is_none() {
                last.push((*id, rate(peer, now)));
            }
        }
        if last.is_empty() || done.len() < last.len() {
            return;
        }
        done.sort_unstable();
        let (usual, _) = done[done.len() / 2];
        let finished_at = done.iter().map(|(_, at)| *at).max().expect("there are some");
        if now.since(finished_at) < LAST_AFTER {
            return;
        }
        for (id, own) in last {
            if own.saturating_mul(2) > usual {
                continue;
            }
            let slower = Slower { own: Rate(own.saturating_mul(8)), others: Rate(usual.saturating_mul(8)) };
            self.peers.get_mut(&id).expect("a key of the same map").trials.slower = Some(slower);
            if let SlowPolicy::Drop { .. } = self.config.slow {
                self.settle(id, Some(Why::Slow(slower)));
            }
        }
    }

    /// A receiver that the others do not wait for has asked for these.
    pub(super) fn put_off(&mut self, id: PeerId, ranges: &[Range<u64>]) {
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        if peer.repairs.later.is_empty() {
            peer.repairs.later_from = self.packets;
        }
        for range in ranges {
            let range = range.start.min(self.fragments)..range.end.min(self.fragments);
            if !range.is_empty() {
                peer.repairs.later.insert(range);
            }
        }
    }

    /// Receivers that the others do not wait for get some of what they have asked for, and all of it when
    /// they are waited for again.
    fn make_up(&mut self) {
        for (id, peer) in self.peers.iter_mut().filter(|(_, p)| !p.repairs.later.is_empty()) {
            let mut turn = u64::MAX;
            if peer.service == Service::Patching {
                turn = (self.packets - peer.repairs.later_from) / PATCH_FOR;
                peer.repairs.later_from += turn * PATCH_FOR;
            }
            while turn > 0
                && let Some(first) = peer.repairs.later.first()
            {
                let run = peer.repairs.later.run_at(first).expect("its first fragment");
                let run = first..run.end.min(first.saturating_add(turn));
                turn -= run.end - run.start;
                peer.repairs.later.remove(run.clone());
                unicast(*id, peer, run, &mut self.outputs);
            }
        }
    }

    /// The receiver that alone keeps the window shut, while all others have half of theirs free; or the few
    /// whose sockets hold far less than the others', if these have half of theirs free. Several that are late
    /// in turns are not to blame.
    fn keep_shut(&self) -> Vec<PeerId> {
        if self.room() > 0 {
            return Vec::new();
        }
        let (position, fragments) = (self.position, self.fragments);
        let control = if self.config.rate.is_some() { u64::MAX } else { self.congestion.window() };
        let gates = |p: &Peer| {
            let streams = p.service == Service::Streaming && p.spoken_by.is_none();
            streams && p.lap.end(fragments).is_some_and(|end| position < end)
        };
        let limit = |p: &Peer| p.window.min(control).min(1 << 32);
        let in_flight = |p: &Peer| self.packets.saturating_sub(p.lap.acknowledged);
        let gating: Vec<(&PeerId, &Peer)> = self.peers.iter().filter(|(_, p)| gates(p)).collect();
        // A window that was cut may be less than what is in flight.
        let excess = gating.iter().map(|(_, p)| in_flight(p).saturating_sub(limit(p))).max().unwrap_or(0);
        let has_part = |p: &Peer, part: u64| {
            in_flight(p).saturating_add((limit(p) / part).max(1)) <= limit(p).saturating_add(excess)
        };
        let (others, few): (Vec<_>, Vec<_>) = gating.into_iter().partition(|(_, p)| has_part(p, SHUT_PART));
        let free = others.iter().filter(|(_, p)| has_part(p, 2)).count();
        let is_alone = few.len() == 1 && free == others.len();
        let mut windows: Vec<u64> = others.iter().map(|(_, p)| p.window).collect();
        windows.sort_unstable();
        // One that has a little more room than those must not hide them.
        let usual = windows.get(windows.len() / 2).copied().unwrap_or(0);
        let have_little = few.iter().all(|(_, p)| p.window <= usual / 2);
        let are_few = have_little && few.len() <= free && others.len() <= 2 * free;
        let keep_shut = free > 0 && (is_alone || are_few);
        if keep_shut { few.into_iter().map(|(id, _)| *id).collect() } else { Vec::new() }
    }

    /// Returns the receivers whose paths alone have queues or losses, once enough reports have come, and the
    /// time that this took.
    fn look(&mut self, now: Time) -> Option<(Narrow, Duration)> {
        let span = now.since(self.slow.since);
        if span < LOOK.max(self.bare_trip * LOOK_ROUNDS) {
            return None;
        }
        Some((self.narrow(now, span), span))
    }

    /// The receivers whose paths alone have had queues or losses in a while that is over now.
    fn narrow(&mut self, now: Time, span: Duration) -> Narrow {
        self.slow.pace = per_second(self.packets - self.slow.packets, span);
        (self.slow.since, self.slow.packets) = (now, self.packets);
        // One whose trial was in vain lately is not the reason, whatever it says, and hides nobody who is.
        let may_be_tried =
            |p: &Peer| p.service == Service::Streaming && p.spoken_by.is_none() && now >= p.trials.try_at;
        let seen: Vec<(PeerId, u64, u64)> = self
            .peers
            .iter()
            .filter(|(_, p)| may_be_tried(p))
            .map(|(id, p)| (*id, p.trials.look.mean_queue().0, p.lap.lost.saturating_sub(p.trials.look.lost)))
            .collect();
        self.begin_looks(now);
        // A window that still grows has met no receiver's limit.
        let is_granted = self.config.rate.is_some();
        if seen.len() < 2 || !(is_granted || self.congestion.has_found()) {
            return Narrow::default();
        }
        // A queue does not slow a granted rate; one that stays full loses packets, or keeps the window shut.
        let queue_min = QUEUE_MIN.0.max(QUEUE_PACKETS * 1_000_000_000 / self.slow.pace.max(1));
        let by_queue = standing_out(seen.iter().map(|peer| (peer.1, peer.0)).collect(), queue_min);
        if !is_granted && !by_queue.ids.is_empty() {
            return by_queue;
        }
        // Losses may have other causes than the pace.
        standing_out(seen.iter().map(|peer| (peer.2, peer.0)).collect(), LOST_MIN)
    }

    /// The others go on without them for a while.
    fn try_without(&mut self, now: Time, ids: &[PeerId]) {
        let window = self.congestion.window();
        // What was sent into their queues has brought no receiver anything: the pace was that at which it
        // came out of them.
        let came = ids.iter().filter_map(|id| self.peers[id].trials.look.pace).min().unwrap_or(u64::MAX);
        let (packets, pace) = (self.packets, self.slow.pace.min(came));
        for id in ids {
            let peer = self.peers.get_mut(id).expect("a key of the same map");
            (peer.service, peer.trials.held) = (Service::Patching, Duration::ZERO);
        }
        (self.slow.since, self.slow.packets) = (now, self.packets);
        self.begin_looks(now);
        let without = ids.iter().map(|id| self.standing(*id)).collect();
        self.slow.trial = Some(Trial {
            without,
            beside: self.beside(),
            since: now,
            packets,
            window,
            pace,
            again: 0,
            shut: BTreeMap::new(),
            looked_at: now,
        });
        self.congestion.seek();
        ids.iter().for_each(|id| self.disband(*id));
    }

    fn begin_looks(&mut self, now: Time) {
        for peer in self.peers.values_mut() {
            peer.trials.look =
                peer.trials.look.next(now, (peer.lap.received, peer.lap.lost), peer.signs.advanced_at);
        }
    }

    fn standing(&self, id: PeerId) -> Standing {
        let peer = &self.peers[&id];
        Standing { id, received: peer.lap.received, reported_at: peer.signs.advanced_at }
    }

    /// Returns the receivers that go on in a trial.
    fn beside(&self) -> Vec<Standing> {
        let goes_on = |p: &Peer| p.service == Service::Streaming && p.spoken_by.is_none();
        self.peers.iter().filter(|(_, p)| goes_on(p)).map(|(id, _)| self.standing(*id)).collect()
    }

    /// Packets a second that have reached it since then, as far as it has reported; `None` where it has not.
    fn reached_since(&self, standing: &Standing) -> Option<u64> {
        let peer = self.peers.get(&standing.id)?;
        let span = peer.signs.advanced_at.since(standing.reported_at);
        let received = peer.lap.received.saturating_sub(standing.received);
        (span > Duration::ZERO).then(|| per_second(received, span))
    }

    /// Packets a second that most of those that go on get. Packets that wait before a link that all share
    /// have reached none of them.
    fn others_get(&self, trial: &Trial, sent: u64) -> u64 {
        let goes_on = |id| self.peers.get(&id).is_some_and(|p| p.service == Service::Streaming);
        let beside = trial.beside.iter().filter(|standing| goes_on(standing.id));
        let mut reached: Vec<u64> =
            beside.map(|standing| self.reached_since(standing).unwrap_or(0)).collect();
        reached.sort_unstable();
        reached.get(reached.len() / 2).map_or(sent, |usual| sent.min(*usual))
    }

    /// While a trial goes on: if another one plainly holds the rest now, both are left out, and the trial
    /// begins anew.
    fn look_beside(&mut self, now: Time, trial: &mut Trial) {
        let Some((narrow, span)) = self.look(now) else { return };
        self.hold_against(&narrow, span);
        let streaming = self.peers.values().filter(|p| p.service == Service::Streaming).count();
        if !narrow.plain || narrow.ids.len() >= streaming {
            return;
        }
        self.leave_out(now, trial, narrow.ids);
    }

    /// Leaves out these as well: the trial begins anew.
    fn leave_out(&mut self, now: Time, trial: &mut Trial, ids: Vec<PeerId>) {
        for id in ids {
            let peer = self.peers.get_mut(&id).expect("a key of the same map");
            (peer.service, peer.trials.held) = (Service::Patching, Duration::ZERO);
            trial.pace = trial.pace.min(peer.trials.look.pace.unwrap_or(u64::MAX));
            trial.without.push(self.standing(id));
            self.disband(id);
        }
        self.begin_again(now, trial);
        self.congestion.seek();
    }

    /// The others have gained nothing, as some of them have kept the window shut for most of the trial: they
    /// may do so in turns.
    fn leave_out_more(&mut self, now: Time, trial: &mut Trial) -> bool {
        let span = now.since(trial.since);
        let streams = |id: &PeerId| self.peers.get(id).is_some_and(|p| p.service == Service::Streaming);
        let shut = trial.shut.iter().filter(|(id, shut)| **shut * 2 >= span && streams(id));
        let more: Vec<PeerId> = shut.map(|(id, _)| *id).collect();
        let left = self.beside().len().saturating_sub(more.len());
        if more.is_empty() || left < more.len() + trial.without.len() {
            return false;
        }
        self.leave_out(now, trial, more);
        true
    }

    fn begin_again(&self, now: Time, trial: &mut Trial) {
        trial.without = trial.without.iter().map(|one| self.standing(one.id)).collect();
        trial.beside = self.beside();
        (trial.since, trial.packets) = (now, self.packets);
        trial.shut.clear();
        trial.looked_at = now;
    }

    /// Counts against them the time for which their paths alone had queues or losses.
    fn hold_against(&mut self, narrow: &Narrow, span: Duration) {
        let evidence = if narrow.plain { span * PLAIN_LOOKS } else { span };
        for id in &narrow.ids {
            let peer = self.peers.get_mut(id).expect("a key of the same map");
            peer.trials.held = peer.trials.held + evidence;
        }
    }

    /// Looks at how the others get on without those that a trial is about.
    fn judge(&mut self, now: Time, mut trial: Trial) {
        let span = now.since(trial.since);
        // Some may be settled, or have lost their paths, meanwhile.
        trial.without.retain(|one| self.peers.get(&one.id).is_some_and(|p| p.service == Service::Patching));
        if trial.without.is_empty() {
            return;
        }
        let others = self.others_get(&trial, per_second(self.packets - trial.packets, span));
        let gained = others.saturating_mul(100) / trial.pace.max(1);
        let is_sure = |one: &Standing| self.verdict(now, one, others) != Verdict::Unsure;
        let is_clear = gained >= GAIN_CLEAR && trial.without.iter().all(is_sure);
        if span < TRIAL_MIN.max(self.bare_trip * 4) || (!is_clear && span < TRIAL_MAX) {
            let passed = now.since(core::mem::replace(&mut trial.looked_at, now));
            for id in self.keep_shut() {
                let shut = trial.shut.entry(id).or_default();
                *shut = *shut + passed;
            }
            self.look_beside(now, &mut trial);
            self.slow.trial = Some(trial);
            return;
        }
        // What the trial has shown of the others' paths need not be waited for again.
        let looked = now.since(self.slow.since);
        let narrow = self.narrow(now, looked);
        self.hold_against(&narrow, looked);
        if gained < GAIN && self.leave_out_more(now, &mut trial) {
            self.slow.trial = Some(trial);
        } else if gained < GAIN {
            self.in_vain(now, &trial);
        } else {
            self.go_on_without(now, trial, others);
        }
    }

    /// Judges a receiver that a trial leaves out, while the others get `others` packets a second.
    fn verdict(&self, now: Time, standing: &Standing, others: u64) -> Verdict {
        let own = self.reached_since(standing).unwrap_or(0);
        if own >= others - others / TAKES_ALL_BUT {
            return Verdict::TakesAll;
        }
        let peer = &self.peers[&standing.id];
        let since = self.started_at.unwrap_or(Time::ZERO).max(peer.signs.joined_at);
        let usual = per_second(peer.lap.received, now.since(since));
        let is_narrow = own.saturating_mul(2) < others && own.saturating_mul(2) >= usual;
        if is_narrow { Verdict::Narrow } else { Verdict::Unsure }
    }

    /// All go on as before.
    fn in_vain(&mut self, now: Time, trial: &Trial) {
        for one in &trial.without {
            let peer = self.peers.get_mut(&one.id).expect("those of a trial are there");
            // It may have come again too often meanwhile.
            if !peer.unawaited {
                peer.service = Service::Streaming;
            }
            peer.trials.try_at = now + TRY_AGAIN * (1 << peer.trials.tried.min(TRY_DOUBLINGS));
            peer.trials.tried = peer.trials.tried.saturating_add(1);
        }
        self.congestion.resume(trial.window);
    }

    /// The others are faster without them. Those that are not surely slow are looked at again.
    fn go_on_without(&mut self, now: Time, mut trial: Trial, others: u64) {
        let mut unsure = Vec::new();
        for one in &trial.without {
            match self.verdict(now, one, others) {
                // Its process paused, or another one holds all: it need not wait for its next trial. One that
                // is not waited for any more loses nothing: it takes the stream, and asks for what it lacks.
                Verdict::TakesAll => {
                    let peer = self.peers.get_mut(&one.id).expect("those of a trial are there");
                    let lately = now.since(peer.trials.took_all_at) < TOOK_ALL_WITHIN;
                    peer.trials.took_all = if lately { peer.trials.took_all.saturating_add(1) } else { 1 };
                    peer.trials.took_all_at = now;
                    if peer.trials.took_all <= TOOK_ALL_MAX && !peer.unawaited {
                        peer.service = Service::Streaming;
                    }
                }
                Verdict::Unsure if trial.again < AGAIN_MAX => unsure.push(*one),
                Verdict::Unsure | Verdict::Narrow => {
                    self.leave_behind(now, one.id, self.reached_since(one).unwrap_or(0), others);
                }
            }
        }
        if !unsure.is_empty() {
            trial.without = unsure;
            trial.again += 1;
            self.begin_again(now, &mut trial);
            self.slow.trial = Some(trial);
        }
    }

    /// The others are faster without it: so many packets a second have reached it meanwhile, and so many the
    /// others.
    fn leave_behind(&mut self, now: Time, id: PeerId, own: u64, others: u64) {
        let slower = self.slower(own, others);
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        peer.trials.slower = Some(slower);
        if let SlowPolicy::Drop { .. } = self.config.slow {
            self.settle(id, Some(Why::Slow(slower)));
        } else if own.saturating_mul(2) < others
            && now.since(peer.signs.heard_at) < self.config.path_timeout / 4
        {
            // What it cannot take would only fill its path.
            let control = Control::Channel { channel: NOWHERE, outer_len: 0 };
            self.outputs.push_back(Output::Control { peer: id, control });
            self.move_to_mesh(now, id);
        }
    }

    /// Packets a second as rates.
    fn slower(&self, own: u64, others: u64) -> Slower {
        let rate = |pace: u64| Rate(pace.saturating_mul(self.packet_len()).saturating_mul(8));
        Slower { own: rate(own), others: rate(others) }
    }
}

#[cfg(test)]
mod tests;
