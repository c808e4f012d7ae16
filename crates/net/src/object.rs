//! Where an object's bytes come from: a file, a buffer, or a directory seen as one stream.

use crate::file_system::time_of;
use polycast_types::ModificationTime;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// See [`ObjectSource::stamp`].
pub type Stamp = [u8; 32];

/// Permissions of a file for which none were named.
pub const MODE_USUAL: u16 = 0o644;

/// What an object unpacks to at the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// The bytes of one regular file.
    File,
    /// A directory tree, carried as a tar stream (see [`crate::archive`]).
    Directory,
    /// A list of a directory's files, each of which is an object of its own (see [`crate::archive::Manifest`]).
    Set,
}

/// Immutable bytes that can be read at any offset, by several threads.
pub trait ObjectSource: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stands for the state of what is read: where it is another one later, the bytes may be others. All zero where
    /// they cannot change.
    fn stamp(&self) -> Stamp {
        Stamp::default()
    }

    /// Permissions that a receiver gives the bytes of a file: those to read, write and execute.
    fn mode(&self) -> u16 {
        MODE_USUAL
    }

    /// When the bytes of a file were changed last, which a receiver gives its copy too; `None` where that says nothing.
    fn modified(&self) -> Option<ModificationTime> {
        None
    }

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The bytes cannot be read, or there are fewer than promised (the file changed meanwhile).
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

/// One regular file as an object.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    len: u64,
    mode: u16,
    modified: Option<ModificationTime>,
    stamp: Stamp,
}

impl FileSource {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// It is missing, unreadable or not a regular file, or it has bytes and says that it has none, as the system's own do.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if metadata.len() == 0 && file.read_at(&mut [0], 0)? > 0 {
            let what =
                "it has bytes and says that it has none, so its length is not known: copy it to a file first";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mode = (metadata.mode() & 0o777) as u16;
        let stamp = stamp_of(&metadata);
        let modified = Some(time_of(&metadata));
        Ok(FileSource { file, path: path.to_path_buf(), len: metadata.len(), mode, modified, stamp })
    }

    /// The same file, whose receivers give it other permissions.
    #[must_use]
    pub fn with_mode(self, mode: u16) -> Self {
        FileSource { mode, ..self }
    }

    /// The same file, whose receivers give it another time, or that of its arrival.
    #[must_use]
    pub fn with_time(self, modified: Option<ModificationTime>) -> Self {
        FileSource { modified, ..self }
    }
}

impl ObjectSource for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn mode(&self) -> u16 {
        self.mode
    }

    fn modified(&self) -> Option<ModificationTime> {
        self.modified
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::other(format!("{} became shorter while it was being sent", self.path.display()))
            }
            _ => error,
        })
    }
}

/// Which file it is, how long it is, and when it was changed last.
fn stamp_of(metadata: &std::fs::Metadata) -> Stamp {
    let changed = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
    let mut hasher = blake3::Hasher::new();
    for number in
        [metadata.dev(), metadata.ino(), metadata.len()].into_iter().chain(changed.map(i64::cast_unsigned))
    {
        hasher.update(&number.to_be_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// A buffer in memory as an object.
impl ObjectSource for Vec<u8> {
    fn len(&self) -> u64 {
        Vec::len(self) as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let bytes = self.get(start..start + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_whose_length_is_not_known_is_refused() {
        let error = FileSource::open(Path::new("/proc/self/status")).unwrap_err().to_string();
        assert!(error.contains("length is not known"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        File::create(&empty).unwrap();
        assert_eq!(FileSource::open(&empty).unwrap().len(), 0);
    }
}
