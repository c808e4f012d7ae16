//! One unit of a delta: bytes of a new version against those at the same place of its base.
//!
//! Weights change in single elements, spread over all of them. So a unit is the XOR of both, as whichever of
//! these is shorter:
//!
//! | first byte | what follows |
//! | --- | --- |
//! | no byte at all | the unit is as in the base |
//! | 0 | the bytes of the new version |
//! | 1 to 4 | changed elements of 1, 2, 4 or 8 bytes: how many (4 bytes), bytes of their gaps (4), then streams: the gaps, and the first, second, .. byte of each element's XOR |
//! | 5 to 8 | streams: the first, second, .. byte of the XOR of all elements of 1, 2, 4 or 8 bytes |
//!
//! A gap is the number of elements between a changed one and the one before it, as bytes whose sum it is: all
//! of them but the last are 255. A stream is its length (4 bytes; the highest bit says that it stands there
//! as it is), and its bytes or a frame of zstd.

use thiserror::Error;
use zstd::bulk::{Compressor, Decompressor};

/// Bytes of a unit: enough for the tables of zstd to pay, little enough for the second-level cache.
pub(crate) const UNIT_LEN: usize = 1 << 20;
/// The level of zstd. Streams are single bytes of elements, in which there is little to search for.
const LEVEL: i32 = 1;
/// Elements of which more than one in so many words of 8 bytes has changed are not listed.
const LISTED: usize = 2;
const PLAIN: u8 = 0;
const LIST: u8 = 1;
const PLANES: u8 = 5;
/// The bytes of an element, by the number that is added to the form.
const ELEMENTS: [usize; 4] = [1, 2, 4, 8];
const STORED: u32 = 1 << 31;
const WORD: usize = 8;
/// Bytes that show which elements a unit has.
const TRIED: usize = 64 << 10;

/// Error in a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum UnitError {
    /// Its first byte is none that this version knows.
    #[error("a unit has a form that is not known here ({0})")]
    Form(u8),
    /// It ends too early, or goes on behind its end.
    #[error("a unit is cut off, or has more than it says")]
    Length,
    /// An element lies behind the unit's end.
    #[error("a unit changes what lies behind its end")]
    Place,
    /// It unpacks to more, or less, than it says, or is no frame of zstd.
    #[error("a unit does not unpack to its length")]
    Packed,
}

/// Codes units.
pub(crate) struct Coder {
    zstd: Compressor<'static>,
    /// Changed words: where, and their XOR.
    changed: Vec<(u32, u64)>,
    streams: [Vec<u8>; WORD + 1],
}

