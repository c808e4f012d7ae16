//! `polycast reproduce`: the papers' figures and tables, ours beside theirs.

mod labs;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use polycast_experiments::catalogue::{self, papers};
use polycast_experiments::figures::{self, Entry};
use polycast_experiments::report::page::{deviation, number};
use polycast_experiments::report::{self, Done, Item, Options, csv, draw, page, truth};
use polycast_experiments::{Kind, Row};
use serde::Serialize;
use serde_json::json;

use polycast::cancel;
use polycast::commit::COMMIT;
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast::table::Table;

/// `polycast reproduce`
#[derive(Args, Clone, Debug)]
pub(crate) struct ReproduceArgs {
    /// blast, datacast, orca, republic, shufflecast, or all; without one the items are listed
    #[arg(value_name = "PAPER")]
    pub paper: Option<String>,
    /// One figure or table of the paper; without one all of them
    #[arg(value_name = "ITEM")]
    pub item: Option<String>,
    /// Fewer runs and smaller sizes
    #[arg(long)]
    pub quick: bool,
    /// Write a report into this folder: index.html, a page a paper, truth.html with what is shown and what
    /// not, an SVG and a CSV per figure, and all rows as rows.csv; after Ctrl-C with what is done by then
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A line for every figure and table in place of the rows: kind, the paper's number, ours, their ratio,
    /// and why they differ
    #[arg(long)]
    pub table: bool,
    /// All that is drawn by lot follows from it
    #[arg(long, value_name = "S", default_value = "1")]
    pub seed: u64,
}

/// Lists the items, or computes those that were asked for.
pub(crate) fn run(args: &ReproduceArgs, format: Format) -> Result<Exit, Failure> {
    let mut items = catalogue::select(args.paper.as_deref(), args.item.as_deref())
        .map_err(|error| Failure::input(error.to_string()))?;
    labs::give_labs(&mut items);
    if args.paper.is_none() && !args.quick && !args.table && args.out.is_none() {
        return list(&items, format);
    }
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder).map_err(|error| Failure::path("create", folder, &error))?;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options { quick: args.quick, seed: args.seed, threads };
    let cancel = cancel::on_signals()?;
    let told = |done: &Done| {
        let took = polycast::report::seconds(done.seconds);
        output::say(&format!("{} {}: {took}", done.item.paper, done.item.name));
    };
    let done = report::run(&items, &options, told, || cancel.load(Ordering::Relaxed));
    let is_done =
        |item: &&Item| done.iter().any(|done| (done.item.paper, done.item.name) == (item.paper, item.name));
    let missing: Vec<Item> = items.iter().filter(|item| !is_done(item)).copied().collect();
    if let Some(folder) = &args.out {
        write_report(folder, &done, &missing, &options)?;
        output::say(&format!("the report is {}", folder.join("index.html").display()));
    }
    if args.table {
        let wanted =
            |entry: &Entry| args.paper.as_deref().is_none_or(|paper| paper == "all" || paper == entry.paper);
        let entries: Vec<Entry> = figures::table(&done).into_iter().filter(wanted).collect();
        output::verbatim(format, &entries, &table_text(&entries))?;
    } else {
        output::result(format, &documents(&done), &text(&done))?;
    }
    let mut exit = Exit::Done;
    if !missing.is_empty() {
        let count = items.len();
        output::say(&format!("error: ended when {} of {count} items were done", done.len()));
        exit = Exit::Failed;
    }
    for Done { item, outcome, .. } in &done {
        if let Err(error) = outcome {
            output::say(&format!("error: {} {}: {error}", item.paper, item.name));
            exit = Exit::Unexpected;
        }
    }
    Ok(exit)
}

/// A row with what its item says of it.
#[derive(Serialize)]
struct Judged<'a> {
    #[serde(flatten)]
    row: &'a Row,
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<bool>,
}

fn documents(done: &[Done]) -> Vec<Judged<'_>> {
    let outcomes = done.iter().filter_map(|done| done.outcome.as_ref().ok());
    outcomes.flat_map(|outcome| &outcome.rows).map(|row| Judged { row, within: row.is_within() }).collect()
}

/// By what the numbers were made. The machine has no name here, so that the page can be shown to others.
fn about() -> Vec<(&'static str, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let processor = model.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_string();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let system = format!("{} {}", std::env::consts::OS, read("/proc/sys/kernel/osrelease").trim());
    let arguments = std::env::args().skip(1);
    let command = arguments.fold("polycast".to_string(), |command, argument| command + " " + &argument);
    vec![
        ("version", format!("polycast {}, {}", env!("CARGO_PKG_VERSION"), built_from())),
        ("date", now()),
        ("processor", processor),
        ("cores", cores.to_string()),
        ("kernel", system),
        ("command", command),
    ]
}

