//! The adaptive attempt interval against fixed ones (Republic sections III-A1 and VI-C), over set-up times,
//! times of settling, sizes and receivers.
//!
//! A fixed interval can be lucky: one that divides the set-up time meets the path in the moment in which it
//! is ready. The adaptive one knows nothing, and has to come as near to the luckiest as a round trip or a
//! twentieth.

use polycast_protocol::push::{AttemptInterval, FullRate};
use polycast_types::Duration;

use super::{HOP, Trial};
use crate::report::{ItemError, Options, Outcome};
use crate::{Row, side_by_side};

/// Intervals of the paper's sweep, and some between.
const FIXED_US: [u64; 11] = [70, 150, 350, 700, 1_400, 2_000, 3_500, 5_000, 7_000, 20_000, 70_000];
/// Part by which it may take longer than with the best fixed interval.
const MARGIN: f64 = 0.05;
/// From the source over ToR, circuit switch and splitter to a receiver, and back through the core.
const ROUND_TRIP: Duration = Duration(9 * HOP.0);

/// One cell of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    setup_ms: u64,
    settling_ms: u64,
    bytes: u64,
    receivers: u32,
}

/// Results of a cell, means over its runs.
#[derive(Clone, Copy, Debug)]
struct Found {
    adaptive_s: f64,
    best_s: f64,
    best: Duration,
}

impl Found {
    /// Returns the part by which the adaptive interval takes longer than the best fixed one.
    fn over(&self) -> f64 {
        self.adaptive_s / self.best_s - 1.0
    }

    fn is_near(&self) -> bool {
        self.adaptive_s - self.best_s <= (MARGIN * self.best_s).max(ROUND_TRIP.as_secs_f64())
    }
}

impl Case {
    fn name(&self) -> String {
        let Case { setup_ms, settling_ms, bytes, receivers } = self;
        format!("{setup_ms} ms, settling {settling_ms} ms, {} MB to {receivers}", bytes / 1_000_000)
    }

    fn mean_s(&self, interval: AttemptInterval, seeds: &[u64]) -> Result<f64, ItemError> {
        let (setup, settling) =
            (Duration::from_millis(self.setup_ms), Duration::from_millis(self.settling_ms));
        let mut sum = 0.0;
        for &seed in seeds {
            let trial = Trial {
                setup,
                settling,
                interval,
                full_rate: FullRate::Settled,
                receivers: self.receivers,
                bytes: self.bytes,
                seed,
            };
            sum += trial.run()?.total_s;
        }
        Ok(sum / seeds.len() as f64)
    }

    fn run(&self, seeds: &[u64]) -> Result<Found, ItemError> {
        let adaptive_s = self.mean_s(AttemptInterval::Adaptive, seeds)?;
        let mut found = Found { adaptive_s, best_s: f64::INFINITY, best: Duration::ZERO };
        for interval in FIXED_US.map(Duration::from_micros) {
            let mean_s = self.mean_s(interval.into(), seeds)?;
            if mean_s < found.best_s {
                (found.best_s, found.best) = (mean_s, interval);
            }
        }
        Ok(found)
    }
}

fn cases(quick: bool) -> Vec<Case> {
    let (sizes, groups): (&[u64], &[u32]) =
        if quick { (&[1_000_000], &[16]) } else { (&[1_000_000, 10_000_000, 100_000_000], &[4, 16]) };
    let mut cases = Vec::new();
    for setup_ms in [0, 1, 5, 20, 60, 100] {
        for settling_ms in [0, 2, 5] {
            for &bytes in sizes {
                for &receivers in groups {
                    // A path that is there at once has nothing that must settle.
                    if setup_ms > 0 || settling_ms == 0 {
                        cases.push(Case { setup_ms, settling_ms, bytes, receivers });
                    }
                }
            }
        }
    }
    cases
}

