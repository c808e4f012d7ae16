//! Storage of received bytes: a part file beside its final place, verified groups only, one rename.
//!
//! Nothing is visible under the final name before all of it is verified, and what has that name already stays
//! unless the caller asks to replace it. A part file that a crash left behind is taken up again: what of it
//! verifies need not be sent once more. One that another user could have made, or could change, is refused.

mod error;
mod held;
mod room;

use crate::archive::{self, ArchiveError, Growing, Unpacked, Whereabouts};
use crate::file_system::{
    Lock, PERMISSIONS, Shown, explained, explained_name, is_lack, is_mounted, lock, mode_of_new,
    name_len_max, set_mode, set_time,
};
use crate::hash::hex;
use crate::holes::{HOLE_LEN, punch};
use crate::lease::{Alone, is_alone};
pub use error::{StoreError, is_full};
pub use held::Held;
use polycast_types::ModificationTime;
use room::Room;
use rustix::fs::{Access, CWD, Mode, OFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The longest file name of Linux, in bytes.
const NAME_LEN_MAX: usize = 255;
/// Ends the names of part files.
const PART_SUFFIX: &str = ".polycast-part";
/// Ends the names of directories that are filled as they come.
const TREE_SUFFIX: &str = ".polycast-tree";
/// Ends the names of copies that take the place of a part file once they are whole.
const COPY_SUFFIX: &str = ".copy.polycast-part";
/// Bytes that are copied at a time.
const COPY_LEN: usize = 1 << 20;
/// Part files that vanish between two looks, because another receiver has just finished.
const OPENS_MAX: usize = 16;
/// The longest time from finding a file by its name to having it open.
const OPENS_WITHIN: std::time::Duration = std::time::Duration::from_millis(10);
/// Permissions of a part file.
const PRIVATE: u32 = 0o600;

fn failed(path: &Path, source: impl Into<io::Error>) -> StoreError {
    StoreError::Io { path: path.to_path_buf(), source: explained(source.into(), path) }
}

/// Way in which an object gets its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placing {
    /// Set if what has the final name already is replaced.
    pub replace: bool,
    /// The object is a directory, which is unpacked beside the part file as it comes.
    pub unpacked: bool,
}

/// Length of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// With all its holes, in bytes.
    pub len: u64,
    /// Length of what needs room, in bytes.
    pub data_len: u64,
}

impl From<u64> for Size {
    /// Returns the size of an object without holes.
    fn from(len: u64) -> Self {
        Size { len, data_len: len }
    }
}

/// Makes room where a part file's file system is full, because other programs have filled it meanwhile.
#[derive(Clone)]
pub struct MoreRoom(Arc<dyn Fn() -> bool + Send + Sync>);

impl MoreRoom {
    /// Creates it from a function that makes room, and returns whether there may be more room then.
    pub fn by(make: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        MoreRoom(Arc::new(make))
    }
}

impl fmt::Debug for MoreRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MoreRoom")
    }
}

/// A file that is being received.
#[derive(Debug)]
pub struct PartFile {
    held: Arc<Held>,
    path: PathBuf,
    target: PathBuf,
    placing: Placing,
    resumed: bool,
    keep: bool,
    more: Option<MoreRoom>,
    _room: Room,
}

impl PartFile {
    /// Opens the part file for `target` with room for `len` bytes, or takes up one that is there.
    ///
    /// # Errors
    /// Something has the final name and is to stay, there is no room or no permission, another receiver
    /// writes there, or the part file is not one that this user has left.
    pub fn open(target: &Path, len: u64, placing: Placing) -> Result<Self, StoreError> {
        Self::open_with(target, len.into(), placing, None)
    }