/// Source of this program, as far as it knows it.
fn built_from() -> String {
    COMMIT.map_or_else(|| "built without a commit's name".to_string(), |commit| format!("commit {commit}"))
}

/// The time in UTC.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = date_of(seconds / 86_400);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3_600 % 24, seconds / 60 % 60)
}

/// Year, month and day so many days after the first of January 1970. Years begin in March here, so that the
/// day that comes every four years is their last.
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

fn list(items: &[Item], format: Format) -> Result<Exit, Failure> {
    let documents: Vec<_> = items
        .iter()
        .map(|item| json!({ "paper": item.paper, "item": item.name, "title": item.title }))
        .collect();
    let width = items.iter().map(|item| item.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (paper, items) in papers() {
        let _ = writeln!(text, "{paper}");
        for item in items {
            let _ = writeln!(text, "  {:width$}  {}", item.name, item.title);
        }
    }
    text.push_str("\nRun them with `polycast reproduce PAPER [ITEM]`, or all with `polycast reproduce all`.");
    output::result(format, &documents, &text)?;
    Ok(Exit::Done)
}

/// The table of all figures in Markdown, as docs/reproduce.md has it.
fn table_text(entries: &[Entry]) -> String {
    let mut text =
        "| figure | what stands for it | kind | paper | ours | ours / paper | where they differ, why |\n"
            .to_string();
    text.push_str("| --- | --- | --- | ---: | ---: | ---: | --- |\n");
    let value = |number_of: Option<f64>, unit: &str| {
        number_of.map_or_else(String::new, |value| format!("{} {unit}", number(value)).trim_end().to_string())
    };
    for entry in entries {
        let _ = writeln!(
            text,
            "| {} {} | {} | {} | {} | {} | {} | {} |",
            entry.paper,
            entry.figure,
            entry.name,
            entry.kind.map_or("", Kind::word),
            value(entry.printed, &entry.unit),
            value(entry.ours, &entry.unit),
            value(entry.ratio, ""),
            entry.reason
        );
    }
    text
}

/// The rows as a table for each item.
fn text(done: &[Done]) -> String {
    let mut text = String::new();
    for Done { item, outcome, .. } in done {
        let Ok(outcome) = outcome else { continue };
        let _ = writeln!(text, "{} {}: {}", item.paper, item.name, item.title);
        let mut table = Table::new(&[">paper", ">ours", "", ">off by", "of"]);
        for row in &outcome.rows {
            let kind = row.kind.map_or("", Kind::word).to_string();
            let words = [page::verdict(row), kind, row.place.clone(), row.note.clone()];
            let words: Vec<String> = words.into_iter().filter(|words| !words.is_empty()).collect();
            let name = if words.is_empty() { row.name.clone() } else { format!("{}:", row.name) };
            table.row([
                row.paper.map_or_else(|| "-".into(), number),
                page::ours(row),
                row.unit.to_string(),
                deviation(row).unwrap_or_default(),
                format!("{name} {}", words.join("; ")).trim_end().to_string(),
            ]);
        }
        if !table.is_empty() {
            text += &table.text();
        }
        for note in &outcome.notes {
            let _ = writeln!(text, "  {note}");
        }
        text.push('\n');
    }
    text
}

/// Writes the figures and the page; each file is there whole or not at all.
fn write_report(folder: &Path, done: &[Done], missing: &[Item], options: &Options) -> Result<(), Failure> {
    let draws_wrong = |error: draw::DrawError| Failure::unexpected(error.to_string());
    for Done { item, outcome, .. } in done {
        for figure in outcome.iter().flat_map(|outcome| &outcome.figures) {
            let name = format!("{}-{}", item.paper, figure.name);
            write_whole(&folder.join(format!("{name}.svg")), &draw::svg(figure).map_err(draws_wrong)?)?;
            write_whole(&folder.join(format!("{name}.csv")), &csv::figure(figure))?;
        }
    }
    write_whole(&folder.join("rows.csv"), &csv::rows(done))?;
    let about = about();
    for of_paper in page::by_paper(done) {
        let page = page::paper(of_paper, missing, options, &about).map_err(draws_wrong)?;
        write_whole(&folder.join(format!("{}.html", of_paper[0].item.paper)), &page)?;
    }
    write_whole(&folder.join("truth.html"), &truth::truth(done, missing, options, &about))?;
    write_whole(&folder.join("index.html"), &page::index(done, missing, options, &about))
}

fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    let wrong = |error: std::io::Error| Failure::path("write", path, &error);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(wrong)?;
    file.write_all(text.as_bytes()).map_err(wrong)?;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(wrong)?;
    file.persist(path).map_err(|error| wrong(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_453, (2025, 12, 31)),
            (20_454, (2026, 1, 1)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date_of(days), date, "{days}");
        }
    }
}
