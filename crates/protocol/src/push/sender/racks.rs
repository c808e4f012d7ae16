//! Receivers of a rack for whom one of them speaks (Orca appendix A.4): the source hears racks, and not
//! hosts.
//!
//! What a speaker reports counts for all its rack: the rack has what its slowest receiver has, so the speaker
//! alone holds the window. What it asks for is patched by multicast. Each receiver still says for itself
//! where its lap began and that it is done, and asks for itself what was asked for in vain before. When a
//! speaker leaves, falls off the path or is done, its rack's receivers are told to speak for themselves.

use super::{PeerId, Sender, Service};
use crate::push::peer::Peer;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;
use polycast_types::Time;
use polycast_wire::control::{Control, NOWHERE};

use super::Output;

impl Sender {
    /// Says which receivers one may speak for, and tells it.
    pub(super) fn allow(&mut self, speaker: PeerId, members: BTreeSet<PeerId>) {
        let before = self.racks.insert(speaker, members).unwrap_or_default();
        for member in before.difference(&self.racks[&speaker]) {
            if let Some(peer) = self.peers.get_mut(member).filter(|peer| peer.spoken_by == Some(speaker)) {
                peer.speak_for_itself();
            }
        }
    }

    /// A speaker names those whom it speaks for now.
    pub(super) fn name_rack(&mut self, speaker: PeerId, named: &[u32]) {
        // One whose first packet is still to come may have heard of its rack already. One that falls off the
        // path later speaks for no other: see `disband`.
        let Some(allowed) = self.racks.get(&speaker) else { return };
        let named: BTreeSet<PeerId> = named.iter().map(|number| PeerId(*number)).collect();
        let mut window = u64::MAX;
        for id in allowed {
            let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.is_active()) else { continue };
            if named.contains(id) {
                peer.spoken_by = Some(speaker);
                window = window.min(peer.window);
            } else if peer.spoken_by == Some(speaker) {
                peer.speak_for_itself();
            }
        }
        if let Some(peer) = self.peers.get_mut(&speaker) {
            peer.window = peer.window.min(window);
        }
        self.needed = 0..0;
    }

    /// Returns true if its reports count for others too.
    pub(super) fn speaks_for_others(&self, id: PeerId) -> bool {
        self.racks.contains_key(&id) && self.rack_of(id).next().is_some()
    }

    /// Returns the receivers that a receiver speaks for.
    fn rack_of(&self, speaker: PeerId) -> impl Iterator<Item = PeerId> + '_ {
        let allowed = self.racks.get(&speaker).into_iter().flatten().copied();
        allowed.filter(move |id| self.peers.get(id).is_some_and(|peer| peer.spoken_by == Some(speaker)))
    }

    /// A report of a speaker: all its rack lives, and has got so far.
    pub(super) fn rack_progress(&mut self, now: Time, speaker: PeerId, position: u64, verified_bytes: u64) {
        let members: Vec<PeerId> = self.rack_of(speaker).collect();
        if position > self.position {
            return;
        }
        let acknowledged = self.packets_before(position);
        for id in members {
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            (peer.signs.heard_at, peer.signs.reported_at) = (now, now);
            peer.is_said_to_have(now, verified_bytes);
            if peer.lap.initial.is_some() && position > peer.lap.position {
                peer.lap.position = position;
                peer.lap.acknowledged = peer.lap.acknowledged.max(acknowledged);
                peer.signs.advanced_at = now;
            }
        }
    }

    /// PTCH_REQ of a rack: patches by multicast, however often; receivers ask for themselves when that does
    /// not help.
    pub(super) fn rack_request(&mut self, now: Time, speaker: PeerId, ranges: &[Range<u64>]) {
        let streams = self.peers.get(&speaker).is_some_and(|peer| peer.service == Service::Streaming);
        if !streams {
            return;
        }
        let ranges = &self.offered_of(self.rack_of(speaker).chain([speaker]), ranges)[..];
        if !self.speaks_for_others(speaker) {
            // Patches are repeated for racks, not for one that speaks for itself alone.
            return self.request(now, speaker, ranges);
        }
        for range in ranges {
            let range = range.start.min(self.fragments)..range.end.min(self.fragments);
            if let Some(peer) = self.peers.get_mut(&speaker) {
                peer.repairs.patched.remove(range);
            }
        }
        let members: Vec<PeerId> = self.rack_of(speaker).collect();
        for id in members {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.lap.finish_at = None;
            }
        }
        self.request(now, speaker, ranges);
    }

    /// Returns true if patches wait that may be for this receiver.
    pub(super) fn patches_wait_for(&self, peer: &Peer) -> bool {
        let of_rack = peer.spoken_by.and_then(|speaker| self.peers.get(&speaker));
        let waits = |peer: &Peer| !peer.repairs.missing.is_empty() || !peer.repairs.later.is_empty();
        waits(peer) || of_rack.is_some_and(waits)
    }

    /// A receiver speaks for no other any more, and no other speaks for it.
    pub(super) fn disband(&mut self, id: PeerId) {
        if let Some(members) = self.racks.remove(&id) {
            for member in members {
                let Some(peer) = self.peers.get_mut(&member).filter(|peer| peer.is_active()) else {
                    continue;
                };
                // It may have gone to the speaker without having been named yet.
                if peer.spoken_by == Some(id) {
                    peer.speak_for_itself();
                }
                let (address, port) = NOWHERE;
                let control = Control::Speaker { member: member.0, address, port, name: None };
                self.outputs.push_back(Output::Control { peer: member, control });
            }
        }
        if let Some(peer) = self.peers.get_mut(&id)
            && peer.spoken_by.is_some()
        {
            peer.speak_for_itself();
        }
    }
}
