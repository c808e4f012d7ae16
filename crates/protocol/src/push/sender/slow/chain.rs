//! The members of the TCP chain: their places, and which of them makes others slow.
//!
//! A member fetches from the one before it. What one says that it has is no proof that it gives it. So a member that gets little, while what
//! is before it says that it has much, fetches from the source itself for a second. What it gets there tells its own path from its
//! upstream.

use super::super::{CHECK_INTERVAL, Output, PeerId, Sender, Service, SlowPolicy, Slower};
use super::{GAIN, TRY_AGAIN, TRY_DOUBLINGS};
use crate::push::chain::Link;
use crate::push::peer::{AtSource, Fetching, Peer, per_second};
use crate::session::Why;
use alloc::vec::Vec;
use polycast_types::{Duration, Rate, Time};

/// A chain member that gets nothing for this long, while it is behind its upstream, goes to the tail.
const CHAIN_STALL: Duration = Duration::from_millis(1_500);
/// One that fetches from the source has twice, four times .. as long, if those before it have got nothing there either: then the source is slow.
/// So many doublings at most.
const HEAD_DOUBLINGS: u32 = 4;
/// One that is held by its upstream alone for so long changes places with it.
const CHAIN_HELD: Duration = Duration::from_millis(120);
/// .. where both paths were measured, and the upstream's is the faster one, or where more comes between two reports than tells those apart that
/// are held.
const CHAIN_HELD_LONG: Duration = Duration::from_secs(1);
/// That is judged when something has come for as long, or after this time.
const SWAP_WITHIN: Duration = Duration::from_secs(2);
/// It may bring something until so many times the longest pause between two reports have passed: a connection takes its time.
const SWAP_PAUSES: u64 = 4;
/// .. if it would take at least this long to go on as before.
const CHAIN_REST: Duration = Duration::from_secs(1);
/// If two members get nothing from the same one within this time, that one goes to the tail.
const GAVE_NOTHING_WITHIN: Duration = Duration::from_secs(5);
/// A word that the upstream is lost that comes sooner is about the one before: members wait for a while before they say so.
const LOST_AFTER: Duration = Duration::from_millis(40);
/// What comes to a member is looked at so often, since all others are looked at for each.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// It counts what has come in so long.
const WINDOW: Duration = Duration::from_secs(1);
/// A member that gets less than a half of what most others have got, for so many times in a row in which something came, fetches from the source.
/// A host that pauses is slow for one.
const LITTLE_TIMES: u32 = 2;
/// .. or if it only stays behind its upstream for so many: most that do have come later, and then it costs the others something.
const KEPT_TIMES: u32 = 8;
/// What it gets there is looked at from the first that comes, which has to come within this time.
const SOURCE_WITHIN: Duration = Duration::from_secs(10);
/// One that got no more there may be tried again after this long, and then twice, four times .. as long.
const SOURCE_AGAIN: Duration = Duration::from_secs(1);
/// The same for all that only stay behind.
const KEPT_AGAIN: Duration = Duration::from_secs(8);
const KEPT_DOUBLINGS: u32 = 3;
/// What has come in a shorter time says little of a pace: reports are 50 ms apart.
const PACE_MIN: Duration = Duration::from_millis(500);
/// So many are tried at the source at a time, beside the head of the chain.
const AT_SOURCE_MAX: usize = 4;
/// One that gets so many times as much there has an upstream that gives it little.
const SOURCE_GAIN: u64 = 2;
/// So many upstreams lose their places to one member within this time: it may report less than it gets from them. After that it fetches from the
/// source.
const DISPLACED_MAX: u32 = 2;
const DISPLACED_WITHIN: Duration = Duration::from_secs(60);
/// Groups by which an upstream has to be ahead to be worth it, and within which one has all that its upstream has.
const CHAIN_AHEAD_GROUPS: u64 = 8;
const CHAIN_CLOSE_GROUPS: u64 = 2;
/// Receivers report every 50 ms. One that has said nothing for this long does something else: that is no other's fault.
const SILENT: Duration = Duration::from_millis(200);
/// A head that gets so many groups in a window has a source that is not slow.
const HEAD_GROUPS: u64 = 2;

/// What is tried about the order of the chain.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// A change that has to prove itself, and when the next one may be made.
    pub(super) swap: Option<Swap>,
    pub(super) swap_at: Time,
    pub(super) swaps_in_vain: u32,
    /// When one that stays behind its upstream may be tried next, and how many were in vain.
    pub(super) kept_at: Time,
    pub(super) kept_in_vain: u32,
    /// When it is looked at next what comes to the members.
    pub(super) look_at: Time,
    /// How many members in a row got nothing from the source.
    pub(super) heads_in_vain: u32,
}

