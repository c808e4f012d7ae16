//! The names in a store's folder: which changes of them a loss of power would not undo.
//!
//! A folder is synced as a whole. So objects that end at one moment share one call: while a caller syncs the
//! folder, others that have named something wait, and one of them syncs for all of these then.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Changes of names, by number.
#[derive(Debug)]
pub(super) struct Names {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    /// Number of changes so far.
    changes: u64,
    /// The last one by which something was taken away.
    removal: u64,
    /// All up to this one last.
    lasting: u64,
    /// One up to this one was lost, or may have been: the disk fails.
    failed: u64,
    /// A caller syncs the folder.
    runs: bool,
    /// Number of syncs so far.
    syncs: u64,
}

impl Names {
    /// Creates the names of a folder from which an earlier run may just have removed something.
    pub(super) fn new() -> Self {
        let state = State { changes: 1, removal: 1, lasting: 0, failed: 0, runs: false, syncs: 0 };
        Names { state: Mutex::new(state), ended: Condvar::new() }
    }

    /// A name was given.
    pub(super) fn given(&self) {
        self.lock().changes += 1;
    }

    /// A name was taken away.
    pub(super) fn taken_away(&self) {
        let mut state = self.lock();
        state.changes += 1;
        state.removal = state.changes;
    }

    /// Returns true if no removed name may come back.
    pub(super) fn are_settled(&self) -> bool {
        let state = self.lock();
        state.lasting >= state.removal
    }

    /// Makes all changes lasting that there were before: by `sync`, or with other callers by theirs.
    ///
    /// # Errors
    /// The disk has failed.
    pub(super) fn sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.lock();
        let wanted = state.changes;
        let mut sync = Some(sync);
        loop {
            if state.failed >= wanted {
                return Err(io::Error::other("the folder of the store cannot be synced"));
            }
            if state.lasting >= wanted {
                return Ok(());
            }
            match sync.take_if(|_| !state.runs) {
                Some(sync) => {
                    state.runs = true;
                    let covers = state.changes;
                    drop(state);
                    let outcome = sync();
                    state = self.lock();
                    (state.runs, state.syncs) = (false, state.syncs + 1);
                    match &outcome {
                        Ok(()) => state.lasting = covers,
                        Err(_) => state.failed = covers,
                    }
                    self.ended.notify_all();
                    // What it says is worth more than that it failed.
                    return outcome;
                }
                None => state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Returns the number of times that the folder was synced.
    #[cfg(test)]
    pub(super) fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::{HANG, until};
    use std::sync::mpsc;

    fn waiting(names: &Names) -> bool {
        names.lock().runs
    }

    /// While one syncs, many name something: they share the next sync, and that one alone.
    #[test]
    fn those_that_end_at_one_moment_share_a_sync() {
        let names = Names::new();
        names.given();
        let (go, gone) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let own = &names;
            let first = scope.spawn(move || own.sync(|| gone.recv_timeout(HANG).map_err(io::Error::other)));
            until("the first one syncs", || waiting(&names));
            let others: Vec<_> = (0..20)
                .map(|_| {
                    names.given();
                    scope.spawn(|| names.sync(|| Ok(())))
                })
                .collect();
            // Each has named what it names by now, whether it waits already or not.
            go.send(()).unwrap();
            first.join().unwrap().unwrap();
            others.into_iter().for_each(|other| other.join().unwrap().unwrap());
        });
        assert_eq!(names.syncs(), 2);
        names.sync(|| panic!("all of it lasts")).unwrap();
    }

    #[test]
    fn what_was_taken_away_is_not_settled_before_a_sync() {
        let names = Names::new();
        assert!(!names.are_settled(), "an earlier run may have taken something away");
        names.sync(|| Ok(())).unwrap();
        assert!(names.are_settled());
        names.given();
        assert!(names.are_settled());
        names.taken_away();
        assert!(!names.are_settled());
        // One that is taken away while the folder is synced may have come too late.
        names
            .sync(|| {
                names.taken_away();
                Ok(())
            })
            .unwrap();
        assert!(!names.are_settled());
    }

    #[test]
    fn a_disk_that_fails_is_told_to_all_that_it_failed() {
        let names = Names::new();
        names.given();
        assert_eq!(
            names.sync(|| Err(io::ErrorKind::QuotaExceeded.into())).unwrap_err().kind(),
            io::ErrorKind::QuotaExceeded
        );
        names.sync(|| panic!("it is known that this was lost")).unwrap_err();
        names.given();
        names.sync(|| Ok(())).unwrap();
        names.given();
        names.sync(|| Ok(())).unwrap();
        assert_eq!(names.syncs(), 3);
    }
}
