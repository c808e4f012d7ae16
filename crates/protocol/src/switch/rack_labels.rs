//! What an agent of a rack keeps and does: the leaf labels of all sessions, one of which takes the place of a packet's source
//! label (Orca, section 3.5 and figure 5c).

use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;
use polycast_wire::label::{FIXED_LEN, Fault, Header, header_len};

/// leafStatus and a bit for each of up to 128 hosts.
const LEAF_LABEL_LEN: usize = 17;

/// The leaf labels of a rack, by session. A million of them take 52.4 MB.
#[derive(Clone, Debug)]
pub struct RackLabels {
    label_len: usize,
    sessions_max: usize,
    labels: HashMap<u32, [u8; LEAF_LABEL_LEN], BuildHasherDefault<SessionHasher>>,
}

/// A label that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RackLabelError {
    /// Not a leaf label of this network.
    #[error("this is no leaf label of {0} bytes")]
    NoLeafLabel(usize),
    /// Too many sessions.
    #[error("the rack has labels for {0} sessions already, the most it keeps")]
    Full(usize),
}

impl RackLabels {
    /// No labels yet, in a network whose labels have `label_len` bytes; it keeps at most those of `sessions_max` sessions.
    #[must_use]
    pub fn new(label_len: usize, sessions_max: usize) -> Self {
        RackLabels { label_len, sessions_max, labels: HashMap::default() }
    }

    /// How many sessions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// About how many bytes of memory the labels take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.labels.allocation_size()
    }

    /// Keeps the leaf label of a session, in place of an earlier one.
    ///
    /// # Errors
    /// It is no leaf label of this network, or there are too many sessions.
    pub fn set(&mut self, session: u32, label: &[u8]) -> Result<(), RackLabelError> {
        let (front, zeros) = label.split_at_checked(LEAF_LABEL_LEN).unwrap_or((label, &[]));
        let is_leaf_label = label.len() == self.label_len
            && label.first().is_some_and(|byte| byte & 0x80 != 0)
            && zeros.iter().all(|byte| *byte == 0);
        if !is_leaf_label {
            return Err(RackLabelError::NoLeafLabel(self.label_len));
        }
        if self.labels.len() >= self.sessions_max && !self.labels.contains_key(&session) {
            return Err(RackLabelError::Full(self.sessions_max));
        }
        let mut kept = [0; LEAF_LABEL_LEN];
        kept[..front.len()].copy_from_slice(front);
        self.labels.insert(session, kept);
        Ok(())
    }

    /// Forgets a session; gives whether it was there.
    pub fn remove(&mut self, session: u32) -> bool {
        self.labels.remove(&session).is_some()
    }

    /// The first bytes of a session's leaf label; all others are zero.
    #[must_use]
    pub fn get(&self, session: u32) -> Option<&[u8]> {
        self.labels.get(&session).map(|label| &label[..self.label_len.min(LEAF_LABEL_LEN)])
    }

    /// Puts the session's leaf label in place of the source label of a packet; `packet` is the front of its UDP payload.
    ///
    /// # Errors
    /// Why the packet has to be dropped. One with a leaf label is for the receivers of this server, not for the agent: it
    /// counts as stray.
    pub fn relabel(&self, packet: &mut [u8]) -> Result<(), Fault> {
        let (header, _) = Header::parse_for(packet, self.label_len)?;
        if header.label[0] & 0x80 != 0 {
            return Err(Fault::Stray);
        }
        let label = self.labels.get(&header.session).ok_or(Fault::UnknownSession)?;
        let place = &mut packet[FIXED_LEN..header_len(self.label_len)];
        let (front, rest) = place.split_at_mut(place.len().min(LEAF_LABEL_LEN));
        front.copy_from_slice(&label[..front.len()]);
        rest.fill(0);
        Ok(())
    }
}

/// Spreads session numbers, which often follow each other, over all bits. The numbers are the manager's: nobody outside can
/// choose them to collide.
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
        Header { session, label }.emit(&mut packet);
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
        assert!(labels.memory_bytes() < 100_000_000, "{} bytes", labels.memory_bytes());
    }
}
