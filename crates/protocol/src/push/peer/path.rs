//! State of a receiver's path, and of the receiver itself, as its reports show it.

use crate::push::congestion::{LossHistory, OTHERS_SPAN};
use crate::push::delay::PathDelay;
use polycast_types::{Duration, Time};

/// On a path that others use, a receiver is late only if packets wait in its socket for this long.
pub(in crate::push) const LATE_BESIDE_OTHERS: Duration = Duration::from_millis(20);

/// The path to a receiver, and its host at the end of it.
#[derive(Clone, Debug)]
pub(in crate::push) struct OwnPath {
    pub(in crate::push) losses: LossHistory,
    pub(in crate::push) delay: PathDelay,
    /// Set if the last packet that it reported spent most of its time in the receiver's own socket.
    pub(in crate::push) is_late: bool,
    /// Time when its path was last seen to be shared with others.
    pub(in crate::push) shared_at: Option<Time>,
    /// Packets have waited at it for long, by its own word: its disk or its processor did not keep up.
    pub(in crate::push) was_held_up: bool,
}

impl Default for OwnPath {
    fn default() -> Self {
        OwnPath {
            losses: LossHistory::default(),
            delay: PathDelay::default(),
            is_late: true,
            shared_at: None,
            was_held_up: false,
        }
    }
}

impl OwnPath {
    /// The last packet it reports left at `sent`, reached its host at `arrived` by its own clock (zero: not
    /// known), and waited there in the socket; so many packets have come to it by now.
    pub(in crate::push) fn arrived(
        &mut self,
        now: Time,
        sent: Time,
        (arrived, waited): (Time, Duration),
        received: u64,
    ) {
        let sample = now.since(sent);
        if arrived == Time::ZERO {
            self.is_late = true;
            return;
        }
        self.delay.observe(now, sent, arrived);
        self.delay.count(arrived, received);
        if self.delay.is_shared() {
            self.shared_at = Some(now);
        }
        // Others on its path make it slow, not the moment that it takes to be woken up.
        let others = self.shared_at.is_some_and(|at| now.since(at) < OTHERS_SPAN);
        let long = waited >= if others { LATE_BESIDE_OTHERS } else { Duration::ZERO };
        self.is_late = waited * 2 >= sample && long;
    }
}
