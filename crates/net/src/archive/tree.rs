//! A directory tree seen as one stream of bytes.

use super::ArchiveError;
use super::format::{Entry, Kind, PATH_LEN_MAX, TRAILER_LEN, padded};
use super::glob::Glob;
use super::links::{LinksOut, leads_nowhere, leads_too_far};
use crate::file_time::time_of;
use crate::holes::{has_holes, holes_len};
use crate::object::{Changed, FileState, ObjectSource, Stamp};
use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque, btree_map};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Number of files that a tree keeps open between reads.
const OPEN_FILES_MAX: usize = 32;

/// Files that are looked at in about a millisecond.
const CHECKED_QUICKLY_MAX: usize = 64;

/// Things without bytes that are named.
const SKIPPED_MAX: usize = 1_000;
/// Directories that a path may lead through where links are followed.
const FOLLOWED_DEPTH_MAX: usize = 256;
/// Links that are followed: some that lead to each other's directories could make any number.
const FOLLOWED_MAX: usize = 1_000_000;

/// Part of a directory that is taken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// Patterns of the entries that are left out.
    pub exclude: Vec<Glob>,
    /// Set if what links lead to is taken in their place.
    pub follow: bool,
}

/// A directory as an object, read in place.
///
/// The tree is walked once, in the order of names, when it is opened; what is added later is not
/// part of the object. Reads open files as they need them and keep a few of them open.
#[derive(Debug)]
pub struct TreeSource {
    root: PathBuf,
    /// Paths of the uppermost names, if several paths make up the tree.
    tops: BTreeMap<Vec<u8>, PathBuf>,
    /// Paths of files that are not below a root: those of a list, by their names.
    listed: BTreeMap<Vec<u8>, PathBuf>,
    selection: Selection,
    /// The directories that it is made of, by their own paths.
    roots: Vec<PathBuf>,
    /// Files that have several names, and the first of them.
    linked: BTreeMap<(u64, u64), Vec<u8>>,
    skipped: Vec<Skipped>,
    links_out: LinksOut,
    followed: usize,
    /// From when on every write to a file is seen.
    settled_at: Instant,
    entries: Vec<Placed>,
    len: u64,
    holes_len: u64,
    open: Mutex<VecDeque<(usize, Arc<File>)>>,
}

/// Something that has no bytes to deliver, and was left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// Its path.
    pub path: PathBuf,
    /// Kind of entry, such as `a socket`.
    pub what: &'static str,
}

/// An entry that was found.
struct Found {
    entry: Entry,
    /// Device and inode of the file, if it has several names.
    file: Option<(u64, u64)>,
    /// State of the file, where it has bytes.
    state: Option<FileState>,
    /// Bytes of it that are holes.
    holes_len: u64,
    /// The directory that it is, where links are followed.
    within: Option<Arc<Above>>,
}

/// A directory that others are walked in, and the one that it lies in.
struct Above {
    directory: (u64, u64),
    parent: Option<Arc<Above>>,
    depth: usize,
}

impl Found {
    fn of(entry: Entry) -> Self {
        Found { entry, file: None, state: None, holes_len: 0, within: None }
    }
}

/// An entry and where it lies in the stream.
#[derive(Debug)]
struct Placed {
    entry: Entry,
    offset: u64,
    headers_len: u64,
    /// State of its file when it was found; unknown for files of a list.
    state: Option<FileState>,
}

