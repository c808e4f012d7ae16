//! The order of the TCP chain: which receiver fetches from which.
//!
//! The source feeds the first member, each member the next. A member that fails or stops making progress
//! is taken out of the middle, so that those behind it get a new upstream, and a member that only
//! stopped goes to the tail. If it gets nothing there either, the fault may be that of those before it: the sender has it
//! fetch from the source, wherever it stands.

use super::sender::PeerId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Members in order, nearest to the source first.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    members: Vec<PeerId>,
    /// At which place each of them is: that is asked for each of them every two milliseconds.
    places: BTreeMap<PeerId, usize>,
}

/// `peer` is to fetch from `upstream`, or from the source where that is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The receiver that fetches.
    pub peer: PeerId,
    /// From whom.
    pub upstream: Option<PeerId>,
}

impl Chain {
    /// Whether no receiver is in the chain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Its members in order, nearest to the source first.
    #[must_use]
    pub fn members(&self) -> &[PeerId] {
        &self.members
    }

    /// From whom `peer` fetches; `None` where that is the source or `peer` is no member.
    #[must_use]
    pub fn upstream(&self, peer: PeerId) -> Option<PeerId> {
        let at = *self.places.get(&peer)?;
        at.checked_sub(1).map(|i| self.members[i])
    }

    /// Whether `peer` is in the chain.
    #[must_use]
    pub fn contains(&self, peer: PeerId) -> bool {
        self.places.contains_key(&peer)
    }

    /// Whether both are in the chain, and `one` is nearer to the source.
    #[must_use]
    pub fn is_before(&self, one: PeerId, other: PeerId) -> bool {
        let place = |peer| self.places.get(&peer);
        place(one).zip(place(other)).is_some_and(|(one, other)| one < other)
    }

    /// Puts `peer` at the tail.
    pub fn append(&mut self, peer: PeerId) -> Link {
        assert!(!self.contains(peer), "{peer:?} is in the chain already");
        let upstream = self.members.last().copied();
        self.places.insert(peer, self.members.len());
        self.members.push(peer);
        Link { peer, upstream }
    }

    /// Puts `peer` before the first member that `is_slower`, or at the tail; gives the links that change.
    pub fn insert(&mut self, peer: PeerId, is_slower: impl Fn(PeerId) -> bool) -> Vec<Link> {
        assert!(!self.contains(peer), "{peer:?} is in the chain already");
        let at = self.members.iter().position(|member| is_slower(*member)).unwrap_or(self.members.len());
        self.members.insert(at, peer);
        self.count_from(at);
        let own = Link { peer, upstream: at.checked_sub(1).map(|i| self.members[i]) };
        let behind = self.members.get(at + 1).map(|next| Link { peer: *next, upstream: Some(peer) });
        core::iter::once(own).chain(behind).collect()
    }

    /// Takes `peer` out; the member behind it gets a new upstream.
    pub fn remove(&mut self, peer: PeerId) -> Option<Link> {
        let at = self.places.remove(&peer)?;
        self.members.remove(at);
        self.count_from(at);
        let next = *self.members.get(at)?;
        Some(Link { peer: next, upstream: at.checked_sub(1).map(|i| self.members[i]) })
    }

    /// From this place on others stand there.
    fn count_from(&mut self, at: usize) {
        self.places.extend(self.members.iter().copied().zip(0..).skip(at));
    }

    /// Moves `peer` to the tail; gives the links that change. Nothing changes where it is the tail already.
    pub fn demote(&mut self, peer: PeerId) -> Vec<Link> {
        if self.members.last() == Some(&peer) || !self.contains(peer) {
            return Vec::new();
        }
        let mut links: Vec<Link> = self.remove(peer).into_iter().collect();
        links.push(self.append(peer));
        links
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const fn link(peer: u32, upstream: Option<u32>) -> Link {
        Link {
            peer: PeerId(peer),
            upstream: match upstream {
                Some(u) => Some(PeerId(u)),
                None => None,
            },
        }
    }

    #[test]
    fn a_member_that_fails_is_bridged() {
        let mut chain = Chain::default();
        assert_eq!(chain.append(PeerId(1)), link(1, None));
        assert_eq!(chain.append(PeerId(2)), link(2, Some(1)));
        assert_eq!(chain.append(PeerId(3)), link(3, Some(2)));
        assert_eq!(chain.remove(PeerId(2)), Some(link(3, Some(1))));
        assert_eq!(chain.remove(PeerId(3)), None);
        assert_eq!(chain.remove(PeerId(1)), None);
    }

    #[test]
    fn a_member_that_stops_goes_to_the_tail() {
        let mut chain = Chain::default();
        for peer in 1..=3 {
            chain.append(PeerId(peer));
        }
        assert_eq!(chain.demote(PeerId(1)), vec![link(2, None), link(1, Some(3))]);
        assert_eq!(chain.demote(PeerId(1)), vec![]);
    }

    proptest! {
        /// The links handed out always describe one chain from the source through all members.
        #[test]
        fn links_always_form_one_chain(steps in proptest::collection::vec((0u32..8, 0u8..4), 0..60)) {
            let mut chain = Chain::default();
            let mut links = BTreeMap::new();
            for (peer, action) in steps {
                let peer = PeerId(peer);
                let changed = match action {
                    0 if !chain.contains(peer) => vec![chain.append(peer)],
                    1 => {
                        links.remove(&peer);
                        chain.remove(peer).into_iter().collect()
                    }
                    2 if !chain.contains(peer) => chain.insert(peer, |member| member.0 % 3 == 0),
                    _ => chain.demote(peer),
                };
                links.extend(changed.into_iter().map(|l| (l.peer, l.upstream)));
                let mut seen = 0;
                let mut at = None;
                while let Some((next, _)) = links.iter().find(|(_, up)| **up == at) {
                    seen += 1;
                    at = Some(*next);
                    prop_assert!(seen <= links.len());
                }
                prop_assert_eq!(seen, links.len());
                for (peer, upstream) in &links {
                    prop_assert!(chain.contains(*peer));
                    prop_assert_eq!(chain.upstream(*peer), *upstream);
                }
                prop_assert_eq!(chain.is_empty(), links.is_empty());
                let strangers = (0..9).map(PeerId).filter(|peer| !links.contains_key(peer));
                prop_assert!(strangers.into_iter().all(|peer| chain.upstream(peer).is_none()));
            }
        }
    }
}
