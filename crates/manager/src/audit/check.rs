//! Checks whether an audit log is still as it was written.

use super::chain::{BEGINNING, LINE_LEN_MAX, chain_of, full, hash_of};
use super::head::{self, Head};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// So many full files of a log are looked for.
const FULL_MAX: usize = 1_000;

/// Contents of a log that is as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Number of lines.
    pub lines: u64,
    /// Number of the first line, from 1 on.
    pub first: u64,
    /// Number of the last line; 0 where there is none.
    pub last: u64,
    /// True if the log begins with the first line that was ever written.
    pub is_whole: bool,
    /// The hash of the last line. Kept elsewhere, it shows also that all was written anew.
    pub last_hash: String,
    /// Last signed head of the log; `None` if there is none beside it.
    pub head: Option<Head>,
}

/// The first line that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} line {line}: {reason}", file.display())]
pub struct Broken {
    /// File with the line.
    pub file: PathBuf,
    /// Number of the line, from 1 on; 0 where the file cannot be read.
    pub line: u64,
    /// Reason why the line is wrong.
    pub reason: String,
}

/// A line, or that the file has ended.
fn line_of(file: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    file.take(LINE_LEN_MAX as u64 + 1).read_until(b'\n', &mut line)?;
    Ok((!line.is_empty()).then_some(line))
}

/// Reads the lines of a file, one after the other.
fn lines(path: &Path, mut each: impl FnMut(u64, &[u8]) -> Result<(), String>) -> Result<(), Broken> {
    let broken = |line, reason: String| Broken { file: path.to_path_buf(), line, reason };
    let unread = |error: io::Error| broken(0, format!("it cannot be read: {error}"));
    let mut file = BufReader::new(File::open(path).map_err(unread)?);
    let mut number = 0;
    while let Some(line) = line_of(&mut file).map_err(unread)? {
        number += 1;
        let Some(line) = line.strip_suffix(b"\n") else {
            let reason = if line.len() > LINE_LEN_MAX {
                "it is longer than any line of an audit log".to_string()
            } else {
                "it is cut off: the manager was ended while it wrote it, and mends that at its next start"
                    .to_string()
            };
            return Err(broken(number, reason));
        };
        each(number, line).map_err(|reason| broken(number, reason))?;
    }
    Ok(())
}

/// The number of a file's first line, if it has one.
pub(super) fn first_number(path: &Path) -> Option<u64> {
    let first = File::open(path).and_then(|file| line_of(&mut BufReader::new(file)));
    let first = first.ok().flatten().and_then(|line| chain_of(line.trim_ascii_end()));
    first.map(|(number, _)| number)
}

/// A log to which files belong, and what was signed of it.
struct Signed {
    log: PathBuf,
    head: Option<Head>,
}

impl Signed {
    /// Reads the head beside the youngest of these files; with `key`, the head must exist and be signed with
    /// that key.
    fn of(files: &[&PathBuf], key: Option<&str>) -> Result<Self, Broken> {
        let logs = files.iter().rev().map(|path| match head::head_of(path).exists() {
            true => path.to_path_buf(),
            false => head::log_of(path),
        });
        let logs: Vec<PathBuf> = logs.collect();
        let signed = logs.iter().find(|log| head::head_of(log).exists());
        let log = signed.or(logs.first()).cloned().unwrap_or_default();
        let broken = |reason: String| Broken { file: head::head_of(&log), line: 1, reason };
        let head = Head::read(&log).map_err(broken)?;
        match (key, &head) {
            (Some(key), Some(head)) if !head.key.eq_ignore_ascii_case(key) => {
                Err(broken(format!("it is signed with another key, {}", head.key)))
            }
            (Some(_), None) => Err(broken("there is none, so that nothing shows where the log ended".into())),
            _ => Ok(Signed { log, head }),
        }
    }

