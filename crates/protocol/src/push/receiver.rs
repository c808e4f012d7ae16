//! A receiver of a push transfer (Republic section III-A).

mod check;
mod place;

use super::geometry::Geometry;
use crate::bits::Bits;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use place::{Claim, Claims};
use polycast_types::{Duration, RangeSet, Time};
use polycast_wire::control::{Control, Hash, RANGES_MAX};
use polycast_wire::data::{FLAG_ATTEMPT, FLAG_PATCH, FLAG_REPORT, HEADER_LEN};

/// Settings of a receiver.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// The object's division.
    pub geometry: Geometry,
    /// A gap is a loss when this many later packets have come ..
    pub reorder_packets: u64,
    /// .. or when it is this old.
    pub reorder_delay: Duration,
    /// Losses are gathered this long before they are asked for, while there is more to come.
    pub gather_delay: Duration,
    /// A request that is not answered is repeated after this long, then after twice as long, and so on.
    pub retry_delay: Duration,
    /// A packet that skips more missing fragments than this, or lies further back, is believed only when
    /// another one agrees with it: more than can be on their way to this end.
    pub reach_packets: u64,
    /// Report progress after this many packets.
    pub report_packets: u64,
    /// Report at least this often.
    pub heartbeat: Duration,
}

/// Most fragments of one segmented datagram.
pub const BATCH_MAX: u64 = 64;

impl ReceiverConfig {
    /// Returns the shipped settings, for a socket that holds `window_bytes` bytes of datagrams; before every
    /// datagram the network has a header of its own of `outer_len` bytes.
    #[must_use]
    pub fn new(geometry: Geometry, window_bytes: u64, outer_len: u32) -> Self {
        let packet_len = u64::from(geometry.fragment_len) + u64::from(outer_len) + HEADER_LEN as u64;
        ReceiverConfig {
            geometry,
            // Within one datagram batch nothing is reordered; between batches a few may be.
            reorder_packets: 3 * BATCH_MAX,
            reorder_delay: Duration::from_millis(1),
            gather_delay: Duration::from_millis(12),
            retry_delay: Duration::from_millis(40),
            reach_packets: window_bytes / packet_len + 4 * BATCH_MAX,
            report_packets: (window_bytes / packet_len / 2).max(1),
            heartbeat: Duration::from_millis(50),
        }
    }
}

/// Events that a receiver handles.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// These hash groups are verified and stored already (from an earlier try).
    Held {
        /// The group.
        group: u64,
    },
    /// All that is held has been said: be ready.
    Begin,
    /// A run of fragments came on the data channel.
    Data {
        /// Round in their headers.
        round: u32,
        /// First fragment.
        sn: u64,
        /// Number of fragments, contiguous.
        count: u32,
        /// All their flags together.
        flags: u8,
        /// Time when they reached this host; `now` is when they were taken out of the socket.
        arrived: Time,
    },
    /// This end was held up, as by its disk, and has not looked at its data channel since then: what has come
    /// waits there.
    HeldUp,
    /// It has looked, and nothing is there.
    NothingWaits,
    /// A coded patch was decoded into this fragment.
    Patched {
        /// First fragment.
        sn: u64,
        /// Number of fragments.
        count: u32,
    },
    /// Fragments came as PTCH_DATA: from the source itself, whatever came on the data channel.
    Sent {
        /// First fragment.
        sn: u64,
        /// Number of fragments.
        count: u32,
    },
    /// A hash group was checked.
    Checked {
        /// The group.
        group: u64,
        /// Set if the hash was right, and the bytes are stored.
        intact: bool,
    },
    /// A hash group came over TCP, verified and stored.
    Fetched {
        /// The group.
        group: u64,
    },
    /// The source says that the rest comes over TCP.
    Chained,
    /// A frame from the source.
    Control(&'a Control<'a>),
    /// The object is where it belongs.
    Committed {
        /// Proof to the source that it is here: see `DATA_RCVD`.
        proof: Hash,
    },
}

