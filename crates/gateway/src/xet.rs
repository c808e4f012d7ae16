//! Files in the form of Xet, made of files that are whole and verified: xorbs of chunks that are stored as
//! they are.
//!
//! A xorb is a row of chunks, each with a header of 8 bytes before its bytes, and is called by a hash of its
//! chunks' hashes. Where its chunks begin in the file follows from its number alone, so that files of any
//! length need no table. Names are computed when they are asked for, and are the same for the same bytes.

use axum::body::{Body, Bytes};
use futures_util::stream;
use polycast_net::hash::keyed_hash;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::sync::Mutex as Turn;

/// Bytes of a chunk: the middle length of the hub's own ones, which have 128 KiB at most.
pub(crate) const CHUNK_LEN: u64 = 64 << 10;
/// Chunks of a xorb. Clients ask for several xorbs at a time, and hold each as a whole: 16 MiB is a quarter
/// of what the format allows.
const XORB_CHUNKS: u64 = 256;
/// Bytes of a file in a xorb.
pub(crate) const XORB_LEN: u64 = XORB_CHUNKS * CHUNK_LEN;
const HEADER_LEN: u64 = 8;
/// Bytes of a chunk with its header.
const PACKED_LEN: u64 = HEADER_LEN + CHUNK_LEN;
/// Chunks that are read at a time: 1 MiB.
const PIECE_CHUNKS: u64 = 16;
/// Nodes of a level that become one of the next: at most so many, and one on the average of these.
const FAN_MAX: usize = 9;
const FAN_MEAN: u8 = 4;

type Hash = [u8; 32];

/// The key of chunks' hashes, as the format says.
const CHUNK_KEY: Hash = [
    0x66, 0x97, 0xf5, 0x77, 0x5b, 0x95, 0x50, 0xde, 0x31, 0x35, 0xcb, 0xac, 0xa5, 0x97, 0x18, 0x1c, 0x9d,
    0xe4, 0x21, 0x10, 0x9b, 0xeb, 0x2b, 0x58, 0xb4, 0xd0, 0xb0, 0x4b, 0x93, 0xad, 0xf2, 0x29,
];
/// The key of the hashes of several.
const NODE_KEY: Hash = [
    0x01, 0x7e, 0xc5, 0xc7, 0xa5, 0x47, 0x29, 0x96, 0xfd, 0x94, 0x66, 0x66, 0xb4, 0x8a, 0x02, 0xe6, 0x5d,
    0xdd, 0x53, 0x6f, 0x37, 0xc7, 0x6d, 0xd2, 0xf8, 0x63, 0x52, 0xe6, 0x4a, 0x53, 0x71, 0x3f,
];

/// A xorb of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Xorb {
    /// The place of its first byte in the file.
    pub begin: u64,
    /// Bytes of the file in it.
    pub len: u64,
}

/// A part of a file, as chunks of a xorb.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Term {
    /// The xorb's number in the file.
    pub number: u64,
    pub chunks: Range<u64>,
    /// Bytes of the file in them.
    pub len: u64,
    /// The bytes of these chunks in the xorb, with their headers.
    pub packed: Range<u64>,
}

impl Xorb {
    /// A file's xorb, by its number.
    pub(crate) fn of(number: u64, size: u64) -> Option<Self> {
        let begin = number.checked_mul(XORB_LEN).filter(|begin| *begin < size)?;
        Some(Xorb { begin, len: XORB_LEN.min(size - begin) })
    }

    /// Its length with its headers.
    pub(crate) fn packed_len(self) -> u64 {
        self.len + HEADER_LEN * self.chunks()
    }

    fn chunks(self) -> u64 {
        self.len.div_ceil(CHUNK_LEN)
    }
}

/// The chunks that a range of a file lies in. There is one byte in it at least.
pub(crate) fn terms(range: &Range<u64>, size: u64) -> Vec<Term> {
    let numbers = range.start / XORB_LEN..range.end.min(size).div_ceil(XORB_LEN);
    let term = |number| {
        let xorb = Xorb::of(number, size)?;
        let first = range.start.saturating_sub(xorb.begin) / CHUNK_LEN;
        let last = (range.end - xorb.begin).div_ceil(CHUNK_LEN).min(xorb.chunks());
        let len = xorb.len.min(last * CHUNK_LEN) - first * CHUNK_LEN;
        let packed = first * PACKED_LEN..xorb.packed_len().min(last * PACKED_LEN);
        Some(Term { number, chunks: first..last, len, packed })
    };
    numbers.filter_map(term).collect()
}

/// A file that is here as a whole, and the names of its xorbs as far as they were asked for.
pub(crate) struct Whole {
    file: Arc<File>,
    size: u64,
    names: Turn<Vec<Option<String>>>,
}

impl Whole {
    pub(crate) fn new(file: Arc<File>, size: u64) -> Self {
        Whole { file, size, names: Turn::default() }
    }

