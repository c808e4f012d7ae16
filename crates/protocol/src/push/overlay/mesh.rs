//! Choice of the candidates that each receiver is given.
//!
//! Each member fetches from the one before it in four orders that a seed has drawn: a random graph in which
//! every member has four edges in and four out. Its diameter is the logarithm of the number of members, so a
//! thousand have their first group after five hops; and none serves more than another one, which would hold
//! back those that fetch from it. Members that come later get those, of a few drawn members, that fewest
//! fetch from. The first of the orders is the ring; a few members, spread round it, take what the source
//! gives. Where members are in several racks or zones, [`layout`] says among whom each one fetches.

mod layout;

use super::super::words::PeerId;
use super::mix;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use layout::{Layout, Resident, Suppliers};
use polycast_types::Location;
use polycast_wire::control::{CANDIDATES_MAX, Share};

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
    /// Members that it may fetch from, and the groups that it may request there; none where it has lost all.
    pub from: Vec<(PeerId, Share)>,
    /// Set if it also takes what the source gives away.
    pub takes: bool,
    /// Set if the source gives it all groups, beside what it gives to the others: none fetches from it.
    pub is_apart: bool,
    /// Set if the bytes come into its rack or its zone by one member, in no order.
    pub is_behind_head: bool,
}

/// One member.
#[derive(Clone, Debug, Default)]
struct Member {
    location: Location,
    from: Vec<(PeerId, Share)>,
    /// Number of members that fetch from it.
    fed: usize,
    /// Members that it has lost for good: it gets none of them again.
    lost: BTreeSet<PeerId>,
    /// Members that were of no use to it once: it gets them once more, where there is no other.
    tried: BTreeSet<PeerId>,
    /// Number of times that its rack or zone has got another head in its place, and one more where it came
    /// late.
    demoted: u32,
}

impl Member {
    fn has(&self, candidate: PeerId) -> bool {
        self.from.iter().any(|(from, _)| *from == candidate)
    }
}

/// The members and their candidates.
#[derive(Clone, Debug)]
pub struct Mesh {
    seed: u64,
    /// Zone and rack of the source.
    home: Location,
    ring: Vec<PeerId>,
    members: BTreeMap<PeerId, Member>,
    layout: Layout,
    takers: BTreeSet<PeerId>,
    /// Takers that came to take since they lacked something.
    let_in: BTreeSet<PeerId>,
    draws: u64,
}

impl Mesh {
    /// A mesh without members, of a source at `home`, whose choices follow from the seed.
    #[must_use]
    pub fn new(seed: u64, home: Location) -> Self {
        Mesh {
            seed,
            home,
            ring: Vec::new(),
            members: BTreeMap::new(),
            layout: Layout::default(),
            takers: BTreeSet::new(),
            let_in: BTreeSet::new(),
            draws: 0,
        }
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
        self.takers.contains(&peer) || self.layout.apart == Some(peer)
    }

    /// Takes members in, all at once or one that comes later; gives what each is told whose candidates have
    /// changed.
    pub fn join(&mut self, peers: impl IntoIterator<Item = (PeerId, Location)>) -> Vec<Candidates> {
        let new: BTreeMap<PeerId, Location> =
            peers.into_iter().filter(|(peer, _)| !self.contains(*peer)).collect();
        let mut order: Vec<PeerId> = new.keys().copied().collect();
        order.sort_unstable_by_key(|peer| (mix(self.seed, u64::from(peer.0), 0), *peer));
        self.ring.extend(order.iter().copied());
        let demoted = u32::from(new.len() < self.ring.len());
        let fits = !self.layout.circles.is_empty();
        let fits = fits && order.iter().all(|peer| self.layout.join(*peer, &new[peer]));
        self.members.extend(new.into_iter().map(|(peer, location)| {
            let member = Member { location, demoted, ..Member::default() };
            (peer, member)
        }));
        let mut changed: BTreeSet<PeerId> = order.iter().copied().collect();
        changed.extend(if fits { self.fill_takers().into_iter().collect() } else { self.lay_out() });
        if order.len() == self.ring.len() {
            self.link_all();
        }
        for peer in &order {
            self.fill(*peer);
        }
        changed.extend(self.fill_all());
        changed.into_iter().map(|peer| self.told(peer)).collect()
    }

    /// Takes a member out; gives what those are told that it was a candidate of, and one that takes in its
    /// place.
    pub fn leave(&mut self, peer: PeerId) -> Vec<Candidates> {
        let Some(member) = self.members.remove(&peer) else { return Vec::new() };
        for (other, _) in member.from {
            self.members.get_mut(&other).expect("a candidate is a member").fed -= 1;
        }
        self.ring.retain(|other| *other != peer);
        self.takers.remove(&peer);
        self.let_in.remove(&peer);
        let mut changed: BTreeSet<PeerId> = BTreeSet::new();
        for (id, other) in &mut self.members {
            other.lost.remove(&peer);
            other.tried.remove(&peer);
            if let Some(at) = other.from.iter().position(|(from, _)| *from == peer) {
                other.from.remove(at);
                changed.insert(*id);
            }
        }
        let fits = self.layout.leave(peer);
        changed.extend(if fits { self.fill_takers().into_iter().collect() } else { self.lay_out() });
        for id in changed.clone() {
            self.fill(id);
        }
        changed.into_iter().map(|id| self.told(id)).collect()
    }

