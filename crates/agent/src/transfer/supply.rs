//! The source's bytes: read once, hashed, sealed and sent while they are warm.

use polycast_net::hash::{group_hash, root_hash};
use polycast_net::object::ObjectSource;
use polycast_net::seal::Seal;
use polycast_protocol::push::Geometry;
use polycast_wire::control::Hash;
use polycast_wire::data::ContentTag;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Hash groups read and hashed at a time: few enough to stay in the cache until they are sent.
const BATCH_GROUPS: u64 = 8;

/// Reads and hashes the bytes of one object, and lends its fragments as the data channel carries them.
pub(crate) struct Supply {
    object: Arc<dyn ObjectSource>,
    geometry: Geometry,
    /// What the data channel carries is sealed with this.
    seal: Option<Seal>,
    hashes: Vec<Hash>,
    /// The last two batches.
    batches: [Batch; 2],
    /// Groups that were read again, and are what they were.
    again: Batch,
    /// The beginning of a fragment that ends in the next batch, as it is in the object.
    tail: Vec<u8>,
    plain: Vec<u8>,
    /// What was read again and is looked at.
    read: Vec<u8>,
}

/// Fragments in a row.
#[derive(Default)]
struct Batch {
    /// The first one.
    first: u64,
    /// How many are here whole.
    count: u64,
    /// Their bytes: of those that have a tag as they are sent, of the others as they are in the object.
    bytes: Vec<u8>,
    /// The tags of the content of those that are sealed: each is when it is first sent.
    tags: Vec<ContentTag>,
}

/// Fragments as they are sent, and the tags of their content where they are sealed.
pub(crate) struct Lent<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) tags: &'a [ContentTag],
}

impl Batch {
    fn holds(&self, sn: u64) -> bool {
        (self.first..self.first + self.count).contains(&sn)
    }

    /// Counts the fragments that are whole, from the first one on, where the bytes end at `end` of the object.
    fn begin(&mut self, first: u64, end: u64, geometry: &Geometry) {
        self.tags.clear();
        self.first = first;
        let whole = match end == geometry.object_len {
            true => geometry.fragments(),
            false => end / u64::from(geometry.fragment_len),
        };
        self.count = whole.saturating_sub(first);
    }

    fn lend(&mut self, sns: Range<u64>, geometry: &Geometry, seal: Option<&Seal>) -> Lent<'_> {
        let start = geometry.fragment_bytes(self.first).start;
        if let Some(seal) = seal {
            for sn in self.first + self.tags.len() as u64..sns.end {
                let range = geometry.fragment_bytes(sn);
                let bytes = &mut self.bytes[(range.start - start) as usize..(range.end - start) as usize];
                self.tags.push(seal.seal(sn, bytes));
            }
        }
        let bytes = geometry.fragment_bytes(sns.start).start..geometry.fragment_bytes(sns.end - 1).end;
        let tags = (sns.start - self.first) as usize..(sns.end - self.first) as usize;
        Lent {
            bytes: &self.bytes[(bytes.start - start) as usize..(bytes.end - start) as usize],
            tags: if self.tags.is_empty() { &[] } else { &self.tags[tags] },
        }
    }
}

impl Supply {
    pub(crate) fn new(object: Arc<dyn ObjectSource>, geometry: Geometry, seal: Option<Seal>) -> Self {
        Supply {
            object,
            geometry,
            seal,
            hashes: Vec::new(),
            batches: Default::default(),
            again: Batch::default(),
            tail: Vec::new(),
            plain: Vec::new(),
            read: Vec::new(),
        }
    }

    /// Hashes of the first groups, as many as are known.
    pub(crate) fn hashes(&self) -> &[Hash] {
        &self.hashes
    }

    /// The root hash, once all groups are hashed.
    pub(crate) fn root(&self) -> Option<Hash> {
        (self.hashes.len() as u64 == self.geometry.groups()).then(|| root_hash(&self.hashes))
    }

