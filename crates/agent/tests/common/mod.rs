//! Helpers that tests of transfers share: a machine that is busy for a moment ends none of them.
#![allow(dead_code, reason = "each test program uses its part")]

use polycast_agent::transfer::{Options, SlowPolicy};
use polycast_net::object::ObjectSource;
use polycast_testing::HANG;
use polycast_types::Duration;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Settings by which no end gives up another one, or goes on without it, because it is slow.
pub(crate) fn patient() -> Options {
    let long = Duration::from(HANG);
    Options {
        join_timeout: long,
        have_timeout: long,
        path_timeout: long,
        stall_timeout: long,
        slow: SlowPolicy::Wait,
        ..Options::default()
    }
}

/// An object of which what comes from `from` on can be read so slowly that a test can act before the end; its
/// source answers between two reads.
pub(crate) struct Trickle {
    bytes: Arc<Vec<u8>>,
    from: u64,
    is_open: AtomicBool,
}

/// Bytes that are read in a second.
const RATE: f64 = 400e3;

impl Trickle {
    pub(crate) fn new(bytes: &Arc<Vec<u8>>, from: u64) -> Arc<Self> {
        Arc::new(Trickle { bytes: Arc::clone(bytes), from, is_open: AtomicBool::new(false) })
    }

    /// Lets the rest be read at once.
    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}

impl ObjectSource for Trickle {
    fn len(&self) -> u64 {
        ObjectSource::len(&*self.bytes)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let slow = (offset + buffer.len() as u64).saturating_sub(self.from.max(offset));
        let span = std::time::Duration::from_secs_f64(slow as f64 / RATE);
        let begun = std::time::Instant::now();
        while begun.elapsed() < span && !self.is_open.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        self.bytes.read_exact_at(buffer, offset)
    }
}
