//! The audit log: what a manager has allowed and refused, a line of JSON each, and each with the hash of the
//! line before.
//!
//! A line that is changed, removed or added in the middle breaks the chain. How far the log goes is written
//! beside it every minute, and signed ([`Head`]): so lines that are missing at its end, or before its first
//! one, are noticed too. A user who can read the key can write all of it anew: to notice that, keep the head,
//! which [`verify`] gives, somewhere else.
//!
//! Refusals have a log of their own: a host that is refused again and again pushes out nothing that was
//! allowed.
//!
//! Lines that come together are written and synced at once, before the next ones; the manager does not wait
//! for that. So a machine that loses its power loses the lines of the last moment, and a manager that dies
//! those that waited. What is cut off in the middle of a line is removed at the next start, which says so.

mod chain;
mod check;
mod head;

pub use chain::LINE_LEN_MAX;
pub use check::{Broken, Verified, verify};
pub use head::Head;

use chain::{BEGINNING, chain_of, full, hash_of};
use check::first_number;
use head::key_of;
use polycast_net::audit_key::AuditKey;
use polycast_net::seal::Secret;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Lines that may wait to be written. What comes when more do is lost, and counted.
const LINES_MAX: usize = 65_536;
/// Lines that are written at once.
const BATCH_MAX: usize = 1_024;
/// Interval at which the head of the log is written: cut-off lines are noticed if they are older.
const HEAD_EVERY: Duration = Duration::from_secs(60);
/// Begins the name of the log with what was refused.
const REFUSALS: &str = "refusals-";

/// Location of the audit log, and how much of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// The file; full ones are beside it, with `.1`, `.2` and so on behind their name.
    pub path: PathBuf,
    /// A file is full when the next line would make it longer.
    pub bytes_max: u64,
    /// Number of full files that are kept.
    pub kept: usize,
    /// The file with the key that signs how far the log goes; made where there is none.
    pub key: PathBuf,
}

impl AuditSettings {
    /// A log in this file, with its key beside it.
    #[must_use]
    pub fn new(path: PathBuf, bytes_max: u64, kept: usize) -> Self {
        let key = key_of(&path);
        AuditSettings { path, bytes_max, kept, key }
    }

    /// The log beside it, of what was refused. It has the same key, and as much room again.
    #[must_use]
    pub fn refusals(&self) -> Self {
        let mut name = OsString::from(REFUSALS);
        name.push(self.path.file_name().unwrap_or_default());
        AuditSettings { path: self.path.with_file_name(name), ..self.clone() }
    }
}

/// The two logs of a manager: what it has allowed, and what it has refused.
#[derive(Debug)]
pub struct AuditLogs {
    allowed: AuditLog,
    refused: AuditLog,
}

impl AuditLogs {
    /// Goes on with the logs in this place, or begins them.
    ///
    /// # Errors
    /// As [`AuditLog::open`]; the file is named.
    pub fn open(settings: AuditSettings) -> io::Result<Self> {
        let open = |settings: AuditSettings| {
            let path = settings.path.clone();
            let named =
                |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            AuditLog::open(settings).map_err(named)
        };
        let refusals = settings.refusals();
        Ok(AuditLogs { allowed: open(settings)?, refused: open(refusals)? })
    }

    /// Writes down what was allowed, or has happened; `fields` is an object.
    pub fn note(&self, what: &'static str, fields: Value) {
        self.allowed.note(what, fields);
    }

    /// Writes down what was refused; `fields` is an object.
    pub fn refuse(&self, what: &'static str, fields: Value) {
        self.refused.note(what, fields);
    }

    /// Writes what waits, and ends.
    pub fn close(&self) {
        self.allowed.close();
        self.refused.close();
    }
}

/// Entry that is to be written to the log.
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
            loop {
                match entries.recv_timeout(book.head_in()) {
                    Ok(first) => book.write_waiting(first, &entries, &lost_lines),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
                if book.head_in().is_zero() {
                    book.sign();
                }
            }
            book.sign();
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
    Entry { what, at_unix_ms: now_unix_ms(), fields }
}

fn now_unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The files.
#[derive(Debug)]
struct Book {
    settings: AuditSettings,
    file: File,
    len: u64,
    /// True if the full file was moved, and the next one could not be begun.
    is_moved: bool,
    /// The number of the last line, and its hash.
    number: u64,
    before: String,
    key: AuditKey,
    /// The number of the oldest line that is kept.
    first: u64,
    /// Time when the head of the log was last written.
    head_at: Option<Instant>,
}

/// Another process may write it: one that this one has just begun has the file open until its program runs.
impl Drop for Book {
    fn drop(&mut self) {
        // Where there was no lock there is nothing to give up.
        let _ = self.file.unlock();
    }
}

