//! From datagrams to verified bytes in the store, with one copy between the socket and the store.
//!
//! Fragments land in group buffers (slots) that are small enough to stay in the processor's cache: a
//! receive scatters the expected fragments to where they belong, a whole group is hashed while it is
//! warm, and only then written to the part file. A group that stays incomplete for long is spilled to the
//! part file and read back for its check, so that memory stays bounded whatever is lost.

use polycast_net::hash::{group_hash, keyed_hash};
use polycast_net::object::ObjectSource;
use polycast_net::store::{PartFile, StoreError};
use polycast_protocol::push::Geometry;
use polycast_wire::control::{Hash, Salt, proven_group};
use polycast_wire::data::{FRAGMENT_TAGS_LEN, HEADER_LEN};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSliceMut;
use std::ops::Range;

/// Limit on the number of group buffers: 24 MiB with groups of 256 KiB.
const SLOTS_MAX: usize = 96;

/// Room for a fragment's header with its tags.
pub(crate) type HeaderRoom = [u8; HEADER_LEN + FRAGMENT_TAGS_LEN];

/// Assembles one object.
pub(crate) struct Assembler {
    geometry: Geometry,
    part: PartFile,
    slots: BTreeMap<u64, Vec<u8>>,
    free: Vec<Vec<u8>>,
    /// Incomplete groups whose bytes are in the part file instead of a slot.
    spilled: BTreeSet<u64>,
    hashes: Vec<Hash>,
    /// Whole groups whose hash has not come yet.
    unhashed: BTreeSet<u64>,
    verified: Vec<bool>,
    /// So many of the first groups are verified without a gap.
    first_gap: u64,
    scratch: Vec<u8>,
}

/// The outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Check {
    /// Right, and written.
    Intact,
    /// Wrong bytes.
    Corrupt,
    /// The hash has not come yet: it will be checked when it does.
    Later,
}

impl Assembler {
    pub(crate) fn new(geometry: Geometry, part: PartFile) -> Self {
        Assembler {
            part,
            slots: BTreeMap::new(),
            free: Vec::new(),
            spilled: BTreeSet::new(),
            hashes: Vec::new(),
            unhashed: BTreeSet::new(),
            verified: vec![false; geometry.groups() as usize],
            first_gap: 0,
            scratch: Vec::new(),
            geometry,
        }
    }

    pub(crate) fn part_mut(&mut self) -> &mut PartFile {
        &mut self.part
    }

    pub(crate) fn into_part(self) -> PartFile {
        self.part
    }

    /// Hashes that have come so far, in order of groups.
    pub(crate) fn hashes(&self) -> &[Hash] {
        &self.hashes
    }

    /// Takes in hashes; gives the whole groups that can be checked now.
    pub(crate) fn add_hashes(&mut self, first: u64, hashes: &[Hash]) -> Vec<u64> {
        let room = self.geometry.groups().saturating_sub(self.hashes.len() as u64) as usize;
        // The source sends them in order; anything else is not of this protocol.
        if first == self.hashes.len() as u64 && hashes.len() <= room {
            self.hashes.extend_from_slice(hashes);
        }
        let known = self.hashes.len() as u64;
        let ready: Vec<u64> = self.unhashed.range(..known).copied().collect();
        ready.iter().for_each(|group| {
            self.unhashed.remove(group);
        });
        ready
    }

    /// Adds the places where a receive may scatter fragments `sn .. sn + count`: header, payload, header,
    /// payload ... Returns the number of fragments that they really cover; what follows them in the datagram
    /// needs room behind. `outers` holds the network's own headers, of which each comes before ours; it is
    /// empty where there are none. Our headers are `header_len` long.
    pub(crate) fn scatter<'a>(
        &'a mut self,
        sn: u64,
        count: usize,
        (headers, header_len): (&'a mut [HeaderRoom], usize),
        outers: &'a mut [u8],
        parts: &mut Vec<IoSliceMut<'a>>,
    ) -> Result<usize, StoreError> {
        let count = count.min(headers.len());
        if count == 0 {
            return Ok(0);
        }
        let groups = self.geometry.groups_of_fragments(sn..sn + count as u64);
        for group in groups.clone() {
            if self.verified[group as usize] || self.spilled.contains(&group) {
                return Ok(0);
            }
            self.ensure_slot(group, &groups)?;
        }
        let start = self.geometry.fragment_bytes(sn).start;
        let outer_len = outers.len() / headers.len();
        let mut outers = outers.chunks_mut(outer_len.max(1));
        let mut slots = self.slots.range_mut(groups);
        let mut current: &mut [u8] = &mut [];
        for (i, header) in headers[..count].iter_mut().enumerate() {
            parts.extend(outers.next().map(IoSliceMut::new));
            parts.push(IoSliceMut::new(&mut header[..header_len]));
            let bytes = self.geometry.fragment_bytes(sn + i as u64);
            let mut need = (bytes.end - bytes.start) as usize;
            while need > 0 {
                if current.is_empty() {
                    let (group, slot) = slots.next().expect("a slot for every group of these fragments");
                    let whole = self.geometry.group_bytes(*group);
                    let skip = start.saturating_sub(whole.start) as usize;
                    current = &mut slot[skip..(whole.end - whole.start) as usize];
                }
                let len = need.min(current.len());
                let (piece, rest) = std::mem::take(&mut current).split_at_mut(len);
                need -= piece.len();
                parts.push(IoSliceMut::new(piece));
                current = rest;
            }
        }
        Ok(count)
    }

