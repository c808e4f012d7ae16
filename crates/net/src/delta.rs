//! Deltas: a new version of an object as what it differs in from a base that receivers have.
//!
//! A training step changes some elements of every hash group of the weights, so that no group of the version
//! before is one of the new one. Their XOR is nearly all zeros: it is coded unit by unit (module `unit`) and
//! sent in the new version's place, as an object like any other. A receiver that has the base makes the new
//! version of both. It holds each unit against its hash, and the hashes against the root hash, as it does
//! with groups that come: a delta that is wrong, or is against another base, costs time and no byte.
//!
//! A delta is its units, one after the other, and then, with big-endian numbers: the length of each unit (4
//! bytes), the hash of what it makes (32: a chaining value of BLAKE3's tree, where there are several), and a
//! foot of 92 bytes: `polydel1`, the new version's length (8), the base's (8), bytes of a unit (4), the root
//! hashes of the new version and of the base.

mod unit;

use crate::hash::{group_hash, root_hash};
use crate::object::ObjectSource;
use crate::store::{PartFile, StoreError};
use polycast_wire::control::{Delta, Hash};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use thiserror::Error;
pub use unit::UnitError;
use unit::{Coder, Decoder, UNIT_LEN};

const MAGIC: &[u8; 8] = b"polydel1";
const FOOT_LEN: u64 = 92;
/// Units that a thread codes before they are written, in their order.
const UNITS_A_TURN: u64 = 16;
/// Number of pieces for each one of the sample.
const SAMPLED: u64 = 100;
/// Length of a piece, in bytes.
const PIECE_LEN: u64 = 64 << 10;
/// Minimum number of pieces in the sample.
const PIECES_LEAST: u64 = 8;
/// A delta of more than so many of eight parts of the object is not worth what it takes to code it.
const WORTH_EIGHTHS: u64 = 7;

/// Reason that no delta is made, or that none can be applied.
#[derive(Debug, Error)]
pub enum DeltaError {
    /// It is none, or is one of other versions.
    #[error("it is no delta between these versions: {0}")]
    Form(&'static str),
    /// A unit is damaged.
    #[error("the delta is damaged: {0}")]
    Unit(#[from] UnitError),
    /// A unit does not give the bytes of the new version.
    #[error(
        "unit {0} of the delta does not give the object's bytes: the delta, or the version that it is against, is not what it is said to be"
    )]
    Made(u64),
    /// Bytes cannot be read.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    /// The new version cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The caller has ended it.
    #[error("it was cancelled")]
    Cancelled,
}

/// Returns true if a delta to a new version is worth making, judged by a sample of both versions.
///
/// # Errors
/// They cannot be read.
pub fn is_worth(new: &dyn ObjectSource, base: &dyn ObjectSource) -> io::Result<bool> {
    let (mut coder, mut coded) = (Coder::new()?, Vec::new());
    let pieces = new.len().div_ceil(PIECE_LEN);
    let count = (pieces / SAMPLED).max(PIECES_LEAST).min(pieces);
    let (mut fresh, mut old) = (vec![0; PIECE_LEN as usize], vec![0; PIECE_LEN as usize]);
    let mut looked = 0;
    for at in 0..count {
        // One in each of as many equal parts, not always at the same place of it: tensors have lengths of
        // their own.
        let (first, behind) = (at * pieces / count, (at + 1) * pieces / count);
        let piece = first + (at * 7) % (behind - first);
        let from = piece * PIECE_LEN;
        let len = (new.len() - from).min(PIECE_LEN);
        let (fresh, old) = (&mut fresh[..len as usize], &mut old[..len as usize]);
        new.read_exact_at(fresh, from)?;
        read_base(base, old, from)?;
        coder.code(fresh, old, &mut coded);
        looked += len;
    }
    Ok(coded.len() as u64 * 8 <= looked * WORTH_EIGHTHS)
}