    /// The same, where more room can be made if the file system is full, also while the file is being
    /// written.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        target: &Path,
        Size { len, data_len }: Size,
        placing: Placing,
        more: Option<MoreRoom>,
    ) -> Result<Self, StoreError> {
        let folder = if placing.unpacked { waiting_folder(target) } else { folder_of(target) };
        let name = target.file_name().unwrap_or_default();
        let path = folder.join(hidden_name(name, PART_SUFFIX));
        std::fs::create_dir_all(&folder).map_err(|source| failed(&folder, source))?;
        if !placing.unpacked {
            check_target(target, placing.replace)?;
        }
        if name.len() > name_len_max(&folder) {
            return Err(failed(target, Errno::NAMETOOLONG));
        }
        let (file, found) = open_part(&path, target)?;
        let wrong = |source| failed(&path, source);
        let tree_at = folder.join(hidden_name(name, TREE_SUFFIX));
        take_back(&file, &tree_at)?;
        let there = file.metadata().map_err(wrong)?.len();
        // What it has is checked group by group: an earlier version may be longer or shorter.
        let resumed = found && there > 0 && len > 0;
        let file = Arc::new(file);
        let moved = Arc::new(AtomicU64::new(0));
        let claim = || Room::claim(&file, &moved, &folder, data_len);
        let room = match claim() {
            Err(StoreError::Full { .. }) if more.as_ref().is_some_and(|more| (more.0)()) => claim(),
            room => room,
        };
        let begun = room.and_then(|room| {
            let tree = placing.unpacked.then(|| Growing::begin(&tree_at, target, len)).transpose()?;
            Ok((room, tree))
        });
        let (room, tree) = begun.inspect_err(|_| {
            if !found || there == 0 {
                // Another try finds the place as this one did, and nothing is worth keeping.
                let _ = std::fs::remove_file(&path);
            }
        })?;
        let part = PartFile {
            held: Arc::new(Held::new(file, tree, moved)),
            resumed,
            // What an earlier try left stays until this one has looked at it.
            keep: resumed,
            path: path.clone(),
            target: target.to_path_buf(),
            placing,
            more,
            _room: room,
        };
        if !part.resumed && there > 0 {
            part.held.file.set_len(0).map_err(wrong)?;
        }
        lengthen(&part.held.file, len).map_err(wrong)?;
        Ok(part)
    }

    /// Returns true if an earlier try left bytes that may be right.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The open file of an object that is not unpacked.
    #[must_use]
    pub fn file(&self) -> Arc<File> {
        Arc::clone(&self.held.file)
    }

    /// Returns the bytes of the object that are here, to serve others from.
    #[must_use]
    pub fn held(&self) -> Arc<Held> {
        Arc::clone(&self.held)
    }

    /// Puts verified bytes where they belong. All of the object before `verified_to` is verified, these
    /// included where they are before that. `written` says that they are in the part file already.
    ///
    /// # Errors
    /// The file system is full or fails; or it is a directory, and its stream is damaged or hostile.
    pub fn put(&self, bytes: &[u8], offset: u64, verified_to: u64, written: bool) -> Result<(), StoreError> {
        match (self.held.unpacks(), written) {
            (false, true) => Ok(()),
            (false, false) => self.write(bytes, offset),
            (true, _) => {
                let whereabouts = if written { Whereabouts::InPart } else { Whereabouts::InMemory };
                Ok(self.held.unpack_some(&self.path, (bytes, whereabouts), offset, verified_to)?)
            }
        }
    }

    /// Writes bytes that may be wrong, or are of a file, at their place.
    ///
    /// # Errors
    /// The file system is full or fails.
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        let wrong = |source: io::Error| failed(&self.target, source);
        const PIECE_LEN: usize = HOLE_LEN as usize;
        let is_hole = |piece: &[u8]| piece.len() == PIECE_LEN && piece.iter().all(|byte| *byte == 0);
        let mut at = 0;
        while at < bytes.len() {
            let mut pieces = bytes[at..].chunks(PIECE_LEN).take_while(|piece| !is_hole(piece));
            let len: usize = pieces.by_ref().map(<[u8]>::len).sum();
            if len > 0 {
                self.write_bytes(&bytes[at..at + len], offset + at as u64).map_err(wrong)?;
            } else {
                self.write_zeros(&bytes[at..at + PIECE_LEN], offset + at as u64).map_err(wrong)?;
            }
            at += if len > 0 { len } else { PIECE_LEN };
        }
        Ok(())
    }

    /// Makes a hole, whatever an earlier try has left there; on a file system without holes zeros are
    /// written.
    fn write_zeros(&self, zeros: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + zeros.len() as u64;
        punch(&self.held.file, offset..end).or_else(|_| self.write_bytes(zeros, offset))
    }

    /// Writes bytes, a second time where there was no room and more could be made.
    fn write_bytes(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.held.file.write_all_at(bytes, offset) {
            Err(error)
                if error.kind() == io::ErrorKind::StorageFull
                    && self.more.as_ref().is_some_and(|more| (more.0)()) =>
            {
                self.held.file.write_all_at(bytes, offset)
            }
            outcome => outcome,
        }
    }

    /// Reads bytes back.
    ///
    /// # Errors
    /// The file system fails.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), StoreError> {
        self.held.read_exact_at(bytes, offset).map_err(|source| failed(&self.path, source))
    }

    /// Keeps the part file when this value is dropped without `commit`, so that a later try can go on.
    pub fn keep_for_later(&mut self) {
        self.keep = true;
    }

    /// Removes the part file when this value is dropped without `commit`, as one is that no earlier try has
    /// left.
    pub fn discard(&mut self) {
        self.keep = false;
    }

    /// Returns the path of the part file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its final name, and what it has at the source: these permissions, as far as they count
    /// here for a new file (the user's mask, or the access list that the folder gives), and the time when it
    /// was changed last, if that is known. Where the file system keeps neither it is done without.
    ///
    /// # Errors
    /// Something has the final name by now and is to stay, or the file system fails.
    pub fn commit(mut self, mode: u16, modified: Option<ModificationTime>) -> Result<PathBuf, StoreError> {
        // All of it is here: whatever goes wrong now, another try needs no byte.
        self.keep = self.held.file.metadata().is_ok_and(|there| there.len() > 0);
        let placed = self.place(mode, modified);
        match &placed {
            Ok(_) => self.keep = true,
            // A part is this user's alone.
            Err(_) => drop(set_mode(&*self.held.file, PRIVATE, &self.path)),
        }
        placed
    }

    /// Unpacks what is left of a directory that is here as a whole, and gives it its name.
    ///
    /// # Errors
    /// Something has the name by now and is to stay, the stream is damaged or hostile, or the file system
    /// fails.
    pub fn unpack(mut self) -> Result<Unpacked, ArchiveError> {
        let unpacked = self.held.unpack_rest(&self.path, self.placing.replace);
        // Where another try may do it, it needs no byte.
        self.keep = unpacked.as_ref().is_err_and(ArchiveError::may_pass);
        unpacked
    }

    fn place(&self, mode: u16, modified: Option<ModificationTime>) -> Result<PathBuf, StoreError> {
        let wrong = |source: io::Error| failed(&self.target, source);
        let mode = mode_of_new(&folder_of(&self.target), u32::from(mode) & PERMISSIONS);
        set_mode(&*self.held.file, mode, &self.target).map_err(wrong)?;
        if let Some(modified) = modified {
            set_time(&*self.held.file, modified, &self.target).map_err(wrong)?;
        }
        place(&self.path, &self.target, self.placing.replace).map_err(|errno| match errno {
            Errno::EXIST => StoreError::Exists(self.target.clone()),
            Errno::BUSY if is_mounted(&self.target) => StoreError::Mounted(self.target.clone()),
            _ => wrong(errno.into()),
        })?;
        Ok(self.target.clone())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        self.held.end(self.keep);
        if !self.keep {
            // Nothing half-written stays; one that is gone already is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Gives a file that is there already what it has at the source, as [`PartFile::commit`] does.
///
/// # Errors
/// It is gone, or the file system fails.
pub fn follow(target: &Path, mode: u16, modified: Option<ModificationTime>) -> Result<(), StoreError> {
    let wrong = |source: io::Error| failed(target, source);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(target, flags, Mode::empty()).map_err(|errno| wrong(errno.into()))?;
    set_mode(&file, mode_of_new(&folder_of(target), u32::from(mode) & PERMISSIONS), target).map_err(wrong)?;
    modified.map_or(Ok(()), |modified| set_time(&file, modified, target).map_err(wrong))
}

/// Says at once what the last rename would say at the end: that something has this name already.
///
/// # Errors
/// It is there and is not to be replaced, or cannot be: it is a directory, or is mounted.
pub fn check_target(target: &Path, replace: bool) -> Result<(), StoreError> {
    match std::fs::symlink_metadata(target) {
        Ok(there) if there.is_dir() => Err(StoreError::Io {
            path: target.to_path_buf(),
            source: io::Error::other("a directory is there already, which --into puts a file inside"),
        }),
        Ok(_) if is_mounted(target) => Err(StoreError::Mounted(target.to_path_buf())),
        Ok(_) if !replace => Err(StoreError::Exists(target.to_path_buf())),
        _ => Ok(()),
    }
}

/// Checks that a name that another machine gives an object may be that of a file here.
///
/// # Errors
/// It may not, for this reason.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("is empty"),
        _ if name.starts_with('.') => Err("begins with a dot, as names of hidden files do"),
        _ if name.contains('/') => Err("is a path"),
        _ if name.chars().any(char::is_control) => Err("has control characters in it"),
        _ if name.len() > NAME_LEN_MAX => Err("is longer than a file's name can be"),
        _ => Ok(()),
    }
}

