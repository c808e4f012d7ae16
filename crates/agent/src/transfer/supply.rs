//! The source's bytes: read once, hashed, sealed and sent while they are warm.

use polycast_net::hash::{group_hash, root_hash};
use polycast_net::object::{Changed, ObjectSource};
use polycast_net::rolling;
use polycast_net::seal::Seal;
use polycast_protocol::push::Geometry;
use polycast_types::RangeSet;
use polycast_wire::control::Hash;
use polycast_wire::data::ContentTag;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Hash groups read and hashed at a time: few enough to stay in the cache until they are sent.
const BATCH_GROUPS: u64 = 8;
/// No further group is read in a turn that has taken so long: on a slow disk the source still answers its
/// receivers.
const TURN_MAX: Duration = Duration::from_millis(100);

/// Reads and hashes the bytes of one object, and lends its fragments as the data channel carries them.
pub(crate) struct Supply {
    object: Arc<dyn ObjectSource>,
    geometry: Geometry,
    /// Set if the data channel carries sealed bytes.
    sealed: Option<Sealed>,
    hashes: Vec<Hash>,
    /// Sums of the first groups, as many as were asked for.
    sums: Vec<u64>,
    /// The last two batches; the older one comes first.
    batches: [Batch; 2],
    /// Number of hashed groups that are read again at a time: fewer while the disk is slow.
    again_groups: u64,
    /// Groups that were read again, and are what they were.
    again: Batch,
    /// The beginning of a fragment that ends in the next batch, as it is in the object.
    tail: Vec<u8>,
    plain: Vec<u8>,
}

/// Record of the sealed fragments, so that no other bytes are ever sealed under the same numbers.
///
/// Hashed bytes are compared with their hash when they are read again. An object is often hashed before its
/// transfer begins, and is read again for it: to hash it a second time would cost as much as to seal it. So
/// the tags of bytes that are sealed for the first time as they are read then are added up, and count beside
/// the hash from then on.
struct Sealed {
    seal: Seal,
    /// Fragments that were sealed.
    sns: RangeSet,
    /// Fragments among them of groups that were not hashed as they were read.
    unseen: RangeSet,
    /// For each group the sum of what follows from the tags of those that begin in it; empty where there are
    /// none.
    sums: Vec<u128>,
}

/// Fragments in a row.
#[derive(Default)]
struct Batch {
    /// The first one.
    first: u64,
    /// Number of fragments that are here whole.
    count: u64,
    /// Bytes before the first one.
    lead: usize,
    /// Set if they were hashed as they were read.
    seen: bool,
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

    /// Counts the fragments that are whole, from the first one on, where the bytes end at `end` of the
    /// object.
    fn begin(&mut self, first: u64, end: u64, geometry: &Geometry) {
        self.tags.clear();
        (self.first, self.lead, self.seen) = (first, 0, true);
        self.count = whole_before(end, geometry).saturating_sub(first);
    }

    fn lend(&mut self, sns: Range<u64>, geometry: &Geometry, sealed: Option<&mut Sealed>) -> Lent<'_> {
        let start = geometry.fragment_bytes(self.first).start;
        let lead = self.lead;
        let place =
            |range: Range<u64>| lead + (range.start - start) as usize..lead + (range.end - start) as usize;
        if let Some(sealed) = sealed {
            let from = self.first + self.tags.len() as u64;
            for sn in from..sns.end {
                let bytes = &mut self.bytes[place(geometry.fragment_bytes(sn))];
                self.tags.push(sealed.seal.seal(sn, bytes));
            }
            if from < sns.end {
                let tags = &self.tags[(from - self.first) as usize..];
                sealed.note(from..sns.end, tags, geometry, self.seen);
            }
        }
        let bytes = geometry.fragment_bytes(sns.start).start..geometry.fragment_bytes(sns.end - 1).end;
        let tags = (sns.start - self.first) as usize..(sns.end - self.first) as usize;
        Lent {
            bytes: &self.bytes[place(bytes)],
            tags: if self.tags.is_empty() { &[] } else { &self.tags[tags] },
        }
    }
}