    /// Puts one fragment's bytes where they belong; verified groups stay as they are.
    pub(crate) fn store(&mut self, sn: u64, payload: &[u8]) -> Result<(), StoreError> {
        let bytes = self.geometry.fragment_bytes(sn);
        assert_eq!(payload.len() as u64, bytes.end - bytes.start, "the length was checked on arrival");
        let groups = self.geometry.groups_of_fragments(sn..sn + 1);
        for group in groups.clone() {
            let whole = self.geometry.group_bytes(group);
            let piece = bytes.start.max(whole.start)..bytes.end.min(whole.end);
            if self.verified[group as usize] || piece.is_empty() {
                continue;
            }
            let from = &payload[local(&piece, bytes.start)];
            if self.spilled.contains(&group) {
                self.part.write(from, piece.start)?;
            } else {
                self.ensure_slot(group, &groups)?;
                let slot = self.slots.get_mut(&group).expect("ensured above");
                slot[local(&piece, whole.start)].copy_from_slice(from);
            }
        }
        Ok(())
    }

    /// Combines a fragment that is there into `sum` by XOR.
    pub(crate) fn add_to(&mut self, sum: &mut [u8], sn: u64) -> Result<(), StoreError> {
        let bytes = self.geometry.fragment_bytes(sn);
        for group in self.geometry.groups_of_fragments(sn..sn + 1) {
            let whole = self.geometry.group_bytes(group);
            let piece = bytes.start.max(whole.start)..bytes.end.min(whole.end);
            let to = &mut sum[local(&piece, bytes.start)];
            if let Some(slot) = self.slots.get(&group) {
                xor(to, &slot[local(&piece, whole.start)]);
            } else {
                self.scratch.resize(to.len(), 0);
                self.part.read(&mut self.scratch, piece.start)?;
                xor(to, &self.scratch);
            }
        }
        Ok(())
    }

    /// Checks a whole group and writes it if it is right.
    pub(crate) fn check(&mut self, group: u64) -> Result<Check, StoreError> {
        let Some(expected) = self.hashes.get(group as usize).copied() else {
            self.unhashed.insert(group);
            return Ok(Check::Later);
        };
        let bytes = self.geometry.group_bytes(group);
        let len = (bytes.end - bytes.start) as usize;
        let spilled = self.spilled.contains(&group);
        let slot = if spilled || len == 0 {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.resize(len, 0);
            if spilled {
                self.part.read(&mut scratch, bytes.start)?;
            }
            scratch
        } else {
            self.slots.remove(&group).expect("a whole group is in a slot or spilled")
        };
        let intact = self.hash(&slot[..len], group) == expected;
        let put = if intact { self.put(group, &slot[..len], spilled) } else { Ok(()) };
        if spilled || len == 0 {
            self.scratch = slot;
        } else if intact {
            self.free.push(slot);
        } else {
            self.slots.insert(group, slot);
        }
        put?;
        Ok(if intact { Check::Intact } else { Check::Corrupt })
    }

    /// Checks what an earlier try left in the part file for this group.
    pub(crate) fn check_held(&mut self, group: u64) -> Result<bool, StoreError> {
        let bytes = self.geometry.group_bytes(group);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize((bytes.end - bytes.start) as usize, 0);
        self.part.read(&mut scratch, bytes.start)?;
        let intact = self.hashes.get(group as usize) == Some(&self.hash(&scratch, group));
        let put = if intact { self.put(group, &scratch, true) } else { Ok(()) };
        self.scratch = scratch;
        put?;
        Ok(intact)
    }

