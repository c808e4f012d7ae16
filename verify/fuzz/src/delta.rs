//! Deltas of versions, whatever they unpack to.

use crate::decoders::stage;
use polycast_net::delta::{self, apply};
use polycast_net::hash::bytes_hash;
use polycast_net::object::ObjectSource;
use polycast_net::store::{PartFile, Placing};
use polycast_wire::control::Delta;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;

/// Most bytes that a delta makes here.
const LEN_MAX: u64 = 3 << 20;

/// Bytes as an object.
struct Bytes(Vec<u8>);

impl ObjectSource for Bytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let there = self.0.get(offset as usize..).and_then(|bytes| bytes.get(..buffer.len()));
        buffer.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The version that every delta here is against.
fn base() -> Bytes {
    Bytes((0..1_060_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect())
}

/// Checks that the object which a delta makes has the root hash that it names, or there is no object.
pub fn delta(bytes: &[u8]) {
    let base = base();
    let Some(foot) = delta::foot_of(bytes).filter(|foot| foot.len <= LEN_MAX) else { return };
    let place = tempfile::tempdir_in(stage()).unwrap();
    let part = PartFile::open(&place.path().join("new"), foot.len, Placing::default()).unwrap();
    let coded = Bytes(bytes.to_vec());
    if apply(&foot, (&coded, &base), &part, 1, &AtomicBool::new(false), &drop).is_ok() {
        let mut made = vec![0; foot.len as usize];
        part.read(&mut made, 0).unwrap();
        assert_eq!(bytes_hash(&made), foot.root);
    }
}

/// A delta with a unit of each form.
///
/// # Panics
/// It cannot be written.
#[must_use]
pub fn seed() -> Vec<u8> {
    let base = base();
    let mut new = base.0.clone();
    new.iter_mut().step_by(4_001).for_each(|byte| *byte ^= 0x5a);
    new[1 << 20..].iter_mut().step_by(8).for_each(|byte| *byte = byte.wrapping_add(3));
    let file: File = tempfile::tempfile_in(stage()).unwrap();
    let root = bytes_hash(&base.0);
    let never = AtomicBool::new(false);
    let made: Option<Delta> = delta::write(&Bytes(new), (&base, root), &file, 1, &never).unwrap();
    assert!(made.is_some(), "it is worth it");
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}
