//! Choice of those among whom each member may fetch, by zones and racks.
//!
//! The bytes enter each rack by a few members, its heads, and each zone by the heads of one of its racks;
//! each group by one of them. The others of a rack fetch within it. Heads fetch from members of other racks
//! or zones, and share what they get from the one that the bytes come from: so each group leaves there once,
//! and enters each of the others once. In the zone and the rack of the source there are no heads: members
//! take from the source itself. A single member there stands apart: it gets all from the source, and none
//! fetches from it, as it would hold all others if it were slow. Without names of zones and racks, or with
//! the same everywhere, all members fetch from all.

use super::super::super::words::PeerId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use polycast_types::Location;
use polycast_wire::control::{CANDIDATES_MAX, Share};

/// So many of a head's candidates are in racks or zones that the bytes do not come from, where there are as
/// many: with one, a member that is slow holds the head of another rack.
const OTHERS_MAX: usize = 2;
/// A rack has so many heads, if it has as many members: a single one brings no more into it than its own path
/// carries, and gives it to as many as fetch from it.
pub(super) const HEADS_MAX: usize = 4;

/// Members among which another one has candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suppliers {
    /// The number of the circle.
    pub circle: usize,
    /// The number of the circle whose members it is not to fetch from: its own rack or zone.
    pub except: Option<usize>,
    /// Groups that it may request there.
    pub share: Share,
    /// Number of candidates that it has there at most.
    pub most: usize,
}

impl Suppliers {
    /// All members of a circle, and all groups.
    fn of_all(circle: usize) -> Self {
        Suppliers { circle, except: None, share: Share::ALL, most: CANDIDATES_MAX }
    }
}

/// A member, and what the choice of heads depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident<'a> {
    pub peer: PeerId,
    pub location: &'a Location,
    /// Number of times that it was of no use as a head, and one more for one that came late.
    pub demoted: u32,
}

/// Members among whom each other one fetches.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// Sets of members, in the order of the ring.
    pub circles: Vec<Vec<PeerId>>,
    members_of: Vec<BTreeSet<PeerId>>,
    suppliers: BTreeMap<PeerId, Vec<Suppliers>>,
    /// The circle of those that take what the source gives.
    pub takers: Option<usize>,
    /// The single member in the zone or the rack of the source.
    pub apart: Option<PeerId>,
    pub heads: BTreeSet<PeerId>,
    /// The location of all members, where they have one in common.
    common: Option<Location>,
    /// Members whose bytes come into their rack or zone by a head, and such heads.
    pub behind_heads: BTreeSet<PeerId>,
}

/// Part of the members with common names of some depth, and how the bytes come into it.
struct Domain<'a> {
    /// In the order of the ring.
    residents: Vec<Resident<'a>>,
    /// Number of names that they have in common.
    depth: usize,
    /// The members that bring the bytes; none where the source gives them.
    heads: Vec<PeerId>,
    /// Set if the source has the same names.
    is_home: bool,
}

/// A part with a head.
struct Part {
    heads: Vec<PeerId>,
    /// The circle of all its members.
    own: usize,
    /// The circle of those that others may fetch from.
    supply: usize,
}

impl Layout {
    /// Lays out members, in the order of the ring, whose source is at `home`.
    pub(super) fn new(residents: Vec<Resident<'_>>, home: &Location) -> Self {
        let mut layout = Layout::default();
        let first = residents.first().map(|resident| resident.location);
        let is_common = |first: &&Location| residents.iter().all(|resident| resident.location == *first);
        layout.common = first.filter(is_common).cloned();
        layout.build(home, Domain { residents, depth: 0, heads: Vec::new(), is_home: true });
        layout
    }

    /// Takes a member in that is where all others are, as the last one of the ring; false where the members
    /// are to be laid out anew.
    pub(super) fn join(&mut self, peer: PeerId, location: &Location) -> bool {
        if self.common.as_ref() != Some(location) {
            return false;
        }
        self.circles[0].push(peer);
        self.members_of[0].insert(peer);
        self.suppliers.insert(peer, vec![Suppliers::of_all(0)]);
        true
    }

