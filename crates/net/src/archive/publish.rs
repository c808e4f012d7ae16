//! Publishing of a directory that has been filled: it gets its name, or its contents get into the directory
//! that has the name and cannot be replaced.

use super::{ArchiveError, Selection, TreeSource};
use crate::file_system::{explained, is_mounted};
use crate::scratch::{self, Scratch, remove_tree};
use crate::store::{folder_of, hidden_name, is_part_name, is_tree_name, place, waiting_folder, waits_inside};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Ends the names of directories that are being filled.
const SUFFIX: &str = ".polycast-unpacking";
/// Name of a directory that is filled as it comes, within the one that waits for another try.
pub(super) const WITHIN: &str = "unpacked";
/// Name of the directory that some file systems keep at their root for their own repair.
const LOST: &str = "lost+found";

/// A directory that is being filled, and gets its name when it is whole.
pub(super) struct Staging {
    scratch: Scratch,
    /// Path within the scratch directory, by which another try knows it; `None` where it is the scratch
    /// directory itself.
    within: Option<PathBuf>,
    /// It lies in the target, which stays.
    inside: bool,
}

impl Staging {
    /// Makes one beside `target`, or in it where it cannot be replaced.
    pub(super) fn make(target: &Path) -> Result<Self, ArchiveError> {
        Ok(Staging { scratch: scratch_for(target)?, within: None, inside: waits_inside(target) })
    }

    pub(super) fn path(&self) -> &Path {
        self.within.as_deref().unwrap_or(self.scratch.path())
    }

    /// Makes one in a directory with this path, which is that of no other try's: the lock of the target's
    /// part file says so.
    pub(super) fn at(path: &Path, target: &Path) -> Result<Self, ArchiveError> {
        let wrong = |error: io::Error| failed("write to", target, error);
        let scratch = Scratch::at(path).map_err(wrong)?;
        let within = path.join(WITHIN);
        rustix::fs::mkdir(&within, Mode::RWXU).map_err(|errno| wrong(errno.into()))?;
        Ok(Staging { scratch, within: Some(within), inside: waits_inside(target) })
    }

    /// The folder in which it becomes the target; nothing where the target stays, and only gets what is in
    /// it.
    pub(super) fn folder(&self, target: &Path) -> Option<PathBuf> {
        (!self.inside).then(|| folder_of(target))
    }

    /// Gives the filled directory its name. What has it already is removed, if it is to be replaced.
    pub(super) fn publish(&mut self, target: &Path, replace: bool) -> Result<(), ArchiveError> {
        if self.inside {
            return move_in(self.path(), target, replace);
        }
        let placed = match place(self.path(), target, false) {
            // An empty directory is replaced in any case; one that is not refuses that itself.
            Err(Errno::EXIST) if !replace => rustix::fs::rename(self.path(), target),
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) if replace => {
                // The two change their names, and the old one is removed with the staging directory's.
                return exchange(self.path(), target).map_err(|errno| failed("replace", target, errno));
            }
            placed => placed,
        };
        placed.map_err(|errno| match errno {
            Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR => exists(target),
            _ => failed("write to", target, errno),
        })?;
        if self.within.is_none() {
            self.scratch.keep();
        }
        Ok(())
    }

    /// Leaves it where it is for another try.
    pub(super) fn keep(&mut self) {
        self.scratch.keep();
    }
}

fn scratch_for(target: &Path) -> Result<Scratch, ArchiveError> {
    let name = |number: &str| hidden_name(&numbered(target, number), SUFFIX);
    Scratch::make(&waiting_folder(target), name).map_err(|error| failed("write to", target, error))
}

fn exists(target: &Path) -> ArchiveError {
    ArchiveError::TargetExists { path: target.to_path_buf() }
}

pub(super) fn failed(action: &'static str, path: &Path, source: impl Into<io::Error>) -> ArchiveError {
    ArchiveError::Io { action, path: path.to_path_buf(), source: explained(source.into(), path) }
}

/// Says at once what the last rename would say at the end, and removes what processes that were killed have
/// left there.
///
/// # Errors
/// Something is there that is not an empty directory, and is not to be replaced or cannot be.
pub fn check_target(target: &Path, replace: bool) -> Result<(), ArchiveError> {
    scratch::sweep(&waiting_folder(target), is_staging);
    match fs::symlink_metadata(target) {
        Ok(there) if !there.is_dir() && is_mounted(target) => {
            let what = "a file is mounted there by itself: name another place";
            Err(failed("replace", target, io::Error::other(what)))
        }
        Ok(_) if replace => Ok(()),
        Ok(there) if there.is_dir() => match is_free(target) {
            Ok(true) => Ok(()),
            Ok(false) => Err(exists(target)),
            Err(source) => Err(failed("read", target, source)),
        },
        Ok(_) => Err(exists(target)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed("write to", target, source)),
    }
}

