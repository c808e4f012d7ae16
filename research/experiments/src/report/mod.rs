//! Items: the papers' figures and tables, each one function that gives rows and figures.
//!
//! A paper's module lists its items in a constant `ITEMS`, and [`crate::catalogue`] gathers them. [`run`]
//! computes chosen items on all cores, [`draw`] makes SVG of a figure, [`page`] HTML pages of all of them,
//! and [`truth`](mod@truth) the page of what is shown and what is not.

pub mod csv;
pub mod draw;
mod figure;
pub mod page;
mod strokes;
mod ticks;
pub mod truth;

pub use figure::{Axis, BarSeries, Figure, Mark, Plot, Scale, Series, Whose};

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{Kind, Row, exact};

/// Settings of an item's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Fewer runs and smaller sizes, for a first look.
    pub quick: bool,
    /// Every drawn number follows from it.
    pub seed: u64,
    /// Number of threads that the item may run on.
    pub threads: usize,
}

/// Results of an item.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The paper's numbers beside ours.
    pub rows: Vec<Row>,
    /// The drawings.
    pub figures: Vec<Figure>,
    /// Notes that a reader needs before comparing, a paragraph each.
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

/// Reason why an item has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum ItemError {
    /// The exact scheduler.
    #[error(transparent)]
    Exact(#[from] exact::ExactError),
    /// A planner or a simulation refused what the item asked.
    #[error("{0}")]
    Refused(String),
}

/// Rule for sharing the machine with other items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// It computes on one thread, whatever runs beside it.
    Shared,
    /// It measures time or spreads over all cores itself: nothing else runs at that time.
    Alone,
    /// It is measured by real daemons and devices in a lab, which only the command line can start. Nothing
    /// else runs at that time.
    Lab,
}

/// A figure, a table or a section of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// The paper, in small letters.
    pub paper: &'static str,
    /// Name that people type: `fig-4`, `table-1`.
    pub name: &'static str,
    /// One line for people.
    pub title: &'static str,
    /// Place where the paper prints the numbers of its rows, where a row has no other.
    pub place: &'static str,
    /// Method that produces its numbers, where a row has no other.
    pub kind: Kind,
    /// Reason why ours differ from the paper's, where a row does not give one itself.
    pub differs: &'static str,
    /// Rule for sharing the machine.
    pub load: Load,
    /// Computes it.
    pub run: fn(&Options) -> Result<Outcome, ItemError>,
}

impl Item {
    /// Says on a row whose it is and, where it does not say so itself, of which kind and from which place.
    fn complete(&self, row: &mut Row) {
        row.item = format!("{} {}", self.paper, self.name);
        row.kind.get_or_insert(self.kind);
        match row.paper {
            Some(_) if row.place.is_empty() => row.place = self.place.into(),
            Some(_) => {}
            None => assert!(row.place.is_empty(), "{}: a place without a number of the paper", row.name),
        }
    }
}

/// An item and what came of it.
#[derive(Debug)]
pub struct Done {
    /// The item.
    pub item: Item,
    /// Outcome, or the reason why there is none.
    pub outcome: Result<Outcome, ItemError>,
    /// Time that it took.
    pub seconds: f64,
}

/// Interval of the checks whether a run is to end early.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Computes the items, side by side where they allow it, and tells of each when it is done. The result has
/// the order of the items. When `stop` says so it has those that are done by then; the others go on without
/// use until the process ends.
pub fn run(
    items: &[Item],
    options: &Options,
    told: impl Fn(&Done) + Send + Sync + 'static,
    stop: impl Fn() -> bool,
) -> Vec<Done> {
    let found: Arc<Mutex<Vec<(usize, Done)>>> = Arc::default();
    let worker = {
        let (items, options, found) = (items.to_vec(), *options, Arc::clone(&found));
        std::thread::spawn(move || {
            run_all(&items, &options, |at, done| {
                told(&done);
                found.lock().unwrap_or_else(PoisonError::into_inner).push((at, done));
            });
        })
    };
    while !worker.is_finished() && !stop() {
        std::thread::sleep(LOOK_INTERVAL);
    }
    if worker.is_finished()
        && let Err(panic) = worker.join()
    {
        std::panic::resume_unwind(panic);
    }
    let mut done = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, done)| done).collect()
}

