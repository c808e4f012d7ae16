//! Where received bytes are put: a part file beside its final place, verified groups only, one rename.
//!
//! Nothing is visible under the final name before all of it is verified. A part file that a crash left
//! behind is taken up again: what of it verifies need not be sent once more.

use rustix::fs::{FlockOperation, flock, statvfs};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An object that cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system has less room than the object needs.
    #[error("{} is full: the object needs {}, {} are free", place.display(), polycast_types::format_bytes(*needed), polycast_types::format_bytes(*free))]
    Full {
        /// The folder.
        place: PathBuf,
        /// Bytes of the object.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Another process receives to the same place.
    #[error("another receiver is writing to {}", .0.display())]
    Busy(PathBuf),
    /// The file system says no.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A file that is being received.
#[derive(Debug)]
pub struct PartFile {
    file: Arc<File>,
    path: PathBuf,
    target: PathBuf,
    resumed: bool,
    keep: bool,
}

impl PartFile {
    /// Opens the part file for `target` with room for `len` bytes, or takes up one that is there.
    ///
    /// # Errors
    /// No room, no permission, or another receiver writes there.
    pub fn open(target: &Path, len: u64) -> Result<Self, StoreError> {
        let path = part_path(target);
        let wrong = |source| StoreError::Io { path: path.clone(), source };
        let folder = folder_of(target);
        std::fs::create_dir_all(&folder).map_err(|source| StoreError::Io { path: folder.clone(), source })?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(wrong)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| StoreError::Busy(target.to_path_buf()))?;
        let there = file.metadata().map_err(wrong)?.len();
        let part = PartFile {
            file: Arc::new(file),
            resumed: there == len && len > 0,
            keep: false,
            path,
            target: target.to_path_buf(),
        };
        part.check_room(&folder, len)?;
        let wrong = |source| StoreError::Io { path: part.path.clone(), source };
        if !part.resumed {
            part.file.set_len(0).map_err(wrong)?;
            part.file.set_len(len).map_err(wrong)?;
        }
        Ok(part)
    }

    fn check_room(&self, folder: &Path, len: u64) -> Result<(), StoreError> {
        let wrong = |source| StoreError::Io { path: self.path.clone(), source };
        let space = statvfs(folder).map_err(|error| wrong(error.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        // What an earlier try has written already needs no more room.
        let written = std::os::unix::fs::MetadataExt::blocks(&self.file.metadata().map_err(wrong)?) * 512;
        if len.saturating_sub(written) > free {
            return Err(StoreError::Full { place: folder.to_path_buf(), needed: len, free });
        }
        Ok(())
    }

    /// Whether an earlier try left bytes that may be right.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The open file, to serve others from.
    #[must_use]
    pub fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Writes bytes at their place.
    ///
    /// # Errors
    /// The file system is full or fails.
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|source| StoreError::Io { path: self.target.clone(), source })
    }

    /// Reads bytes back.
    ///
    /// # Errors
    /// The file system fails.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), StoreError> {
        self.file
            .read_exact_at(bytes, offset)
            .map_err(|source| StoreError::Io { path: self.path.clone(), source })
    }

    /// Keeps the part file when this value is dropped without `commit`, so that a later try can go on.
    pub fn keep_for_later(&mut self) {
        self.keep = true;
    }

    /// Where the part file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its final name.
    ///
    /// # Errors
    /// The final name is a directory, or the file system fails.
    pub fn commit(mut self) -> Result<PathBuf, StoreError> {
        std::fs::rename(&self.path, &self.target)
            .map_err(|source| StoreError::Io { path: self.target.clone(), source })?;
        self.keep = true;
        Ok(self.target.clone())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.keep {
            // Nothing half-written stays; one that is gone already is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The part file of a target: hidden, in the same folder, so that the rename stays within one file system.
#[must_use]
pub fn part_path(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".polycast-part");
    folder_of(target).join(name)
}

fn folder_of(target: &Path) -> PathBuf {
    match target.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_visible_before_the_commit() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("sub/object");
        let part = PartFile::open(&target, 10).unwrap();
        part.write(b"0123456789", 0).unwrap();
        assert!(!target.exists());
        assert_eq!(part.commit().unwrap(), target);
        assert_eq!(std::fs::read(&target).unwrap(), b"0123456789");
        assert_eq!(std::fs::read_dir(target.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_part_file_is_removed_or_kept_and_taken_up_again() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("object");
        let mut part = PartFile::open(&target, 4).unwrap();
        assert!(!part.is_resumed());
        part.write(b"ab", 0).unwrap();
        part.keep_for_later();
        drop(part);
        let part = PartFile::open(&target, 4).unwrap();
        assert!(part.is_resumed());
        let mut bytes = [0; 2];
        part.read(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"ab");
        drop(part);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn two_receivers_do_not_write_to_one_place() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("object");
        let _first = PartFile::open(&target, 4).unwrap();
        assert!(matches!(PartFile::open(&target, 4), Err(StoreError::Busy(_))));
    }

    #[test]
    fn an_object_larger_than_the_room_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let error = PartFile::open(&dir.path().join("object"), 1 << 49).unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
