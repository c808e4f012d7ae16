//! Directories that live as long as a process is at work with them. Those of a process that was killed are
//! found by their lock, which no process holds any more, and removed by the next one.

use crate::file_system::{Lock, lock};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Names that are tried, where others have left some of the same numbers.
const NAMES_MAX: u32 = 10_000;

/// A directory that is removed with this value.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Held while this process is at work. `None` on a file system without locks, where no process sweeps,
    /// and where another lock says that this process alone is at work with it.
    _lock: Option<File>,
    kept: bool,
}

impl Scratch {
    /// Makes a directory in `folder` for this user alone; `name` makes its name of a number.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn make(folder: &Path, name: impl Fn(&str) -> OsString) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..NAMES_MAX {
            let number = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = folder.join(name(&number));
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) => {}
                // Left by another process with the same number.
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(errno.into()),
            }
            match locked(&path) {
                Ok(lock) => return Ok(Scratch { path, _lock: lock, kept: false }),
                // It was swept before it was locked.
                Err(Errno::NOENT | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::Error::other("no name is free"))
    }

    /// Makes the directory `path` for this user alone. The caller sees to it that no other process is at work
    /// with it.
    ///
    /// # Errors
    /// Something has the name, or the folder cannot be written to.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        rustix::fs::mkdir(path, Mode::RWXU)?;
        Ok(Scratch { path: path.to_path_buf(), _lock: None, kept: false })
    }

    /// Returns the path of the scratch directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It has got another name: nothing is to be removed any more.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.kept {
            remove_tree(&self.path);
        }
    }
}

/// Removes what processes of this user have left in `folder` when they were killed: directories with names
/// like this that no process holds a lock of.
pub fn sweep(folder: &Path, is_scratch: impl Fn(&OsStr) -> bool) {
    let Ok(listing) = fs::read_dir(folder) else { return };
    for entry in listing.flatten().filter(|entry| is_scratch(&entry.file_name())) {
        let path = entry.path();
        let own = |metadata: fs::Metadata| {
            metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw()
        };
        if !fs::symlink_metadata(&path).is_ok_and(own) {
            continue;
        }
        if let Ok(Some(_lock)) = locked(&path) {
            tracing::info!(path = %path.display(), "removing what a process that was killed has left");
            remove_tree(&path);
        }
    }
}

/// Locks a directory, for as long as the file is open. `None` where the file system has no locks.
fn locked(path: &Path) -> Result<Option<File>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match lock(&file, path) {
        Lock::Held => {}
        Lock::Busy => return Err(Errno::AGAIN),
        Lock::Lacking => return Ok(None),
    }
    // A process that swept it a moment ago had the lock before.
    let same = |named: fs::Metadata| {
        file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (named.dev(), named.ino()))
    };
    if fs::symlink_metadata(path).is_ok_and(same) { Ok(Some(file)) } else { Err(Errno::NOENT) }
}

/// Removes a file, a link, or a directory with all that is in it, also where that may not be written to.
pub(crate) fn remove_tree(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_dir()) {
        let _ = fs::remove_file(path);
    } else if fs::remove_dir_all(path).is_err() {
        make_removable(path);
        let _ = fs::remove_dir_all(path);
    }
}

/// Gives back the permissions that removing a tree needs.
fn make_removable(directory: &Path) {
    let mut pending = vec![directory.to_path_buf()];
    while let Some(path) = pending.pop() {
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o700));
            pending.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|item| item.path()));
        }
    }
}

/// A file without a name on the file system of `path`, for this user alone, if one can be made: it goes when
/// it is closed.
pub(crate) fn unnamed_beside(path: &Path) -> Option<File> {
    let resolved = fs::canonicalize(path).ok()?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let open_in = |folder: &Path| rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).ok();
    let system = fs::metadata(&resolved).ok()?.dev();
    let elsewhere = || {
        let folder = std::env::temp_dir();
        fs::metadata(&folder).is_ok_and(|there| there.dev() == system).then_some(folder)
    };
    let opened = open_in(resolved.parent()?).or_else(|| open_in(&elsewhere()?));
    opened.map(File::from)
}

/// Returns true if a name begins with `prefix` and ends with `suffix`.
#[must_use]
pub fn is_between(name: &OsStr, prefix: &str, suffix: &str) -> bool {
    let name = name.as_bytes();
    name.len() > prefix.len() + suffix.len()
        && name.starts_with(prefix.as_bytes())
        && name.ends_with(suffix.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: &str) -> OsString {
        format!("stage-{number}.scratch").into()
    }

    fn sweep_all(folder: &Path) {
        sweep(folder, |name| is_between(name, "stage-", ".scratch"));
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("file"), b"precious").unwrap();
        let alive = Scratch::make(folder.path(), name).unwrap();
        fs::write(alive.path().join("file"), b"in use").unwrap();
        // As if killed: the lock is gone with the process, the directory is there.
        let dead = folder.path().join("stage-1-1.scratch");
        fs::create_dir(&dead).unwrap();
        fs::create_dir(dead.join("read-only")).unwrap();
        fs::write(dead.join("read-only/file"), b"left").unwrap();
        fs::set_permissions(dead.join("read-only"), fs::Permissions::from_mode(0o500)).unwrap();
        std::os::unix::fs::symlink(&victim, dead.join("link")).unwrap();
        let link = folder.path().join("stage-2-2.scratch");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let file = folder.path().join("stage-3-3.scratch");
        fs::write(&file, b"a file is none").unwrap();
        sweep_all(folder.path());
        assert!(!dead.exists());
        assert_eq!(fs::read(alive.path().join("file")).unwrap(), b"in use");
        assert_eq!(fs::read(victim.join("file")).unwrap(), b"precious");
        assert!(fs::symlink_metadata(&link).is_ok() && file.exists());
        let path = alive.path().to_path_buf();
        drop(alive);
        assert!(!path.exists());
    }

    #[test]
    fn directories_of_other_users_are_left_alone() {
        if !polycast_testing::needs(&[polycast_testing::Need::Root]) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let foreign = folder.path().join("stage-1-1.scratch");
        fs::create_dir(&foreign).unwrap();
        std::os::unix::fs::chown(&foreign, Some(12_345), None).unwrap();
        sweep_all(folder.path());
        assert!(foreign.exists());
    }
}
