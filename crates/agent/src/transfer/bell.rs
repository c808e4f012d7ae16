//! A descriptor that wakes a driver while it waits on its sockets: threads ring it when they have something
//! for it.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The bell of one driver; copies ring the same.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<OwnedFd>);

impl Bell {
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Bell(Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)))
    }

    /// Wakes the driver, or keeps it from falling asleep the next time.
    pub(crate) fn ring(&self) {
        // A counter that is full rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Returns the descriptor to wait on.
    pub(crate) fn descriptor(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)
    }

    /// It was heard: it is silent until it is rung again.
    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        // Nothing to read means that it has not been rung.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(bell: &Bell) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [bell.descriptor()], Some(&now)).unwrap() == 1
    }

    #[test]
    fn a_bell_rings_until_it_is_heard() {
        let bell = Bell::new().unwrap();
        assert!(!rings(&bell));
        bell.clone().ring();
        bell.ring();
        assert!(rings(&bell) && rings(&bell));
        bell.clear();
        assert!(!rings(&bell));
    }
}