fn is_staging(name: &OsStr) -> bool {
    scratch::is_between(name, ".", SUFFIX)
}

/// Returns true if an existing directory may become the object without the user's consent: nothing is in it.
/// In one that cannot be replaced as a whole, what an earlier try has left and what the file system has for
/// itself do not count.
///
/// # Errors
/// It cannot be read.
pub fn is_free(directory: &Path) -> io::Result<bool> {
    Ok(contents(directory, waits_inside(directory))?.is_empty())
}

/// Opens the present contents of this directory, with which an object in its place is compared when it is
/// brought up to date.
///
/// # Errors
/// It is no directory, or a part of it cannot be read.
pub fn present(directory: &Path) -> Result<TreeSource, ArchiveError> {
    if !waits_inside(directory) {
        return TreeSource::open(directory);
    }
    let passing = ["/lost+found", "/.*.polycast-part", "/.*.polycast-tree", "/.*.polycast-unpacking"];
    let exclude = passing.map(|name| name.parse().expect("it is a pattern")).to_vec();
    TreeSource::open_some(directory, &Selection { exclude, ..Selection::default() })
}

/// The names in a directory; in one that stays, without those that stay with it.
fn contents(directory: &Path, stays: bool) -> io::Result<Vec<OsString>> {
    let names: io::Result<Vec<OsString>> =
        fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let mut names = names?;
    let passes = |name: &OsStr| is_part_name(name) || is_tree_name(name) || is_staging(name) || name == LOST;
    names.retain(|name| !(stays && passes(name)));
    Ok(names)
}

/// Moves all that is in `staging` up into `target`, which it lies in; what is there already goes first, if it
/// is to be replaced. Where something cannot be moved all is put back.
fn move_in(staging: &Path, target: &Path, replace: bool) -> Result<(), ArchiveError> {
    let old = contents(target, true).map_err(|error| failed("read", target, error))?;
    if !replace && !old.is_empty() {
        return Err(exists(target));
    }
    let new = contents(staging, false).map_err(|error| failed("read", target, error))?;
    let aside = scratch_for(target)?;
    let away = old.iter().map(|name| (target.join(name), aside.path().join(name)));
    let moves: Vec<_> = away.chain(new.iter().map(|name| (staging.join(name), target.join(name)))).collect();
    for (done, (from, to)) in moves.iter().enumerate() {
        if let Err(errno) = move_entry(from, to) {
            for (from, to) in moves[..done].iter().rev() {
                // As far as that goes: what cannot be put back is where it was moved.
                let _ = move_entry(to, from);
            }
            return Err(match errno {
                Errno::EXIST => exists(target),
                Errno::BUSY => failed("replace what is mounted in", target, errno),
                _ => failed("write to", target, errno),
            });
        }
    }
    Ok(())
}

/// Moves a file or directory to another folder.
fn move_entry(from: &Path, to: &Path) -> Result<(), Errno> {
    match place(from, to, false) {
        Err(Errno::ACCESS) => {}
        moved => return moved,
    }
    // A directory says itself in which one it lies, and has to be writable for that.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(from, flags, Mode::empty()).map_err(|_| Errno::ACCESS)?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&directory)?.st_mode & 0o7777);
    rustix::fs::fchmod(&directory, mode | Mode::RWXU)?;
    let moved = place(from, to, false);
    rustix::fs::fchmod(&directory, mode)?;
    moved
}

fn exchange(staging: &Path, target: &Path) -> Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, staging, CWD, target, RenameFlags::EXCHANGE) {
        // A file system that cannot do it in one step: for a moment nothing has the name.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            let aside = target.with_file_name(hidden_name(&numbered(target, "replaced"), SUFFIX));
            rustix::fs::rename(target, &aside)?;
            rustix::fs::rename(staging, target).inspect_err(|_| {
                let _ = rustix::fs::rename(&aside, target);
            })?;
            remove_tree(&aside);
            Ok(())
        }
        outcome => outcome,
    }
}

fn numbered(target: &Path, number: &str) -> OsString {
    let mut name = target.file_name().unwrap_or(OsStr::new("unpacked")).to_owned();
    name.push(format!(".{number}"));
    name
}
