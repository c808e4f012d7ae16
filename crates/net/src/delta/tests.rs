use super::*;
use crate::store::Placing;
use proptest::prelude::*;
use std::cell::RefCell;

/// Bytes as an object.
struct Bytes(Vec<u8>);

impl ObjectSource for Bytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.0.get(offset as usize..).and_then(|bytes| bytes.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Bytes {
    fn root(&self) -> Hash {
        *blake3::hash(&self.0).as_bytes()
    }
}

/// A generator of bytes; its numbers follow from the seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Changes one of so many elements of this length.
    fn changed(&mut self, old: &[u8], element: usize, one_in: u64) -> Vec<u8> {
        let mut new = old.to_vec();
        for element in new.chunks_mut(element) {
            if self.next().is_multiple_of(one_in) {
                element.iter_mut().for_each(|byte| *byte = self.next() as u8);
            }
        }
        new
    }
}

fn write_to(new: &Bytes, base: &Bytes, threads: usize) -> Option<(Delta, Bytes)> {
    let file = tempfile::tempfile().unwrap();
    let delta = write(new, (base, base.root()), &file, threads, &AtomicBool::new(false)).unwrap()?;
    let mut coded = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut coded, 0).unwrap();
    Some((delta, Bytes(coded)))
}

fn made(delta: &Delta, coded: &Bytes, base: &Bytes, threads: usize) -> Result<Vec<u8>, DeltaError> {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("new");
    let part = PartFile::open(&target, delta.len.min(1 << 30), Placing::default()).unwrap();
    let told = AtomicU64::new(0);
    let on_made = |bytes: Range<u64>| {
        told.fetch_add(bytes.end - bytes.start, Ordering::Relaxed);
    };
    apply(delta, (coded, base), &part, threads, &AtomicBool::new(false), &on_made)?;
    assert_eq!(told.into_inner(), delta.len);
    let mut bytes = vec![0; delta.len as usize];
    part.read(&mut bytes, 0).unwrap();
    Ok(bytes)
}

/// Whatever has changed, and however long both are, the new version comes of the base; by any number of
/// threads the delta is the same.
#[test]
fn a_delta_and_its_base_give_the_new_version() {
    let mut random = Random(1);
    let lengths = [1, 7, 8, 63, 64, 65, 4_096, 262_143, 262_145, 1 << 20, (1 << 20) + 1, 3_333_333, 40 << 20];
    for (at, len) in lengths.into_iter().enumerate() {
        let old = random.bytes(len);
        for (element, one_in) in [(1, 1_000), (2, 100), (4, 20), (8, 7), (3, 50), (2, u64::MAX)] {
            let new = Bytes(random.changed(&old, element, one_in));
            let base = Bytes(old.clone());
            let Some((delta, coded)) = write_to(&new, &base, 1 + at % 3) else {
                // Few bytes have an index and a foot that are longer.
                assert!(len < 100 || one_in < 50, "{len} {element} {one_in}");
                continue;
            };
            assert_eq!((delta.root, delta.len), (new.root(), len as u64));
            assert_eq!(write_to(&new, &base, 4).unwrap().1.0, coded.0, "it does not depend on threads");
            assert!(made(&delta, &coded, &base, 1 + at % 2).unwrap() == new.0, "{len} {element} {one_in}");
        }
    }
}

#[test]
fn the_new_version_may_be_longer_or_shorter() {
    let mut random = Random(2);
    let old = random.bytes(3 << 20);
    for len in [(3 << 20) + 100_000, 1 << 20, 1_000_001] {
        let mut new = old.clone();
        new.resize(len, 7);
        let (new, base) = (Bytes(new), Bytes(old.clone()));
        let (delta, coded) = write_to(&new, &base, 2).unwrap();
        assert!(coded.len() < 200_000, "{}", coded.len());
        assert!(made(&delta, &coded, &base, 2).unwrap() == new.0);
    }
}

/// Content that has changed everywhere is not coded, and neither is content that has moved.
#[test]
fn what_does_not_pay_is_left() {
    let mut random = Random(3);
    let old = Bytes(random.bytes(8 << 20));
    let other = Bytes(random.bytes(8 << 20));
    assert!(!is_worth(&other, &old).unwrap());
    assert!(write_to(&other, &old, 2).is_none());
    let mut moved = vec![1];
    moved.extend_from_slice(&old.0[..old.0.len() - 1]);
    assert!(!is_worth(&Bytes(moved), &old).unwrap());
    let new = Bytes(random.changed(&old.0, 2, 20));
    assert!(is_worth(&new, &old).unwrap());
    assert!(is_worth(&old, &old).unwrap());
}

/// Elements that keep some of their bytes, such as the moments of an optimiser: all of them have changed, and
/// the delta is short.
#[test]
fn elements_that_change_a_little_are_laid_out_by_bytes() {
    let mut random = Random(4);
    let old = random.bytes(4 << 20);
    let mut new = old.clone();
    new.chunks_mut(4).for_each(|element| element[0] = random.next() as u8);
    let (new, base) = (Bytes(new), Bytes(old));
    let (delta, coded) = write_to(&new, &base, 2).unwrap();
    assert!(coded.len() < new.len() / 4 + new.len() / 50, "{}", coded.len());
    assert!(made(&delta, &coded, &base, 2).unwrap() == new.0);
}

