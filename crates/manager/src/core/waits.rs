//! Times that requests have waited for their paths, counted for the page with metrics.

/// Upper bounds of the times, in seconds: a path is lent within milliseconds, or when others have given one
/// back.
pub(crate) const SECONDS_UP_TO: [f64; 10] = [0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1_000.0];

/// Paths that were lent, by the times that their requests have waited here.
#[derive(Clone, Default, Debug)]
pub(crate) struct Waits {
    /// One count below each bound, and the last one above all.
    pub counts: [u64; SECONDS_UP_TO.len() + 1],
    /// Sum of the times, in seconds.
    pub sum_s: f64,
}

impl Waits {
    /// Counts a path.
    pub(super) fn note(&mut self, waited_s: f64) {
        let at = SECONDS_UP_TO.iter().position(|most| waited_s <= *most);
        self.counts[at.unwrap_or(SECONDS_UP_TO.len())] += 1;
        self.sum_s += waited_s;
    }
}