/// Returns the number of fragments that are whole in the bytes before `end` of the object.
fn whole_before(end: u64, geometry: &Geometry) -> u64 {
    if end == geometry.object_len { geometry.fragments() } else { end / u64::from(geometry.fragment_len) }
}

/// The fragments that begin in these groups.
fn beginning_in(groups: Range<u64>, geometry: &Geometry) -> Range<u64> {
    let first = |group| match group < geometry.groups() {
        true => geometry.group_bytes(group).start.div_ceil(u64::from(geometry.fragment_len)),
        false => geometry.fragments(),
    };
    first(groups.start)..first(groups.end)
}

/// The group in which a fragment begins.
fn group_of(sn: u64, geometry: &Geometry) -> u64 {
    geometry.fragment_bytes(sn).start / u64::from(geometry.group_len)
}

impl Sealed {
    fn new(seal: Seal) -> Self {
        Sealed { seal, sns: RangeSet::new(), unseen: RangeSet::new(), sums: Vec::new() }
    }

    /// These fragments were sealed with these tags, and either hashed (`seen`) or never sealed before.
    fn note(&mut self, sns: Range<u64>, tags: &[ContentTag], geometry: &Geometry, seen: bool) {
        let new = self.sns.insert(sns.clone());
        if seen {
            return;
        }
        assert_eq!(new, sns.end - sns.start, "of {sns:?} some are sealed a second time without a look");
        self.unseen.insert(sns.clone());
        self.sums.resize(geometry.groups() as usize, 0);
        for (sn, tag) in sns.zip(tags) {
            self.sums[group_of(sn, geometry) as usize] ^= self.seal.digest(tag);
        }
    }

    /// Returns true if the fragments that begin in a group have the tags that they had; those of the batch
    /// are `first` and the following ones.
    fn knows(&self, group: u64, geometry: &Geometry, (first, tags): (u64, &[ContentTag])) -> bool {
        let sns = beginning_in(group..group + 1, geometry);
        let unseen = self.unseen.iter_within(sns).flatten();
        let sum = unseen.fold(0, |sum, sn| sum ^ self.seal.digest(&tags[(sn - first) as usize]));
        self.sums.get(group as usize).is_none_or(|known| *known == sum)
    }
}