/// Opens a part file that is this user's own, and locks it; whether it was there already.
fn open_part(path: &Path, target: &Path) -> Result<(File, bool), StoreError> {
    let wrong = |source: io::Error| failed(path, source);
    let planted = |why| StoreError::Planted { path: path.to_path_buf(), why };
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let private = Mode::from_raw_mode(PRIVATE);
    for _ in 0..OPENS_MAX {
        let (opened, found) = match rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, private) {
            // Opening a pipe must not wait.
            Err(Errno::EXIST) => (rustix::fs::open(path, flags | OFlags::NONBLOCK, private), true),
            opened => (opened, false),
        };
        let file = match opened {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::NOENT) if found => continue,
            Err(Errno::LOOP) => return Err(planted("is a symbolic link")),
            Err(Errno::ISDIR | Errno::NXIO) => return Err(planted("is not a file")),
            Err(Errno::ACCESS) if found => return Err(planted("belongs to another user")),
            Err(errno) => {
                let source = explained_name(errno.into(), path);
                return Err(StoreError::Io { path: target.to_path_buf(), source });
            }
        };
        if found {
            check_own(&file, path).map_err(planted)?;
        }
        let locked = lock(&file, target);
        if locked == Lock::Busy {
            return Err(StoreError::Busy(target.to_path_buf()));
        }
        // The process that held the lock may have given the file its final name meanwhile: it is not a part
        // any more.
        let own = file.metadata().ok().map(|own| (own.dev(), own.ino()));
        let named = std::fs::symlink_metadata(path).ok().map(|named| (named.dev(), named.ino()));
        if locked == Lock::Lacking || (own.is_some() && own == named) {
            set_mode(&file, PRIVATE, target).map_err(wrong)?;
            if found && !is_unread(&file) {
                // Another process reads what an earlier try has verified: it stays as it is, and this try
                // goes on with a copy.
                return Ok((copied(&file, path, target)?, true));
            }
            return Ok((file, found));
        }
    }
    let what = "it is another file whenever it is opened: other receivers end at this moment, or its file system numbers files anew";
    Err(wrong(io::Error::other(what)))
}