/// Actions for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Keep the bytes of these fragments of the last `Data`, `Patched` or `Sent` input; those of `Sent` take
    /// the place of what is there.
    Keep {
        /// First fragment.
        sn: u64,
        /// Number of fragments.
        count: u32,
    },
    /// All fragments of this hash group are there: check it.
    Check {
        /// The group.
        group: u64,
    },
    /// Send a frame to the source; PROGRESS and PTCH_REQ may go by way of the rack's speaker.
    Control(Control<'static>),
    /// Send this PTCH_REQ to the source itself: an earlier one was in vain.
    Repeat(Control<'static>),
    /// Everything is verified: put the object where it belongs.
    Complete,
}

/// Positions that were skipped, until it is clear whether they are lost.
#[derive(Clone, Debug)]
struct Suspect {
    positions: Range<u64>,
    at: Time,
    /// Set if they were skipped between single attempts: the stream has not begun, or waits for the path.
    attempts: bool,
}

/// Fragments asked for, to be asked for again.
#[derive(Clone, Debug)]
struct Request {
    sns: Vec<Range<u64>>,
    asked_at: Time,
    again_at: Time,
    tries: u32,
}

/// Longest wait before a request is repeated.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// The receiver's machine: `handle` what happens, then `poll` until `None`, and again at `deadline`.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    fragments: u64,
    have: RangeSet,
    /// Position of the first packet: where the lap began.
    initial: Option<u64>,
    /// Position after the last packet (the paper's prior sn, plus one).
    next: u64,
    /// Places in the stream that packets claim to be from, far from `next`.
    claims: Claims,
    /// The source has said that it has offered everything before this position.
    offered: u64,
    suspects: VecDeque<Suspect>,
    requests: Vec<Request>,
    /// Fragments in `requests` or `gathered`.
    requested: RangeSet,
    /// Losses to ask for, and when.
    gathered: Vec<Range<u64>>,
    gathered_at: Option<Time>,
    /// Time when everything not there is lost: set at the lap's end or by DATA_FNSD.
    lap_over_at: Option<Time>,
    /// Hash groups being checked or verified, and verified.
    checking: Bits,
    verified: Bits,
    /// Hash groups that came with wrong bytes once, and twice: these come over the control connection only.
    spoiled: Bits,
    distrusted: Bits,
    /// Fragments of groups that are not verified yet that came over the control connection.
    sent: RangeSet,
    verified_bytes: u64,
    received: u64,
    lost: u64,
    patched_bytes: u64,
    corrupt_groups: u64,
    report_due: bool,
    reported_received: u64,
    reported_at: Time,
    /// Time when the packet before `next` reached this host, and the time that it waited.
    arrived: Time,
    waited: Duration,
    begun: bool,
    /// It was held up, and so many packets may wait that have come meanwhile.
    behind: Option<u64>,
    chained: bool,
    complete: bool,
    committed: bool,
    outputs: VecDeque<Output>,
}

impl Receiver {
    /// A receiver that holds nothing yet.
    #[must_use]
    pub fn new(config: ReceiverConfig) -> Self {
        let groups = config.geometry.groups();
        Receiver {
            fragments: config.geometry.fragments(),
            have: RangeSet::new(),
            initial: None,
            next: 0,
            claims: Claims::default(),
            offered: 0,
            suspects: VecDeque::new(),
            requests: Vec::new(),
            requested: RangeSet::new(),
            gathered: Vec::new(),
            gathered_at: None,
            lap_over_at: None,
            checking: Bits::new(groups),
            verified: Bits::new(groups),
            spoiled: Bits::new(groups),
            distrusted: Bits::new(groups),
            sent: RangeSet::new(),
            verified_bytes: 0,
            received: 0,
            lost: 0,
            patched_bytes: 0,
            corrupt_groups: 0,
            report_due: false,
            reported_received: 0,
            reported_at: Time::ZERO,
            arrived: Time::ZERO,
            waited: Duration::ZERO,
            begun: false,
            behind: None,
            chained: false,
            complete: false,
            committed: false,
            outputs: VecDeque::new(),
            config,
        }
    }

    /// Counts the fragments from `sn` on that are missing, one after the other, at most `max`: the next
    /// datagram may be written there before it is known what it holds.
    #[must_use]
    pub fn missing_run(&self, sn: u64, max: u64) -> u64 {
        if sn >= self.fragments || self.have.contains(sn) {
            return 0;
        }
        self.have.first_present(sn).unwrap_or(self.fragments).min(sn + max).min(self.fragments) - sn
    }