    /// Takes a group from an older version, if it is the object's there. The bytes that are written are those
    /// that were hashed. They begin at `at` there.
    pub(crate) fn take_from(
        &mut self,
        older: &dyn ObjectSource,
        group: u64,
        at: u64,
    ) -> Result<bool, StoreError> {
        let bytes = self.geometry.group_bytes(group);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize((bytes.end - bytes.start) as usize, 0);
        // One that cannot be read any more has nothing: it comes like the rest.
        let read = older.read_exact_at(&mut scratch, at).is_ok();
        let intact = read && self.hashes.get(group as usize) == Some(&self.hash(&scratch, group));
        let put = if intact { self.put(group, &scratch, false) } else { Ok(()) };
        self.scratch = scratch;
        put?;
        Ok(intact)
    }

    /// Returns true if a group is not here yet.
    pub(crate) fn lacks(&self, group: u64) -> bool {
        !self.verified[group as usize]
    }

    /// Takes a group that came over TCP whole; gives whether it is right (`Later` where its hash is not
    /// there).
    pub(crate) fn accept(&mut self, group: u64, payload: &[u8]) -> Result<Check, StoreError> {
        let bytes = self.geometry.group_bytes(group);
        if payload.len() as u64 != bytes.end - bytes.start {
            return Ok(Check::Corrupt);
        }
        let Some(expected) = self.hashes.get(group as usize) else { return Ok(Check::Later) };
        if self.hash(payload, group) != *expected {
            return Ok(Check::Corrupt);
        }
        if !self.verified[group as usize] {
            self.put(group, payload, false)?;
        }
        Ok(Check::Intact)
    }

    fn hash(&self, bytes: &[u8], group: u64) -> Hash {
        group_hash(bytes, group, self.geometry.group_len, self.geometry.groups())
    }

    /// Puts a right group where it belongs; `written` says that it is in the part file already.
    fn put(&mut self, group: u64, bytes: &[u8], written: bool) -> Result<(), StoreError> {
        self.settle(group);
        let row_to = self.geometry.group_bytes(self.first_gap.saturating_sub(1)).end;
        let verified_to = if self.first_gap == 0 { 0 } else { row_to };
        self.part.put(bytes, self.geometry.group_bytes(group).start, verified_to, written)
    }

    fn settle(&mut self, group: u64) {
        self.verified[group as usize] = true;
        while self.verified.get(self.first_gap as usize) == Some(&true) {
            self.first_gap += 1;
        }
        self.spilled.remove(&group);
        self.unhashed.remove(&group);
        self.free.extend(self.slots.remove(&group));
    }

    /// Makes sure that `group` has a slot, without taking one of `needed`.
    fn ensure_slot(&mut self, group: u64, needed: &Range<u64>) -> Result<(), StoreError> {
        if self.slots.contains_key(&group) {
            return Ok(());
        }
        if self.slots.len() >= SLOTS_MAX {
            let oldest =
                self.slots.keys().copied().find(|g| !needed.contains(g)).expect("a datagram needs few slots");
            let slot = self.slots.remove(&oldest).expect("its key was just found");
            let bytes = self.geometry.group_bytes(oldest);
            self.part.write(&slot[..(bytes.end - bytes.start) as usize], bytes.start)?;
            self.spilled.insert(oldest);
            self.free.push(slot);
        }
        let slot = self.free.pop().unwrap_or_else(|| vec![0; self.geometry.group_len as usize]);
        self.slots.insert(group, slot);
        Ok(())
    }
}

/// Computes the proof for the source that this end has a verified object: see DATA_RCVD.
pub(crate) fn prove(part: &PartFile, geometry: &Geometry, salt: &Salt) -> Result<Hash, StoreError> {
    let range = geometry.group_bytes(proven_group(salt, geometry.groups()));
    let mut bytes = vec![0; (range.end - range.start) as usize];
    part.read(&mut bytes, range.start)?;
    Ok(keyed_hash(salt, &bytes))
}

/// A byte range of the object as indices into a buffer that starts at `origin`.
fn local(bytes: &Range<u64>, origin: u64) -> Range<usize> {
    (bytes.start - origin) as usize..(bytes.end - origin) as usize
}

