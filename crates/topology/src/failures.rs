//! Failed nodes and links: an overlay of two bit sets beside a topology.

use alloc::vec;
use alloc::vec::Vec;

use crate::graph::{Graph, Link, Node};

/// A set of small dense numbers, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BitSet {
    words: Vec<u64>,
    count: u32,
}

impl BitSet {
    /// An empty set with room for the numbers below `size`.
    #[must_use]
    pub fn with_size(size: u32) -> Self {
        BitSet { words: vec![0; (size as usize).div_ceil(64)], count: 0 }
    }

    /// Adds `value`, growing the set where needed; true if it was not there.
    pub fn insert(&mut self, value: u32) -> bool {
        let word = value as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] >> (value % 64) & 1 == 0;
        self.words[word] |= 1 << (value % 64);
        self.count += u32::from(new);
        new
    }

    /// Takes `value` out; true if it was there.
    pub fn remove(&mut self, value: u32) -> bool {
        let was = self.contains(value);
        if was {
            self.words[value as usize / 64] &= !(1 << (value % 64));
            self.count -= 1;
        }
        was
    }

    /// Returns true if `value` is in the set.
    #[must_use]
    #[inline]
    pub fn contains(&self, value: u32) -> bool {
        self.words.get(value as usize / 64).is_some_and(|word| word >> (value % 64) & 1 == 1)
    }

    /// Returns the number of values in the set.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The numbers in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            core::iter::successors((word != 0).then_some(word), |w| {
                let rest = w & (w - 1);
                (rest != 0).then_some(rest)
            })
            .map(move |w| index as u32 * 64 + w.trailing_zeros())
        })
    }

    /// Empties the set, keeping its room.
    pub fn clear(&mut self) {
        self.words.fill(0);
        self.count = 0;
    }
}

impl FromIterator<u32> for BitSet {
    fn from_iter<I: IntoIterator<Item = u32>>(values: I) -> Self {
        let mut set = BitSet::default();
        for value in values {
            set.insert(value);
        }
        set
    }
}

/// The failed nodes and links of a network.
///
/// A failed link carries nothing in either direction; a failed node takes all of its links with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    nodes: BitSet,
    links: BitSet,
}

impl Failures {
    /// Nothing has failed.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Marks a link as failed; true if it worked before.
    pub fn fail_link(&mut self, link: Link) -> bool {
        self.links.insert(link)
    }

    /// Marks a node as failed; true if it worked before.
    pub fn fail_node(&mut self, node: Node) -> bool {
        self.nodes.insert(node)
    }

    /// Marks a link as repaired; true if it had failed.
    pub fn repair_link(&mut self, link: Link) -> bool {
        self.links.remove(link)
    }

    /// Marks a node as repaired; true if it had failed.
    pub fn repair_node(&mut self, node: Node) -> bool {
        self.nodes.remove(node)
    }

    /// Returns true if nothing has failed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.links.is_empty()
    }

    /// The failed links themselves, in rising order.
    #[must_use]
    pub fn links(&self) -> &BitSet {
        &self.links
    }

    /// The failed nodes, in rising order.
    #[must_use]
    pub fn nodes(&self) -> &BitSet {
        &self.nodes
    }

    /// Returns true if this node has failed.
    #[must_use]
    pub fn node_failed(&self, node: Node) -> bool {
        self.nodes.contains(node)
    }

    /// Returns true if the link at `port` of `node` works: neither it nor one of its ends has failed.
    #[must_use]
    pub fn link_works<G: Graph + ?Sized>(&self, graph: &G, node: Node, port: u32) -> bool {
        !self.links.contains(graph.link(node, port))
            && !self.nodes.contains(node)
            && !self.nodes.contains(graph.neighbor(node, port))
    }

    /// Empties the overlay, keeping its room.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.links.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bit_set_agrees_with_an_ordered_set(steps in proptest::collection::vec((any::<bool>(), 0u32..300), 0..200)) {
            let mut set = BitSet::with_size(10);
            let mut model = BTreeSet::new();
            for (add, value) in steps {
                if add {
                    prop_assert_eq!(set.insert(value), model.insert(value));
                } else {
                    prop_assert_eq!(set.remove(value), model.remove(&value));
                }
                prop_assert_eq!(set.len() as usize, model.len());
            }
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
        }
    }
}
