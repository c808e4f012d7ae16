//! The rate of a source, of which multicast, patches and all connections that are served take their parts.

use super::clock::Clock;
use polycast_protocol::push::Pacer;
use polycast_types::{Rate, Time};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a connection is sent at a time where there is a rate: others have their turn then.
pub(super) const PIECE_LEN: usize = 16 << 10;

/// Pace that all that send for one source share.
#[derive(Debug)]
pub(crate) struct Pacing {
    clock: Clock,
    /// `None` where the source sends as fast as the network takes it.
    pacer: Mutex<Option<Pacer>>,
}

impl Pacing {
    /// This rate in all, or none.
    pub(super) fn new(clock: Clock, rate: Option<Rate>) -> Arc<Self> {
        Arc::new(Pacing { clock, pacer: Mutex::new(rate.map(Pacer::new)) })
    }

    /// Another rate from now on.
    pub(super) fn set(&self, rate: Option<Rate>) {
        *self.lock() = rate.map(Pacer::new);
    }

    /// Returns the number of bytes that may be sent at a time.
    pub(super) fn piece_len(&self) -> usize {
        if self.lock().is_some() { PIECE_LEN } else { usize::MAX }
    }

    /// So many bytes were sent; the one that has sent them sends no more before the time that this gives.
    pub(super) fn spend(&self, bytes: u64) -> Time {
        let now = self.clock.now();
        self.lock().as_mut().map_or(Time::ZERO, |pacer| pacer.spend(now, bytes))
    }

    /// Returns the time that is left until then.
    pub(super) fn until(&self, due: Time) -> std::time::Duration {
        std::time::Duration::from_nanos(due.since(self.clock.now()).0)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pacer>> {
        // Nothing here panics between two changes that belong together.
        self.pacer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