impl TreeSource {
    /// Walks the directory at `path`.
    ///
    /// # Errors
    /// It is not a directory, or a part of it cannot be read.
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        Self::open_some(path, &Selection::default())
    }

    /// Takes this of the directory at `path`.
    ///
    /// # Errors
    /// As there; or a link cannot be followed.
    pub fn open_some(path: &Path, selection: &Selection) -> Result<Self, ArchiveError> {
        let metadata = fs::metadata(path).map_err(|source| failed("read", path, source))?;
        if !metadata.is_dir() {
            return Err(ArchiveError::NotADirectory { path: path.to_path_buf() });
        }
        let mut tree = TreeSource::empty(path, selection);
        tree.roots.push(fs::canonicalize(path).map_err(|source| failed("read", path, source))?);
        let mut root = Found::of(describe(Vec::new(), Kind::Directory, &metadata));
        root.within = tree.above(path, &metadata, None)?;
        tree.walk(vec![root])?;
        Ok(tree)
    }

    /// A directory that has all of these files and directories in it, each under its own name.
    ///
    /// # Errors
    /// Two have the same name, one has none, or a part cannot be read.
    pub fn open_all(paths: &[PathBuf], selection: &Selection) -> Result<Self, ArchiveError> {
        let mut tree = TreeSource::empty(Path::new(""), selection);
        let mut found = Vec::new();
        for path in paths {
            // What is named is meant, also where it is a link.
            let resolved = fs::canonicalize(path).map_err(|source| failed("read", path, source))?;
            let name = path.file_name().or_else(|| resolved.file_name());
            let name = name.unwrap_or(OsStr::new("root")).as_bytes().to_vec();
            let metadata = fs::metadata(&resolved).map_err(|source| failed("read", path, source))?;
            if tree.tops.insert(name.clone(), resolved.clone()).is_some() {
                return Err(ArchiveError::SameName { name: String::from_utf8_lossy(&name).into_owned() });
            }
            tree.roots.push(resolved.clone());
            found.extend(tree.found(name, &resolved, metadata, None)?);
        }
        let newest =
            found.iter().map(|found| found.entry.modified).max_by_key(|time| (time.seconds, time.nanos));
        let modified = newest.unwrap_or_default();
        let root = Entry { name: Vec::new(), kind: Kind::Directory, mode: 0o755, modified };
        tree.place(Found::of(root));
        found.sort_unstable_by(|a, b| b.entry.name.cmp(&a.entry.name));
        tree.walk(found)?;
        Ok(tree)
    }

    /// A directory that has these in it, in their order; with files it is said where they lie.
    pub(super) fn listed(entries: impl Iterator<Item = (Entry, Option<PathBuf>)>) -> Self {
        let mut tree = TreeSource::empty(Path::new(""), &Selection::default());
        for (entry, path) in entries {
            if let Some(path) = path {
                tree.listed.insert(entry.name.clone(), path);
            }
            tree.place(Found::of(entry));
        }
        tree.len += TRAILER_LEN;
        tree
    }

    /// Returns the entries of the tree.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map(|placed| &placed.entry)
    }

    fn empty(root: &Path, selection: &Selection) -> Self {
        TreeSource {
            root: root.to_path_buf(),
            tops: BTreeMap::new(),
            listed: BTreeMap::new(),
            selection: selection.clone(),
            roots: Vec::new(),
            linked: BTreeMap::new(),
            skipped: Vec::new(),
            links_out: LinksOut::default(),
            followed: 0,
            settled_at: Instant::now(),
            entries: Vec::new(),
            len: 0,
            holes_len: 0,
            open: Mutex::new(VecDeque::with_capacity(OPEN_FILES_MAX)),
        }
    }

    /// Returns the entries that were left out since they have no bytes to deliver: the first that were found.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The links that lead to what is not in the directory; those that were followed are none.
    #[must_use]
    pub fn links_out(&self) -> &LinksOut {
        &self.links_out
    }

    /// Returns the number of regular files in the tree.
    #[must_use]
    pub fn file_count(&self) -> usize {
        self.entries.iter().filter(|placed| matches!(placed.entry.kind, Kind::File { .. })).count()
    }

    /// Visits all directories, each right after its entry was placed: parents come before children. Nothing
    /// is read of a file before every write to it is seen.
    fn walk(&mut self, mut pending: Vec<Found>) -> Result<(), ArchiveError> {
        // Entries still to be placed, the next one last.
        while let Some(found) = pending.pop() {
            if found.entry.kind == Kind::Directory {
                let below = self.list(&found.entry.name, found.within.as_ref())?;
                self.place(found);
                pending.extend(below);
            } else {
                if let Entry { name, kind: Kind::Symlink { target }, .. } = &found.entry {
                    let path = self.path_of(name);
                    self.links_out.look(name, target, &path, &self.roots);
                }
                self.place(found);
            }
        }
        self.linked.clear();
        self.len += TRAILER_LEN;
        std::thread::sleep(self.settled_at.saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// The entries of one directory, in falling order of their names.
    fn list(&mut self, directory: &[u8], within: Option<&Arc<Above>>) -> Result<Vec<Found>, ArchiveError> {
        let path = self.path_of(directory);
        let listing = fs::read_dir(&path).map_err(|source| failed("read the directory", &path, source))?;
        let mut entries = Vec::new();
        for item in listing {
            let item = item.map_err(|source| failed("read the directory", &path, source))?;
            let mut name = directory.to_vec();
            if !name.is_empty() {
                name.push(b'/');
            }
            name.extend(item.file_name().into_vec());
            let item_path = item.path();
            // Receivers refuse such a name, also where the path is shorter here.
            if item_path.as_os_str().len().max(name.len()) > PATH_LEN_MAX {
                return Err(ArchiveError::TooDeep { path: self.root_of(&name) });
            }
            let metadata = item.metadata().map_err(|source| failed("read", &item_path, source))?;
            entries.extend(self.found(name, &item_path, metadata, within)?);
        }
        entries.sort_unstable_by(|a, b| b.entry.name.cmp(&a.entry.name));
        Ok(entries)
    }

    /// Describes the entry at `path`, unless it is to be left out or cannot be delivered.
    fn found(
        &mut self,
        name: Vec<u8>,
        path: &Path,
        metadata: fs::Metadata,
        within: Option<&Arc<Above>>,
    ) -> Result<Option<Found>, ArchiveError> {
        let metadata = self.followed(path, metadata)?;
        if self.selection.exclude.iter().any(|glob| glob.matches(&name, metadata.is_dir())) {
            return Ok(None);
        }
        let kind = match kind_of(path, &metadata)? {
            Ok(kind) => kind,
            Err(what) => {
                if self.skipped.len() < SKIPPED_MAX {
                    self.skipped.push(Skipped { path: path.to_path_buf(), what });
                }
                return Ok(None);
            }
        };
        let several = metadata.is_file() && metadata.nlink() > 1;
        let file = several.then(|| (metadata.dev(), metadata.ino()));
        let state = metadata.is_file().then(|| FileState::of(&metadata));
        if let Some(state) = &state {
            self.settled_at = self.settled_at.max(Instant::now() + state.unsettled_for());
        }
        let within = if metadata.is_dir() { self.above(path, &metadata, within.cloned())? } else { None };
        // One that cannot be opened now is named when it is read.
        let sparse = if has_holes(&metadata) { File::open(path).ok() } else { None };
        let holes_len = sparse.map_or(0, |file| holes_len(&file, &metadata));
        Ok(Some(Found { entry: describe(name, kind, &metadata), file, state, holes_len, within }))
    }

    /// Returns the metadata of a link's target where links are followed; a link that leads to nothing stays a
    /// link.
    fn followed(&mut self, path: &Path, metadata: fs::Metadata) -> Result<fs::Metadata, ArchiveError> {
        if !self.selection.follow || !metadata.is_symlink() {
            return Ok(metadata);
        }
        self.followed += 1;
        if self.followed > FOLLOWED_MAX {
            let why = "there are more than 1,000,000 links to follow, as where some lead to each other's directories";
            return Err(ArchiveError::Unfollowed { path: path.to_path_buf(), why });
        }
        match fs::metadata(path) {
            Ok(end) => Ok(end),
            Err(error) if leads_too_far(path, &error) => {
                let why = "more links lead to it, one after the other, than the system follows";
                Err(ArchiveError::Unfollowed { path: path.to_path_buf(), why })
            }
            Err(error) if leads_nowhere(&error) => Ok(metadata),
            Err(source) => Err(failed("follow the link", path, source)),
        }
    }

    /// Notes a directory that is to be walked, where links are followed: none of them may lead to one that it
    /// lies in.
    fn above(
        &self,
        path: &Path,
        metadata: &fs::Metadata,
        parent: Option<Arc<Above>>,
    ) -> Result<Option<Arc<Above>>, ArchiveError> {
        if !self.selection.follow {
            return Ok(None);
        }
        let directory = (metadata.dev(), metadata.ino());
        let refuse = |why| Err(ArchiveError::Unfollowed { path: path.to_path_buf(), why });
        let mut around = parent.as_deref();
        while let Some(above) = around {
            if above.directory == directory {
                return refuse(
                    "it leads to a directory that it lies in itself, so that there would be no end",
                );
            }
            around = above.parent.as_deref();
        }
        let depth = parent.as_ref().map_or(0, |above| above.depth + 1);
        if depth > FOLLOWED_DEPTH_MAX {
            return refuse("it leads more than 256 directories deep");
        }
        Ok(Some(Arc::new(Above { directory, parent, depth })))
    }

    /// The directory that was named in which this lies.
    fn root_of(&self, name: &[u8]) -> PathBuf {
        let top = name.split(|byte| *byte == b'/').next().unwrap_or_default();
        self.tops.get(top).unwrap_or(&self.root).clone()
    }

    fn place(&mut self, Found { mut entry, file, state, holes_len, .. }: Found) {
        if let Some(file) = file {
            match self.linked.entry(file) {
                btree_map::Entry::Vacant(vacant) => drop(vacant.insert(entry.name.clone())),
                btree_map::Entry::Occupied(first) => {
                    entry.kind = Kind::HardLink { target: first.get().clone() };
                }
            }
        }
        let headers_len = entry.headers().len() as u64;
        let content_len = padded(entry.content_len());
        self.entries.push(Placed { entry, offset: self.len, headers_len, state });
        self.len += headers_len + content_len;
        self.holes_len += if content_len > 0 { holes_len } else { 0 };
    }

    pub(super) fn path_of(&self, name: &[u8]) -> PathBuf {
        if let Some(path) = self.listed.get(name) {
            return path.clone();
        }
        let top_len = name.iter().position(|byte| *byte == b'/').unwrap_or(name.len());
        if let Some(top) = self.tops.get(&name[..top_len]) {
            let below = name.get(top_len + 1..).unwrap_or_default();
            return if below.is_empty() { top.clone() } else { top.join(OsStr::from_bytes(below)) };
        }
        self.root.join(OsStr::from_bytes(name))
    }

    /// Fills `buffer` from the stream, starting `within` bytes into entry number `index`, as far as
    /// the entry goes, and returns how many bytes that were.
    fn read_entry(&self, index: usize, within: u64, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let Placed { entry, headers_len, .. } = &self.entries[index];
        if within < *headers_len {
            let headers = entry.headers();
            let part = &headers[within as usize..];
            let n = part.len().min(buffer.len());
            buffer[..n].copy_from_slice(&part[..n]);
            return Ok(n);
        }
        let content_len = entry.content_len();
        let at = within - headers_len;
        if at < content_len {
            let n = usize::try_from(content_len - at).map_or(buffer.len(), |n| n.min(buffer.len()));
            self.read_file(index, &mut buffer[..n], at)?;
            return Ok(n);
        }
        let n = (padded(content_len) - at).min(buffer.len() as u64) as usize;
        buffer[..n].fill(0);
        Ok(n)
    }

    fn read_file(&self, index: usize, buffer: &mut [u8], at: u64) -> Result<(), ArchiveError> {
        let file = self.file(index)?;
        file.read_exact_at(buffer, at).map_err(|source| {
            let path = self.path_of(&self.entries[index].entry.name);
            match source.kind() {
                io::ErrorKind::UnexpectedEof => Changed::new(&path, "became shorter").into(),
                _ => failed("read", &path, source),
            }
        })
    }

    /// The file of entry number `index`, open.
    fn file(&self, index: usize) -> Result<Arc<File>, ArchiveError> {
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            // The file asked for last is the likeliest, and the last in the queue.
            if let Some(found) = open.iter().rposition(|(i, _)| *i == index) {
                let file = Arc::clone(&open[found].1);
                if found + 1 < open.len()
                    && let Some(entry) = open.remove(found)
                {
                    open.push_back(entry);
                }
                return Ok(file);
            }
        }
        let file = Arc::new(self.open_file(index)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() == OPEN_FILES_MAX {
            open.pop_front();
        }
        open.push_back((index, Arc::clone(&file)));
        Ok(file)
    }

    fn open_file(&self, index: usize) -> Result<File, ArchiveError> {
        let path = self.path_of(&self.entries[index].entry.name);
        // What was a file may be a pipe by now: opening one must neither block nor, unless that is meant,
        // follow a link.
        let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, !self.selection.follow);
        let file = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::NOENT) => return Err(Changed::new(&path, "vanished").into()),
            Err(Errno::LOOP) => return Err(Changed::new(&path, "was replaced by a symbolic link").into()),
            Err(errno) => return Err(failed("open", &path, errno.into())),
        };
        let metadata = file.metadata().map_err(|source| failed("read", &path, source))?;
        self.compare(index, &path, &metadata)?;
        Ok(file)
    }

    /// Compares the file at `path` with what it was when it was found.
    fn compare(&self, index: usize, path: &Path, metadata: &fs::Metadata) -> Result<(), ArchiveError> {
        if !metadata.is_file() {
            return Err(Changed::new(path, "was replaced by something that is not a file").into());
        }
        let Placed { entry, state, .. } = &self.entries[index];
        let shorter = (metadata.len() < entry.content_len()).then_some("became shorter");
        let became = || state.as_ref()?.became(&FileState::of(metadata), || false);
        match shorter.or_else(became) {
            Some(how) => Err(Changed::new(path, how).into()),
            None => Ok(()),
        }
    }

    /// Looks whether a file that was read is still what it was; its name has to lead to it.
    fn check_file(&self, index: usize) -> Result<(), ArchiveError> {
        let path = self.path_of(&self.entries[index].entry.name);
        let there = if self.selection.follow { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
        match there {
            Ok(metadata) => self.compare(index, &path, &metadata),
            Err(error) if leads_nowhere(&error) => Err(Changed::new(&path, "vanished").into()),
            Err(source) => Err(failed("read", &path, source)),
        }
    }
}