    /// Takes a member out; false where the others are to be laid out anew.
    pub(super) fn leave(&mut self, peer: PeerId) -> bool {
        if self.common.is_none() {
            return false;
        }
        self.circles[0].retain(|other| *other != peer);
        self.members_of[0].remove(&peer);
        self.suppliers.remove(&peer);
        true
    }

    /// Returns the sets among which a member fetches.
    pub(super) fn suppliers(&self, peer: PeerId) -> &[Suppliers] {
        self.suppliers.get(&peer).map_or(&[], Vec::as_slice)
    }

    /// Returns the set of a member that each of its candidates counts in: the first one that has room for it;
    /// `None` for those that are too many, or are no candidates of its any more.
    pub(super) fn count_in_sets(&self, peer: PeerId, from: &[(PeerId, Share)]) -> Vec<Option<Suppliers>> {
        let sets = self.suppliers(peer);
        let mut counts = vec![0; sets.len()];
        let mut count_in = |candidate: PeerId| {
            let has_room = |at: &usize| counts[*at] < sets[*at].most && self.offers(sets[*at], candidate);
            let at = (0..sets.len()).find(has_room)?;
            counts[at] += 1;
            Some(sets[at])
        };
        from.iter().map(|(candidate, _)| count_in(*candidate)).collect()
    }

    /// Returns true if a set contains a candidate.
    pub(super) fn offers(&self, set: Suppliers, candidate: PeerId) -> bool {
        self.contains(set.circle, candidate) && !set.except.is_some_and(|own| self.contains(own, candidate))
    }

    /// Returns true if a circle contains a member.
    pub(super) fn contains(&self, circle: usize, peer: PeerId) -> bool {
        self.members_of[circle].contains(&peer)
    }

    /// Lays out a part; gives the circle of those from whom others outside may fetch.
    fn build(&mut self, home: &Location, domain: Domain<'_>) -> usize {
        let Domain { mut residents, depth, heads, is_home } = domain;
        let mut children: BTreeMap<&str, Vec<Resident<'_>>> = BTreeMap::new();
        if depth < home.names().len() {
            for resident in &residents {
                children.entry(resident.location.names()[depth]).or_default().push(*resident);
            }
        }
        let single = match children.get(home.names().get(depth).copied().unwrap_or_default()) {
            Some(at_home) if is_home && children.len() > 1 && at_home.len() == 1 => Some(at_home[0].peer),
            _ => None,
        };
        if let Some(single) = single {
            // Where it stands the bytes come from, and they are not to come back there.
            self.apart = Some(single);
            residents.retain(|resident| resident.peer != single);
            return self.build(home, Domain { residents, depth, heads, is_home: false });
        }
        if children.len() < 2 {
            let Some((name, residents)) = children.pop_first() else {
                return self.close_circle(&residents, &heads);
            };
            let is_home = is_home && home.names()[depth] == name;
            return self.build(home, Domain { residents, depth: depth + 1, heads, is_home });
        }
        let entry = entry_of(&children, heads.first().copied(), is_home.then(|| home.names()[depth]));
        let all: Vec<PeerId> = residents.iter().map(|resident| resident.peer).collect();
        let below = |residents, heads, is_home| Domain { residents, depth: depth + 1, heads, is_home };
        let Some((name, entry)) = entry else { return self.close_circle(&residents, &heads) };
        children.remove(name);
        let is_home = is_home && home.names()[depth] == name;
        let supply = self.build(home, below(entry, heads, is_home));
        let mut parts: Vec<Part> = Vec::new();
        for child in children.into_values() {
            let (heads, members) = (heads_of(&child), child.iter().map(|resident| resident.peer).collect());
            let own = self.add_circle(members);
            let supply = self.build(home, below(child, heads.clone(), false));
            parts.push(Part { heads, own, supply });
        }
        parts.sort_unstable_by_key(|part| all.iter().position(|peer| *peer == part.heads[0]));
        let heads: Vec<PeerId> = parts.iter().flat_map(|part| &part.heads).copied().collect();
        self.heads.extend(heads.iter().copied());
        // The uplink of the part that the bytes come from carries them once already.
        let is_outside = |peer: &PeerId| parts.iter().any(|part| self.contains(part.supply, *peer));
        let outside = all.iter().copied().filter(is_outside).collect();
        let outside = self.add_circle(outside);
        self.behind_heads.extend(heads);
        self.link_heads(&parts, outside, supply);
        outside
    }

