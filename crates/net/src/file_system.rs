//! Differences between file systems: locks, permissions, times, links, names. What one lacks is done without,
//! and reported once.
//!
//! Network shares, file systems of memory cards and many that programs provide have only a part of what Linux
//! asks of its own. No transfer ends because of that once its bytes are here.

pub use crate::file_time::time_of;
use polycast_types::ModificationTime;
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, StatxAttributes, StatxFlags, Timespec, Timestamps, flock,
    statvfs,
};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Permissions to read, write and execute.
pub(crate) const PERMISSIONS: u32 = 0o777;
/// New files in a folder belong to its group, and new folders in it do so too.
const SET_GROUP: u32 = 0o2000;
/// The access list that a folder gives to what is made in it.
const DEFAULT_LIST: &str = "system.posix_acl_default";
/// Bytes of the longest list that a file system keeps.
const LIST_LEN_MAX: usize = 64 << 10;

/// Something that a file system lacks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lack {
    Locks,
    Permissions,
    Times,
    HardLinks,
}

impl Lack {
    fn words(self) -> &'static str {
        match self {
            Lack::Locks => {
                "its file system has no locks: only one process at a time may receive to a place there, and nothing sees to it"
            }
            Lack::Permissions => "permissions could not be set there: its file system does not keep them",
            Lack::Times => "times of files could not be set there: its file system does not keep them",
            Lack::HardLinks => {
                "its file system has no hard links: each name of a file gets the bytes of its own"
            }
        }
    }
}

/// Lacks that were reported already, by the file system's number.
static SAID: Mutex<BTreeSet<(u64, Lack)>> = Mutex::new(BTreeSet::new());

/// Says that a file system lacks something: once in the life of this process, and so once in a command's
/// transfer.
pub(crate) fn say(lack: Lack, file: impl AsFd, path: &Path) {
    let device = rustix::fs::fstat(file).map_or(0, |there| there.st_dev);
    if is_news(device, lack) {
        tracing::warn!(path = %path.display(), "{}", lack.words());
    }
}

fn is_news(device: u64, lack: Lack) -> bool {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).insert((device, lack))
}

/// Returns true if an error means that the file system has no such thing, or not for this user's files: none
/// that a second try would mend, and none of a disk that fails.
pub(crate) fn is_lack(errno: Errno) -> bool {
    let lacks = [Errno::PERM, Errno::ACCESS, Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL, Errno::NOTTY];
    lacks.contains(&errno) || errno == Errno::ROFS
}

/// Lock that keeps a file or a folder to one process.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// This process has it, for as long as the file is open.
    Held,
    /// Another process has it.
    Busy,
    /// Unknown: the file system has no locks.
    Lacking,
}

/// Takes the lock of a file, where its file system has locks; `path` is what the file is called where that is
/// said.
pub fn lock(file: &File, path: &Path) -> Lock {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Lock::Held,
            // Only this says that another process has it.
            Err(Errno::AGAIN) => return Lock::Busy,
            Err(Errno::INTR) => {}
            Err(_) => {
                say(Lack::Locks, file, path);
                return Lock::Lacking;
            }
        }
    }
}

/// Gives up the lock of a file that is done with. To close the file is not enough: a process that this one
/// has just begun has all files open until its program runs, and would hold the lock as long.
pub fn unlock(file: &File) {
    // Where there was no lock there is nothing to give up.
    let _ = flock(file, FlockOperation::Unlock);
}

/// Gives a file or folder these permissions, where it has others and its file system keeps any.
pub(crate) fn set_mode(file: impl AsFd, mode: u32, path: &Path) -> io::Result<()> {
    let shown = || rustix::fs::fstat(&file).map(|there| there.st_mode & 0o7777);
    if shown()? == mode {
        return Ok(());
    }
    match rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)) {
        // Some take them without a word and keep none.
        Ok(()) if shown()? & PERMISSIONS == mode & PERMISSIONS => return Ok(()),
        Err(errno) if !is_lack(errno) => return Err(errno.into()),
        _ => {}
    }
    say(Lack::Permissions, file, path);
    Ok(())
}

/// Gives a file or folder the time when it was changed last, where its file system keeps one.
pub(crate) fn set_time(file: impl AsFd, modified: ModificationTime, path: &Path) -> io::Result<()> {
    or_say(rustix::fs::futimens(&file, &timestamps(modified)), Lack::Times, &file, path)
}

/// The same for a symbolic link in a folder.
pub(crate) fn set_time_of_link(
    folder: impl AsFd,
    name: &OsStr,
    modified: ModificationTime,
    path: &Path,
) -> io::Result<()> {
    let set = rustix::fs::utimensat(&folder, name, &timestamps(modified), AtFlags::SYMLINK_NOFOLLOW);
    or_say(set, Lack::Times, &folder, path)
}

/// Done without, where that is what the file system lacks.
fn or_say(done: Result<(), Errno>, lack: Lack, file: impl AsFd, path: &Path) -> io::Result<()> {
    match done {
        Err(errno) if is_lack(errno) => say(lack, file, path),
        done => done?,
    }
    Ok(())
}

