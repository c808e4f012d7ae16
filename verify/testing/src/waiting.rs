//! Waiting for what a test asserts: how long it takes is no part of the test.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time that a test waits for an expected event. Only a fault takes as long: a machine that is merely busy
/// does not.
pub const HANG: Duration = Duration::from_secs(120);
/// Interval of a test's checks.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Waits until something is so.
///
/// # Panics
/// It is not so after [`HANG`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Waits for a value.
///
/// # Panics
/// There is none after [`HANG`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < HANG, "{what}: not so after {} s", HANG.as_secs());
        sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_later_is_waited_for() {
        let mut looks = 0;
        let found = wait_for("the third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, 3);
        until("so at once", || true);
    }
}
