//! A tar stream becomes a directory, wholly or not at all.

use super::ArchiveError;
use super::format::{
    BLOCK_LEN, Entry, Kind, PATH_LEN_MAX, RECORD_LEN_MAX, checksum_fits, padded, time_of_records,
};
use super::publish::{Staging, check_target, failed};
use crate::file_system::{
    Lack, PERMISSIONS, explained_name, is_lack, mode_of_new, say, set_group_of, set_mode, set_time,
    set_time_of_link,
};
use crate::holes::HOLE_LEN;
use crate::store::{copy_sparse, lengthen};
use polycast_types::ModificationTime;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tar::{EntryType, Header};

/// Contents are copied in pieces of this size.
const COPY_LEN: usize = 256 * 1024;

/// Counts of what was unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unpacked {
    /// Regular files.
    pub files: u64,
    /// Directories, the target itself included.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Bytes in the regular files.
    pub bytes: u64,
}

/// Unpacks a stream of [`super::TreeSource`] as the directory `target`.
///
/// All is written to a new directory beside `target`, which gets that name when it is complete;
/// before that, and after a failure, nothing is there. An empty directory at `target` is replaced, and
/// with `replace` whatever else is there. Where `target` cannot be replaced, since something is mounted
/// there or its folder cannot be written to, the new directory lies in it, and what is in it is moved up.
/// Permissions are those of the stream as far as they count for new files there, as for any program: the
/// user's mask, or the access list that the folder gives. What the file system does not keep is done without.
/// Nothing is ever written outside the new directory or through a symbolic link, whatever the
/// stream says; the set-user-id and set-group-id bits are dropped.
///
/// # Errors
/// The stream is damaged or hostile, `target` exists, or the file system refuses.
pub fn unpack(reader: impl Read, target: &Path, replace: bool) -> Result<Unpacked, ArchiveError> {
    check_target(target, replace)?;
    let mut staging = Staging::make(target)?;
    let mut stream = Stream::from(reader, 0);
    let mut tree = Tree::new(staging.path(), target)?;
    let mut buffer = vec![0; COPY_LEN];
    while let Some(entry) = stream.next_entry()? {
        tree.add(&entry, &mut stream, &mut buffer)?;
    }
    let unpacked = tree.finish(staging.folder(target).as_deref())?;
    staging.publish(target, replace)?;
    Ok(unpacked)
}

/// Reads headers and contents in order.
pub(super) struct Stream<R> {
    reader: R,
    offset: u64,
}

impl<R: Read> Stream<R> {
    /// A stream, or what of it begins at this offset.
    pub(super) fn from(reader: R, offset: u64) -> Self {
        Stream { reader, offset }
    }

