//! The report: one HTML page with all rows and figures, and nothing to load from elsewhere.

use std::fmt::Write;

use super::draw::{self, DrawError};
use super::truth::figures_of_run;
use super::{Done, Item, Options};
use crate::{Kind, Row, Test, figures};

const STYLE: &str = "
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 5rem; background: #fff; color: #222;
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.9rem; margin: 0 0 .4rem; }
h2 { font-size: 1.4rem; margin: 3rem 0 .2rem; padding-bottom: .3rem; border-bottom: 2px solid #222; }
h3 { font-size: 1.1rem; margin: 2.2rem 0 .5rem; }
h3 code { font-weight: normal; color: #666; font-size: .85em; margin-left: .6em; }
a { color: #00598c; }
nav ul { columns: 2; column-gap: 2rem; padding-left: 1.1rem; margin: .3rem 0 .8rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .6rem 0 1rem; }
th, td { text-align: left; padding: .32rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top; }
th { border-bottom: 2px solid #888; font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.note { color: #555; }
td.yes { color: #005f20; white-space: nowrap; }
td.no { color: #a00000; font-weight: 600; white-space: nowrap; }
table.about { width: auto; }
figure { margin: 1rem 0 1.5rem; }
figure svg { max-width: 100%; height: auto; }
p.failed { color: #a00000; font-weight: 600; }
p.small { color: #555; font-size: .9rem; }
";

/// By what a page was made: names and texts, such as `version` and `0.1.0`.
pub type About = [(&'static str, String)];

/// The first page: by what the numbers were made, a line and a link for each paper, and the table of all
/// figures of the papers that were run.
#[must_use]
pub fn index(done: &[Done], missing: &[Item], options: &Options, about: &About) -> String {
    let mut page = begin("The papers' figures and tables", options);
    head(&mut page, done, missing, about);
    page.push_str(
        "<table>\n<thead><tr><th>paper</th><th class=\"n\">rows that agree</th><th class=\"n\">rows that do not</th>\
         <th class=\"n\">without a number to compare with</th></tr></thead>\n<tbody>\n",
    );
    for of_paper in by_paper(done) {
        let count = |wanted: Option<bool>| rows(of_paper).filter(|row| row.agrees() == wanted).count();
        let paper = of_paper[0].item.paper;
        let _ = writeln!(
            page,
            "<tr><td><a href=\"{paper}.html\">{}</a></td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td></tr>",
            title_case(paper),
            count(Some(true)),
            count(Some(false)),
            count(None)
        );
    }
    page.push_str("</tbody>\n</table>\n<p><a href=\"truth.html\">What is shown, and what is not</a></p>\n");
    page.push_str("<h2>Every figure and table</h2>\n");
    figures_table(&mut page, &figures_of_run(done, missing));
    end(page)
}

/// The page of a paper: what agrees, what does not and why, then its figures and tables one after the other.
///
/// # Errors
/// If a figure cannot be drawn.
pub fn paper(
    of_paper: &[Done],
    missing: &[Item],
    options: &Options,
    about: &About,
) -> Result<String, DrawError> {
    let name = of_paper.first().map_or("", |done| done.item.paper);
    let mut page = begin(&title_case(name), options);
    let missing: Vec<Item> = missing.iter().filter(|item| item.paper == name).copied().collect();
    agreement(&mut page, of_paper);
    page.push_str("<h2>Its figures and tables</h2>\n");
    let of_name: Vec<_> = figures::table(of_paper).into_iter().filter(|entry| entry.paper == name).collect();
    figures_table(&mut page, &of_name);
    page.push_str("<h2>How the numbers were made</h2>\n");
    head(&mut page, of_paper, &missing, about);
    contents(&mut page, of_paper);
    of_paper.iter().try_for_each(|done| item(&mut page, done))?;
    Ok(end(page))
}

/// Splits the items that are done by paper.
pub fn by_paper(done: &[Done]) -> impl Iterator<Item = &[Done]> {
    done.chunk_by(|one, next| one.item.paper == next.item.paper)
}

pub(super) fn begin(title: &str, options: &Options) -> String {
    let mut page = String::new();
    page.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let _ = write!(page, "<title>Polycast: {}</title>\n<style>", escaped(title));
    page.push_str(STYLE);
    let _ = writeln!(page, "</style>\n</head>\n<body>\n<h1>{}</h1>", escaped(title));
    let extent = if options.quick { "Quick run: fewer runs and smaller sizes. " } else { "" };
    let _ = writeln!(
        page,
        "<p>{extent}Seed {}. Hollow marks and broken lines are the papers' numbers. A row is measured on the machine that made this \
        page, simulated in virtual time, or computed. A row agrees where it passes its test, or where it has none and is within 5 % of \
        what the paper prints.</p>",
        options.seed
    );
    page
}

pub(super) fn end(mut page: String) -> String {
    page.push_str("</body>\n</html>\n");
    page
}

pub(super) fn rows(done: &[Done]) -> impl Iterator<Item = &Row> {
    done.iter().filter_map(|done| done.outcome.as_ref().ok()).flat_map(|outcome| &outcome.rows)
}

/// Writes the numbers that agree, a line an item, and those that do not, a line a row with the reason.
fn agreement(page: &mut String, of_paper: &[Done]) {
    page.push_str("<h2>What agrees</h2>\n<ul>\n");
    for done in of_paper {
        let compared: Vec<&Row> =
            rows(std::slice::from_ref(done)).filter(|row| row.agrees().is_some()).collect();
        let agree: Vec<&&Row> = compared.iter().filter(|row| row.agrees() == Some(true)).collect();
        let Some(first) = agree.first() else { continue };
        let all = if agree.len() == compared.len() { "all" } else { "of" };
        let _ = writeln!(
            page,
            "<li><a href=\"#{0}-{1}\">{2}</a>: {3} {all} {4}, such as {5}: {6}.</li>",
            done.item.paper,
            done.item.name,
            escaped(done.item.title),
            if all == "all" { String::new() } else { agree.len().to_string() },
            compared.len(),
            escaped(&first.name),
            escaped(&beside(first)),
        );
    }
    page.push_str("</ul>\n<h2>What does not, and why</h2>\n");
    let mut differing = Vec::new();
    for done in of_paper {
        let differs = rows(std::slice::from_ref(done)).filter(|row| row.agrees() == Some(false));
        differing.extend(differs.map(|row| (row, figures::reason(row, &done.item))));
    }
    if differing.is_empty() {
        page.push_str("<p>Nothing of what is compared.</p>\n");
        return;
    }
    page.push_str(
        "<table>\n<thead><tr><th>what</th><th>where</th><th class=\"n\">paper</th><th class=\"n\">ours</th><th>unit</th>\
         <th class=\"n\">deviation</th><th>kind</th><th>why</th></tr></thead>\n<tbody>\n",
    );
    for (row, why) in differing {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td>\
             <td class=\"n\">{}</td><td>{}</td><td class=\"note\">{}</td></tr>",
            escaped(&row.name),
            escaped(&row.place),
            row.paper.map_or_else(|| escaped(&verdict(row)), number),
            ours(row),
            escaped(&row.unit),
            deviation(row).unwrap_or_default(),
            row.kind.map_or("", Kind::word),
            escaped(&why)
        );
    }
    page.push_str("</tbody>\n</table>\n");
}

/// Ours and the paper's in words.
fn beside(row: &Row) -> String {
    let ours = format!("{} {}", number(row.ours), row.unit);
    match row.paper {
        Some(paper) => format!("{} (paper: {})", ours.trim(), number(paper)),
        None => format!("{} ({})", ours.trim(), verdict(row)),
    }
}

/// Each figure of the papers with what stands for it.
fn figures_table(page: &mut String, entries: &[figures::Entry]) {
    page.push_str(
        "<table>\n<thead><tr><th>figure</th><th>what stands for it</th><th>kind</th><th class=\"n\">paper</th>\
         <th class=\"n\">ours</th><th>unit</th><th class=\"n\">ours / paper</th><th>where they differ, why</th></tr></thead>\n<tbody>\n",
    );
    for entry in entries {
        let _ = writeln!(
            page,
            "<tr><td>{} {}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td>\
             <td class=\"n\">{}</td><td class=\"note\">{}</td></tr>",
            title_case(entry.paper),
            escaped(entry.figure),
            escaped(&entry.name),
            entry.kind.map_or("", Kind::word),
            entry.printed.map_or_else(String::new, number),
            entry.ours.map_or_else(String::new, number),
            escaped(&entry.unit),
            entry.ratio.map_or_else(String::new, number),
            escaped(&entry.reason)
        );
    }
    page.push_str("</tbody>\n</table>\n");
}

/// Writes the origin of the numbers, the missing items, and how many rows pass the tests of their items.
pub(super) fn head(page: &mut String, done: &[Done], missing: &[Item], about: &About) {
    if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(|item| format!("{} {}", item.paper, item.name)).collect();
        let _ = writeln!(
            page,
            "<p class=\"failed\">This page is partial: it was ended when {} of {} items were done. Missing: {}.</p>",
            done.len(),
            done.len() + missing.len(),
            escaped(&names.join(", "))
        );
    }
    page.push_str("<table class=\"about\">\n");
    for (name, text) in about {
        let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escaped(name), escaped(text));
    }
    page.push_str("</table>\n");
    let with = rows(done).filter(|row| row.is_within().is_some()).count();
    let near = rows(done).filter(|row| row.is_within() == Some(true)).count();
    let _ = writeln!(
        page,
        "<p>{with} of {} rows have a test, by what the paper says; {near} of these pass. All rows: \
        <a href=\"rows.csv\">rows.csv</a>.</p>",
        rows(done).count()
    );
}

/// Returns the row's test and whether it holds, such as `within 1 %` or `not at most 5`; empty where there is
/// none.
#[must_use]
pub fn verdict(row: &Row) -> String {
    let (Some(holds), Some(test)) = (row.is_within(), row.test) else { return String::new() };
    let words = match test {
        Test::Within(0.0) => "equal".to_string(),
        Test::Within(share) => format!("within {} %", number(100.0 * share)),
        Test::AtMost(limit) => format!("at most {}", number(limit)),
        Test::AtLeast(limit) => format!("at least {}", number(limit)),
        Test::Between(least, most) => format!("{} to {}", number(least), number(most)),
    };
    if holds { words } else { format!("not {words}") }
}

fn contents(page: &mut String, done: &[Done]) {
    page.push_str("<nav>\n<ul>\n");
    for Done { item, .. } in done {
        let _ = writeln!(
            page,
            "<li><a href=\"#{}-{}\">{}, {}</a>: {}</li>",
            item.paper,
            item.name,
            title_case(item.paper),
            item.name,
            escaped(item.title)
        );
    }
    page.push_str("</ul>\n</nav>\n");
}

fn item(page: &mut String, done: &Done) -> Result<(), DrawError> {
    let Done { item, outcome, seconds } = done;
    let _ = writeln!(
        page,
        "<section id=\"{0}-{1}\">\n<h3>{2}<code>polycast reproduce {0} {1}</code></h3>",
        item.paper,
        item.name,
        escaped(item.title)
    );
    match outcome {
        Ok(outcome) => {
            for note in &outcome.notes {
                let _ = writeln!(page, "<p>{}</p>", escaped(note));
            }
            for figure in &outcome.figures {
                let _ = writeln!(
                    page,
                    "<figure>\n{}<figcaption class=\"small\"><a href=\"{1}-{2}.csv\">{1}-{2}.csv</a></figcaption>\
                    </figure>",
                    draw::svg(figure)?,
                    item.paper,
                    escaped(&figure.name)
                );
            }
            table(page, &outcome.rows);
            let _ = writeln!(page, "<p class=\"small\">Computed in {seconds:.1} s.</p>");
        }
        Err(error) => {
            let _ = writeln!(page, "<p class=\"failed\">Failed: {}</p>", escaped(&error.to_string()));
        }
    }
    page.push_str("</section>\n");
    Ok(())
}

fn table(page: &mut String, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    page.push_str(
        "<table>\n<thead><tr><th>what</th><th class=\"n\">paper</th><th class=\"n\">ours</th><th>unit</th>\
        <th class=\"n\">deviation</th><th>verdict</th><th>kind</th><th>where, and note</th></tr></thead>\n<tbody>\n",
    );
    for row in rows {
        let paper = row.paper.map_or_else(String::new, number);
        let deviation = deviation(row).unwrap_or_default();
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{paper}</td><td class=\"n\">{}</td><td>{}</td>\
            <td class=\"n\">{deviation}</td><td class=\"{}\">{}</td><td>{}</td><td class=\"note\">{}</td></tr>",
            escaped(&row.name),
            ours(row),
            escaped(&row.unit),
            if row.is_within() == Some(false) { "no" } else { "yes" },
            escaped(&verdict(row)),
            row.kind.map_or("", Kind::word),
            escaped(
                &[row.place.as_str(), &row.note]
                    .into_iter()
                    .filter(|text| !text.is_empty())
                    .collect::<Vec<_>>()
                    .join("; ")
            )
        );
    }
    page.push_str("</tbody>\n</table>\n");
}

/// Returns the deviation of ours from the paper's: in percent of the paper's, or in multiples from ten times
/// as much on.
#[must_use]
pub fn deviation(row: &Row) -> Option<String> {
    let paper = row.paper.filter(|&paper| paper != 0.0)?;
    let percent = Some(100.0 * (row.ours - paper) / paper.abs()).filter(|percent| percent.is_finite())?;
    Some(if percent < 900.0 { format!("{percent:+.1} %") } else { format!("{:.0} x", row.ours / paper) })
}

/// Our number, or a dash where there is none.
#[must_use]
pub fn ours(row: &Row) -> String {
    if row.is_missing { "-".into() } else { number(row.ours) }
}

/// A number with four digits that count; whole numbers whole.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value == value.trunc() && size < 1e15 {
        format!("{value:.0}")
    } else if (1e-4..1e15).contains(&size) {
        let digits = (3 - size.log10().floor() as i32).clamp(0, 7) as usize;
        let text = format!("{value:.digits$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
    } else {
        format!("{value:.3e}")
    }
}

pub(super) fn title_case(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Figure, Item, ItemError, Outcome};
    use super::*;

    fn fine(_: &Options) -> Result<Outcome, ItemError> {
        Ok(Outcome::default())
    }

    fn item(name: &'static str) -> Item {
        Item { title: "Time <all>", differs: "smaller <links>", ..super::super::item("blast", name, fine) }
    }

    fn done() -> [Done; 2] {
        let figure = Figure::lines("f", "Figure", Axis::linear("x", "s"), Axis::linear("y", ""), vec![]);
        let row = Row::new("finish & end", Some(2.0), 1.9, "s").place("Table I").kind(Kind::Simulated);
        let rows = vec![row.clone().within(0.1), row.clone().within(0.01), row.note("quick").at_most(1.0)];
        let outcome = Outcome::from(rows).figure(figure).note("Only so.");
        [
            Done { item: item("a"), outcome: Ok(outcome), seconds: 0.5 },
            Done { item: item("b"), outcome: Err(ItemError::Refused("no path".into())), seconds: 0.0 },
        ]
    }

    const OPTIONS: Options = Options { quick: true, seed: 7, threads: 1 };

    #[test]
    fn the_page_holds_rows_figures_and_failures_and_needs_nothing_else() {
        let done = done();
        let whole = paper(&done, &[], &OPTIONS, &[]).unwrap();
        assert!(!whole.contains("partial"));
        let about = [("version", "0.1.0".to_string()), ("processor", "A <B>".to_string())];
        let page = paper(&done, &[item("c")], &OPTIONS, &about).unwrap();
        for words in [
            "Time &lt;all&gt;",
            "finish &amp; end",
            "-5.0 %",
            "<svg",
            "Only so.",
            "Failed: no path",
            "Seed 7",
            "ended when 2 of 3 items were done. Missing: blast c.",
            "<th>processor</th><td>A &lt;B&gt;</td>",
            "<td class=\"yes\">within 10 %</td><td>simulated</td>",
            "<td class=\"no\">not within 1 %</td>",
            "<td class=\"no\">not at most 1</td>",
            "3 of 3 rows have a test, by what the paper says; 1 of these pass",
            "href=\"blast-f.csv\"",
        ] {
            assert!(page.contains(words), "{words} is not in {page}");
        }
        let index = index(&done, &[item("c")], &OPTIONS, &about);
        assert!(
            index.contains(
                "<a href=\"blast.html\">Blast</a></td><td class=\"n\">1</td><td class=\"n\">2</td>"
            ),
            "{index}"
        );
        // Figures of papers that were not asked for are not there.
        assert!(
            index.contains("<td>Blast Fig. 4</td>") && !index.contains("<td>Orca Fig. 7a</td>"),
            "{index}"
        );
        assert!(index.contains("href=\"truth.html\""), "{index}");
        let resources = ["<script", "<link", "<img", "url(", "@import"];
        assert!(resources.iter().all(|word| !page.contains(word) && !index.contains(word)));
    }

    #[test]
    fn a_page_begins_with_what_agrees_and_what_does_not_and_why() {
        let page = paper(&done(), &[], &OPTIONS, &[]).unwrap();
        let at = |words: &str| page.find(words).unwrap_or_else(|| panic!("{words} is not in {page}"));
        assert!(at("What agrees") < at("such as finish &amp; end: 1.9 s (paper: 2)"));
        assert!(at("What does not, and why") < at("<td class=\"note\">smaller &lt;links&gt;</td>"));
        assert!(
            at("<td class=\"note\">quick</td>") < at("Its figures and tables"),
            "a row's own reason goes first"
        );
    }

    #[test]
    fn numbers_have_the_digits_that_count() {
        for (value, text) in [
            (0.0, "0"),
            (42.0, "42"),
            (0.29512, "0.2951"),
            (1234.56, "1235"),
            (99.8, "99.8"),
            (27_648.0, "27648"),
            (0.00001234, "1.234e-5"),
            (-0.5, "-0.5"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