impl ObjectSource for TreeSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn stamp(&self) -> Stamp {
        let mut hasher = blake3::Hasher::new();
        // Names, kinds, lengths, permissions and times.
        for placed in &self.entries {
            hasher.update(&placed.entry.headers());
        }
        *hasher.finalize().as_bytes()
    }

    fn holes_len(&self) -> u64 {
        self.holes_len
    }

    fn is_checked_quickly(&self) -> bool {
        self.entries.len() <= CHECKED_QUICKLY_MAX
    }

    fn check(&self) -> io::Result<()> {
        let with_bytes = |placed: &Placed| placed.entry.content_len() > 0 && placed.state.is_some();
        let mut files = (0..self.entries.len()).filter(|index| with_bytes(&self.entries[*index]));
        Ok(files.try_for_each(|index| self.check_file(index))?)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let entries_end = self.len - TRAILER_LEN;
        let mut index = self.entries.partition_point(|placed| placed.offset <= offset).saturating_sub(1);
        let mut filled = 0;
        while filled < buffer.len() {
            let at = offset + filled as u64;
            if at >= entries_end {
                buffer[filled..].fill(0);
                break;
            }
            let end = self.entries.get(index + 1).map_or(entries_end, |next| next.offset);
            if at == end {
                index += 1;
                continue;
            }
            filled += self.read_entry(index, at - self.entries[index].offset, &mut buffer[filled..])?;
        }
        Ok(())
    }
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> ArchiveError {
    ArchiveError::Io { action, path: path.to_path_buf(), source }
}

fn describe(name: Vec<u8>, kind: Kind, metadata: &fs::Metadata) -> Entry {
    Entry { name, kind, mode: metadata.mode() & 0o7777, modified: time_of(metadata) }
}

/// Returns the kind of the entry at `path` if it can be delivered, or words for it if it cannot.
fn kind_of(path: &Path, metadata: &fs::Metadata) -> Result<Result<Kind, &'static str>, ArchiveError> {
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        return Ok(Ok(Kind::Directory));
    }
    if file_type.is_symlink() {
        let target = fs::read_link(path).map_err(|source| failed("read the link", path, source))?;
        return Ok(Ok(Kind::Symlink { target: target.into_os_string().into_vec() }));
    }
    if file_type.is_file() {
        // Said now rather than in the middle of the transfer.
        rustix::fs::access(path, Access::READ_OK).map_err(|errno| failed("read", path, errno.into()))?;
        return Ok(Ok(Kind::File { len: metadata.len() }));
    }
    Ok(Err(if file_type.is_socket() {
        "a socket"
    } else if file_type.is_fifo() {
        "a named pipe"
    } else {
        "a device"
    }))
}