    /// Heads fetch from the members of the others' parts, and their shares from where the bytes come from.
    /// One of them is in the part of the head before it: so what one has comes to all.
    fn link_heads(&mut self, parts: &[Part], outside: usize, supply: usize) {
        let count = u16::try_from(parts.len()).unwrap_or(u16::MAX);
        for (at, Part { heads, own, .. }) in parts.iter().enumerate() {
            let before = parts[(at + parts.len() - 1) % parts.len()].supply;
            let of = heads.len() as u16;
            for (turn, head) in heads.iter().enumerate() {
                let turn = turn as u16;
                // What the other heads of its own part bring goes round among them.
                let previous = heads[(usize::from(turn) + heads.len() - 1) % heads.len()];
                let circle = self.add_circle(vec![previous]);
                let inside = Suppliers { circle, except: None, share: Share::ALL, most: 1 };
                let inside = (heads.len() > 1).then_some(inside);
                let others = if parts.len() == 1 { 0 } else { OTHERS_MAX };
                let most = CANDIDATES_MAX - usize::from(inside.is_some()) - others;
                let from = |circle, share, most| Suppliers { circle, except: Some(*own), share, most };
                let own_share = Share::new(of, turn, count).expect("a turn of the heads");
                let at = (at % usize::from(count)) as u16;
                let share =
                    Share::new(count.saturating_mul(of), at.saturating_add(count.saturating_mul(turn)), 1);
                let from_supply = from(supply, share.unwrap_or(own_share), most);
                let from_others = [from(before, own_share, 1), from(outside, own_share, others.max(1) - 1)];
                let from_others = from_others.into_iter().take(others);
                self.suppliers
                    .insert(*head, [from_supply].into_iter().chain(from_others).chain(inside).collect());
            }
        }
    }

    /// All members of a part fetch from all of it; its heads fetch outside, and what the others of them
    /// bring.
    fn close_circle(&mut self, residents: &[Resident<'_>], heads: &[PeerId]) -> usize {
        let circle = self.add_circle(residents.iter().map(|resident| resident.peer).collect());
        let own = Suppliers::of_all(circle);
        for resident in residents {
            if !heads.contains(&resident.peer) {
                self.suppliers.insert(resident.peer, vec![own]);
            }
            if !heads.is_empty() {
                self.behind_heads.insert(resident.peer);
            }
        }
        if heads.is_empty() {
            self.takers = Some(circle);
        }
        circle
    }

    fn add_circle(&mut self, peers: Vec<PeerId>) -> usize {
        self.members_of.push(peers.iter().copied().collect());
        self.circles.push(peers);
        self.circles.len() - 1
    }
}

/// The part by which the bytes come: that of the heads, or of the source, or the largest one. It has more
/// than one member: a single one would hold all others if it were slow. `None` if no part has more.
fn entry_of<'a, 'b>(
    children: &BTreeMap<&'a str, Vec<Resident<'b>>>,
    head: Option<PeerId>,
    home: Option<&str>,
) -> Option<(&'a str, Vec<Resident<'b>>)> {
    let has_head = |residents: &[Resident<'_>]| residents.iter().any(|resident| Some(resident.peer) == head);
    let rank = |(name, residents): &(&&str, &Vec<Resident<'_>>)| {
        let len = residents.len();
        (has_head(residents), len > 1 && Some(**name) == home, len)
    };
    let may = |(_, residents): &(&&str, &Vec<Resident<'_>>)| head.is_some() || residents.len() > 1;
    // Of equals the first one.
    let best = children.iter().filter(may).rev().max_by_key(rank);
    best.map(|(name, residents)| (*name, residents.clone()))
}

/// The members that bring the bytes into a part, all of one rack: the first ones, of those that were of no
/// use most seldom. One that comes late would only begin with what the others have.
fn heads_of(residents: &[Resident<'_>]) -> Vec<PeerId> {
    let first = residents.iter().min_by_key(|resident| resident.demoted).expect("a part has members");
    let is_like = |other: &&Resident<'_>| (other.location, other.demoted) == (first.location, first.demoted);
    residents.iter().filter(is_like).take(HEADS_MAX).map(|resident| resident.peer).collect()
}