    /// Checks that a line with the number of the last signed line also has its hash.
    fn check_line(&self, number: u64, hash: &str) -> Result<(), String> {
        match &self.head {
            Some(head) if head.last == number && head.hash != hash => {
                Err("it is not the line that the manager has signed: it was changed".into())
            }
            _ => Ok(()),
        }
    }

    /// Checks that no lines are missing behind the last of these files.
    fn check_end(&self, files: &[&PathBuf], all: &Verified) -> Result<(), String> {
        match &self.head {
            Some(head) if head.last > all.last && files.contains(&&self.log) => {
                Err(format!("{} at its end", are_missing(all.last.saturating_add(1), head.last)))
            }
            _ => Ok(()),
        }
    }

    /// Checks that no lines are missing before the first of these files. Existing files that were not named
    /// may have them.
    fn check_beginning(&self, files: &[&PathBuf], all: &Verified) -> Result<(), String> {
        let mut fulls = (1..=FULL_MAX).map(|number| full(&self.log, number)).filter(|path| path.exists());
        let has_all = files.contains(&&self.log) && fulls.all(|path| files.contains(&&path));
        match &self.head {
            Some(head) if has_all && all.lines > 0 && all.first > head.first => {
                let missing = are_missing(head.first, all.first - 1);
                Err(format!("{missing} before it: name the files that have them, if they were moved"))
            }
            _ => Ok(()),
        }
    }
}

/// Names the missing lines, as the beginning of a sentence.
fn are_missing(from: u64, to: u64) -> String {
    if from == to { format!("line {from} is missing") } else { format!("lines {from} to {to} are missing") }
}

/// Checks the files of a log, in whatever order they are named, and whether all lines are there that were
/// signed; with `key` they have to be signed with that one.
///
/// # Errors
/// The first line that is not as it was written.
pub fn verify(files: &[PathBuf], key: Option<&str>) -> Result<Verified, Broken> {
    let mut files: Vec<&PathBuf> = files.iter().filter(|path| !head::is_beside(path)).collect();
    // Files that have no line come last.
    files.sort_by_key(|path| first_number(path).unwrap_or(u64::MAX));
    // Before the lines are read: a manager that runs writes more.
    let signed = Signed::of(&files, key)?;
    let mut all = Verified {
        lines: 0,
        first: 0,
        last: 0,
        is_whole: true,
        last_hash: BEGINNING.to_string(),
        head: signed.head.clone(),
    };
    let mut at = 0;
    for path in &files {
        at = 0;
        lines(path, |line_number, line| {
            at = line_number;
            follow(&mut all, line)?;
            signed.check_line(all.last, &all.last_hash)
        })?;
    }
    let broken = |path: Option<&&PathBuf>, line, reason| {
        let file = path.map_or_else(PathBuf::new, |path| path.to_path_buf());
        Broken { file, line, reason }
    };
    signed.check_end(&files, &all).map_err(|reason| broken(files.last(), at + 1, reason))?;
    signed.check_beginning(&files, &all).map_err(|reason| broken(files.first(), 1, reason))?;
    Ok(all)
}

/// Takes the next line of the chain, or says what is wrong with it.
fn follow(all: &mut Verified, line: &[u8]) -> Result<(), String> {
    let (number, before) = chain_of(line).ok_or("it is no line of an audit log")?;
    if all.lines == 0 {
        all.first = number;
        all.is_whole = number == 1 && before == BEGINNING;
    } else if number != all.last.saturating_add(1) {
        return Err(match (all.last.saturating_add(1), number.saturating_sub(1)) {
            (from, to) if from <= to => format!("{} before it", are_missing(from, to)),
            _ => format!("its number is {number}, behind number {}", all.last),
        });
    } else if before != all.last_hash {
        return Err(format!("it does not follow from the one before it: line {} was changed", all.last));
    }
    all.lines += 1;
    (all.last, all.last_hash) = (number, hash_of(line));
    Ok(())
}
