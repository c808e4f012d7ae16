//! The source's bytes: read once, hashed, sealed and sent while they are warm.

use polycast_net::hash::{group_hash, root_hash};
use polycast_net::object::ObjectSource;
use polycast_net::seal::Seal;
use polycast_protocol::push::Geometry;
use polycast_wire::control::Hash;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Hash groups read and hashed at a time: few enough to stay in the cache until they are sent.
const BATCH_GROUPS: u64 = 8;

/// Reads and hashes the bytes of one object, and lends them as the data channel carries them.
pub(crate) struct Supply {
    object: Arc<dyn ObjectSource>,
    geometry: Geometry,
    /// What the data channel carries is sealed with this.
    seal: Option<Seal>,
    hashes: Vec<Hash>,
    /// The last two batches: where they start, and their bytes as they are sent.
    batches: [(u64, Vec<u8>); 2],
    scratch: Vec<u8>,
}

impl Supply {
    pub(crate) fn new(object: Arc<dyn ObjectSource>, geometry: Geometry, seal: Option<Seal>) -> Self {
        Supply {
            object,
            geometry,
            seal,
            hashes: Vec::new(),
            batches: Default::default(),
            scratch: Vec::new(),
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
        let bytes = self.geometry.group_bytes(first).start..self.geometry.group_bytes(end - 1).end;
        let batch = &mut self.batches[(first / BATCH_GROUPS % 2) as usize];
        batch.0 = bytes.start;
        batch.1.resize((bytes.end - bytes.start) as usize, 0);
        self.object.read_exact_at(&mut batch.1, bytes.start)?;
        for group in first..end {
            let at = self.geometry.group_bytes(group);
            let slice = &batch.1[(at.start - bytes.start) as usize..(at.end - bytes.start) as usize];
            self.hashes.push(group_hash(slice, group, self.geometry.group_len, self.geometry.groups()));
        }
        if let Some(seal) = &self.seal {
            seal.turn_object(self.geometry.group_len, bytes.start, &mut batch.1);
        }
        Ok(first..end)
    }

    /// The bytes of a range as they are sent, from the cache or read again.
    fn bytes(&mut self, range: Range<u64>) -> io::Result<&[u8]> {
        for (start, bytes) in &self.batches {
            if range.start >= *start && range.end <= start + bytes.len() as u64 {
                return Ok(&bytes[(range.start - start) as usize..(range.end - start) as usize]);
            }
        }
        self.scratch.resize((range.end - range.start) as usize, 0);
        self.object.read_exact_at(&mut self.scratch, range.start)?;
        if let Some(seal) = &self.seal {
            seal.turn_object(self.geometry.group_len, range.start, &mut self.scratch);
        }
        Ok(&self.scratch)
    }

    /// The bytes of a run of fragments.
    pub(crate) fn fragments(&mut self, sns: Range<u64>) -> io::Result<&[u8]> {
        let bytes =
            self.geometry.fragment_bytes(sns.start).start..self.geometry.fragment_bytes(sns.end - 1).end;
        self.bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::seal::Secret;
    use polycast_types::Handle;

    #[test]
    fn every_range_reads_the_same_from_the_cache_and_from_the_object() {
        let object: Vec<u8> = (0..(20usize << 16) + 77).map(|i| (i * 13 + i / 4_099) as u8).collect();
        let geometry = Geometry { object_len: object.len() as u64, fragment_len: 8_916, group_len: 1 << 16 };
        for seal in [None, Some(Seal::new(&Secret::fresh(), Handle(3)))] {
            let mut sent = object.clone();
            if let Some(seal) = &seal {
                sent.chunks_mut(1 << 16)
                    .enumerate()
                    .for_each(|(group, bytes)| seal.turn(group as u64, 0, bytes));
                assert!(sent != object);
            }
            let mut supply = Supply::new(Arc::new(object.clone()), geometry, seal);
            while supply.root().is_none() {
                supply.hash_more().unwrap();
                for sn in (0..geometry.fragments()).step_by(3) {
                    let range = geometry.fragment_bytes(sn);
                    let want = &sent[range.start as usize..range.end as usize];
                    assert!(supply.fragments(sn..sn + 1).unwrap() == want, "fragment {sn}");
                }
            }
            assert_eq!(supply.root(), Some(*blake3::hash(&object).as_bytes()));
        }
    }
}
