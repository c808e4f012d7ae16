//! The sender of a push transfer (Republic section III-A).

mod check;
mod overlay;
mod path;
mod progress;
mod racks;
mod sent;
mod slow;
mod window;

use super::attempt::{CLEAN_PACKETS, FullRate, Settling};
use super::congestion::Congestion;
use super::overlay::Mesh;
use super::patches::combine;
use super::peer::{Peer, Service};
use super::words::{Input, Output, Pace, PeerId, PeerStatus, SenderConfig, SlowPolicy, Slower};
use crate::session::Why;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;
use polycast_types::{Duration, Location, RangeSet, Time};
use polycast_wire::control::{Control, Overlay};
use polycast_wire::data::{FLAG_ATTEMPT, FLAG_REPORT, IP_UDP_LEN};
use sent::Sent;
use window::WINDOW_MIN;

/// Bytes by which the congestion window grows a round trip; at least a fragment.
const STEP_BYTES: u64 = 4_500;
/// Interval at which timers are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Generations of unicast patches change this often.
const UNICAST_GENERATION: Duration = Duration::from_secs(2);

/// The sender's machine: `handle` what happens, then `poll` until `None`, and again at `deadline`.
#[derive(Debug)]
pub struct Sender {
    config: SenderConfig,
    fragments: u64,
    peers: BTreeMap<PeerId, Peer>,
    /// Receivers that each speaker may speak for.
    racks: BTreeMap<PeerId, BTreeSet<PeerId>>,
    /// Receivers that fetch over TCP, from each other and from the source.
    mesh: Mesh,
    outputs: VecDeque<Output>,
    started_at: Option<Time>,
    closed: bool,
    finished: bool,
    /// The data channel is still being set up.
    path_waits: bool,
    /// The path's allowance is used up, and more is needed.
    paused: bool,
    /// State of the path. The stream runs once the first receivers have all named their initial sn, or fetch
    /// over TCP, and the path does not have to settle.
    settling: Settling,
    /// Set if a receiver has missed an attempt that came after the first one that reached it.
    attempts_lost: bool,
    /// Position of the next packet of the stream.
    position: u64,
    /// Packets of the stream sent so far, and at the last request for a report.
    packets: u64,
    reported_packets: u64,
    /// Packets that went out beyond a shut window since the receiver furthest behind got on.
    probes: u32,
    sent: VecDeque<Sent>,
    /// Positions known to be needed from here on; empty when unknown.
    needed: Range<u64>,
    congestion: Congestion,
    /// Most packets a second that ever reached a receiver.
    best_rate: u64,
    round_trip: Duration,
    /// The same without the time in queues.
    bare_trip: Duration,
    next_attempt: Time,
    next_send: Time,
    /// Time when the stream goes on by itself: the next attempt, or the next packet at a granted rate.
    stream_at: Option<Time>,
    next_check: Time,
    /// Time of the last check for receivers that get nothing done.
    progress_at: Time,
    /// Time when a path that may have to settle is asked for a report again.
    next_look: Time,
    next_patch: Option<Time>,
    next_generation: Time,
    /// Receivers that are slower than the others, and what is being tried about them.
    slow: slow::Watch,
}

