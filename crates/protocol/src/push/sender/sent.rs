//! Packets of the stream that a sender has sent: to turn positions that receivers report into packets in
//! flight and round trips.

use super::Sender;
use polycast_types::Time;

/// A batch that was sent: to turn reported positions into packets in flight and round trips.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) position: u64,
    pub(super) packets: u64,
    pub(super) at: Time,
}

/// Number of entries of sent batches that are kept.
pub(super) const SENT_MAX: usize = 1 << 16;

impl Sender {
    /// Notes that the stream has come to where it is now.
    pub(super) fn note_sent(&mut self, now: Time) {
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(Sent { position: self.position, packets: self.packets, at: now });
    }

    /// The position at which this fragment was sent last, if it was.
    pub(super) fn last_sent(&self, sn: u64) -> u64 {
        let last = self.position.saturating_sub(1);
        let behind = (last % self.fragments + self.fragments - sn) % self.fragments;
        last.saturating_sub(behind)
    }

    /// Counts the packets of the stream that lie before `position`.
    pub(super) fn packets_before(&self, position: u64) -> u64 {
        let after = self.sent.partition_point(|s| s.position <= position);
        match self.sent.get(after) {
            // Inside a batch: its packets are contiguous up to its end.
            Some(batch) => {
                let floor = if after == 0 { 0 } else { self.sent[after - 1].packets };
                batch.packets.saturating_sub(batch.position - position).max(floor)
            }
            None => self.packets,
        }
    }

    pub(super) fn sent_at(&self, position: u64) -> Option<Time> {
        let at = self.sent.partition_point(|s| s.position < position);
        self.sent.get(at).map(|s| s.at)
    }

    /// Drops entries that every receiver on the channel has passed.
    pub(super) fn forget_sent(&mut self) {
        let passed = self.peers.values().filter(|p| p.is_on_channel()).map(|p| p.lap.position).min();
        let Some(passed) = passed else { return };
        while self.sent.len() > 1 && self.sent[1].position <= passed {
            self.sent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