    /// Returns the only fragment of a coded patch that is missing; `None` if none or several are.
    #[must_use]
    pub fn decodable(&self, sns: &[u64]) -> Option<u64> {
        let mut missing = sns.iter().copied().filter(|sn| *sn >= self.fragments || !self.have.contains(*sn));
        let one = missing.next().filter(|sn| *sn < self.fragments)?;
        missing.next().is_none().then_some(one)
    }

    /// Returns true if more than `fragments` are still to come on the data channel.
    #[must_use]
    pub fn expects_more(&self, fragments: u64) -> bool {
        self.lap_over_at.is_none() && !self.complete && self.lap_end().saturating_sub(self.next) > fragments
    }

    /// Counts the fragments in `sns` that are missing.
    #[must_use]
    pub fn missing_of(&self, sns: &[u64]) -> usize {
        sns.iter().filter(|sn| !self.have.contains(**sn)).count()
    }

    /// Returns true if hash group `group` is verified.
    #[must_use]
    pub fn is_verified(&self, group: u64) -> bool {
        self.verified.get(group)
    }

    /// Bytes verified so far.
    #[must_use]
    pub fn verified_bytes(&self) -> u64 {
        self.verified_bytes
    }

    /// Bytes that came as patches so far.
    #[must_use]
    pub fn patched_bytes(&self) -> u64 {
        self.patched_bytes
    }

    /// Hash groups that came with wrong bytes so far.
    #[must_use]
    pub fn corrupt_groups(&self) -> u64 {
        self.corrupt_groups
    }

