//! Times of files.

use polycast_types::ModificationTime;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Returns the time of a file's last change.
#[must_use]
pub fn time_of(metadata: &fs::Metadata) -> ModificationTime {
    let nanos = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
    ModificationTime { seconds: metadata.mtime(), nanos }
}
