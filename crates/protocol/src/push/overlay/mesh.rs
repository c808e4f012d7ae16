//! Choice of the candidates that each receiver is given.
//!
//! Each member fetches from the one before it in four orders that a seed has drawn: a random graph in which
//! every member has four edges in and four out. Its diameter is the logarithm of the number of members, so a
//! thousand have their first group after five hops; and none serves more than another one, which would hold
//! back those that fetch from it. Members that come later get those, of a few drawn members, that fewest
//! fetch from. The first of the orders is the ring; a few members, spread round it, take what the source
//! gives.

use super::super::sender::PeerId;
use super::mix;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use polycast_wire::control::CANDIDATES_MAX;

/// So many members take what the source gives. Each has a connection to it: with fewer, one that is slow or
/// lies matters more; with more, the source has more to serve, and the first group takes longer to each of
/// them.
const TAKERS: usize = 8;
/// The candidates of a member are the best of so many that are drawn for each place.
const DRAWN: usize = 8;

/// Candidates of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// The member.
    pub peer: PeerId,
    /// Members that it may fetch from; none where it has lost all.
    pub from: Vec<PeerId>,
    /// Set if it also takes what the source gives away.
    pub takes: bool,
}

/// One member.
#[derive(Clone, Debug, Default)]
struct Member {
    from: Vec<PeerId>,
    /// Number of members that fetch from it.
    fed: usize,
    /// Members that it has lost for good: it gets none of them again.
    lost: BTreeSet<PeerId>,
    /// Members that were of no use to it once: it gets them once more, where there is no other.
    tried: BTreeSet<PeerId>,
}

/// The members and their candidates.
#[derive(Clone, Debug)]
pub struct Mesh {
    seed: u64,
    ring: Vec<PeerId>,
    members: BTreeMap<PeerId, Member>,
    takers: BTreeSet<PeerId>,
    draws: u64,
}

