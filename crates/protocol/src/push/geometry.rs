//! Division of an object into fragments (packets) and hash groups.

use core::ops::Range;

/// The division of an object into fragments of one size and hash groups of another.
///
/// Fragment `sn` holds bytes `sn * fragment_len ..`; only the last one is shorter. An empty object has
/// one empty fragment, so that the protocol is the same for it. A *position* counts packets in the
/// order of sending: `round * fragments + sn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length of the object in bytes.
    pub object_len: u64,
    /// Bytes of a fragment.
    pub fragment_len: u32,
    /// Bytes of a hash group.
    pub group_len: u32,
}

impl Geometry {
    /// Returns the number of fragments; at least one.
    #[must_use]
    pub fn fragments(&self) -> u64 {
        self.object_len.div_ceil(u64::from(self.fragment_len)).max(1)
    }

    /// Returns the number of hash groups; at least one.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.object_len.div_ceil(u64::from(self.group_len)).max(1)
    }

    /// The bytes of fragment `sn`.
    #[must_use]
    pub fn fragment_bytes(&self, sn: u64) -> Range<u64> {
        self.span(sn, u64::from(self.fragment_len))
    }

    /// The bytes of hash group `group`.
    #[must_use]
    pub fn group_bytes(&self, group: u64) -> Range<u64> {
        self.span(group, u64::from(self.group_len))
    }

    fn span(&self, index: u64, len: u64) -> Range<u64> {
        let start = (index * len).min(self.object_len);
        start..(start + len).min(self.object_len)
    }

    /// The fragments that hold bytes of `group`.
    #[must_use]
    pub fn fragments_of_group(&self, group: u64) -> Range<u64> {
        let bytes = self.group_bytes(group);
        let len = u64::from(self.fragment_len);
        let start = bytes.start / len;
        start..bytes.end.div_ceil(len).max(start + 1)
    }

    /// The hash groups that hold bytes of these fragments, which are not empty.
    #[must_use]
    pub fn groups_of_fragments(&self, fragments: Range<u64>) -> Range<u64> {
        let len = u64::from(self.group_len);
        let start = self.fragment_bytes(fragments.start).start / len;
        let end = self.fragment_bytes(fragments.end - 1).end.div_ceil(len);
        start..end.max(start + 1)
    }

    /// Returns the position of a packet with these numbers, if it can belong to the object. The position
    /// after it does not overflow either.
    #[must_use]
    pub fn position(&self, round: u32, sn: u64, count: u32) -> Option<u64> {
        let total = self.fragments();
        if count == 0 || sn.checked_add(u64::from(count))? > total {
            return None;
        }
        let position = u64::from(round).checked_mul(total)?.checked_add(sn)?;
        position.checked_add(u64::from(count)).map(|_| position)
    }

    /// The sns of a range of positions within one lap, as at most two ranges.
    #[must_use]
    pub fn sns_of_positions(&self, positions: Range<u64>) -> [Range<u64>; 2] {
        let total = self.fragments();
        let count = positions.end.saturating_sub(positions.start).min(total);
        let start = positions.start % total;
        let end = start + count;
        if end <= total { [start..end, 0..0] } else { [start..total, 0..end - total] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fragments_and_groups_tile_the_object(object_len in 0u64..100_000, fragment_len in 1u32..5_000, shift in 10u32..14) {
            let g = Geometry { object_len, fragment_len, group_len: 1 << shift };
            let mut at = 0;
            for sn in 0..g.fragments() {
                let bytes = g.fragment_bytes(sn);
                prop_assert_eq!(bytes.start, at);
                at = bytes.end;
            }
            prop_assert_eq!(at, object_len);
            for group in 0..g.groups() {
                let bytes = g.group_bytes(group);
                let touching: Vec<u64> = (0..g.fragments())
                    .filter(|sn| {
                        let f = g.fragment_bytes(*sn);
                        f.start < bytes.end && bytes.start < f.end || object_len == 0
                    })
                    .collect();
                let expected: Vec<u64> = g.fragments_of_group(group).collect();
                prop_assert_eq!(&touching, &expected);
                for sn in expected {
                    prop_assert!(g.groups_of_fragments(sn..sn + 1).contains(&group));
                }
            }
        }

        #[test]
        fn positions_wrap(object_len in 1u64..5_000, start in 0u64..20_000, count in 0u64..6_000) {
            let g = Geometry { object_len, fragment_len: 7, group_len: 1024 };
            let count = count.min(g.fragments());
            let flat: Vec<u64> = g.sns_of_positions(start..start + count).into_iter().flatten().collect();
            let expected: Vec<u64> = (start..start + count).map(|p| p % g.fragments()).collect();
            prop_assert_eq!(flat, expected);
        }
    }

    #[test]
    fn packets_outside_the_object_have_no_position() {
        let g = Geometry { object_len: 100, fragment_len: 10, group_len: 1024 };
        assert_eq!(g.position(2, 3, 7), Some(23));
        assert_eq!(g.position(0, 3, 8), None);
        assert_eq!(g.position(0, u64::MAX, 2), None);
        assert_eq!(g.position(0, 0, 0), None);
        let vast = Geometry { object_len: 1 << 32, fragment_len: 1, group_len: 1024 };
        assert_eq!(vast.position(u32::MAX, (1 << 32) - 1, 1), None, "the position after it is no number");
        assert!(vast.position(u32::MAX, (1 << 32) - 2, 1).is_some());
    }
}