/// Puts back into a part file what an earlier try has unpacked of it.
fn take_back(part: &File, tree: &Path) -> Result<(), StoreError> {
    let planted = |why| StoreError::Planted { path: tree.to_path_buf(), why };
    let Ok(there) = std::fs::symlink_metadata(tree) else { return Ok(()) };
    if !there.is_dir() {
        return Err(planted("is not a directory"));
    }
    let user = Shown::of(&there).user;
    // Some file systems show all files as one user's.
    if user != rustix::process::geteuid().as_raw() && !Shown::of_new(tree).is_ok_and(|new| new.user == user) {
        return Err(planted("belongs to another user"));
    }
    archive::put_back(part, tree).map_err(planted)
}

/// Gives a file its length; what it has already stays.
pub(crate) fn lengthen(file: &File, len: u64) -> io::Result<()> {
    let there = file.metadata()?.len();
    if there == len {
        return Ok(());
    }
    match file.set_len(len) {
        // A file system whose files grow by what is written to them.
        Err(error) if Errno::from_io_error(&error).is_some_and(is_lack) && there < len => {
            file.write_all_at(&[0], len - 1)
        }
        lengthened => lengthened,
    }
}

/// Returns true if no process has a part file open. A process that was given its name is about to open it,
/// which takes much less than this.
fn is_unread(file: &File) -> bool {
    if !is_alone(file) {
        return false;
    }
    std::thread::sleep(OPENS_WITHIN);
    is_alone(file)
}

/// Puts a copy of a part file in its place, locked. Where there is no room for one, all stays as it is.
fn copied(file: &File, path: &Path, target: &Path) -> Result<File, StoreError> {
    let io = |source| failed(path, source);
    let folder = folder_of(path);
    let aside = folder.join(hidden_name(target.file_name().unwrap_or_default(), COPY_SUFFIX));
    // The part's lock is held: what has this name was left by a try that has ended.
    match std::fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = rustix::fs::open(&aside, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| io(errno.into()))?;
    let own = Arc::new(File::from(own));
    let copy = || {
        if lock(&own, target) == Lock::Busy {
            return Err(StoreError::Busy(target.to_path_buf()));
        }
        let written = file.metadata().map_err(io)?.blocks().saturating_mul(512);
        let _room = Room::claim(&own, &Arc::default(), &folder, written)?;
        copy_sparse(file, &own).map_err(io)?;
        std::fs::rename(&aside, path).map_err(io)
    };
    if let Err(error) = copy() {
        let _ = std::fs::remove_file(&aside);
        return Err(error);
    }
    Arc::try_unwrap(own).map_err(|_| io(io::Error::other("it is still in use")))
}

