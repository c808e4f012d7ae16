//! Receivers that bring the object to each other over TCP: the members of the mesh, and when each is told of
//! its candidates.

use super::{Output, PeerId, Sender, Service};
use crate::push::overlay::Candidates;
use crate::push::peer::Peer;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use polycast_types::Time;

impl Sender {
    /// Moves the receivers that still take the data channel to TCP.
    pub(super) fn move_all_to_mesh(&mut self, now: Time) {
        let on_channel = self.peers.iter().filter(|(_, peer)| peer.is_on_channel()).map(|(id, _)| *id);
        let on_channel: Vec<PeerId> = on_channel.collect();
        self.move_over(now, &on_channel);
    }

    /// One goes on over TCP.
    pub(super) fn move_to_mesh(&mut self, now: Time, id: PeerId) {
        self.move_over(now, &[id]);
    }

    /// These go on over TCP. Members that come together are linked evenly.
    fn move_over(&mut self, now: Time, ids: &[PeerId]) {
        for id in ids {
            self.disband(*id);
            let peer = self.peers.get_mut(id).expect("looked up by the caller");
            peer.service = Service::Chained;
            peer.repairs.missing.clear();
            peer.repairs.later.clear();
            peer.signs.verified_at = now;
            peer.chained = Some((now, peer.has.verified_bytes));
        }
        self.needed = 0..0;
        let told = self.mesh.join(ids.iter().map(|id| (*id, self.peers[id].location.clone())));
        self.tell(told);
    }

    /// One serves no others any more.
    pub(super) fn leave_mesh(&mut self, id: PeerId) {
        let told = self.mesh.leave(id);
        self.tell(told);
    }

    /// A candidate was of no use to a receiver.
    pub(super) fn replace(&mut self, id: PeerId, candidate: PeerId, for_good: bool) {
        let told = self.mesh.lose(id, candidate, for_good);
        self.tell(told);
    }

    /// A receiver is to bring no more bytes into its rack.
    pub(super) fn demote(&mut self, id: PeerId) {
        let told = self.mesh.demote(id);
        self.tell(told);
    }

    /// A receiver lacks what none of its candidates has: the source gives it.
    pub(super) fn give(&mut self, id: PeerId) {
        let told = self.mesh.let_take(id);
        self.tell(told);
    }

    /// Sends candidates to receivers. Those that have all, or have failed, need none.
    fn tell(&mut self, told: impl IntoIterator<Item = Candidates>) {
        let peers = &self.peers;
        let needs = |candidates: &Candidates| peers.get(&candidates.peer).is_some_and(Peer::is_active);
        self.outputs.extend(told.into_iter().filter(needs).map(Output::Candidates));
    }

    /// Checks that those who are served over TCP, and none that takes the channel, are members.
    pub(super) fn check_mesh(&self) {
        self.mesh.check();
        let members: BTreeSet<PeerId> = self.mesh.members().collect();
        for (id, peer) in &self.peers {
            let is_member = members.contains(id);
            assert!(is_member || peer.service != Service::Chained, "{id:?} is chained, and no member");
            assert!(!is_member || !peer.is_on_channel(), "{id:?} is a member, and on the channel");
        }
        assert!({ members }.iter().all(|id| self.peers.contains_key(id)), "a member is no receiver");
    }
}