    /// Reads and hashes the next batch; gives the groups that were added.
    pub(crate) fn hash_more(&mut self) -> io::Result<Range<u64>> {
        let first = self.hashes.len() as u64;
        let end = (first + BATCH_GROUPS).min(self.geometry.groups());
        if first == end {
            return Ok(first..end);
        }
        let geometry = &self.geometry;
        let until = geometry.group_bytes(end - 1).end;
        let read_from = geometry.group_bytes(first).start;
        let start = read_from - self.tail.len() as u64;
        let batch = &mut self.batches[(first / BATCH_GROUPS % 2) as usize];
        batch.begin(start / u64::from(geometry.fragment_len), until, geometry);
        batch.bytes.resize((until - start) as usize, 0);
        let (tail, read) = batch.bytes.split_at_mut(self.tail.len());
        tail.copy_from_slice(&self.tail);
        self.object.read_exact_at(read, read_from)?;
        for group in first..end {
            let at = geometry.group_bytes(group);
            let slice = &batch.bytes[(at.start - start) as usize..(at.end - start) as usize];
            self.hashes.push(group_hash(slice, group, geometry.group_len, geometry.groups()));
        }
        let whole = batch.first + batch.count;
        self.tail.clear();
        if whole < geometry.fragments() {
            let at = geometry.fragment_bytes(whole).start - start;
            self.tail.extend_from_slice(&batch.bytes[at as usize..]);
        }
        Ok(first..end)
    }

    /// How many of these fragments can be lent at a time.
    pub(crate) fn in_row(&self, sns: Range<u64>) -> u64 {
        let again = Some(&self.again).filter(|_| self.seal.is_some());
        let held = self.batches.iter().chain(again).find(|batch| batch.holds(sns.start));
        let until = held.map_or(sns.end, |batch| batch.first + batch.count);
        sns.end.min(until) - sns.start
    }

