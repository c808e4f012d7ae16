//! Frames of peers that keep to the format and to nothing else.

use polycast_wire::control::{Control, Overlay};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::ops::Range;

/// Draws numbers, and frames made of them.
pub(crate) struct Liar(Pcg64Mcg);

impl Liar {
    pub(crate) fn new(seed: u64) -> Self {
        Liar(Pcg64Mcg::new(u128::from(seed) << 1 | 1))
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit.max(1)
    }

    /// Small, about as large as `near`, as large as there are, or anything.
    pub(crate) fn number(&mut self, near: u64) -> u64 {
        match self.below(10) {
            0 => 0,
            1..=5 => self.below(near.saturating_mul(2).saturating_add(2)),
            6 | 7 => near.saturating_add(self.below(3)).saturating_sub(1),
            8 => u64::MAX - self.below(3),
            _ => self.0.next_u64(),
        }
    }

    /// Ranges as the wire takes them: rising, not empty, apart from each other.
    pub(crate) fn ranges(&mut self, near: u64) -> Vec<Range<u64>> {
        let mut ends: Vec<u64> = (0..2 * self.below(6)).map(|_| self.number(near)).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// A frame of a receiver, as bytes that the parser takes.
    pub(crate) fn word_to_source(&mut self, near: u64, peers: u64) -> Vec<u8> {
        let control = match self.below(24) {
            0 => Control::Have(self.ranges(near)),
            1..=3 => Control::IntlSeq { position: self.number(near) },
            4..=12 => Control::Progress {
                position: self.number(near),
                received: self.number(near),
                lost: self.number(near),
                verified_bytes: self.number(near * 1_000),
                arrived_ns: self.number(1 << 30),
                waited_ns: self.number(1 << 20),
            },
            13..=15 => Control::PtchReq(self.ranges(near)),
            16 | 17 => Control::RackReq(self.ranges(near)),
            18 => {
                let mut members: Vec<u32> = (0..self.below(5)).map(|_| self.number(peers) as u32).collect();
                members.sort_unstable();
                members.dedup();
                Control::Rack(members)
            }
            19 | 20 => Control::Overlay(Overlay::Lacks(self.ranges(near))),
            21 => Control::DataFnsd { position: self.number(near) },
            22 => Control::Alive,
            _ => Control::PtchReq(std::iter::once(0..near.max(1)).collect()),
        };
        let mut frame = Vec::new();
        control.emit(&mut frame);
        frame
    }
}
