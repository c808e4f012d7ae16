//! Cost of a version as a delta, beside the XOR of both under zstd: `cargo bench -p polycast-net --bench
//! delta [MiB]`.
//!
//! Weights are drawn around zero, and some of them are changed by about a hundredth, as a training step does.
//! Speeds are those of one core, from memory to a file in memory, with the hashes that each end takes: the
//! best of three.

use polycast_net::delta::{apply, is_worth, write};
use polycast_net::object::ObjectSource;
use polycast_net::store::{PartFile, Placing};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const ROUNDS: usize = 3;

/// Bytes as an object.
struct Bytes(Vec<u8>);

impl ObjectSource for Bytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        buffer.copy_from_slice(&self.0[offset as usize..offset as usize + buffer.len()]);
        Ok(())
    }
}

/// A generator of numbers, which follow from the seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
    }

    /// From 0 to 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 3) as f64 / (1u64 << 53) as f64
    }

    /// Around zero, mostly within one.
    fn normal(&mut self) -> f64 {
        let (a, b) = (self.part().max(1e-12), self.part());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

/// A kind of weights.
struct Kind {
    name: &'static str,
    element: usize,
    write: fn(f64, &mut [u8]),
}

const KINDS: [Kind; 4] = [
    Kind { name: "bf16", element: 2, write: |v, to| to.copy_from_slice(&(v as f32).to_le_bytes()[2..]) },
    Kind { name: "fp32", element: 4, write: |v, to| to.copy_from_slice(&(v as f32).to_le_bytes()) },
    // Sign, four bits of exponent and three of mantissa: the first bits of a number that has few exponents.
    Kind {
        name: "fp8",
        element: 1,
        write: |v, to| {
            let bits = (v as f32).to_bits();
            let exponent = ((bits >> 23) & 0xff).saturating_sub(112).min(15);
            to[0] = ((bits >> 31) << 7 | exponent << 3 | (bits >> 20) & 7) as u8;
        },
    },
    Kind {
        name: "int4",
        element: 1,
        write: |v, to| {
            let first = ((v * 100.0) as i64).clamp(-8, 7);
            let second = ((v * 10_000.0) as i64).rem_euclid(16);
            to[0] = (first.rem_euclid(16) << 4 | second) as u8;
        },
    },
];

/// A version, and the next one, in which a part of the elements has changed.
fn versions(kind: &Kind, len: usize, part: f64) -> (Bytes, Bytes) {
    let (mut random, mut old, mut new) = (Random(1), vec![0; len], vec![0; len]);
    for (old, new) in old.chunks_exact_mut(kind.element).zip(new.chunks_exact_mut(kind.element)) {
        let value = 0.02 * random.normal();
        (kind.write)(value, old);
        new.copy_from_slice(old);
        if random.part() < part {
            (kind.write)(value * (1.0 + 0.01 * random.normal()), new);
        }
    }
    (Bytes(new), Bytes(old))
}

fn xor_under_zstd(new: &[u8], old: &[u8]) -> usize {
    let xor: Vec<u8> = new.iter().zip(old).map(|(new, old)| new ^ old).collect();
    zstd::bulk::compress(&xor, 1).expect("it compresses").len()
}

/// In GB/s.
fn best(len: usize, mut act: impl FnMut()) -> f64 {
    let once = || {
        let begun = Instant::now();
        act();
        len as f64 / begun.elapsed().as_secs_f64() / 1e9
    };
    std::iter::repeat_with(once).take(ROUNDS).fold(0.0, f64::max)
}

fn main() {
    let mib = std::env::args().filter_map(|word| word.parse::<usize>().ok()).next().unwrap_or(64);
    let len = mib << 20;
    println!(
        "{mib} MiB; delta and XOR under zstd in percent of the version; GB/s of the version on one core"
    );
    println!("| elements | changed, % | delta, % | XOR, zstd level 1, % | a look | coded | made |");
    for kind in &KINDS {
        for part in [0.0002, 0.0005, 0.01, 0.03, 0.05, 1.0] {
            let (new, old) = versions(kind, len, part);
            let root = *blake3::hash(&old.0).as_bytes();
            let never = AtomicBool::new(false);
            let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
            let file = tempfile::tempfile_in(folder.path()).expect("a file");
            let looked = best(len, || drop(is_worth(&new, &old)));
            let mut delta = None;
            let coded = best(len, || {
                file.set_len(0).expect("it gets shorter");
                delta = write(&new, (&old, root), &file, 1, &never).expect("it is coded");
            });
            let percent = |bytes: usize| 100.0 * bytes as f64 / len as f64;
            let xor = percent(xor_under_zstd(&new.0, &old.0));
            let Some(delta) = delta else {
                println!(
                    "| {} | {} | not coded | {xor:.2} | {looked:.0} | {coded:.2} | |",
                    kind.name,
                    100.0 * part
                );
                continue;
            };
            let mut bytes = vec![0; file.metadata().expect("it is open").len() as usize];
            file.read_exact_at(&mut bytes, 0).expect("it is read");
            let (size, bytes) = (percent(bytes.len()), Bytes(bytes));
            let part_file = |path: &Path| PartFile::open(path, delta.len, Placing::default());
            let part_file = part_file(&folder.path().join("new")).expect("a part file");
            let made = best(len, || {
                apply(&delta, (&bytes, &old), &part_file, 1, &never, &drop).expect("it is made")
            });
            println!(
                "| {} | {} | {size:.3} | {xor:.3} | {looked:.0} | {coded:.2} | {made:.2} |",
                kind.name,
                100.0 * part
            );
        }
    }
}
