//! Every figure and table of the papers that shows numbers, and what stands for it here.

use serde::Serialize;

use crate::report::{Done, Item};
use crate::{Kind, Row};

/// Row that stands for a figure, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// A row of an item: the words that name the item, and how the row's name begins.
    Row(&'static str, &'static str),
    /// No row: why, and where there is something like it.
    Nothing(&'static str),
}
use Shown::{Nothing, Row as Of};

/// A figure or table: paper, its name there, and what stands for it.
type Figure = (&'static str, &'static str, Shown);

const SPARK_TIMES: &str = "an application's running time is that of its own computing on the test bed; jobs that run: docs/howto/spark.md";
const CARDS: &str = "needs cards and switches of 10 Gbit/s and more";

/// All of them, in the papers' order. Drawings without numbers are not among them.
const FIGURES: &[Figure] = &[
    ("blast", "Table I", Of("table-1", "greedy, 1000 racks")),
    ("blast", "Table II", Of("table-2", "total, from the request to the path")),
    ("blast", "Fig. 4", Of("fig-4", "HDFS, non-blocking, heavy, in proportion to Blast")),
    (
        "datacast",
        "Fig. 1",
        Nothing("measured in a data center; its mean of 280 members is what other items take"),
    ),
    ("datacast", "Table 1", Of("table-1", "store of 2048: goodput")),
    ("datacast", "Fig. 6", Of("fig-6", "TCP with a window of 128 KB")),
    ("datacast", "section 7, comparison", Of("comparison", "BitTorrent's finish, Datacast's being 1")),
    ("datacast", "Fig. 9(a)", Of("fig-9", "bcube:8,4, 5 % failed")),
    ("datacast", "Fig. 9(b)", Of("fig-9", "bcube:20,4, 5 % failed")),
    ("datacast", "Fig. 10(a)", Of("tree-quality", "trees below the bound")),
    ("datacast", "Fig. 10(b)", Of("tree-quality", "Steiner nodes of a tree")),
    ("datacast", "Fig. 10(c)", Of("fig-10", "BCube(8,4), 280 members, 1 % failed links")),
    ("datacast", "Table 2", Of("table-2", "T = 1 ms, δ = 50 Mb/s: finish")),
    ("datacast", "Fig. 11", Of("fig-11", "store of 2048 packets: finish")),
    ("datacast", "Fig. 12", Of("fig-12", "1 % lost before the queue: finish")),
    ("datacast", "B.2", Of("b-2", "two trees: finish")),
    ("datacast", "Fig. 13", Of("fig-13", "TCP")),
    ("datacast", "Fig. 14", Of("fig-14", "without congestion, server 02: median")),
    (
        "orca",
        "Fig. 4a",
        Nothing("an application on a test bed; in labs `lab compare` gives times of Orca and of TCP"),
    ),
    (
        "orca",
        "Fig. 4b",
        Nothing("an application on a test bed; in labs `lab compare` gives times of Orca and of TCP"),
    ),
    ("orca", "Fig. 5a", Nothing(CARDS)),
    ("orca", "Fig. 5b", Of("fig-5b", "packets relabelled a second, 1 core")),
    ("orca", "Fig. 5c", Of("fig-5c", "5c: 100000 of 1000000 sessions active")),
    ("orca", "Fig. 5d", Of("fig-5d", "packets of 72 bytes: latency, median")),
    ("orca", "Fig. 6a", Of("fig-6a", "T = 1 ms: time without messages")),
    ("orca", "Fig. 6b", Of("fig-6a", "T = 1 ms: messages lost")),
    ("orca", "Fig. 6c", Of("fig-6c", "all placements: join delay, median")),
    (
        "orca",
        "Fig. 6d",
        Nothing("`cargo bench -p polycast-protocol --bench rack`, figures in docs/planning.md"),
    ),
    ("orca", "Fig. 7a", Of("fig-7", "7a: plain filter, Uni-S as run, entries of a switch, 99 %")),
    ("orca", "Fig. 7b", Of("fig-7", "7b: ours, Uni-S, most switches")),
    ("orca", "Fig. 7c", Of("fig-7", "7c: Orca, label")),
    ("orca", "Fig. 7d", Of("fig-7", "7d: ours, WVE-S as run")),
    ("orca", "A.5", Of("a-5", "plain filter, Uni-S")),
    ("republic", "Fig. 6(a)", Of("fig-6", "TPC-H, 10 executors, HTTP against ours, 60 %")),
    ("republic", "Fig. 6(b)", Of("fig-6", "Word2Vec and LDA, 10 executors, Torrent against ours, 40 %")),
    ("republic", "Fig. 6(c)", Of("fig-6", "TPC-H, 22 executors, Torrent against ours, 100 %")),
    ("republic", "Fig. 6(d)", Of("fig-6", "Word2Vec and LDA, 22 executors, Torrent against ours, 40 %")),
    ("republic", "Fig. 7", Nothing(SPARK_TIMES)),
    ("republic", "Fig. 8(a)", Of("fig-8", "full rate after the last INTL_SEQ, i_a = 2 ms: redundant")),
    ("republic", "Fig. 8(b)", Of("fig-8", "full rate after the last INTL_SEQ, i_a = 7 ms: packets lost")),
    ("republic", "Fig. 8(c)", Of("fig-8", "first against last INTL_SEQ, i_a = 2 ms: attempt time")),
    ("republic", "Fig. 8(d)", Of("fig-8", "first against last INTL_SEQ, i_a = 2 ms: extra time")),
    ("republic", "section VI-D", Of("response", "requests a second over sockets")),
    ("shufflecast", "Fig. 1", Of("fig-1", "excess resources, 192 ToRs")),
    ("shufflecast", "Fig. 6(a)", Of("fig-6a", "Shufflecast, part of the line rate")),
    ("shufflecast", "Fig. 6(b)", Of("fig-6b", "power, IP multicast, most")),
    ("shufflecast", "Fig. 6(c)", Of("fig-6c", "cost, IP multicast, most")),
    ("shufflecast", "Fig. 6(d)", Of("fig-6d", "packets lost, most of all")),
    ("shufflecast", "Fig. 6(e)", Of("fig-6e", "mean use of the line rate")),
    ("shufflecast", "Fig. 7(a)", Of("fig-7a", "8,")),
    ("shufflecast", "Fig. 7(b)", Of("fig-7b", "sources with unchanged hops, Algorithm 2, least")),
    ("shufflecast", "Fig. 7(c)", Of("fig-7c", "8,")),
    ("shufflecast", "Fig. 8(a)", Of("fig-8a", "LDA, Torrent against ours")),
    ("shufflecast", "Fig. 8(b)", Of("fig-8b", "TPC-H, all objects, HTTP against ours")),
    ("shufflecast", "Fig. 8(c)", Nothing(SPARK_TIMES)),
    ("shufflecast", "Fig. 8(d)", Of("fig-8d", "7 acceptors: 90 % latency")),
    ("shufflecast", "Fig. 10", Of("fig-10", "cases with 2 unused ports or more")),
];

