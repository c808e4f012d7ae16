//! Bytes of an object while it comes: in its part file, and, where the object is a directory that is unpacked
//! as it comes, in the files that it becomes.

use crate::archive::{ArchiveError, Growing, Unpacked, Waiting, Whereabouts};
use crate::file_system::unlock;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes of an object that are here, to be read while it comes, and afterwards for as long as this value
/// lives.
#[derive(Debug)]
pub struct Held {
    pub(super) file: Arc<File>,
    tree: Option<RwLock<Growing>>,
    /// Bytes that are in the directory's files by now.
    pub(super) moved: Arc<AtomicU64>,
}

/// The part file is open to the next try.
impl Drop for Held {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

impl Held {
    pub(super) fn new(file: Arc<File>, tree: Option<Growing>, moved: Arc<AtomicU64>) -> Self {
        Held { file, tree: tree.map(RwLock::new), moved }
    }

    /// Returns true if the object is a directory that is unpacked as it comes.
    #[must_use]
    pub fn unpacks(&self) -> bool {
        self.tree.is_some()
    }

    /// Lets the system send at most so many bytes from `offset` on of a file that is not a directory; gives
    /// how many it has sent, 0 at the end.
    ///
    /// # Errors
    /// The connection takes none now, or is broken, or the file system fails.
    pub(crate) fn send_to(&self, to: impl AsFd, offset: u64, len: usize) -> io::Result<usize> {
        assert!(!self.unpacks(), "a directory is in many files");
        let mut offset = offset;
        Ok(rustix::fs::sendfile(to, &*self.file, Some(&mut offset), len)?)
    }

    /// Fills `buffer` with what is here of the object from `offset` on. What is not here reads as anything.
    ///
    /// # Errors
    /// The file system fails, or a directory that has its name by now was changed.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.tree {
            // What is read stays where it is meanwhile.
            Some(tree) => {
                tree.read().unwrap_or_else(PoisonError::into_inner).read(&self.file, buffer, offset)
            }
            None => self.file.read_exact_at(buffer, offset),
        }
    }

    fn tree<R>(&self, act: impl FnOnce(&mut Growing) -> R) -> Option<R> {
        self.tree.as_ref().map(|tree| act(&mut tree.write().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Takes verified bytes of a directory; see [`Growing::put`].
    pub(super) fn unpack_some(
        &self,
        shown: &Path,
        bytes: (&[u8], Whereabouts),
        at: u64,
        verified_to: u64,
    ) -> Result<(), ArchiveError> {
        let part = Waiting { file: &self.file, shown };
        let put = self.tree(|tree| {
            tree.put(part, bytes, at, verified_to)?;
            self.moved.store(tree.moved_bytes(), Ordering::Relaxed);
            Ok(())
        });
        put.expect("only a directory is unpacked")
    }

    /// Unpacks the rest of a directory, and gives it its name.
    pub(super) fn unpack_rest(&self, shown: &Path, replace: bool) -> Result<Unpacked, ArchiveError> {
        let part = Waiting { file: &self.file, shown };
        self.tree(|tree| tree.finish(part, replace)).expect("only a directory is unpacked")
    }

    /// Leaves what is unpacked to another try, or removes it.
    pub(super) fn end(&self, keep: bool) {
        self.tree(|tree| if keep { tree.leave() } else { tree.remove() });
    }
}
