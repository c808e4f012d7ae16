//! Topology p, k-Shufflecast: racks in k columns of p^k, each joined to p racks of the next column by one
//! passive splitter (Shufflecast, section III-A).
//!
//! ToR `i` has the column `i / p^k` and the row `i mod p^k`, read as k digits of base p, `[r_{k-1} .. r_0]`.
//! Its splitter feeds the p ToRs of the next column whose rows are its own row shifted left by one digit,
//! with any last digit. The most significant digit is the ToR's partition.

use alloc::vec::Vec;

use crate::error::{TopologyError, checked_nodes};

/// A Shufflecast of k p^k logical ToRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shufflecast {
    fanout: u32,
    columns: u32,
    rows: u32,
}

impl Shufflecast {
    /// Creates a p, k-Shufflecast with 1:p splitters and k columns.
    ///
    /// # Errors
    /// If p < 2, k < 1 or the network is too large.
    pub fn new(fanout: u32, columns: u32) -> Result<Self, TopologyError> {
        let network = "Shufflecast";
        let size =
            |what, value: u32, range| TopologyError::Size { network, what, value: value.into(), range };
        if fanout < 2 {
            return Err(size("p", fanout, "p of at least 2 outputs a splitter"));
        }
        if columns < 1 {
            return Err(size("k", columns, "k of at least 1 column"));
        }
        let rows = u64::from(fanout).checked_pow(columns);
        checked_nodes(network, rows.and_then(|rows| rows.checked_mul(columns.into())))?;
        Ok(Shufflecast { fanout, columns, rows: fanout.pow(columns) })
    }

    /// Returns the number of outputs of a splitter (p).
    #[must_use]
    pub fn fanout(&self) -> u32 {
        self.fanout
    }

    /// Returns the number of columns (k).
    #[must_use]
    pub fn columns(&self) -> u32 {
        self.columns
    }

    /// Returns the number of ToRs in a column (p^k).
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the number of ToRs in a partition (p^(k-1)).
    #[must_use]
    pub fn partition_size(&self) -> u32 {
        self.rows / self.fanout
    }

    /// Returns the number of all ToRs (k p^k).
    #[must_use]
    pub fn tors(&self) -> u32 {
        self.columns * self.rows
    }

    /// A ToR's column.
    #[must_use]
    #[inline]
    pub fn column(&self, tor: u32) -> u32 {
        tor / self.rows
    }

    /// A ToR's row.
    #[must_use]
    #[inline]
    pub fn row(&self, tor: u32) -> u32 {
        tor % self.rows
    }

    /// The ToR of a column and a row.
    #[must_use]
    #[inline]
    pub fn tor(&self, column: u32, row: u32) -> u32 {
        column * self.rows + row
    }

    /// Digit `place` of a row; place 0 is the least significant.
    #[must_use]
    #[inline]
    pub fn digit(&self, row: u32, place: u32) -> u32 {
        row / self.fanout.pow(place) % self.fanout
    }

    /// A ToR's partition: the most significant digit of its row.
    #[must_use]
    pub fn partition(&self, tor: u32) -> u32 {
        self.row(tor) / self.partition_size()
    }

    /// The first of the p ToRs that a ToR's splitter feeds; the others follow it.
    #[must_use]
    #[inline]
    pub fn first_child(&self, tor: u32) -> u32 {
        let column = (self.column(tor) + 1) % self.columns;
        self.tor(column, self.row(tor) % self.partition_size() * self.fanout)
    }

    /// The ToRs that a ToR's splitter feeds.
    #[must_use]
    #[inline]
    pub fn children(&self, tor: u32) -> core::ops::Range<u32> {
        let first = self.first_child(tor);
        first..first + self.fanout
    }

    /// The ToR of partition `partition` whose splitter feeds `tor`.
    #[must_use]
    #[inline]
    pub fn parent(&self, tor: u32, partition: u32) -> u32 {
        let column = (self.column(tor) + self.columns - 1) % self.columns;
        self.tor(column, partition * self.partition_size() + self.row(tor) / self.fanout)
    }

    /// The mirrored relays of a ToR, itself included: they feed the same ToRs, one from each partition.
    pub fn mirrors(&self, tor: u32) -> impl Iterator<Item = u32> + use<> {
        let (this, place) = (*self, self.row(tor) % self.partition_size());
        let column = self.column(tor);
        (0..self.fanout).map(move |partition| this.tor(column, partition * this.partition_size() + place))
    }

    /// The Shufflecast with the fewest columns, and then the smallest fanout up to `fanout_max`, that has
    /// exactly `tors` ToRs (Shufflecast, section VI-A).
    #[must_use]
    pub fn exactly(tors: u32, fanout_max: u32) -> Option<Self> {
        (2..32).find_map(|columns| {
            (2..=fanout_max)
                .filter_map(|fanout| Shufflecast::new(fanout, columns).ok())
                .find(|shufflecast| shufflecast.tors() == tors)
        })
    }

    /// The Shufflecast with the fewest ToRs that has at least `tors`, of fanout up to `fanout_max`.
    #[must_use]
    pub fn at_least(tors: u32, fanout_max: u32) -> Option<Self> {
        (2..=fanout_max)
            .flat_map(|fanout| (2..24).filter_map(move |columns| Shufflecast::new(fanout, columns).ok()))
            .filter(|shufflecast| shufflecast.tors() >= tors)
            .min_by_key(|shufflecast| (shufflecast.tors(), shufflecast.columns))
    }
}

/// A Shufflecast among any number of physical ToRs: some stand for several logical ones, with a splitter
/// for each (Shufflecast, section III-A1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wiring {
    logical: Shufflecast,
    tors: u32,
}