/// A member of the chain has come before its upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Swap {
    pub(super) peer: PeerId,
    pub(super) since: Time,
    /// What it had then.
    pub(super) verified_bytes: u64,
    /// The report from which on it is measured, once something has come.
    pub(super) from: Option<(u64, Time)>,
    /// When its last report with more came, and the longest time between two of them.
    pub(super) reported_at: Time,
    pub(super) pause: Duration,
    /// Bytes a second that it got before.
    pub(super) rate: u64,
    /// What was its upstream, and what that one gave, if the change brings something.
    pub(super) behind: PeerId,
    pub(super) given: u64,
    /// Nothing had come from that one when it lost its place.
    pub(super) began: bool,
}

/// What a look finds out about a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finding {
    /// It is looked at anew from here. So often in a row little has come so far, or, if that is so, it has only stayed behind.
    Anew(u32, bool),
    /// So many bytes a second come from its upstream, and that is little.
    Little(u64),
    /// So many come, which is as much as its upstream gets, and it stays behind that.
    Kept(u64),
    /// It has been at the source for its time, and has got so many bytes a second there.
    Tried(u64),
    /// It fetches from the source anyway, and has got so many bytes a second since it does.
    Own(u64),
}

impl Sender {
    /// Where a member really fetches: from the source if it could not reach others, or is tried there. Gives what it is told; one that fetches
    /// there already is told nothing, since it would begin anew.
    pub(in super::super) fn fetch_from(&mut self, now: Time, link: Link) -> Option<Link> {
        let peer = self.peers.get_mut(&link.peer)?;
        let upstream = link.upstream.filter(|_| !peer.fetches_at_source());
        if peer.fetching.is_some_and(|fetching| fetching.upstream == upstream) {
            return None;
        }
        peer.fetching = Some(Fetching::new(now, upstream, peer.verified_bytes));
        peer.gains = [0; 2];
        (peer.held_by_upstream, peer.held_from) = (Duration::ZERO, reported(peer));
        Some(Link { upstream, ..link })
    }

    /// A member could not reach its upstream, or the source had no room for it, or a connection broke.
    pub(in super::super) fn lose_upstream(&mut self, now: Time, id: PeerId) {
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        let Some(fetching) = peer.fetching.filter(|fetching| now.since(fetching.since) >= LOST_AFTER) else {
            return;
        };
        // It is told again, also where that is the same one.
        peer.fetching = None;
        if let Some(trial) = peer.at_source.take() {
            // The source has no room for a trial: that is not the upstream's fault, nor its own.
            try_later(now, peer);
            if trial.kept {
                self.keep_later(now, false);
            }
            let upstream = self.chain.upstream(id);
            self.outputs.push_back(Output::Chain(Link { peer: id, upstream }));
            return;
        }
        let has_come =
            peer.verified_bytes > fetching.from_bytes && self.breaks_rarely(now, fetching.upstream);
        if !has_come {
            let peer = self.peers.get_mut(&id).expect("looked up above");
            peer.upstreams_lost = peer.upstreams_lost.saturating_add(1);
        }
        let upstream = self.move_lost(now, id, fetching.upstream, has_come);
        self.outputs.push_back(Output::Chain(Link { peer: id, upstream }));
    }

    /// If something has come from there it can be reached: a host that pauses loses its connection. One that breaks one after the other gives as good
    /// as nothing.
    fn breaks_rarely(&mut self, now: Time, upstream: Option<PeerId>) -> bool {
        let Some(other) = upstream.and_then(|upstream| self.peers.get_mut(&upstream)) else { return true };
        other.broke_at.replace(now).is_none_or(|at| now.since(at) >= GAVE_NOTHING_WITHIN)
    }

    /// Where one that has lost its upstream, or the source, goes in the chain, and where it fetches from now on.
    fn move_lost(&mut self, now: Time, id: PeerId, lost: Option<PeerId>, has_come: bool) -> Option<PeerId> {
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        if peer.fetches_at_source() {
            // Its place is no matter to it. One that has lost the source holds those behind it; one that reaches no other says nothing of them.
            if lost.is_none() {
                let links = self.chain.demote(id);
                self.outputs.extend(links.into_iter().map(Output::Chain));
            }
            return None;
        }
        peer.moves = peer.moves.saturating_add(1);
        if !has_come && self.give_up_on(now, id, lost) {
            return self.chain.upstream(id);
        }
        let links = self.chain.demote(id);
        // The tail has no other to change places with: it fetches from the source, too, unless that is what it has lost.
        let has_other = !links.is_empty() || lost.is_none() || has_come;
        self.outputs.extend(links.into_iter().map(Output::Chain));
        self.chain.upstream(id).filter(|_| has_other)
    }

