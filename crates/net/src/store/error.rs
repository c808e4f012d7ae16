//! Reasons why an object cannot be stored.

use crate::archive::ArchiveError;
use std::io;
use std::path::{Path, PathBuf};

/// A folder for a sentence, which another machine may print.
fn named(place: &Path) -> String {
    let is_here = matches!(place.as_os_str().as_encoded_bytes(), b"" | b".");
    let here = if is_here { std::env::current_dir().ok() } else { None };
    here.as_deref().unwrap_or(place).display().to_string()
}

/// An object that cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system has less room than the object needs.
    #[error("{} is full: the object needs {}, {} are free", named(place), polycast_types::format_bytes(*needed), polycast_types::format_bytes(*free))]
    Full {
        /// The folder.
        place: PathBuf,
        /// Bytes of the object.
        needed: u64,
        /// Bytes that are free, and not promised to another object that is on its way.
        free: u64,
    },
    /// Another process receives to the same place.
    #[error("another receiver is writing to {}", .0.display())]
    Busy(PathBuf),
    /// Something has the final name already, and is not to be replaced.
    #[error("{} is there already: say --update to bring it up to date, or --force to replace it", .0.display())]
    Exists(PathBuf),
    /// The file that has the final name is mounted there by itself.
    #[error("{} is a file that is mounted there by itself, and none can be put in its place: mount the folder that it lies in, or name another place", .0.display())]
    Mounted(PathBuf),
    /// Something is in the part file's place that this user's earlier try did not leave there.
    #[error("{} {why}: remove it, since an earlier try did not leave it there", path.display())]
    Planted {
        /// The part file.
        path: PathBuf,
        /// Problem with the file.
        why: &'static str,
    },
    /// A directory cannot be unpacked.
    #[error(transparent)]
    Unpack(#[from] ArchiveError),
    /// The file system says no.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Reason for the failure.
        source: io::Error,
    },
}

/// Returns true if a full disk or quota is the cause.
#[must_use]
pub fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let lacks_room = matches!(error.downcast_ref(), Some(StoreError::Full { .. }));
        if lacks_room || matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return true;
        }
        cause = error.source();
    }
    false
}
