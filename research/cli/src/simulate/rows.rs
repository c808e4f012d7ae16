//! The runs of a sweep, one row each, written as soon as it is there: a table for people, CSV, and documents.

use super::sweep::{Choice, Sweep};
use super::{Run, SimulateArgs, create, since_start};
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast::report::seconds;
use polycast_types::{Time, format_bytes};
use serde_json::Value;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

/// The columns behind those of the keys. Their widths are given: what later rows hold is not known when the
/// first is written.
const COLUMNS: [(&str, usize); 7] = [
    ("have it", 10),
    ("first", 7),
    ("last", 7),
    ("ideal", 7),
    ("on links", 10),
    ("dropped", 7),
    ("duplicates", 10),
];

/// The rows of a sweep.
pub(super) struct Rows {
    format: Format,
    keys: Vec<String>,
    /// The widths of their columns.
    widths: Vec<usize>,
    is_begun: bool,
    is_seeded: bool,
    csv: Option<(File, PathBuf)>,
    documents: Vec<Value>,
    has_failed: bool,
}

impl Rows {
    /// Begins with the heads of the columns; those of the table come with its first row, as a first run may
    /// be refused.
    pub(super) fn new(args: &SimulateArgs, choices: &[Choice], format: Format) -> Result<Self, Failure> {
        let width = |(at, sweep): (usize, &Sweep)| {
            let values = choices.iter().map(|choice| choice[at].1.chars().count());
            values.chain([sweep.key.chars().count()]).max().unwrap_or(0)
        };
        let path = args.out.as_ref();
        let mut rows = Rows {
            format,
            keys: args.sweep.iter().map(|sweep| sweep.key.clone()).collect(),
            is_begun: false,
            widths: args.sweep.iter().enumerate().map(width).collect(),
            is_seeded: args.sweep.iter().any(|sweep| sweep.key == "seed"),
            csv: path.map(|path| Ok::<_, Failure>((create(path)?, path.clone()))).transpose()?,
            documents: Vec::new(),
            has_failed: false,
        };
        let mut head: String = rows.keys.iter().map(|key| field(key) + ",").collect();
        head += if rows.is_seeded { "" } else { "seed," };
        head += "receivers,have_it,first_s,last_s,bytes_on_links,drops,duplicates,events,trace_hash,wall_s,ideal_s\n";
        rows.write(&head)?;
        Ok(rows)
    }

    /// Writes the row of a run.
    pub(super) fn add(&mut self, choice: &Choice, run: &Run) -> Result<(), Failure> {
        let span = |at: Option<Time>| at.map_or("-".into(), |at| seconds(since_start(at)));
        let (first, last) = run.first_and_last();
        let ideal_s = run.ideals_s.iter().copied().fold(0.0, f64::max);
        let cells = [
            format!("{} of {}", run.done(), run.report.receivers.len()),
            span(first),
            span(last),
            seconds(ideal_s),
            format_bytes(run.report.bytes_on_links),
            run.report.drops.to_string(),
            run.report.duplicates.to_string(),
        ];
        if !self.is_begun {
            self.is_begun = true;
            self.print(self.keys.iter().map(String::as_str), COLUMNS.map(|(head, _)| head.to_string()))?;
        }
        self.print(choice.iter().map(|(_, value)| value.as_str()), cells)?;
        self.write(&self.line(choice, run, ideal_s))?;
        self.has_failed |= run.exit() == Exit::Failed;
        if self.format == Format::Json {
            self.documents.push(run.of(choice));
        }
        Ok(())
    }

    /// Prints the documents, and says how the sweep has ended.
    pub(super) fn end(self) -> Result<Exit, Failure> {
        if self.format == Format::Json {
            output::result(self.format, &self.documents, "")?;
        }
        Ok(if self.has_failed { Exit::Failed } else { Exit::Done })
    }

    /// A line of the table, at once. A reader that has gone away is no failure: it has seen enough.
    fn print<'a>(
        &self,
        keys: impl Iterator<Item = &'a str>,
        cells: [String; COLUMNS.len()],
    ) -> Result<(), Failure> {
        if self.format == Format::Json {
            return Ok(());
        }
        let keys = keys.zip(&self.widths).map(|(key, width)| format!("{key:width$}  "));
        let cells = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}"));
        let line = keys.collect::<String>() + &cells.collect::<Vec<_>>().join("  ");
        let mut stdout = io::stdout().lock();
        match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::unexpected(format!("cannot write the result: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// A line of the CSV file, at once.
    fn write(&mut self, line: &str) -> Result<(), Failure> {
        let Some((file, path)) = &mut self.csv else { return Ok(()) };
        file.write_all(line.as_bytes()).map_err(|error| Failure::path("write", path, &error))
    }

    fn line(&self, choice: &Choice, run: &Run, ideal_s: f64) -> String {
        let (report, (first, last)) = (&run.report, run.first_and_last());
        let span = |at: Option<Time>| at.map_or(String::new(), |at| since_start(at).to_string());
        let mut line: String = choice.iter().map(|(_, value)| field(value) + ",").collect();
        if !self.is_seeded {
            line += &format!("{},", run.seed);
        }
        line + &format!(
            "{},{},{},{},{},{},{},{},{:016x},{},{ideal_s}\n",
            report.receivers.len(),
            run.done(),
            span(first),
            span(last),
            report.bytes_on_links,
            report.drops,
            report.duplicates,
            report.events,
            report.trace_hash,
            run.wall_s,
        )
    }
}

/// A field of CSV.
fn field(text: &str) -> String {
    let is_plain = !text.contains(['"', ',', '\n']);
    if is_plain { text.to_string() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}