impl Supply {
    pub(crate) fn new(object: Arc<dyn ObjectSource>, geometry: Geometry, seal: Option<Seal>) -> Self {
        Supply {
            object,
            geometry,
            sealed: seal.map(Sealed::new),
            hashes: Vec::new(),
            sums: Vec::new(),
            batches: Default::default(),
            again_groups: BATCH_GROUPS,
            again: Batch::default(),
            tail: Vec::new(),
            plain: Vec::new(),
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

    /// Sums of the first groups, as many as are known; see [`polycast_net::rolling`].
    pub(crate) fn sums(&self) -> &[u64] {
        &self.sums
    }

    /// Reads the next groups whose hashes are known once more, and sums them; gives the groups that were
    /// added.
    pub(crate) fn sum_more(&mut self) -> io::Result<Range<u64>> {
        let first = self.sums.len() as u64;
        let last = (first + BATCH_GROUPS).min(self.hashes.len() as u64);
        let (mut end, began) = (first, Instant::now());
        while end < last && (end == first || began.elapsed() < TURN_MAX) {
            let bytes = self.geometry.group_bytes(end);
            self.plain.resize((bytes.end - bytes.start) as usize, 0);
            self.object.read_exact_at(&mut self.plain, bytes.start)?;
            self.sums.push(rolling::sum(&self.plain));
            end += 1;
        }
        Ok(first..end)
    }

    /// Reads and hashes the next batch; gives the groups that were added.
    pub(crate) fn hash_more(&mut self) -> io::Result<Range<u64>> {
        self.hash_within(TURN_MAX)
    }

    /// Reads and hashes the next groups, until they are a batch or this time is over: at least one, if one is
    /// left.
    fn hash_within(&mut self, limit: Duration) -> io::Result<Range<u64>> {
        let first = self.hashes.len() as u64;
        let last = (first + BATCH_GROUPS).min(self.geometry.groups());
        if first == last {
            return Ok(first..last);
        }
        let (geometry, began) = (&self.geometry, Instant::now());
        let start = geometry.group_bytes(first).start - self.tail.len() as u64;
        self.batches.swap(0, 1);
        let batch = &mut self.batches[1];
        // Until all of its bytes are there it holds nothing.
        batch.begin(start / u64::from(geometry.fragment_len), start, geometry);
        batch.bytes.resize((geometry.group_bytes(last - 1).end - start) as usize, 0);
        batch.bytes[..self.tail.len()].copy_from_slice(&self.tail);
        let (mut end, mut read) = (first, Vec::with_capacity(BATCH_GROUPS as usize));
        while end < last && (end == first || began.elapsed() < limit) {
            let at = geometry.group_bytes(end);
            let slice = &mut batch.bytes[(at.start - start) as usize..(at.end - start) as usize];
            self.object.read_exact_at(slice, at.start)?;
            read.push(group_hash(slice, end, geometry.group_len, geometry.groups()));
            end += 1;
        }
        let until = geometry.group_bytes(end - 1).end;
        batch.begin(batch.first, until, geometry);
        batch.bytes.truncate((until - start) as usize);
        self.hashes.append(&mut read);
        if end < last {
            self.again_groups = end - first;
        }
        let whole = batch.first + batch.count;
        self.tail.clear();
        if whole < geometry.fragments() {
            let at = geometry.fragment_bytes(whole).start - start;
            self.tail.extend_from_slice(&batch.bytes[at as usize..]);
        }
        Ok(first..end)
    }

    /// Returns the number of fragments from the start of `sns` that can be handed out at a time.
    pub(crate) fn in_row(&self, sns: Range<u64>) -> u64 {
        let again = Some(&self.again).filter(|_| self.sealed.is_some());
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
        let (geometry, sealed) = (&self.geometry, self.sealed.as_mut());
        if let Some(held) = self.batches.iter().position(|batch| batch.holds(sns.start)) {
            let batch = &mut self.batches[held];
            if let Some(sealed) = &sealed {
                let unseen = sealed.unseen.iter_within(batch.first..sns.end).next();
                assert_eq!(unseen, None, "{sns:?} were sealed before they were hashed");
            }
            return Ok(batch.lend(sns, geometry, sealed));
        }
        if sealed.is_none() {
            let range = self.bytes_of(&sns);
            self.again.begin(sns.start, range.end, geometry);
            self.again.bytes.resize((range.end - range.start) as usize, 0);
            self.object.read_exact_at(&mut self.again.bytes, range.start)?;
            return Ok(self.again.lend(sns, &self.geometry, None));
        }
        if !(self.again.holds(sns.start) && self.again.holds(sns.end - 1)) {
            self.read_again(&sns)?;
        }
        Ok(self.again.lend(sns, &self.geometry, self.sealed.as_mut()))
    }

    /// Reads the hash groups in which these fragments begin again. Where some of these groups was sealed
    /// before, it looks whether they are what they were. Of an object that is sent in order, more groups are
    /// read at a time.
    fn read_again(&mut self, sns: &Range<u64>) -> io::Result<()> {
        let (geometry, again) = (&self.geometry, &mut self.again);
        let Some(sealed) = &mut self.sealed else { return Ok(()) };
        let known = self.hashes.len() as u64;
        let mut groups = group_of(sns.start, geometry)..group_of(sns.end - 1, geometry) + 1;
        let goes_on = (again.first..=again.first + again.count).contains(&sns.start);
        if goes_on {
            groups.end = (groups.start + self.again_groups).clamp(groups.end, known.max(groups.end));
        }
        let hashed = geometry.group_bytes(known.saturating_sub(1)).end;
        let mut all = beginning_in(groups.clone(), geometry);
        // The last one may end where nothing is hashed yet.
        all.end = all.end.min(whole_before(hashed, geometry)).max(sns.end);
        // What is held as it was hashed may be sealed from there too.
        let held =
            self.batches.iter().any(|batch| batch.first < all.end && all.start < batch.first + batch.count);
        let seen = held || sealed.sns.iter_within(all.clone()).next().is_some();
        let looked_at = geometry.groups_of_fragments(all.clone());
        let until = match seen {
            true => geometry.group_bytes(looked_at.end - 1).end,
            false => geometry.fragment_bytes(all.end - 1).end,
        };
        let start = geometry.group_bytes(groups.start).start;
        // Nothing is held before all of it is what it was.
        again.begin(all.start, start, geometry);
        (again.lead, again.seen) = ((geometry.fragment_bytes(all.start).start - start) as usize, seen);
        again.bytes.resize((until - start) as usize, 0);
        let began = Instant::now();
        self.object.read_exact_at(&mut again.bytes, start)?;
        self.again_groups = match began.elapsed() {
            slow if slow > TURN_MAX => (self.again_groups / 2).max(1),
            quick if quick < TURN_MAX / 4 => (self.again_groups * 2).min(BATCH_GROUPS),
            _ => self.again_groups,
        };
        if seen {
            let hashes = &self.hashes;
            let is_same = |group: u64| {
                let at = geometry.group_bytes(group);
                let slice = &again.bytes[(at.start - start) as usize..(at.end - start) as usize];
                let hash = group_hash(slice, group, geometry.group_len, geometry.groups());
                hashes.get(group as usize) == Some(&hash)
            };
            let mut same = looked_at.into_iter().all(is_same);
            if same {
                again.lend(all.clone(), geometry, Some(sealed));
                let tags = (all.start, &again.tags[..]);
                same = groups.into_iter().all(|group| sealed.knows(group, geometry, tags));
            }
            if !same {
                return Err(Changed::bytes().into());
            }
        }
        again.count = all.end - all.start;
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
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Mutex;
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
            supply.hash_within(Duration::MAX).unwrap();
        }
        let (mut sn, mut runs) = (0, 0);
        while sn < 115 {
            let count = supply.in_row(sn..sn + 64);
            assert_eq!(supply.fragments(sn..sn + count).unwrap().bytes.len() as u64, count * 9_000);
            (sn, runs) = (sn + count, runs + 1);
        }
        assert!(runs <= 4, "{runs} runs for two batches");
    }

    /// A disk that takes its time for every read.
    struct Disk(Vec<u8>);

    impl ObjectSource for Disk {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            std::thread::sleep(TURN_MAX.mul_f64(buffer.len() as f64 / f64::from(1 << 16)));
            self.0.read_exact_at(buffer, offset)
        }
    }