/// `to ^= from`, for equal lengths.
pub(crate) fn xor(to: &mut [u8], from: &[u8]) {
    for (a, b) in to.iter_mut().zip(from) {
        *a ^= b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::store::PartFile;

    fn object(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 977) as u8).collect()
    }

    fn setup(len: usize, fragment_len: u32) -> (tempfile::TempDir, Assembler, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry { object_len: len as u64, fragment_len, group_len: 1 << 16 };
        let part =
            PartFile::open(&dir.path().join("object"), len as u64, polycast_net::store::Placing::default())
                .unwrap();
        let bytes = object(len);
        let mut assembler = Assembler::new(geometry, part);
        let hashes: Vec<Hash> = (0..geometry.groups())
            .map(|g| {
                let r = geometry.group_bytes(g);
                group_hash(&bytes[r.start as usize..r.end as usize], g, 1 << 16, geometry.groups())
            })
            .collect();
        assembler.add_hashes(0, &hashes);
        (dir, assembler, bytes)
    }

    fn fragment(assembler: &Assembler, bytes: &[u8], sn: u64) -> Vec<u8> {
        let r = assembler.geometry.fragment_bytes(sn);
        bytes[r.start as usize..r.end as usize].to_vec()
    }

    /// Far more incomplete groups than slots: they spill, are patched in the file and still verify.
    #[test]
    fn groups_spill_and_are_still_verified() {
        let (dir, mut assembler, bytes) = setup(200 << 16, 9_000);
        let geometry = assembler.geometry;
        for parity in [0, 1] {
            for sn in (0..geometry.fragments()).filter(|sn| sn % 2 == parity) {
                let payload = fragment(&assembler, &bytes, sn);
                assembler.store(sn, &payload).unwrap();
            }
        }
        assert!(assembler.slots.len() <= SLOTS_MAX && !assembler.spilled.is_empty());
        for group in 0..geometry.groups() {
            assert_eq!(assembler.check(group).unwrap(), Check::Intact, "group {group}");
        }
        let path = assembler.into_part().commit(0o644, None).unwrap();
        assert!(std::fs::read(path).unwrap() == bytes);
        drop(dir);
    }

    #[test]
    fn a_corrupt_group_is_found_and_can_be_mended() {
        let (_dir, mut assembler, bytes) = setup(3 << 16, 5_000);
        for sn in 0..assembler.geometry.fragments() {
            let mut payload = fragment(&assembler, &bytes, sn);
            if sn == 20 {
                payload[100] ^= 1;
            }
            assembler.store(sn, &payload).unwrap();
        }
        assert_eq!(assembler.check(0).unwrap(), Check::Intact);
        assert_eq!(assembler.check(1).unwrap(), Check::Corrupt);
        let payload = fragment(&assembler, &bytes, 20);
        assembler.store(20, &payload).unwrap();
        assert_eq!(assembler.check(1).unwrap(), Check::Intact);
    }

    /// A scatter list covers exactly the fragments' bytes, headers between, across group borders.
    #[test]
    fn scattered_fragments_land_where_they_belong() {
        let (_dir, mut assembler, bytes) = setup((2 << 16) + 123, 7_000);
        let fragments = assembler.geometry.fragments();
        let mut sn = 0;
        while sn < fragments {
            let count = (fragments - sn).min(7) as usize;
            let payloads: Vec<Vec<u8>> =
                (0..count as u64).map(|i| fragment(&assembler, &bytes, sn + i)).collect();
            let mut headers = vec![[0; HEADER_LEN + FRAGMENT_TAGS_LEN]; 7];
            let mut parts = Vec::new();
            assert_eq!(
                assembler.scatter(sn, count, (&mut headers, HEADER_LEN), &mut [], &mut parts).unwrap(),
                count
            );
            let stream: Vec<u8> =
                payloads.iter().flat_map(|p| [vec![9; HEADER_LEN], p.clone()].concat()).collect();
            let mut at = 0;
            for part in &mut parts {
                let len = part.len();
                part.copy_from_slice(&stream[at..at + len]);
                at += len;
            }
            assert_eq!(at, stream.len());
            drop(parts);
            assert!(headers[..count].iter().all(|h| h[..HEADER_LEN] == [9; HEADER_LEN]));
            sn += count as u64;
        }
        for group in 0..assembler.geometry.groups() {
            assert_eq!(assembler.check(group).unwrap(), Check::Intact);
        }
    }

    #[test]
    fn the_sum_of_fragments_gives_the_missing_one_back() {
        let (_dir, mut assembler, bytes) = setup(5 << 16, 9_000);
        let sns = [1u64, 8, 15];
        let mut sum = vec![0; 9_000];
        for sn in sns {
            let payload = fragment(&assembler, &bytes, sn);
            xor(&mut sum, &payload);
            if sn != 8 {
                assembler.store(sn, &payload).unwrap();
            }
        }
        assembler.add_to(&mut sum, 1).unwrap();
        assembler.add_to(&mut sum, 15).unwrap();
        assert!(sum == fragment(&assembler, &bytes, 8));
    }
}
