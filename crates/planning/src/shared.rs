//! Lists of a plan, kept once however often the plan is copied: a manager has each plan in force at two
//! places, and hands it to devices and agents.

use crate::fabric_name::FabricName;
use crate::part::Part;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A list that is not changed; its copies are the same memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shared<T>(Arc<[T]>);

impl<T: Clone> Shared<T> {
    /// Changes this copy alone.
    pub fn change(&mut self, change: impl FnOnce(&mut Vec<T>)) {
        let mut all = self.0.to_vec();
        change(&mut all);
        self.0 = all.into();
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Shared(Arc::new([]))
    }
}

impl<T> Deref for Shared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> From<Vec<T>> for Shared<T> {
    fn from(all: Vec<T>) -> Self {
        Shared(all.into())
    }
}

impl<T> FromIterator<T> for Shared<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        Shared(all.into_iter().collect())
    }
}

impl<'a, T> IntoIterator for &'a Shared<T> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Shared::from)
    }
}

/// Parts that a plan uses, in rising order: the name of their fabric is there once, and not with each.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Uses(Shared<OfFabric>);

/// The parts of one fabric, in rising order.
#[derive(Clone, PartialEq, Eq)]
struct OfFabric {
    fabric: FabricName,
    nodes: alloc::boxed::Box<[u32]>,
    links: alloc::boxed::Box<[(u32, u32)]>,
}

impl Uses {
    /// The parts, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = Part> + '_ {
        let nodes = self.0.iter().flat_map(|OfFabric { fabric, nodes, .. }| {
            nodes.iter().map(|node| Part::Node { fabric: *fabric, node: *node })
        });
        let links = self.0.iter().flat_map(|OfFabric { fabric, links, .. }| {
            links.iter().map(|ends| Part::Link { fabric: *fabric, ends: *ends })
        });
        nodes.chain(links)
    }

    /// Returns true if a part is among them.
    #[must_use]
    pub fn contains(&self, part: &Part) -> bool {
        let of = |fabric: &FabricName| self.0.iter().find(|parts| parts.fabric == *fabric);
        match part {
            Part::Node { fabric, node } => {
                of(fabric).is_some_and(|parts| parts.nodes.binary_search(node).is_ok())
            }
            Part::Link { fabric, ends } => {
                of(fabric).is_some_and(|parts| parts.links.binary_search(ends).is_ok())
            }
        }
    }

    /// Returns true if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Part> for Uses {
    /// Takes them in any order, each once.
    fn from_iter<I: IntoIterator<Item = Part>>(parts: I) -> Self {
        let mut all: Vec<Part> = parts.into_iter().collect();
        all.sort_unstable_by_key(|part| (part.fabric(), *part));
        all.dedup();
        let of_one = |parts: &[Part]| {
            let nodes = parts.iter().filter_map(|part| match part {
                Part::Node { node, .. } => Some(*node),
                Part::Link { .. } => None,
            });
            let links = parts.iter().filter_map(|part| match part {
                Part::Link { ends, .. } => Some(*ends),
                Part::Node { .. } => None,
            });
            OfFabric { fabric: parts[0].fabric(), nodes: nodes.collect(), links: links.collect() }
        };
        Uses(all.chunk_by(|one, other| one.fabric() == other.fabric()).map(of_one).collect())
    }
}

impl fmt::Debug for Uses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Serialize for Uses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Uses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Part>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    fn part() -> impl Strategy<Value = Part> {
        let fabric = |second: bool| FabricName::new(if second { "other" } else { "one" });
        prop_oneof![
            (any::<bool>(), 0..9_u32).prop_map(move |(f, node)| Part::Node { fabric: fabric(f), node }),
            (any::<bool>(), 0..9_u32, 0..9_u32).prop_map(move |(f, a, b)| Part::link(fabric(f), a, b)),
        ]
    }

    proptest! {
        /// Parts that are kept close together are those that were put in, in their order.
        #[test]
        fn uses_are_a_set_of_parts(parts in proptest::collection::vec(part(), 0..40), asked in part()) {
            let set: BTreeSet<Part> = parts.iter().copied().collect();
            let uses: Uses = parts.into_iter().collect();
            prop_assert_eq!(uses.iter().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(uses.contains(&asked), set.contains(&asked));
            prop_assert_eq!(uses.is_empty(), set.is_empty());
            prop_assert_eq!(&set.into_iter().collect::<Uses>(), &uses);
        }
    }
}
