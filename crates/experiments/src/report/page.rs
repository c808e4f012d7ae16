//! The report: one HTML page with all rows and figures, and nothing to load from elsewhere.

use std::fmt::Write;

use super::draw::{self, DrawError};
use super::{Done, Item, Options};
use crate::Row;

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

/// The page; items of one paper follow each other. `missing` are those that were asked for and are not done.
///
/// # Errors
/// If a figure cannot be drawn.
pub fn html(done: &[Done], missing: &[Item], options: &Options, about: &About) -> Result<String, DrawError> {
    let mut page = String::new();
    page.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_str("<title>Polycast: the papers' figures</title>\n<style>");
    page.push_str(STYLE);
    page.push_str("</style>\n</head>\n<body>\n<h1>The papers' figures and tables</h1>\n");
    let extent = if options.quick { "Quick run: fewer runs and smaller sizes. " } else { "" };
    let _ = writeln!(
        page,
        "<p>{extent}Seed {}. Hollow marks are the papers' numbers. Times that a row calls \
        measured are of the machine that made this page.</p>",
        options.seed
    );
    head(&mut page, done, missing, about);
    contents(&mut page, done);
    for of_paper in done.chunk_by(|one, next| one.item.paper == next.item.paper) {
        let _ = writeln!(page, "<h2>{}</h2>", escaped(&title_case(of_paper[0].item.paper)));
        of_paper.iter().try_for_each(|done| item(&mut page, done))?;
    }
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

/// Where the numbers are from, what is missing, and how many are as near to the paper's as their items ask.
fn head(page: &mut String, done: &[Done], missing: &[Item], about: &About) {
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
    let rows = || done.iter().filter_map(|done| done.outcome.as_ref().ok()).flat_map(|outcome| &outcome.rows);
    let with = rows().filter(|row| row.is_within().is_some()).count();
    let near = rows().filter(|row| row.is_within() == Some(true)).count();
    let _ = writeln!(
        page,
        "<p>{with} of {} rows say how near they have to be to the paper's number; {near} of these are. All rows: \
        <a href=\"rows.csv\">rows.csv</a>.</p>",
        rows().count()
    );
}

/// `within 1 %` or `not within 1 %`; empty where the item asks nothing.
#[must_use]
pub fn verdict(row: &Row) -> String {
    let Some(is_within) = row.is_within() else { return String::new() };
    let share = 100.0 * row.tolerance.unwrap_or_default();
    let words = if share == 0.0 { "equal".to_string() } else { format!("within {} %", number(share)) };
    if is_within { words } else { format!("not {words}") }
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
        <th class=\"n\">deviation</th><th>verdict</th><th>note</th></tr></thead>\n<tbody>\n",
    );
    for row in rows {
        let paper = row.paper.map_or_else(String::new, number);
        let deviation = deviation(row).unwrap_or_default();
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{paper}</td><td class=\"n\">{}</td><td>{}</td>\
            <td class=\"n\">{deviation}</td><td class=\"{}\">{}</td><td class=\"note\">{}</td></tr>",
            escaped(&row.name),
            number(row.ours),
            escaped(&row.unit),
            if row.is_within() == Some(false) { "no" } else { "yes" },
            verdict(row),
            escaped(&row.note)
        );
    }
    page.push_str("</tbody>\n</table>\n");
}

/// How far ours is from the paper's: in percent of the paper's, or in multiples from ten times as much on.
#[must_use]
pub fn deviation(row: &Row) -> Option<String> {
    let paper = row.paper.filter(|&paper| paper != 0.0)?;
    let percent = Some(100.0 * (row.ours - paper) / paper.abs()).filter(|percent| percent.is_finite())?;
    Some(if percent < 900.0 { format!("{percent:+.1} %") } else { format!("{:.0} x", row.ours / paper) })
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

fn title_case(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn escaped(text: &str) -> String {
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
    use super::super::{Axis, Figure, Item, ItemError, Load, Outcome};
    use super::*;

    fn fine(_: &Options) -> Result<Outcome, ItemError> {
        Ok(Outcome::default())
    }

    #[test]
    fn the_page_holds_rows_figures_and_failures_and_needs_nothing_else() {
        let item = |name| Item { paper: "blast", name, title: "Time <all>", load: Load::Shared, run: fine };
        let figure = Figure::lines("f", "Figure", Axis::linear("x", "s"), Axis::linear("y", ""), vec![]);
        let row = Row::new("finish & end", Some(2.0), 1.9, "s").note("quick");
        let rows = vec![row.clone(), row.clone().within(0.1), row.within(0.01)];
        let outcome = Outcome::from(rows).figure(figure).note("Only so.");
        let done = [
            Done { item: item("a"), outcome: Ok(outcome), seconds: 0.5 },
            Done { item: item("b"), outcome: Err(ItemError::Refused("no path".into())), seconds: 0.0 },
        ];
        let options = Options { quick: true, seed: 7, threads: 1 };
        let whole = html(&done, &[], &options, &[]).unwrap();
        assert!(!whole.contains("partial"));
        let about = [("version", "0.1.0".to_string()), ("processor", "A <B>".to_string())];
        let page = html(&done, &[item("c")], &options, &about).unwrap();
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
            "<td class=\"yes\">within 10 %</td>",
            "<td class=\"no\">not within 1 %</td>",
            "2 of 3 rows say how near",
            "href=\"blast-f.csv\"",
        ] {
            assert!(page.contains(words), "{words} is not in {page}");
        }
        let resources = ["<script", "<link", "<img", "url(", "@import"];
        assert!(resources.iter().all(|word| !page.contains(word)));
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