    /// Gives the rack and the zone of a member another head in its place, if it is one and there is another;
    /// gives what those are told whose candidates have changed.
    pub fn demote(&mut self, peer: PeerId) -> Vec<Candidates> {
        if !self.layout.heads.contains(&peer) {
            return Vec::new();
        }
        let member = self.members.get_mut(&peer).expect("a head is a member");
        member.demoted = member.demoted.saturating_add(1);
        let mut changed = self.lay_out();
        changed.extend(self.fill_all());
        changed.into_iter().map(|id| self.told(id)).collect()
    }

    /// Replaces a candidate that was of no use to a member; one that may be again is given to it again where
    /// there is no other. A member that has lost all others for good is left without any.
    pub fn lose(&mut self, peer: PeerId, candidate: PeerId, for_good: bool) -> Vec<Candidates> {
        let Some(member) = self.members.get_mut(&peer) else { return Vec::new() };
        let at = member.from.iter().position(|(from, _)| *from == candidate);
        let Some(at) = at else { return Vec::new() };
        member.from.remove(at);
        // One that says that it has everything, and gives nothing, would come again and again.
        let for_good = for_good || member.tried.contains(&candidate);
        let lost = if for_good { &mut member.lost } else { &mut member.tried };
        lost.insert(candidate);
        self.members.get_mut(&candidate).expect("a candidate is a member").fed -= 1;
        self.fill(peer);
        let mut told = BTreeMap::from([(peer, self.told(peer))]);
        if for_good && self.layout.heads.contains(&candidate) && self.are_neighbours(peer, candidate) {
            told.extend(self.demote(candidate).into_iter().map(|told| (told.peer, told)));
        }
        told.into_values().collect()
    }

    fn are_neighbours(&self, peer: PeerId, other: PeerId) -> bool {
        self.members[&peer].location == self.members[&other].location
    }

    /// Lets a member take what the source gives, as it lacks what it gets from none of the others. It is told
    /// of all its candidates again: one that took already may have lost its connection to the source.
    pub fn let_take(&mut self, peer: PeerId) -> Option<Candidates> {
        self.contains(peer).then(|| {
            self.takers.insert(peer);
            self.let_in.insert(peer);
            self.told(peer)
        })
    }

    /// Lays the members out anew. Candidates that are none any more go, and so do takers that are not to
    /// take; gives those whose candidates have changed.
    fn lay_out(&mut self) -> BTreeSet<PeerId> {
        let resident = |peer: &PeerId| {
            let member = &self.members[peer];
            Resident { peer: *peer, location: &member.location, demoted: member.demoted }
        };
        let layout = Layout::new(self.ring.iter().map(resident).collect(), &self.home);
        let before = core::mem::replace(&mut self.layout, layout);
        let apart = [before.apart, self.layout.apart].into_iter().flatten();
        let mut changed: BTreeSet<PeerId> =
            apart.filter(|peer| before.apart != self.layout.apart && self.contains(*peer)).collect();
        for peer in &self.ring {
            let member = self.members.get_mut(peer).expect("it stands in the ring");
            let before = core::mem::take(&mut member.from);
            let sets = self.layout.count_in_sets(*peer, &before);
            let stays = before.iter().zip(sets).filter_map(|((from, _), set)| Some((*from, set?.share)));
            member.from = stays.collect();
            if member.from != before {
                changed.insert(*peer);
            }
            let gone: Vec<PeerId> = before.iter().map(|(from, _)| *from).collect();
            let gone = gone.into_iter().filter(|from| !self.members[peer].has(*from)).collect::<Vec<_>>();
            for candidate in gone {
                self.members.get_mut(&candidate).expect("a candidate is a member").fed -= 1;
            }
        }
        let takes = |peer: &PeerId| {
            self.let_in.contains(peer) || self.layout.takers.is_some_and(|at| self.layout.contains(at, *peer))
        };
        let gone: Vec<PeerId> = self.takers.iter().copied().filter(|peer| !takes(peer)).collect();
        for peer in gone {
            self.takers.remove(&peer);
            changed.insert(peer);
        }
        changed.extend(self.fill_takers());
        changed
    }

    /// Links members that have all come at once: each to the one before it in as many drawn orders as it has
    /// candidates among its like. So as many fetch from each as it fetches from.
    fn link_all(&mut self) {
        for circle in 0..self.layout.circles.len() {
            let mut order = self.layout.circles[circle].clone();
            for turn in 0..CANDIDATES_MAX {
                for at in 0..order.len() {
                    let (peer, previous) = (order[at], order[(at + order.len() - 1) % order.len()]);
                    let own = self.layout.suppliers(peer).iter().find(|set| set.circle == circle).copied();
                    if let Some(set) = own.filter(|set| set.except.is_none() && turn < set.most) {
                        self.link(peer, set, previous);
                    }
                }
                order
                    .sort_unstable_by_key(|peer| (mix(self.seed, u64::from(peer.0), turn as u64 + 1), *peer));
            }
        }
    }

