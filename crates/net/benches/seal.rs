//! Speed at which content is sealed and packets get their tags, and time that a pairing by a code takes, on
//! one core: `cargo bench -p polycast-net --bench seal`.

use polycast_net::hash::keyed_hash;
use polycast_net::pake::{End, Meeting};
use polycast_net::seal::{Seal, Secret};
use polycast_types::Handle;
use std::hint::black_box;
use std::time::Instant;

/// Bytes that each measurement takes.
const TOTAL: usize = 1 << 30;

/// The best of five, in GB/s.
fn measure(what: &str, len: usize, mut act: impl FnMut()) {
    let rounds = TOTAL / 5 / len;
    let best = (0..5)
        .map(|_| {
            let begun = Instant::now();
            (0..rounds).for_each(|_| act());
            (rounds * len) as f64 / begun.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max);
    println!("{what:>8} {len:>7} bytes: {:6.2} GB/s", best / 1e9);
}

/// Returns the time that a pairing takes on both ends together, in microseconds: the best of five.
fn pairing() -> f64 {
    const ROUNDS: u32 = 500;
    let meeting = Meeting { code: b"four-words-of-ours", context: b"an offer" };
    let pair = || {
        let (first, second) = (End::new(meeting, &[1; 64]), End::new(meeting, &[2; 64]));
        let (ours, theirs) = (first.agree_first(second.share()), second.agree_second(first.share()));
        assert!(theirs.is_some_and(|theirs| theirs.is_proven(&ours.expect("a share").proof())));
    };
    let round = |_| {
        let begun = Instant::now();
        (0..ROUNDS).for_each(|_| pair());
        begun.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS)
    };
    (0..5).map(round).fold(f64::MAX, f64::min)
}

fn main() {
    println!(" pairing by a code: {:6.0} us", pairing());
    let seal = Seal::new(&Secret::new([1; 32]), Handle(1));
    let mut bytes = vec![7; 256 << 10];
    let header = [5; 40];
    measure("header", header.len(), || _ = black_box(seal.tag_of(&header, &[])));
    for len in [1_408, 8_912, 64 << 10, 256 << 10] {
        measure("fragment", len, || _ = black_box(seal.seal(3, &mut bytes[..len])));
        measure("part", len, || seal.turn(3, 0, &mut bytes[..len]));
        measure("tag", len, || _ = black_box(seal.tag_of(&[5; 24], &bytes[..len])));
        measure("blake3", len, || _ = black_box(keyed_hash(&[1; 32], &bytes[..len])));
    }
}
