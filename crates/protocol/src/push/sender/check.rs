//! What must hold of a sender between two inputs, whatever its receivers have said.

use super::sent::SENT_MAX;
use super::{PeerId, Sender, Service};
use crate::push::peer::Peer;
use polycast_types::RangeSet;

impl Sender {
    /// Panics if the machine contradicts itself: that is a bug of ours, never a receiver's fault. Called after every input
    /// in debug builds.
    ///
    /// # Panics
    /// If something that always holds does not.
    pub fn check(&self) {
        assert!(self.sent.len() <= SENT_MAX, "{} batches are remembered", self.sent.len());
        if let [.., before, last] = self.sent.as_slices().0 {
            assert!(before.position < last.position && before.packets < last.packets, "batches rise");
        }
        assert!(
            self.sent.back().is_none_or(|last| last.packets == self.packets),
            "all packets were in a batch"
        );
        assert!(self.reported_packets <= self.packets, "a report was asked for before it was sent");
        self.check_mesh();
        for (id, peer) in &self.peers {
            self.check_peer(*id, peer);
        }
        for (speaker, members) in &self.racks {
            assert!(!members.contains(speaker), "{speaker:?} is in its own rack");
        }
    }

    fn check_peer(&self, id: PeerId, peer: &Peer) {
        let takes = matches!(peer.service, Service::Streaming | Service::Patching);
        assert!(!takes || peer.initial.is_some(), "{id:?} takes the stream, and its lap has not begun");
        assert!(takes || peer.missing.is_empty(), "{id:?} is {:?}, and patches wait for it", peer.service);
        assert!(
            takes || peer.later.is_empty(),
            "{id:?} is {:?}, and is to get something later",
            peer.service
        );
        let settled = !peer.is_active();
        assert!(!settled || peer.spoken_by.is_none(), "{id:?} is settled, and another speaks for it");
        assert!(
            peer.initial.is_none_or(|initial| (self.config.first..self.position).contains(&initial)),
            "{id:?} began where nothing was sent"
        );
        assert!(peer.initial.is_none_or(|initial| initial <= peer.position), "{id:?} is before its lap");
        assert!(peer.position <= self.position, "{id:?} is ahead of the stream");
        assert!(peer.first_acknowledged <= peer.acknowledged, "{id:?} has acknowledged less than at first");
        assert!(peer.acknowledged <= self.packets, "{id:?} has acknowledged more than was sent");
        assert!(
            peer.received <= self.packets && peer.lost <= self.packets,
            "{id:?} tells of more than was sent"
        );
        assert!(peer.verified_bytes <= self.config.geometry.object_len, "{id:?} has more than there is");
        for set in [&peer.missing, &peer.later, &peer.patched, &peer.unicast[0], &peer.unicast[1]] {
            assert!(end_of(set) <= self.fragments, "{id:?} was promised fragments that there are not");
        }
        if let Some(speaker) = peer.spoken_by {
            let rack = self.racks.get(&speaker);
            assert!(rack.is_some_and(|rack| rack.contains(&id)), "{speaker:?} may not speak for {id:?}");
        }
    }
}

/// The number after the largest of a set.
fn end_of(set: &RangeSet) -> u64 {
    set.iter().next_back().map_or(0, |range| range.end)
}
