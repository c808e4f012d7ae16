//! A directory tree seen as one stream of bytes.

use super::ArchiveError;
use super::format::{Entry, Kind, ModificationTime, TRAILER_LEN, padded};
use crate::object::{ObjectSource, Stamp};
use rustix::fs::{Access, Mode, OFlags};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// How many files a tree keeps open between reads.
const OPEN_FILES_MAX: usize = 32;

/// A directory as an object, read in place.
///
/// The tree is walked once, in the order of names, when it is opened; what is added later is not
/// part of the object. Reads open files as they need them and keep a few of them open.
#[derive(Debug)]
pub struct TreeSource {
    root: PathBuf,
    entries: Vec<Placed>,
    len: u64,
    open: Mutex<VecDeque<(usize, Arc<File>)>>,
}

/// An entry and where it lies in the stream.
#[derive(Debug)]
struct Placed {
    entry: Entry,
    offset: u64,
    headers_len: u64,
}

impl TreeSource {
    /// Walks the directory at `path`.
    ///
    /// # Errors
    /// It is not a directory, a part of it cannot be read, or it holds a socket, a pipe or a device.
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        let metadata = fs::metadata(path).map_err(|source| failed("read", path, source))?;
        if !metadata.is_dir() {
            return Err(ArchiveError::NotADirectory { path: path.to_path_buf() });
        }
        let mut tree = TreeSource {
            root: path.to_path_buf(),
            entries: Vec::new(),
            len: 0,
            open: Mutex::new(VecDeque::with_capacity(OPEN_FILES_MAX)),
        };
        tree.place(describe(Vec::new(), Kind::Directory, &metadata));
        tree.walk()?;
        tree.len += TRAILER_LEN;
        Ok(tree)
    }

    /// How many regular files the tree holds.
    #[must_use]
    pub fn file_count(&self) -> usize {
        self.entries.iter().filter(|placed| matches!(placed.entry.kind, Kind::File { .. })).count()
    }

    /// Visits all directories, each right after its entry was placed: parents come before children.
    fn walk(&mut self) -> Result<(), ArchiveError> {
        // Entries still to be placed, the next one last.
        let mut pending = self.list(&[])?;
        while let Some(entry) = pending.pop() {
            if entry.kind == Kind::Directory {
                let below = self.list(&entry.name)?;
                self.place(entry);
                pending.extend(below);
            } else {
                self.place(entry);
            }
        }
        Ok(())
    }

    /// The entries of one directory, in falling order of their names.
    fn list(&self, directory: &[u8]) -> Result<Vec<Entry>, ArchiveError> {
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
            let metadata = item.metadata().map_err(|source| failed("read", &item_path, source))?;
            let kind = kind_of(&item_path, &metadata)?;
            entries.push(describe(name, kind, &metadata));
        }
        entries.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        Ok(entries)
    }

    fn place(&mut self, entry: Entry) {
        let headers_len = entry.headers().len() as u64;
        let content_len = padded(entry.content_len());
        self.entries.push(Placed { entry, offset: self.len, headers_len });
        self.len += headers_len + content_len;
    }

    fn path_of(&self, name: &[u8]) -> PathBuf {
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
                io::ErrorKind::UnexpectedEof => ArchiveError::Changed { path, how: "became shorter" },
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
        // What was a file may be a pipe by now: opening one must neither block nor follow a link.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(rustix::io::Errno::NOENT) => return Err(ArchiveError::Changed { path, how: "vanished" }),
            Err(rustix::io::Errno::LOOP) => {
                return Err(ArchiveError::Changed { path, how: "was replaced by a symbolic link" });
            }
            Err(errno) => return Err(failed("open", &path, errno.into())),
        };
        let metadata = file.metadata().map_err(|source| failed("read", &path, source))?;
        if !metadata.is_file() {
            return Err(ArchiveError::Changed { path, how: "was replaced by something that is not a file" });
        }
        if metadata.len() < self.entries[index].entry.content_len() {
            return Err(ArchiveError::Changed { path, how: "became shorter" });
        }
        Ok(file)
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
    let nanos = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
    let modified = ModificationTime { seconds: metadata.mtime(), nanos };
    Entry { name, kind, mode: metadata.mode() & 0o7777, modified }
}

/// What lies at `path`, if it can be delivered.
fn kind_of(path: &Path, metadata: &fs::Metadata) -> Result<Kind, ArchiveError> {
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        return Ok(Kind::Directory);
    }
    if file_type.is_symlink() {
        let target = fs::read_link(path).map_err(|source| failed("read the link", path, source))?;
        return Ok(Kind::Symlink { target: target.into_os_string().into_vec() });
    }
    if file_type.is_file() {
        // Said now rather than in the middle of the transfer.
        rustix::fs::access(path, Access::READ_OK).map_err(|errno| failed("read", path, errno.into()))?;
        return Ok(Kind::File { len: metadata.len() });
    }
    let what = if file_type.is_socket() {
        "a socket"
    } else if file_type.is_fifo() {
        "a named pipe"
    } else {
        "a device"
    };
    Err(ArchiveError::SpecialFile { path: path.to_path_buf(), what })
}
