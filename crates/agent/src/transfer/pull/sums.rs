//! Sums that have to be known of a packet before it may be pulled: the hash of its group, and the digest by
//! which it is named.
//!
//! Threads read and hash the object from its beginning while the first packets travel already. The sums of a
//! section of it make the packets of that section's list (`protocol::pull`), which receivers pull too; its
//! root they get from the source.

use super::super::bell::Bell;
use super::super::error::TransferError;
use crate::forwarder::digest_of;
use polycast_net::hash::{group_hash, root_hash};
use polycast_net::object::{ObjectSource, changed_in};
use polycast_net::seal::Seal;
use polycast_protocol::pull::{Blocks, Digest, ListPlace, NameList, SECTION_GROUPS};
use polycast_protocol::push::Geometry;
use polycast_types::Handle;
use polycast_wire::control::Hash;
use polycast_wire::pull::{DIGEST_LEN, digest_len};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Hash groups of a part, which one thread reads at a time.
const PART_GROUPS: u64 = SECTION_GROUPS;
/// More threads would only wait for the memory.
const THREADS_MAX: usize = 8;

/// Sums of an object that are known so far. They are shared by the threads that compute them and those who
/// need them.
pub(crate) struct Sums {
    transfer: Handle,
    geometry: Geometry,
    blocks: Blocks,
    /// Seal of the packets' payloads.
    seal: Option<Seal>,
    parts: Box<[OnceLock<Part>]>,
    sections: Box<[Section]>,
    /// The next part that a thread takes up.
    next: AtomicUsize,
    /// Parts that are not known yet.
    left: AtomicUsize,
    root: OnceLock<Hash>,
    /// Rings when more is known, or nothing more will be.
    bell: Bell,
    failed: OnceLock<io::Error>,
}

/// The sums of some groups, and of the packets that begin in them.
pub(crate) struct Part {
    pub(crate) hashes: Vec<Hash>,
    digests: Vec<Digest>,
}

struct Section {
    parts: Range<usize>,
    /// Parts of it that are not known yet.
    left: AtomicUsize,
    list: OnceLock<NameList>,
}

impl Sums {
    /// Begins to read the object. Threads end when all is known, or it is not needed any more.
    pub(crate) fn start(
        source: &Arc<dyn ObjectSource>,
        (transfer, geometry, blocks): (Handle, Geometry, Blocks),
        seal: Option<Seal>,
        bell: Bell,
    ) -> io::Result<Arc<Self>> {
        let count = geometry.groups().div_ceil(PART_GROUPS) as usize;
        let section = |section| {
            let groups = blocks.section_groups(section);
            let parts = (groups.start / PART_GROUPS) as usize..groups.end.div_ceil(PART_GROUPS) as usize;
            Section { left: AtomicUsize::new(parts.len()), parts, list: OnceLock::new() }
        };
        let sums = Arc::new(Sums {
            transfer,
            geometry,
            blocks,
            seal,
            sections: (0..blocks.sections()).map(section).collect(),
            parts: (0..count).map(|_| OnceLock::new()).collect(),
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(count),
            root: OnceLock::new(),
            bell,
            failed: OnceLock::new(),
        });
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        for _ in 0..threads.min(count) {
            let (weak, source) = (Arc::downgrade(&sums), Arc::clone(source));
            let work = move || {
                let mut bytes = Vec::new();
                while weak.upgrade().is_some_and(|sums| {
                    let more = sums.find_out_more(source.as_ref(), &mut bytes);
                    sums.bell.ring();
                    more
                }) {}
            };
            std::thread::Builder::new().name("hashes".into()).spawn(work)?;
        }
        Ok(sums)
    }

