//! Whether an audit log is as it was written.

use super::{BEGINNING, LINE_LEN_MAX, chain_of, hash_of};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// What a log that is as it was written holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// How many lines.
    pub lines: u64,
    /// The number of the first one, from 1 on,
    pub first: u64,
    /// and of the last one; 0 where there is none.
    pub last: u64,
    /// Whether it begins with the first line that was ever written.
    pub is_whole: bool,
    /// The hash of the last line. Kept elsewhere, it shows also that the end was cut off, or that all was written anew.
    pub last_hash: String,
}

/// The first line that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} line {line}: {reason}", file.display())]
pub struct Broken {
    /// In which file,
    pub file: PathBuf,
    /// and where there, from 1 on; 0 where it cannot be read.
    pub line: u64,
    /// What is wrong.
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

/// The number of a file's first line; files that have none come last.
fn first_number(path: &Path) -> u64 {
    let first = File::open(path).and_then(|file| line_of(&mut BufReader::new(file)));
    let first = first.ok().flatten().and_then(|line| chain_of(line.trim_ascii_end()));
    first.map_or(u64::MAX, |(number, _)| number)
}

/// Checks the files of a log, in whatever order they are named.
///
/// # Errors
/// The first line that is not as it was written.
pub fn verify(files: &[PathBuf]) -> Result<Verified, Broken> {
    let mut files: Vec<&PathBuf> = files.iter().collect();
    files.sort_by_key(|path| first_number(path));
    let mut all = Verified { lines: 0, first: 0, last: 0, is_whole: true, last_hash: BEGINNING.to_string() };
    for path in files {
        lines(path, |_, line| {
            let (number, before) = chain_of(line).ok_or("it is no line of an audit log")?;
            if all.lines == 0 {
                all.first = number;
                all.is_whole = number == 1 && before == BEGINNING;
            } else if number != all.last + 1 {
                return Err(match (all.last + 1, number - 1) {
                    (from, to) if from == to => format!("line {from} is missing before it"),
                    (from, to) if from < to => format!("lines {from} to {to} are missing before it"),
                    _ => format!("its number is {number}, behind number {}", all.last),
                });
            } else if before != all.last_hash {
                return Err(format!(
                    "it does not follow from the one before it: line {} was changed",
                    all.last
                ));
            }
            all.lines += 1;
            (all.last, all.last_hash) = (number, hash_of(line));
            Ok(())
        })?;
    }
    Ok(all)
}
