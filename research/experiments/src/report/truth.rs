//! The last page of a report: what of the papers has a number of ours, how it was made, and which tests fail.

use std::fmt::Write;

use super::page::{About, begin, end, escaped, head, ours, rows, title_case, verdict};
use super::{Done, Item, Options};
use crate::figures::{self, Entry};
use crate::{Kind, Row};

/// Changes that would let the failing tests of an item pass: paper, item, words.
const MENDS: &[(&str, &str, &str)] = &[
    (
        "blast",
        "table-1",
        "a search that swaps single groups after the greedy choice, where groups compete for racks",
    ),
    ("blast", "table-2", "devices of their own in place of programs that share one machine's cores"),
    ("blast", "fig-4", "the paper's placement of replicas, which it leaves open"),
    ("datacast", "fig-6", "a source that serves a receiver that was cut off without slowing down for it"),
    ("orca", "fig-5b", "a table of labels that stays nearer to the processor, or a faster processor"),
    ("orca", "fig-5c", "a table of labels that stays nearer to the processor, or a faster processor"),
    ("orca", "fig-6a", "processors of their own for agents, controllers and switches"),
    ("orca", "fig-7", "more paths tried for a session, or more bits in its label"),
    ("republic", "response", "a processor of its own for the manager"),
    ("republic", "fig-8", "circuits recorded from hardware in place of our model of how they settle"),
    (
        "shufflecast",
        "fig-6b",
        "the paper's own list of networks; ours is arithmetic on those that its words allow",
    ),
    ("shufflecast", "fig-6c", "the paper's own bill of parts; ours comes out with another reading of it"),
    (
        "shufflecast",
        "fig-6d",
        "congestion control with which concurrent groups find their shares and lose less",
    ),
    (
        "shufflecast",
        "fig-6e",
        "congestion control with which concurrent groups find their shares and lose less",
    ),
    ("shufflecast", "fig-7c", "nothing of ours: the paper's bound leaves out rules that its algorithm moves"),
    ("shufflecast", "fig-8d", "processors of their own for hosts and switches"),
    ("shufflecast", "relaying", "nothing of ours: a source whose relays have all failed has no other way"),
    ("shufflecast", "rules", "processors of their own for switches"),
    ("shufflecast", "fig-10", "the paper's whole list of switches"),
];

/// Returns what would mend a failing test of an item.
fn mend(item: &Item) -> &'static str {
    let known = MENDS.iter().find(|(paper, name, _)| (*paper, *name) == (item.paper, item.name));
    known.map_or("no change is known that would", |(.., words)| words)
}

/// The table of all figures, of the papers that were run alone.
#[must_use]
pub fn figures_of_run(done: &[Done], missing: &[Item]) -> Vec<Entry> {
    let asked = |paper: &str| {
        done.iter()
            .map(|done| done.item.paper)
            .chain(missing.iter().map(|item| item.paper))
            .any(|of| of == paper)
    };
    figures::table(done).into_iter().filter(|entry| asked(entry.paper)).collect()
}

/// The page that a report ends with. It needs no other page, and one of a run that was ended early says so.
#[must_use]
pub fn truth(done: &[Done], missing: &[Item], options: &Options, about: &About) -> String {
    let mut page = begin("What is shown, and what is not", options);
    head(&mut page, done, missing, about);
    let entries = figures_of_run(done, missing);
    let shown = entries.iter().filter(|entry| entry.ours.is_some()).count();
    let _ = writeln!(
        page,
        "<h2>Figures and tables</h2>\n<p>{shown} of {} figures and tables have a row of ours.</p>",
        entries.len()
    );
    table(
        &mut page,
        ["figure without one", "why"],
        entries
            .iter()
            .filter(|entry| entry.ours.is_none())
            .map(|entry| [format!("{} {}", title_case(entry.paper), entry.figure), entry.reason.clone()]),
    );
    let count = |wanted: &dyn Fn(&Row) -> bool| rows(done).filter(|row| wanted(row)).count();
    let _ = writeln!(
        page,
        "<h2>Rows</h2>\n<p>{} rows are {}, {} {}, {} {}; {} have the paper's number alone, with the reason.</p>",
        count(&|row| !row.is_missing && row.kind == Some(Kind::Measured)),
        Kind::Measured.word(),
        count(&|row| !row.is_missing && row.kind == Some(Kind::Simulated)),
        Kind::Simulated.word(),
        count(&|row| !row.is_missing && row.kind == Some(Kind::Computed)),
        Kind::Computed.word(),
        count(&|row| row.is_missing),
    );
    let failed = |done: &'_ Done| done.outcome.as_ref().err().map(|error| (done.item, error.to_string()));
    let errors: Vec<(Item, String)> = done.iter().filter_map(failed).collect();
    if !errors.is_empty() {
        page.push_str("<h2>Items without a result</h2>\n");
        let named = |(item, error): &(Item, String)| [format!("{} {}", item.paper, item.name), error.clone()];
        table(&mut page, ["item", "why"], errors.iter().map(named));
    }
    tests(&mut page, done);
    end(page)
}