    /// A member has got nothing from this one. If it is not the first, that one goes to the tail: those behind it would find out one by one.
    fn give_up_on(&mut self, now: Time, id: PeerId, upstream: Option<PeerId>) -> bool {
        let Some(upstream) = upstream.filter(|upstream| self.chain.upstream(id) == Some(*upstream)) else {
            return false;
        };
        let is_lately = |at: Time| now.since(at) < GAVE_NOTHING_WITHIN;
        let other = self.peers.get_mut(&upstream).expect("a member of the chain");
        let is_second = other.gave_nothing.is_some_and(|(at, by)| by != id && is_lately(at));
        if !is_second {
            other.gave_nothing = Some((now, id));
            return false;
        }
        other.gave_nothing = None;
        let may = self.may_displace(now, id);
        if may {
            self.stay_at_source(upstream);
            self.displace(now, id, upstream, 0);
        }
        may
    }

    /// One that fetches from the source goes on there wherever it stands: it may reach no other, as no other reaches it.
    fn stay_at_source(&mut self, id: PeerId) {
        let peer = self.peers.get_mut(&id).expect("a member of the chain");
        if peer.is_at_source() {
            peer.keep_at_source();
        }
    }

    /// Whether a member may cost another one its place.
    fn may_displace(&mut self, now: Time, id: PeerId) -> bool {
        let peer = self.peers.get_mut(&id).expect("a member of the chain");
        if now.since(peer.displaced_at) >= DISPLACED_WITHIN {
            peer.displaced = 0;
        }
        peer.displaced < DISPLACED_MAX
    }

    /// An upstream gives a member this little: it comes behind all that are faster.
    fn displace(&mut self, now: Time, id: PeerId, upstream: PeerId, rate: u64) {
        let peer = self.peers.get_mut(&id).expect("a member of the chain");
        (peer.displaced, peer.displaced_at) = (peer.displaced + 1, now);
        self.put_behind(upstream, rate);
    }

    /// A chain member that is behind its upstream and gets nothing holds those behind it: to the tail. One whose upstream
    /// is slower than what is before that comes before it.
    pub(in super::super) fn check_chain(&mut self, now: Time, id: PeerId) {
        let whole = self.config.geometry.object_len;
        let ahead = self.ahead_of(id);
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        let behind_since = (ahead > peer.verified_bytes).then(|| *peer.behind_since.get_or_insert(now));
        peer.behind_since = behind_since;
        let peer = &self.peers[&id];
        // A connection takes its time, too.
        let linked_at = peer.fetching.map_or(Time::ZERO, |fetching| fetching.since);
        let since = behind_since.map(|since| since.max(peer.verified_at).max(linked_at));
        if since.is_some_and(|since| now.since(since) >= self.stall(peer)) {
            self.move_in_chain(now, id);
            return;
        }
        // What a trial at the source is about goes on as it is.
        let is_tried = |id: &PeerId| self.peers[id].at_source.is_some();
        let upstream = self.chain.upstream(id).filter(|upstream| !is_tried(upstream));
        let Some(upstream) = upstream.filter(|_| !peer.is_at_source()) else { return };
        let group = u64::from(self.config.geometry.group_len);
        let before = self.ahead_in_chain(upstream);
        let near = CHAIN_CLOSE_GROUPS * group;
        let held = self.is_close(id, ahead)
            && ahead < whole
            && before >= ahead + CHAIN_AHEAD_GROUPS * group
            && !begins(&self.peers[&upstream]);
        let peer = self.peers.get_mut(&id).expect("looked up above");
        if !held {
            (peer.held_by_upstream, peer.held_from) = (Duration::ZERO, reported(peer));
            return;
        }
        peer.held_by_upstream = peer.held_by_upstream + CHECK_INTERVAL;
        let rate = rate_since(peer, peer.held_from);
        // Where little is left, a change costs more than it brings.
        let long = (whole - peer.verified_bytes).saturating_mul(1_000)
            >= rate.saturating_mul(CHAIN_REST.as_millis());
        let (held, own, gain) = (peer.held_by_upstream, peer.chain_rate, peer.gains[0].max(peer.gains[1]));
        // A trial has measured both: a connection that begins behind the rest of the stream is slow at first.
        let is_known = own.is_some() && self.peers[&upstream].chain_rate > own;
        // Where much comes between two reports those that are as fast as their upstreams look like that, too.
        let is_unsure = gain > near || begins(&self.peers[&id]);
        let patience = if is_known || is_unsure { CHAIN_HELD_LONG } else { CHAIN_HELD };
        if held >= patience && long {
            self.pass_upstream(now, id, upstream);
        }
    }

