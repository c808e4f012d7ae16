//! A directory that is filled while its stream comes.
//!
//! What is verified of the stream without a gap from its beginning on is unpacked at once: contents go to the
//! files that they are of, headers stay in the part file. What comes out of turn waits in the part file,
//! which gives its room back piece by piece when the turn comes. So a directory needs its room once, most of
//! its bytes are written once, and at the end it only gets its name.
//!
//! An earlier try that has ended leaves both. The next one puts the contents back into the part file, checks
//! them there as it does of any other object, and unpacks what is right.

use super::ArchiveError;
use super::format::{Entry, Kind, padded};
use super::publish::{Staging, WITHIN, failed};
use super::unpack::{Stream, Tree, Unpacked, components, open_directory};
use crate::holes::{punch, write_over, write_sparse};
use crate::scratch::remove_tree;
use polycast_types::RangeSet;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Size of the pieces in which waiting bytes are taken out of the part file. No entry's headers are longer.
const PIECE_LEN: u64 = 1 << 20;
/// Limit on the waiting bytes that are taken out of the part file in one turn, since a receiver takes no
/// packets meanwhile: some milliseconds.
const TURN_LEN: u64 = 4 << 20;
/// Headers are looked for in so many bytes first: names are short mostly.
const HEADERS_LEN_USUAL: u64 = 4 << 10;
/// Number of files that stay open between reads.
const OPEN_FILES_MAX: usize = 16;

/// Position of a file's contents in the stream.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Start of the headers that name the file.
    headers_at: u64,
    begin: u64,
    end: u64,
}

/// The file whose contents come now.
struct Current {
    file: Arc<File>,
    entry: Entry,
    extent: Extent,
}

/// The part file of a directory's stream.
#[derive(Clone, Copy)]
pub(crate) struct Waiting<'a> {
    /// It, open for reading and writing.
    pub(crate) file: &'a File,
    /// Path that messages show for it.
    pub(crate) shown: &'a Path,
}

impl Waiting<'_> {
    /// Writes over what an earlier try, or a group that came in part, has left there.
    fn write(&self, bytes: &[u8], at: u64) -> Result<(), ArchiveError> {
        write_over(self.file, bytes, at).map_err(|error| failed("write", self.shown, error))
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> Result<(), ArchiveError> {
        self.file.read_exact_at(bytes, at).map_err(|error| failed("read", self.shown, error))
    }

    /// Gives room back. A file system that cannot keeps it until the end.
    fn forget(&self, bytes: Range<u64>) {
        if !bytes.is_empty() {
            let _ = punch(self.file, bytes);
        }
    }
}

/// Location of bytes that are given to a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whereabouts {
    /// In memory only.
    InMemory,
    /// In the part file too.
    InPart,
}

/// A directory that is being filled.
pub(crate) struct Growing {
    /// `None` once it has its name, or is left.
    staging: Option<Staging>,
    tree: Tree,
    target: PathBuf,
    /// The stream's length in bytes.
    len: u64,
    /// All of the stream before this is where it belongs.
    placed: u64,
    /// Zeros fill the stream up to here.
    padding_to: u64,
    current: Option<Current>,
    /// Contents of the current file that are in it already, behind a gap.
    ahead: RangeSet,
    /// Extents of all files that have contents, in their order.
    extents: Vec<Extent>,
    /// The end of the stream was seen.
    ended: bool,
    /// Files that were read last, by their numbers.
    opened: Mutex<VecDeque<(usize, Arc<File>)>>,
}

impl std::fmt::Debug for Growing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Growing").field("target", &self.target).field("placed", &self.placed).finish()
    }
}