    /// Reads one more part; false when there is nothing more to do.
    fn find_out_more(&self, source: &dyn ObjectSource, bytes: &mut Vec<u8>) -> bool {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        if at >= self.parts.len() || self.failed.get().is_some() {
            return false;
        }
        match self.part_of(source, self.groups_of(at), bytes) {
            Ok(part) => {
                let is_first = self.parts[at].set(part).is_ok();
                assert!(is_first, "every part is taken up once");
            }
            Err(error) => {
                // One reason is enough.
                let _ = self.failed.set(error);
                return false;
            }
        }
        let section = self.sections.partition_point(|section| section.parts.end <= at);
        if let Some(found) = self.sections.get(section)
            && found.left.fetch_sub(1, Ordering::AcqRel) == 1
        {
            let is_first = found.list.set(self.list_of(section as u64, found.parts.clone())).is_ok();
            assert!(is_first, "only one thread ends last");
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let hashes = self.parts.iter().filter_map(OnceLock::get).flat_map(|part| &part.hashes);
            // Only one thread ends last.
            let _ = self.root.set(root_hash(&hashes.copied().collect::<Vec<_>>()));
        }
        true
    }

    fn part_of(
        &self,
        source: &dyn ObjectSource,
        groups: Range<u64>,
        bytes: &mut Vec<u8>,
    ) -> io::Result<Part> {
        let geometry = self.geometry;
        let (start, end) =
            (geometry.group_bytes(groups.start).start, geometry.group_bytes(groups.end - 1).end);
        let is_last = groups.end == geometry.groups();
        // An object without a byte has one packet.
        let until = if is_last { geometry.fragments() } else { first_packet(geometry, groups.end) };
        let packets = first_packet(geometry, groups.start)..until;
        // The last packet that begins here may end behind the groups.
        let until =
            if packets.is_empty() { end } else { end.max(geometry.fragment_bytes(packets.end - 1).end) };
        bytes.resize((until - start) as usize, 0);
        source.read_exact_at(bytes, start)?;
        let local = |range: Range<u64>| (range.start - start) as usize..(range.end - start) as usize;
        let hash = |group| {
            group_hash(
                &bytes[local(geometry.group_bytes(group))],
                group,
                geometry.group_len,
                geometry.groups(),
            )
        };
        let hashes = groups.map(hash).collect();
        if let Some(seal) = &self.seal {
            seal.turn_object(geometry.fragment_len, start, bytes);
        }
        let len = digest_len(self.blocks.payload_bytes());
        let digest = |sn| digest_of(self.transfer, sn, &bytes[local(geometry.fragment_bytes(sn))], len);
        Ok(Part { hashes, digests: packets.map(digest).collect() })
    }

    fn groups_of(&self, part: usize) -> Range<u64> {
        let first = part as u64 * PART_GROUPS;
        first..(first + PART_GROUPS).min(self.geometry.groups())
    }

    /// Returns true if packets carry sealed bytes.
    pub(crate) fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// Returns the number of parts.
    #[cfg(test)]
    fn parts(&self) -> usize {
        self.parts.len()
    }

    /// A part, if it is known.
    pub(crate) fn part(&self, at: usize) -> Option<&Part> {
        self.parts.get(at)?.get()
    }

    /// The first group, and the first packet, of a part.
    pub(crate) fn first_of(&self, part: usize) -> (u64, u64) {
        let group = self.groups_of(part).start;
        (group, first_packet(self.geometry, group))
    }

    /// The digests of the roots of lists, from this section on, as far as they are known.
    pub(crate) fn roots_from(&self, section: u64) -> Vec<Digest> {
        let known = self.sections.iter().skip(section as usize).map_while(|section| section.list.get());
        known.map(NameList::root).collect()
    }

    /// Makes the packets of a section's list, all of whose parts are known.
    fn list_of(&self, section: u64, parts: Range<usize>) -> NameList {
        let parts = || self.parts[parts.clone()].iter().filter_map(OnceLock::get);
        let short = digest_len(self.blocks.payload_bytes());
        let mut list: Vec<u8> = parts().flat_map(|part| part.hashes.iter().flatten().copied()).collect();
        parts().flat_map(|part| &part.digests).for_each(|digest| list.extend_from_slice(&digest.0[..short]));
        NameList::new(&self.blocks, section, list, |sn, packet| {
            self.seal_list(sn, packet);
            digest_of(self.transfer, sn, packet, DIGEST_LEN)
        })
    }