impl Sender {
    /// A sender that waits for receivers.
    #[must_use]
    pub fn new(config: SenderConfig) -> Self {
        assert!(config.batch > 0, "a batch holds at least one fragment");
        assert!(
            config.first < config.geometry.fragments(),
            "the stream begins with a fragment of the object"
        );
        let batch = u64::from(config.batch);
        let packet_len = config.packet_len();
        // Start with half a megabyte, a few jumbo batches; grow as TCP does, by a packet a round trip.
        let initial = ((512 << 10) / packet_len).max(2 * batch);
        let max = ((64 << 20) / packet_len).max(initial);
        Sender {
            fragments: config.geometry.fragments(),
            peers: BTreeMap::new(),
            racks: BTreeMap::new(),
            mesh: Mesh::new(config.handle.0, config.location.clone()),
            outputs: VecDeque::new(),
            started_at: None,
            closed: false,
            finished: false,
            path_waits: false,
            paused: false,
            settling: Settling::default(),
            attempts_lost: false,
            position: config.first,
            packets: 0,
            reported_packets: 0,
            probes: 0,
            sent: VecDeque::new(),
            needed: 0..0,
            congestion: Congestion::new(
                initial,
                WINDOW_MIN.min(initial),
                max,
                (STEP_BYTES / packet_len).max(1),
            ),
            best_rate: 0,
            round_trip: Duration::from_millis(1),
            bare_trip: Duration::from_millis(1),
            next_attempt: Time::ZERO,
            next_send: Time::ZERO,
            stream_at: None,
            next_check: Time::ZERO,
            progress_at: Time::ZERO,
            next_look: Time::ZERO,
            next_patch: None,
            next_generation: Time::ZERO,
            slow: slow::Watch::default(),
            config,
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Ready { peer, window_bytes, have, location } => {
                self.join(now, peer, window_bytes, have, location);
            }
            Input::Start => {
                assert!(self.started_at.is_none(), "a transfer starts once");
                self.started_at = Some(now);
                self.next_send = now;
                // One that has everything already, or has left, is settled before the start.
                for peer in self.peers.values_mut().filter(|peer| peer.is_active()) {
                    peer.service = Service::Listening { since: now };
                    peer.signs.heard_at = now;
                }
                if !self.config.multicast {
                    self.move_all_to_mesh(now);
                }
            }
            Input::Control { peer, control } => self.control(now, peer, control),
            Input::Left { peer, why } => self.settle(peer, Some(why)),
            Input::Forget { peer } => self.forget(peer),
            Input::Unawaited { peer } => self.wait_no_more_for(peer),
            Input::Useless { peer, candidate, for_good } => self.replace(peer, candidate, for_good),
            Input::Rack { speaker, members } => self.allow(speaker, members),
            Input::Close => self.closed = true,
            Input::Open => self.closed = false,
            Input::PathLost => self.lose_path(now),
            Input::PathWaits(waits) => self.wait_for_path(now, waits),
            Input::Path { rate, attempt_interval, allowance } => {
                self.config.rate = rate;
                self.config.attempt_interval = attempt_interval;
                self.config.allowance = allowance.or(self.config.allowance);
                self.take_path(now);
            }
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Returns the next action, or `None` until `deadline` or the next input.
    pub fn poll(&mut self, now: Time) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let started = self.started_at?;
        if self.finished {
            return None;
        }
        if self.closed && self.peers.values().all(|p| !p.is_active()) {
            self.finished = true;
            return Some(Output::Finished);
        }
        if now >= self.next_check {
            self.look_at_timers(now, started);
            self.next_check = now + CHECK_INTERVAL;
        }
        if self.outputs.is_empty() && self.next_patch.is_some_and(|at| now >= at) {
            self.send_patches(now);
        }
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        self.stream(now)
    }

    /// Returns the time when `poll` is to be called again if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.started_at?;
        if self.finished {
            return None;
        }
        if !self.outputs.is_empty() {
            return Some(Time::ZERO);
        }
        let mut at = self.next_check;
        if let Some(patch) = self.next_patch {
            at = at.min(patch);
        }
        if let Some(stream) = self.stream_at {
            at = at.min(stream);
        }
        Some(at)
    }

    /// Returns the status of a receiver.
    #[must_use]
    pub fn status(&self, peer: PeerId) -> Option<PeerStatus> {
        let p = self.peers.get(&peer)?;
        Some(PeerStatus {
            verified_bytes: p.has.verified_bytes,
            patched_bytes: p.has.patched_bytes,
            spared_bytes: self.bytes_of(p.has.held_count),
            chained: self.mesh.contains(peer),
            streamed: p.lap.initial.is_some(),
            cut_off: p.cut_off,
            held_up: p.path.was_held_up,
            slow: p.trials.slower,
        })
    }

    /// Returns the values that govern the pace, for logs.
    #[must_use]
    pub fn pace(&self) -> Pace {
        let queues = self.peers.values().filter(|p| p.is_on_channel()).map(|p| p.path.delay.queue());
        Pace {
            window: self.congestion.window(),
            cuts: self.congestion.cuts(),
            follows_loss: self.congestion.follows_loss(),
            round_trip: self.round_trip,
            queue: queues.max().unwrap_or(Duration::ZERO),
            packets: self.packets,
            slow: self.peers.values().filter(|p| p.trials.slower.is_some()).count(),
        }
    }