    /// The sn expected next on the data channel.
    #[must_use]
    pub fn next_sn(&self) -> u64 {
        self.next % self.fragments
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Held { group } => self.group_stored(group),
            Input::Begin => {
                self.begun = true;
                self.reported_at = now;
                let have = longest(&self.have, RANGES_MAX);
                self.outputs.push_back(Output::Control(Control::Have(have)));
                self.complete_if_all();
            }
            Input::Data { round, sn, count, flags, arrived } => {
                self.data(now, arrived, (round, sn, count), flags);
            }
            Input::Patched { sn, count } => {
                // Numbers that are none of the object have no position.
                if self.config.geometry.position(0, sn, count).is_some() {
                    self.patched(sn..sn + u64::from(count));
                }
            }
            Input::Sent { sn, count } => {
                if self.config.geometry.position(0, sn, count).is_some() {
                    self.sent(sn..sn + u64::from(count));
                }
            }
            Input::Checked { group, intact: true } => self.group_verified(group),
            Input::Checked { group, intact: false } => self.group_corrupt(now, group),
            Input::Fetched { group } => self.group_stored(group),
            Input::Chained => {
                self.chained = true;
                self.claims.clear();
                self.suspects.clear();
                self.requests.clear();
                self.requested.clear();
                self.gathered.clear();
                self.gathered_at = None;
            }
            Input::HeldUp => self.behind = Some(self.config.reach_packets),
            Input::NothingWaits => self.behind = None,
            // It comes again when what waits was read.
            Input::Control(Control::DataFnsd { .. }) if self.behind.is_some() => {}
            Input::Control(Control::DataFnsd { position }) if self.initial.is_some() => {
                self.offered(now, *position);
            }
            Input::Control(_) => {}
            Input::Committed { proof } => {
                assert!(self.complete, "nothing incomplete is committed");
                self.committed = true;
                let patched_bytes = self.patched_bytes;
                self.outputs.push_back(Output::Control(Control::DataRcvd { patched_bytes, proof }));
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
        if !self.begun || self.committed {
            return None;
        }
        // What waits to be read is not lost, and a report without it would say that nothing comes.
        let is_abreast = self.behind.is_none();
        if is_abreast && !self.chained && !self.complete {
            if let Some(claim) = self.claims.believed(now) {
                self.believe(now, &claim);
            }
            self.find_losses(now);
            self.request_gathered(now);
            self.repeat_requests(now);
        }
        let fresh = self.received - self.reported_received;
        let due = self.report_due || fresh >= self.config.report_packets;
        let has_read = self.behind.is_none_or(|left| left < self.config.reach_packets);
        if due && has_read || is_abreast && now.since(self.reported_at) >= self.config.heartbeat {
            self.report(now);
        }
        self.outputs.pop_front()
    }

    /// Returns the time when `poll` is to be called again if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        if !self.outputs.is_empty() {
            return Some(Time::ZERO);
        }
        // One that was held up has to look what has come before anything is due.
        if !self.begun || self.committed || self.behind.is_some() {
            return None;
        }
        let mut at = self.reported_at + self.config.heartbeat;
        if !self.chained && !self.complete {
            if let Some(suspect) = self.suspects.front() {
                at = at.min(suspect.at + self.config.reorder_delay);
            }
            for timer in [self.lap_over_at, self.gathered_at, self.claims.deadline()].into_iter().flatten() {
                at = at.min(timer);
            }
            if let Some(again) = self.requests.iter().map(|r| r.again_at).min() {
                at = at.min(again);
            }
        }
        Some(at)
    }

    fn data(&mut self, now: Time, arrived: Time, (round, sn, count): (u32, u64, u32), flags: u8) {
        let Some(position) = self.config.geometry.position(round, sn, count) else { return };
        let count = u64::from(count);
        // One that has waited for less than a report takes came after it was held up.
        let left = self.behind.filter(|_| now.since(arrived) >= self.config.heartbeat / 4);
        self.behind = left.and_then(|left| left.checked_sub(count));
        let sns = sn..sn + count;
        if flags & FLAG_PATCH != 0 {
            return self.patched(sns);
        }
        let (positions, attempts) = (position..position + count, flags & FLAG_ATTEMPT != 0);
        if self.initial.is_none() {
            self.begin_at(position);
            self.next = position;
        }
        let fresh = self.missing_in(sns.clone(), count);
        if !self.is_near(&positions) {
            // What is there already, from an earlier place, is a packet that some host sends again.
            if fresh > 0 && position >= self.offered {
                let waited = now.since(arrived);
                let claim = Claim { positions, packets: count, attempts, arrived, waited };
                self.claims.came(claim, self.config.reach_packets);
            }
            return self.keep_trusted(sns);
        }
        // Packets from before `next` count only if they were late.
        let news = if position >= self.next { count } else { fresh };
        if news > 0 {
            self.claims.here(now);
            // The first one was not, or overtook others: the source may not have believed its position.
            if self.initial.is_some_and(|initial| position < initial) {
                self.begin_at(position);
            }
            self.received += news;
            self.report_due |= flags & FLAG_REPORT != 0;
            self.pass(now, positions, attempts, (arrived, now.since(arrived)));
        }
        self.keep_trusted(sns);
    }

    /// The lap begins here.
    fn begin_at(&mut self, position: u64) {
        self.initial = Some(position);
        self.outputs.push_back(Output::Control(Control::IntlSeq { position }));
    }

    /// Returns true if packets at these positions can be the next ones, with what may be on its way to this
    /// end.
    fn is_near(&self, positions: &Range<u64>) -> bool {
        let reach = self.config.reach_packets;
        if positions.start <= self.next {
            return self.next.saturating_sub(positions.end) <= reach;
        }
        let skipped = positions.start - self.next;
        // The source skips what no receiver lacks.
        let missing = || {
            let sns = self.config.geometry.sns_of_positions(self.next..positions.start);
            sns.into_iter().map(|sns| self.missing_in(sns, reach + 1)).sum::<u64>()
        };
        skipped <= reach || skipped <= self.fragments && missing() <= reach
    }

    /// Counts the fragments in `sns` that are missing; it need not be exact beyond `most`.
    fn missing_in(&self, sns: Range<u64>, most: u64) -> u64 {
        let (mut at, mut missing) = (sns.start, 0);
        while missing < most {
            at = self.have.first_missing(at);
            if at >= sns.end {
                break;
            }
            let until = self.have.first_present(at).unwrap_or(sns.end).min(sns.end);
            missing += until - at;
            at = until;
        }
        missing
    }

    /// Packets at these positions have come: what lies before them and has not may be lost.
    fn pass(
        &mut self,
        now: Time,
        positions: Range<u64>,
        attempts: bool,
        (arrived, waited): (Time, Duration),
    ) {
        // Over TCP everything comes, lost or not.
        if positions.start > self.next && self.lap_over_at.is_none() && !self.chained {
            let skipped = self.next..positions.start;
            self.suspects.push_back(Suspect { positions: skipped, at: now, attempts });
        }
        if positions.end > self.next {
            (self.next, self.arrived, self.waited) = (positions.end, arrived, waited);
        }
        self.see_lap_end(now);
    }

    /// Ends the lap once every fragment has been offered: all that are still missing are lost.
    fn see_lap_end(&mut self, now: Time) {
        if self.lap_over_at.is_none() && self.next >= self.lap_end() {
            self.lap_over_at = Some(now + self.config.reorder_delay);
            // What is lost for certain need not wait for the rest.
            self.gathered_at = self.gathered_at.map(|at| at.min(now));
        }
    }

    /// The stream is somewhere else by now, or has been there all the time.
    fn believe(&mut self, now: Time, claim: &Claim) {
        let Claim { ref positions, packets, attempts, arrived, waited } = *claim;
        self.received += packets;
        self.report_due = true;
        if self.is_near(positions) {
            // The stream has come there meanwhile.
            return self.pass(now, positions.clone(), attempts, (arrived, waited));
        }
        if positions.start < self.next {
            self.go_back(positions.start);
        }
        // Between its packets some may be missing, too. It ends behind this place: otherwise it would be
        // near.
        if self.lap_over_at.is_none() {
            let skipped = self.next..positions.end;
            self.suspects.push_back(Suspect { positions: skipped, at: now, attempts });
        }
        (self.next, self.arrived, self.waited) = (positions.end, arrived, waited);
        self.see_lap_end(now);
    }

    /// This end was taken too far: it goes back to this position.
    fn go_back(&mut self, position: u64) {
        self.suspects.retain_mut(|suspect| {
            suspect.positions.end = suspect.positions.end.min(position);
            suspect.positions.start < suspect.positions.end
        });
        if self.initial.is_some_and(|initial| position < initial) {
            // The source has not believed the position that it was told.
            self.begin_at(position);
        }
        self.next = position;
        // Unless the source itself has said so.
        if self.offered == 0 && self.next < self.lap_end() {
            self.lap_over_at = None;
        }
    }

    /// The source says that it has offered everything before this position.
    fn offered(&mut self, now: Time, position: u64) {
        self.offered = self.offered.max(position);
        if self.next > position.saturating_add(self.config.reach_packets) {
            self.suspects.clear();
            self.next = position.max(self.initial.unwrap_or(0));
        }
        self.next = self.next.max(position);
        self.claims.clear();
        self.forget_answered(now);
        let at = now + self.config.reorder_delay;
        self.lap_over_at = Some(self.lap_over_at.map_or(at, |old| old.min(at)));
    }

    /// Position where every fragment has been offered once.
    fn lap_end(&self) -> u64 {
        self.initial.map_or(u64::MAX, |initial| initial.saturating_add(self.fragments))
    }

    /// Counts the missing bytes of the fragments in `sns`.
    fn missing_bytes(&self, sns: Range<u64>) -> u64 {
        let geometry = &self.config.geometry;
        let bytes =
            |r: &Range<u64>| geometry.fragment_bytes(r.end - 1).end - geometry.fragment_bytes(r.start).start;
        self.have.gaps(sns).iter().map(bytes).sum()
    }

    fn patched(&mut self, sns: Range<u64>) {
        self.patched_bytes += self.missing_bytes(sns.clone());
        self.keep_trusted(sns);
    }

    /// Fragments came from the source itself: they take the place of what came on the data channel.
    fn sent(&mut self, sns: Range<u64>) {
        self.patched_bytes += self.missing_bytes(sns.clone());
        let unfinished = |sn: &u64| {
            let mut groups = self.config.geometry.groups_of_fragments(*sn..*sn + 1);
            !groups.all(|group| self.verified.get(group))
        };
        let lacking: RangeSet = sns.filter(unfinished).map(|sn| sn..sn + 1).collect();
        let news: Vec<_> = lacking.iter().flat_map(|run| self.sent.gaps(run)).collect();
        for run in &news {
            self.sent.insert(run.clone());
            self.hold(run.clone());
        }
        // Only when all of them are in their place: what was there may have made a group whole.
        news.into_iter().for_each(|run| self.check_groups(run));
    }

    /// Keeps fragments that came on the data channel, unless their group was spoiled there twice.
    fn keep_trusted(&mut self, sns: Range<u64>) {
        if self.distrusted.count == 0 {
            return self.keep(sns);
        }
        for sn in sns {
            let mut groups = self.config.geometry.groups_of_fragments(sn..sn + 1);
            if !groups.any(|group| self.distrusted.get(group)) {
                self.keep(sn..sn + 1);
            }
        }
    }

    fn keep(&mut self, sns: Range<u64>) {
        let count = sns.end - sns.start;
        // The common case: everything is new.
        let kept = if self.missing_run(sns.start, count) == count { vec![sns] } else { self.have.gaps(sns) };
        for run in kept {
            self.hold(run.clone());
            self.check_groups(run);
        }
    }

    fn hold(&mut self, run: Range<u64>) {
        self.outputs.push_back(Output::Keep { sn: run.start, count: (run.end - run.start) as u32 });
        self.have.insert(run);
    }

    fn check_groups(&mut self, run: Range<u64>) {
        for group in self.config.geometry.groups_of_fragments(run) {
            self.check_if_whole(group);
        }
    }

    fn check_if_whole(&mut self, group: u64) {
        let whole = !self.checking.get(group)
            && !self.verified.get(group)
            && self.have.covers(self.config.geometry.fragments_of_group(group));
        if whole {
            self.checking.set(group, true);
            self.outputs.push_back(Output::Check { group });
        }
    }

    fn group_verified(&mut self, group: u64) {
        if self.verified.set(group, true) {
            let bytes = self.config.geometry.group_bytes(group);
            self.verified_bytes += bytes.end - bytes.start;
            self.forget_sent(group);
            self.complete_if_all();
        }
    }

    /// A group is verified: where its fragments came from is of no interest any more, but for those that
    /// another group shares.
    fn forget_sent(&mut self, group: u64) {
        let sns = self.config.geometry.fragments_of_group(group);
        let mut done = sns.clone();
        for edge in [sns.start, sns.end - 1] {
            let mut groups = self.config.geometry.groups_of_fragments(edge..edge + 1);
            if !groups.all(|group| self.verified.get(group)) {
                if edge == done.start { done.start += 1 } else { done.end -= 1 }
            }
        }
        if done.start < done.end {
            self.sent.remove(done);
        }
    }

    fn complete_if_all(&mut self) {
        if self.begun && !self.complete && self.verified.count == self.config.geometry.groups() {
            self.complete = true;
            self.report_due = true;
            self.outputs.push_back(Output::Complete);
        }
    }

    /// A group whose bytes are verified in the store: its fragments are there, as far as they lie in
    /// verified groups entirely.
    fn group_stored(&mut self, group: u64) {
        if group >= self.config.geometry.groups() {
            return;
        }
        self.group_verified(group);
        for sn in self.config.geometry.fragments_of_group(group) {
            let mut groups = self.config.geometry.groups_of_fragments(sn..sn + 1);
            if groups.all(|g| self.verified.get(g)) {
                self.have.insert(sn..sn + 1);
            }
        }
    }

    /// Wrong bytes: the group's fragments are asked for again.
    fn group_corrupt(&mut self, now: Time, group: u64) {
        self.corrupt_groups += 1;
        self.checking.set(group, false);
        if self.verified.get(group) {
            return; // It has come over TCP meanwhile.
        }
        let again = !self.spoiled.set(group, true);
        if again {
            self.distrusted.set(group, true);
        }
        let sns = self.config.geometry.fragments_of_group(group);
        // What the source itself has sent is right, unless nothing else is there: then all of it comes again.
        let mut wrong = self.sent.gaps(sns.clone());
        if wrong.is_empty() {
            self.sent.remove(sns.clone());
            wrong.push(sns);
        }
        for run in &wrong {
            self.have.remove(run.clone());
        }
        // The neighbours keep what they have verified; one that was still incomplete lacks the shared
        // fragment again, and one being checked has its bytes already.
        if !self.chained {
            // What was in vain before is asked for at the source itself.
            self.request(now, wrong, u32::from(again));
        }
    }

    /// Turns skipped positions into losses once they cannot be late packets any more.
    fn find_losses(&mut self, now: Time) {
        while let Some(suspect) = self.suspects.front() {
            let passed = self.next >= suspect.positions.end.saturating_add(self.config.reorder_packets);
            if !passed && now.since(suspect.at) < self.config.reorder_delay {
                break;
            }
            let (positions, attempts) = (suspect.positions.clone(), suspect.attempts);
            self.suspects.pop_front();
            self.declare_lost(now, positions, attempts);
        }
        if self.lap_over_at.is_some_and(|at| now >= at) {
            self.lap_over_at = Some(Time(u64::MAX));
            self.suspects.clear();
            let initial = self.initial.expect("a lap that is over has begun");
            self.declare_lost(now, initial..self.lap_end(), false);
        }
    }

    fn declare_lost(&mut self, now: Time, positions: Range<u64>, attempts: bool) {
        // Beyond the lap's end the packets are for others.
        let positions = positions.start..positions.end.min(self.lap_end());
        let mut lost = Vec::new();
        for sns in self.config.geometry.sns_of_positions(positions) {
            for gap in self.have.gaps(sns) {
                lost.extend(self.requested.gaps(gap));
            }
        }
        self.lost += lost.iter().map(|r| r.end - r.start).sum::<u64>();
        for range in &lost {
            self.requested.insert(range.clone());
        }
        self.gathered.extend(lost);
        if !self.gathered.is_empty() {
            // At the lap's end nothing more will come: waiting would only delay. Single attempts are few, and
            // their patches can be ready when the stream ends, however short it is.
            let at_once = self.lap_over_at.is_some() || attempts;
            let delay = if at_once { Duration::ZERO } else { self.config.gather_delay };
            let at = now + delay;
            self.gathered_at = Some(self.gathered_at.map_or(at, |old| old.min(at)));
        }
    }

    /// Asks for the losses that were gathered.
    fn request_gathered(&mut self, now: Time) {
        if self.gathered_at.is_some_and(|at| now >= at) {
            self.gathered_at = None;
            let lost = core::mem::take(&mut self.gathered);
            let still: Vec<_> = lost.into_iter().flat_map(|range| self.have.gaps(range)).collect();
            self.request(now, still, 0);
        }
    }

    fn request(&mut self, now: Time, sns: Vec<Range<u64>>, tries: u32) {
        // Ranges that touch are one on the wire.
        let merged: RangeSet = sns.into_iter().collect();
        let all: Vec<Range<u64>> = merged.iter().collect();
        for part in all.chunks(RANGES_MAX) {
            for range in part {
                self.requested.insert(range.clone());
            }
            let wait = (self.config.retry_delay * (1 << tries.min(5))).min(RETRY_DELAY_MAX);
            self.requests.push(Request { sns: part.to_vec(), asked_at: now, again_at: now + wait, tries });
            let control = Control::PtchReq(part.to_vec());
            self.outputs.push_back(if tries == 0 {
                Output::Control(control)
            } else {
                Output::Repeat(control)
            });
        }
    }

    /// The source has answered every request that has reached it: what is still missing is asked for anew.
    fn forget_answered(&mut self, now: Time) {
        let (requested, delay) = (&mut self.requested, self.config.reorder_delay);
        self.requests.retain(|request| {
            let answered = now.since(request.asked_at) >= delay;
            if answered {
                for range in &request.sns {
                    requested.remove(range.clone());
                }
            }
            !answered
        });
    }

    fn repeat_requests(&mut self, now: Time) {
        let mut due = Vec::new();
        self.requests.retain_mut(|request| {
            let is_due = now >= request.again_at;
            if is_due {
                due.push((core::mem::take(&mut request.sns), request.tries));
            }
            !is_due
        });
        let mut again = Vec::new();
        let mut tries = 0;
        for (sns, tried) in due {
            tries = tries.max(tried + 1);
            for range in sns {
                self.requested.remove(range.clone());
                again.extend(self.have.gaps(range));
            }
        }
        self.request(now, again, tries);
    }

    fn report(&mut self, now: Time) {
        self.report_due = false;
        self.reported_received = self.received;
        self.reported_at = now;
        self.outputs.push_back(Output::Control(Control::Progress {
            position: self.next,
            received: self.received,
            lost: self.lost,
            verified_bytes: self.verified_bytes,
            arrived_ns: self.arrived.0,
            waited_ns: self.waited.0,
        }));
    }
}

/// The longest ranges of a set, at most so many, rising: what a frame has no room for comes again.
fn longest(set: &RangeSet, most: usize) -> Vec<Range<u64>> {
    let mut ranges: Vec<_> = set.iter().collect();
    if ranges.len() > most {
        ranges.sort_by_key(|range| (core::cmp::Reverse(range.end - range.start), range.start));
        ranges.truncate(most);
        ranges.sort_by_key(|range| range.start);
    }
    ranges
}

#[cfg(test)]
mod tests;