    fn seal_list(&self, sn: u64, packet: &mut [u8]) {
        if let Some(seal) = &self.seal {
            seal.turn(sn, 0, packet);
        }
    }

    /// Puts the payload of a list's packet into `packet`; false if there is no such packet, or it is not
    /// known yet.
    pub(crate) fn list_packet(&self, sn: u64, packet: &mut Vec<u8>) -> bool {
        let Some(place) = self.blocks.list_place(sn) else { return false };
        let Some(list) = self.sections.get(place.section as usize).and_then(|section| section.list.get())
        else {
            return false;
        };
        packet.clear();
        packet.extend_from_slice(list.packet(&self.blocks, place));
        self.seal_list(sn, packet);
        true
    }

    fn digest_in_list(&self, place: ListPlace) -> Option<Digest> {
        self.sections.get(place.section as usize)?.list.get()?.digest(place)
    }

    /// The root hash, once all is known.
    pub(crate) fn root(&self) -> Option<Hash> {
        self.root.get().copied()
    }

    /// Returns the reason why the object cannot be read, if it cannot.
    pub(crate) fn check(&self) -> Result<(), TransferError> {
        match self.failed.get() {
            Some(error) => Err(match changed_in(error) {
                Some(changed) => TransferError::Changed(changed.clone()),
                None => TransferError::Read(io::Error::new(error.kind(), error.to_string())),
            }),
            None => Ok(()),
        }
    }

    /// The digest of a packet, if it is known and there is such a packet.
    pub(crate) fn digest(&self, sn: u64) -> Option<Digest> {
        if let Some(place) = self.blocks.list_place(sn) {
            return self.digest_in_list(place);
        }
        let len = u64::from(self.geometry.fragment_len);
        let part = sn.checked_mul(len)? / (PART_GROUPS * u64::from(self.geometry.group_len));
        let part = usize::try_from(part).ok()?;
        let known = self.part(part)?;
        let at = usize::try_from(sn - self.first_of(part).1).ok()?;
        known.digests.get(at).copied()
    }
}

/// The first packet that begins in a group or after it.
fn first_packet(geometry: Geometry, group: u64) -> u64 {
    geometry.group_bytes(group).start.div_ceil(u64::from(geometry.fragment_len))
}

#[cfg(test)]
mod tests {
    use super::super::super::supply::Supply;
    use super::*;
    use polycast_net::hash::GROUP_LEN;
    use proptest::prelude::*;

    const HANDLE: Handle = Handle(77);

    fn shape(object_len: u64, payload: u16) -> (Geometry, Blocks) {
        let geometry = Geometry { object_len, fragment_len: payload.into(), group_len: GROUP_LEN };
        let blocks = Blocks::new(object_len, payload, 100_000_000).unwrap().with_lists(GROUP_LEN).unwrap();
        (geometry, blocks)
    }