    /// Whether a member has all but two groups of what its upstream has, and what is on its way to it. Each reports at its own time: between two
    /// reports, or twice that long if the upstream's is the newer one, as much may have come as between those before.
    fn is_close(&self, id: PeerId, ahead: u64) -> bool {
        let peer = &self.peers[&id];
        let upstream = self.chain.upstream(id).map(|upstream| &self.peers[&upstream]);
        let is_older = upstream.is_some_and(|upstream| upstream.verified_at > peer.verified_at);
        // One jump alone is no pace.
        let [last, before] = peer.gains;
        let gain = last.max(before).min(last.min(before).saturating_mul(2));
        let on_its_way = gain.saturating_mul(if is_older { 2 } else { 1 });
        let near = CHAIN_CLOSE_GROUPS * u64::from(self.config.geometry.group_len);
        peer.verified_bytes.saturating_add(on_its_way).saturating_add(near) >= ahead
    }

    /// Whether a member stays as far behind its upstream as it was, or closer, while that one gets little of what is before it. It could get on as fast
    /// as that one and no faster, or that one says each time that it has a little more than it gives.
    fn is_kept_behind(&self, id: PeerId, looked_lag: u64) -> bool {
        let Some(upstream) = self.chain.upstream(id) else { return false };
        let group = u64::from(self.config.geometry.group_len);
        let other = &self.peers[&upstream];
        let (ahead, before) = (other.verified_bytes, self.ahead_in_chain(upstream));
        let lag = ahead.saturating_sub(self.peers[&id].verified_bytes);
        !self.is_close(id, ahead)
            && lag <= looked_lag.saturating_add(CHAIN_CLOSE_GROUPS * group)
            && before >= ahead.saturating_add(CHAIN_AHEAD_GROUPS * group)
            && other.at_source.is_none()
            && !begins(other)
    }

    /// For how long a member may get nothing.
    pub(super) fn stall(&self, peer: &Peer) -> Duration {
        let doublings =
            if peer.is_at_source() { self.slow.places.heads_in_vain.min(HEAD_DOUBLINGS) } else { 0 };
        CHAIN_STALL * (1 << doublings)
    }

    /// One that gets nothing goes to the tail, so that it does not hold others. If it gets nothing there either, the one
    /// before it may be at fault: it fetches from the source for a while, which has everything.
    fn move_in_chain(&mut self, now: Time, id: PeerId) {
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        peer.verified_at = now;
        peer.moves = peer.moves.saturating_add(1);
        let upstream = peer.fetching.and_then(|fetching| fetching.upstream);
        let is_silent = now.since(peer.heard_at) >= SILENT;
        let may_try = !is_silent && now >= peer.at_source_next;
        let links = if upstream.is_none() {
            // One that is tried there has shown before that its own path may be slow.
            let is_head = peer.at_source.is_none();
            self.slow.places.heads_in_vain =
                self.slow.places.heads_in_vain.saturating_add(u32::from(is_head));
            self.chain.demote(id)
        } else if !is_silent && self.give_up_on(now, id, upstream) {
            return;
        } else {
            self.chain.demote(id)
        };
        if links.is_empty() && may_try {
            self.try_at_source(id, 0, false);
        }
        self.outputs.extend(links.into_iter().map(Output::Chain));
    }

    /// Looks for members that get little, and for what makes it so.
    pub(in super::super) fn look_at_chain(&mut self, now: Time) {
        if self.chain.is_empty() || now < self.slow.places.look_at {
            return;
        }
        self.slow.places.look_at = now + LOOK_INTERVAL;
        self.judge_swap(now);
        let members = self.chain.members().to_vec();
        // Those behind a member cannot get more than it: they say nothing of its upstream.
        let mut before: Vec<u64> = Vec::new();
        let mut findings = Vec::new();
        for id in &members {
            let usual = before.get(before.len() / 2).copied();
            findings.extend(self.find(now, *id, usual).map(|finding| (*id, finding)));
            if let Some(pace) = self.pace_in_chain(&self.peers[id]) {
                before.insert(before.partition_point(|other| *other < pace), pace);
            }
        }
        for (id, finding) in findings {
            self.act(now, id, finding);
        }
    }