/// The key in this file; a new one where there is none.
fn key_in(path: &Path) -> io::Result<AuditKey> {
    if !path.exists() {
        Secret::fresh().write_new(path)?;
    }
    let seed = Secret::read(path).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(AuditKey::new(&seed))
}

/// Returns the last written head of the log, if it was signed with this key.
fn own_head(path: &Path, key: &AuditKey) -> Option<Head> {
    let read = Head::read(path).unwrap_or_else(|reason| {
        tracing::error!(path = %path.display(), "the head of the audit log says nothing: {reason}");
        None
    });
    read.filter(|head| head.key == key.public())
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
        let (mut number, mut before) = match &last {
            None => (0, BEGINNING.to_string()),
            Some(line) => {
                let (number, _) = chain_of(line).ok_or_else(|| io::Error::other("it is no audit log"))?;
                (number, hash_of(line))
            }
        };
        // Only now: what is none is left as it is.
        file.set_len(len)?;
        let key = key_in(&settings.key)?;
        let head = own_head(&settings.path, &key);
        let first = head.as_ref().map_or_else(|| oldest(&settings, number + 1), |head| head.first);
        if let Some(head) = head
            && (head.last > number || head.last == number && head.hash != before)
        {
            tracing::error!(path = %settings.path.display(), ends = number, ended = head.last,
                "lines of the audit log are gone, or were written anew");
            // The gap is to be seen ever after.
            (number, before) = (head.last, head.hash);
        }
        let (is_moved, head_at) = (false, None);
        let mut book = Book { settings, file, len, is_moved, number, before, key, first, head_at };
        if was > len {
            book.write(vec![entry("mended", json!({ "bytes": was - len }))])?;
        }
        Ok(book)
    }

    /// Returns the time until the head is to be written again.
    fn head_in(&self) -> Duration {
        match self.head_at {
            Some(at) => HEAD_EVERY.saturating_sub(at.elapsed()),
            None if self.number == 0 => HEAD_EVERY,
            None => Duration::ZERO,
        }
    }

    /// Writes how far it goes.
    fn sign(&mut self) {
        self.head_at = Some(Instant::now());
        if self.number == 0 {
            return;
        }
        let (path, ends) = (&self.settings.path, (self.first, self.number));
        let head = Head::signed(&self.key, path, ends, &self.before, now_unix_ms());
        if let Err(error) = head.write(path) {
            tracing::error!(%error, path = %path.display(), "how far the audit log goes cannot be written");
        }
    }

    /// Writes a line, and those that wait behind it; counts what cannot be written.
    fn write_waiting(&mut self, first: Entry, entries: &mpsc::Receiver<Entry>, lost_lines: &AtomicU64) {
        let mut batch = vec![first];
        batch.extend(entries.try_iter().take(BATCH_MAX - 1));
        let (count, last) = (batch.len() as u64, self.number);
        let lost = lost_lines.swap(0, Ordering::Relaxed);
        if lost > 0 {
            batch.insert(0, entry("lost", json!({ "lines": lost })));
        }
        if let Err(error) = self.write(batch) {
            tracing::error!(%error, path = %self.settings.path.display(), "the audit log cannot be written");
            // The line about what was lost before is the first of them.
            let unwritten = match self.number - last {
                0 => lost + count,
                written => u64::from(lost > 0) + count - written,
            };
            lost_lines.fetch_add(unwritten, Ordering::Relaxed);
        }
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

    /// The number of the oldest line that is kept when a new file has begun.
    fn first_then(&self) -> u64 {
        let path = &self.settings.path;
        let oldest = match self.settings.kept {
            0 => return self.number + 1,
            _ if self.free_place().is_some() => return self.first,
            1 => path.clone(),
            kept => full(path, kept - 1),
        };
        first_number(&oldest).unwrap_or(self.first)
    }

    /// The first of the full files' places in which there is none; `None` where the oldest has to go.
    fn free_place(&self) -> Option<usize> {
        (1..=self.settings.kept).find(|number| !full(&self.settings.path, *number).exists())
    }

    /// Begins a new file; the oldest goes. May fail at any step: the next try goes on from there, and costs
    /// no full file more.
    fn turn_over(&mut self) -> io::Result<()> {
        let path = self.settings.path.clone();
        // Another program may have moved it. Anything else in its place is not ours to move.
        if !self.is_moved && std::fs::symlink_metadata(&path).is_ok_and(|there| there.is_file()) {
            self.move_full(&path)?;
        }
        self.is_moved = true;
        self.file = open(&path)?;
        (self.len, self.is_moved) = (0, false);
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }

    /// Moves the full file to those that are kept, or removes it.
    fn move_full(&mut self, path: &Path) -> io::Result<()> {
        // First, so that the lines of the oldest are not missed.
        self.first = self.first_then();
        self.sign();
        let kept = self.settings.kept;
        for number in (1..self.free_place().unwrap_or(kept)).rev() {
            std::fs::rename(full(path, number), full(path, number + 1))?;
        }
        match kept {
            0 => std::fs::remove_file(path),
            _ => std::fs::rename(path, full(path, 1)),
        }
    }
}

