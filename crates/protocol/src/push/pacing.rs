//! A rate as a bucket of tokens: what was sent is paid afterwards, and nothing more is sent before it is.

use polycast_types::{Duration, Rate, Time};

/// A late call may catch up for so long, not more.
const CATCH_UP: Duration = Duration::from_millis(2);

/// The rate of all that one source sends, by whichever of several ways.
///
/// Each that has sent something sends no more before the time that [`Pacer::spend`] has given it. In any span
/// of time all of them together then send no more than fits into it at this rate, and what each sends at a
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    rate: Rate,
    paid_at: Time,
}

impl Pacer {
    /// One that has sent nothing.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Pacer { rate, paid_at: Time::ZERO }
    }

    /// So many bytes were sent; gives when they are paid.
    pub fn spend(&mut self, now: Time, bytes: u64) -> Time {
        self.paid_at = paid_at(self.paid_at, now, self.rate, bytes);
        self.paid_at
    }

    /// Returns the time when all that was sent is paid.
    #[must_use]
    pub fn paid_at(&self) -> Time {
        self.paid_at
    }
}

/// Returns the time when `bytes` bytes sent now are paid, where those before were paid at `before`.
pub(super) fn paid_at(before: Time, now: Time, rate: Rate, bytes: u64) -> Time {
    let behind = Time(now.0.saturating_sub(CATCH_UP.0));
    before.max(behind) + rate.time_for(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        /// However many send, as often as they may and as late as it happens, no span of time has more than
        /// the rate allows.
        #[test]
        fn all_together_keep_the_rate(
            megabits in 1u64..2_000,
            senders in proptest::collection::vec((1u64..70_000, 0u64..5_000_000), 1..6),
        ) {
            let rate = Rate(megabits * 1_000_000);
            let mut pacer = Pacer::new(rate);
            let longest: u64 = senders.iter().map(|(bytes, _)| bytes).sum();
            let mut due: Vec<Time> = senders.iter().map(|_| Time(1)).collect();
            let mut sent: Vec<(Time, u64)> = Vec::new();
            let mut now = Time(1);
            for _ in 0..60 {
                let at = (0..due.len()).min_by_key(|at| due[*at]).expect("there is one");
                let (bytes, lateness) = senders[at];
                now = now.max(due[at] + Duration(lateness));
                sent.push((now, bytes));
                due[at] = pacer.spend(now, bytes);
            }
            for (first, (begin, _)) in sent.iter().enumerate() {
                let mut sum = 0;
                for (end, bytes) in &sent[first..] {
                    sum += bytes;
                    let fits = rate.bytes_in(end.since(*begin) + CATCH_UP) + longest + sent.len() as u64;
                    prop_assert!(sum <= fits, "{sum} bytes in {} where {fits} fit", end.since(*begin));
                }
            }
        }

        /// One that is never late gets the whole rate.
        #[test]
        fn one_alone_gets_all_of_it(megabits in 1u64..2_000, bytes in 1u64..70_000) {
            let rate = Rate(megabits * 1_000_000);
            let (mut pacer, begin) = (Pacer::new(rate), Time(10_000_000));
            let end = (0..50).fold(begin, |now, _| pacer.spend(now, bytes));
            prop_assert!(end.since(begin) <= rate.time_for(50 * bytes) + Duration(50));
            prop_assert_eq!(pacer.paid_at(), end);
        }
    }
}