    fn all_of(sums: &Sums) -> (Vec<Hash>, Vec<Digest>) {
        let (mut hashes, mut digests) = (Vec::new(), Vec::new());
        for at in 0..sums.parts() {
            while sums.part(at).is_none() {
                sums.check().unwrap();
                std::thread::yield_now();
            }
            let part = sums.part(at).unwrap();
            assert_eq!(sums.first_of(at), (hashes.len() as u64, digests.len() as u64));
            hashes.extend_from_slice(&part.hashes);
            digests.extend_from_slice(&part.digests);
        }
        (hashes, digests)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn they_are_those_of_one_reading_after_the_other(
            len in 0usize..6_000_000, packet in 200u16..9_000, sealed: bool,
        ) {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
            let (geometry, blocks) = shape(len as u64, packet);
            let object: Arc<dyn ObjectSource> = Arc::new(bytes.clone());
            let seal = sealed.then(|| Seal::new(&polycast_net::seal::Secret::new([5; 32]), HANDLE));
            let sums = Sums::start(&object, (HANDLE, geometry, blocks), seal.clone(), Bell::new().unwrap()).unwrap();
            let (hashes, digests) = all_of(&sums);
            let mut supply = Supply::new(object, geometry, None);
            while supply.root().is_none() {
                supply.hash_more().unwrap();
            }
            prop_assert_eq!(&hashes[..], supply.hashes());
            while sums.root().is_none() {
                std::thread::yield_now();
            }
            prop_assert_eq!(sums.root(), supply.root());
            prop_assert_eq!(digests.len() as u64, geometry.fragments());
            for (sn, digest) in digests.iter().enumerate() {
                let range = geometry.fragment_bytes(sn as u64);
                let mut payload = bytes[range.start as usize..range.end as usize].to_vec();
                seal.iter().for_each(|seal| seal.turn(sn as u64, 0, &mut payload));
                prop_assert_eq!(*digest, digest_of(HANDLE, sn as u64, &payload, digest_len(packet)));
                prop_assert_eq!(sums.digest(sn as u64), Some(*digest));
            }
            prop_assert_eq!(sums.digest(u64::MAX), None);
            // What the lists say, followed from their roots on.
            let roots = sums.roots_from(0);
            prop_assert_eq!(roots.len() as u64, blocks.sections());
            let mut listed = Vec::new();
            for (section, root) in (0..).zip(roots) {
                let mut named = vec![(blocks.list_root(section), root)];
                let mut list = vec![0; blocks.list_bytes(section, 0) as usize];
                while let Some((sn, digest)) = named.pop() {
                    let (place, mut payload) = (blocks.list_place(sn).unwrap(), Vec::new());
                    prop_assert!(sums.list_packet(sn, &mut payload) && sums.digest(sn) == Some(digest));
                    prop_assert_eq!(digest_of(HANDLE, sn, &payload, DIGEST_LEN), digest);
                    seal.iter().for_each(|seal| seal.turn(sn, 0, &mut payload));
                    named.extend(blocks.list_children(place).zip(payload.as_chunks().0.iter().map(|bytes| Digest(*bytes))));
                    let span = blocks.list_span(place);
                    if place.level == 0 {
                        list[span.start as usize..span.end as usize].copy_from_slice(&payload);
                    }
                }
                listed.extend(list);
            }
            let hashed = hashes.iter().flatten().count() + digests.len() * digest_len(packet);
            prop_assert_eq!(listed.len(), hashed);
            let first = hashes.len().min(PART_GROUPS as usize);
            prop_assert_eq!(&listed[..first * 32], hashes[..first].as_flattened());
        }
    }

    /// An object that can be read as far as its owner allows.
    struct Slow(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

    impl ObjectSource for Slow {
        fn len(&self) -> u64 {
            5 << 20
        }

        fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
            if at > 0 && self.0.lock().unwrap().recv().is_err() {
                return Err(io::Error::other("the disk is gone"));
            }
            bytes.fill(1);
            Ok(())
        }
    }

    #[test]
    fn the_beginning_is_known_before_the_rest_is_read_and_a_failure_is_told() {
        let (allow, allowed) = std::sync::mpsc::channel();
        let object: Arc<dyn ObjectSource> = Arc::new(Slow(std::sync::Mutex::new(allowed)));
        let (geometry, blocks) = shape(object.len(), 8_192);
        let sums = Sums::start(&object, (HANDLE, geometry, blocks), None, Bell::new().unwrap()).unwrap();
        while sums.roots_from(0).is_empty() {
            std::thread::yield_now();
        }
        assert!(sums.digest(0).is_some() && sums.roots_from(0).len() == 1);
        assert!(sums.root().is_none() && sums.check().is_ok() && sums.part(2).is_none());
        drop(allow);
        while sums.check().is_ok() {
            std::thread::yield_now();
        }
        assert!(sums.check().unwrap_err().to_string().contains("the disk is gone"));
    }
}
