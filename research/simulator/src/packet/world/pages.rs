//! The pages of an older version that a host has: which processes have it open, and what writes over them.
//!
//! An object that comes may take the pages of an older version, where no process has that open: its part file
//! is that file then. So does an agent (`net::store::recycle`): it looks whether it has the file open alone,
//! takes the file's name away, and waits for processes that have found the file by that name and are about to
//! open it. In the daemons the file system tells that; here the list of readers does. What must hold is said
//! from where a reader stands, and not from where the agent looks: no page is written over while a process
//! that has found the version reads it.

use crate::packet::hooks::{Hooks, Step};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use polycast_types::{Duration, Time};

/// A process that has found a file by its name opens it within this time, and an agent that takes the name
/// away waits so long.
pub const OPENS_WITHIN: Duration = Duration::from_millis(10);

/// A process that reads an older version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Time at which it finds the file by its name, if that is there.
    pub finds_at: Time,
    /// Time at which it has the file open, [`OPENS_WITHIN`] later at most.
    pub opens_at: Time,
    /// Time at which it has read the file, and no longer has it open.
    pub closes_at: Time,
}

/// State of the pages when an agent requests them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// The object that comes has them.
    Taken,
    /// A process has them open.
    Open,
    /// A process is about to open them.
    Awaited,
}

/// The pages of one older version.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    readers: Vec<Reader>,
    /// Since when its file has no name of its own.
    nameless_since: Option<Time>,
    /// Since when an object that comes writes there.
    taken: bool,
    /// Groups that were written over.
    written: BTreeSet<u64>,
}

impl Pages {
    pub(super) fn read_by(readers: Vec<Reader>) -> Self {
        Pages { readers, ..Pages::default() }
    }

    /// Takes them for an object that comes, where that may be.
    pub(super) fn take(&mut self, now: Time, hooks: &Hooks) -> Taking {
        let has_open = |reader: &Reader| reader.opens_at <= now && now < reader.closes_at;
        if !hooks.leaves_out(Step::CheckReaders) && self.readers.iter().any(has_open) {
            return Taking::Open;
        }
        self.nameless_since = Some(now);
        let waits = |reader: &Reader| reader.finds_at <= now && now < reader.opens_at;
        if !hooks.leaves_out(Step::AwaitReaders) && self.readers.iter().any(waits) {
            return Taking::Awaited;
        }
        self.taken = true;
        Taking::Taken
    }

    /// Returns true once the object that arrives writes there.
    pub(super) fn are_taken(&self) -> bool {
        self.taken
    }

    /// Returns true if the version has its name, so that its content can be checked.
    pub(super) fn have_a_name(&self) -> bool {
        self.nameless_since.is_none()
    }

    /// Returns true if a group still has its content from before the pages were taken.
    pub(super) fn still_have(&self, group: u64) -> bool {
        self.taken && !self.written.contains(&group)
    }

    /// A group is written over; gives whether a process has it open that has found the version by its name.
    /// Said once a group: a process that has it open later had it open then.
    pub(super) fn write(&mut self, now: Time, group: u64) -> bool {
        if !self.taken || !self.written.insert(group) {
            return false;
        }
        let found = |reader: &Reader| self.nameless_since.is_none_or(|since| reader.finds_at <= since);
        self.readers.iter().any(|reader| found(reader) && now < reader.closes_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::rc::Rc;

    fn reader(finds_at: u64, opens_at: u64, closes_at: u64) -> Reader {
        Reader { finds_at: Time(finds_at), opens_at: Time(opens_at), closes_at: Time(closes_at) }
    }

    #[test]
    fn pages_are_taken_where_no_process_has_them_open() {
        for (readers, at, taking) in [
            (Vec::new(), 10, Taking::Taken),
            (Vec::from([reader(0, 1, 10)]), 10, Taking::Taken),
            (Vec::from([reader(0, 1, 10)]), 9, Taking::Open),
            (Vec::from([reader(0, 1, 5), reader(8, 12, 20)]), 10, Taking::Awaited),
            // It finds no file of this name.
            (Vec::from([reader(11, 12, 20)]), 10, Taking::Taken),
        ] {
            let mut pages = Pages::read_by(readers.clone());
            assert_eq!(pages.take(Time(at), &Hooks::default()), taking, "{readers:?}");
            assert_eq!(pages.are_taken(), taking == Taking::Taken);
            if taking == Taking::Taken {
                assert!(pages.still_have(3));
                assert!(!pages.write(Time(at), 3), "{readers:?}");
                assert!(!pages.still_have(3));
            }
        }
    }

    /// An agent that does not keep to that is found, as long as the reader reads.
    #[test]
    fn pages_that_a_process_has_open_are_not_written_over_unnoticed() {
        for (step, reads) in [(Step::CheckReaders, reader(0, 1, 20)), (Step::AwaitReaders, reader(8, 12, 20))]
        {
            let mut pages = Pages::read_by(Vec::from([reads]));
            assert_eq!(pages.take(Time(10), &Hooks::default().tampered(Rc::new(step))), Taking::Taken);
            assert!(pages.write(Time(19), 3), "{step:?}");
            assert!(!pages.write(Time(20), 4), "{step:?}");
        }
    }
}