impl Growing {
    /// Begins at `place` what will be the directory `target`, whose stream has `len` bytes.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn begin(place: &Path, target: &Path, len: u64) -> Result<Self, ArchiveError> {
        let staging = Staging::at(place, target)?;
        let tree = Tree::new(staging.path(), target)?;
        Ok(Growing {
            staging: Some(staging),
            tree,
            target: target.to_path_buf(),
            len,
            placed: 0,
            padding_to: 0,
            current: None,
            ahead: RangeSet::new(),
            extents: Vec::new(),
            ended: false,
            opened: Mutex::default(),
        })
    }

    /// Takes verified bytes that begin at `at`. All of the stream before `verified_to` is verified, these
    /// included where they are before that.
    ///
    /// # Errors
    /// The stream is damaged or hostile, or the file system refuses.
    pub(crate) fn put(
        &mut self,
        part: Waiting<'_>,
        (bytes, whereabouts): (&[u8], Whereabouts),
        at: u64,
        verified_to: u64,
    ) -> Result<(), ArchiveError> {
        let is_next = at == self.placed && at < verified_to;
        let taken = match is_next {
            true => self.consume(part, bytes, whereabouts)?,
            false => self.put_ahead(bytes, at)?,
        };
        match whereabouts {
            Whereabouts::InMemory => part.write(&bytes[taken..], at + taken as u64)?,
            Whereabouts::InPart if !is_next => part.forget(at..at + taken as u64),
            Whereabouts::InPart => {}
        }
        self.advance(part, verified_to, TURN_LEN)
    }

    /// Puts into the current file what belongs to it behind a gap; gives how many of the bytes.
    fn put_ahead(&mut self, bytes: &[u8], at: u64) -> Result<usize, ArchiveError> {
        let Some(current) = &self.current else { return Ok(0) };
        if at < self.placed || at >= current.extent.end {
            return Ok(0);
        }
        let len = bytes.len().min(usize::try_from(current.extent.end - at).unwrap_or(usize::MAX));
        current.write(&self.tree, &bytes[..len], at)?;
        self.ahead.insert(at..at + len as u64);
        Ok(len)
    }

    /// Unpacks what waits in the part file and is verified, up to about `most` bytes of it.
    fn advance(&mut self, part: Waiting<'_>, verified_to: u64, most: u64) -> Result<(), ArchiveError> {
        let from = self.placed;
        let mut piece = Vec::new();
        while !self.ended && self.placed < verified_to && self.placed - from < most {
            if let Some(run) = self.ahead.run_at(self.placed) {
                self.placed = run.end;
                self.complete()?;
                continue;
            }
            let gap_to = self.ahead.first_present(self.placed).unwrap_or(u64::MAX);
            let end = verified_to.min(self.placed + PIECE_LEN).min(gap_to);
            piece.resize((end - self.placed) as usize, 0);
            part.read(&mut piece, self.placed)?;
            if self.consume(part, &piece, Whereabouts::InPart)? == 0 {
                // Headers that are not here as a whole.
                break;
            }
        }
        Ok(())
    }

    /// Unpacks bytes that come next in the stream; gives how many of them: headers that are not whole are
    /// left.
    fn consume(
        &mut self,
        part: Waiting<'_>,
        bytes: &[u8],
        whereabouts: Whereabouts,
    ) -> Result<usize, ArchiveError> {
        let begun_at = self.placed;
        let within = |at: u64| (at - begun_at) as usize;
        // Headers and padding stay in the part file: from here on they are not written yet.
        let mut kept_from = begun_at;
        let keep = |from: u64, to: u64| match whereabouts {
            Whereabouts::InMemory => part.write(&bytes[within(from)..within(to)], from),
            Whereabouts::InPart => Ok(()),
        };
        loop {
            let rest = &bytes[within(self.placed)..];
            if rest.is_empty() || self.ended {
                break;
            }
            let at = self.placed;
            if let Some(current) = &self.current {
                keep(kept_from, at)?;
                let len = (rest.len() as u64).min(current.extent.end - at);
                current.write(&self.tree, &rest[..len as usize], at)?;
                if whereabouts == Whereabouts::InPart {
                    part.forget(at..at + len);
                }
                self.placed += len;
                kept_from = self.placed;
                self.complete()?;
            } else if at < self.padding_to {
                self.placed += (rest.len() as u64).min(self.padding_to - at);
            } else {
                match next_entry(rest, at)? {
                    Next::Short => break,
                    Next::End => self.ended = true,
                    Next::Entry(entry, len) => {
                        self.begin_entry(entry, len)?;
                        self.placed += len;
                    }
                }
            }
        }
        keep(kept_from, self.placed)?;
        Ok(within(self.placed))
    }

    /// Makes what an entry describes whose headers begin at the place that is reached, and are so long.
    fn begin_entry(&mut self, entry: Entry, headers_len: u64) -> Result<(), ArchiveError> {
        let headers_at = self.placed;
        let begin = headers_at + headers_len;
        self.padding_to = begin;
        let made = self.tree.begin(&entry)?;
        let (Kind::File { len }, Some(file)) = (&entry.kind, made) else { return Ok(()) };
        if *len > self.len - begin.min(self.len) {
            return Err(ArchiveError::Malformed { offset: begin, what: "it ends too early" });
        }
        self.padding_to = begin + padded(*len);
        let extent = Extent { headers_at, begin, end: begin + len };
        if *len == 0 {
            return self.tree.end(&entry, &file);
        }
        self.extents.push(extent);
        self.ahead.clear();
        self.current = Some(Current { file: Arc::new(file), entry, extent });
        Ok(())
    }

    /// Gives the current file what it has at the source, if its contents are here.
    fn complete(&mut self) -> Result<(), ArchiveError> {
        let Some(current) = self.current.take_if(|current| self.placed >= current.extent.end) else {
            return Ok(());
        };
        self.ahead.clear();
        self.tree.end(&current.entry, &current.file)?;
        self.keep_open(self.extents.len() - 1, current.file);
        Ok(())
    }

    /// Unpacks what is left, and gives the directory its name. What has it already is replaced, if it is to
    /// be.
    ///
    /// # Errors
    /// The stream is damaged or hostile, something has the name, or the file system refuses.
    pub(crate) fn finish(&mut self, part: Waiting<'_>, replace: bool) -> Result<Unpacked, ArchiveError> {
        self.advance(part, self.len, u64::MAX)?;
        if !self.ended {
            return Err(ArchiveError::Malformed { offset: self.placed, what: "it ends too early" });
        }
        let staging = self.staging.as_mut().expect("it gets its name once");
        let unpacked = self.tree.finish(staging.folder(&self.target).as_deref())?;
        staging.publish(&self.target, replace)?;
        // What it has replaced goes with this.
        self.staging = None;
        Ok(unpacked)
    }

    /// Leaves it for another try.
    pub(crate) fn leave(&mut self) {
        if let Some(mut staging) = self.staging.take() {
            staging.keep();
        }
    }

    /// Removes it, unless it has its name.
    pub(crate) fn remove(&mut self) {
        self.staging = None;
    }

    /// Bytes that are in the directory's files, and not in the part file.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.placed + self.ahead.len()
    }

    /// Reads bytes of the stream, wherever they are.
    ///
    /// # Errors
    /// The file system fails, or the directory was changed.
    pub(crate) fn read(&self, part: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let (place, to) = self.place_of(at);
            let len = (buffer.len() - done).min(usize::try_from(to - at).unwrap_or(usize::MAX));
            let into = &mut buffer[done..done + len];
            match place {
                None => part.read_exact_at(into, at)?,
                Some(number) => {
                    let begin = self.extents[number].begin;
                    self.file(part, number)?.read_exact_at(into, at - begin)?;
                }
            }
            done += len;
        }
        Ok(())
    }

    /// In which file a byte of the stream is, `None` where that is the part file; and up to where the next
    /// ones are there too.
    fn place_of(&self, at: u64) -> (Option<usize>, u64) {
        let after = self.extents.partition_point(|extent| extent.begin <= at);
        let within = after.checked_sub(1).filter(|number| at < self.extents[*number].end);
        let Some(number) = within else {
            return (None, self.extents.get(after).map_or(u64::MAX, |next| next.begin));
        };
        let end = self.extents[number].end;
        if at < self.placed {
            return (Some(number), end.min(self.placed));
        }
        match self.ahead.run_at(at) {
            Some(run) => (Some(number), run.end.min(end)),
            None => (None, self.ahead.first_present(at).unwrap_or(end).min(end)),
        }
    }

    fn file(&self, part: &File, number: usize) -> io::Result<Arc<File>> {
        let is_last = number + 1 == self.extents.len();
        if let Some(current) = self.current.as_ref().filter(|_| is_last) {
            return Ok(Arc::clone(&current.file));
        }
        let known =
            self.opened().iter().find(|(known, _)| *known == number).map(|(_, file)| Arc::clone(file));
        if let Some(file) = known {
            return Ok(file);
        }
        let Extent { headers_at, begin, .. } = self.extents[number];
        let mut headers = vec![0; (begin - headers_at) as usize];
        part.read_exact_at(&mut headers, headers_at)?;
        let Next::Entry(entry, _) = next_entry(&headers, headers_at)? else {
            return Err(io::Error::other("its headers are not what they were"));
        };
        let file = Arc::new(open_in(self.tree.root(), &entry, OFlags::RDONLY)?);
        self.keep_open(number, Arc::clone(&file));
        Ok(file)
    }

    fn keep_open(&self, number: usize, file: Arc<File>) {
        let mut opened = self.opened();
        if opened.len() >= OPEN_FILES_MAX {
            opened.pop_front();
        }
        opened.push_back((number, file));
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, VecDeque<(usize, Arc<File>)>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    /// Writes bytes of the stream that begin at `at` there.
    fn write(&self, tree: &Tree, bytes: &[u8], at: u64) -> Result<(), ArchiveError> {
        write_sparse(&self.file, bytes, at - self.extent.begin)
            .map_err(|error| tree.failed_at("write", &self.entry, error))
    }
}