/// Writes the tests that fail, each with its cause and what would mend it.
fn tests(page: &mut String, done: &[Done]) {
    let mut failing = Vec::new();
    for one in done {
        let of_item = rows(std::slice::from_ref(one)).filter(|row| row.is_within() == Some(false));
        failing.extend(of_item.map(|row| {
            let cause = match figures::reason(row, &one.item) {
                none if none.is_empty() => "not known".into(),
                cause => cause,
            };
            let value = format!("{} {}", ours(row), row.unit);
            [row.item.clone(), row.name.clone(), value, verdict(row), cause, mend(&one.item).into()]
        }));
    }
    let tested = rows(done).filter(|row| row.is_within().is_some()).count();
    let _ = writeln!(page, "<h2>Tests that fail</h2>\n<p>{} of {} tests fail.</p>", failing.len(), tested);
    table(page, ["item", "what", "ours", "test", "cause", "what would mend it"], failing.into_iter());
}

/// Writes a table of texts, where there is a line.
fn table<const N: usize>(page: &mut String, names: [&str; N], lines: impl Iterator<Item = [String; N]>) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    let cells = |of: &str, texts: &[String]| -> String {
        texts.iter().map(|text| format!("<{of}>{}</{of}>", escaped(text))).collect()
    };
    let _ =
        writeln!(page, "<table>\n<thead><tr>{}</tr></thead>\n<tbody>", cells("th", &names.map(String::from)));
    for line in lines {
        let _ = writeln!(page, "<tr>{}</tr>", cells("td", &line));
    }
    page.push_str("</tbody>\n</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::papers;
    use crate::report::{ItemError, Outcome, item, run};

    const OPTIONS: Options = Options { quick: true, seed: 1, threads: 1 };

    fn found(_: &Options) -> Result<Outcome, ItemError> {
        let rows = vec![
            Row::new("excess resources, 192 ToRs", Some(107.0), 107.3, "%").within(0.01),
            Row::new("lost <all>", Some(0.28), 1.5, "%").at_most(0.28).kind(Kind::Simulated),
            Row::missing("HTTP against ours", Some(6.24), "x", "arithmetic"),
        ];
        Ok(rows.into())
    }

    #[test]
    fn the_last_page_counts_rows_and_names_what_fails() {
        let one = Item { differs: "other queues", ..item("shufflecast", "fig-1", found) };
        let wrong = |_: &Options| Err(ItemError::Refused("no path".into()));
        let done = run(&[one, item("shufflecast", "fig-6a", wrong)], &OPTIONS, |_| (), || false);
        let page = truth(&done, &[], &OPTIONS, &[("version", "0.1.0".into())]);
        let figures = figures_of_run(&done, &[]);
        assert!(figures.iter().all(|entry| entry.paper == "shufflecast") && figures.len() > 10);
        for words in [
            &format!("1 of {} figures and tables have a row of ours.", figures.len()),
            "<td>Shufflecast Fig. 8(c)</td>",
            "<td>no path</td>",
            "0 rows are measured, 1 simulated, 1 computed; 1 have the paper's number alone",
            "1 of 2 tests fail.",
            "<td>shufflecast fig-1</td><td>lost &lt;all&gt;</td><td>1.5 %</td><td>not at most 0.28</td><td>other queues</td>\
             <td>no change is known that would</td>",
            "<td>0.1.0</td>",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(!page.contains("partial"));
        let page = truth(&done, &[item("orca", "fig-7", found)], &OPTIONS, &[]);
        assert!(page.contains("This page is partial: it was ended when 2 of 3 items were done"), "{page}");
        assert!(page.contains("<td>Orca Fig. 7a</td><td>not run</td>"), "{page}");
    }

    #[test]
    fn what_would_mend_tests_is_said_of_items_that_are_there() {
        let items = papers().into_iter().flat_map(|(_, items)| items);
        let names: Vec<_> = items.map(|item| (item.paper, item.name)).collect();
        assert!(MENDS.iter().all(|(paper, item, _)| names.contains(&(paper, item))), "{names:?}");
    }
}
