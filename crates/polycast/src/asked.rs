//! A note that the user or the system has asked to end.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set once the user or the system has asked to end.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Returns true once the user or the system has asked to end.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Notes that this was asked; gives whether it was before.
pub fn ask() -> bool {
    ASKED.swap(true, Ordering::Relaxed)
}
