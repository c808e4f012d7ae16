//! Labels that a rack's agent keeps, and their use: the leaf labels of all sessions, one of which takes the
//! place of a packet's source label (Orca, section 3.5 and figure 5c), and spine labels for the sessions
//! whose pod's spine asks this rack.

use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;
use polycast_planning::labels::pod_labels;
use polycast_wire::label::{FIXED_LEN, Fault, Header, KIND_AT, LabelKind, header_len};
use polycast_wire::rack::SPINE_LABEL_LEN_MAX;

/// Bytes of leafStatus and a bit for each of up to 128 hosts.
const LEAF_LABEL_LEN: usize = 17;

const _: () = assert!(SPINE_LABEL_LEN_MAX == pod_labels::SPINE_LABEL_LEN_MAX);

/// The labels of a rack, by session. A million leaf labels take 52.4 MB.
#[derive(Clone, Debug)]
pub struct RackLabels {
    label_len: usize,
    sessions_max: usize,
    /// All zero where the rack has no receivers.
    labels: HashMap<u32, [u8; LEAF_LABEL_LEN], BuildHasherDefault<SessionHasher>>,
    spine_labels: HashMap<u32, [u8; SPINE_LABEL_LEN_MAX], BuildHasherDefault<SessionHasher>>,
}

/// A label that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RackLabelError {
    /// Not the labels of a rack in this network.
    #[error("this is no leaf label of {0} bytes, nor one with a spine label behind it")]
    NoLeafLabel(usize),
    /// Too many sessions.
    #[error("the rack has labels for {0} sessions already, the most it keeps")]
    Full(usize),
}

impl RackLabels {
    /// No labels yet, in a network whose labels have `label_len` bytes; it keeps at most those of
    /// `sessions_max` sessions.
    #[must_use]
    pub fn new(label_len: usize, sessions_max: usize) -> Self {
        RackLabels { label_len, sessions_max, labels: HashMap::default(), spine_labels: HashMap::default() }
    }

    /// Returns the number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns true if there are no sessions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// About how many bytes of memory the labels take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.labels.allocation_size() + self.spine_labels.allocation_size()
    }

    /// Returns the number of sessions that have a spine label.
    #[must_use]
    pub fn spine_labels(&self) -> usize {
        self.spine_labels.len()
    }

    /// Keeps the labels of a session, in place of earlier ones: the leaf label, all zero where the rack has
    /// no receivers, and behind it the front of the spine label, where the rack keeps one.
    ///
    /// # Errors
    /// These are no labels of this network, or there are too many sessions.
    pub fn set(&mut self, session: u32, labels: &[u8]) -> Result<(), RackLabelError> {
        let wrong = RackLabelError::NoLeafLabel(self.label_len);
        let (leaf, spine) = labels.split_at_checked(self.label_len).ok_or(wrong)?;
        let (front, zeros) = leaf.split_at(leaf.len().min(LEAF_LABEL_LEN));
        let names_hosts = leaf.first().is_some_and(|byte| byte & 0x80 != 0);
        let no_hosts = !spine.is_empty() && front.iter().all(|byte| *byte == 0);
        let is_spine_label = spine.is_empty()
            || spine.len() == self.label_len.min(SPINE_LABEL_LEN_MAX)
                && spine[0] & 0x80 == 0
                && spine.iter().any(|byte| *byte != 0);
        if !(names_hosts || no_hosts) || !is_spine_label || zeros.iter().any(|byte| *byte != 0) {
            return Err(wrong);
        }
        if self.labels.len() >= self.sessions_max && !self.labels.contains_key(&session) {
            return Err(RackLabelError::Full(self.sessions_max));
        }
        let mut kept = [0; LEAF_LABEL_LEN];
        kept[..front.len()].copy_from_slice(front);
        self.labels.insert(session, kept);
        if spine.is_empty() {
            self.spine_labels.remove(&session);
        } else {
            let mut kept = [0; SPINE_LABEL_LEN_MAX];
            kept[..spine.len()].copy_from_slice(spine);
            self.spine_labels.insert(session, kept);
        }
        Ok(())
    }

    /// Forgets a session; gives whether it was there.
    pub fn remove(&mut self, session: u32) -> bool {
        self.spine_labels.remove(&session);
        self.labels.remove(&session).is_some()
    }

    /// The first bytes of a session's leaf label; all others are zero. `None` where the rack has no
    /// receivers.
    #[must_use]
    pub fn get(&self, session: u32) -> Option<&[u8]> {
        let label = self.labels.get(&session).filter(|label| label[0] != 0)?;
        Some(&label[..self.label_len.min(LEAF_LABEL_LEN)])
    }

    /// The first bytes of a session's spine label, if the rack keeps it; all others are zero.
    #[must_use]
    pub fn spine_label(&self, session: u32) -> Option<&[u8]> {
        self.spine_labels.get(&session).map(|label| &label[..self.label_len.min(SPINE_LABEL_LEN_MAX)])
    }

    /// Puts the session's leaf label in place of the source label of a packet, or its spine label where a
    /// spine asks for it; `packet` is the front of its UDP payload.
    ///
    /// # Errors
    /// Why the packet has to be dropped. One with a leaf label is for the receivers of this server, not for
    /// the agent: it counts as stray.
    pub fn relabel(&self, packet: &mut [u8]) -> Result<(), Fault> {
        let (header, _) = Header::parse_for(packet, self.label_len)?;
        if header.label[0] & 0x80 != 0 {
            return Err(Fault::Stray);
        }
        let (kind, label) = match header.kind {
            LabelKind::Asks => (LabelKind::Spine, self.spine_label(header.session)),
            _ => (LabelKind::Filter, self.get(header.session)),
        };
        let label = label.ok_or(Fault::UnknownSession)?;
        packet[KIND_AT] = kind as u8;
        let (front, rest) = packet[FIXED_LEN..header_len(self.label_len)].split_at_mut(label.len());
        front.copy_from_slice(label);
        rest.fill(0);
        Ok(())
    }
}

