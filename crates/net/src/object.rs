//! Sources of an object's bytes: a file, a buffer, or a directory seen as one stream.

mod state;

use crate::file_time::time_of;
use crate::holes::holes_len;
use crate::lease::is_written;
use polycast_types::ModificationTime;
pub use state::{Changed, FileState, changed_in};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// See [`ObjectSource::stamp`].
pub type Stamp = [u8; 32];

/// Permissions of a file for which none were named.
pub const MODE_USUAL: u16 = 0o644;

/// Type of what an object unpacks to at the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// The bytes of one regular file.
    File,
    /// A directory tree, carried as a tar stream (see [`crate::archive`]).
    Directory,
    /// A list of a directory's files, each of which is an object of its own (see
    /// [`crate::archive::Manifest`]).
    Set,
}

/// Immutable bytes that can be read at any offset, by several threads.
pub trait ObjectSource: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Returns true if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stands for the state of what is read: where it is another one later, the bytes may be others. All zero
    /// where they cannot change.
    fn stamp(&self) -> Stamp {
        Stamp::default()
    }

    /// Looks whether all that was read so far is of one state. Bytes that were read before it, and the hashes
    /// of them, are those of a file that was there; where it fails they may be a mixture of two. For a
    /// directory that holds of each of its files.
    ///
    /// # Errors
    /// [`Changed`]: a program has written to it since it was opened. Or that cannot be seen.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns true if [`ObjectSource::check`] takes as long as a few files take.
    fn is_checked_quickly(&self) -> bool {
        true
    }

    /// Permissions that a receiver gives the bytes of a file: those to read, write and execute.
    fn mode(&self) -> u16 {
        MODE_USUAL
    }

    /// Returns the time of the last change of a file's bytes, which a receiver gives its copy too; `None`
    /// where that means nothing.
    fn modified(&self) -> Option<ModificationTime> {
        None
    }

    /// Bytes of it that are holes, which read as zeros and take no room: a receiver that knows of them need
    /// not be sent them.
    fn holes_len(&self) -> u64 {
        0
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
    holes_len: u64,
    /// State of the file when it was opened; `None` where it cannot change, or its owner answers for that.
    state: Option<FileState>,
}

impl FileSource {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// It is missing, unreadable or not a regular file, or it has bytes and says that it has none, as the
    /// system's own do.
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
        let state = FileState::of(&metadata);
        state.settle();
        let holes_len = holes_len(&file, &metadata);
        // The memory of a process: it says itself when it writes there, and the times of such a file do not
        // tell.
        let changes = !path.starts_with("/proc");
        Ok(FileSource {
            file,
            path: path.to_path_buf(),
            len: metadata.len(),
            mode,
            modified: Some(time_of(&metadata)),
            stamp: state.stamp(),
            holes_len,
            state: changes.then_some(state),
        })
    }

    /// Opens the file at `path` as it is now. Where a program has it open for writing, and its file system
    /// can make a second file of the same blocks, that one is read: what the program writes from then on does
    /// not get there. Otherwise it is as [`FileSource::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open_as_it_is(path: &Path) -> io::Result<Self> {
        let source = Self::open(path)?;
        // What no program writes to is read where it is: that may be in memory already, which a second file
        // never is.
        if source.state.is_none() || !is_written(&source.file) {
            return Ok(source);
        }
        let Some(file) = state::snapshot(&source.file, path) else { return Ok(source) };
        // Looked at after it was taken: where this is an older stamp no byte was changed in between.
        let stamp = FileState::of(&source.file.metadata()?).stamp();
        Ok(FileSource { len: file.metadata()?.len(), file, stamp, state: None, ..source })
    }

    /// A file that only this process can write to, such as one without a name.
    ///
    /// # Errors
    /// Its length cannot be seen.
    pub fn own(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let path = PathBuf::from("a file without a name");
        let (mode, stamp) = (MODE_USUAL, Stamp::default());
        Ok(FileSource { file, path, len, mode, modified: None, stamp, holes_len: 0, state: None })
    }

    /// The same file, to which no program writes: that its times change is no change of it.
    #[must_use]
    pub fn unchanging(self) -> Self {
        FileSource { state: None, ..self }
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

    fn check(&self) -> io::Result<()> {
        match &self.state {
            Some(state) => state.check(&self.file, &self.path),
            None => Ok(()),
        }
    }

    fn mode(&self) -> u16 {
        self.mode
    }

    fn modified(&self) -> Option<ModificationTime> {
        self.modified
    }

    fn holes_len(&self) -> u64 {
        self.holes_len
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Changed::new(&self.path, "became shorter").into(),
            _ => error,
        })
    }
}

/// So many zeros as an object.
#[derive(Clone, Copy, Debug)]
pub struct Zeros(pub u64);

impl ObjectSource for Zeros {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.0) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.fill(0);
        Ok(())
    }
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