    /// Behind what has been read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ArchiveError> {
        self.reader.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.malformed("it ends too early"),
            _ => ArchiveError::Read(error),
        })?;
        self.offset += buffer.len() as u64;
        Ok(())
    }

    fn malformed(&self, what: &'static str) -> ArchiveError {
        ArchiveError::Malformed { offset: self.offset, what }
    }

    /// The contents of a header that describes the next one.
    fn record(&mut self, len: u64) -> Result<Vec<u8>, ArchiveError> {
        if len > RECORD_LEN_MAX {
            return Err(self.malformed("a name or time record is too long"));
        }
        let mut contents = vec![0; padded(len) as usize];
        self.fill(&mut contents)?;
        contents.truncate(len as usize);
        Ok(contents)
    }

    /// The next entry's headers, or `None` at the end of the stream.
    pub(super) fn next_entry(&mut self) -> Result<Option<Entry>, ArchiveError> {
        let (mut long_name, mut long_link, mut modified) = (None, None, None);
        loop {
            let mut block = [0; BLOCK_LEN as usize];
            self.fill(&mut block)?;
            if block == [0; BLOCK_LEN as usize] {
                return Ok(None);
            }
            let header = Header::from_byte_slice(&block);
            if !checksum_fits(header) {
                return Err(self.malformed("a header's check sum is wrong"));
            }
            let len = header.entry_size().map_err(|_| self.malformed("a length is not a number"))?;
            match header.entry_type() {
                EntryType::GNULongName => long_name = Some(without_nul(self.record(len)?)),
                EntryType::GNULongLink => long_link = Some(without_nul(self.record(len)?)),
                EntryType::XHeader => {
                    let contents = self.record(len)?;
                    let read = time_of_records(&contents);
                    modified = read.map_err(|what| self.malformed(what))?.or(modified);
                }
                _ => return self.entry(header, len, long_name, long_link, modified).map(Some),
            }
        }
    }

    fn entry(
        &self,
        header: &Header,
        len: u64,
        long_name: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
        modified: Option<ModificationTime>,
    ) -> Result<Entry, ArchiveError> {
        let short = |field: &[u8]| field.split(|b| *b == 0).next().unwrap_or_default().to_vec();
        let name = long_name.unwrap_or_else(|| short(&header.as_old().name));
        let refuse = |why| refused(&name, why);
        let kind = match header.entry_type() {
            EntryType::Regular => Kind::File { len },
            EntryType::Directory if len == 0 => Kind::Directory,
            EntryType::Symlink if len == 0 => {
                let target = long_link.unwrap_or_else(|| short(&header.as_old().linkname));
                if target.is_empty() || target.contains(&0) {
                    return Err(refuse("it is a link without a valid target"));
                }
                Kind::Symlink { target }
            }
            EntryType::Link if len == 0 => {
                let target = long_link.unwrap_or_else(|| short(&header.as_old().linkname));
                Kind::HardLink { target }
            }
            EntryType::Directory | EntryType::Symlink | EntryType::Link => {
                return Err(refuse("it has contents, which its kind never has"));
            }
            EntryType::Block | EntryType::Char => return Err(refuse("devices are not unpacked")),
            EntryType::Fifo => return Err(refuse("named pipes are not unpacked")),
            _ => return Err(refuse("its kind is unknown")),
        };
        let modified = match modified {
            Some(modified) => modified,
            None => {
                let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
                let seconds = seconds.ok_or_else(|| self.malformed("a time is not a number"))?;
                ModificationTime { seconds, nanos: 0 }
            }
        };
        let mode = header.mode().map_err(|_| self.malformed("a mode is not a number"))?;
        Ok(Entry { name, kind, mode, modified })
    }
}

fn without_nul(mut name: Vec<u8>) -> Vec<u8> {
    if name.last() == Some(&0) {
        name.pop();
    }
    name
}

pub(super) fn refused(name: &[u8], why: &'static str) -> ArchiveError {
    ArchiveError::Refused { entry: String::from_utf8_lossy(name).into_owned(), why }
}

/// Checks a name and splits it; the root (`.` or `./`) has no components.
pub(super) fn components(entry: &Entry) -> Result<Vec<OsString>, ArchiveError> {
    let refuse = |why| Err(refused(&entry.name, why));
    path_components(&entry.name, entry.kind == Kind::Directory).or_else(refuse)
}

/// Splits a path below the root, or says what is wrong with it.
pub(super) fn path_components(mut name: &[u8], is_directory: bool) -> Result<Vec<OsString>, &'static str> {
    let refuse = Err;
    if name.is_empty() || name.contains(&0) {
        return refuse("it has no valid name");
    }
    if name[0] == b'/' {
        return refuse("its path is absolute");
    }
    if is_directory {
        name = name.strip_suffix(b"/").unwrap_or(name);
        if name == b"." {
            return Ok(Vec::new());
        }
    }
    if name.len() > PATH_LEN_MAX {
        return refuse("its path is longer than the 4,095 bytes by which the system opens one");
    }
    let mut components = Vec::new();
    for component in name.split(|b| *b == b'/') {
        match component {
            b".." => return refuse("its path leads out of the directory"),
            b"" | b"." => return refuse("its path has an empty component"),
            _ => components.push(OsStr::from_bytes(component).to_os_string()),
        }
    }
    Ok(components)
}

/// Permissions of a directory of which the stream says nothing.
const USUAL_MODE: u32 = 0o755;
/// Permissions that a directory has at least while it is being filled.
const FILLING: u32 = 0o700;

/// A directory of the tree whose permissions and time are set when all is inside.
struct Unfinished {
    components: Vec<OsString>,
    mode: u32,
    modified: ModificationTime,
}