    /// What is to be said of a member now, if half of those before it have got so many bytes a second.
    fn find(&self, now: Time, id: PeerId, usual: Option<u64>) -> Option<Finding> {
        let peer = &self.peers[&id];
        let fetching = peer.fetching.filter(|_| peer.service == Service::Chained)?;
        let span = now.since(fetching.looked_at);
        let got = peer.verified_bytes.saturating_sub(fetching.looked_bytes);
        let own = per_second(got, span);
        if peer.at_source.is_some() {
            return self.find_at_source(now, peer, &fetching);
        }
        if span < WINDOW {
            return None;
        }
        // One that is closer may come before its upstream, if that is what holds it.
        let is_behind = !self.is_close(id, self.ahead_of(id));
        if fetching.upstream.is_none() {
            let span = now.since(fetching.since);
            let own = per_second(peer.verified_bytes.saturating_sub(fetching.from_bytes), span);
            // What others did not give it before does not count.
            let is_told = is_behind && own > 0 && span >= WINDOW * u64::from(LITTLE_TIMES);
            return Some(if is_told { Finding::Own(own) } else { Finding::Anew(0, false) });
        }
        if is_behind && got == 0 {
            // It may not have reached its upstream yet, or reach it never: it says so, or stalls.
            return Some(Finding::Anew(fetching.little, fetching.kept));
        }
        let is_little = is_behind && usual.is_some_and(|usual| own.saturating_mul(2) <= usual);
        let is_kept = !is_little && self.is_kept_behind(id, fetching.looked_lag);
        // Each of the two has a number of its own: a host that pauses for a while gets little once.
        let goes_on = is_kept == fetching.kept;
        let little = match is_little || is_kept {
            true if goes_on => fetching.little.saturating_add(1),
            true => 1,
            false => 0,
        };
        let times = if is_kept { KEPT_TIMES } else { LITTLE_TIMES };
        let is_due = little >= times && now >= peer.at_source_next;
        Some(match (is_due, is_kept) {
            (false, _) => Finding::Anew(little, is_kept),
            (true, false) => Finding::Little(own),
            (true, true) if now >= self.slow.places.kept_at => Finding::Kept(own),
            (true, true) => Finding::Anew(little, true),
        })
    }

    /// The same of one that is tried at the source.
    fn find_at_source(&self, now: Time, peer: &Peer, fetching: &Fetching) -> Option<Finding> {
        if fetching.upstream.is_some() {
            // It is told only now.
            return None;
        }
        let is_late = now.since(fetching.since) >= SOURCE_WITHIN;
        if fetching.looked_bytes <= fetching.from_bytes {
            // Its time begins with the first that comes.
            return match peer.verified_bytes > fetching.from_bytes {
                true => Some(Finding::Anew(0, false)),
                false => is_late.then_some(Finding::Tried(0)),
            };
        }
        let span = now.since(fetching.looked_at);
        let got = peer.verified_bytes.saturating_sub(fetching.looked_bytes);
        (span >= WINDOW && (got > 0 || is_late)).then(|| Finding::Tried(per_second(got, span)))
    }

    fn act(&mut self, now: Time, id: PeerId, finding: Finding) {
        // What was done about another one may have changed what is to be done about this one.
        if self.peers[&id].service != Service::Chained {
            return;
        }
        let (own, beside) = match finding {
            Finding::Anew(little, kept) => return self.look_anew(now, id, (little, kept)),
            Finding::Little(given) => return self.try_at_source(id, given, false),
            Finding::Kept(given) => return self.try_at_source(id, given, true),
            Finding::Tried(own) => {
                let Some(trial) = self.end_at_source(now, id, own) else { return };
                // Where nothing has come the source may have had no time for it.
                if own == 0 {
                    return;
                }
                (own, trial.beside)
            }
            Finding::Own(own) => {
                self.look_anew(now, id, (0, false));
                (own, 0)
            }
        };
        self.name_in_chain(id, own, beside);
    }

    fn look_anew(&mut self, now: Time, id: PeerId, (little, kept): (u32, bool)) {
        let ahead = self.ahead_of(id);
        let peer = self.peers.get_mut(&id).expect("a member of the chain");
        let Some(fetching) = &mut peer.fetching else { return };
        let got = peer.verified_bytes.saturating_sub(fetching.looked_bytes);
        if fetching.upstream.is_none() && got >= HEAD_GROUPS * u64::from(self.config.geometry.group_len) {
            self.slow.places.heads_in_vain = 0;
        }
        (fetching.looked_at, fetching.looked_bytes, fetching.little) = (now, peer.verified_bytes, little);
        fetching.kept = kept;
        fetching.looked_lag = ahead.saturating_sub(peer.verified_bytes);
    }

    /// How many others fetch from the source.
    fn others_at_source(&self, id: PeerId) -> u64 {
        let others =
            self.chain.members().iter().filter(|other| **other != id).map(|other| &self.peers[other]);
        others.filter(|peer| peer.is_active() && peer.is_at_source()).count() as u64
    }