impl Mesh {
    /// A mesh without members, whose choices follow from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Mesh { seed, ring: Vec::new(), members: BTreeMap::new(), takers: BTreeSet::new(), draws: 0 }
    }

    /// Returns true if there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// All members.
    pub fn members(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.ring.iter().copied()
    }

    /// Returns true if `peer` is a member.
    #[must_use]
    pub fn contains(&self, peer: PeerId) -> bool {
        self.members.contains_key(&peer)
    }

    /// Returns true if this member takes what the source gives away.
    #[must_use]
    pub fn takes(&self, peer: PeerId) -> bool {
        self.takers.contains(&peer)
    }

    /// Takes members in, all at once or one that comes later; gives what each is told whose candidates have
    /// changed.
    pub fn join(&mut self, peers: impl IntoIterator<Item = PeerId>) -> Vec<Candidates> {
        let mut new: Vec<PeerId> = peers.into_iter().filter(|peer| !self.contains(*peer)).collect();
        new.sort_unstable_by_key(|peer| (mix(self.seed, u64::from(peer.0), 0), *peer));
        new.dedup();
        for peer in &new {
            self.ring.push(*peer);
            let taken = self.members.insert(*peer, Member::default());
            assert!(taken.is_none(), "{peer:?} is a member already");
        }
        let mut changed: BTreeSet<PeerId> = new.iter().copied().collect();
        changed.extend(self.fill_takers());
        if new.len() == self.ring.len() {
            self.link_all();
        }
        for peer in &new {
            self.fill(*peer);
        }
        // Those that came first had few to choose from.
        let few: Vec<PeerId> = self.ring.iter().copied().filter(|peer| self.has_few(*peer)).collect();
        changed.extend(few.into_iter().filter(|peer| self.fill(*peer)));
        changed.into_iter().map(|peer| self.told(peer)).collect()
    }

    /// Takes a member out; gives what those are told that it was a candidate of, and one that takes in its
    /// place.
    pub fn leave(&mut self, peer: PeerId) -> Vec<Candidates> {
        let Some(member) = self.members.remove(&peer) else { return Vec::new() };
        for other in member.from {
            self.members.get_mut(&other).expect("a candidate is a member").fed -= 1;
        }
        self.ring.retain(|other| *other != peer);
        self.takers.remove(&peer);
        let mut changed: BTreeSet<PeerId> = BTreeSet::new();
        for (id, other) in &mut self.members {
            other.lost.remove(&peer);
            other.tried.remove(&peer);
            if let Some(at) = other.from.iter().position(|from| *from == peer) {
                other.from.remove(at);
                changed.insert(*id);
            }
        }
        for id in &changed {
            self.fill(*id);
        }
        changed.extend(self.fill_takers());
        changed.into_iter().map(|id| self.told(id)).collect()
    }

    /// Replaces a candidate that was of no use to a member; one that may be again is given to it again where
    /// there is no other. A member that has lost all others for good is left without any.
    pub fn lose(&mut self, peer: PeerId, candidate: PeerId, for_good: bool) -> Option<Candidates> {
        let member = self.members.get_mut(&peer)?;
        let at = member.from.iter().position(|from| *from == candidate)?;
        member.from.remove(at);
        // One that says that it has everything, and gives nothing, would come again and again.
        let for_good = for_good || member.tried.contains(&candidate);
        let lost = if for_good { &mut member.lost } else { &mut member.tried };
        lost.insert(candidate);
        self.members.get_mut(&candidate).expect("a candidate is a member").fed -= 1;
        self.fill(peer);
        Some(self.told(peer))
    }

    /// Lets a member take what the source gives, as it lacks what it gets from none of the others. It is told
    /// of all its candidates again: one that took already may have lost its connection to the source.
    pub fn let_take(&mut self, peer: PeerId) -> Option<Candidates> {
        self.contains(peer).then(|| {
            self.takers.insert(peer);
            self.told(peer)
        })
    }

    /// Links members that have all come at once: each to the one before it in as many drawn orders as it has
    /// candidates. So as many fetch from each as it fetches from.
    fn link_all(&mut self) {
        let mut order = self.ring.clone();
        for turn in 0..CANDIDATES_MAX as u64 {
            for at in 0..order.len() {
                self.link(order[at], order[(at + order.len() - 1) % order.len()]);
            }
            order.sort_unstable_by_key(|peer| (mix(self.seed, u64::from(peer.0), turn + 1), *peer));
        }
    }

    /// Returns the candidates to send to a member.
    fn told(&self, peer: PeerId) -> Candidates {
        Candidates { peer, from: self.members[&peer].from.clone(), takes: self.takes(peer) }
    }

    fn has_few(&self, peer: PeerId) -> bool {
        self.members[&peer].from.len() < CANDIDATES_MAX.min(self.ring.len().saturating_sub(1))
    }

    /// Gives a member candidates until it has as many as there may be; gives whether it got any.
    fn fill(&mut self, peer: PeerId) -> bool {
        let before = self.members[&peer].from.len();
        if before == 0 && self.ring.len() > 1 {
            let at = self.ring.iter().position(|other| *other == peer).expect("a member stands in the ring");
            let previous = self.ring[(at + self.ring.len() - 1) % self.ring.len()];
            self.link(peer, previous);
        }
        while self.has_few(peer) {
            let Some(best) = self.draw(peer) else { break };
            self.link(peer, best);
        }
        self.members[&peer].from.len() > before
    }

    fn link(&mut self, peer: PeerId, candidate: PeerId) {
        if self.may_link(peer, candidate) {
            self.members.get_mut(&peer).expect("looked up by the caller").from.push(candidate);
            self.members.get_mut(&candidate).expect("it stands in the ring").fed += 1;
        }
    }

    fn may_link(&self, peer: PeerId, candidate: PeerId) -> bool {
        let member = &self.members[&peer];
        candidate != peer && !member.from.contains(&candidate) && !member.lost.contains(&candidate)
    }

    /// Draws a few members and returns the one that fewest fetch from. Where none of them is new to it, all
    /// are considered.
    fn draw(&mut self, peer: PeerId) -> Option<PeerId> {
        let len = self.ring.len() as u64;
        let mut drawn = Vec::with_capacity(DRAWN);
        for _ in 0..DRAWN {
            self.draws += 1;
            drawn.push(self.ring[(mix(self.seed, u64::from(peer.0), self.draws) % len) as usize]);
        }
        let tried = &self.members[&peer].tried;
        let best = |from: &[PeerId], again: bool| {
            let new = from.iter().copied().filter(|other| self.may_link(peer, *other));
            let order = |other: &PeerId| {
                (self.members[other].fed, mix(self.seed, u64::from(peer.0), u64::from(other.0)))
            };
            new.filter(|other| again || !tried.contains(other)).min_by_key(order)
        };
        best(&drawn, false).or_else(|| best(&self.ring, false)).or_else(|| best(&self.ring, true))
    }

    /// Chooses members that take until there are as many as there may be: those farthest from the others in
    /// the ring.
    fn fill_takers(&mut self) -> Vec<PeerId> {
        let mut new = Vec::new();
        let (len, want) = (self.ring.len(), TAKERS.min(self.ring.len()));
        for place in 0..want {
            // From each of so many places on the first one that is none yet.
            let around = (0..len).map(|at| self.ring[(place * len / want + at) % len]);
            let next = around.into_iter().find(|peer| !self.takers.contains(peer));
            if let Some(next) = next.filter(|_| self.takers.len() < want) {
                self.takers.insert(next);
                new.push(next);
            }
        }
        new
    }

    /// Checks what always holds.
    ///
    /// # Panics
    /// It does not hold.
    pub fn check(&self) {
        assert_eq!(self.ring.len(), self.members.len(), "each member stands in the ring once");
        let mut fed: BTreeMap<PeerId, usize> = BTreeMap::new();
        for (id, member) in &self.members {
            assert!(member.from.len() <= CANDIDATES_MAX, "{id:?} has too many candidates");
            let different: BTreeSet<PeerId> = member.from.iter().copied().collect();
            assert!(
                different.len() == member.from.len() && !different.contains(id),
                "{id:?} has one twice, or itself"
            );
            assert!(different.is_disjoint(&member.lost), "{id:?} has one that it has lost");
            for other in &member.from {
                assert!(self.contains(*other), "{other:?} is no member");
                *fed.entry(*other).or_default() += 1;
            }
        }
        let counted = self.members.iter().all(|(id, member)| fed.get(id).copied().unwrap_or(0) == member.fed);
        assert!(counted, "those that fetch are counted wrong");
        assert!(self.takers.iter().all(|peer| self.contains(*peer)), "one takes that is no member");
    }
}

#[cfg(test)]
mod tests;