#[test]
fn another_base_gives_no_byte() {
    let mut random = Random(5);
    let base = Bytes(random.bytes(2 << 20));
    let new = Bytes(random.changed(&base.0, 2, 100));
    let (delta, coded) = write_to(&new, &base, 2).unwrap();
    let mut other = base.0.clone();
    other[1_500_000] ^= 1;
    let error = made(&delta, &coded, &Bytes(other), 2).unwrap_err();
    assert!(matches!(error, DeltaError::Made(1)), "{error}");
    let error = made(&delta, &coded, &Bytes(base.0[1..].to_vec()), 2).unwrap_err();
    assert_eq!(error.to_string(), "it is no delta between these versions: its foot names others");
    for wrong in [
        Delta { root: [1; 32], ..delta },
        Delta { base: [1; 32], ..delta },
        Delta { len: delta.len + 1, ..delta },
        Delta { len: 0, ..delta },
        Delta { len: u64::MAX, ..delta },
    ] {
        let error = made(&wrong, &coded, &base, 2).unwrap_err();
        assert!(matches!(error, DeltaError::Form(_)), "{error}");
    }
}

#[test]
fn a_delta_can_be_cancelled() {
    let old = Bytes(vec![0; 4 << 20]);
    let file = tempfile::tempfile().unwrap();
    let cancelled = AtomicBool::new(true);
    let error = write(&old, (&old, old.root()), &file, 2, &cancelled).unwrap_err();
    assert!(matches!(error, DeltaError::Cancelled));
    let (delta, coded) = write_to(&old, &old, 2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let part = PartFile::open(&folder.path().join("new"), delta.len, Placing::default()).unwrap();
    let error = apply(&delta, (&coded, &old), &part, 2, &cancelled, &drop).unwrap_err();
    assert!(matches!(error, DeltaError::Cancelled));
}

/// A frame of zstd that unpacks to far more than a unit takes no more memory than a unit, and is refused.
#[test]
fn a_bomb_is_refused() {
    let mut bytes = vec![0; UNIT_LEN];
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
    let mut unit = vec![5];
    unit.extend_from_slice(&(bomb.len() as u32).to_be_bytes());
    unit.extend_from_slice(&bomb);
    assert_eq!(Decoder::new().unwrap().apply(&unit, &mut bytes), Err(UnitError::Packed));
    let less = zstd::bulk::compress(&[0; 100], 1).unwrap();
    let mut unit = vec![5];
    unit.extend_from_slice(&(less.len() as u32).to_be_bytes());
    unit.extend_from_slice(&less);
    assert_eq!(Decoder::new().unwrap().apply(&unit, &mut bytes), Err(UnitError::Packed));
    for (unit, why) in [
        (&[9][..], UnitError::Form(9)),
        (&[0, 1], UnitError::Length),
        (&[1, 0, 0], UnitError::Length),
        (&[1, 0, 0, 0, 1, 0, 0, 0, 0], UnitError::Place),
        (&[1, 255, 255, 255, 255, 255, 255, 255, 255], UnitError::Place),
        (&[5, 0, 0, 0, 9], UnitError::Length),
    ] {
        assert_eq!(Decoder::new().unwrap().apply(unit, &mut bytes), Err(why));
    }
}

thread_local! {
    static PAIR: RefCell<(Coder, Decoder)> =
        RefCell::new((Coder::new().unwrap(), Decoder::new().unwrap()));
}

proptest! {
    /// Each unit comes back, and is never longer than its bytes and one more.
    #[test]
    fn units_come_back(old in prop::collection::vec(any::<u8>(), 1..3_000), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..300)) {
        let mut new = old.clone();
        for (at, byte) in changes {
            let at = at.index(new.len());
            new[at] = byte;
        }
        PAIR.with_borrow_mut(|(coder, decoder)| {
            let mut coded = Vec::new();
            coder.code(&new, &old, &mut coded);
            prop_assert!(coded.len() <= new.len() + 1);
            let mut bytes = old.clone();
            decoder.apply(&coded, &mut bytes).unwrap();
            prop_assert_eq!(&bytes, &new);
            Ok(())
        })?;
    }

    /// Whatever comes as a unit or as a delta is refused or gives the right bytes: it does not panic.
    #[test]
    fn anything_may_come(coded in prop::collection::vec(any::<u8>(), 0..200), form in 0u8..9, len in 1usize..600) {
        let mut unit = vec![form];
        unit.extend_from_slice(&coded);
        let mut bytes = vec![0; len];
        let _ = PAIR.with_borrow_mut(|(_, decoder)| decoder.apply(&unit, &mut bytes));
    }

    /// A byte of a delta that is another one is noticed.
    #[test]
    fn a_damaged_delta_is_refused(at in any::<prop::sample::Index>(), bit in 0u8..8, seed: u64) {
        let mut random = Random(seed);
        let base = Bytes(random.bytes(300_000));
        let new = Bytes(random.changed(&base.0, 2, 200));
        let (delta, mut coded) = write_to(&new, &base, 1).unwrap();
        let at = at.index(coded.0.len());
        coded.0[at] ^= 1 << bit;
        match made(&delta, &coded, &base, 1) {
            // Some bits of a frame of zstd say nothing.
            Ok(bytes) => prop_assert!(bytes == new.0),
            Err(DeltaError::Io(error)) => prop_assert!(false, "{error}"),
            Err(_) => {}
        }
    }
}