    /// What half of all others, or more, have got a second. Those that have no more than it, in all or of what came in the chain, do not show that
    /// it could have more: they may have come late, and have got what it had. A single one has to show that it has the object.
    fn usual_beside(&self, id: PeerId) -> Option<u64> {
        let in_chain = |peer: &Peer| self.got_in_chain(peer).map_or(0, |(got, _)| got);
        let own = &self.peers[&id];
        let (own_bytes, own_in_chain) = (own.verified_bytes, in_chain(own));
        let others =
            self.chain.members().iter().filter(|other| **other != id).map(|other| &self.peers[other]);
        if others.clone().count() == 1 && others.clone().any(|other| other.service != Service::Done) {
            return None;
        }
        let pace = |other: &Peer| match other.verified_bytes > own_bytes && in_chain(other) > own_in_chain {
            true => self.pace_in_chain(other).unwrap_or(0),
            false => 0,
        };
        let mut paces: Vec<u64> = others.map(pace).collect();
        paces.sort_unstable();
        paces.get(paces.len().checked_sub(1)? / 2).copied()
    }

    /// Names a member of the chain whose own path is slow. Several that fetch from the source share its path: it may have had as little as its
    /// share of what the others get alone.
    fn name_in_chain(&mut self, id: PeerId, own: u64, beside: u64) {
        let peer = &self.peers[&id];
        if peer.slower.is_some() || self.config.slow.patience().is_none() {
            return;
        }
        let beside = beside.max(self.others_at_source(id));
        let pace = self.pace_in_chain(peer).unwrap_or(0);
        // What others say of themselves may be too much: most of them have to say it.
        let Some(usual) = self.usual_beside(id) else { return };
        let is_slow = |own: u64| own.saturating_mul(2) <= usual;
        if !is_slow(own.saturating_mul(1 + beside)) || !is_slow(pace) {
            return;
        }
        let slower = Slower { own: Rate(own.saturating_mul(8)), others: Rate(usual.saturating_mul(8)) };
        self.peers.get_mut(&id).expect("looked up above").slower = Some(slower);
        if let SlowPolicy::Drop { .. } = self.config.slow {
            self.settle(id, Some(Why::Slow(slower)));
        }
    }

    /// One that gets little fetches from the source for a while. One that only stays behind its upstream does so if no other one does.
    fn try_at_source(&mut self, id: PeerId, given: u64, kept: bool) {
        let tried = self.peers.values().filter(|p| p.is_active() && p.at_source.is_some()).count();
        let most = if kept { 1 } else { AT_SOURCE_MAX };
        let Some(upstream) = self.chain.upstream(id).filter(|_| tried < most) else { return };
        let beside = self.others_at_source(id);
        let peer = self.peers.get_mut(&id).expect("a member of the chain");
        if peer.fetching.is_none_or(|fetching| fetching.upstream != Some(upstream)) {
            // Another one has come before it just now.
            return;
        }
        peer.at_source = Some(AtSource { given, upstream, beside, kept });
        self.outputs.push_back(Output::Chain(Link { peer: id, upstream: None }));
    }

    /// A member has fetched from the source for a while, and goes back into the chain. If it got far more there, its upstream comes behind all
    /// that are faster than what it gave. Gives the trial if it got no more.
    fn end_at_source(&mut self, now: Time, id: PeerId, own: u64) -> Option<AtSource> {
        let upstream = self.chain.upstream(id);
        let may = self.may_displace(now, id);
        let peer = self.peers.get_mut(&id).expect("a member of the chain");
        let trial = peer.at_source.take()?;
        let has_gained = own >= trial.given.saturating_mul(SOURCE_GAIN).max(1);
        if !has_gained {
            try_later(now, peer);
        } else {
            peer.chain_rate = peer.chain_rate.filter(|rate| *rate > trial.given);
            if upstream == Some(trial.upstream) && may {
                self.displace(now, id, trial.upstream, trial.given);
            } else if upstream == Some(trial.upstream) {
                self.stay_at_source(id);
            }
        }
        if trial.kept {
            self.keep_later(now, has_gained);
        }
        let upstream = self.chain.upstream(id);
        self.outputs.push_back(Output::Chain(Link { peer: id, upstream }));
        (!has_gained).then_some(trial)
    }

    /// When the next one that only stays behind its upstream may be tried.
    fn keep_later(&mut self, now: Time, has_gained: bool) {
        let places = &mut self.slow.places;
        places.kept_in_vain = if has_gained { 0 } else { places.kept_in_vain.saturating_add(1) };
        places.kept_at = now + KEPT_AGAIN * (1 << places.kept_in_vain.min(KEPT_DOUBLINGS));
    }

