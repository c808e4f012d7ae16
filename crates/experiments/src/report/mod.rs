//! Items: the papers' figures and tables, each one function that gives rows and figures.
//!
//! A paper's module lists its items in a constant `ITEMS`; [`papers`] gathers them. [`run`] computes chosen
//! items on all cores, [`draw`] makes SVG of a figure and [`page`] an HTML page of all of them.

pub mod draw;
mod figure;
pub mod page;
mod ticks;

pub use figure::{Axis, BarSeries, Figure, Mark, Plot, Scale, Series, Whose};

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::{Row, blast, datacast, exact, orca, republic, shufflecast};

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

/// The papers and their items, in the order in which they are listed.
#[must_use]
pub fn papers() -> [(&'static str, &'static [Item]); 5] {
    [
        ("blast", blast::ITEMS),
        ("datacast", datacast::ITEMS),
        ("orca", orca::ITEMS),
        ("republic", republic::ITEMS),
        ("shufflecast", shufflecast::ITEMS),
    ]
}

/// Nothing of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// There is no such paper.
    #[error("there is no paper '{name}': choose {choices} or all")]
    Paper {
        /// What was typed.
        name: String,
        /// What there is.
        choices: String,
    },
    /// The paper has no such item.
    #[error("{paper} has no item '{name}': choose {choices}")]
    Item {
        /// The paper.
        paper: String,
        /// What was typed.
        name: String,
        /// What there is.
        choices: String,
    },
}

/// The items that the words name: all of them, those of a paper, or one. `all` stands for every paper, and
/// `fig-6` for `fig-6a`, `fig-6b` and so on.
///
/// # Errors
/// If there is no such paper or item.
pub fn select(paper: Option<&str>, item: Option<&str>) -> Result<Vec<Item>, SelectError> {
    let papers = papers();
    let Some(paper) = paper.filter(|&paper| paper != "all" || item.is_some()) else {
        return Ok(papers.iter().flat_map(|(_, items)| items.iter().copied()).collect());
    };
    let Some((_, items)) = papers.iter().find(|(name, _)| *name == paper) else {
        let choices = papers.map(|(name, _)| name).join(", ");
        return Err(SelectError::Paper { name: paper.into(), choices });
    };
    let Some(name) = item else { return Ok(items.to_vec()) };
    let mut found: Vec<Item> = items.iter().copied().filter(|item| item.name == name).collect();
    if found.is_empty() {
        let part = |item: &Item| {
            let letter = item.name.strip_prefix(name).unwrap_or("");
            name.ends_with(|last: char| last.is_ascii_digit())
                && letter.len() == 1
                && letter.bytes().all(|byte| byte.is_ascii_lowercase())
        };
        found = items.iter().copied().filter(part).collect();
    }
    if found.is_empty() {
        let choices = items.iter().map(|item| item.name).collect::<Vec<_>>().join(", ");
        return Err(SelectError::Item { paper: paper.into(), name: name.into(), choices });
    }
    Ok(found)
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
    use std::collections::BTreeSet;

    #[test]
    fn names_are_words_that_can_be_typed_and_no_two_are_equal() {
        for (paper, items) in papers() {
            let names: BTreeSet<_> = items.iter().map(|item| item.name).collect();
            assert_eq!(names.len(), items.len(), "{paper}");
            for item in items {
                assert_eq!(item.paper, paper, "{}", item.name);
                assert!(item.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            }
        }
    }

    #[test]
    fn words_select_all_a_paper_or_an_item() {
        let count: usize = papers().iter().map(|(_, items)| items.len()).sum();
        assert_eq!(select(None, None).unwrap().len(), count);
        assert_eq!(select(Some("all"), None).unwrap().len(), count);
        assert!(select(Some("blast"), None).unwrap().iter().all(|item| item.paper == "blast"));
        assert_eq!(select(Some("shufflecast"), Some("fig-10")).unwrap()[0].name, "fig-10");
        let parts = select(Some("shufflecast"), Some("fig-7")).unwrap();
        assert_eq!(parts.iter().map(|item| item.name).collect::<Vec<_>>(), ["fig-7a", "fig-7b", "fig-7c"]);
        assert!(select(Some("shufflecast"), Some("fig-")).is_err());
        assert!(select(Some("elmo"), None).unwrap_err().to_string().contains("blast, datacast, orca"));
        let error = select(Some("blast"), Some("fig-9")).unwrap_err().to_string();
        assert!(error.contains("'fig-9'") && error.contains("table-1"), "{error}");
    }

    #[test]
    fn items_keep_their_order_and_their_errors() {
        fn fine(options: &Options) -> Result<Outcome, ItemError> {
            Ok(vec![Row::new("", "threads", None, options.threads as f64, "")].into())
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