/// Copies what a file has to an empty one, and leaves its holes; within the kernel, where the file systems
/// can.
///
/// # Errors
/// One of them fails, or has become shorter.
pub fn copy_sparse(from: &File, to: &File) -> io::Result<()> {
    let len = from.metadata()?.len();
    lengthen(to, len)?;
    let mut at = 0;
    while at < len {
        let begin = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // There is nothing more.
            Err(Errno::NXIO) => break,
            // The file system does not tell holes from zeros.
            Err(_) => at,
        };
        at = rustix::fs::seek(from, SeekFrom::Hole(begin)).unwrap_or(len).max(begin + 1).min(len);
        copy_range(from, to, begin..at)?;
    }
    Ok(())
}

fn copy_range(from: &File, to: &File, range: Range<u64>) -> io::Result<()> {
    let (mut begin, mut into) = (range.start, range.start);
    while begin < range.end {
        let left = usize::try_from(range.end - begin).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut begin), to, Some(&mut into), left) {
            Ok(copied) if copied > 0 => {}
            // These two file systems cannot.
            _ => break,
        }
    }
    let mut buffer = Vec::new();
    while begin < range.end {
        buffer.resize(COPY_LEN.min(usize::try_from(range.end - begin).unwrap_or(COPY_LEN)), 0);
        from.read_exact_at(&mut buffer, begin)?;
        to.write_all_at(&buffer, begin)?;
        begin += buffer.len() as u64;
    }
    Ok(())
}

/// Checks that only this user can have written the file, and only this user can write to it, as far as its
/// file system tells users apart: some show all files as one user's, or as open to all.
fn check_own(file: &File, path: &Path) -> Result<(), &'static str> {
    let Ok(metadata) = file.metadata() else { return Err("cannot be looked at") };
    if !metadata.is_file() {
        return Err("is not a file");
    }
    let shown = Shown::of(&metadata);
    let usual = Shown { user: rustix::process::geteuid().as_raw(), mode: PRIVATE };
    if let Err(why) = shown.check_own(usual) {
        let new = Shown::of_new(path).map_err(|_| why)?;
        shown.check_own(new)?;
    }
    if metadata.nlink() != 1 {
        return Err("has another name too");
    }
    Ok(())
}

/// Renames; what has the name already stays, unless it is to be replaced.
pub(crate) fn place(from: &Path, to: &Path, replace: bool) -> Result<(), Errno> {
    if replace {
        return rustix::fs::rename(from, to);
    }
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that cannot do it in one step.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if std::fs::symlink_metadata(from).is_ok_and(|metadata| metadata.is_dir()) {
                // A directory takes the place of an empty one only.
                return rustix::fs::rename(from, to);
            }
            // The name is taken first, with nothing in it.
            let taking = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::open(to, taking, Mode::RUSR | Mode::WUSR)?;
            rustix::fs::rename(from, to).inspect_err(|_| {
                let _ = rustix::fs::unlink(to);
            })
        }
        outcome => outcome,
    }
}

/// Returns true if what will be the directory `target` waits in it until it is whole, and not beside it, for
/// one rename at the end: something is mounted there, or only `target` itself can be written to.
pub(crate) fn waits_inside(target: &Path) -> bool {
    let can_write = |folder: &Path| rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    std::fs::symlink_metadata(target).is_ok_and(|there| there.is_dir())
        && (is_mounted(target) || (!can_write(&folder_of(target)) && can_write(target)))
}

/// The folder in which what will be `target` waits until it is whole: the one that `target` lies in, or,
/// where a directory is there that cannot be replaced, that directory.
#[must_use]
pub fn waiting_folder(target: &Path) -> PathBuf {
    if waits_inside(target) { target.to_path_buf() } else { folder_of(target) }
}

/// Returns true if the bytes of the file are gone with the machine's power in any case.
pub fn is_in_memory(file: &File) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    rustix::fs::fstatfs(file)
        .is_ok_and(|system| [TMPFS, RAMFS].contains(&(system.f_type as u64 & 0xffff_ffff)))
}

/// Makes the names in a folder as lasting as its disk is.
///
/// # Errors
/// The disk fails.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // It keeps names in a way of its own, and has no such call for folders.
        Err(error) if Errno::from_io_error(&error).is_some_and(is_lack) => Ok(()),
        synced => synced,
    }
}