/// Spreads session numbers, which often follow each other, over all bits. The numbers are the manager's: no
/// host outside can choose them to collide.
#[derive(Clone, Copy, Debug, Default)]
struct SessionHasher(u64);

impl Hasher for SessionHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32((*byte).into());
        }
    }

    fn write_u32(&mut self, session: u32) {
        let mixed = (self.0 ^ u64::from(session)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn packet(session: u32, label: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        Header { kind: LabelKind::Filter, session, label }.emit(&mut packet);
        packet.extend_from_slice(b"payload");
        packet
    }

    #[test]
    fn packets_are_relabelled_or_refused() {
        for label_len in [1, 3, 16, 17, 18, 19, 40] {
            let mut labels = RackLabels::new(label_len, 2);
            let leaf_label = |byte: u8| {
                let mut label = vec![byte; label_len];
                label[0] |= 0x80;
                label[17.min(label_len)..].fill(0);
                label
            };
            labels.set(5, &leaf_label(0x55)).unwrap();
            let mut given = packet(5, &vec![0x7f; label_len]);
            labels.relabel(&mut given).unwrap();
            assert_eq!(given, packet(5, &leaf_label(0x55)));
            assert_eq!(labels.relabel(&mut given), Err(Fault::Stray));
            assert_eq!(labels.relabel(&mut packet(6, &vec![0; label_len])), Err(Fault::UnknownSession));
            let longer = vec![0; label_len + 1];
            assert_eq!(labels.relabel(&mut packet(5, &longer)), Err(Fault::LabelLength));
            assert_eq!(labels.relabel(&mut given[..4]), Err(Fault::Malformed));
            assert_eq!(labels.set(6, &longer), Err(RackLabelError::NoLeafLabel(label_len)));
            assert_eq!(labels.set(6, &vec![0; label_len]), Err(RackLabelError::NoLeafLabel(label_len)));
            labels.set(6, &leaf_label(1)).unwrap();
            assert_eq!(labels.set(7, &leaf_label(1)), Err(RackLabelError::Full(2)));
            labels.set(6, &leaf_label(2)).unwrap();
            assert!(labels.remove(5) && !labels.remove(5) && labels.get(5).is_none());
        }
    }

    #[test]
    fn a_spine_that_asks_is_given_the_spine_label() {
        for label_len in [2, 10, 19, 20, 40] {
            let mut labels = RackLabels::new(label_len, 3);
            let leaf_label = |first: u8| {
                let mut label = vec![0; label_len];
                label[0] = first;
                label
            };
            let spine_label = vec![0x3c; label_len.min(SPINE_LABEL_LEN_MAX)];
            let both = |leaf: u8| [leaf_label(leaf), spine_label.clone()].concat();
            let asks = |session: u32, kind| {
                let mut packet = Vec::new();
                Header { kind, session, label: &leaf_label(7) }.emit(&mut packet);
                packet
            };
            labels.set(5, &both(0x81)).unwrap();
            labels.set(6, &both(0)).unwrap();
            labels.set(7, &leaf_label(0x81)).unwrap();
            assert_eq!((labels.len(), labels.spine_labels()), (3, 2));
            for session in [5, 6] {
                let mut packet = asks(session, LabelKind::Asks);
                labels.relabel(&mut packet).unwrap();
                let (header, _) = Header::parse_for(&packet, label_len).unwrap();
                assert_eq!((header.kind, header.session), (LabelKind::Spine, session));
                assert_eq!(header.label[..spine_label.len()], spine_label);
                assert!(header.label[spine_label.len()..].iter().all(|byte| *byte == 0));
            }
            for kind in [LabelKind::Filter, LabelKind::Pods, LabelKind::Spine] {
                let mut packet = asks(5, kind);
                labels.relabel(&mut packet).unwrap();
                let (header, _) = Header::parse_for(&packet, label_len).unwrap();
                assert_eq!((header.kind, header.label), (LabelKind::Filter, &leaf_label(0x81)[..]));
                assert_eq!(labels.relabel(&mut asks(6, kind)), Err(Fault::UnknownSession), "no receivers");
            }
            assert_eq!(labels.relabel(&mut asks(7, LabelKind::Asks)), Err(Fault::UnknownSession));
            // Neither label, half of one, and a leaf label in place of a spine label.
            let half = [leaf_label(0x81), vec![1; spine_label.len() - 1]].concat();
            let twice = [leaf_label(0x81), vec![0x81; spine_label.len()]].concat();
            for wrong in [leaf_label(0), half, twice] {
                assert_eq!(labels.set(5, &wrong), Err(RackLabelError::NoLeafLabel(label_len)));
            }
            labels.set(5, &leaf_label(0x81)).unwrap();
            labels.remove(6);
            assert_eq!((labels.len(), labels.spine_labels()), (2, 0));
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map(changes in proptest::collection::vec((0u32..50, any::<Option<u8>>()), 0..200)) {
            let (mut labels, mut model) = (RackLabels::new(2, 40), BTreeMap::new());
            for (session, change) in changes {
                match change {
                    Some(byte) => {
                        let full = model.len() == 40 && !model.contains_key(&session);
                        prop_assert_eq!(labels.set(session, &[0x80, byte]).is_err(), full);
                        if !full {
                            model.insert(session, [0x80, byte]);
                        }
                    }
                    None => prop_assert_eq!(labels.remove(session), model.remove(&session).is_some()),
                }
            }
            prop_assert_eq!(labels.len(), model.len());
            for session in 0..50 {
                prop_assert_eq!(labels.get(session), model.get(&session).map(|label| &label[..]));
            }
        }
    }

    #[test]
    fn a_million_sessions_take_little_memory() {
        let mut labels = RackLabels::new(19, 1_000_000);
        let mut label = [0; 19];
        label[0] = 0x80;
        for session in 0..1_000_000u32 {
            labels.set(session.wrapping_mul(2_654_435_761), &label).unwrap();
        }
        assert_eq!(labels.len(), 1_000_000);
        let bytes = labels.memory_bytes();
        assert!(
            (21_000_000..100_000_000).contains(&bytes),
            "{bytes} bytes for as many labels of 17 with a session's number"
        );
    }

    /// Memory of leaf labels and of spine labels is counted, each of them once.
    #[test]
    fn spine_labels_take_memory_too() {
        let memory = |spine: &[u8]| {
            let mut labels = RackLabels::new(20, 1_000);
            assert_eq!(labels.memory_bytes(), 0);
            for session in 0..1_000 {
                labels.set(session, &[&[0x80; 1][..], &[0; 19], spine].concat()).unwrap();
            }
            labels.memory_bytes()
        };
        let (without, with) = (memory(&[]), memory(&[1; SPINE_LABEL_LEN_MAX]));
        assert!(without >= 1_000 * (4 + LEAF_LABEL_LEN), "{without} bytes");
        assert!(
            with >= without + 1_000 * (4 + SPINE_LABEL_LEN_MAX) && with < 3 * without,
            "{with} and {without} bytes"
        );
    }
}
