//! The source's path when another one takes its place: after a failure, or for the next part of the object
//! (Republic section III-B: a transfer may be granted in several sessions).

use super::super::{Fared, NextPath, Path, Rest};
use super::{AttemptInterval, Channel, Control, DataSender, Input, Run, Seal};
use polycast_protocol::push::PeerId;
use polycast_protocol::session::Stage;
use polycast_types::Time;

impl Run {
    /// Asks for a path for what is left when the path's part of the bytes is sent.
    pub(super) fn ask_for_more(&mut self, now: Time, bytes: u64) {
        let open = self.session.roster.entries().filter(|entry| entry.guest.is_some() && !entry.is_settled());
        let receivers = open.map(|entry| entry.name.clone()).collect();
        let words = format!("the part that was granted is sent: asking for a path for {bytes} bytes more");
        self.account.note(now, words);
        self.tell_fared();
        self.spec.steering.ask_for(Rest { bytes, receivers });
    }

    /// Notes whom the path does not reach, or no longer does.
    pub(super) fn note_cut_off(&mut self) {
        let (mut names, mut all) = (Vec::new(), true);
        for entry in self.session.roster.entries() {
            let peer = entry.guest.map(|guest| PeerId(guest.0));
            let Some((peer, status)) = peer.and_then(|peer| Some((peer, self.machine.status(peer)?))) else {
                continue;
            };
            all &= status.cut_off;
            if status.cut_off && self.cut_off.insert(peer) {
                names.push(entry.name.clone());
            }
        }
        if names.is_empty() {
            return;
        }
        let (now, fabric) = (self.now(), self.account.fabric.clone());
        let what = if all {
            format!("the path of {fabric} reaches no receiver: all get the object over TCP")
        } else {
            format!("the path of {fabric} does not reach {}: they get the object over TCP", names.join(", "))
        };
        tracing::warn!("{what}");
        self.account.note(now, what.clone());
        // On a network that all share nothing was lent that could be lost.
        if all && matches!(self.spec.path, Path::Multicast { rate: Some(_), .. }) {
            self.account.path_lost.get_or_insert(what);
        }
    }

    /// Says how the path has fared up to now, for when it is given back.
    pub(super) fn tell_fared(&self) {
        let (mut unreached, mut reached_all) = (Vec::new(), self.channel.is_some() && !self.without_path);
        for entry in self.session.roster.entries() {
            let peer = entry.guest.map(|guest| PeerId(guest.0));
            let Some((peer, status)) = peer.and_then(|peer| Some((peer, self.machine.status(peer)?))) else {
                continue;
            };
            reached_all &= status.streamed && !status.chained && entry.stage == Stage::Done;
            // One that has failed may be dead itself.
            let has_failed = entry.is_settled() && entry.stage != Stage::Done;
            if status.cut_off && !has_failed && !self.lost_before.contains(&peer) {
                unreached.push(entry.name.clone());
            }
        }
        let (unreachable, reachable) = self.session.reached();
        self.spec.steering.set_fared(Fared { unreached, reached_all, took: None, unreachable, reachable });
    }

    /// Goes on over another path, or without one where that cannot be.
    pub(super) fn take_path(&mut self, now: Time, next: NextPath) {
        // Receivers that fetch over TCP by now stay there.
        if self.without_path || self.channel.is_none() {
            return;
        }
        let guests =
            self.session.roster.entries().filter_map(|entry| entry.guest.map(|guest| PeerId(guest.0)));
        let is_lost = |peer: &PeerId| self.machine.status(*peer).is_some_and(|status| status.cut_off);
        self.lost_before.extend(guests.filter(is_lost));
        if let Some(reason) = &next.lost {
            tracing::warn!(%reason, "going on over another path");
            self.account.note(now, reason.clone());
            self.account.path_lost.get_or_insert_with(|| reason.clone());
        }
        let fabric = next.fabric.clone();
        if let Err(why) = self.switch(now, next) {
            let reason = format!("the path of {fabric} cannot be used: {why}");
            tracing::warn!(%reason, "going on without a path");
            self.account.note(now, reason.clone());
            self.go_without_path(now, reason);
        }
    }

    /// Serves everyone over TCP from here on.
    pub(super) fn go_without_path(&mut self, now: Time, reason: String) {
        self.account.path_lost.get_or_insert(reason);
        self.without_path = true;
        self.unhashed = None;
        self.machine.handle(now, Input::PathLost);
    }

    fn switch(&mut self, now: Time, next: NextPath) -> Result<(), String> {
        let Path::Multicast { group, rate, attempts, ref outer } = next.path else {
            return Err("receivers get the rest one from the other".into());
        };
        let known = match &self.spec.path {
            Path::Multicast { outer, .. } => outer.first().map_or(0, Vec::len),
            Path::Chain | Path::Trees(_) => 0,
        };
        let outer_len = outer.first().map_or(0, Vec::len);
        if outer_len > known || outer.iter().any(|header| header.len() != outer_len) {
            return Err("the network's own header leaves no room for the fragments".into());
        }
        let sender = DataSender::open(self.spec.interface, group)
            .and_then(|sender| sender.with_class(self.spec.options.dscp))
            .map_err(|error| error.to_string())?;
        let mut channel = Channel::new(
            sender.with_outer(outer.clone()),
            self.handle,
            self.geometry,
            self.secret.as_ref().map(|secret| Seal::new(secret, self.handle)),
        );
        if let Some(before) = &self.channel {
            (channel.sent_bytes, channel.patched_bytes) = (before.sent_bytes, before.patched_bytes);
        }
        self.channel = Some(channel);
        self.unhashed = None;
        let told = Control::Channel { channel: (group.ip(), group.port()), outer_len: outer_len as u8 };
        self.spec.path = next.path;
        self.pacing.set(rate);
        self.account.change_fabric(next.fabric);
        for guest in self.session.connected() {
            // One that is slower than the others has left the data channel for good.
            let left =
                self.machine.status(PeerId(guest.0)).is_some_and(|peer| peer.slow.is_some() && peer.chained);
            if !left {
                self.session.tell(guest, &told);
            }
        }
        let fragment_len = u64::from(self.geometry.fragment_len);
        self.machine.handle(
            now,
            Input::Path {
                rate,
                attempt_interval: attempts.map_or(AttemptInterval::Adaptive, AttemptInterval::AdaptiveUpTo),
                allowance: next.bytes.map(|bytes| bytes.div_ceil(fragment_len).max(1)),
            },
        );
        Ok(())
    }
}
