//! What has to be known of an object before anybody may pull it: the hashes of its groups, and the digest by which each
//! packet is named. All processors help to read it.

use super::super::error::TransferError;
use crate::forwarder::digest_of;
use polycast_net::hash::{group_hash, root_hash};
use polycast_net::object::ObjectSource;
use polycast_protocol::pull::Digest;
use polycast_protocol::push::Geometry;
use polycast_wire::control::Hash;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hash groups, and packets, that a thread reads at a time.
const GROUPS_AT_ONCE: u64 = 8;
/// More threads would only wait for the memory.
const THREADS_MAX: usize = 8;

/// What is known of the object.
pub(super) struct Sums {
    pub(super) hashes: Vec<Hash>,
    pub(super) root: Hash,
    pub(super) digests: Arc<[Digest]>,
}

/// Reads the object once.
pub(super) fn sums_of(source: &Arc<dyn ObjectSource>, geometry: Geometry) -> Result<Sums, TransferError> {
    let groups = geometry.groups();
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let threads = threads.min(groups.div_ceil(GROUPS_AT_ONCE) as usize).max(1);
    let part = || {
        let mut parts = Vec::new();
        let mut bytes = Vec::new();
        loop {
            let first = next.fetch_add(GROUPS_AT_ONCE, Ordering::Relaxed);
            if first >= groups {
                return Ok::<_, io::Error>(parts);
            }
            let range = first..(first + GROUPS_AT_ONCE).min(groups);
            parts.push(sums_of_groups(source.as_ref(), geometry, range, &mut bytes)?);
        }
    };
    let mut parts = Vec::new();
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(part)).collect();
        let mut results = vec![part()];
        results.extend(
            helpers
                .into_iter()
                .map(|helper| helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
        );
        results.into_iter().try_for_each(|result| {
            parts.extend(result?);
            Ok(())
        })
    })
    .map_err(TransferError::Read)?;
    parts.sort_unstable_by_key(|part: &Part| part.first);
    let hashes: Vec<Hash> = parts.iter().flat_map(|part| part.hashes.iter().copied()).collect();
    let digests: Vec<Digest> = parts.iter().flat_map(|part| part.digests.iter().copied()).collect();
    assert!(digests.len() as u64 == geometry.fragments(), "every packet has a digest");
    Ok(Sums { root: root_hash(&hashes), hashes, digests: digests.into() })
}

/// The sums of some groups, and of the packets that begin in them.
struct Part {
    first: u64,
    hashes: Vec<Hash>,
    digests: Vec<Digest>,
}

fn sums_of_groups(
    source: &dyn ObjectSource,
    geometry: Geometry,
    groups: Range<u64>,
    bytes: &mut Vec<u8>,
) -> io::Result<Part> {
    let (start, end) = (geometry.group_bytes(groups.start).start, geometry.group_bytes(groups.end - 1).end);
    let packet_len = u64::from(geometry.fragment_len);
    let is_last = groups.end == geometry.groups();
    // An object without a byte has one packet.
    let packets =
        start.div_ceil(packet_len)..if is_last { geometry.fragments() } else { end.div_ceil(packet_len) };
    // The last packet that begins here may end behind the groups.
    let until = if packets.is_empty() { end } else { end.max(geometry.fragment_bytes(packets.end - 1).end) };
    bytes.resize((until - start) as usize, 0);
    source.read_exact_at(bytes, start)?;
    let slice = |range: Range<u64>| &bytes[(range.start - start) as usize..(range.end - start) as usize];
    let hash =
        |group| group_hash(slice(geometry.group_bytes(group)), group, geometry.group_len, geometry.groups());
    Ok(Part {
        first: groups.start,
        hashes: groups.clone().map(hash).collect(),
        digests: packets.map(|sn| digest_of(slice(geometry.fragment_bytes(sn)))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::supply::Supply;
    use super::*;
    use polycast_net::hash::GROUP_LEN;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn they_are_those_of_one_reading_after_the_other(len in 0usize..6_000_000, packet in 200u32..9_000) {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
            let geometry = Geometry { object_len: len as u64, fragment_len: packet, group_len: GROUP_LEN };
            let object: Arc<dyn ObjectSource> = Arc::new(bytes.clone());
            let sums = sums_of(&object, geometry).unwrap();
            let mut supply = Supply::new(object, geometry);
            while supply.root().is_none() {
                supply.hash_more().unwrap();
            }
            prop_assert_eq!(&sums.hashes[..], supply.hashes());
            prop_assert_eq!(Some(sums.root), supply.root());
            prop_assert_eq!(sums.digests.len() as u64, geometry.fragments());
            for (sn, digest) in sums.digests.iter().enumerate() {
                let range = geometry.fragment_bytes(sn as u64);
                prop_assert_eq!(*digest, digest_of(&bytes[range.start as usize..range.end as usize]));
            }
        }
    }
}
