//! Holes of files: runs of zeros that take no room, and are not sent.

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

/// So many zeros, where they lie aligned, become a hole.
pub(crate) const HOLE_LEN: u64 = 64 << 10;

/// Returns the number of bytes of a file in holes that a copy of it has too: whole aligned pieces.
pub(crate) fn holes_len(file: &File, metadata: &Metadata) -> u64 {
    let len = metadata.len();
    if !has_holes(metadata) {
        return 0;
    }
    let (mut at, mut holes) = (0, 0);
    // Where the file system does not tell, there are none.
    while let Ok(hole) = rustix::fs::seek(file, SeekFrom::Hole(at)) {
        if hole >= len {
            break;
        }
        at = rustix::fs::seek(file, SeekFrom::Data(hole)).unwrap_or(len).min(len);
        let whole = |at: u64| at / HOLE_LEN * HOLE_LEN;
        holes += whole(at).saturating_sub(whole(hole + HOLE_LEN - 1));
    }
    holes
}

/// Returns true if a file may have holes: it has fewer blocks than its length needs.
pub(crate) fn has_holes(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.blocks().saturating_mul(512).saturating_add(HOLE_LEN) <= metadata.len()
}

/// Writes bytes where nothing was written before: zeros that would fill an aligned piece are left out.
pub(crate) fn write_sparse(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    write_pieces(file, bytes, at, |_, _| Ok(()))
}

/// Writes bytes over whatever is there: zeros that would fill an aligned piece become a hole or, on a file
/// system without holes, are written.
pub(crate) fn write_over(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    write_pieces(file, bytes, at, |zeros, at| {
        punch(file, at..at + zeros.len() as u64).or_else(|_| file.write_all_at(zeros, at))
    })
}

/// Makes a hole, which reads as zeros, and leaves the file's length as it is.
pub(crate) fn punch(file: &File, bytes: Range<u64>) -> Result<(), Errno> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, how, bytes.start, bytes.end - bytes.start)
}

/// Writes bytes, and gives zeros that would fill an aligned piece, and their place, to `zeros` instead.
fn write_pieces(
    file: &File,
    bytes: &[u8],
    at: u64,
    zeros: impl Fn(&[u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    let (mut begin, mut end) = (0, 0);
    while end < bytes.len() {
        let piece = (HOLE_LEN - (at + end as u64) % HOLE_LEN) as usize;
        let to = bytes.len().min(end + piece);
        if to - end == HOLE_LEN as usize && bytes[end..to].iter().all(|byte| *byte == 0) {
            file.write_all_at(&bytes[begin..end], at + begin as u64)?;
            zeros(&bytes[end..to], at + end as u64)?;
            begin = to;
        }
        end = to;
    }
    file.write_all_at(&bytes[begin..], at + begin as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shows_through_what_is_written_over_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let piece = HOLE_LEN as usize;
        file.write_all_at(&vec![7; 5 * piece], 0).unwrap();
        let mut bytes = vec![0; 4 * piece];
        bytes[piece + 9..2 * piece].fill(1);
        write_over(&file, &bytes, 100).unwrap();
        let mut expected = vec![7; 5 * piece];
        expected[100..100 + bytes.len()].copy_from_slice(&bytes);
        assert!(std::fs::read(&path).unwrap() == expected);
    }

    #[test]
    fn holes_are_counted_as_a_copy_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let count = || holes_len(&file, &file.metadata().unwrap());
        assert_eq!(count(), 0);
        file.set_len(10 * HOLE_LEN + 5).unwrap();
        assert_eq!(count(), 10 * HOLE_LEN);
        file.write_all_at(b"data", 3 * HOLE_LEN + 7).unwrap();
        assert_eq!(count(), 9 * HOLE_LEN);
        file.write_all_at(b"data", 10 * HOLE_LEN).unwrap();
        assert_eq!(count(), 9 * HOLE_LEN);
        let copy = File::create(folder.path().join("copy")).unwrap();
        let mut bytes = vec![0; 10 * HOLE_LEN as usize + 5];
        file.read_exact_at(&mut bytes, 0).unwrap();
        // In pieces that are not aligned.
        let (first, rest) = bytes.split_at(70_000);
        write_sparse(&copy, first, 0).unwrap();
        write_sparse(&copy, rest, 70_000).unwrap();
        assert_eq!(std::fs::read(folder.path().join("copy")).unwrap(), bytes);
        assert!(copy.metadata().unwrap().blocks() * 512 <= 4 * HOLE_LEN);
        // Data everywhere is not looked at any further.
        file.write_all_at(&[7; 10 * HOLE_LEN as usize], 0).unwrap();
        assert_eq!(count(), 0);
    }
}
