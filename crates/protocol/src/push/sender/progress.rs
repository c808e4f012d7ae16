//! Receivers that live, are served, and get nothing done: a sign of life is no reason to hold a path without
//! an end.
//!
//! Only the time counts in which a receiver could have verified something. On the data channel that is when
//! its lap is over, or when fragments of two hash groups that it lacked have been sent since it last verified
//! any; never while the path is being set up, or the stream waits for another path. Over TCP it is always. A
//! sender that was held up itself counts a moment, not the time that it missed.

use super::{PeerId, Sender, Service};
use crate::push::peer::Peer;
use crate::session::Why;
use alloc::vec::Vec;
use polycast_types::{Duration, Time};

/// At most so much counts between two looks.
const LOOK_MAX: Duration = Duration::from_millis(100);
/// Fragments of so many hash groups are enough to complete one.
const GROUPS_OFFERED: u64 = 2;

impl Sender {
    /// Counts for how long each receiver could have verified something and did not, and gives up those for
    /// whom that is too long.
    pub(super) fn check_progress(&mut self, now: Time) {
        let span = now.since(self.progress_at).min(LOOK_MAX);
        self.progress_at = now;
        let served: Vec<PeerId> =
            self.peers.iter().filter(|(_, peer)| self.is_served(peer)).map(|(id, _)| *id).collect();
        let mut late = Vec::new();
        for id in served {
            let peer = self.peers.get_mut(&id).expect("a key of the same map");
            peer.idle.span = peer.idle.span + span;
            if peer.idle.span >= self.config.progress_timeout {
                late.push(id);
            }
        }
        for id in late {
            self.give_up_idle(id);
        }
        let packets = self.packets;
        for peer in self.peers.values_mut() {
            peer.idle.from.get_or_insert(packets);
        }
    }

    /// Returns true if there is something that this receiver could verify.
    fn is_served(&self, peer: &Peer) -> bool {
        match peer.service {
            Service::Streaming | Service::Patching => {
                let is_over = peer.lap.end(self.fragments).is_some_and(|end| self.position >= end);
                // What it holds already may have been sent to others.
                let group = u64::from(self.config.geometry.group_len / self.config.geometry.fragment_len) + 1;
                let enough = peer.has.held_count.saturating_add(GROUPS_OFFERED * group);
                let offered = peer.idle.from.is_some_and(|from| self.packets - from >= enough);
                (is_over || offered) && !self.paused && !self.path_waits
            }
            // The source gives what none else has.
            Service::Chained => true,
            Service::Listening { .. } | Service::Done | Service::Failed(_) => false,
        }
    }

    /// One that gets nothing done. In a rack that may be another one, as the rack's reports tell of the
    /// slowest: its receivers speak for themselves from then on.
    fn give_up_idle(&mut self, id: PeerId) {
        let speaker = self.peers.get(&id).and_then(|peer| peer.spoken_by).unwrap_or(id);
        if self.speaks_for_others(speaker) {
            let rack = self.racks.get(&speaker).into_iter().flatten().copied();
            for other in rack.chain([speaker]).collect::<Vec<_>>() {
                if let Some(peer) = self.peers.get_mut(&other) {
                    peer.idle.span = Duration::ZERO;
                }
            }
            self.disband(speaker);
        } else if self.peers.get(&id).is_some_and(|peer| peer.idle.span >= self.config.progress_timeout) {
            self.settle(id, Some(Why::NoProgress(self.config.progress_timeout)));
        }
    }
}

#[cfg(test)]
mod tests;
