//! Measurements of a receiver's path over a while, by its reports.

use polycast_types::{Duration, Time};

/// Measurements of a receiver's path over a while.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::push) struct Look {
    /// Packets that it had lost in all when the while began.
    pub(in crate::push) lost: u64,
    /// The packets that had reached it when the while began, by its last report until then, and when that
    /// came.
    received: u64,
    reported_at: Time,
    /// Packets a second that reached it in the while before; nothing is known at first.
    pub(in crate::push) pace: Option<u64>,
    queues: u64,
    queue_ns: u64,
}

impl Look {
    /// The first while, before any report.
    pub(in crate::push) fn first(now: Time) -> Self {
        Look { reported_at: now, ..Look::default() }
    }

    /// The next while, which begins when so many packets have reached it, and so many were lost, in all, as
    /// it has reported at that time. Its reports are farther apart than a while is long: what came between
    /// two of them is divided by their distance.
    pub(in crate::push) fn next(&self, now: Time, (received, lost): (u64, u64), reported_at: Time) -> Self {
        let between = reported_at.since(self.reported_at);
        let pace = if between > Duration::ZERO {
            Some(per_second(received.saturating_sub(self.received), between))
        } else if now.since(reported_at) >= SILENT {
            Some(0)
        } else {
            self.pace
        };
        Look { lost, received, reported_at, pace, ..Look::default() }
    }

    /// A packet has queued for so long.
    pub(in crate::push) fn queue(&mut self, queue: Duration) {
        self.queues += 1;
        self.queue_ns = self.queue_ns.saturating_add(queue.0);
    }

    /// The mean queue.
    pub(in crate::push) fn mean_queue(&self) -> Duration {
        Duration(self.queue_ns.checked_div(self.queues).unwrap_or(0))
    }
}

/// A receiver whose reports have not advanced for so long gets nothing: they come every 50 ms at least.
const SILENT: Duration = Duration::from_millis(150);

/// Packets a second.
pub(in crate::push) fn per_second(packets: u64, span: Duration) -> u64 {
    u64::try_from(u128::from(packets) * 1_000_000_000 / u128::from(span.0.max(1))).unwrap_or(u64::MAX)
}