/// The directory being filled. Every name is resolved one component at a time without following
/// links, so that no entry can reach outside.
pub(super) struct Tree {
    /// Path of the root in messages: the name that it will have.
    shown: PathBuf,
    root: OwnedFd,
    /// The directory that the last entry went into: most go into the same.
    current: Option<(Vec<OsString>, OwnedFd)>,
    directories: Vec<Unfinished>,
    /// Stand for the paths of all entries so far.
    paths: BTreeSet<u64>,
    /// An entry with the path of the one that comes now has come before.
    is_twice: bool,
    unpacked: Unpacked,
}

impl Tree {
    pub(super) fn new(root: &Path, shown: &Path) -> Result<Self, ArchiveError> {
        let root = open_directory(CWD, root.as_os_str()).map_err(|errno| failed("write to", shown, errno))?;
        // It was made with these: where it shows others, so will all that is made in it.
        let mode = rustix::fs::fstat(&root).map_err(|errno| failed("read", shown, errno))?.st_mode;
        if mode & PERMISSIONS != FILLING {
            say(Lack::Permissions, &root, shown);
        }
        Ok(Tree {
            shown: shown.to_path_buf(),
            root,
            current: None,
            directories: Vec::new(),
            paths: BTreeSet::new(),
            is_twice: false,
            unpacked: Unpacked::default(),
        })
    }

    fn add<R: Read>(
        &mut self,
        entry: &Entry,
        stream: &mut Stream<R>,
        buffer: &mut [u8],
    ) -> Result<(), ArchiveError> {
        let (Some(mut file), len) = (self.begin(entry)?, entry.content_len()) else { return Ok(()) };
        let mut left = len;
        while left > 0 {
            let n = left.min(buffer.len() as u64) as usize;
            stream.fill(&mut buffer[..n])?;
            for piece in buffer[..n].chunks(HOLE_LEN as usize) {
                // What is not written reads as zeros, and takes no room.
                let written = if piece.iter().all(|byte| *byte == 0) {
                    file.seek_relative(piece.len() as i64)
                } else {
                    file.write_all(piece)
                };
                written.map_err(|error| self.failed_at("write", entry, error))?;
            }
            left -= n as u64;
        }
        let padding = (padded(len) - len) as usize;
        stream.fill(&mut buffer[..padding])?;
        self.end(entry, &file)
    }

    /// Makes what an entry describes; a file is still without its contents.
    pub(super) fn begin(&mut self, entry: &Entry) -> Result<Option<File>, ArchiveError> {
        let components = components(entry)?;
        let Some((name, parent)) = components.split_last() else {
            if !self.directories.is_empty() || self.unpacked != Unpacked::default() {
                return Err(refused(&entry.name, "the directory itself comes first or not at all"));
            }
            self.remember(components, entry);
            return Ok(None);
        };
        self.enter(parent, entry)?;
        self.is_twice = !self.paths.insert(number_of(&components));
        match &entry.kind {
            Kind::Directory => {
                // The kernel sees to masks, to access lists and to the group of shared folders.
                let mode = Mode::from_raw_mode(directory_mode(entry) | FILLING);
                let made = rustix::fs::mkdirat(self.current(), name.as_os_str(), mode);
                made.map_err(|errno| self.creation_failed(errno, entry, name))?;
                self.remember(components, entry);
            }
            Kind::Symlink { target } => self.add_symlink(entry, name, OsStr::from_bytes(target))?,
            Kind::HardLink { target } => self.add_link(entry, name, target)?,
            Kind::File { .. } => return self.create(entry, name).map(Some),
        }
        Ok(None)
    }

    /// Gives a file whose contents are written its length, which holes at its end leave to be set, and its
    /// time.
    pub(super) fn end(&mut self, entry: &Entry, file: &File) -> Result<(), ArchiveError> {
        let len = entry.content_len();
        lengthen(file, len).map_err(|error| self.failed_at("write", entry, error))?;
        set_time(file, entry.modified, &self.shown)
            .map_err(|error| self.failed_at("set the time of", entry, error))?;
        self.unpacked.files += 1;
        self.unpacked.bytes += len;
        Ok(())
    }