    fn packet_len(&self) -> u64 {
        self.config.packet_len() + IP_UDP_LEN as u64
    }

    /// The bytes of so many fragments.
    fn bytes_of(&self, fragments: u64) -> u64 {
        let geometry = &self.config.geometry;
        fragments.saturating_mul(u64::from(geometry.fragment_len)).min(geometry.object_len)
    }

    fn join(&mut self, now: Time, id: PeerId, window_bytes: u64, have: RangeSet, location: Location) {
        let window = (window_bytes / self.packet_len()).max(u64::from(self.config.batch));
        let peer = Peer { location, ..Peer::new(now, window, have) };
        let taken = self.peers.insert(id, peer);
        assert!(taken.is_none(), "{id:?} joined twice");
        self.needed = 0..0;
        if self.started_at.is_some() && !self.config.multicast {
            self.move_to_mesh(now, id);
        }
    }

    fn control(&mut self, now: Time, id: PeerId, control: &Control<'_>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !peer.is_active() {
            return;
        }
        peer.signs.heard_at = now;
        match control {
            Control::IntlSeq { position } => self.initial(now, id, *position),
            Control::Progress { position, received, lost, verified_bytes, arrived_ns, waited_ns } => {
                peer.signs.reported_at = now;
                peer.path.was_held_up |= self.config.is_held_up(Duration(*waited_ns));
                let verified_bytes = (*verified_bytes).min(self.config.geometry.object_len);
                peer.has_verified(now, verified_bytes);
                let arrival = (Time(*arrived_ns), Duration(*waited_ns));
                if self.speaks_for_others(id) {
                    self.rack_progress(now, id, *position, verified_bytes);
                }
                self.progress(now, id, *position, (*received, *lost), arrival);
            }
            Control::PtchReq(ranges) => {
                let ranges = self.offered_of(core::iter::once(id), ranges);
                self.request(now, id, &ranges);
            }
            Control::RackReq(ranges) => self.rack_request(now, id, ranges),
            Control::Rack(members) => self.name_rack(id, members),
            Control::DataRcvd { patched_bytes, .. } => {
                peer.has.patched_bytes = *patched_bytes;
                peer.has_verified(now, self.config.geometry.object_len);
                // It may have said before that it had all. Now it has shown that it does.
                peer.signs.verified_at = now;
                self.settle(id, None);
            }
            Control::Overlay(Overlay::Lacks(_)) => self.give(id),
            _ => {}
        }
    }

    /// INTL_SEQ: the data channel reaches this receiver, its lap begins.
    fn initial(&mut self, now: Time, id: PeerId, position: u64) {
        let acknowledged = self.packets_before(position);
        let sent = self.config.first..self.position;
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        let listens = matches!(peer.service, Service::Listening { .. }) && peer.lap.initial.is_none();
        // Before the start nothing was sent, wherever the stream begins.
        if !listens || !sent.contains(&position) {
            return;
        }
        let is_awaited = !peer.unawaited;
        peer.service = Service::Streaming;
        peer.lap.initial = Some(position);
        peer.lap.position = position;
        (peer.lap.acknowledged, peer.lap.first_acknowledged) = (acknowledged, acknowledged);
        peer.signs.advanced_at = now;
        peer.lap.watch();
        self.needed = 0..0;
        // Where one begins that is waited for, those that are not set the pace no more.
        let unawaited = self.peers.iter().filter(|(other, p)| p.unawaited && (is_awaited || **other == id));
        for other in unawaited.map(|(other, _)| *other).collect::<Vec<_>>() {
            self.wait_no_more_for(other);
        }
    }

    /// The others do not wait for a receiver, from now or from its first packet on.
    fn wait_no_more_for(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.unawaited = true;
        if peer.service == Service::Streaming {
            peer.service = Service::Patching;
            self.disband(id);
        }
    }

    fn progress(
        &mut self,
        now: Time,
        id: PeerId,
        position: u64,
        (received, lost): (u64, u64),
        arrival: (Time, Duration),
    ) {
        // A stranger's packet may have taken it further than we are: all that was sent is behind it.
        let position = position.min(self.position);
        // What a receiver says of itself governs the pace of all: no more can have come, or been lost, than
        // was sent.
        let (received, lost) = (received.min(self.packets), lost.min(self.packets));
        let before = self.acknowledged_min();
        let acknowledged = self.packets_before(position);
        let sent = self.sent_at(position);
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        if position <= peer.lap.position || peer.lap.initial.is_none() {
            return;
        }
        peer.lap.position = position;
        peer.lap.acknowledged = peer.lap.acknowledged.max(acknowledged);
        peer.signs.advanced_at = now;
        let (new_received, new_lost) =
            (received.saturating_sub(peer.lap.received), lost.saturating_sub(peer.lap.lost));
        (peer.lap.received, peer.lap.lost) = (received, lost);
        if core::mem::take(&mut peer.lap.totals_unknown) || peer.spoken_by.is_some() {
            return; // Its rack's reports have governed the pace so far.
        }
        if let Some(sent) = sent {
            // A receiver that was held up, or says so, says nothing of the way.
            if !self.config.is_held_up(arrival.1) {
                self.round_trip = Duration((self.round_trip.0 * 7 + now.since(sent).0) / 8);
            }
            peer.path.arrived(now, sent, arrival, peer.lap.received);
            let queue = peer.path.delay.queue();
            peer.trials.look.queue(queue);
            self.bare_trip = Duration((self.bare_trip.0 * 7 + now.since(sent).0.saturating_sub(queue.0)) / 8);
            self.best_rate = self.best_rate.max(peer.path.delay.best_rate());
        }
        if peer.service != Service::Streaming {
            return;
        }
        self.watch(now, id);
        let trip = self.round_trip.max(Duration::from_micros(200));
        let peer = self.peers.get_mut(&id).expect("looked up above");
        self.congestion.reported(
            now,
            &mut peer.path.losses,
            new_received,
            new_lost,
            &mut peer.path.delay,
            trip,
        );
        if self.congestion.is_round_over(now, trip) {
            self.end_round(now);
        }
        let after = self.acknowledged_min();
        if after > before {
            self.probes = 0;
        }
        if let (Some(before), Some(after)) = (before, after)
            && after > before
            && 2 * (self.packets - before) >= self.congestion.window()
        {
            self.congestion.acknowledged(after - before);
        }
        self.forget_sent();
    }

    /// PTCH_REQ: queue patches by multicast the first time, by unicast from then on.
    fn request(&mut self, now: Time, id: PeerId, ranges: &[Range<u64>]) {
        let alone = self.peers.values().filter(|p| p.is_on_channel()).count() < 2;
        let streaming = self.streaming();
        let until = ranges.iter().filter(|range| range.start < range.end && range.end <= self.fragments);
        let until = until.map(|range| self.last_sent(range.end - 1) + 1).max().unwrap_or(0);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.service == Service::Chained {
            return;
        }
        peer.lap.finish_at = None;
        peer.lap.asked_until = peer.lap.asked_until.max(until.min(peer.lap.position));
        // In a trial too: what is sent again for one is a part of what it costs the others.
        if peer.service == Service::Patching {
            self.put_off(id, ranges);
            return;
        }
        let by_unicast = alone || peer.service != Service::Streaming;
        for range in ranges {
            let range = range.start.min(self.fragments)..range.end.min(self.fragments);
            let mut second: Vec<Range<u64>> = peer.repairs.patched.iter_within(range.clone()).collect();
            if by_unicast {
                second = [range].to_vec();
            } else {
                for gap in peer.repairs.patched.gaps(range) {
                    peer.lap.asked += peer
                        .repairs
                        .missing
                        .gaps(gap.clone())
                        .iter()
                        .map(|new| new.end - new.start)
                        .sum::<u64>();
                    peer.repairs.missing.insert(gap);
                }
            }
            for run in second {
                unicast(id, peer, run, &mut self.outputs);
            }
        }
        if !peer.repairs.missing.is_empty() {
            let at = now + if streaming { self.config.patch_delay } else { self.short_patch_delay() };
            self.next_patch = Some(self.next_patch.map_or(at, |old| old.min(at)));
        }
    }

    /// Returns the requested fragments that one of the receivers `ids` has been offered. The rest is still to
    /// come: one that asks for it has believed a packet that is not ours.
    fn offered_of(&self, ids: impl Iterator<Item = PeerId>, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        let Some(initial) = ids.filter_map(|id| self.peers.get(&id)?.lap.initial).min() else {
            return Vec::new();
        };
        let offered = self.config.geometry.sns_of_positions(initial..self.position);
        let within = |range: &Range<u64>| {
            let range = range.clone();
            offered.clone().map(|sns| sns.start.max(range.start)..sns.end.min(range.end))
        };
        ranges.iter().flat_map(within).filter(|range| range.start < range.end).collect()
    }

    /// At the end of the stream all receivers ask at about the same time.
    fn short_patch_delay(&self) -> Duration {
        (self.round_trip / 2).min(self.config.patch_delay / 8)
    }

    /// Sends gathered patches, at most a quarter of a window at a time, and at a granted rate as many as it
    /// allows.
    fn send_patches(&mut self, now: Time) {
        self.next_patch = None;
        if self.paused {
            return; // They wait for the next path.
        }
        if !self.settling.allows_full_rate() {
            return; // They would be lost as well; `patch_soon` comes when the path is there.
        }
        let budget = (self.limit() / 4).max(8);
        for _ in 0..budget {
            if self.is_ahead(now) {
                self.next_patch = Some(self.next_send);
                return;
            }
            let missing: BTreeMap<PeerId, &RangeSet> = self
                .peers
                .iter()
                .filter(|(_, p)| p.is_on_channel() && !p.repairs.missing.is_empty())
                .map(|(id, p)| (*id, &p.repairs.missing))
                .collect();
            let reported = |peer: PeerId, sn: u64| self.peers[&peer].lap.has_reported(self.last_sent(sn));
            let Some(combination) = combine(self.config.coded_max(), &missing, &reported) else { return };
            // A dedicated path takes nothing from other transfers, and is there at once at full rate; TCP
            // would have to find its own. A receiver that speaks for a rack need not be the one that lacks
            // it.
            if let [(id, sn)] = combination.gains[..]
                && self.config.rate.is_none()
                && !self.speaks_for_others(id)
            {
                let peer = self.peers.get_mut(&id).expect("a key of the same map");
                let run = peer.repairs.missing.run_at(sn).expect("it lacks this fragment");
                let run = run.start..run.end.min(run.start + u64::from(self.config.batch));
                peer.repairs.missing.remove(run.clone());
                unicast(id, peer, run, &mut self.outputs);
                continue;
            }
            for (id, sn) in &combination.gains {
                let peer = self.peers.get_mut(id).expect("a key of the same map");
                peer.repairs.missing.remove(*sn..*sn + 1);
                peer.repairs.patched.insert(*sn..*sn + 1);
            }
            self.outputs.push_back(Output::SendPatch(combination.sns));
            self.spend(now, 1);
        }
        if self.peers.values().any(|p| !p.repairs.missing.is_empty()) {
            self.next_patch = Some(now + self.round_trip.max(Duration::from_millis(1)));
        }
    }

    /// The stream itself: full rate where a receiver needs something, else attempts for those that listen.
    fn stream(&mut self, now: Time) -> Option<Output> {
        let listening = self.listening();
        if self.settling == Settling::Dark {
            // One that does not even listen any more does not hold the others.
            let timeout = self.config.path_timeout;
            let set_up = !self.path_waits;
            let over = |since| set_up && now.since(since) >= timeout;
            let waits = |p: &Peer| matches!(p.service, Service::Listening { since } if !over(since));
            let first = self.config.full_rate == FullRate::FirstReached;
            let is_reached = self.peers.values().any(|p| p.lap.initial.is_some());
            if is_reached && (first || !self.peers.values().any(waits)) {
                self.come_up(now);
            }
        }
        let settles = self.settling.interval().is_some();
        self.settling.expire(now);
        if settles {
            self.patch_soon(now);
        }
        let paced = self.is_ahead(now);
        if self.settling.allows_full_rate()
            && let Some(run) = self.needed_run()
        {
            if self.pause() {
                return self.outputs.pop_front();
            }
            let mut room = self.room();
            if room == 0 {
                let at = self.probe_at().max(self.next_send);
                self.stream_at = Some(at);
                if now < at {
                    return None;
                }
                (room, self.probes) = (1, self.probes + 1);
            } else if paced {
                self.stream_at = Some(self.next_send);
                return None;
            }
            self.stream_at = None;
            let allowed = self.config.allowance.unwrap_or(u64::MAX);
            let count = (run.end - run.start).min(self.burst()).min(room).min(allowed);
            return Some(self.send(now, run.start, count as u32, 0));
        }
        if self.settling.allows_full_rate() {
            // Nothing more to send: patches need not give way any longer, and those that were asked for a
            // while ago not at all.
            let sooner = self.config.patch_delay - self.short_patch_delay();
            self.next_patch = self.next_patch.map(|at| Time(at.0.saturating_sub(sooner.0)).max(now).min(at));
            if self.next_patch.is_some_and(|at| now >= at) {
                self.send_patches(now);
                if let Some(output) = self.outputs.pop_front() {
                    return Some(output);
                }
            }
        }
        let settling = self.settling.interval();
        let listening = listening || settling.is_some();
        if listening && now >= self.next_attempt {
            let since = self.peers.values().filter_map(Peer::listening_since).max().unwrap_or(now);
            let interval = settling.unwrap_or_else(|| self.config.attempt_interval.after(now, since));
            self.next_attempt = now + interval;
            if let Some(at) = self.next_for_attempt(settling.is_some()) {
                return Some(self.send(now, at, 1, FLAG_ATTEMPT | FLAG_REPORT));
            }
            // No receiver is there to be offered anything: only patches can help.
            self.resume(now);
        }
        self.stream_at = listening.then_some(self.next_attempt);
        None
    }

    /// Every receiver has been reached: full rate begins, or the path settles first.
    fn come_up(&mut self, now: Time) {
        let waited = now.since(self.started_at.unwrap_or(now));
        let lossy = self.attempts_lost && !self.all_clean();
        let packet_time = self.config.rate.map(|rate| rate.time_for(self.packet_len()));
        match self.config.full_rate {
            FullRate::Settled => self.settling.begin(now, (waited, self.round_trip), packet_time, lossy),
            FullRate::AllReached | FullRate::FirstReached => self.settling = Settling::Settled,
        }
        self.patch_soon(now);
    }

    /// Position of the next attempt: what a receiver still has to be offered. While the path settles and
    /// everything has been offered, what a receiver has missed, or anything: the reports tell when the path
    /// is there.
    fn next_for_attempt(&self, settles: bool) -> Option<u64> {
        let (position, fragments) = (self.position, self.fragments);
        let wanted = self.peers.values().filter_map(|p| p.needs(position, fragments));
        if let Some(at) = wanted.map(|run| run.start).min() {
            return Some(at);
        }
        let sn = position % fragments;
        let next_missing = |p: &Peer| match p.repairs.missing.first_present(sn) {
            Some(missing) => Some(position - sn + missing),
            None => p.repairs.missing.first_present(0).map(|missing| position - sn + fragments + missing),
        };
        let mut streams = self.peers.values().filter(|p| p.service == Service::Streaming).peekable();
        let any = (settles && streams.peek().is_some()).then_some(position)?;
        Some(streams.filter_map(next_missing).min().unwrap_or(any))
    }

    /// Returns true if every receiver on the path has got the last attempts in a row.
    fn all_clean(&self) -> bool {
        let streams =
            |p: &&Peer| p.service == Service::Streaming && p.lap.initial.is_some() && p.spoken_by.is_none();
        self.peers.values().filter(streams).all(|p| p.lap.clean >= CLEAN_PACKETS)
    }

    /// Looks at what a receiver has reported while the path may have to settle.
    fn watch(&mut self, now: Time, id: PeerId) {
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        match self.settling {
            Settling::Proving { .. } => {
                if peer.lap.misses_much() {
                    self.settling.judge(true);
                    self.peers.values_mut().for_each(|peer| peer.lap.watch());
                    self.next_attempt = now;
                }
            }
            Settling::Waiting { .. } => {
                peer.lap.count_clean();
                if self.all_clean() {
                    self.resume(now);
                }
            }
            Settling::Dark => {
                peer.lap.count_clean();
                self.attempts_lost |= peer.lap.clean == 0;
            }
            Settling::Settled => {}
        }
    }

    /// The path has settled, as far as anyone knows: the stream goes on, and patches that have waited.
    fn resume(&mut self, now: Time) {
        if self.settling.interval().is_some() {
            self.settling.judge(false);
            self.peers.values_mut().for_each(|peer| peer.lap.watch());
            self.patch_soon(now);
        }
    }

    /// Patches that have waited for the path are sent like new ones.
    fn patch_soon(&mut self, now: Time) {
        if self.settling.allows_full_rate() && self.peers.values().any(|p| !p.repairs.missing.is_empty()) {
            self.next_patch = Some(now + self.config.patch_delay);
        }
    }

    fn send(&mut self, now: Time, position: u64, count: u32, flags: u8) -> Output {
        self.position = position + u64::from(count);
        self.packets += u64::from(count);
        if let Some(allowance) = self.config.allowance.as_mut().filter(|_| flags & FLAG_ATTEMPT == 0) {
            *allowance = allowance.saturating_sub(u64::from(count));
        }
        self.needed.start = self.position.min(self.needed.end);
        let limit = self.limit();
        let mut flags = flags;
        let often = matches!(self.settling, Settling::Proving { .. }) && now >= self.next_look;
        if often || self.packets - self.reported_packets >= (limit / 4).max(1) || self.room() == 0 {
            flags |= FLAG_REPORT;
            self.reported_packets = self.packets;
            self.next_look = now + self.round_trip / 4;
        }
        self.note_sent(now);
        self.spend(now, u64::from(count));
        let round = u32::try_from(position / self.fragments).expect("rounds fit into 32 bits");
        Output::Send { round, sn: position % self.fragments, count, flags }
    }

    fn listening(&self) -> bool {
        self.peers.values().any(|p| matches!(p.service, Service::Listening { .. }))
    }

    /// Returns true if a receiver still has to be offered something.
    fn streaming(&mut self) -> bool {
        self.needed_run().is_some()
    }

    /// The next positions that some receiver on its lap needs.
    fn needed_run(&mut self) -> Option<Range<u64>> {
        if self.needed.contains(&self.position) {
            return Some(self.position..self.needed.end);
        }
        let lapped = self.peers.values().filter(|p| p.lap.initial.is_some());
        let run =
            lapped.filter_map(|p| p.needs(self.position, self.fragments)).min_by_key(|run| run.start)?;
        self.needed = run.clone();
        // No receiver needs what lies before it: the stream goes on from there.
        self.position = run.start;
        Some(run)
    }

    /// Timers: stalls, deadlines, paths that do not get through, slow receivers, DATA_FNSD.
    fn look_at_timers(&mut self, now: Time, started: Time) {
        let ids: Vec<PeerId> = self.peers.iter().filter(|(_, p)| p.is_active()).map(|(id, _)| *id).collect();
        if now >= self.next_generation {
            self.next_generation = now + UNICAST_GENERATION;
            for peer in self.peers.values_mut() {
                let [young, old] = &mut peer.repairs.unicast;
                *old = core::mem::take(young);
            }
        }
        self.check_slow(now);
        self.check_progress(now);
        for id in ids {
            let peer = &self.peers[&id];
            if !peer.is_active() {
                continue;
            }
            if let Some(deadline) = self.config.deadline
                && now.since(started) >= deadline
            {
                self.settle(id, Some(Why::Deadline));
            } else if now.since(peer.signs.heard_at) >= self.config.stall_timeout {
                self.settle(id, Some(Why::Stalled(self.config.stall_timeout)));
            } else {
                self.check_path(now, id);
            }
        }
    }

    fn check_path(&mut self, now: Time, id: PeerId) {
        let timeout = self.config.path_timeout;
        let peer = &self.peers[&id];
        // It says itself that nothing comes, and for how long: one that lives may be held up by its disk, and
        // have much to read.
        let nothing_came = |since: Time| {
            let says_so =
                now.since(peer.signs.reported_at) < timeout && peer.signs.reported_at.since(since) >= timeout;
            // One that lives and never reports holds no others.
            let unreported = now.since(peer.signs.reported_at.max(since)) >= self.config.stall_timeout;
            let is_mute = now.since(peer.signs.heard_at) < timeout && unreported;
            (says_so || is_mute) && !self.path_waits && !self.paused
        };
        match peer.service {
            Service::Listening { since } if nothing_came(since) => self.cut_off(now, id),
            Service::Streaming | Service::Patching => {
                let lap_end = peer.lap.end(self.fragments).expect("its lap has begun");
                // What was sent since its last report, and when: a sender that waited for another receiver
                // must not take that for silence of this one.
                let next = self.sent.partition_point(|s| s.position <= peer.lap.position);
                let first = self.sent.get(next).filter(|_| peer.lap.position < lap_end).map(|s| s.at);
                // The last ones before the sender waited may be lost, and only a later one shows that.
                let last = self.sent.back().map_or(Time::ZERO, |s| s.at);
                let unreported = first.filter(|at| last.since(*at) >= timeout / 8);
                // Patches count as progress: only a receiver that gets nothing at all has lost its path.
                let silent_since =
                    unreported.map(|at| at.max(peer.signs.advanced_at).max(peer.signs.verified_at));
                if silent_since.is_some_and(nothing_came) {
                    self.cut_off(now, id);
                } else if self.position >= lap_end || self.needed_run().is_none() {
                    self.finish(now, id);
                }
            }
            _ => {}
        }
    }

    /// DATA_FNSD after a time-out, anew after every request, then again now and then. It follows whatever was
    /// sent over TCP before, so that the receiver may ask again for what it still lacks.
    fn finish(&mut self, now: Time, id: PeerId) {
        let grace = (self.round_trip * 2).max(Duration::from_millis(1));
        let position = self.position;
        let patches_wait = self.patches_wait_for(&self.peers[&id]);
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        match peer.lap.finish_at {
            _ if patches_wait => peer.lap.finish_at = None,
            None => peer.lap.finish_at = Some(now + grace),
            Some(at) if now >= at => {
                peer.lap.finish_at = Some(now + Duration::from_millis(250));
                let control = Control::DataFnsd { position };
                self.outputs.push_back(Output::Control { peer: id, control });
            }
            Some(_) => {}
        }
    }

    /// The data channel does not reach a receiver.
    fn cut_off(&mut self, now: Time, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.cut_off = true;
        }
        self.move_to_mesh(now, id);
    }

    /// One that is served is not forgotten.
    fn forget(&mut self, id: PeerId) {
        if self.peers.get(&id).is_none_or(Peer::is_active) {
            return;
        }
        // One that is done may serve others.
        self.leave_mesh(id);
        self.peers.remove(&id);
    }

    fn settle(&mut self, id: PeerId, failure: Option<Why>) {
        self.disband(id);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !peer.is_active() {
            // One that is done and then leaves no longer serves others.
            if failure.is_some() {
                self.leave_mesh(id);
            }
            return;
        }
        peer.repairs.missing.clear();
        peer.repairs.later.clear();
        self.needed = 0..0;
        peer.service = match &failure {
            None => Service::Done,
            Some(failure) => Service::Failed(failure.clone()),
        };
        // One that is done stays a member: others still fetch from it.
        if failure.is_some() {
            self.leave_mesh(id);
        }
        self.outputs.push_back(Output::Settled { peer: id, failure });
    }
}

/// Queues a unicast patch for what was not sent that way within the last seconds.
fn unicast(id: PeerId, peer: &mut Peer, run: Range<u64>, outputs: &mut VecDeque<Output>) {
    for fresh in peer.repairs.unicast[0].gaps(run) {
        for fresh in peer.repairs.unicast[1].gaps(fresh) {
            peer.repairs.unicast[0].insert(fresh.clone());
            outputs.push_back(Output::Patch { peer: id, sns: fresh });
        }
    }
}

#[cfg(test)]
mod tests;
