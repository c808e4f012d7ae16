//! Detection of changes to a file after it was opened.
//!
//! A write sets the times of a file, by a clock that moves a few milliseconds at a time: a second write
//! within the same tick leaves no trace. So a file whose last change is as young as that is read only when
//! its tick is over ([`FileState::settle`]), and every later write is seen. Not seen is what a program stores
//! through a mapping of pages that it has written to before, until the kernel writes them back, and what a
//! program writes that sets the times back and moves the file, too.

use super::Stamp;
use crate::scratch::unnamed_beside;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// No kernel's clock for files moves in steps longer than this, and none of a file system that keeps parts of
/// a second.
const TICK: Duration = Duration::from_millis(20);
/// The same where times are kept in seconds, as some file systems do: the longest step of one in use.
const COARSE_TICK: Duration = Duration::from_secs(2);

/// A file is not what it was when it was opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} {how} while it was being sent: send it when no program writes to it")]
pub struct Changed {
    what: String,
    how: &'static str,
}

impl Changed {
    /// The file at `path`, and what became of it, such as `vanished`.
    #[must_use]
    pub fn new(path: &Path, how: &'static str) -> Self {
        Changed { what: path.display().to_string(), how }
    }

    /// An object has other bytes than it had when they were read before.
    #[must_use]
    pub fn bytes() -> Self {
        Changed { what: "it".into(), how: "was changed" }
    }
}

impl From<Changed> for io::Error {
    fn from(changed: Changed) -> Self {
        io::Error::other(changed)
    }
}

/// Returns the change, where that is why something could not be read.
#[must_use]
pub fn changed_in(error: &io::Error) -> Option<&Changed> {
    error.get_ref()?.downcast_ref()
}

/// Identity of a file, its length, and the time of its last change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileState {
    file: (u64, u64),
    len: u64,
    modified: (i64, i64),
    /// Time of the last change of anything of it, its names and permissions included: no program can set
    /// this.
    touched: (i64, i64),
    /// Properties that can change without its bytes: number of names, permissions, owner and group.
    around: (u64, u32, u32, u32),
}