    /// A source answers its receivers between two turns.
    #[test]
    fn a_slow_disk_is_read_a_group_at_a_time() {
        let geometry = Geometry { object_len: 20 << 16, fragment_len: 9_000, group_len: 1 << 16 };
        let object = Arc::new(Disk(vec![7; 20 << 16]));
        let mut supply = Supply::new(object as _, geometry, Some(Seal::new(&Secret::fresh(), Handle(3))));
        for group in 0..4 {
            assert_eq!(supply.hash_more().unwrap(), group..group + 1);
        }
        while supply.root().is_none() {
            supply.hash_within(Duration::MAX).unwrap();
        }
        // What is not in the cache any more is read again in the same steps.
        let mut sn = 0;
        while sn < 28 {
            supply.fragments(sn..sn + 1).unwrap();
            let count = supply.in_row(sn..28);
            assert!(count <= (1 << 16) / 9_000 + 1, "{count} fragments in a turn");
            sn += count;
        }
    }

    /// A file that another program writes to.
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
        assert!(supply.fragments(100..105).is_ok(), "it was never sealed: its hash tells the receivers");
        for sns in [0..5, 100..105, 101..102] {
            let error = supply.fragments(sns).err().unwrap().to_string();
            assert!(error.contains("it was changed while it was being sent"), "{error}");
        }
    }

    /// A file whose bytes come and go.
    struct Flipping(Mutex<Vec<u8>>);

    impl ObjectSource for Flipping {
        fn len(&self) -> u64 {
            self.0.lock().unwrap().len() as u64
        }

        fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            let bytes = self.0.lock().unwrap();
            buffer.copy_from_slice(&bytes[offset as usize..][..buffer.len()]);
            Ok(())
        }
    }

    #[derive(Clone, Debug)]
    enum Act {
        Hash,
        /// One group only, as on a slow disk.
        HashOne,
        /// All bytes are what they were at first.
        Restore,
        Lend {
            from: prop::sample::Index,
            most: u64,
        },
        /// The same bits in several fragments in a row, at one place in each.
        Flip {
            from: prop::sample::Index,
            fragments: u64,
            place: prop::sample::Index,
        },
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let lend = (any::<prop::sample::Index>(), 1u64..40).prop_map(|(from, most)| Act::Lend { from, most });
        let flip = (any::<prop::sample::Index>(), 1u64..4, any::<prop::sample::Index>())
            .prop_map(|(from, fragments, place)| Act::Flip { from, fragments, place });
        prop::collection::vec(
            prop_oneof![2 => Just(Act::Hash), 3 => Just(Act::HashOne), 5 => lend, 1 => flip, 1 => Just(Act::Restore)],
            1..60,
        )
    }

    proptest! {
        /// Whatever happens to the file, in whatever order its fragments are asked for: one number has one
        /// content, and what is asked for comes while nothing was changed.
        #[test]
        fn one_number_has_one_content(
            len in 1usize..60_000,
            fragment_len in prop::sample::select(vec![300u32, 1_000, 2_500]),
            hashed_first: bool,
            acts in acts(),
        ) {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 13 + i / 251) as u8).collect();
            let object = Arc::new(Flipping(Mutex::new(bytes.clone())));
            let geometry = Geometry { object_len: len as u64, fragment_len, group_len: 1_024 };
            let mut supply =
                Supply::new(Arc::clone(&object) as _, geometry, Some(Seal::new(&Secret::fresh(), Handle(3))));
            while hashed_first && supply.root().is_none() {
                supply.hash_more().unwrap();
            }
            let (mut sent, mut changed) = (BTreeMap::<u64, Vec<u8>>::new(), false);
            for act in acts {
                match act {
                    Act::Hash => drop(supply.hash_more().unwrap()),
                    Act::HashOne => {
                        let known = supply.hashes().len() as u64;
                        let end = (known + 1).min(geometry.groups());
                        prop_assert_eq!(supply.hash_within(Duration::ZERO).unwrap(), known..end);
                    }
                    Act::Restore => object.0.lock().unwrap().copy_from_slice(&bytes),
                    Act::Flip { from, fragments, place } => {
                        changed = true;
                        let (first, within) = (from.index(geometry.fragments() as usize), place.index(fragment_len as usize));
                        let mut bytes = object.0.lock().unwrap();
                        for sn in first..first + fragments as usize {
                            if let Some(byte) = bytes.get_mut(sn * fragment_len as usize + within) {
                                *byte ^= 8;
                            }
                        }
                    }
                    Act::Lend { from, most } => {
                        let known = supply.hashes().len() as u64;
                        let whole = match known {
                            0 => 0,
                            known => whole_before(geometry.group_bytes(known - 1).end, &geometry),
                        };
                        if whole == 0 {
                            continue;
                        }
                        let first = from.index(whole as usize) as u64;
                        let sns = first..first + supply.in_row(first..(first + most).min(whole));
                        match supply.fragments(sns.clone()) {
                            Err(error) => prop_assert!(changed, "{error}"),
                            Ok(lent) => for (sn, bytes) in sns.zip(lent.bytes.chunks(fragment_len as usize)) {
                                let before = sent.entry(sn).or_insert_with(|| bytes.to_vec());
                                prop_assert!(&before[..] == bytes, "fragment {} has two contents", sn);
                            },
                        }
                    }
                }
            }
        }
    }
}
