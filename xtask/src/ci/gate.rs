//! Something that one thread waits for and another one brings, or fails to bring.

use std::sync::{Condvar, Mutex};

/// Closed until it is opened, once, with a word on whether all is well.
#[derive(Default)]
pub(super) struct Gate {
    open: Mutex<Option<bool>>,
    opened: Condvar,
}

impl Gate {
    /// Opens it. What was said first stays.
    pub(super) fn open(&self, well: bool) {
        self.open.lock().expect("no thread panics here").get_or_insert(well);
        self.opened.notify_all();
    }

    /// Waits until it is open; gives whether all is well.
    pub(super) fn wait(&self) -> bool {
        let open = self.open.lock().expect("no thread panics here");
        let open = self.opened.wait_while(open, |open| open.is_none()).expect("no thread panics here");
        open.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_opens_once() {
        let gate = Gate::default();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| gate.wait());
            gate.open(false);
            gate.open(true);
            assert!(!waits.join().unwrap());
        });
        assert!(!gate.wait());
    }
}
