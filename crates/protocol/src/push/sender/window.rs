//! Limits on what a sender may have in flight, and on its rate: windows of receivers and of the congested
//! path, a granted rate, and what waits in the host.

use super::{Peer, Sender, Service};
use crate::push::congestion::Others;
use crate::push::pacing::paid_at;
use polycast_types::{Duration, Time};

/// Fragments that may always be in flight.
pub(super) const WINDOW_MIN: u64 = 4;
/// A window that stays shut lets a packet out after this and four round trips, then after twice as long, and
/// so on.
const PROBE_INTERVAL: Duration = Duration::from_millis(10);
const PROBE_DOUBLINGS: u32 = 5;
/// Bytes that may always wait in the host for the wire, those beside it before a rate is known, and the most.
const HOST_QUEUE_MIN: u64 = 40 << 10;
const HOST_QUEUE_FIRST: u64 = 200 << 10;
const HOST_QUEUE_MAX: u64 = 1 << 20;

impl Sender {
    /// Returns the number of bytes that should at most wait for the wire in this host: a few packets, and
    /// what passes in a third of a millisecond at the best rate that a receiver has seen. TCP holds back
    /// about as much (TCP Small Queues), so flows of one host share its link; a flow that keeps more in the
    /// common queue takes the link. A granted rate is the link's: what had to wait on the way comes faster.
    #[must_use]
    pub fn host_queue_bytes(&self) -> u64 {
        let third_of_ms = |bytes_per_s: u64| bytes_per_s / 3_000;
        let share = match (self.config.rate, self.best_rate) {
            (Some(rate), _) => third_of_ms(rate.0 / 8),
            (None, 0) => HOST_QUEUE_FIRST,
            (None, packets_per_s) => third_of_ms(packets_per_s.saturating_mul(self.packet_len())),
        };
        (HOST_QUEUE_MIN + share).clamp(2 * self.packet_len(), HOST_QUEUE_MAX)
    }

    /// Tells the window how long the queue on the worst path was in the round that is over.
    pub(super) fn end_round(&mut self, now: Time) {
        let streams = |p: &&mut Peer| p.service == Service::Streaming && p.spoken_by.is_none();
        let paths = self.peers.values_mut().filter(streams);
        if let Some(queue) = paths.filter_map(|p| p.path.delay.take_standing()).max() {
            // As fast as the path has ever been: what others take does not make it slower.
            let rate = self.gating().map(|p| p.path.delay.best_rate()).min().unwrap_or(0).max(1);
            let batch_time = Duration(u64::from(self.config.batch) * 1_000_000_000 / rate);
            let others = Others {
                shared: self.gating().any(|p| p.path.delay.is_shared()),
                has_share: self.gating().all(|p| p.path.delay.has_share()),
                share: (u128::from(rate / 2) * u128::from(queue.0) / 1_000_000_000) as u64,
            };
            self.congestion.round(now, queue, batch_time, others);
        }
    }

    /// Returns true while a granted rate is used up.
    pub(super) fn is_ahead(&self, now: Time) -> bool {
        self.config.rate.is_some() && now < self.next_send
    }

    /// So many packets go out at a granted rate.
    pub(super) fn spend(&mut self, now: Time, packets: u64) {
        let Some(rate) = self.config.rate else { return };
        self.next_send = paid_at(self.next_send, now, rate, self.packet_len() * packets);
    }

    /// Returns the time when a window that is shut lets one more packet out: a receiver that has lost all of
    /// it sees no gap, and has nothing to report.
    pub(super) fn probe_at(&self) -> Time {
        let last = self.sent.back().map_or(Time::ZERO, |sent| sent.at);
        last + (self.round_trip * 4).max(PROBE_INTERVAL) * (1 << self.probes.min(PROBE_DOUBLINGS))
    }

    /// Fragments in flight allowed to the receiver furthest behind.
    pub(super) fn limit(&self) -> u64 {
        let window = self.gating().map(|p| p.window).min().unwrap_or(u64::MAX);
        let control = if self.config.rate.is_some() { u64::MAX } else { self.congestion.window() };
        window.min(control).min(1 << 32)
    }

    /// Packets that may leave in one go: a batch, but of a small window only a part, as a queue that makes it
    /// small does not hold more.
    pub(super) fn burst(&self) -> u64 {
        u64::from(self.config.batch).min(self.limit() / 4).max(1)
    }

    /// Packets that may be sent now.
    pub(super) fn room(&self) -> u64 {
        let control = if self.config.rate.is_some() { u64::MAX } else { self.congestion.window() };
        let until =
            |p: &Peer| p.lap.acknowledged.saturating_add(p.window.min(control)).saturating_sub(self.packets);
        self.gating().map(until).min().unwrap_or(0)
    }

    /// Receivers whose progress holds the sender.
    pub(super) fn gating(&self) -> impl Iterator<Item = &Peer> {
        let (position, fragments) = (self.position, self.fragments);
        self.peers.values().filter(move |p| {
            let streams = p.service == Service::Streaming && p.spoken_by.is_none();
            streams && p.lap.end(fragments).is_some_and(|end| position < end)
        })
    }

    pub(super) fn acknowledged_min(&self) -> Option<u64> {
        self.gating().map(|p| p.lap.acknowledged).min()
    }
}

#[cfg(test)]
mod tests;
