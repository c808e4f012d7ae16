//! The receives and confirmations that run, also those whose object can be read already: they end with the
//! agent.

use polycast_api::error::{Kind, Refusal};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Flags that end what runs. Once they have been set none is taken in any more: a thread that begins then
/// would outlive the agent.
#[derive(Debug)]
pub(super) struct Endings {
    flags: Mutex<Flags>,
    most: usize,
}

#[derive(Debug, Default)]
struct Flags {
    running: BTreeMap<u64, Arc<AtomicBool>>,
    next: u64,
    are_set: bool,
}

impl Endings {
    /// The catalog bounds its receives itself; a confirmation finds no place where so many flags are in.
    pub(super) fn new(most: usize) -> Self {
        Endings { flags: Mutex::default(), most }
    }

    /// Takes in the flag of a receive that begins.
    ///
    /// # Errors
    /// The agent ends.
    pub(super) fn receive(self: &Arc<Self>, flag: Arc<AtomicBool>) -> Result<Ending, Refusal> {
        self.enter(flag, usize::MAX)
    }

    /// Takes in the flag of a confirmation that begins.
    ///
    /// # Errors
    /// The agent ends, or too much runs.
    pub(super) fn confirm(self: &Arc<Self>) -> Result<Ending, Refusal> {
        self.enter(Arc::default(), self.most)
    }

    /// Ends all that runs; nothing begins from now on.
    pub(super) fn set_all(&self) {
        let mut flags = self.lock();
        flags.are_set = true;
        flags.running.values().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }

    fn enter(self: &Arc<Self>, flag: Arc<AtomicBool>, most: usize) -> Result<Ending, Refusal> {
        let mut flags = self.lock();
        if flags.are_set {
            return Err(Refusal::new(Kind::Cancelled, "the agent is shutting down"));
        }
        if flags.running.len() >= most {
            let running = flags.running.len();
            let why = format!("it receives and confirms {running} objects already, which is its limit");
            return Err(Refusal::new(Kind::Full, why));
        }
        let number = flags.next;
        flags.next += 1;
        flags.running.insert(number, Arc::clone(&flag));
        Ok(Ending { endings: Arc::clone(self), number, flag })
    }

    fn lock(&self) -> MutexGuard<'_, Flags> {
        // Nothing here panics between two changes that belong together.
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flag that is set when the agent ends, as long as this lives.
#[derive(Debug)]
pub(crate) struct Ending {
    endings: Arc<Endings>,
    number: u64,
    flag: Arc<AtomicBool>,
}

impl Ending {
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.endings.lock().running.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Catalog;
    use super::super::tests::{description, id};
    use super::*;

    #[test]
    fn what_runs_is_told_to_end_and_nothing_begins_then() {
        let catalog = Arc::new(Catalog::new(10, 5, Vec::new()));
        let mut serves = catalog.begin_receive(id(1)).unwrap();
        serves.publish(description());
        let comes = catalog.begin_receive(id(2)).unwrap();
        let confirms = catalog.ending().unwrap();
        catalog.begin_receive(id(3)).unwrap().complete(description());
        assert_eq!(catalog.endings.lock().running.len(), 3, "one that has ended is forgotten");
        catalog.cancel_receives();
        let flags =
            [Arc::clone(&serves.progress().cancel), Arc::clone(&comes.progress().cancel), confirms.flag()];
        assert!(flags.iter().all(|flag| flag.load(Ordering::Relaxed)), "{flags:?}");
        assert_eq!(catalog.begin_receive(id(4)).unwrap_err().kind, Kind::Cancelled);
        assert!(!catalog.is_known(id(4)));
        assert_eq!(catalog.ending().unwrap_err().kind, Kind::Cancelled);
        drop((serves, comes, confirms));
        assert!(catalog.endings.lock().running.is_empty() && catalog.lock().receiving == 0);
    }

    #[test]
    fn confirmations_are_bounded() {
        let catalog = Arc::new(Catalog::new(10, 5, Vec::new()));
        let confirms: Vec<_> = std::iter::from_fn(|| catalog.ending().ok()).take(1_000).collect();
        assert!(confirms.len() < 1_000);
        assert_eq!(catalog.ending().unwrap_err().kind, Kind::Full);
        drop(confirms);
        catalog.ending().unwrap();
    }
}