impl FileState {
    /// The state that the system told.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        FileState {
            file: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            touched: (metadata.ctime(), metadata.ctime_nsec()),
            around: (metadata.nlink(), metadata.mode(), metadata.uid(), metadata.gid()),
        }
    }

    /// Stands for all that tells of the bytes.
    pub(super) fn stamp(&self) -> Stamp {
        let times = [self.modified.0, self.modified.1, self.touched.0, self.touched.1];
        let numbers = [self.file.0, self.file.1, self.len].into_iter();
        let mut hasher = blake3::Hasher::new();
        for number in numbers.chain(times.map(i64::cast_unsigned)) {
            hasher.update(&number.to_be_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Returns the time until every further write gets another time than the last one has.
    #[must_use]
    pub fn unsettled_for(&self) -> Duration {
        let is_coarse = self.modified.1 == 0 && self.touched.1 == 0;
        let tick = if is_coarse { COARSE_TICK } else { TICK };
        let (Ok(seconds), Ok(nanos)) = (u64::try_from(self.touched.0), u32::try_from(self.touched.1)) else {
            return Duration::ZERO;
        };
        let Some(touched) = UNIX_EPOCH.checked_add(Duration::new(seconds, nanos)) else {
            return Duration::ZERO;
        };
        match SystemTime::now().duration_since(touched) {
            Ok(age) => tick.saturating_sub(age),
            // A little ahead it may be by the clock of a server; far ahead it tells nothing.
            Err(ahead) if ahead.duration() < tick => tick,
            Err(_) => Duration::ZERO,
        }
    }

    /// Waits until every further write is seen.
    pub(super) fn settle(&self) {
        std::thread::sleep(self.unsettled_for());
    }

    /// Describes the change, if it is another file now or has other bytes; `moved` reports whether its name
    /// leads elsewhere by now.
    #[must_use]
    pub fn became(&self, now: &FileState, moved: impl FnOnce() -> bool) -> Option<&'static str> {
        if self.file != now.file {
            // File systems of user programs may number a file anew that has been forgotten meanwhile: its
            // times tell.
            let told = |state: &FileState| (state.len, state.modified, state.touched);
            return (told(self) != told(now)).then_some("was replaced");
        }
        if now.len != self.len {
            return Some(if now.len < self.len { "became shorter" } else { "became longer" });
        }
        if now.modified != self.modified {
            return Some("was changed");
        }
        // Another name, none any more, or other permissions are no other bytes.
        let is_explained = self.touched == now.touched || self.around != now.around || moved();
        (!is_explained).then_some("was changed")
    }

    /// Looks whether an open file still is what it was; `path` is where it was opened.
    pub(super) fn check(&self, file: &File, path: &Path) -> io::Result<()> {
        refresh(file);
        let now = FileState::of(&file.metadata()?);
        let moved = || !std::fs::metadata(path).is_ok_and(|there| FileState::of(&there).file == self.file);
        self.became(&now, moved).map_or(Ok(()), |how| Err(Changed::new(path, how).into()))
    }
}

/// A second file of the same blocks, which has no name, if the file system can make one: what a file is at
/// one moment.
pub(super) fn snapshot(file: &File, path: &Path) -> Option<File> {
    let copy = unnamed_beside(path)?;
    rustix::fs::ioctl_ficlone(copy.as_fd(), file.as_fd()).ok()?;
    Some(copy)
}

/// Asks a server for the times of a file that it keeps: what is known here may be a minute old.
fn refresh(file: &File) {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    // A kernel that cannot do it tells what it knows.
    let _ = statx(file, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
}

#[cfg(test)]
mod tests {
    use super::super::{FileSource, ObjectSource};
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::PathBuf;

    fn file_of(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn writer(path: &Path) -> File {
        OpenOptions::new().write(true).open(path).unwrap()
    }

    /// The times of a file, as a program sets them back.
    fn set_modified(file: &File, modified: SystemTime) {
        file.set_modified(modified).unwrap();
    }

    #[test]
    fn every_change_of_the_bytes_is_seen() {
        type Change = fn(&Path);
        let cases: [(Change, &str); 5] = [
            (|path| writer(path).write_all_at(b"X", 3).unwrap(), "was changed"),
            (|path| writer(path).set_len(3).unwrap(), "became shorter"),
            (
                |path| OpenOptions::new().append(true).open(path).unwrap().write_all(b"X").unwrap(),
                "became longer",
            ),
            (
                |path| {
                    let (file, before) = (writer(path), fs::metadata(path).unwrap().modified().unwrap());
                    file.write_all_at(b"X", 3).unwrap();
                    set_modified(&file, before);
                },
                "was changed",
            ),
            (|path| set_modified(&writer(path), UNIX_EPOCH), "was changed"),
        ];
        for (number, (change, how)) in cases.into_iter().enumerate() {
            let (_folder, path) = file_of(b"0123456789");
            let source = FileSource::open(&path).unwrap();
            source.check().unwrap();
            // At once, without a pause: it may come in the tick in which the file was written.
            change(&path);
            let error = source.check().unwrap_err();
            assert_eq!(changed_in(&error), Some(&Changed::new(&path, how)), "case {number}");
        }
    }

    #[test]
    fn what_changes_around_the_bytes_is_no_change() {
        type Change = fn(&Path);
        let cases: [Change; 5] = [
            |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap(),
            |path| fs::hard_link(path, path.with_extension("link")).unwrap(),
            |path| fs::rename(path, path.with_extension("moved")).unwrap(),
            |path| fs::remove_file(path).unwrap(),
            |path| {
                let new = path.with_extension("new");
                fs::write(&new, b"another").unwrap();
                fs::rename(new, path).unwrap();
            },
        ];
        for (number, change) in cases.into_iter().enumerate() {
            let (_folder, path) = file_of(b"0123456789");
            let source = FileSource::open(&path).unwrap();
            change(&path);
            source.check().unwrap_or_else(|error| panic!("case {number}: {error}"));
            let mut bytes = [0; 10];
            source.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"0123456789");
        }
    }

    #[test]
    fn a_file_that_was_just_written_is_waited_for() {
        let (_folder, path) = file_of(b"0123456789");
        let _source = FileSource::open(&path).unwrap();
        let state = FileState::of(&fs::metadata(&path).unwrap());
        assert_eq!(state.unsettled_for(), Duration::ZERO);
        // A clock that is far ahead tells nothing, and is not waited for.
        let ahead = FileState { touched: (i64::MAX, 5), ..state };
        assert_eq!(ahead.unsettled_for(), Duration::ZERO);
        let before = FileState { touched: (-5, 5), ..state };
        assert_eq!(before.unsettled_for(), Duration::ZERO);
        let renumbered = FileState { file: (state.file.0, state.file.1 + 1), ..state };
        assert_eq!(state.became(&renumbered, || false), None);
        let other = FileState { touched: (state.touched.0 + 1, 0), ..renumbered };
        assert_eq!(state.became(&other, || false), Some("was replaced"));
    }

    /// Only some file systems can make a snapshot: where this one cannot, the change has to be seen.
    #[test]
    fn a_file_that_is_written_to_is_sent_as_it_was_or_its_change_is_seen() {
        let (_folder, path) = file_of(b"0123456789");
        let program = writer(&path);
        let source = FileSource::open_as_it_is(&path).unwrap();
        program.write_all_at(b"X", 3).unwrap();
        let mut bytes = [0; 10];
        source.read_exact_at(&mut bytes, 0).unwrap();
        match source.check() {
            Ok(()) => assert_eq!(&bytes, b"0123456789"),
            Err(error) => assert_eq!(changed_in(&error), Some(&Changed::new(&path, "was changed"))),
        }
    }
}