/// Codes `new` against `base`, whose root hash is known, into an empty file, with so many threads; gives what
/// the delta is of, and `None` where it is not worth it.
///
/// # Errors
/// They cannot be read, `new` was changed meanwhile, the file cannot be written, or `cancel` was set.
pub fn write(
    new: &dyn ObjectSource,
    (base, base_root): (&dyn ObjectSource, Hash),
    to: &File,
    threads: usize,
    cancel: &AtomicBool,
) -> Result<Option<Delta>, DeltaError> {
    assert!(!new.is_empty(), "an empty object has no delta");
    let units = new.len().div_ceil(UNIT_LEN as u64);
    let most = new.len() / 8 * WORTH_EIGHTHS;
    let (mut lens, mut hashes) = (Vec::new(), Vec::new());
    let (mut next, mut at) = (0, 0);
    let threads = threads.min(units.div_ceil(UNITS_A_TURN) as usize).max(1);
    let mut workers: Vec<Worker> = (0..threads).map(|_| Worker::new()).collect::<io::Result<_>>()?;
    while next < units {
        if cancel.load(Ordering::Relaxed) {
            return Err(DeltaError::Cancelled);
        }
        let done: Vec<io::Result<()>> = std::thread::scope(|scope| {
            let turns: Vec<_> = workers
                .iter_mut()
                .map(|worker| {
                    let first = next;
                    next = (next + UNITS_A_TURN).min(units);
                    let range = first..next;
                    let turn = move || worker.code(new, base, range, units);
                    std::thread::Builder::new().spawn_scoped(scope, turn)
                })
                .collect();
            // Where the system has no more threads the object goes as it is.
            turns.into_iter().map(|turn| turn?.join().expect("a coder does not panic")).collect()
        });
        done.into_iter().collect::<io::Result<()>>()?;
        for worker in &workers {
            to.write_all_at(&worker.coded, at)?;
            at += worker.coded.len() as u64;
            lens.extend_from_slice(&worker.lens);
            hashes.extend_from_slice(&worker.hashes);
        }
        if at > most {
            return Ok(None);
        }
    }
    new.check()?;
    let root = root_hash(&hashes);
    let mut end = Vec::new();
    lens.iter().for_each(|len| end.extend_from_slice(&len.to_be_bytes()));
    hashes.iter().for_each(|hash| end.extend_from_slice(hash));
    end.extend_from_slice(&foot(&Delta { base: base_root, root, len: new.len() }, base.len()));
    to.write_all_at(&end, at)?;
    Ok(Some(Delta { base: base_root, root, len: new.len() }))
}

fn foot(delta: &Delta, base_len: u64) -> [u8; FOOT_LEN as usize] {
    let mut foot = [0; FOOT_LEN as usize];
    foot[..8].copy_from_slice(MAGIC);
    foot[8..16].copy_from_slice(&delta.len.to_be_bytes());
    foot[16..24].copy_from_slice(&base_len.to_be_bytes());
    foot[24..28].copy_from_slice(&(UNIT_LEN as u32).to_be_bytes());
    foot[28..60].copy_from_slice(&delta.root);
    foot[60..].copy_from_slice(&delta.base);
    foot
}

/// Returns the delta that the foot of these bytes names; `None` where they do not end with a foot.
#[must_use]
pub fn foot_of(coded: &[u8]) -> Option<Delta> {
    let found: &[u8; FOOT_LEN as usize] = coded.last_chunk()?;
    let number = |at: usize| u64::from_be_bytes(*found[at..].first_chunk().expect("a foot is longer"));
    let hash = |at: usize| *found[at..].first_chunk::<32>().expect("a foot is longer");
    let delta = Delta { root: hash(28), base: hash(60), len: number(8) };
    (*found == foot(&delta, number(16))).then_some(delta)
}

/// Reads from the base; bytes behind its end count as zeros, since the new version may be longer.
fn read_base(base: &dyn ObjectSource, bytes: &mut [u8], from: u64) -> io::Result<()> {
    let there = base.len().saturating_sub(from).min(bytes.len() as u64) as usize;
    base.read_exact_at(&mut bytes[..there], from)?;
    bytes[there..].fill(0);
    Ok(())
}

/// A thread that codes.
struct Worker {
    coder: Coder,
    new: Vec<u8>,
    base: Vec<u8>,
    /// The units of its turn.
    coded: Vec<u8>,
    lens: Vec<u32>,
    hashes: Vec<Hash>,
}

impl Worker {
    fn new() -> io::Result<Self> {
        let (new, base) = (vec![0; UNIT_LEN], vec![0; UNIT_LEN]);
        Ok(Worker {
            coder: Coder::new()?,
            new,
            base,
            coded: Vec::new(),
            lens: Vec::new(),
            hashes: Vec::new(),
        })
    }

    fn code(
        &mut self,
        new: &dyn ObjectSource,
        base: &dyn ObjectSource,
        turn: Range<u64>,
        units: u64,
    ) -> io::Result<()> {
        self.coded.clear();
        self.lens.clear();
        self.hashes.clear();
        for unit in turn {
            let from = unit * UNIT_LEN as u64;
            let len = (new.len() - from).min(UNIT_LEN as u64) as usize;
            let (fresh, old) = (&mut self.new[..len], &mut self.base[..len]);
            new.read_exact_at(fresh, from)?;
            read_base(base, old, from)?;
            let before = self.coded.len();
            self.coder.code(fresh, old, &mut self.coded);
            self.lens.push((self.coded.len() - before) as u32);
            self.hashes.push(group_hash(fresh, unit, UNIT_LEN as u32, units));
        }
        Ok(())
    }
}