/// A line of the table of all figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// The paper.
    pub paper: &'static str,
    /// The figure or table, as the paper calls it.
    pub figure: &'static str,
    /// The words that name its item, where it has one.
    pub item: String,
    /// The row that stands for it.
    pub name: String,
    /// Method that produced our number.
    pub kind: Option<Kind>,
    /// Number that the paper prints.
    pub printed: Option<f64>,
    /// Our number.
    pub ours: Option<f64>,
    /// The unit of both.
    pub unit: String,
    /// Ours in proportion to the paper's.
    pub ratio: Option<f64>,
    /// True if they agree, where there is something to compare with.
    pub agrees: Option<bool>,
    /// Reason why they differ, or why there is no row.
    pub reason: String,
}

/// The table, from what is done: figures whose items are not done have no number.
#[must_use]
pub fn table(done: &[Done]) -> Vec<Entry> {
    FIGURES.iter().map(|figure| entry(figure, done)).collect()
}

fn entry(&(paper, figure, from): &Figure, done: &[Done]) -> Entry {
    let mut entry = Entry {
        paper,
        figure,
        item: String::new(),
        name: String::new(),
        kind: None,
        printed: None,
        ours: None,
        unit: String::new(),
        ratio: None,
        agrees: None,
        reason: String::new(),
    };
    let (item, begins) = match from {
        Of(item, begins) => (item, begins),
        Nothing(why) => return Entry { reason: why.into(), ..entry },
    };
    entry.item = format!("{paper} {item}");
    let Some(done) = done.iter().find(|done| (done.item.paper, done.item.name) == (paper, item)) else {
        return Entry { name: begins.into(), reason: "not run".into(), ..entry };
    };
    let outcome = match &done.outcome {
        Ok(outcome) => outcome,
        Err(error) => return Entry { name: begins.into(), reason: error.to_string(), ..entry },
    };
    let Some(row) = outcome.rows.iter().find(|row| row.name.starts_with(begins)) else {
        return Entry { name: begins.into(), reason: "not in a quick run".into(), ..entry };
    };
    let agrees = row.agrees();
    Entry {
        name: row.name.clone(),
        kind: row.kind.filter(|_| !row.is_missing),
        printed: row.paper,
        ours: Some(row.ours).filter(|_| !row.is_missing),
        unit: row.unit.clone(),
        ratio: row.paper.filter(|&paper| paper != 0.0 && !row.is_missing).map(|paper| row.ours / paper),
        agrees,
        reason: match agrees {
            Some(true) => String::new(),
            Some(false) => reason(row, &done.item),
            None if row.note.is_empty() => "the paper prints no number of it".into(),
            None => row.note.clone(),
        },
        ..entry
    }
}

