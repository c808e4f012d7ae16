//! The machines' time: nanoseconds since the transfer began.

use polycast_types::Time;
use std::time::Instant;

/// A clock that starts at one nanosecond, so that zero means never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Clock(Instant::now())
    }

    pub(crate) fn now(&self) -> Time {
        Time(1 + u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX - 1))
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Waits on descriptors until `deadline`, at most `longest`; a deadline in the past does not wait.
pub(crate) fn wait(
    fds: &mut [rustix::event::PollFd<'_>],
    now: Time,
    deadline: Option<Time>,
    longest: polycast_types::Duration,
) -> std::io::Result<()> {
    let span = deadline.map_or(longest, |at| at.since(now).min(longest));
    let timeout = rustix::time::Timespec {
        tv_sec: (span.0 / 1_000_000_000) as i64,
        tv_nsec: (span.0 % 1_000_000_000) as i64,
    };
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
