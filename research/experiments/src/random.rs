//! Random numbers that a seed reproduces on every machine.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "it is a generator, which never ends, and no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A whole number below `limit`, which is at least 1.
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u32
    }

    /// A fraction from 0 to below 1.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponential with this rate.
    pub fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.fraction()).ln() / rate
    }

    /// Gamma with shape 2: the sum of two exponentials.
    pub fn gamma_of_shape_2(&mut self, scale: f64) -> f64 {
        self.exponential(1.0 / scale) + self.exponential(1.0 / scale)
    }

    /// Puts `count` random ones of the items in front, in random order, without looking at the rest.
    pub fn choose_first<T>(&mut self, items: &mut [T], count: usize) {
        for at in 0..count.min(items.len()) {
            let other = at + self.below((items.len() - at) as u32) as usize;
            items.swap(at, other);
        }
    }
}
