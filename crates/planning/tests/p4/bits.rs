//! Numbers of up to 256 bits, as P4's `bit<N>`.

/// The most bits of a number.
pub(crate) const WIDTH_MAX: u32 = 256;

/// A number of so many bits; those above are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bits {
    pub(crate) width: u32,
    high: u128,
    low: u128,
}

impl Bits {
    /// A number cut to `width` bits.
    pub(crate) fn new(width: u32, low: u128) -> Self {
        Bits { width: WIDTH_MAX, high: 0, low }.cast(width)
    }

    /// The bits of these bytes, the first one highest.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let all = Bits::new(WIDTH_MAX, 0);
        let value =
            bytes.iter().fold(all, |value, &byte| value.left(8).or(Bits::new(WIDTH_MAX, byte.into())));
        value.cast(8 * bytes.len() as u32)
    }

    /// Cuts the number or fills it with zeros.
    pub(crate) fn cast(self, width: u32) -> Self {
        assert!((1..=WIDTH_MAX).contains(&width), "a number has 1 to {WIDTH_MAX} bits, not {width}");
        let ones = |bits: u32| if bits >= 128 { u128::MAX } else { (1 << bits) - 1 };
        let (high, low) = (self.high & ones(width.saturating_sub(128)), self.low & ones(width));
        Bits { width, high, low }
    }

    /// The number, if it has at most 128 bits.
    pub(crate) fn small(self) -> u128 {
        assert!(self.high == 0, "the number is small");
        self.low
    }

    pub(crate) fn is_zero(self) -> bool {
        self.high == 0 && self.low == 0
    }

    pub(crate) fn or(self, other: Bits) -> Self {
        Bits { high: self.high | other.high, low: self.low | other.low, ..self }
    }

    pub(crate) fn and(self, other: Bits) -> Self {
        Bits { high: self.high & other.high, low: self.low & other.low, ..self }
    }

    pub(crate) fn complement(self) -> Self {
        Bits { high: !self.high, low: !self.low, ..self }.cast(self.width)
    }

    pub(crate) fn add(self, other: Bits) -> Self {
        let (low, carry) = self.low.overflowing_add(other.low);
        let high = self.high.wrapping_add(other.high).wrapping_add(carry.into());
        Bits { high, low, ..self }.cast(self.width)
    }

    pub(crate) fn subtract(self, other: Bits) -> Self {
        self.add(other.complement()).add(Bits::new(self.width, 1))
    }

    pub(crate) fn left(self, by: u128) -> Self {
        let (high, low) = match by {
            0 => (self.high, self.low),
            1..=127 => (self.high << by | self.low >> (128 - by), self.low << by),
            128..=255 => (self.low << (by - 128), 0),
            _ => (0, 0),
        };
        Bits { high, low, ..self }.cast(self.width)
    }

    pub(crate) fn right(self, by: u128) -> Self {
        let (high, low) = match by {
            0 => (self.high, self.low),
            1..=127 => (self.high >> by, self.low >> by | self.high << (128 - by)),
            128..=255 => (0, self.high >> (by - 128)),
            _ => (0, 0),
        };
        Bits { high, low, ..self }
    }

    /// The bits from `low` to `high`, both included.
    pub(crate) fn slice(self, high: u32, low: u32) -> Self {
        assert!(low <= high && high < self.width, "bits {high} to {low} of {}", self.width);
        self.right(low.into()).cast(high - low + 1)
    }

    /// Appends another number behind this one.
    pub(crate) fn concat(self, other: Bits) -> Self {
        let width = self.width + other.width;
        self.cast(width).left(other.width.into()).or(other)
    }

    pub(crate) fn is_below(self, other: Bits) -> bool {
        (self.high, self.low) < (other.high, other.low)
    }

    /// The bytes of a number that fills them.
    pub(crate) fn bits(self) -> impl Iterator<Item = bool> {
        (0..self.width).rev().map(move |at| !self.right(at.into()).and(Bits::new(self.width, 1)).is_zero())
    }
}
