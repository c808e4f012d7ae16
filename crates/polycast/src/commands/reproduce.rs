//! `polycast reproduce`: the papers' figures and tables, ours beside theirs.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use polycast_experiments::Row;
use polycast_experiments::catalogue::{self, papers};
use polycast_experiments::report::page::{deviation, number};
use polycast_experiments::report::{self, Done, Item, Options, draw, page};
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::output::{self, Format};

/// `polycast reproduce`
#[derive(Args, Clone, Debug)]
pub struct ReproduceArgs {
    /// blast, datacast, orca, republic, shufflecast, or all; without one the items are listed
    #[arg(value_name = "PAPER")]
    pub paper: Option<String>,
    /// One figure or table of the paper; without one all of them
    #[arg(value_name = "ITEM")]
    pub item: Option<String>,
    /// Fewer runs and smaller sizes
    #[arg(long)]
    pub quick: bool,
    /// Write an SVG per figure and a report page, index.html, into this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// All that is drawn by lot follows from it
    #[arg(long, value_name = "S", default_value = "1")]
    pub seed: u64,
}

/// Lists the items, or computes those that were asked for.
pub fn run(args: &ReproduceArgs, format: Format) -> Result<Exit, Failure> {
    let items = catalogue::select(args.paper.as_deref(), args.item.as_deref())
        .map_err(|error| Failure::input(error.to_string()))?;
    if args.paper.is_none() && !args.quick && args.out.is_none() {
        return list(&items, format);
    }
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder).map_err(|error| Failure::path("create", folder, &error))?;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options { quick: args.quick, seed: args.seed, threads };
    let done = report::run(&items, &options, |done| {
        output::say(&format!("{} {}: {:.1} s", done.item.paper, done.item.name, done.seconds));
    });
    let rows: Vec<&Row> =
        done.iter().filter_map(|done| done.outcome.as_ref().ok()).flat_map(|outcome| &outcome.rows).collect();
    output::result(format, &rows, &text(&done))?;
    if let Some(folder) = &args.out {
        write_report(folder, &done, &options)?;
    }
    let mut exit = Exit::Done;
    for Done { item, outcome, .. } in &done {
        if let Err(error) = outcome {
            output::say(&format!("error: {} {}: {error}", item.paper, item.name));
            exit = Exit::Unexpected;
        }
    }
    Ok(exit)
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

/// The rows as a table for each item.
fn text(done: &[Done]) -> String {
    let mut text = String::new();
    for Done { item, outcome, .. } in done {
        let Ok(outcome) = outcome else { continue };
        let _ = writeln!(text, "{} {}: {}", item.paper, item.name, item.title);
        let width = outcome.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).min(72);
        if !outcome.rows.is_empty() {
            let _ = writeln!(text, "  {:width$}  {:>10}  {:>10}", "", "paper", "ours");
        }
        for row in &outcome.rows {
            let paper = row.paper.map_or_else(|| "-".into(), number);
            let deviation = deviation(row).unwrap_or_default();
            let line = format!(
                "  {:width$}  {paper:>10}  {:>10} {:8} {deviation:>9}  {}",
                row.name,
                number(row.ours),
                row.unit,
                row.note
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for note in &outcome.notes {
            let _ = writeln!(text, "  {note}");
        }
        text.push('\n');
    }
    text
}

/// Writes the figures and the page; each file is there whole or not at all.
fn write_report(folder: &Path, done: &[Done], options: &Options) -> Result<(), Failure> {
    let draws_wrong = |error: draw::DrawError| Failure::unexpected(error.to_string());
    for Done { item, outcome, .. } in done {
        for figure in outcome.iter().flat_map(|outcome| &outcome.figures) {
            let name = format!("{}-{}.svg", item.paper, figure.name);
            write_whole(&folder.join(name), &draw::svg(figure).map_err(draws_wrong)?)?;
        }
    }
    write_whole(&folder.join("index.html"), &page::html(done, options).map_err(draws_wrong)?)
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