    /// A member comes behind all that are faster than this.
    fn put_behind(&mut self, id: PeerId, rate: u64) {
        self.peers.get_mut(&id).expect("a member of the chain").chain_rate = Some(rate);
        let links = self.chain.remove(id);
        self.outputs.extend(links.into_iter().map(Output::Chain));
        self.enter_chain(id);
    }

    /// It has all that its upstream has, which is far behind what comes before it.
    pub(super) fn pass_upstream(&mut self, now: Time, id: PeerId, upstream: PeerId) {
        self.judge_swap(now);
        if self.slow.places.swap.is_some() || now < self.slow.places.swap_at {
            return;
        }
        let other = &self.peers[&upstream];
        let gets = other.fetching.map_or(0, |fetching| {
            per_second(other.verified_bytes.saturating_sub(fetching.from_bytes), now.since(fetching.since))
        });
        let has = other.verified_bytes;
        let peer = self.peers.get_mut(&id).expect("looked up by the caller");
        let rate = rate_since(peer, peer.held_from);
        (peer.held_by_upstream, peer.held_from) = (Duration::ZERO, reported(peer));
        let (mut given, began) = (rate, begins(peer));
        if peer.verified_bytes > has {
            // It could get nothing from one that has less. That one may have come later, and get on well: better than this one, if that is slow, and
            // then it will soon have as much.
            let is_soon = gets.saturating_mul(CHAIN_REST.as_millis()) / 1_000 >= peer.verified_bytes - has;
            if is_soon && peer.chain_rate.is_some_and(|own| own < gets) {
                return;
            }
            given = given.max(gets);
        }
        self.slow.places.swap = Some(Swap {
            peer: id,
            since: now,
            verified_bytes: peer.verified_bytes,
            from: None,
            reported_at: peer.verified_at,
            pause: Duration::ZERO,
            rate,
            behind: upstream,
            given,
            began,
        });
        self.give_way(upstream, id, given);
    }

    /// A member comes behind the one that was behind it, and all others that are faster than this, but not behind those that lack more than what it gets
    /// in a second: it could get nothing from them.
    fn give_way(&mut self, id: PeerId, to: PeerId, rate: u64) {
        let group = u64::from(self.config.geometry.group_len);
        let ahead = rate.saturating_add(CHAIN_AHEAD_GROUPS * group);
        let has = self.peers[&id].verified_bytes;
        self.put_after(id, to, |other| {
            let is_slower = other.chain_rate.is_some_and(|other| other < rate);
            is_slower || other.verified_bytes.saturating_add(ahead) < has
        });
    }

    /// A member comes behind another one, before the first one there of which this is true.
    fn put_after(&mut self, id: PeerId, to: PeerId, is_next: impl Fn(&Peer) -> bool) {
        let links = self.chain.remove(id);
        self.outputs.extend(links.into_iter().map(Output::Chain));
        let mut behind = self.chain.members().iter().skip_while(|member| **member != to).skip(1);
        let next = behind.find(|member| is_next(&self.peers[member])).copied();
        let links = self.chain.insert(id, |member| Some(member) == next);
        self.outputs.extend(links.into_iter().map(Output::Chain));
    }

    /// A change of places has to prove itself: all of them may hang on one narrow path.
    fn judge_swap(&mut self, now: Time) {
        let Some(mut swap) = self.slow.places.swap.take() else { return };
        // If it has gone, that says nothing of any path.
        let Some(peer) = self.peers.get(&swap.peer) else { return };
        let has_gained = match peer.service {
            Service::Chained => has_brought(now, &mut swap, peer),
            Service::Done => Some(true),
            _ => return,
        };
        let places = &mut self.slow.places;
        match has_gained {
            None => places.swap = Some(swap),
            // Nothing had come from the other one before: all that comes is more, and says nothing of that one.
            Some(true) if swap.began => {}
            Some(true) => {
                places.swaps_in_vain = 0;
                // It could take more than that; how much more is not known.
                let peer = self.peers.get_mut(&swap.peer).expect("looked up above");
                peer.chain_rate = peer.chain_rate.filter(|own| *own > swap.given);
                if let Some(other) = self.peers.get_mut(&swap.behind) {
                    other.chain_rate = Some(swap.given);
                }
            }
            Some(false) => {
                places.swaps_in_vain += 1;
                places.swap_at = now + TRY_AGAIN * (1 << places.swaps_in_vain.min(TRY_DOUBLINGS));
                self.undo_swap(&swap);
            }
        }
    }