fn run_all(items: &[Item], options: &Options, keep: impl Fn(usize, Done) + Sync) {
    let (shared, alone): (Vec<usize>, Vec<usize>) =
        (0..items.len()).partition(|&at| items[at].load == Load::Shared && items.len() > 1);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..options.threads.clamp(1, shared.len().max(1)) {
            scope.spawn(|| {
                while let Some(&at) = shared.get(next.fetch_add(1, Ordering::Relaxed)) {
                    keep(at, run_one(items[at], &Options { threads: 1, ..*options }));
                }
            });
        }
    });
    alone.into_iter().for_each(|at| keep(at, run_one(items[at], options)));
}

/// Computes one item. Its rows carry the words that name it on the command line, their kind, and where the
/// paper has them.
fn run_one(item: Item, options: &Options) -> Done {
    let start = Instant::now();
    let mut outcome = (item.run)(options);
    if let Ok(outcome) = &mut outcome {
        outcome.rows.iter_mut().for_each(|row| item.complete(row));
    }
    Done { item, outcome, seconds: start.elapsed().as_secs_f64() }
}

/// An item for tests.
#[cfg(test)]
pub(crate) fn item(
    paper: &'static str,
    name: &'static str,
    run: fn(&Options) -> Result<Outcome, ItemError>,
) -> Item {
    let (kind, place, load) = (Kind::Computed, "Table I", Load::Alone);
    Item { paper, name, title: "", place, kind, differs: "", load, run }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_order_and_their_errors() {
        fn fine(options: &Options) -> Result<Outcome, ItemError> {
            let rows = vec![
                Row::new("threads", None, options.threads as f64, ""),
                Row::new("rules", Some(1.0), 1.0, ""),
                Row::new("time", Some(1.0), 1.0, "ms").kind(Kind::Measured).place("Fig. 2"),
            ];
            Ok(rows.into())
        }
        fn failed(_: &Options) -> Result<Outcome, ItemError> {
            Err(ItemError::Refused("no such network".into()))
        }
        let item = |name, load, run| Item { load, ..item("blast", name, run) };
        let items = [
            item("a", Load::Alone, fine as fn(&Options) -> _),
            item("b", Load::Shared, failed),
            item("c", Load::Shared, fine),
        ];
        let options = Options { quick: true, seed: 1, threads: 3 };
        let done = run(&items, &options, |_| (), || false);
        let names: Vec<_> = done.iter().map(|done| done.item.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(done[0].outcome.as_ref().unwrap().rows[0].ours, 3.0);
        assert_eq!(done[2].outcome.as_ref().unwrap().rows[0].ours, 1.0);
        assert_eq!(done[2].outcome.as_ref().unwrap().rows[0].item, "blast c");
        assert_eq!(done[1].outcome.as_ref().unwrap_err().to_string(), "no such network");
        let rows = &done[2].outcome.as_ref().unwrap().rows;
        let said: Vec<_> = rows.iter().map(|row| (row.kind.unwrap(), row.place.as_str())).collect();
        assert_eq!(said, [(Kind::Computed, ""), (Kind::Computed, "Table I"), (Kind::Measured, "Fig. 2")]);
    }

    #[test]
    fn who_stops_early_gets_what_is_done() {
        use std::sync::atomic::AtomicBool;
        static RELEASED: AtomicBool = AtomicBool::new(false);
        fn endless(_: &Options) -> Result<Outcome, ItemError> {
            while !RELEASED.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK_INTERVAL);
            }
            Ok(Outcome::default())
        }
        let items = [item("blast", "a", |_| Ok(Outcome::default())), item("blast", "b", endless)];
        let options = Options { quick: true, seed: 1, threads: 1 };
        let first_is_done = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&first_is_done);
        let tell = move |_: &Done| told.store(true, Ordering::Relaxed);
        let done = run(&items, &options, tell, || first_is_done.load(Ordering::Relaxed));
        RELEASED.store(true, Ordering::Relaxed);
        assert_eq!(done.iter().map(|done| done.item.name).collect::<Vec<_>>(), ["a"]);
    }
}
