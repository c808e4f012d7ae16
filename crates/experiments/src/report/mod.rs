//! Items: the papers' figures and tables, each one function that gives rows and figures.
//!
//! A paper's module lists its items in a constant `ITEMS`, and [`crate::catalogue`] gathers them. [`run`] computes chosen
//! items on all cores, [`draw`] makes SVG of a figure and [`page`] an HTML page of all of them.

pub mod draw;
mod figure;
pub mod page;
mod ticks;

pub use figure::{Axis, BarSeries, Figure, Mark, Plot, Scale, Series, Whose};

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::{Row, exact};

/// What an item may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Fewer runs and smaller sizes, for a first look.
    pub quick: bool,
    /// Every drawn number follows from it.
    pub seed: u64,
    /// How many threads the item may run on.
    pub threads: usize,
}

/// What an item found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The paper's numbers beside ours.
    pub rows: Vec<Row>,
    /// The drawings.
    pub figures: Vec<Figure>,
    /// What a reader has to know before comparing, a paragraph each.
    pub notes: Vec<String>,
}

impl From<Vec<Row>> for Outcome {
    fn from(rows: Vec<Row>) -> Self {
        Outcome { rows, ..Outcome::default() }
    }
}

impl Outcome {
    /// The same with one more figure.
    #[must_use]
    pub fn figure(mut self, figure: Figure) -> Self {
        self.figures.push(figure);
        self
    }

    /// The same with one more paragraph.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}

/// Why an item has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum ItemError {
    /// The exact scheduler.
    #[error(transparent)]
    Exact(#[from] exact::ExactError),
    /// A planner or a simulation refused what the item asked.
    #[error("{0}")]
    Refused(String),
}

/// How an item shares the machine with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// It computes on one thread, whatever runs beside it.
    Shared,
    /// It measures time or spreads over all cores itself: nothing else runs at that time.
    Alone,
}

/// A figure, a table or a section of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// The paper, in small letters.
    pub paper: &'static str,
    /// What people type: `fig-4`, `table-1`.
    pub name: &'static str,
    /// One line for people.
    pub title: &'static str,
    /// How it shares the machine.
    pub load: Load,
    /// Computes it.
    pub run: fn(&Options) -> Result<Outcome, ItemError>,
}

/// An item and what came of it.
#[derive(Debug)]
pub struct Done {
    /// The item.
    pub item: Item,
    /// What it found, or why not.
    pub outcome: Result<Outcome, ItemError>,
    /// How long it took.
    pub seconds: f64,
}

/// Computes the items, side by side where they allow it, and tells of each when it is done. The result has
/// the order of the items.
pub fn run(items: &[Item], options: &Options, told: impl Fn(&Done) + Sync) -> Vec<Done> {
    let (shared, alone): (Vec<usize>, Vec<usize>) =
        (0..items.len()).partition(|&at| items[at].load == Load::Shared && items.len() > 1);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Done)>> = Mutex::new(Vec::new());
    let compute = |at: usize, options: &Options| {
        let result = run_one(items[at], options);
        told(&result);
        done.lock().expect("nobody panics with the lock held").push((at, result));
    };
    std::thread::scope(|scope| {
        for _ in 0..options.threads.clamp(1, shared.len().max(1)) {
            scope.spawn(|| {
                while let Some(&at) = shared.get(next.fetch_add(1, Ordering::Relaxed)) {
                    compute(at, &Options { threads: 1, ..*options });
                }
            });
        }
    });
    alone.into_iter().for_each(|at| compute(at, options));
    let mut done = done.into_inner().expect("nobody panics with the lock held");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, done)| done).collect()
}

/// Computes one item. Its rows carry the words that name it on the command line.
fn run_one(item: Item, options: &Options) -> Done {
    let start = Instant::now();
    let mut outcome = (item.run)(options);
    if let Ok(outcome) = &mut outcome {
        outcome.rows.iter_mut().for_each(|row| row.item = format!("{} {}", item.paper, item.name));
    }
    Done { item, outcome, seconds: start.elapsed().as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_order_and_their_errors() {
        fn fine(options: &Options) -> Result<Outcome, ItemError> {
            Ok(vec![Row::new("threads", None, options.threads as f64, "")].into())
        }
        fn failed(_: &Options) -> Result<Outcome, ItemError> {
            Err(ItemError::Refused("no such network".into()))
        }
        let item = |name, load, run| Item { paper: "blast", name, title: "", load, run };
        let items = [
            item("a", Load::Alone, fine as fn(&Options) -> _),
            item("b", Load::Shared, failed),
            item("c", Load::Shared, fine),
        ];
        let options = Options { quick: true, seed: 1, threads: 3 };
        let done = run(&items, &options, |_| ());
        let names: Vec<_> = done.iter().map(|done| done.item.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(done[0].outcome.as_ref().unwrap().rows[0].ours, 3.0);
        assert_eq!(done[2].outcome.as_ref().unwrap().rows[0].ours, 1.0);
        assert_eq!(done[2].outcome.as_ref().unwrap().rows[0].item, "blast c");
        assert_eq!(done[1].outcome.as_ref().unwrap_err().to_string(), "no such network");
    }
}
