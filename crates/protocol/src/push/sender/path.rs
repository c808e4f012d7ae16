//! Handling of a sender's data channel: one that is being set up, one that is lost, and another one that
//! takes its place (Republic section III-B: a transfer may be granted in several sessions).

use super::{Output, Sender, Service};
use polycast_types::Time;

impl Sender {
    pub(super) fn wait_for_path(&mut self, now: Time, waits: bool) {
        if !core::mem::replace(&mut self.path_waits, waits) || waits {
            return;
        }
        // From here on it has to reach everyone.
        for peer in self.peers.values_mut() {
            peer.signs.advanced_at = peer.signs.advanced_at.max(now);
            if let Service::Listening { since } = &mut peer.service {
                *since = now;
            }
        }
    }

    pub(super) fn lose_path(&mut self, now: Time) {
        self.config.multicast = false;
        self.next_patch = None;
        self.outputs.retain(|output| !matches!(output, Output::Send { .. } | Output::SendPatch(_)));
        if self.started_at.is_some() {
            self.move_all_to_mesh(now);
        }
    }

    /// Goes on over another data channel: single attempts first, as its set-up may take a while.
    pub(super) fn take_path(&mut self, now: Time) {
        (self.config.multicast, self.paused, self.path_waits) = (true, false, false);
        self.next_send = now;
        // What was meant for the channel before is lost like any other packet.
        self.outputs.retain(|output| !matches!(output, Output::Send { .. } | Output::SendPatch(_)));
        for peer in self.peers.values_mut() {
            peer.signs.advanced_at = peer.signs.advanced_at.max(now);
            peer.lap.watch();
            if let Service::Listening { since } = &mut peer.service {
                *since = now;
            }
        }
        let interval = self.config.attempt_interval.after(now, now);
        self.settling.again(now, self.config.path_timeout, interval);
        self.next_attempt = now;
        if self.peers.values().any(|peer| !peer.repairs.missing.is_empty()) {
            self.next_patch = Some(now + self.config.patch_delay);
        }
    }

    /// Pauses if the allowance is used up; gives whether the stream waits for another path.
    pub(super) fn pause(&mut self) -> bool {
        if self.config.allowance != Some(0) {
            return false;
        }
        if !core::mem::replace(&mut self.paused, true) {
            let on_channel = self.peers.values().filter(|peer| peer.is_on_channel());
            let verified = on_channel.map(|peer| peer.has.verified_bytes).min().unwrap_or(0);
            let remaining_bytes = self.config.geometry.object_len.saturating_sub(verified).max(1);
            self.outputs.push_back(Output::AllowanceUsed { remaining_bytes });
        }
        self.stream_at = None;
        true
    }
}