    /// Returns the candidates to send to a member.
    fn told(&self, peer: PeerId) -> Candidates {
        Candidates {
            peer,
            from: self.members[&peer].from.clone(),
            takes: self.takes(peer),
            is_apart: self.layout.apart == Some(peer),
            is_behind_head: self.layout.behind_heads.contains(&peer),
        }
    }

    /// Returns true if a member may have more candidates in a set of others.
    fn has_few(&self, peer: PeerId, set: Suppliers) -> bool {
        let member = &self.members[&peer];
        if member.from.len() >= CANDIDATES_MAX {
            return false;
        }
        let sets = self.layout.count_in_sets(peer, &member.from);
        let count = sets.into_iter().filter(|own| *own == Some(set)).count();
        let mut others = self.layout.circles[set.circle].iter();
        count < set.most && others.any(|other| self.may_link(peer, set, *other))
    }

    /// Gives candidates to all members that may have more; gives those that got any.
    fn fill_all(&mut self) -> Vec<PeerId> {
        let has_few =
            |peer: &PeerId| self.layout.suppliers(*peer).iter().any(|set| self.has_few(*peer, *set));
        let few: Vec<PeerId> = self.ring.iter().copied().filter(has_few).collect();
        few.into_iter().filter(|peer| self.fill(*peer)).collect()
    }

    /// Gives a member candidates until it has as many as there may be; gives whether it got any.
    fn fill(&mut self, peer: PeerId) -> bool {
        let before = self.members[&peer].from.len();
        for set in self.layout.suppliers(peer).to_vec() {
            let circle = &self.layout.circles[set.circle];
            let is_first = before == 0 && circle.len() > 1 && self.has_few(peer, set);
            if let Some(at) = circle.iter().position(|other| is_first && *other == peer) {
                self.link(peer, set, circle[(at + circle.len() - 1) % circle.len()]);
            }
            while self.has_few(peer, set) {
                let Some(best) = self.draw(peer, set) else { break };
                self.link(peer, set, best);
            }
        }
        self.members[&peer].from.len() > before
    }

    fn link(&mut self, peer: PeerId, set: Suppliers, candidate: PeerId) {
        if self.may_link(peer, set, candidate) {
            let member = self.members.get_mut(&peer).expect("looked up by the caller");
            member.from.push((candidate, set.share));
            self.members.get_mut(&candidate).expect("it stands in the ring").fed += 1;
        }
    }

    fn may_link(&self, peer: PeerId, set: Suppliers, candidate: PeerId) -> bool {
        let member = &self.members[&peer];
        let is_offered = candidate != peer && self.layout.offers(set, candidate);
        is_offered && !member.has(candidate) && !member.lost.contains(&candidate)
    }

    /// Draws a few members of a set and returns the one that fewest fetch from. Where none of them is new to
    /// it, all are considered.
    fn draw(&mut self, peer: PeerId, set: Suppliers) -> Option<PeerId> {
        let circle = &self.layout.circles[set.circle];
        let len = circle.len() as u64;
        let mut drawn = Vec::with_capacity(DRAWN);
        for _ in 0..DRAWN {
            self.draws += 1;
            drawn.push(circle[(mix(self.seed, u64::from(peer.0), self.draws) % len) as usize]);
        }
        let tried = &self.members[&peer].tried;
        let best = |from: &[PeerId], again: bool| {
            let new = from.iter().copied().filter(|other| self.may_link(peer, set, *other));
            let order = |other: &PeerId| {
                // A head has all of its rack to bring the bytes to.
                let is_head = set.except.is_some() && self.layout.heads.contains(other);
                (is_head, self.members[other].fed, mix(self.seed, u64::from(peer.0), u64::from(other.0)))
            };
            new.filter(|other| again || !tried.contains(other)).min_by_key(order)
        };
        best(&drawn, false).or_else(|| best(circle, false)).or_else(|| best(circle, true))
    }

    /// Chooses members that take until there are as many as there may be: those farthest from the others in
    /// the ring.
    fn fill_takers(&mut self) -> Vec<PeerId> {
        let mut new = Vec::new();
        let Some(circle) = self.layout.takers.map(|at| &self.layout.circles[at]) else { return new };
        let (len, want) = (circle.len(), TAKERS.min(circle.len()));
        for place in 0..want {
            // From each of so many places on the first one that is none yet.
            let around = (0..len).map(|at| circle[(place * len / want + at) % len]);
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
            let different: BTreeSet<PeerId> = member.from.iter().map(|(from, _)| *from).collect();
            assert!(
                different.len() == member.from.len() && !different.contains(id),
                "{id:?} has one twice, or itself"
            );
            assert!(different.is_disjoint(&member.lost), "{id:?} has one that it has lost");
            let sets = self.layout.count_in_sets(*id, &member.from);
            for ((other, share), set) in member.from.iter().zip(sets) {
                assert!(self.contains(*other), "{other:?} is no member");
                let is_right = set.is_some_and(|set| set.share == *share);
                assert!(is_right, "{id:?} is not to fetch this share from {other:?}");
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
