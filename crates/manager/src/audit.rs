//! The audit log: what a manager has allowed and refused, a line of JSON each, and each with the hash of the line before.
//!
//! A line that is changed, removed or added in the middle breaks the chain. A user who can write the file can write all of it anew:
//! to notice that too, keep the hash of the last line, which [`verify`] gives, somewhere else.
//!
//! Lines that come together are written and synced at once, before the next ones; the manager does not wait for that. So a
//! machine that loses its power loses the lines of the last moment, and a manager that dies those that waited. What is cut off in
//! the middle of a line is removed at the next start, which says so.

mod check;

pub use check::{Broken, Verified, verify};

use polycast_net::hash::{bytes_hash, hex};
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

/// Lines that may wait to be written. What comes when more do is lost, and counted.
const LINES_MAX: usize = 65_536;
/// Lines that are written at once.
const BATCH_MAX: usize = 1_024;
/// The longest line: what names more is cut before.
pub const LINE_LEN_MAX: usize = 64 << 10;
/// Stands before the first line of all.
const BEGINNING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Where it is, and how much of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// The file; full ones are beside it, with `.1`, `.2` and so on behind their name.
    pub path: PathBuf,
    /// A file is full when the next line would make it longer.
    pub bytes_max: u64,
    /// How many full ones are kept.
    pub kept: usize,
}

/// What is to be written.
#[derive(Debug)]
struct Entry {
    what: &'static str,
    at_unix_ms: u64,
    fields: Map<String, Value>,
}

/// An audit log that is being written.
#[derive(Debug)]
pub struct AuditLog {
    lines: Mutex<Option<mpsc::SyncSender<Entry>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    lost: std::sync::Arc<AtomicU64>,
}

impl AuditLog {
    /// Goes on with the log in this place, or begins one.
    ///
    /// # Errors
    /// It cannot be written, another process writes it, or what is there is none.
    pub fn open(settings: AuditSettings) -> io::Result<Self> {
        let mut book = Book::open(settings)?;
        let (lines, entries) = mpsc::sync_channel::<Entry>(LINES_MAX);
        let lost = std::sync::Arc::new(AtomicU64::new(0));
        let lost_lines = std::sync::Arc::clone(&lost);
        let writer = std::thread::Builder::new().name("audit".into()).spawn(move || {
            while let Ok(first) = entries.recv() {
                let mut batch = vec![first];
                batch.extend(entries.try_iter().take(BATCH_MAX - 1));
                let lost = lost_lines.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    batch.insert(0, entry("lost", json!({ "lines": lost })));
                }
                let count = batch.len() as u64;
                if let Err(error) = book.write(batch) {
                    tracing::error!(%error, path = %book.settings.path.display(), "the audit log cannot be written");
                    lost_lines.fetch_add(count, Ordering::Relaxed);
                }
            }
        })?;
        Ok(AuditLog { lines: Mutex::new(Some(lines)), writer: Mutex::new(Some(writer)), lost })
    }

    /// Writes down what has happened; `fields` is an object.
    pub fn note(&self, what: &'static str, fields: Value) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = lines.as_ref().is_some_and(|lines| lines.try_send(entry(what, fields)).is_ok());
        if !sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes what waits, and ends.
    pub fn close(&self) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(panic)) = writer.map(JoinHandle::join) {
            tracing::error!(?panic, "the audit log's writer has failed");
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.close();
    }
}

fn entry(what: &'static str, fields: Value) -> Entry {
    let Value::Object(fields) = fields else { unreachable!("what is written down has names") };
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Entry { what, at_unix_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX), fields }
}

/// The files.
#[derive(Debug)]
struct Book {
    settings: AuditSettings,
    file: File,
    len: u64,
    /// The number of the last line, and its hash.
    number: u64,
    before: String,
}

/// The hash of a line, without its end.
fn hash_of(line: &[u8]) -> String {
    hex(&bytes_hash(line))
}