/// Element that a piece of a stream begins with.
enum Next {
    /// Headers that go on behind it.
    Short,
    /// The stream's end.
    End,
    /// An entry whose headers are so long.
    Entry(Entry, u64),
}

/// Reads the headers at the beginning of `bytes`, which begin at `at` in the stream.
fn next_entry(bytes: &[u8], at: u64) -> Result<Next, ArchiveError> {
    let mut window = Window { bytes, ran_out: false };
    let mut stream = Stream::from(&mut window, at);
    let read = stream.next_entry();
    let len = stream.offset() - at;
    match read {
        Ok(Some(entry)) => Ok(Next::Entry(entry, len)),
        Ok(None) => Ok(Next::End),
        Err(_) if window.ran_out => Ok(Next::Short),
        Err(error) => Err(error),
    }
}

/// Bytes that are read, and whether more of them were asked for than there are.
struct Window<'a> {
    bytes: &'a [u8],
    ran_out: bool,
}

impl Read for Window<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.ran_out |= buffer.len() > self.bytes.len();
        self.bytes.read(buffer)
    }
}

/// Opens the file that an entry describes, below `root`.
fn open_in(root: impl rustix::fd::AsFd, entry: &Entry, how: OFlags) -> io::Result<File> {
    let components = components(entry)?;
    let (name, parent) = components.split_last().ok_or(Errno::ISDIR)?;
    let mut folder = open_directory(root, ".".as_ref())?;
    for component in parent {
        folder = open_directory(&folder, component)?;
    }
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&folder, name.as_os_str(), flags, Mode::empty()) {
        // Its permissions are those of the source by now. It is this user's, and no link: a directory of this
        // user's alone has it.
        Err(Errno::ACCESS) if how.contains(OFlags::RDWR) => {
            rustix::fs::chmodat(&folder, name.as_os_str(), Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
            rustix::fs::openat(&folder, name.as_os_str(), flags, Mode::empty())?
        }
        opened => opened?,
    };
    Ok(File::from(file))
}