impl Wiring {
    /// Wires `tors` physical ToRs as this Shufflecast.
    ///
    /// # Errors
    /// If there are no ToRs, or more than the Shufflecast has.
    pub fn new(logical: Shufflecast, tors: u32) -> Result<Self, TopologyError> {
        if tors == 0 || tors > logical.tors() {
            return Err(TopologyError::Size {
                network: "Shufflecast",
                what: "ToRs",
                value: tors.into(),
                range: "from 1 to k p^k of them",
            });
        }
        Ok(Wiring { logical, tors })
    }

    /// The smallest wiring for `tors` ToRs with splitters of `fanout` outputs.
    ///
    /// # Errors
    /// If no such Shufflecast can be built.
    pub fn smallest(tors: u32, fanout: u32) -> Result<Self, TopologyError> {
        let mut columns = 1;
        loop {
            let logical = Shufflecast::new(fanout, columns)?;
            if logical.tors() >= tors {
                return Wiring::new(logical, tors);
            }
            columns += 1;
        }
    }

    /// The logical network.
    #[must_use]
    pub fn logical(&self) -> Shufflecast {
        self.logical
    }

    /// Returns the number of physical ToRs.
    #[must_use]
    pub fn tors(&self) -> u32 {
        self.tors
    }

    /// The physical ToR that stands for a logical one.
    #[must_use]
    pub fn physical(&self, logical: u32) -> u32 {
        logical % self.tors
    }

    /// The logical ToRs that a physical one stands for: as many as it has splitters.
    #[must_use]
    pub fn logical_of(&self, physical: u32) -> Vec<u32> {
        let end = if physical < self.tors { self.logical.tors() } else { physical };
        (physical..end).step_by(self.tors as usize).collect()
    }

    /// Returns the index of a logical ToR among those of its physical ToR.
    #[must_use]
    pub fn nth(&self, logical: u32) -> u32 {
        logical / self.tors
    }

    /// The logical ToR that a ToR's `nth` splitter belongs to.
    #[must_use]
    pub fn logical_at(&self, physical: u32, nth: u32) -> Option<u32> {
        let logical = nth.checked_mul(self.tors)?.checked_add(physical)?;
        (physical < self.tors && logical < self.logical.tors()).then_some(logical)
    }

    /// Returns the place where a splitter's fibre comes in at one of the logical ToRs that it feeds: the
    /// number of the fibre among all that come from splitters to the physical ToR, p for each of its logical
    /// ones, by partitions.
    #[must_use]
    pub fn fibre(&self, splitter: u32, child: u32) -> u32 {
        self.nth(child) * self.logical.fanout() + self.logical.partition(splitter)
    }

    /// Returns true if every ToR stands for itself alone.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.tors == self.logical.tors()
    }

    /// Returns the number of ToRs that have more than one splitter.
    #[must_use]
    pub fn doubled(&self) -> u32 {
        (self.logical.tors() - self.tors).min(self.tors)
    }
}

/// Every ToR stands for itself.
impl From<Shufflecast> for Wiring {
    fn from(logical: Shufflecast) -> Self {
        Wiring { logical, tors: logical.tors() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_two_is_figure_2() {
        let s = Shufflecast::new(2, 2).unwrap();
        assert_eq!(s.tors(), 8);
        let children: Vec<_> = (0..8).map(|tor| s.children(tor)).collect();
        assert_eq!(children, [4..6, 6..8, 4..6, 6..8, 0..2, 2..4, 0..2, 2..4]);
        assert_eq!((0..8).map(|t| s.partition(t)).collect::<Vec<_>>(), [0, 0, 1, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn parents_and_children_agree() {
        for (p, k) in [(2, 1), (2, 2), (2, 3), (3, 2), (3, 3), (4, 2)] {
            let s = Shufflecast::new(p, k).unwrap();
            for tor in 0..s.tors() {
                for child in s.children(tor) {
                    assert_eq!(s.parent(child, s.partition(tor)), tor);
                }
                assert!(s.mirrors(tor).all(|mirror| s.children(mirror) == s.children(tor)));
            }
        }
    }

    #[test]
    fn fifteen_tors_double_nine() {
        let wiring = Wiring::smallest(15, 2).unwrap();
        assert_eq!((wiring.logical().tors(), wiring.doubled()), (24, 9));
        let splitters: usize = (0..15).map(|tor| wiring.logical_of(tor).len()).sum();
        assert_eq!(splitters, 24);
        assert_eq!(
            (wiring.logical_at(8, 1), wiring.logical_at(9, 1), wiring.logical_at(15, 0)),
            (Some(23), None, None)
        );
        // Splitter 4 is in partition 1 and feeds ToRs 8 and 9; splitter 13, in partition 1 too, feeds 18 and
        // 19, of ToRs 3 and 4.
        assert_eq!((wiring.fibre(4, 8), wiring.fibre(13, 18), wiring.physical(18)), (1, 3, 3));
        // More than twice as many logical as physical ToRs: some stand for three.
        let wiring = Wiring::smallest(9, 2).unwrap();
        assert_eq!((0..9).map(|tor| wiring.logical_of(tor).len()).sum::<usize>(), 24);
    }

    #[test]
    fn instances_with_the_fewest_columns() {
        let pick = |tors| Shufflecast::exactly(tors, 8).map(|s| (s.fanout(), s.columns()));
        assert_eq!(pick(50), Some((5, 2)));
        assert_eq!(pick(128), Some((8, 2)));
        assert_eq!(pick(1024), Some((4, 4)));
        assert_eq!(pick(51), None);
    }
}
