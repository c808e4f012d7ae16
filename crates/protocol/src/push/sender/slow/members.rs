//! Members of the mesh that are slower than the others.
//!
//! None of them holds another one: each fetches where it gets most. So in a while there comes to a member
//! what its own path takes, or as little as comes to all. One to which far less comes than to most others of
//! its rack, or than to most of all where it has no two others in its rack, several times in a row, is named.
//! It brings no more bytes into its rack.

use super::super::{PeerId, Sender, Service, SlowPolicy, Slower};
use crate::push::peer::{Peer, per_second};
use crate::session::Why;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use polycast_types::{Duration, Rate, Time};

/// Time between looks at what comes: ten reports, of which each is 50 ms after the one before.
const LOOK: Duration = Duration::from_millis(500);
/// One that gets less than half of what most get so many times in a row is slow. One that stands still for a
/// while gets little in two looks, at the beginning and at the end, and nothing between.
const LITTLE_TIMES: u32 = 3;
/// Shortest time that shows a pace: less shows little of it.
const PACE_MIN: Duration = Duration::from_millis(100);

/// Time when members are checked next, and their state at the last check.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    look_at: Time,
    seen: BTreeMap<PeerId, Seen>,
}

/// State of a member at a check.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Time,
    bytes: u64,
    /// So many times in a row it has got little.
    little: u32,
}

impl Sender {
    /// Names the members of the mesh to which far less comes than to most others.
    pub(super) fn check_members(&mut self, now: Time) {
        let is_due = now >= self.slow.members.look_at;
        if !is_due {
            return;
        }
        let paces = self.paces(now);
        let seen = &self.slow.members.seen;
        let little = |id: PeerId, own: u64| {
            let usual = usual_beside(&self.paces_beside(&paces, id), id)
                .filter(|usual| own > 0 && own.saturating_mul(2) <= *usual);
            usual.map(|usual| (seen.get(&id).map_or(0, |seen| seen.little) + 1, usual))
        };
        let mut now_seen = BTreeMap::new();
        let mut slow = Vec::new();
        for (&id, pace) in paces.iter().filter(|(_, pace)| !pace.is_done) {
            let (times, usual) = little(id, pace.bytes_per_s).unwrap_or_default();
            if times >= LITTLE_TIMES {
                slow.push((id, times, pace.bytes_per_s, usual));
            }
            now_seen.insert(id, Seen { at: now, bytes: self.peers[&id].has.verified_bytes, little: times });
        }
        self.slow.members = Members { look_at: now + LOOK, seen: now_seen };
        if self.config.slow.patience().is_none() {
            return;
        }
        for (id, times, own, usual) in slow {
            if times == LITTLE_TIMES {
                self.demote(id);
            }
            let slower = Slower { own: Rate(own.saturating_mul(8)), others: Rate(usual.saturating_mul(8)) };
            let slower =
                *self.peers.get_mut(&id).expect("looked up above").trials.slower.get_or_insert(slower);
            // It holds none of the others. Where slow ones are to be dropped it has the time that they have.
            if let SlowPolicy::Drop { after } = self.config.slow
                && LOOK * u64::from(times) >= after
            {
                self.settle(id, Some(Why::Slow(slower)));
            }
        }
    }

    /// Returns the paces of the members of one's rack; of all where it has no two others there.
    fn paces_beside(&self, paces: &BTreeMap<PeerId, Pace>, id: PeerId) -> BTreeMap<PeerId, Pace> {
        let location = &self.peers[&id].location;
        let is_near = |(other, _): &(&PeerId, &Pace)| self.peers[*other].location == *location;
        let near: BTreeMap<PeerId, Pace> =
            paces.iter().filter(is_near).map(|(id, pace)| (*id, *pace)).collect();
        if near.len() > 2 { near } else { paces.clone() }
    }

    /// Returns the pace of each member: of one that has all, on the whole; of one that comes just now,
    /// nothing is known.
    fn paces(&self, now: Time) -> BTreeMap<PeerId, Pace> {
        let pace = |id: PeerId| {
            let peer: &Peer = self.peers.get(&id)?;
            let is_done = peer.service == Service::Done;
            let bytes_per_s = match (is_done, self.slow.members.seen.get(&id)) {
                (true, _) => {
                    let (since, from) = peer.chained?;
                    let got =
                        peer.has.verified_bytes.saturating_sub(from.max(self.bytes_of(peer.has.held_count)));
                    per_second(got, peer.signs.verified_at.since(since).max(PACE_MIN))
                }
                (false, Some(seen)) => {
                    per_second(peer.has.verified_bytes.saturating_sub(seen.bytes), now.since(seen.at))
                }
                (false, None) => 0,
            };
            Some((id, Pace { bytes_per_s, is_done }))
        };
        self.mesh.members().filter_map(pace).collect()
    }
}

/// Pace at which bytes come to a member.
#[derive(Clone, Copy, Debug)]
struct Pace {
    bytes_per_s: u64,
    is_done: bool,
}

/// Returns the pace that half of all others have, or more. A single other one has to show that it has the
/// object.
fn usual_beside(paces: &BTreeMap<PeerId, Pace>, id: PeerId) -> Option<u64> {
    let others = paces.iter().filter(|(other, _)| **other != id);
    let mut others: Vec<(u64, bool)> = others.map(|(_, pace)| (pace.bytes_per_s, pace.is_done)).collect();
    others.sort_unstable();
    let (usual, is_done) = *others.get(others.len().checked_sub(1)? / 2)?;
    (others.len() > 1 || is_done).then_some(usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paces(of: &[(u64, bool)]) -> BTreeMap<PeerId, Pace> {
        let pace = |(at, (bytes_per_s, is_done)): (usize, &(u64, bool))| {
            (PeerId(at as u32), Pace { bytes_per_s: *bytes_per_s, is_done: *is_done })
        };
        of.iter().enumerate().map(pace).collect()
    }

    #[test]
    fn most_others_have_to_get_more() {
        let usual = |of: &[(u64, bool)]| usual_beside(&paces(of), PeerId(0));
        assert_eq!(usual(&[(1, false)]), None, "it is alone");
        assert_eq!(usual(&[(1, false), (9, false)]), None, "the other one may say what it likes");
        assert_eq!(usual(&[(1, false), (9, true)]), Some(9));
        assert_eq!(usual(&[(1, false), (9, false), (2, false)]), Some(2), "one of two");
        assert_eq!(usual(&[(1, false), (9, false), (8, false), (0, false)]), Some(8));
    }
}