    /// The directory that is being filled.
    pub(super) fn root(&self) -> impl AsFd + '_ {
        self.root.as_fd()
    }

    /// Makes a file with its permissions, as far as they count here; it can be written to and read through
    /// this, whatever they are.
    fn create(&self, entry: &Entry, name: &OsStr) -> Result<File, ArchiveError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(entry.mode & PERMISSIONS);
        let made = rustix::fs::openat(self.current(), name, flags, mode);
        Ok(File::from(made.map_err(|errno| self.creation_failed(errno, entry, name))?))
    }

    fn add_symlink(&mut self, entry: &Entry, name: &OsStr, target: &OsStr) -> Result<(), ArchiveError> {
        rustix::fs::symlinkat(target, self.current(), name).map_err(|errno| match errno {
            Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS => {
                let what = io::Error::other("its file system has no symbolic links");
                self.failed_at("make the link", entry, what)
            }
            _ => self.creation_failed(errno, entry, name),
        })?;
        set_time_of_link(self.current(), name, entry.modified, &self.shown)
            .map_err(|error| self.failed_at("set the time of", entry, error))?;
        self.unpacked.symlinks += 1;
        Ok(())
    }

    /// Gives a file that came before another name.
    fn add_link(&mut self, entry: &Entry, name: &OsStr, target: &[u8]) -> Result<(), ArchiveError> {
        let refuse = |why| refused(&entry.name, why);
        let target = path_components(target, false).map_err(refuse)?;
        let Some((last, parent)) = target.split_last() else { return Err(refuse("it has no valid name")) };
        let nothing = |_| refuse("it is another name of a file that has not come");
        let folder = self.descend(parent).map_err(nothing)?;
        // Only files that this stream has made are below the root; a link itself has no second name.
        let there =
            rustix::fs::statat(&folder, last.as_os_str(), AtFlags::SYMLINK_NOFOLLOW).map_err(nothing)?;
        if FileType::from_raw_mode(there.st_mode) != FileType::RegularFile {
            return Err(refuse("it is another name of something that is no file"));
        }
        match rustix::fs::linkat(&folder, last.as_os_str(), self.current(), name, AtFlags::empty()) {
            Err(errno) if is_lack(errno) || errno == Errno::MLINK => {
                say(Lack::HardLinks, &self.root, &self.shown);
                self.copy(entry, name, (&folder, last))?;
            }
            linked => linked.map_err(|errno| self.creation_failed(errno, entry, name))?,
        }
        self.unpacked.files += 1;
        Ok(())
    }

    /// Makes a copy of a file that came before.
    fn copy(
        &self,
        entry: &Entry,
        name: &OsStr,
        (folder, last): (&OwnedFd, &OsStr),
    ) -> Result<(), ArchiveError> {
        let wrong = |error: io::Error| self.failed_at("write", entry, error);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let from =
            rustix::fs::openat(folder, last, flags, Mode::empty()).map_err(|errno| wrong(errno.into()))?;
        let to = self.create(entry, name)?;
        copy_sparse(&File::from(from), &to).map_err(wrong)?;
        set_time(&to, entry.modified, &self.shown).map_err(wrong)
    }

    fn remember(&mut self, components: Vec<OsString>, entry: &Entry) {
        let mode = directory_mode(entry);
        self.directories.push(Unfinished { components, mode, modified: entry.modified });
    }

    /// Sets what had to wait: a directory may be read-only, and its time changes as it fills. The root gets
    /// the permissions that count for a new directory in `folder`, if it becomes one there.
    pub(super) fn finish(&mut self, folder: Option<&Path>) -> Result<Unpacked, ArchiveError> {
        let directories = std::mem::take(&mut self.directories);
        // Children come after their parents, so from the end every path is still open to us.
        for directory in directories.iter().rev() {
            let path = || self.shown.join(directory.components.iter().collect::<PathBuf>());
            let opened =
                self.descend(&directory.components).map_err(|errno| failed("open", &path(), errno))?;
            if !directory.components.is_empty() {
                let shown = rustix::fs::fstat(&opened).map_err(|errno| failed("read", &path(), errno))?;
                set_mode(&opened, shown.st_mode & 0o7777 & !(FILLING & !directory.mode), &self.shown)
                    .map_err(|error| failed("set the permissions of", &path(), error))?;
            }
            set_time(&opened, directory.modified, &self.shown)
                .map_err(|error| failed("set the time of", &path(), error))?;
        }
        let root = directories.first().filter(|first| first.components.is_empty());
        if let Some(folder) = folder {
            let mode = mode_of_new(folder, root.map_or(USUAL_MODE, |root| root.mode));
            set_mode(&self.root, mode | set_group_of(&self.root), &self.shown)
                .map_err(|error| failed("set the permissions of", &self.shown, error))?;
        }
        self.unpacked.directories = directories.len() as u64 + u64::from(root.is_none());
        Ok(self.unpacked)
    }

    fn current(&self) -> impl AsFd + '_ {
        self.current.as_ref().map_or(self.root.as_fd(), |(_, directory)| directory.as_fd())
    }

    /// Makes `parent` the current directory.
    fn enter(&mut self, parent: &[OsString], entry: &Entry) -> Result<(), ArchiveError> {
        if self.current.as_ref().map_or(0, |(components, _)| components.len()) == parent.len()
            && self.current.as_ref().is_none_or(|(components, _)| components == parent)
        {
            return Ok(());
        }
        let opened = match &self.current {
            // One step further down, as in a walk: no need to start over.
            Some((components, directory)) if parent.split_last().is_some_and(|(_, up)| up == components) => {
                open_directory(directory, &parent[parent.len() - 1])
            }
            _ => self.descend(parent),
        };
        let opened = opened.map_err(|errno| match errno {
            Errno::NOENT => refused(&entry.name, "it comes before the directory that it lies in"),
            Errno::LOOP | Errno::NOTDIR => refused(&entry.name, "its path leads through a link or a file"),
            _ => self.failed_at("open the directory of", entry, errno),
        })?;
        self.current = Some((parent.to_vec(), opened));
        Ok(())
    }

    /// Opens a directory of the tree from the root down, in one call: a stream may lead far down as often as
    /// it has entries.
    fn descend(&self, components: &[OsString]) -> Result<OwnedFd, Errno> {
        let below: PathBuf = components.iter().collect();
        let path = if components.is_empty() { Path::new(".") } else { below.as_path() };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&self.root, path, DIRECTORY, Mode::empty(), resolve) {
            // Linux before 5.6 does not have it, and some containers forbid it.
            Err(Errno::NOSYS | Errno::PERM) => self.step_down(components),
            opened => opened,
        }
    }

    /// The same, one directory after the other.
    fn step_down(&self, components: &[OsString]) -> Result<OwnedFd, Errno> {
        let mut directory = open_directory(&self.root, OsStr::new("."))?;
        for component in components {
            directory = open_directory(&directory, component)?;
        }
        Ok(directory)
    }

    fn creation_failed(&self, errno: Errno, entry: &Entry, name: &OsStr) -> ArchiveError {
        if errno != Errno::EXIST {
            return self.failed_at("write", entry, explained_name(errno.into(), &self.shown));
        }
        if self.is_twice {
            return refused(&entry.name, "it is in the stream twice");
        }
        ArchiveError::OneNameHere {
            entry: String::from_utf8_lossy(&entry.name).into_owned(),
            other: self.namesake(name).map(|other| other.to_string_lossy().into_owned()),
            place: self.shown.clone(),
        }
    }

    /// The other name of what has this name already: the file system takes the two for one.
    fn namesake(&self, name: &OsStr) -> Option<OsString> {
        let look = |name: &OsStr| {
            let there = rustix::fs::statat(self.current(), name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((there.st_dev, there.st_ino))
        };
        let there = look(name)?;
        let listing = Dir::read_from(self.current()).ok()?;
        let mut names =
            listing.flatten().map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_os_string());
        // Some file systems number a file anew for each of its names.
        let in_small = |name: &OsStr| name.to_string_lossy().to_lowercase();
        let same = |other: &OsStr| look(other) == Some(there) || in_small(other) == in_small(name);
        names.find(|other| other != name && same(other))
    }

    pub(super) fn failed_at(
        &self,
        action: &'static str,
        entry: &Entry,
        source: impl Into<io::Error>,
    ) -> ArchiveError {
        failed(action, &self.shown.join(OsStr::from_bytes(&entry.name)), source)
    }
}

/// Flags with which directories are opened.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(super) fn open_directory(parent: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
}

/// Stands for a path: of different paths it is the same once in 2^64 times.
fn number_of(components: &[OsString]) -> u64 {
    let mut hasher = DefaultHasher::new();
    components.hash(&mut hasher);
    hasher.finish()
}

/// The permissions of a directory. Its sticky bit means something and is harmless.
fn directory_mode(entry: &Entry) -> u32 {
    entry.mode & 0o1777
}
