//! Conditions of a sender that must hold between two inputs, whatever its receivers have reported.

use super::sent::SENT_MAX;
use super::{PeerId, Sender, Service};
use crate::push::peer::Peer;

impl Sender {
    /// Panics if the machine contradicts itself: that is a bug of ours, never a receiver's fault. Called
    /// after every input in debug builds.
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
        assert!(!takes || peer.lap.initial.is_some(), "{id:?} takes the stream, and its lap has not begun");
        let settled = !peer.is_active();
        assert!(!settled || peer.spoken_by.is_none(), "{id:?} is settled, and another speaks for it");
        peer.lap.check(self.config.first..self.position, self.packets);
        peer.has.check(self.config.geometry.object_len);
        peer.repairs.check(self.fragments, takes);
        if let Some(speaker) = peer.spoken_by {
            let rack = self.racks.get(&speaker);
            assert!(rack.is_some_and(|rack| rack.contains(&id)), "{speaker:?} may not speak for {id:?}");
        }
    }
}