/// The number of a line, and the hash of the one before.
fn chain_of(line: &[u8]) -> Option<(u64, String)> {
    let value: Value = serde_json::from_slice(line).ok()?;
    Some((value["n"].as_u64()?, value["before"].as_str()?.to_string()))
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    file.try_lock().map_err(|error| match error {
        std::fs::TryLockError::WouldBlock => io::Error::other("another process writes it"),
        std::fs::TryLockError::Error(error) => error,
    })?;
    Ok(file)
}

/// The last whole line of a file, and how long it is up to there.
fn last_line(file: &mut File) -> io::Result<(u64, Option<Vec<u8>>)> {
    let len = file.metadata()?.len();
    // What was cut off, a whole line, and the end of the one before.
    let from = len.saturating_sub(2 * LINE_LEN_MAX as u64 + 2);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(len - from).read_to_end(&mut bytes)?;
    let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
        let is_short = len <= LINE_LEN_MAX as u64;
        return if is_short { Ok((0, None)) } else { Err(io::Error::other("it is no audit log")) };
    };
    let begin = bytes[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Ok((from + end as u64 + 1, Some(bytes[begin..end].to_vec())))
}

impl Book {
    fn open(settings: AuditSettings) -> io::Result<Self> {
        let mut file = open(&settings.path)?;
        let was = file.metadata()?.len();
        let (len, mut last) = last_line(&mut file)?;
        if last.is_none()
            && let Ok(mut full) = File::open(full(&settings.path, 1))
        {
            last = last_line(&mut full)?.1;
        }
        let (number, before) = match &last {
            None => (0, BEGINNING.to_string()),
            Some(line) => {
                let (number, _) = chain_of(line).ok_or_else(|| io::Error::other("it is no audit log"))?;
                (number, hash_of(line))
            }
        };
        // Only now: what is none is left as it is.
        file.set_len(len)?;
        let mut book = Book { settings, file, len, number, before };
        if was > len {
            book.write(vec![entry("mended", json!({ "bytes": was - len }))])?;
        }
        Ok(book)
    }

    /// Writes lines, and sees that they are on the disk.
    fn write(&mut self, batch: Vec<Entry>) -> io::Result<()> {
        let (mut text, mut number, mut before) = (Vec::new(), self.number, self.before.clone());
        for Entry { what, at_unix_ms, mut fields } in batch {
            number += 1;
            let line = loop {
                let mut all = fields.clone();
                all.insert("n".into(), json!(number));
                all.insert("at_unix_ms".into(), json!(at_unix_ms));
                all.insert("what".into(), json!(what));
                all.insert("before".into(), json!(before));
                let line = Value::Object(all).to_string().into_bytes();
                if line.len() < LINE_LEN_MAX {
                    break line;
                }
                // Nothing of ours is so long but by what others have said.
                fields = Map::from_iter([("too_long".to_string(), json!(line.len()))]);
            };
            let len = self.len + text.len() as u64;
            if len > 0 && len + line.len() as u64 >= self.settings.bytes_max {
                self.put(&text)?;
                text.clear();
                (self.number, self.before) = (number - 1, before.clone());
                self.turn_over()?;
            }
            before = hash_of(&line);
            text.extend(line);
            text.push(b'\n');
        }
        self.put(&text)?;
        (self.number, self.before) = (number, before);
        Ok(())
    }

