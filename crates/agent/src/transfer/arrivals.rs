//! Parts of an object that are here and verified while the rest still comes.

use polycast_types::RangeSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

/// The verified bytes of one object: a receiver puts them in, and users that read them early wait for them
/// here.
#[derive(Debug, Default)]
pub struct Arrivals {
    verified: Mutex<RangeSet>,
    changes: watch::Sender<u64>,
}

impl Arrivals {
    /// These bytes are verified, and lie in the object's part file.
    pub fn came(&self, bytes: Range<u64>) {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).insert(bytes);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Returns the parts of `ranges` that are here.
    #[must_use]
    pub fn of(&self, ranges: &RangeSet) -> RangeSet {
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let mut here = RangeSet::new();
        for range in ranges.iter() {
            let mut at = range.start;
            for gap in verified.gaps(range.clone()).into_iter().chain(std::iter::once(range.end..range.end)) {
                if at < gap.start {
                    here.insert(at..gap.start);
                }
                at = gap.end;
            }
        }
        here
    }

    /// Hears when there is more.
    #[must_use]
    pub fn news(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_where_nothing_is_here_yet() {
        let arrivals = Arrivals::default();
        let of = |ranges: &[(u64, u64)]| {
            let ranges = ranges.iter().map(|(start, end)| *start..*end).collect();
            let here: Vec<_> = arrivals.of(&ranges).iter().collect();
            here
        };
        assert!(of(&[(0, 100)]).is_empty());
        for bytes in [10..20, 20..30, 50..60] {
            arrivals.came(bytes);
        }
        assert_eq!(of(&[(0, 100)]), [10..30, 50..60]);
        assert_eq!(of(&[(15, 25), (28, 52)]), [15..25, 28..30, 50..52]);
        assert_eq!(of(&[(15, 25), (25, 28)]).first(), Some(&(15..28)));
        assert!(of(&[(30, 50), (60, 61)]).is_empty());
    }
}
