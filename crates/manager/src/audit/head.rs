//! Head of an audit log, signed, in a file beside the log: it shows if the log's first or last lines are
//! gone.
//!
//! The chain of a log's own lines shows changes between them, and shows nothing of lines that are missing
//! before the first and behind the last. The head names both ends. It is written again every minute, and
//! before the oldest file is removed.

use polycast_net::audit_key::{AuditKey, has_signed};
use polycast_net::hash::parse_hex;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Ending of the log's name for the file with its head.
const HEAD: &str = "head";
/// Ending of the log's name for the file with the key that signs the head.
const KEY: &str = "key";
/// A longer file is no head.
const LEN_MAX: u64 = 4 << 10;

/// Extent of a log at some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The name of the log's file, without its folder.
    pub log: String,
    /// Number of the oldest line that was kept.
    pub first: u64,
    /// Number of the last line.
    pub last: u64,
    /// Hash of the last line.
    pub hash: String,
    /// Time when the head was signed.
    pub at_unix_ms: u64,
    /// Public key that checks the signature.
    pub key: String,
    signature: String,
}

/// The name of something that lies beside a log.
fn beside(log: &Path, what: &str) -> PathBuf {
    let mut name = log.as_os_str().to_os_string();
    name.push(format!(".{what}"));
    name.into()
}

/// Returns the path of a log's key.
pub(super) fn key_of(log: &Path) -> PathBuf {
    beside(log, KEY)
}

/// Returns the path of a log's head.
pub(super) fn head_of(log: &Path) -> PathBuf {
    beside(log, HEAD)
}

/// Returns true if a file lies beside a log and is no part of it.
pub(super) fn is_beside(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == HEAD || extension == KEY)
}

/// The log that a file belongs to: itself, or the one that it was before it was full.
pub(super) fn log_of(path: &Path) -> PathBuf {
    let is_number = |extension: &std::ffi::OsStr| {
        extension.to_str().is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match path.extension() {
        Some(extension) if is_number(extension) => path.with_extension(""),
        _ => path.to_path_buf(),
    }
}

fn name_of(log: &Path) -> String {
    log.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Head {
    /// One of this log, signed.
    pub(super) fn signed(key: &AuditKey, log: &Path, (first, last): (u64, u64), hash: &str, at: u64) -> Self {
        let (log, hash) = (name_of(log), hash.to_string());
        let mut head =
            Head { log, first, last, hash, at_unix_ms: at, key: key.public(), signature: String::new() };
        head.signature = key.sign(head.words().as_bytes());
        head
    }

    /// Returns the text that is signed.
    fn words(&self) -> String {
        let Head { log, first, last, hash, at_unix_ms, .. } = self;
        format!("{first} {last} {at_unix_ms} {hash} {log}")
    }

    /// Writes it beside its log, whole or not at all.
    pub(super) fn write(&self, log: &Path) -> io::Result<()> {
        let (path, new) = (head_of(log), beside(log, &format!("new.{HEAD}")));
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&new)?;
        file.write_all(&text)?;
        file.sync_data()?;
        fs::rename(new, path)
    }

    /// Reads the one beside a log, if there is one.
    ///
    /// # Errors
    /// What is there is none of this log: why, as the end of a sentence.
    pub(super) fn read(log: &Path) -> Result<Option<Self>, String> {
        let path = head_of(log);
        let len = match fs::metadata(&path) {
            // Anything else could hold us.
            Ok(there) if !there.is_file() => return Err("it is no regular file".into()),
            Ok(there) => there.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("it cannot be read: {error}")),
        };
        if len > LEN_MAX {
            return Err("it is longer than the head of an audit log".into());
        }
        let text = fs::read(&path).map_err(|error| format!("it cannot be read: {error}"))?;
        let head: Head =
            serde_json::from_slice(&text).map_err(|_| "it is no head of an audit log".to_string())?;
        if parse_hex(&head.hash).is_none() || head.first > head.last.saturating_add(1) {
            return Err("it is no head of an audit log".into());
        }
        if !has_signed(&head.key, head.words().as_bytes(), &head.signature) {
            return Err("its signature is wrong: it was changed".into());
        }
        if head.log != name_of(log) {
            return Err(format!("it is the head of another log, {}", head.log));
        }
        Ok(Some(head))
    }
}
