//! A set of hash groups, one bit each.

use alloc::vec;
use alloc::vec::Vec;

/// One bit a hash group.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    pub(crate) words: Vec<u64>,
    pub(crate) count: u64,
}

impl Bits {
    /// Makes a set that can hold so many groups, and holds none.
    pub(crate) fn new(len: u64) -> Self {
        Bits { words: vec![0; len.div_ceil(64) as usize], count: 0 }
    }

    /// Gives whether the bit is set.
    pub(crate) fn get(&self, index: u64) -> bool {
        self.words[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    /// Sets the bit; gives whether it changed.
    pub(crate) fn set(&mut self, index: u64, value: bool) -> bool {
        let changed = self.get(index) != value;
        if changed {
            self.words[(index / 64) as usize] ^= 1 << (index % 64);
            self.count = if value { self.count + 1 } else { self.count - 1 };
        }
        changed
    }

    /// Gives whether so many bits are set as were counted.
    pub(crate) fn agrees(&self) -> bool {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() == self.count
    }
}