/// Puts back into the part file what an earlier try has unpacked at `left`, and removes that directory. What
/// cannot be put back comes again: nothing of it is believed before its hash is looked at.
///
/// # Errors
/// It is not what a try leaves, and stays.
pub(crate) fn put_back(part: &File, left: &Path) -> Result<(), &'static str> {
    let names: Option<Vec<_>> = std::fs::read_dir(left)
        .and_then(|names| names.map(|name| name.map(|name| name.file_name())).collect())
        .ok();
    if names.is_none_or(|names| names.iter().any(|name| name != WITHIN)) {
        return Err("is not what an earlier try leaves");
    }
    let stream_len = part.metadata().map_or(0, |there| there.len());
    if let Ok(root) = open_directory(CWD, left.join(WITHIN).as_os_str()) {
        let mut at = 0;
        while let Some((entry, headers_len)) = entry_at(part, at, stream_len) {
            let Kind::File { len } = entry.kind else {
                at += headers_len;
                continue;
            };
            let begin = at + headers_len;
            if len > stream_len - begin.min(stream_len) {
                break;
            }
            let moved =
                || open_in(&root, &entry, OFlags::RDWR).and_then(|file| move_back(&file, part, begin));
            if len > 0 && moved().is_err() {
                break;
            }
            at = begin + padded(len);
        }
    }
    remove_tree(left);
    if left.symlink_metadata().is_ok() { Err("cannot be removed") } else { Ok(()) }
}

/// The entry whose headers begin at `at` in a part file, and how long these are.
fn entry_at(part: &File, at: u64, stream_len: u64) -> Option<(Entry, u64)> {
    for most in [HEADERS_LEN_USUAL, PIECE_LEN] {
        let mut headers = vec![0; most.min(stream_len.saturating_sub(at)) as usize];
        part.read_exact_at(&mut headers, at).ok()?;
        match next_entry(&headers, at).ok()? {
            Next::Short => {}
            Next::End => return None,
            Next::Entry(entry, len) => return Some((entry, len)),
        }
    }
    None
}

/// Moves the contents of a file to their place in the stream, from the end on: what is moved is cut off, and
/// needs no room twice.
fn move_back(file: &File, part: &File, begin: u64) -> io::Result<()> {
    let mut end = file.metadata()?.len();
    let mut piece = Vec::new();
    while end > 0 {
        let from = (end - 1) / PIECE_LEN * PIECE_LEN;
        let mut at = from;
        // Holes are left out: what is in the part file there has not been unpacked.
        while let Ok(data) = rustix::fs::seek(file, SeekFrom::Data(at)) {
            let to = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(end).min(end);
            if data >= to {
                break;
            }
            piece.resize((to - data) as usize, 0);
            file.read_exact_at(&mut piece, data)?;
            part.write_all_at(&piece, begin + data)?;
            at = to;
        }
        file.set_len(from)?;
        end = from;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