/// The cells on so many threads, in their order.
fn run_all(cases: &[Case], seeds: &[u64], threads: usize) -> Result<Vec<Found>, ItemError> {
    side_by_side::each(cases.len(), threads, |at| cases[at].run(seeds)).into_iter().collect()
}

/// The grid: in how many cells the adaptive interval is near the best fixed one, and each cell.
///
/// # Errors
/// If a transfer does not end.
pub(super) fn grid(options: &Options) -> Result<Outcome, ItemError> {
    let cases = cases(options.quick);
    let seeds: Vec<u64> =
        (0..if options.quick { 2 } else { 4 }).map(|run| options.seed.wrapping_mul(1_000) + run).collect();
    let found = run_all(&cases, &seeds, options.threads)?;
    let count = |test: &dyn Fn(&Found) -> bool| found.iter().filter(|found| test(found)).count() as f64;
    let worst = found.iter().map(Found::over).fold(0.0, f64::max);
    let mut rows = vec![
        Row::new("cells", None, found.len() as f64, "cells")
            .note("a path that is there before the first attempt, after 0 or 1 ms, has nothing to settle: these cells differ little"),
        Row::new("within 5 % of the best fixed interval", None, count(&|f| f.over() <= MARGIN), "cells"),
        Row::new("within 5 % or one round trip", None, count(&Found::is_near), "cells").at_least(found.len() as f64),
        Row::new("most above the best fixed interval", None, 100.0 * worst, "%"),
    ];
    for (case, found) in cases.iter().zip(&found) {
        let note = format!(
            "{:.3} ms; the best fixed interval is {:.2} ms with {:.3} ms",
            found.adaptive_s * 1e3,
            found.best.as_secs_f64() * 1e3,
            found.best_s * 1e3
        );
        let name = format!("set-up {}: adaptive against the best fixed", case.name());
        rows.push(Row::new(name, None, 100.0 * found.over(), "%").note(note));
    }
    Ok(Outcome::from(rows).note(format!(
        "Circuits as in figure 8. The best fixed interval is the best of {} for the cell, in the mean of {} runs: one \
         that divides the set-up time meets the path when it is just ready. A round trip is {:.2} ms.",
        FIXED_US.len(),
        seeds.len(),
        ROUND_TRIP.as_secs_f64() * 1e3
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cells that are hardest: paths that are there soon, and lose half of what is sent for as long
    /// again.
    #[test]
    fn paths_that_settle_for_long_do_not_spoil_short_objects() {
        let seeds = [7, 8, 9];
        for (setup_ms, settling_ms, receivers) in [(5, 2, 16), (5, 5, 16), (20, 5, 16), (1, 5, 4)] {
            let case = Case { setup_ms, settling_ms, bytes: 1_000_000, receivers };
            let found = case.run(&seeds).unwrap();
            assert!(found.is_near(), "{}: {found:?}", case.name());
        }
    }

    /// Few receivers may all be reached by chance while circuits still lose half, and a short object is sent
    /// before any of them can say so: what is missing then must wait for the path, and go over it.
    #[test]
    fn full_rate_that_began_too_early_is_not_dear() {
        for (settling_ms, seed) in [(2, 1_001), (5, 1_001)] {
            let case = Case { setup_ms: 5, settling_ms, bytes: 1_000_000, receivers: 4 };
            let one = case.mean_s(AttemptInterval::Adaptive, &[seed]).unwrap();
            // The slowest circuit is ready after 5 ms at the latest, and all of the object takes 0.93 ms.
            assert!(one < 7.5e-3, "{}: {one} s", case.name());
        }
    }

    #[test]
    fn the_grid_is_the_same_on_any_number_of_threads() {
        let cases = [Case { setup_ms: 1, settling_ms: 0, bytes: 100_000, receivers: 2 }; 3];
        let of =
            |threads| run_all(&cases, &[1], threads).unwrap().iter().map(Found::over).collect::<Vec<_>>();
        assert_eq!(of(1), of(2));
    }
}
