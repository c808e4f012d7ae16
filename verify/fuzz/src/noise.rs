//! Noise for tests.

/// A small generator: the same noise every time.
#[derive(Debug)]
pub struct Noise(pub u64);

impl Noise {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below a limit; 0 if that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit.max(1)
    }

    /// Some bytes, fewer than a limit.
    pub fn bytes(&mut self, limit: usize) -> Vec<u8> {
        (0..self.below(limit)).map(|_| self.next() as u8).collect()
    }

    /// Bytes changed, cut out, put in or doubled.
    pub fn damage(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=self.below(4) {
            let (at, len) = (self.below(bytes.len()), self.below(16));
            let end = (at + len).min(bytes.len());
            match self.below(5) {
                0 => drop(bytes.drain(at..end)),
                1 => bytes.splice(at..at, (0..len).map(|_| self.next() as u8)).for_each(drop),
                2 => {
                    let copied = bytes[at..end].to_vec();
                    let to = self.below(bytes.len());
                    bytes.splice(to..to, copied).for_each(drop);
                }
                _ => {
                    let byte = self.next() as u8;
                    bytes.get_mut(at).into_iter().for_each(|old| *old = byte);
                }
            }
        }
        bytes
    }
}