    /// Fragments as they are sent, from the cache or read again: not more than [`Supply::in_row`] says.
    pub(crate) fn fragments(&mut self, sns: Range<u64>) -> io::Result<Lent<'_>> {
        assert!(
            !sns.is_empty() && self.in_row(sns.clone()) == sns.end - sns.start,
            "{sns:?} are not in a row"
        );
        let (geometry, seal) = (&self.geometry, self.seal.as_ref());
        if let Some(held) = self.batches.iter().position(|batch| batch.holds(sns.start)) {
            return Ok(self.batches[held].lend(sns, geometry, seal));
        }
        if seal.is_none() {
            let range = self.bytes_of(&sns);
            self.again.begin(sns.start, range.end, geometry);
            self.again.bytes.resize((range.end - range.start) as usize, 0);
            self.object.read_exact_at(&mut self.again.bytes, range.start)?;
            return Ok(self.again.lend(sns, &self.geometry, None));
        }
        if !(self.again.holds(sns.start) && self.again.holds(sns.end - 1)) {
            self.read_again(&sns)?;
        }
        Ok(self.again.lend(sns, &self.geometry, self.seal.as_ref()))
    }

    /// Reads the hash groups of these fragments again, and looks whether they are what they were: no other bytes may be sealed under
    /// the same numbers. Of an object that is sent in order, more groups are read at a time.
    fn read_again(&mut self, sns: &Range<u64>) -> io::Result<()> {
        let geometry = &self.geometry;
        let mut groups = geometry.groups_of_fragments(sns.clone());
        let again = &mut self.again;
        let goes_on = (again.first..=again.first + again.count).contains(&sns.start);
        if goes_on {
            groups.end =
                (groups.start + BATCH_GROUPS).clamp(groups.end, (self.hashes.len() as u64).max(groups.end));
        }
        let start = geometry.group_bytes(groups.start).start;
        let until = geometry.group_bytes(groups.end - 1).end;
        let first = start.div_ceil(u64::from(geometry.fragment_len));
        self.read.resize((until - start) as usize, 0);
        // Nothing is held before all of it is what it was.
        again.begin(first, start, geometry);
        self.object.read_exact_at(&mut self.read, start)?;
        for group in groups {
            let at = geometry.group_bytes(group);
            let slice = &self.read[(at.start - start) as usize..(at.end - start) as usize];
            let hash = group_hash(slice, group, geometry.group_len, geometry.groups());
            if self.hashes.get(group as usize) != Some(&hash) {
                let what = "its bytes were changed while it was being sent: send it when nobody writes to it";
                return Err(io::Error::other(what));
            }
        }
        again.begin(first, until, geometry);
        let from = geometry.fragment_bytes(first.min(geometry.fragments() - 1)).start - start;
        again.bytes.clear();
        again.bytes.extend_from_slice(&self.read[from as usize..]);
        Ok(())
    }

    /// Fragments as they are in the object.
    pub(crate) fn plain(&mut self, sns: Range<u64>) -> io::Result<&[u8]> {
        let range = self.bytes_of(&sns);
        self.plain.resize((range.end - range.start) as usize, 0);
        self.object.read_exact_at(&mut self.plain, range.start)?;
        Ok(&self.plain)
    }

    fn bytes_of(&self, sns: &Range<u64>) -> Range<u64> {
        self.geometry.fragment_bytes(sns.start).start..self.geometry.fragment_bytes(sns.end - 1).end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::seal::Secret;
    use polycast_types::Handle;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn every_fragment_is_the_same_from_the_cache_and_from_the_object() {
        for (len, fragment_len) in
            [((20usize << 16) + 77, 8_916), (3 << 16, 1 << 16), (70_000, 65_000), (0, 100), (5, 9)]
        {
            let object: Vec<u8> = (0..len).map(|i| (i * 13 + i / 4_099) as u8).collect();
            let geometry = Geometry { object_len: object.len() as u64, fragment_len, group_len: 1 << 16 };
            for seal in [None, Some(Seal::new(&Secret::fresh(), Handle(3)))] {
                let mut supply = Supply::new(Arc::new(object.clone()), geometry, seal.clone());
                while supply.root().is_none() {
                    supply.hash_more().unwrap();
                    let known = supply.hashes().len() as u64;
                    for sn in 0..geometry.fragments() {
                        // Nothing is sent before it is hashed.
                        if geometry.groups_of_fragments(sn..sn + 1).end > known {
                            continue;
                        }
                        let range = geometry.fragment_bytes(sn);
                        let want = &object[range.start as usize..range.end as usize];
                        let lent = supply.fragments(sn..sn + 1).unwrap();
                        let mut bytes = lent.bytes.to_vec();
                        if let Some(seal) = &seal {
                            assert!(bytes != want || bytes.is_empty(), "fragment {sn} is as it was");
                            assert!(seal.open(sn, &mut bytes, &lent.tags[0]), "fragment {sn}");
                        }
                        assert!(bytes == want, "fragment {sn}");
                        assert!(supply.plain(sn..sn + 1).unwrap() == want);
                    }
                }
                assert_eq!(supply.root(), Some(*blake3::hash(&object).as_bytes()));
            }
        }
    }

    #[test]
    fn runs_end_where_a_batch_does() {
        let geometry = Geometry { object_len: 40 << 16, fragment_len: 9_000, group_len: 1 << 16 };
        let mut supply = Supply::new(Arc::new(vec![7u8; 40 << 16]), geometry, None);
        for _ in 0..2 {
            supply.hash_more().unwrap();
        }
        let (mut sn, mut runs) = (0, 0);
        while sn < 115 {
            let count = supply.in_row(sn..sn + 64);
            assert_eq!(supply.fragments(sn..sn + count).unwrap().bytes.len() as u64, count * 9_000);
            (sn, runs) = (sn + count, runs + 1);
        }
        assert!(runs <= 4, "{runs} runs for two batches");
    }

    /// A file that somebody writes to.
    struct Changing(AtomicU64);

    impl ObjectSource for Changing {
        fn len(&self) -> u64 {
            40 << 16
        }

        fn read_exact_at(&self, buffer: &mut [u8], _: u64) -> io::Result<()> {
            buffer.fill(self.0.load(Ordering::Relaxed) as u8);
            Ok(())
        }
    }

    #[test]
    fn what_has_changed_is_not_sealed_again() {
        let object = Arc::new(Changing(AtomicU64::new(1)));
        let geometry = Geometry { object_len: object.len(), fragment_len: 9_000, group_len: 1 << 16 };
        let mut supply =
            Supply::new(Arc::clone(&object) as _, geometry, Some(Seal::new(&Secret::fresh(), Handle(3))));
        while supply.root().is_none() {
            supply.hash_more().unwrap();
        }
        assert!(supply.fragments(0..5).is_ok());
        object.0.store(2, Ordering::Relaxed);
        assert!(supply.fragments(0..5).is_ok(), "it is here as it was");
        for sns in [100..105, 0..5, 7..8] {
            let error = supply.fragments(sns).err().unwrap().to_string();
            assert!(error.contains("were changed while it was being sent"), "{error}");
        }
    }
}