    /// Writes text whole or not at all.
    fn put(&mut self, text: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(text).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.len += text.len() as u64,
            // Half a line would break the chain.
            Err(_) => self.file.set_len(self.len)?,
        }
        written
    }

    /// Begins a new file; the oldest goes.
    fn turn_over(&mut self) -> io::Result<()> {
        let path = self.settings.path.clone();
        for number in (1..self.settings.kept).rev() {
            match std::fs::rename(full(&path, number), full(&path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match self.settings.kept {
            0 => std::fs::remove_file(&path)?,
            _ => std::fs::rename(&path, full(&path, 1))?,
        }
        self.file = open(&path)?;
        self.len = 0;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }
}

/// The name of a full file.
fn full(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn settings(folder: &Path, bytes_max: u64, kept: usize) -> AuditSettings {
        AuditSettings { path: folder.join("audit"), bytes_max, kept }
    }

    fn write(settings: &AuditSettings, names: &[&str]) {
        let log = AuditLog::open(settings.clone()).unwrap();
        names.iter().for_each(|name| log.note("joined", json!({ "agent": name })));
        log.close();
    }

    #[test]
    fn the_chain_goes_on_over_starts_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 500, 3);
        write(&settings, &["a", "b"]);
        let good = verify(std::slice::from_ref(&settings.path)).unwrap();
        assert_eq!((good.lines, good.first, good.last, good.is_whole), (2, 1, 2, true));
        let second = AuditLog::open(settings.clone()).unwrap();
        let refused = AuditLog::open(settings.clone()).unwrap_err().to_string();
        assert!(refused.contains("another process writes it"), "{refused}");
        drop(second);
        write(&settings, &["c"; 20]);
        let all = [
            full(&settings.path, 2),
            settings.path.clone(),
            full(&settings.path, 3),
            full(&settings.path, 1),
        ];
        let good = verify(&all).unwrap();
        assert_eq!(good.last, 22);
        assert!(!good.is_whole && good.lines < 22, "the oldest file is gone");
        assert!(!full(&settings.path, 4).exists());
        let lone = verify(&[full(&settings.path, 1)]).unwrap();
        assert!(lone.first > 1 && !lone.is_whole);
        let gap = verify(&[full(&settings.path, 2), settings.path.clone()]).unwrap_err();
        assert!(gap.reason.contains("missing before it"), "{gap}");
    }

    #[test]
    fn what_was_cut_off_is_mended_and_said() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 1 << 20, 3);
        write(&settings, &["a", "b"]);
        let mut text = fs::read(&settings.path).unwrap();
        text.extend(b"{\"n\":3,\"age");
        fs::write(&settings.path, &text).unwrap();
        let broken = verify(std::slice::from_ref(&settings.path)).unwrap_err();
        assert!(broken.line == 3 && broken.reason.contains("cut off"), "{broken}");
        write(&settings, &["c"]);
        assert_eq!(verify(std::slice::from_ref(&settings.path)).unwrap().lines, 4);
        assert!(fs::read_to_string(&settings.path).unwrap().contains("\"what\":\"mended\""));
        // What is none is left alone.
        fs::write(&settings.path, "something else\n").unwrap();
        let refused = AuditLog::open(settings.clone()).unwrap_err().to_string();
        assert!(refused.contains("it is no audit log"), "{refused}");
        assert_eq!(fs::read_to_string(&settings.path).unwrap(), "something else\n");
    }

    /// Whatever is changed in it, a check finds it.
    #[test]
    fn any_change_breaks_the_chain() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 1 << 20, 3);
        write(&settings, &["a", "b", "c", "d"]);
        let text = fs::read_to_string(&settings.path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let check = |lines: &[&str]| {
            fs::write(&settings.path, format!("{}\n", lines.join("\n"))).unwrap();
            verify(std::slice::from_ref(&settings.path))
        };
        let without: Vec<&str> = [lines[0], lines[2], lines[3]].to_vec();
        assert!(check(&without).unwrap_err().reason.contains("line 2 is missing before it"));
        let swapped = [lines[0], lines[2], lines[1], lines[3]];
        assert!(check(&swapped).is_err());
        let other = lines[1].replace("\"b\"", "\"x\"");
        let changed = check(&[lines[0], &other, lines[2], lines[3]]).unwrap_err();
        assert!(changed.line == 3 && changed.reason.contains("line 2 was changed"), "{changed}");
        assert!(check(&[lines[0], "{}", lines[2]]).unwrap_err().reason.contains("no line of an audit log"));
        // What is cut off at the end shows only in the hash of the last line.
        let (whole, shorter) = (check(&lines).unwrap(), check(&lines[..3]).unwrap());
        assert_ne!(whole.last_hash, shorter.last_hash);
    }

    #[test]
    fn a_line_is_never_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 1 << 20, 3);
        write(&settings, &[&"x".repeat(LINE_LEN_MAX), "b"]);
        assert_eq!(verify(std::slice::from_ref(&settings.path)).unwrap().lines, 2);
    }
}
