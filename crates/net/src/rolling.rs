//! Sums of hash groups that can be rolled over other bytes one by one, as rsync has them: they find groups
//! that an older version of an object has at another place.
//!
//! The sum of bytes `b[0] .. b[n - 1]` is that of `b[i] * BASE^(n - 1 - i)`, modulo 2^64. It proves nothing:
//! what is found is hashed.

use polycast_wire::control::SUMS_MAX;

/// Base of the sums.
pub const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Spreads all of a sum over the bits that choose a place in the filter.
const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;
/// Places of the filter for each sum: few others look like one.
const FILTER_BITS_A_SUM: usize = 64;
/// Bytes that are summed in one step.
const STEP: usize = 8;

const fn power(exponent: usize) -> u64 {
    let (mut power, mut left) = (1u64, exponent);
    while left > 0 {
        power = power.wrapping_mul(BASE);
        left -= 1;
    }
    power
}

/// The sum of these bytes.
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    const POWERS: [u64; STEP + 1] = {
        let (mut powers, mut at) = ([0; STEP + 1], 0);
        while at <= STEP {
            powers[at] = power(at);
            at += 1;
        }
        powers
    };
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let mut sum = 0u64;
    for step in steps {
        // The terms of a step do not wait for each other.
        let terms =
            step.iter().enumerate().map(|(at, byte)| POWERS[STEP - 1 - at].wrapping_mul(u64::from(*byte)));
        sum = sum.wrapping_mul(POWERS[STEP]).wrapping_add(terms.fold(0, u64::wrapping_add));
    }
    rest.iter().fold(sum, |sum, byte| sum.wrapping_mul(BASE).wrapping_add(u64::from(*byte)))
}

/// The sums of an object's groups, to be found in other bytes.
#[derive(Debug)]
pub struct Wanted {
    group_len: usize,
    /// `BASE` to the power of the group's length.
    leaving: u64,
    /// Sums and their groups, in order; those that have come since are behind `sorted`.
    groups: Vec<(u64, u64)>,
    known: u64,
    sorted: usize,
    /// Places that have a sum, as bits.
    filter: Vec<u64>,
    shift: u32,
}

impl Wanted {
    /// For an object of so many groups of this length.
    #[must_use]
    pub fn new(group_len: u32, groups: u64) -> Self {
        let bits = usize::try_from(groups).unwrap_or(usize::MAX).clamp(1, 1 << 20) * FILTER_BITS_A_SUM;
        let places = bits.next_power_of_two().clamp(1 << 12, 1 << 24);
        Wanted {
            group_len: group_len as usize,
            leaving: power(group_len as usize),
            groups: Vec::new(),
            known: 0,
            sorted: 0,
            filter: vec![0; places / 64],
            shift: 64 - places.trailing_zeros(),
        }
    }

    /// Returns the number of known sums.
    #[must_use]
    pub fn known(&self) -> u64 {
        self.known
    }

    /// Takes in the sums of the next groups.
    pub fn add(&mut self, sums: &[u64]) {
        assert!(sums.len() <= SUMS_MAX, "more sums than a frame has");
        for sum in sums {
            let place = self.place(*sum);
            self.filter[place >> 6] |= 1 << (place & 63);
            self.groups.push((*sum, self.known));
            self.known += 1;
        }
    }

    fn place(&self, sum: u64) -> usize {
        (sum.wrapping_mul(SPREAD) >> self.shift) as usize
    }

    /// The first place of `bytes` where the sum of a whole group is one that `lacks` names, and that group.
    /// Each place needs a group's length of bytes behind it.
    pub fn find(&mut self, bytes: &[u8], lacks: impl Fn(u64) -> bool) -> Option<(usize, u64)> {
        if self.sorted < self.groups.len() {
            self.groups.sort_unstable();
            self.sorted = self.groups.len();
        }
        let first = bytes.get(..self.group_len)?;
        let mut rolled = sum(first);
        if let Some(group) = self.group_of(rolled, &lacks) {
            return Some((0, group));
        }
        for (at, (comes, goes)) in bytes[self.group_len..].iter().zip(bytes).enumerate() {
            let change = u64::from(*comes).wrapping_sub(self.leaving.wrapping_mul(u64::from(*goes)));
            rolled = rolled.wrapping_mul(BASE).wrapping_add(change);
            let place = (rolled.wrapping_mul(SPREAD) >> self.shift) as usize;
            if self.filter[place >> 6] >> (place & 63) & 1 == 1
                && let Some(group) = self.group_of(rolled, &lacks)
            {
                return Some((at + 1, group));
            }
        }
        None
    }

    /// The first group with this sum that lacks.
    fn group_of(&self, sum: u64, lacks: impl Fn(u64) -> bool) -> Option<u64> {
        let first = self.groups.partition_point(|(other, _)| *other < sum);
        let same = self.groups[first..].iter().take_while(|(other, _)| *other == sum);
        same.map(|(_, group)| *group).take(SAME_MAX).find(|group| lacks(*group))
    }
}

/// Groups of one sum that are looked at, so that an object of equal groups costs no more than others.
const SAME_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The sum is what the module says, however many bytes there are.
        #[test]
        fn a_sum_is_that_of_all_powers(bytes in proptest::collection::vec(any::<u8>(), 0..50)) {
            let terms = bytes.iter().rev().enumerate();
            let expected = terms.fold(0u64, |sum, (at, byte)| sum.wrapping_add(power(at).wrapping_mul(u64::from(*byte))));
            prop_assert_eq!(sum(&bytes), expected);
        }

        /// The first place is found, and it is one of a group that lacks; a place is passed over only where
        /// there is none.
        #[test]
        fn the_first_place_is_found(
            object in proptest::collection::vec(0u8..3, 40..90), older in proptest::collection::vec(0u8..3, 0..120),
            lacks in any::<u32>(),
        ) {
            let group_len = 5;
            let groups: Vec<&[u8]> = object.as_chunks::<5>().0.iter().map(|group| &group[..]).collect();
            let mut wanted = Wanted::new(group_len, groups.len() as u64);
            let sums: Vec<u64> = groups.iter().map(|group| sum(group)).collect();
            wanted.add(&sums[..3]);
            wanted.find(&older, |_| false);
            wanted.add(&sums[3..]);
            prop_assert_eq!(wanted.known(), groups.len() as u64);
            let lacks = |group: u64| lacks >> (group % 32) & 1 == 1;
            let is_group = |bytes: &[u8]| (0..).zip(&groups).find(|(group, own)| **own == bytes && lacks(*group));
            let expected = older.windows(5).enumerate().find_map(|(at, bytes)| Some((at, is_group(bytes)?.0)));
            prop_assert_eq!(wanted.find(&older, lacks), expected);
        }
    }

    #[test]
    fn what_lacks_is_found_among_many_others() {
        let bytes: Vec<u8> =
            (0..400_000u64).map(|at| (at.wrapping_mul(at) >> 7) as u8 ^ (at >> 11) as u8).collect();
        let mut wanted = Wanted::new(1_024, 300);
        let sums: Vec<u64> = bytes.chunks(1_024).take(300).map(sum).collect();
        wanted.add(&sums);
        let found = wanted.find(&bytes[77..], |group| group != 200).unwrap();
        assert_eq!(found.0 as u64 + 77, found.1 * 1_024, "{found:?}");
        // An older version begins elsewhere.
        assert_eq!(wanted.find(&bytes[200 * 1_024 - 9..201 * 1_024], |group| group == 200), Some((9, 200)));
        assert_eq!(wanted.find(&bytes[200 * 1_024 - 9..201 * 1_024 - 1], |group| group == 200), None);
    }
}