/// Returns the reason why a row differs from the paper: its own note, or else that of its item.
#[must_use]
pub fn reason(row: &Row, item: &Item) -> String {
    if row.note.is_empty() { item.differs.into() } else { row.note.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::papers;
    use crate::report::{self, ItemError, Options, Outcome};

    #[test]
    fn every_figure_is_of_a_paper_and_its_item_is_there() {
        let papers = papers();
        for (paper, figure, from) in FIGURES {
            let (_, items) = papers.iter().find(|(name, _)| name == paper).expect("a paper");
            if let Of(item, begins) = from {
                assert!(items.iter().any(|known| known.name == *item), "{paper} {figure}: no item {item}");
                assert!(!begins.is_empty());
            }
        }
        let names: std::collections::BTreeSet<_> =
            FIGURES.iter().map(|(paper, figure, _)| (paper, figure)).collect();
        assert_eq!(names.len(), FIGURES.len(), "a figure is named once");
        // 41 of the papers with rows of their own, and those of applications.
        assert!(FIGURES.len() >= 50);
    }

    /// Checks that the documents have what `polycast reproduce --table` prints, and every item.
    #[test]
    fn the_documents_have_a_line_for_every_figure_and_name_every_item() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reproduce.md");
        let text = std::fs::read_to_string(path).unwrap();
        let table =
            text.split("<!-- table -->").nth(1).unwrap().split("<!-- end of table -->").next().unwrap();
        let lines: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
        assert_eq!(lines.len(), FIGURES.len());
        for (line, (paper, figure, shown)) in lines.into_iter().zip(FIGURES) {
            let words = match shown {
                Of(_, begins) => begins,
                Nothing(why) => why,
            };
            assert!(line.starts_with(&format!("| {paper} {figure} |")) && line.contains(words), "{line}");
        }
        for (paper, items) in papers() {
            for item in items {
                assert!(text.contains(&format!("`{}`", item.name)), "{paper} {}", item.name);
            }
        }
    }

    #[test]
    fn a_line_says_the_ratio_and_why_it_differs() {
        fn found(_: &Options) -> Result<Outcome, ItemError> {
            let row = Row::new("greedy, 1000 racks", Some(100.0), 150.0, "ms");
            Ok(vec![row.clone(), Row::new("requests", None, 1.0, "1/s")].into())
        }
        let item = Item { differs: "another processor", ..report::item("blast", "table-1", found) };
        let done = report::run(&[item], &Options { quick: true, seed: 1, threads: 1 }, |_| (), || false);
        let table = table(&done);
        let one = &table[0];
        assert_eq!(
            (one.ratio, one.agrees, one.reason.as_str()),
            (Some(1.5), Some(false), "another processor")
        );
        assert_eq!(one.kind, Some(Kind::Computed));
        let other = table.iter().find(|entry| entry.figure == "Fig. 4").unwrap();
        assert_eq!((other.ours, other.reason.as_str()), (None, "not run"));
        assert!(table.iter().all(|entry| entry.ours.is_some() || !entry.reason.is_empty()));
    }
}
