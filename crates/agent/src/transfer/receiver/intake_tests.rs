//! Fragments that lie where they belong already: which of them are the source's.

use super::*;
use polycast_net::seal::Secret;
use polycast_wire::data::{EXTENSION_LEN_MAX, FragmentHeader};

const HANDLE: Handle = Handle(5);
const LEN: u32 = 1_000;
const OUTER_LEN: usize = 8;

fn geometry() -> Geometry {
    Geometry { object_len: 100_300, fragment_len: LEN, group_len: 1 << 16 }
}

fn content(sn: u64) -> Vec<u8> {
    let range = geometry().fragment_bytes(sn);
    (range.start..range.end).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Packets from `sn` on, as they come, one after the other.
fn packets(seal: &Seal, sns: Range<u64>, round: u32) -> Vec<u8> {
    let mut all = Vec::new();
    for sn in sns {
        let (mut payload, mut buffer) = (content(sn), [0; HEADER_LEN + EXTENSION_LEN_MAX]);
        let tag = seal.seal(sn, &mut payload);
        let header = FragmentHeader { handle: HANDLE, round, sn, flags: 0, object_len: None, sealed: true };
        let len = Header::Fragment(header).emit(&mut buffer);
        let before = len - HEADER_TAG_LEN;
        buffer[before - tag.len()..before].copy_from_slice(&tag);
        let last = seal.tag_of(&buffer[..before], &[]);
        buffer[before..len].copy_from_slice(&last[..HEADER_TAG_LEN]);
        all.extend_from_slice(&[0xaa; OUTER_LEN]);
        all.extend_from_slice(&buffer[..len]);
        all.extend_from_slice(&payload);
    }
    all
}

/// Returns the fragments taken, and the bytes, of packets that came from `sn` on into two group buffers whose
/// border lies in the third fragment.
fn taken(seal: &Seal, sn: u64, came: &[u8]) -> Option<(RangeSet, Vec<u8>)> {
    let packet = Packet {
        outer_len: OUTER_LEN,
        header_len: HEADER_LEN + FRAGMENT_TAGS_LEN,
        payload_len: LEN as usize,
    };
    let whole_len = packet.outer_len + packet.header_len + packet.payload_len;
    let mut bytes = came.to_vec();
    let mut parts = Vec::new();
    for (at, datagram) in bytes.chunks_mut(whole_len).enumerate() {
        let (outer, rest) = datagram.split_at_mut(packet.outer_len);
        let (header, payload) = rest.split_at_mut(packet.header_len);
        parts.extend([IoSliceMut::new(outer), IoSliceMut::new(header)]);
        if at == 2 {
            let (one, other) = payload.split_at_mut(payload.len() / 3);
            parts.extend([IoSliceMut::new(one), IoSliceMut::new(other)]);
        } else {
            parts.push(IoSliceMut::new(payload));
        }
    }
    let arrival =
        Arrival { len: came.len(), segment_len: whole_len, waited: std::time::Duration::ZERO, from: None };
    in_place(&parts, sn, arrival, (HANDLE, Some(seal)), &geometry(), OUTER_LEN)?;
    let ours = open_in_place(&mut parts, sn, came.len(), packet, seal);
    let payloads =
        parts.iter().filter(|part| part.len() != packet.outer_len && part.len() != packet.header_len);
    Some((ours, payloads.flat_map(|part| part.iter().copied()).collect()))
}

#[test]
fn fragments_of_the_source_are_opened_where_they_lie() {
    let seal = Seal::new(&Secret::fresh(), HANDLE);
    // The last fragment of the object is shorter.
    for sns in [3..9, 95..101, 100..101] {
        let (ours, opened) =
            taken(&seal, sns.start, &packets(&seal, sns.clone(), 4)).expect("all are in place");
        assert!(sns.clone().all(|sn| ours.contains(sn)), "{sns:?}: {ours:?}");
        assert!(opened == sns.flat_map(content).collect::<Vec<u8>>());
    }
}

#[test]
fn what_is_changed_on_the_way_is_left_out_and_the_rest_stays() {
    let seal = Seal::new(&Secret::fresh(), HANDLE);
    let sns = 3..9;
    let right = packets(&seal, sns.clone(), 4);
    let whole_len = OUTER_LEN + HEADER_LEN + FRAGMENT_TAGS_LEN + LEN as usize;
    for spoiled in 0..6 {
        let at = spoiled * whole_len + OUTER_LEN + HEADER_LEN + FRAGMENT_TAGS_LEN;
        for offset in [0, 500, 999] {
            let mut came = right.clone();
            came[at + offset] ^= 1;
            let (ours, opened) = taken(&seal, sns.start, &came).expect("headers are right");
            let left: Vec<u64> = sns.clone().filter(|sn| !ours.contains(*sn)).collect();
            assert_eq!(left, [3 + spoiled as u64]);
            for (piece, sn) in
                opened.chunks(LEN as usize).zip(sns.clone()).filter(|(_, sn)| ours.contains(*sn))
            {
                assert!(piece == content(sn), "{sn}");
            }
        }
    }
}

#[test]
fn headers_that_are_not_the_sources_move_nothing() {
    let (seal, other) = (Seal::new(&Secret::fresh(), HANDLE), Seal::new(&Secret::fresh(), HANDLE));
    let right = packets(&seal, 3..9, 4);
    assert!(taken(&seal, 3, &right).is_some());
    assert!(taken(&other, 3, &right).is_none(), "of another secret");
    let whole_len = right.len() / 6;
    for packet in 0..6 {
        // Any byte of a header but the version: round, handle, number, flags, either tag.
        for byte in 1..HEADER_LEN + FRAGMENT_TAGS_LEN {
            let mut came = right.clone();
            came[packet * whole_len + OUTER_LEN + byte] ^= 1;
            assert!(taken(&seal, 3, &came).is_none(), "byte {byte} of packet {packet}");
        }
    }
}

/// A datagram that is not in place: the same.
#[test]
fn single_datagrams_are_opened_or_refused() {
    let keys = Seal::new(&Secret::fresh(), HANDLE);
    let right = &packets(&keys, 7..8, 1)[OUTER_LEN..];
    let open = |datagram: &[u8]| {
        let mut datagram = datagram.to_vec();
        let (header, len) = Header::parse(&datagram).ok()?;
        seal::admit(&keys, &header, &mut datagram, len).then(|| datagram[len..].to_vec())
    };
    assert!(open(right) == Some(content(7)));
    for at in 0..right.len() {
        let mut other = right.to_vec();
        other[at] ^= 1;
        assert!(open(&other).is_none(), "byte {at}");
    }
    let plain = FragmentHeader { handle: HANDLE, round: 0, sn: 7, flags: 0, object_len: None, sealed: false };
    let mut buffer = [0; HEADER_LEN + EXTENSION_LEN_MAX];
    let len = Header::Fragment(plain).emit(&mut buffer);
    assert!(open(&[&buffer[..len], &content(7)[..]].concat()).is_none(), "it has no tags");
}