/// The part file of a target: hidden, in the same folder, so that the rename stays within one file system.
#[must_use]
pub fn part_path(target: &Path) -> PathBuf {
    folder_of(target).join(hidden_name(target.file_name().unwrap_or_default(), PART_SUFFIX))
}

/// Returns true if a part file has this name.
#[must_use]
pub fn is_part_name(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".") && name.as_bytes().ends_with(PART_SUFFIX.as_bytes())
}

/// Returns true if a directory that is filled as it comes has this name.
pub(crate) fn is_tree_name(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".") && name.as_bytes().ends_with(TREE_SUFFIX.as_bytes())
}

/// A hidden name for something that will be called `name`; the hash of a name that is too long stands for it.
pub(crate) fn hidden_name(name: &OsStr, suffix: &str) -> OsString {
    let mut hidden = OsString::from(".");
    if 1 + name.len() + suffix.len() <= NAME_LEN_MAX {
        hidden.push(name);
    } else {
        hidden.push(&hex(blake3::hash(name.as_bytes()).as_bytes())[..32]);
    }
    hidden.push(suffix);
    hidden
}

pub(crate) fn folder_of(target: &Path) -> PathBuf {
    match target.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Makes the file of an older version the part file of `target`: the object that comes takes its pages.
/// `alone` says that no process has it open. A process that opens it before this is over gets the older
/// version, and nothing is recycled. Gives whether it was.
///
/// # Errors
/// The file system fails.
pub fn recycle(older: &Path, alone: Alone, target: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    // If a user has given it another name, that one keeps it.
    if std::fs::symlink_metadata(older)?.nlink() != 1 {
        return Ok(false);
    }
    let part = part_path(target);
    match place(older, &part, false) {
        Ok(()) => {}
        // An earlier try has left a part.
        Err(Errno::EXIST) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    // No process finds it by its name now. One that found it before is about to open it, which takes much
    // less than this, and waits.
    std::thread::sleep(OPENS_WITHIN);
    let recycled = alone.holds();
    if !recycled {
        std::fs::remove_file(&part)?;
    }
    Ok(recycled)
}

/// Makes what has this name a part file again: it may be whole, and nothing vouches for it. Another try
/// checks what of it is right, and may begin as late as after any other. Where a part file is there already
/// the newer one of both stays.
///
/// # Errors
/// It is no file of this user, or the file system fails.
pub fn set_back(target: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(target, flags, Mode::empty())?);
    let there = file.metadata()?;
    // Bytes that have another name too are a user's, and are not written over.
    if there.is_file() && (there.len() == 0 || there.nlink() != 1) {
        return std::fs::remove_file(target);
    }
    set_mode(&file, PRIVATE, target)?;
    check_own(&file, target).map_err(|why| io::Error::other(format!("it {why}")))?;
    let part = part_path(target);
    if std::fs::symlink_metadata(&part).is_ok_and(|part| part.modified().ok() > there.modified().ok()) {
        return std::fs::remove_file(target);
    }
    // Where it has no time of its own, it may be swept earlier.
    let _ = file.set_modified(std::time::SystemTime::now());
    std::fs::rename(target, part)
}

/// A file without a name in `folder`, for this user alone.
///
/// # Errors
/// The folder cannot be written to.
pub fn passing_file(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags | OFlags::TMPFILE, Mode::from_raw_mode(PRIVATE)) {
        Ok(file) => return Ok(File::from(file)),
        // Some file systems have no files without names.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let path = folder.join(hidden_name("passing".as_ref(), PART_SUFFIX));
    drop(std::fs::remove_file(&path));
    let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(PRIVATE))?;
    std::fs::remove_file(&path)?;
    Ok(File::from(file))
}

/// Removes the part file that a try of this user has left, unless one is at work with it or it is younger
/// than that. Gives whether it did.
///
/// # Errors
/// It cannot be removed.
pub fn remove_stale_part(path: &Path, younger: std::time::Duration) -> io::Result<bool> {
    // Some file systems lock only what is open for writing.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()).map(File::from) else { return Ok(false) };
    let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
    if age < younger || check_own(&file, path).is_err() {
        return Ok(false);
    }
    // Where there are no locks, its age alone says that no try is at work with it.
    if lock(&file, path) == Lock::Busy {
        return Ok(false);
    }
    std::fs::remove_file(path)?;
    Ok(true)
}

#[cfg(test)]
mod tests;