fn timestamps(modified: ModificationTime) -> Timestamps {
    let time = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// The permissions that the kernel gives a new file or folder in `folder` where a program asks for these: the
/// folder's own access list counts, and where it has none the user's mask.
pub(crate) fn mode_of_new(folder: &Path, mode: u32) -> u32 {
    let mut list = vec![0; LIST_LEN_MAX];
    let len = rustix::fs::getxattr(folder, DEFAULT_LIST, list.as_mut_slice());
    let most = len.ok().and_then(|len| permissions_of_list(&list[..len]));
    mode & !(PERMISSIONS & !most.unwrap_or_else(|| PERMISSIONS & !umask()))
}

/// The most that an access list lets the owner, the group and others do; nothing where it is none.
fn permissions_of_list(list: &[u8]) -> Option<u32> {
    const VERSION: [u8; 4] = 2u32.to_le_bytes();
    let (entries, rest) = list.strip_prefix(&VERSION)?.as_chunks::<8>();
    let of = |wanted: u16| {
        let entry = entries.iter().find(|entry| u16::from_le_bytes([entry[0], entry[1]]) == wanted)?;
        Some(u32::from(u16::from_le_bytes([entry[2], entry[3]])) & 0o7)
    };
    let (owner, group, mask, others) = (of(1)?, of(4)?, of(16), of(32)?);
    rest.is_empty().then_some(owner << 6 | mask.unwrap_or(group) << 3 | others)
}

/// The permissions that this process gives no new file. The system call that tells them changes them.
pub(crate) fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o077)
}

/// The bit by which what is made in a folder gets its group, if the folder has it.
pub(crate) fn set_group_of(folder: impl AsFd) -> u32 {
    rustix::fs::fstat(folder).map_or(0, |there| there.st_mode & SET_GROUP)
}

/// Owner and permissions of a file, as its file system shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shown {
    pub user: u32,
    pub mode: u32,
}

impl Shown {
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        Shown { user: metadata.uid(), mode: metadata.mode() & 0o7777 }
    }

    /// Returns the owner and permissions that are shown for a file that this process makes now, for itself
    /// alone, beside `path`.
    pub(crate) fn of_new(path: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = path.with_file_name(format!(".{}-{number}.polycast-look", std::process::id()));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&name, flags, Mode::RUSR | Mode::WUSR)?);
        let shown = file.metadata().map(|metadata| Shown::of(&metadata));
        fs::remove_file(&name)?;
        shown
    }

    /// Checks that a file is this user's and no other's, where a file that this user makes now is shown as
    /// `new`.
    pub(crate) fn check_own(self, new: Shown) -> Result<(), &'static str> {
        if self.user != new.user {
            return Err("belongs to another user");
        }
        if self.mode & !new.mode & 0o022 != 0 {
            return Err("can be changed by other users");
        }
        Ok(())
    }
}

/// Returns true if something is mounted at this path: it can neither be renamed nor be replaced.
#[must_use]
pub fn is_mounted(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let Ok(there) = rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS) else { return false };
    if there.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return there.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    }
    // A kernel before 5.8.
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|there| there.dev());
    path.parent().is_some_and(|parent| device(parent) != device(path))
}

/// An error of the system in words that name what is used up or refused, where the system's own do not.
/// `path` is, or will be, on the file system.
#[must_use]
pub(crate) fn explained(error: io::Error, path: &Path) -> io::Error {
    let words = match Errno::from_io_error(&error) {
        Some(Errno::NOSPC) if has_no_inodes(path) => {
            "its file system has bytes left and no inodes: it takes no more files before others are removed"
        }
        Some(Errno::DQUOT) => "the quota that its file system gives this user or folder is used up",
        Some(Errno::FBIG) => "its file system, or a limit of this process, takes no file as long as that",
        Some(Errno::NAMETOOLONG) => "its name or path is longer than its file system takes",
        Some(Errno::ILSEQ) => "its file system takes no such name",
        Some(Errno::MLINK) => "its file system takes no more names of one file, or folders in a folder",
        _ => return error,
    };
    io::Error::new(error.kind(), words)
}

/// The same where a name was to be made in a folder that is there: a file system that takes no such name says
/// that the call is wrong, or that there is no such file.
#[must_use]
pub(crate) fn explained_name(error: io::Error, path: &Path) -> io::Error {
    if matches!(Errno::from_io_error(&error), Some(Errno::INVAL | Errno::NOENT)) {
        return io::Error::new(error.kind(), "its file system takes no such name");
    }
    explained(error, path)
}

/// Returns true if a file system has bytes for a file and no inode. File systems that make inodes as they
/// need them count none.
fn has_no_inodes(path: &Path) -> bool {
    let space = path
        .ancestors()
        .find_map(|path| statvfs(if path.as_os_str().is_empty() { Path::new(".") } else { path }).ok());
    space.is_some_and(|space| space.f_files > 0 && space.f_favail == 0 && space.f_bavail > 0)
}

/// The longest name of a file in this folder, in bytes.
pub(crate) fn name_len_max(folder: &Path) -> usize {
    const USUAL: usize = 255;
    let most = statvfs(folder).ok().and_then(|space| usize::try_from(space.f_namemax).ok());
    most.filter(|most| *most > 0).unwrap_or(USUAL)
}

#[cfg(test)]
mod lacking;
#[cfg(test)]
mod mounts;
#[cfg(test)]
mod tests;