/// The number of the oldest line that is there; `next` where there is none.
fn oldest(settings: &AuditSettings, next: u64) -> u64 {
    let fulls = (1..=settings.kept).rev().map(|number| full(&settings.path, number));
    fulls.chain([settings.path.clone()]).find_map(|path| first_number(&path)).unwrap_or(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn settings(folder: &Path, bytes_max: u64, kept: usize) -> AuditSettings {
        AuditSettings::new(folder.join("audit"), bytes_max, kept)
    }

    fn verify(files: &[PathBuf]) -> Result<Verified, Broken> {
        super::verify(files, None)
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
        // What is cut off at the end shows in what was signed, and so does another last line.
        check(&lines).unwrap();
        assert!(check(&lines[..3]).unwrap_err().reason.contains("line 4 is missing at its end"));
        let last = lines[3].replace("\"d\"", "\"x\"");
        let changed = check(&[lines[0], lines[1], lines[2], &last]).unwrap_err();
        assert!(changed.line == 4 && changed.reason.contains("it was changed"), "{changed}");
    }

    /// Lines that are gone at either end are missed, also when the log has gone on since then.
    #[test]
    fn a_missing_beginning_or_end_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        // Two lines are in a file.
        let settings = settings(folder.path(), 300, 3);
        write(&settings, &["a"; 5]);
        let (oldest, path) = (full(&settings.path, 2), settings.path.clone());
        let all = [oldest.clone(), full(&settings.path, 1), path.clone()];
        assert_eq!(verify(&all).unwrap().last, 5);
        let text = fs::read(&oldest).unwrap();
        fs::remove_file(&oldest).unwrap();
        let beginning = verify(&all[1..]).unwrap_err();
        assert!(beginning.line == 1 && beginning.reason.contains("lines 1 to 2 are missing"), "{beginning}");
        // Files that are there and were not named may have them.
        assert!(!verify(std::slice::from_ref(&path)).unwrap().is_whole);
        fs::write(&oldest, text).unwrap();
        fs::write(&path, "").unwrap();
        let end = verify(&all).unwrap_err();
        assert!(end.file == path && end.reason.contains("line 5 is missing at its end"), "{end}");
        write(&settings, &["b"]);
        let gap = verify(&all).unwrap_err();
        assert!(gap.reason.contains("line 5 is missing before it"), "{gap}");
    }

    #[test]
    fn what_is_signed_is_of_one_key_and_one_log() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 1 << 20, 3);
        write(&settings, &["a", "b"]);
        write(&settings.refusals(), &["c"]);
        let files = [settings.path.clone(), head::head_of(&settings.path), settings.key.clone()];
        let head = verify(&files).unwrap().head.expect("it was signed at the end");
        assert_eq!((head.first, head.last), (1, 2));
        let with = |key: &str| super::verify(&files, Some(key));
        assert_eq!(with(&head.key).unwrap().lines, 2);
        assert!(with(BEGINNING).unwrap_err().reason.contains("signed with another key"));
        let text = fs::read_to_string(&files[1]).unwrap();
        fs::write(&files[1], text.replace("\"last\":2", "\"last\":1")).unwrap();
        assert!(verify(&files).unwrap_err().reason.contains("its signature is wrong"));
        fs::copy(head::head_of(&settings.refusals().path), &files[1]).unwrap();
        assert!(verify(&files).unwrap_err().reason.contains("of another log, refusals-audit"));
        fs::remove_file(&files[1]).unwrap();
        assert_eq!(verify(&files).unwrap().head, None);
        assert!(with(&head.key).unwrap_err().reason.contains("there is none"));
    }

    fn joined(name: &str) -> Entry {
        entry("joined", json!({ "agent": name }))
    }

    /// A full file that was moved is not moved again, as often as the next one cannot be begun.
    #[test]
    fn a_file_that_cannot_be_begun_costs_no_full_one() {
        for kept in [0, 3] {
            let folder = tempfile::tempdir().unwrap();
            // A line is in a file.
            let settings = settings(folder.path(), 1, kept);
            let mut book = Book::open(settings.clone()).unwrap();
            book.write(["a", "b", "c", "d"].map(joined).into()).unwrap();
            // A turn-over comes so far where the folder takes no new file.
            let path = settings.path.clone();
            (1..kept).rev().for_each(|at| fs::rename(full(&path, at), full(&path, at + 1)).unwrap());
            match kept {
                0 => fs::remove_file(&path).unwrap(),
                _ => fs::rename(&path, full(&path, 1)).unwrap(),
            }
            fs::create_dir(&path).unwrap();
            let fulls: Vec<PathBuf> = (1..=kept).rev().map(|number| full(&path, number)).collect();
            let texts = || fulls.iter().map(|full| fs::read_to_string(full).unwrap()).collect::<Vec<_>>();
            let before = texts();
            let (lost, (_lines, entries)) = (AtomicU64::new(0), mpsc::sync_channel(1));
            for name in ["e", "f", "g", "h"] {
                book.write_waiting(joined(name), &entries, &lost);
            }
            assert_eq!((texts(), lost.load(Ordering::Relaxed)), (before, 4), "with {kept} full files");
            fs::remove_dir(&path).unwrap();
            book.write_waiting(joined("i"), &entries, &lost);
            assert!(fs::read_to_string(&path).unwrap().contains("\"agent\":\"i\""));
            let all: Vec<PathBuf> = fulls.iter().cloned().chain([path]).collect();
            assert_eq!(verify(&all).unwrap().last, 6, "four, what was lost, and the new one");
        }
    }

    /// The same where another process has begun a file in its place: that is not moved either.
    #[test]
    fn a_file_that_another_process_has_begun_is_not_moved() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 1, 3);
        let mut book = Book::open(settings.clone()).unwrap();
        book.write(["a", "b", "c"].map(joined).into()).unwrap();
        book.move_full(&settings.path).unwrap();
        book.is_moved = true;
        let other = open(&settings.path).unwrap();
        for name in ["d", "e", "f"] {
            let refused = book.write(vec![joined(name)]).unwrap_err().to_string();
            assert!(refused.contains("another process writes it"), "{refused}");
        }
        drop(other);
        book.write(vec![joined("g")]).unwrap();
        let fulls = (1..=3).rev().map(|number| full(&settings.path, number));
        let all: Vec<PathBuf> = fulls.chain([settings.path.clone()]).collect();
        assert_eq!(verify(&all).unwrap().lines, 4);
    }

    /// Full files go no further than there is room: a turn-over that has moved some of them is gone on with.
    #[test]
    fn a_full_file_goes_where_one_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 1, 3);
        let mut book = Book::open(settings.clone()).unwrap();
        book.write(["a", "b", "c", "d"].map(joined).into()).unwrap();
        // An earlier turn-over has come so far.
        fs::remove_file(full(&settings.path, 1)).unwrap();
        book.write(vec![joined("e")]).unwrap();
        let has = |at: usize| fs::read_to_string(full(&settings.path, at)).unwrap();
        let names = [3, 2, 1].map(|at| ["a", "b", "d"].map(|name| has(at).contains(&format!("\"{name}\""))));
        assert_eq!(names, [[true, false, false], [false, true, false], [false, false, true]]);
        assert_eq!(own_head(&settings.path, &book.key).unwrap().first, 1, "the oldest is there");
    }

    /// Lines of a batch that were written are not lost, and those that were lost before stay so.
    #[test]
    fn only_lines_that_are_not_written_count_as_lost() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 1, 1);
        let mut book = Book::open(settings.clone()).unwrap();
        // No file takes its place.
        fs::create_dir(full(&settings.path, 1)).unwrap();
        let (lost, (lines, entries)) = (AtomicU64::new(0), mpsc::sync_channel(1));
        let mut lost_with = |name: &str| {
            book.write_waiting(joined(name), &entries, &lost);
            lost.load(Ordering::Relaxed)
        };
        lines.send(joined("b")).unwrap();
        assert_eq!(lost_with("a"), 1, "the first is there");
        assert_eq!([lost_with("c"), lost_with("d")], [2, 3]);
        fs::remove_dir(full(&settings.path, 1)).unwrap();
        assert_eq!(lost_with("e"), 0);
        assert!(fs::read_to_string(full(&settings.path, 1)).unwrap().contains("\"lines\":3"));
        assert!(fs::read_to_string(&settings.path).unwrap().contains("\"agent\":\"e\""));
    }

    #[test]
    fn a_line_is_never_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), 1 << 20, 3);
        write(&settings, &[&"x".repeat(LINE_LEN_MAX), "b"]);
        assert_eq!(verify(std::slice::from_ref(&settings.path)).unwrap().lines, 2);
    }
}
