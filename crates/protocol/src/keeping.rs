//! Keeping a received object: the order of steps by which it gets its place in a store, and what a start
//! makes of what it finds there.
//!
//! No machine hears that an object is here before it would survive what may happen next: the end of its agent
//! in a store of any kind, and on a disk the loss of power too. A store has two files for an object, its
//! bytes and a description, and no file system names both in one step. So the order is all that there is:
//! [`steps`] is that order, [`verdict`] is what it means where it was cut off, and a model of a disk that
//! loses what is not synced tries both (`tests/keeping.rs`).

/// One step on an object's way to its place. A driver does it, and goes on to the next one when it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Takes away what has the final names, first the bytes and then the description: what these were is not
    /// known.
    Vacate,
    /// Makes lasting what was taken away in the folder before: no old description may come back beside new
    /// bytes.
    SyncRemovals,
    /// Makes the bytes of the part file lasting.
    SyncBytes,
    /// Writes the description under a passing name.
    Describe,
    /// Makes the description lasting.
    SyncDescription,
    /// Gives the bytes their final name.
    NameBytes,
    /// Gives the description its final name.
    NameDescription,
    /// Makes both names lasting. Several objects that end at one moment may share this.
    SyncNames,
    /// Says that it is here: DATA_RCVD to the source, and then `Have` to the manager.
    Report,
}

/// State of a store when an object is to get its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// It outlives a loss of power: it is on a disk.
    pub lasts: bool,
    /// Nothing has the object's final names.
    pub is_free: bool,
    /// Removals in the folder survive a loss of power.
    pub is_settled: bool,
}

/// Every step, in the one order that is right.
const ORDER: [Step; 9] = [
    Step::Vacate,
    Step::SyncRemovals,
    Step::SyncBytes,
    Step::Describe,
    Step::SyncDescription,
    Step::NameBytes,
    Step::NameDescription,
    Step::SyncNames,
    Step::Report,
];

/// Gives the steps that an object takes in such a place. On a disk three of them wait for it, and a fourth
/// where something was taken away just before.
pub fn steps(place: Place) -> impl Iterator<Item = Step> {
    ORDER.into_iter().filter(move |step| match step {
        Step::Vacate => !place.is_free,
        Step::SyncRemovals => place.lasts && !(place.is_free && place.is_settled),
        Step::SyncBytes | Step::SyncDescription | Step::SyncNames => place.lasts,
        Step::Describe | Step::NameBytes | Step::NameDescription | Step::Report => true,
    })
}

/// Content found under an object's final description name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Described {
    /// Nothing.
    Nothing,
    /// A description of an object that has so many bytes.
    Of {
        /// Its length.
        length_bytes: u64,
        /// Set if the bytes are as they were when it was written: nothing has written to them since.
        is_of_these: bool,
    },
    /// Something that cannot be read now, or by this version.
    Unreadable,
}

/// Verdict at a start on the files that have an object's final names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is nothing.
    Nothing,
    /// The object is whole.
    Whole,
    /// Bytes that no description vouches for: they become a part file again, and the next transfer checks
    /// them.
    Rest,
    /// A description without bytes: it goes.
    Stray,
    /// It stays as it is, unused.
    Unread,
}

/// Judges what a start finds under an object's final names: the length of the bytes, if there are any, and
/// the description.
#[must_use]
pub fn verdict(bytes: Option<u64>, described: Described) -> Verdict {
    match (bytes, described) {
        (None, Described::Nothing) => Verdict::Nothing,
        (None, Described::Of { .. } | Described::Unreadable) => Verdict::Stray,
        (Some(_), Described::Nothing) => Verdict::Rest,
        (Some(len), Described::Of { length_bytes, is_of_these: true }) if len == length_bytes => {
            Verdict::Whole
        }
        (Some(_), Described::Of { .. }) => Verdict::Rest,
        (Some(_), Described::Unreadable) => Verdict::Unread,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn of(lasts: bool, is_free: bool, is_settled: bool) -> Vec<Step> {
        steps(Place { lasts, is_free, is_settled }).collect()
    }

    #[test]
    fn a_disk_is_waited_for_three_times_and_memory_never() {
        let waits = |steps: Vec<Step>| {
            let syncs = [Step::SyncRemovals, Step::SyncBytes, Step::SyncDescription, Step::SyncNames];
            steps.iter().filter(|step| syncs.contains(step)).count()
        };
        assert_eq!(waits(of(true, true, true)), 3);
        assert_eq!(waits(of(true, true, false)), 4);
        assert_eq!(waits(of(true, false, true)), 4);
        assert_eq!(waits(of(false, false, false)), 0);
        let memory = [Step::Describe, Step::NameBytes, Step::NameDescription, Step::Report];
        assert_eq!(of(false, true, true), memory);
        assert_eq!(of(false, false, true)[0], Step::Vacate);
        assert!(!of(true, true, false).contains(&Step::Vacate));
    }

    #[test]
    fn only_bytes_that_a_description_vouches_for_are_an_object() {
        let of = |length_bytes| Described::Of { length_bytes, is_of_these: true };
        let changed = Described::Of { length_bytes: 3, is_of_these: false };
        for (bytes, described, is) in [
            (None, Described::Nothing, Verdict::Nothing),
            (None, of(3), Verdict::Stray),
            (None, Described::Unreadable, Verdict::Stray),
            (Some(3), Described::Nothing, Verdict::Rest),
            (Some(3), of(3), Verdict::Whole),
            (Some(3), of(4), Verdict::Rest),
            (Some(3), changed, Verdict::Rest),
            (None, changed, Verdict::Stray),
            (Some(3), Described::Unreadable, Verdict::Unread),
        ] {
            assert_eq!(verdict(bytes, described), is, "{bytes:?} {described:?}");
        }
    }
}