/// Index behind the units.
struct Index {
    /// Start of each unit, and end of the last one.
    at: Vec<u64>,
    hashes: Vec<Hash>,
}

impl Index {
    fn read(delta: &Delta, coded: &dyn ObjectSource, base_len: u64) -> Result<Self, DeltaError> {
        let units = delta.len.div_ceil(UNIT_LEN as u64);
        let short = DeltaError::Form("it is shorter than its index");
        let index_len = units * (4 + 32);
        let Some(foot_at) = coded.len().checked_sub(FOOT_LEN) else { return Err(short) };
        let Some(index_at) = foot_at.checked_sub(index_len) else { return Err(short) };
        let mut found = [0; FOOT_LEN as usize];
        coded.read_exact_at(&mut found, foot_at)?;
        if found != foot(delta, base_len) {
            return Err(DeltaError::Form("its foot names others"));
        }
        let mut bytes = vec![0; index_len as usize];
        coded.read_exact_at(&mut bytes, index_at)?;
        let (lens, hashes) = bytes.split_at(4 * units as usize);
        let (mut at, mut end) = (vec![0], 0u64);
        for len in lens.as_chunks::<4>().0 {
            end += u64::from(u32::from_be_bytes(*len));
            at.push(end);
        }
        let hashes = hashes.as_chunks::<32>().0.to_vec();
        if end != index_at {
            return Err(DeltaError::Form("its units have another length"));
        }
        if root_hash(&hashes) != delta.root {
            return Err(DeltaError::Form("its hashes do not give the root hash"));
        }
        Ok(Index { at, hashes })
    }
}

/// Makes the new version of a delta and its base, in a part file of its length, with so many threads. Each
/// unit is verified before it is written; `on_made` hears then which bytes it has, from any thread.
///
/// # Errors
/// The delta is damaged or is none between these versions, the base is not what its root hash says, the part
/// file cannot be written, or `cancel` was set. What is in the part file by then is right, or is what was
/// there before.
pub fn apply(
    delta: &Delta,
    (coded, base): (&dyn ObjectSource, &dyn ObjectSource),
    part: &PartFile,
    threads: usize,
    cancel: &AtomicBool,
    on_made: &(dyn Fn(Range<u64>) + Sync),
) -> Result<(), DeltaError> {
    if delta.len == 0 {
        return Err(DeltaError::Form("an empty object has none"));
    }
    let index = Index::read(delta, coded, base.len())?;
    let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
    let work = || {
        let mut maker = Maker::new()?;
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit + 1 >= index.at.len() as u64 {
                return Ok(());
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(DeltaError::Cancelled);
            }
            on_made(maker.make(delta, (coded, base), &index, unit, part)?);
        }
    };
    let turn = || {
        if let Err(error) = work() {
            // The others end, too.
            next.store(index.at.len() as u64, Ordering::Relaxed);
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(index.at.len() - 1) {
            // Where the system has no more threads there are fewer.
            if std::thread::Builder::new().spawn_scoped(scope, turn).is_err() {
                break;
            }
        }
        turn();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// A thread that makes units of the new version.
struct Maker {
    decoder: Decoder,
    coded: Vec<u8>,
    bytes: Vec<u8>,
}

impl Maker {
    fn new() -> io::Result<Self> {
        Ok(Maker { decoder: Decoder::new()?, coded: Vec::new(), bytes: vec![0; UNIT_LEN] })
    }

    /// Makes a unit; gives where it lies.
    fn make(
        &mut self,
        delta: &Delta,
        (coded, base): (&dyn ObjectSource, &dyn ObjectSource),
        index: &Index,
        unit: u64,
        part: &PartFile,
    ) -> Result<Range<u64>, DeltaError> {
        let from = unit * UNIT_LEN as u64;
        let len = (delta.len - from).min(UNIT_LEN as u64);
        let bytes = &mut self.bytes[..len as usize];
        let (begin, end) = (index.at[unit as usize], index.at[unit as usize + 1]);
        // One byte says the form, and no form is longer than the unit.
        if end - begin > len + 1 {
            return Err(UnitError::Length.into());
        }
        self.coded.resize((end - begin) as usize, 0);
        coded.read_exact_at(&mut self.coded, begin)?;
        read_base(base, bytes, from)?;
        self.decoder.apply(&self.coded, bytes)?;
        let hash = group_hash(bytes, unit, UNIT_LEN as u32, index.hashes.len() as u64);
        if hash != index.hashes[unit as usize] {
            return Err(DeltaError::Made(unit));
        }
        part.write(bytes, from)?;
        Ok(from..from + len)
    }
}

#[cfg(test)]
mod tests;