impl Coder {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Coder { zstd: Compressor::new(LEVEL)?, changed: Vec::new(), streams: Default::default() })
    }

    /// Appends the unit whose bytes are `new`, at the place where its base has `base`, to `coded`.
    ///
    /// # Panics
    /// They are not of one length.
    pub(crate) fn code(&mut self, new: &[u8], base: &[u8], coded: &mut Vec<u8>) {
        assert!(new.len() == base.len() && new.len() <= UNIT_LEN, "a unit lies at one place");
        let begin = coded.len();
        if self.look(new, base) {
            if self.changed.is_empty() {
                return;
            }
            self.list(coded);
        } else {
            self.planes(new, base, coded);
        }
        // A sixteenth is not worth the time that it takes to unpack.
        if coded.len() - begin > new.len() - new.len() / 16 {
            coded.truncate(begin);
            coded.push(PLAIN);
            coded.extend_from_slice(new);
        }
    }

    /// Finds the changed words; gives whether they are few.
    fn look(&mut self, new: &[u8], base: &[u8]) -> bool {
        /// Words that are looked at together: mostly none has changed.
        const TOGETHER: usize = 8;
        let most = new.len() / WORD / LISTED;
        self.changed.clear();
        let (rows, rest) = new.as_chunks::<{ TOGETHER * WORD }>();
        let (base_rows, base_rest) = base.as_chunks::<{ TOGETHER * WORD }>();
        for (row, (new, base)) in rows.iter().zip(base_rows).enumerate() {
            let mut xor = [0; TOGETHER];
            let words = new.as_chunks::<WORD>().0.iter().zip(base.as_chunks::<WORD>().0);
            for (xor, (new, base)) in xor.iter_mut().zip(words) {
                *xor = u64::from_le_bytes(*new) ^ u64::from_le_bytes(*base);
            }
            if xor.iter().fold(0, |any, xor| any | xor) == 0 {
                continue;
            }
            for (at, xor) in xor.into_iter().enumerate().filter(|(_, xor)| *xor != 0) {
                self.changed.push(((row * TOGETHER + at) as u32, xor));
            }
            if self.changed.len() > most {
                return false;
            }
        }
        let first = rows.len() * TOGETHER;
        for (at, (new, base)) in rest.chunks(WORD).zip(base_rest.chunks(WORD)).enumerate() {
            let xor = word(new) ^ word(base);
            if xor != 0 {
                self.changed.push(((first + at) as u32, xor));
            }
        }
        true
    }

    /// Lists the elements that have changed.
    fn list(&mut self, coded: &mut Vec<u8>) {
        let mut counts = [0usize; ELEMENTS.len()];
        for (_, xor) in &self.changed {
            for (count, element) in counts.iter_mut().zip(ELEMENTS) {
                *count += lanes(*xor, element).filter(|lane| *lane != 0).count();
            }
        }
        // A byte for each gap, and those of the element.
        let sizes = counts.iter().zip(ELEMENTS).map(|(count, element)| count * (1 + element));
        let (size, _) = sizes.enumerate().min_by_key(|(_, size)| *size).expect("there are four");
        let element = ELEMENTS[size];
        self.streams.iter_mut().for_each(Vec::clear);
        let [gaps, planes @ ..] = &mut self.streams;
        let mut next = 0;
        for (at, xor) in &self.changed {
            let first = *at as usize * (WORD / element);
            for (at, lane) in lanes(*xor, element).enumerate().filter(|(_, lane)| *lane != 0) {
                let mut gap = first + at - next;
                while gap >= 255 {
                    gaps.push(255);
                    gap -= 255;
                }
                gaps.push(gap as u8);
                next = first + at + 1;
                for (plane, byte) in planes.iter_mut().zip(&lane.to_le_bytes()[..element]) {
                    plane.push(*byte);
                }
            }
        }
        coded.push(LIST + size as u8);
        coded.extend_from_slice(&(counts[size] as u32).to_be_bytes());
        coded.extend_from_slice(&(gaps.len() as u32).to_be_bytes());
        for stream in &self.streams[..=element] {
            pack(&mut self.zstd, stream, coded);
        }
    }

    /// The XOR of all elements, byte by byte.
    fn planes(&mut self, new: &[u8], base: &[u8], coded: &mut Vec<u8>) {
        let tried = new.len().min(TRIED);
        let mut best = (0, usize::MAX);
        let mut packed = Vec::new();
        for size in 0..ELEMENTS.len() {
            packed.clear();
            self.planes_of(size, &new[..tried], &base[..tried], &mut packed);
            if packed.len() < best.1 {
                best = (size, packed.len());
            }
        }
        self.planes_of(best.0, new, base, coded);
    }

    fn planes_of(&mut self, size: usize, new: &[u8], base: &[u8], coded: &mut Vec<u8>) {
        coded.push(PLANES + size as u8);
        match ELEMENTS[size] {
            1 => self.split::<1>(new, base, coded),
            2 => self.split::<2>(new, base, coded),
            4 => self.split::<4>(new, base, coded),
            _ => self.split::<8>(new, base, coded),
        }
    }

    fn split<const ELEMENT: usize>(&mut self, new: &[u8], base: &[u8], coded: &mut Vec<u8>) {
        let plane = &mut self.streams[0];
        let (whole, rest) = new.as_chunks::<ELEMENT>();
        let (base_whole, base_rest) = base.as_chunks::<ELEMENT>();
        for at in 0..ELEMENT {
            plane.clear();
            plane.extend(whole.iter().zip(base_whole).map(|(new, base)| new[at] ^ base[at]));
            if !rest.is_empty() {
                // The last element is shorter.
                plane.push(rest.get(at).zip(base_rest.get(at)).map_or(0, |(new, base)| new ^ base));
            }
            pack(&mut self.zstd, plane, coded);
        }
    }
}

/// Takes units apart.
pub(crate) struct Decoder {
    zstd: Decompressor<'static>,
    streams: [Vec<u8>; WORD + 1],
}