    /// The names of xorbs.
    pub(crate) async fn names(&self, numbers: Range<u64>) -> io::Result<Vec<String>> {
        let mut known = self.names.lock().await;
        let len = known.len().max(numbers.end as usize);
        known.resize(len, None);
        let mut names = Vec::new();
        for number in numbers {
            let one = &mut known[number as usize];
            if one.is_none() {
                let xorb = Xorb::of(number, self.size).ok_or(io::ErrorKind::InvalidInput)?;
                let file = Arc::clone(&self.file);
                let hashed = tokio::task::spawn_blocking(move || name_of(&file, xorb)).await;
                *one = Some(hashed.map_err(io::Error::other)??);
            }
            names.extend(one.clone());
        }
        Ok(names)
    }

    /// A part of a xorb, as it is taken.
    pub(crate) fn body(&self, xorb: Xorb, range: Range<u64>) -> Body {
        let file = Arc::clone(&self.file);
        let pieces = stream::unfold((file, range), move |(file, left)| async move {
            if left.is_empty() {
                return None;
            }
            let next = (left.start / (PIECE_CHUNKS * PACKED_LEN) + 1) * PIECE_CHUNKS * PACKED_LEN;
            let (part, rest) = (left.start..next.min(left.end), next.min(left.end)..left.end);
            let reading = Arc::clone(&file);
            let piece = tokio::task::spawn_blocking(move || packed(&reading, xorb, &part)).await;
            Some((piece.map_err(io::Error::other).flatten(), (file, rest)))
        });
        Body::from_stream(pieces)
    }
}

/// Bytes of a xorb.
fn packed(file: &File, xorb: Xorb, part: &Range<u64>) -> io::Result<Bytes> {
    let chunks = part.start / PACKED_LEN..part.end.div_ceil(PACKED_LEN);
    let begin = chunks.start * PACKED_LEN;
    let mut bytes = Vec::with_capacity(((chunks.end - chunks.start) * PACKED_LEN) as usize);
    for chunk in chunks {
        let len = CHUNK_LEN.min(xorb.len - chunk * CHUNK_LEN);
        let [low, middle, high, ..] = len.to_le_bytes();
        // Version and way of compression are 0; both lengths are the same.
        bytes.extend([0, low, middle, high, 0, low, middle, high]);
        let at = bytes.len();
        bytes.resize(at + len as usize, 0);
        file.read_exact_at(&mut bytes[at..], xorb.begin + chunk * CHUNK_LEN)?;
    }
    Ok(Bytes::from(bytes).slice((part.start - begin) as usize..(part.end - begin) as usize))
}

fn name_of(file: &File, xorb: Xorb) -> io::Result<String> {
    let mut bytes = vec![0; CHUNK_LEN as usize];
    let mut chunks = Vec::new();
    for chunk in 0..xorb.chunks() {
        let at = chunk * CHUNK_LEN;
        let piece = &mut bytes[..CHUNK_LEN.min(xorb.len - at) as usize];
        file.read_exact_at(piece, xorb.begin + at)?;
        chunks.push((keyed_hash(&CHUNK_KEY, piece), piece.len() as u64));
    }
    Ok(hex(&root(chunks)))
}

/// The hash of all chunks: those of several become one, level by level, until one is left.
fn root(mut nodes: Vec<(Hash, u64)>) -> Hash {
    while nodes.len() > 1 {
        let (mut left, mut parents) = (&nodes[..], Vec::new());
        while !left.is_empty() {
            let (together, rest) = left.split_at(fan(left));
            let lines = together.iter().fold(String::new(), |mut lines, (hash, len)| {
                let _ = writeln!(lines, "{} : {len}", hex(hash));
                lines
            });
            let len = together.iter().map(|(_, len)| len).sum();
            parents.push((keyed_hash(&NODE_KEY, lines.as_bytes()), len));
            left = rest;
        }
        nodes = parents;
    }
    nodes.first().map_or([0; 32], |(hash, _)| *hash)
}

/// Number of nodes that become one: up to the first, after two, whose hash says so.
fn fan(nodes: &[(Hash, u64)]) -> usize {
    let end = nodes.len().min(FAN_MAX);
    let ends = |at: &usize| nodes[*at].0[24].is_multiple_of(FAN_MEAN);
    (2..end).find(ends).map_or(end, |at| at + 1)
}

