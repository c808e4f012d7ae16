//! Sending a set of files: the list first, and then every file to those who still take part.
//!
//! [`Delivery`] says which file goes to whom next, and hears how each transfer went. Several files are on
//! their way at the same time. A receiver that did not get one is sent no others, and is named with the first
//! reason. A receiver that has a file already says so in that file's transfer, so nothing of that is decided
//! here.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

/// Files of a set that are on their way at the same time.
pub const FILES_AT_A_TIME: usize = 4;

/// The files of one set on their way to some receivers.
#[derive(Debug)]
pub struct Delivery {
    files: usize,
    next: usize,
    running: BTreeMap<usize, BTreeSet<String>>,
    /// Reason for the failure of each receiver; `None` while it has not failed.
    receivers: BTreeMap<String, Option<String>>,
}

impl Delivery {
    /// A set of so many files, in the order in which they are to be used, for those who have its list.
    #[must_use]
    pub fn new(files: usize, receivers: impl IntoIterator<Item = String>) -> Self {
        let receivers = receivers.into_iter().map(|name| (name, None)).collect();
        Delivery { files, next: 0, running: BTreeMap::new(), receivers }
    }

    /// The number of the next file, and the receivers that are to get it; `None` while enough are on their
    /// way, and when there are no more.
    pub fn poll(&mut self) -> Option<(usize, Vec<String>)> {
        if self.running.len() >= FILES_AT_A_TIME || self.next >= self.files {
            return None;
        }
        let takes_part = |(name, failed): (&String, &Option<String>)| failed.is_none().then(|| name.clone());
        let left: BTreeSet<String> = self.receivers.iter().filter_map(takes_part).collect();
        if left.is_empty() {
            self.next = self.files;
            return None;
        }
        let file = self.next;
        self.next += 1;
        self.running.insert(file, left.clone());
        self.check();
        Some((file, left.into_iter().collect()))
    }

    /// The transfer of a file has ended. A receiver that its report does not name has not got it.
    pub fn ended(&mut self, file: usize, outcomes: impl IntoIterator<Item = (String, Result<(), String>)>) {
        let Some(mut sent_to) = self.running.remove(&file) else { return };
        for (name, outcome) in outcomes {
            if sent_to.remove(&name)
                && let Err(why) = outcome
            {
                self.failed(name, why);
            }
        }
        for name in sent_to {
            self.failed(name, String::from("the transfer of a file was over before it could take part"));
        }
        self.check();
    }

    fn failed(&mut self, name: String, why: String) {
        if let Some(reason @ None) = self.receivers.get_mut(&name) {
            *reason = Some(why);
        }
    }

    /// Returns true if nothing is on its way, and nothing more will be.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.running.is_empty() && self.next >= self.files
    }

    /// Returns the result of each receiver so far: receivers without a failure may still get files.
    pub fn outcomes(&self) -> impl Iterator<Item = (String, Result<(), String>)> + '_ {
        let outcome = |failed: &Option<String>| failed.clone().map_or(Ok(()), Err);
        self.receivers.iter().map(move |(name, failed)| (name.clone(), outcome(failed)))
    }

    fn check(&self) {
        if cfg!(debug_assertions) {
            assert!(self.running.len() <= FILES_AT_A_TIME, "too many files are on their way");
            assert!(self.running.keys().all(|file| *file < self.next), "a file runs that was not begun");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;

    proptest! {
        /// Whatever fails, in whatever order transfers end: a receiver counts as right when it has every
        /// file, and otherwise never; one that failed is sent nothing more; each file goes out once at most.
        #[test]
        fn who_is_right_has_every_file(
            files in 0usize..12, receivers in 0usize..5,
            turns in proptest::collection::vec((0usize..4, any::<[u8; 5]>()), 40),
        ) {
            let names: Vec<String> = (0..receivers).map(|number| format!("r{number}")).collect();
            let mut delivery = Delivery::new(files, names.clone());
            let mut has: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
            let (mut begun, mut failed) = (BTreeSet::new(), BTreeSet::new());
            let mut running: Vec<(usize, Vec<String>)> = Vec::new();
            for (turn, how) in turns {
                while let Some((file, to)) = delivery.poll() {
                    prop_assert!(begun.insert(file), "file {file} goes out twice");
                    prop_assert!(to.iter().all(|name| !failed.contains(name)), "one that failed is sent more");
                    prop_assert!(!to.is_empty());
                    running.push((file, to));
                }
                prop_assert!(running.len() <= FILES_AT_A_TIME);
                if running.is_empty() {
                    break;
                }
                let (file, to) = running.remove(turn % running.len());
                let mut outcomes = Vec::new();
                for (name, how) in to.into_iter().zip(how) {
                    match how % 8 {
                        0 => outcomes.push((name.clone(), Err(String::from("it has failed")))),
                        // The report does not name it.
                        1 => {}
                        _ => {
                            has.entry(name.clone()).or_default().insert(file);
                            outcomes.push((name, Ok(())));
                            continue;
                        }
                    }
                    failed.insert(name);
                }
                // A receiver that this transfer was not for says nothing.
                outcomes.push((String::from("other"), Err(String::from("no"))));
                delivery.ended(file, outcomes);
            }
            prop_assert!(delivery.is_over(), "it does not end");
            for (name, outcome) in delivery.outcomes() {
                let whole = has.get(&name).map_or(0, BTreeSet::len) == files;
                prop_assert_eq!(outcome.is_ok(), whole, "{}", name);
            }
            prop_assert_eq!(delivery.outcomes().count(), receivers);
        }
    }
}