impl Decoder {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Decoder { zstd: Decompressor::new()?, streams: Default::default() })
    }

    /// Makes of `bytes`, which are those of the base, those of the new version.
    ///
    /// # Errors
    /// No coder has made the unit. The bytes are of no use then.
    pub(crate) fn apply(&mut self, mut coded: &[u8], bytes: &mut [u8]) -> Result<(), UnitError> {
        let Some((form, rest)) = coded.split_first() else { return Ok(()) };
        coded = rest;
        match *form {
            PLAIN if coded.len() == bytes.len() => {
                bytes.copy_from_slice(coded);
                return Ok(());
            }
            PLAIN => return Err(UnitError::Length),
            LIST..PLANES => self.apply_list(ELEMENTS[usize::from(form - LIST)], &mut coded, bytes)?,
            PLANES..=8 => self.apply_planes(ELEMENTS[usize::from(form - PLANES)], &mut coded, bytes)?,
            other => return Err(UnitError::Form(other)),
        }
        if coded.is_empty() { Ok(()) } else { Err(UnitError::Length) }
    }

    fn apply_list(&mut self, element: usize, coded: &mut &[u8], bytes: &mut [u8]) -> Result<(), UnitError> {
        let (count, gaps_len) = (number(coded)? as usize, number(coded)? as usize);
        let elements = bytes.len().div_ceil(element);
        if count > elements || gaps_len < count || gaps_len > count + elements / 255 {
            return Err(UnitError::Place);
        }
        unpack(&mut self.zstd, coded, gaps_len, &mut self.streams[0])?;
        for stream in &mut self.streams[1..=element] {
            unpack(&mut self.zstd, coded, count, stream)?;
        }
        let [gaps, planes @ ..] = &self.streams;
        let (mut next, mut listed) = (0, 0);
        for gap in gaps {
            next += usize::from(*gap);
            if *gap == 255 {
                continue;
            }
            if listed >= count {
                return Err(UnitError::Place);
            }
            let at = next * element;
            let Some(changed) = bytes.get_mut(at..) else { return Err(UnitError::Place) };
            // The last element may be shorter than the others.
            for (byte, plane) in changed.iter_mut().zip(&planes[..element]) {
                *byte ^= plane[listed];
            }
            (next, listed) = (next + 1, listed + 1);
        }
        if listed == count { Ok(()) } else { Err(UnitError::Place) }
    }

    fn apply_planes(&mut self, element: usize, coded: &mut &[u8], bytes: &mut [u8]) -> Result<(), UnitError> {
        let elements = bytes.len().div_ceil(element);
        for stream in &mut self.streams[..element] {
            unpack(&mut self.zstd, coded, elements, stream)?;
        }
        match element {
            1 => self.join::<1>(bytes),
            2 => self.join::<2>(bytes),
            4 => self.join::<4>(bytes),
            _ => self.join::<8>(bytes),
        }
        Ok(())
    }

    fn join<const ELEMENT: usize>(&self, bytes: &mut [u8]) {
        let (whole, rest) = bytes.as_chunks_mut::<ELEMENT>();
        let last = whole.len();
        for (at, plane) in self.streams[..ELEMENT].iter().enumerate() {
            whole.iter_mut().zip(plane).for_each(|(element, xor)| element[at] ^= xor);
            // The last element is shorter.
            if let (Some(byte), Some(xor)) = (rest.get_mut(at), plane.get(last)) {
                *byte ^= xor;
            }
        }
    }
}

/// A word of at most 8 bytes; those that it lacks are zeros.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The elements of a word.
fn lanes(word: u64, element: usize) -> impl Iterator<Item = u64> {
    let bits = 8 * element as u32;
    let mask = u64::MAX >> (64 - bits);
    (0..WORD / element).map(move |lane| (word >> (lane as u32 * bits)) & mask)
}

fn number(coded: &mut &[u8]) -> Result<u32, UnitError> {
    let (number, rest) = coded.split_first_chunk().ok_or(UnitError::Length)?;
    *coded = rest;
    Ok(u32::from_be_bytes(*number))
}

/// Appends a stream.
fn pack(zstd: &mut Compressor<'_>, stream: &[u8], coded: &mut Vec<u8>) {
    let begin = coded.len();
    coded.resize(begin + 4 + zstd::zstd_safe::compress_bound(stream.len()), 0);
    // It has the room that it needs at most: where it fails all the same the stream goes as it is.
    let packed = zstd.compress_to_buffer(stream, &mut coded[begin + 4..]).unwrap_or(usize::MAX);
    let said = if packed < stream.len() {
        coded.truncate(begin + 4 + packed);
        packed as u32
    } else {
        coded.truncate(begin + 4);
        coded.extend_from_slice(stream);
        stream.len() as u32 | STORED
    };
    coded[begin..begin + 4].copy_from_slice(&said.to_be_bytes());
}

/// Takes a stream that unpacks to so many bytes, and to no more memory than that.
fn unpack(
    zstd: &mut Decompressor<'_>,
    coded: &mut &[u8],
    len: usize,
    stream: &mut Vec<u8>,
) -> Result<(), UnitError> {
    let said = number(coded)?;
    let (packed, rest) = coded.split_at_checked((said & !STORED) as usize).ok_or(UnitError::Length)?;
    *coded = rest;
    stream.clear();
    if said & STORED != 0 {
        stream.extend_from_slice(packed);
    } else {
        stream.resize(len, 0);
        let unpacked = zstd.decompress_to_buffer(packed, &mut stream[..]).map_err(|_| UnitError::Packed)?;
        stream.truncate(unpacked);
    }
    if stream.len() == len { Ok(()) } else { Err(UnitError::Packed) }
}