    /// If the one that has lost its place gets nothing where it is now, since what is before it has less, it comes before that. Its old place is
    /// not given back: all behind that would have to wait for what it lacks by now.
    fn undo_swap(&mut self, swap: &Swap) {
        let Some(other) = self.peers.get(&swap.behind) else { return };
        let (has, [last, before]) = (other.verified_bytes, other.gains);
        let group = u64::from(self.config.geometry.group_len);
        let near = last.max(before).saturating_mul(2).saturating_add(CHAIN_AHEAD_GROUPS * group);
        let starves = other.is_active() && has > self.ahead_of(swap.behind).saturating_add(near);
        let upstream = self.chain.upstream(swap.behind);
        if starves && upstream != Some(swap.peer) && self.chain.is_before(swap.peer, swap.behind) {
            self.put_after(swap.behind, swap.peer, |member| member.verified_bytes < has);
        }
    }

    /// Bytes that a member of the chain has verified since it came into it, as far as it has reported, and when that was. What it held when it
    /// joined has not come that way.
    fn got_in_chain(&self, peer: &Peer) -> Option<(u64, Time)> {
        let (since, from_bytes) = peer.chained?;
        Some((peer.verified_bytes.saturating_sub(from_bytes.max(self.bytes_of(peer.held_count))), since))
    }

    /// The same for a second.
    fn pace_in_chain(&self, peer: &Peer) -> Option<u64> {
        let (got, since) = self.got_in_chain(peer)?;
        Some(per_second(got, peer.verified_at.since(since).max(PACE_MIN)))
    }

    /// Where a receiver comes into the chain: before those that are slower, as far as that is known.
    pub(in super::super) fn enter_chain(&mut self, id: PeerId) {
        let own = self.peers[&id].chain_rate.unwrap_or(u64::MAX);
        let peers = &self.peers;
        let links = self.chain.insert(id, |member| peers[&member].chain_rate.is_some_and(|rate| rate < own));
        self.outputs.extend(links.into_iter().map(Output::Chain));
    }

    /// Bytes that a chain member could fetch where it fetches.
    pub(in super::super) fn ahead_of(&self, id: PeerId) -> u64 {
        if self.peers[&id].fetches_at_source() {
            return self.config.geometry.object_len;
        }
        self.ahead_in_chain(id)
    }

    /// Bytes that what is before a chain member has.
    fn ahead_in_chain(&self, id: PeerId) -> u64 {
        let upstream = self.chain.upstream(id);
        upstream.map_or(self.config.geometry.object_len, |upstream| self.peers[&upstream].verified_bytes)
    }
}

/// One to which nothing has come yet from where it fetches may still connect: if it cannot, it says so, or stalls.
fn begins(peer: &Peer) -> bool {
    peer.fetching.is_none_or(|fetching| peer.verified_bytes <= fetching.from_bytes)
}

/// What a member has reported last that was new, and when.
fn reported(peer: &Peer) -> (u64, Time) {
    (peer.verified_bytes, peer.verified_at)
}

/// Whether a member gets more since it has come before its upstream, if that can be told by now. What comes first may be the rest of what it got
/// before, and then a pause while it connects.
fn has_brought(now: Time, swap: &mut Swap, peer: &Peer) -> Option<bool> {
    if peer.verified_bytes > swap.verified_bytes && peer.verified_at > swap.reported_at {
        swap.pause = swap.pause.max(peer.verified_at.since(swap.reported_at));
        swap.reported_at = peer.verified_at;
        swap.from.get_or_insert(reported(peer));
    }
    let waited = now.since(swap.since);
    if let Some(from) = swap.from.filter(|from| peer.verified_at.since(from.1) >= CHAIN_HELD) {
        if rate_since(peer, from).saturating_mul(100) >= swap.rate.saturating_mul(GAIN) {
            return Some(true);
        }
        if waited >= swap.pause * SWAP_PAUSES {
            return Some(false);
        }
        swap.from = Some(reported(peer));
    }
    (waited >= SWAP_WITHIN).then_some(false)
}

/// Bytes a second that have come since a report. The time goes from report to report, since a few of them only may lie between.
fn rate_since(peer: &Peer, (bytes, at): (u64, Time)) -> u64 {
    match peer.verified_at.since(at) {
        Duration::ZERO => 0,
        span => per_second(peer.verified_bytes.saturating_sub(bytes), span),
    }
}

/// It got no more at the source.
fn try_later(now: Time, peer: &mut Peer) {
    peer.tried_in_vain = peer.tried_in_vain.saturating_add(1);
    peer.at_source_next = now + SOURCE_AGAIN * (1 << peer.tried_in_vain.min(TRY_DOUBLINGS));
}