/// A hash as Xet writes it: as four numbers, of which the lowest byte comes first in the hash.
fn hex(hash: &Hash) -> String {
    hash.chunks(8).flat_map(|number| number.iter().rev()).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns true if the text is a hash of 32 bytes.
pub(crate) fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;
    use std::io::Write as _;

    fn hash(text: &str) -> Hash {
        let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
        std::array::from_fn(|at| byte(at / 8 * 8 + 7 - at % 8))
    }

    /// Hashes that the format's own tests name.
    #[test]
    fn hashes_are_those_of_the_format() {
        const ONE: &str = "cfc5d07f6f03c29bbf424132963fe08d19a37d5757aaf520bf08119f05cd56d6";
        const TWO: &str = "c3e67584b5c4fc2a89837ec39e40f2c8a6bb0b2987ac94cd4b31e5fbdd210a72";
        const THREE: &str = "0d2beb91b9196929a5ddec9f6e306924ddf4a24268e3e59fd8464738d525af37";
        let (one, two, three) = ((hash(ONE), 100), (hash(TWO), 200), (hash(THREE), 300));
        for (nodes, root_hash) in [
            (vec![one], ONE),
            (vec![one, two, three], "71ec1275fca074724e2dd666921b3277c7cee603e4d025bcab2d4050015be2bc"),
            (vec![one, two, one, two], "90f8313ef12df385d237a067aded02562c35ded12116e32eba401dbc86c38031"),
            (vec![one; 4], "89f2ada89ff8c96763c6b25010e6dd76a4c05b1466207633ea559acf2093211b"),
            (vec![one; 32], "0a0123c1617921883b7e13902095fcb86676e77c49120c33b233003b0af0e0a6"),
        ] {
            assert_eq!(hex(&root(nodes.clone())), root_hash, "{} nodes", nodes.len());
        }
        // A file of one chunk, by the client's own library: its chunk's hash, hashed with a key of zeros.
        let file = |bytes: &[u8]| hex(&keyed_hash(&[0; 32], &keyed_hash(&CHUNK_KEY, bytes)));
        let hello = "f15edd43b7e85cfd25e2758ffe13b99fdd09dfa817e8d9f6548722a7a126db7f";
        assert_eq!(file(b"hello world"), hello);
    }

    /// The rows are contiguous, whatever is asked for, and give these bytes.
    #[test]
    fn every_range_of_files_of_any_length_is_made_of_chunks() {
        let gib = 1u64 << 30;
        for size in [1, CHUNK_LEN, CHUNK_LEN + 1, XORB_LEN, XORB_LEN + 1, 61 * gib + 12_345, 5_000 * gib] {
            let ranges = [0..size, 0..1, size - 1..size, size / 2..size, size / 3..size / 3 + 1];
            for range in ranges.into_iter().filter(|range| !range.is_empty()) {
                let terms = terms(&range, size);
                let mut at = range.start / CHUNK_LEN * CHUNK_LEN;
                for term in &terms {
                    let xorb = Xorb::of(term.number, size).unwrap();
                    assert_eq!(xorb.begin + term.chunks.start * CHUNK_LEN, at, "{range:?} of {size}");
                    let headers = HEADER_LEN * (term.chunks.end - term.chunks.start);
                    assert_eq!(term.packed.end - term.packed.start, term.len + headers);
                    assert!(term.packed.end <= xorb.packed_len() && xorb.packed_len() <= 64 << 20);
                    at += term.len;
                }
                assert!(at >= range.end && at < range.end + CHUNK_LEN && at <= size, "{range:?} of {size}");
                assert!(terms.iter().map(|term| term.len).sum::<u64>() > 0);
            }
            assert_eq!(Xorb::of(size.div_ceil(XORB_LEN), size), None);
        }
        assert_eq!(Xorb::of(u64::MAX, u64::MAX), None);
    }

    #[tokio::test]
    async fn what_is_unpacked_is_the_file_and_names_follow_from_its_bytes() {
        let size = XORB_LEN + CHUNK_LEN + 17;
        let bytes: Vec<u8> = (0..size).map(|at| (at ^ at >> 7 ^ at >> 17) as u8).collect();
        let whole = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            Whole::new(Arc::new(file), bytes.len() as u64)
        };
        let own = whole(&bytes);
        let mut unpacked: Vec<u8> = Vec::new();
        for number in 0..2 {
            let xorb = Xorb::of(number, size).unwrap();
            let packed = to_bytes(own.body(xorb, 0..xorb.packed_len()), usize::MAX).await.unwrap();
            let mut left = &packed[..];
            while let Some((header, rest)) = left.split_first_chunk::<8>() {
                let len = u32::from_le_bytes([header[1], header[2], header[3], 0]) as usize;
                assert_eq!((header[0], header[4], &header[1..4]), (0, 0, &header[5..8]));
                unpacked.extend(&rest[..len]);
                left = &rest[len..];
            }
            // Any part of it is a part of the same bytes.
            for part in [0..1, 7..PACKED_LEN + 9, xorb.packed_len() - 3..xorb.packed_len()] {
                let some = to_bytes(own.body(xorb, part.clone()), usize::MAX).await.unwrap();
                assert!(some == packed[part.start as usize..part.end as usize], "{part:?}");
            }
        }
        assert!(unpacked == bytes);
        let names = own.names(0..2).await.unwrap();
        assert_eq!(names, whole(&bytes).names(0..2).await.unwrap());
        let mut other = bytes.clone();
        other[5] ^= 1;
        let other = whole(&other).names(0..2).await.unwrap();
        assert!(names[0] != other[0] && names[1] == other[1]);
    }
}
