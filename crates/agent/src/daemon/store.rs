//! The folder of received objects: one file with the bytes, and one that says what they are.
//!
//! Both get their names when all bytes are verified, in the order of [`keeping`]: what a restarted agent
//! finds with a description is whole, also after a loss of power where the store is on a disk, and what was
//! said to be received is found. On a disk that costs an object two calls that wait for it, for the bytes and
//! for the description, and a third for the folder, which objects that end at one moment share.

mod names;

use super::error::AgentError;
use super::users::Holder;
use names::Names;
use polycast_api::error::{Kind, Refusal};
use polycast_net::file_system::{Lock, time_of};
use polycast_net::lease::Alone;
use polycast_net::object::{MODE_USUAL, ObjectKind};
use polycast_net::store::{
    is_in_memory, is_part_name, part_path, passing_file, recycle, remove_stale_part, set_back, sync_folder,
};
use polycast_protocol::keeping::{self, Described, Place, Step, Verdict};
use polycast_types::{AppId, DataId, ModificationTime, ObjectId};
use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const BYTES: &str = "object";
const DESCRIPTION: &str = "toml";
/// Extension of a delta that an object is made from; it is never kept.
const DELTA: &str = "delta";
/// Extension of a description that has not got its name yet.
const PASSING: &str = "new";

/// Age at which the remains of an attempt to receive are removed, if no other attempt has continued it.
const PART_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Description of the bytes of a received object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Description {
    /// The name that it had at the source.
    pub name: String,
    /// File, directory or set.
    pub kind: ObjectKind,
    /// Length in bytes.
    pub length: u64,
    /// Permissions that the file had at the source.
    pub mode: u16,
    /// Time of the file's last change at the source, if known.
    pub modified: Option<ModificationTime>,
    /// BLAKE3 root hash in hex.
    pub root: String,
    /// The user of this host who has brought it.
    pub holder: Option<Holder>,
    /// It stays, whatever else needs its room.
    pub pinned: bool,
}

/// An object that an earlier run has received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub id: ObjectId,
    pub description: Description,
    /// Time when it was received.
    pub since: SystemTime,
    /// Time of the last request for it, as far as that was noted.
    pub used: SystemTime,
}

/// A description as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    directory: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    set: bool,
    length: u64,
    #[serde(default = "usual_mode")]
    mode: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modified_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    modified_nanos: u32,
    root: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    brought_by: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    private: bool,
    #[serde(default)]
    pinned: bool,
    /// Time of the last write to the bytes, when all of them were verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    written_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    written_nanos: u32,
}

impl Written {
    fn written(&self) -> Option<ModificationTime> {
        self.written_seconds.and_then(|seconds| ModificationTime::new(seconds, self.written_nanos))
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn usual_mode() -> u16 {
    MODE_USUAL
}

/// The folder; no other agent uses it while this value lives.
pub(crate) struct Store {
    folder: PathBuf,
    lock: File,
    names: Names,
}

/// The bytes of an object that is about to get its place: all of them are in its part file, and are verified.
pub(crate) struct Arrived<'a> {
    pub part: &'a Path,
    pub file: &'a File,
}

/// Another agent may use the folder.
impl Drop for Store {
    fn drop(&mut self) {
        polycast_net::file_system::unlock(&self.lock);
    }
}

impl Store {
    /// Opens or makes the store, and gives what an earlier run has left in it.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Vec<Found>), AgentError> {
        let wrong = |reason: String| AgentError::store(folder, reason);
        let folder = std::path::absolute(folder).map_err(|error| wrong(error.to_string()))?;
        trusted_folder(&folder).map_err(wrong)?;
        let mode = fs::metadata(&folder).map_err(|error| wrong(error.to_string()))?.mode();
        if mode & 0o002 != 0 {
            return Err(wrong("other users can write to it".into()));
        }
        let lock = File::create(folder.join(".lock")).map_err(|error| wrong(error.to_string()))?;
        if polycast_net::file_system::lock(&lock, &folder) == Lock::Busy {
            return Err(wrong("another agent uses it".into()));
        }
        let store = Store { folder: folder.clone(), lock, names: Names::new() };
        let found = store.survey().map_err(|error| wrong(error.to_string()))?;
        if !found.is_empty() && !store.is_in_memory() {
            // An agent that was killed just before it would have said that an object is here says so now.
            let synced = store.names.sync(|| sync_folder(&folder));
            synced.map_err(|error| wrong(error.to_string()))?;
        }
        Ok((store, found))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of an object's bytes.
    pub(crate) fn path(&self, object: ObjectId) -> PathBuf {
        self.file(object, BYTES)
    }

    /// Returns the path of the delta that an object is made from.
    pub(crate) fn delta_path(&self, object: ObjectId) -> PathBuf {
        self.file(object, DELTA)
    }

    /// Removes what has come of a delta.
    pub(crate) fn forget_delta(&self, object: ObjectId) {
        if let Err(error) = remove_file(&part_path(&self.delta_path(object))) {
            tracing::debug!(%object, %error, "what has come of its delta stays");
        }
    }

    /// A file without a name, in the store's file system: it goes when no process has it open any more.
    pub(crate) fn passing_file(&self) -> io::Result<File> {
        passing_file(&self.folder)
    }

    fn file(&self, object: ObjectId, extension: &str) -> PathBuf {
        self.folder.join(format!("{}-{}.{extension}", object.app, object.data.0))
    }

    /// Bytes that can still be written.
    pub(crate) fn free_bytes(&self) -> io::Result<u64> {
        let space = statvfs(&self.folder)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// Bytes that the store's file system has in all.
    pub(crate) fn size_bytes(&self) -> io::Result<u64> {
        let space = statvfs(&self.folder)?;
        Ok(space.f_blocks.saturating_mul(space.f_frsize))
    }

    /// Gives an object its place. When this has returned the object is found by any later run, and only then
    /// may a source or the manager hear that it is here. Where it fails the bytes are a part file as before.
    pub(crate) fn keep(
        &self,
        object: ObjectId,
        arrived: &Arrived<'_>,
        description: &Description,
    ) -> io::Result<()> {
        let has = |extension| fs::symlink_metadata(self.file(object, extension)).is_ok();
        let place = Place {
            lasts: !self.is_in_memory(),
            is_free: !has(BYTES) && !has(DESCRIPTION),
            is_settled: self.names.are_settled(),
        };
        let mut done = Vec::new();
        for step in keeping::steps(place) {
            if let Err(error) = self.step(step, object, arrived, description) {
                self.undo(&done, object, arrived);
                return Err(error);
            }
            done.push(step);
        }
        Ok(())
    }

    fn step(
        &self,
        step: Step,
        object: ObjectId,
        arrived: &Arrived<'_>,
        description: &Description,
    ) -> io::Result<()> {
        match step {
            Step::Vacate => {
                self.take_away(&self.path(object))?;
                self.take_away(&self.file(object, DESCRIPTION)).map(drop)
            }
            Step::SyncRemovals | Step::SyncNames => self.names.sync(|| sync_folder(&self.folder)),
            Step::SyncBytes => arrived.file.sync_data(),
            Step::Describe => {
                let written = time_of(&arrived.file.metadata()?);
                self.write(object, description, Some(written)).map(drop)
            }
            Step::SyncDescription => File::open(self.file(object, PASSING))?.sync_data(),
            Step::NameBytes => self.name(arrived.part, &self.path(object)),
            Step::NameDescription => self.name(&self.file(object, PASSING), &self.file(object, DESCRIPTION)),
            // The caller does, when this has ended.
            Step::Report => Ok(()),
        }
    }

    /// Takes an object's names back that it has got, as far as that is possible: what is left even so is
    /// judged at the next start.
    fn undo(&self, done: &[Step], object: ObjectId, arrived: &Arrived<'_>) {
        let mut undone = remove_file(&self.file(object, PASSING)).map(drop);
        if done.contains(&Step::NameDescription) {
            undone = undone.and(self.take_away(&self.file(object, DESCRIPTION)).map(drop));
        }
        if done.contains(&Step::NameBytes) {
            self.names.taken_away();
            undone = undone.and(fs::rename(self.path(object), arrived.part));
        }
        if let Err(error) = undone {
            tracing::warn!(%object, %error, "what was stored of it is not taken back");
        }
    }

    /// Writes down what the bytes of an object are, under a passing name.
    fn write(
        &self,
        object: ObjectId,
        description: &Description,
        written: Option<ModificationTime>,
    ) -> io::Result<File> {
        let written = Written {
            name: description.name.clone(),
            directory: description.kind == ObjectKind::Directory,
            set: description.kind == ObjectKind::Set,
            length: description.length,
            mode: description.mode,
            modified_seconds: description.modified.map(|modified| modified.seconds),
            modified_nanos: description.modified.map_or(0, |modified| modified.nanos),
            root: description.root.clone(),
            brought_by: description.holder.map(|holder| holder.uid),
            private: description.holder.is_some_and(|holder| holder.private),
            pinned: description.pinned,
            written_seconds: written.map(|written| written.seconds),
            written_nanos: written.map_or(0, |written| written.nanos),
        };
        let text = toml::to_string(&written).map_err(io::Error::other)?;
        let passing = self.file(object, PASSING);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&passing)?;
        file.write_all(text.as_bytes())?;
        Ok(file)
    }

    /// Writes down anew what the bytes of an object are that is here: it is pinned, or is not any more.
    pub(crate) fn describe(&self, object: ObjectId, description: &Description) -> io::Result<()> {
        // What the bytes were when they were verified, and not what they are by now.
        let before = read(&self.file(object, DESCRIPTION)).ok().flatten();
        let file = self.write(object, description, before.and_then(|before| before.written()))?;
        let lasts = !self.is_in_memory();
        if lasts {
            file.sync_data()?;
        }
        self.name(&self.file(object, PASSING), &self.file(object, DESCRIPTION))?;
        if lasts { self.names.sync(|| sync_folder(&self.folder)) } else { Ok(()) }
    }

    fn name(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)?;
        self.names.given();
        Ok(())
    }

    /// Removes a file; gives whether there was one. It may come back with a loss of power, until the names
    /// are synced.
    fn take_away(&self, path: &Path) -> io::Result<bool> {
        let removed = remove_file(path)?;
        if removed {
            self.names.taken_away();
        }
        Ok(removed)
    }

    /// Returns the room that an object's bytes take so far, whether all of them are here or not.
    pub(crate) fn written_bytes(&self, object: ObjectId) -> u64 {
        let path = self.path(object);
        let of = |path: &Path| fs::symlink_metadata(path).map_or(0, |file| file.blocks() * 512);
        of(&path).max(of(&part_path(&path)))
    }

    /// The room that would be free if an object went, or what a try to receive it has left: bytes that have
    /// another name keep theirs.
    pub(crate) fn freed_bytes(&self, object: ObjectId) -> u64 {
        let path = self.path(object);
        let of = |path: &Path| match fs::symlink_metadata(path) {
            Ok(file) if file.nlink() == 1 => file.blocks() * 512,
            _ => 0,
        };
        of(&path).saturating_add(of(&part_path(&path)))
    }

    /// Notes when an object was asked for, for a later run. It is no more than a note.
    pub(crate) fn note_use(&self, object: ObjectId, used: SystemTime) {
        let noted = File::open(self.file(object, DESCRIPTION))
            .and_then(|file| file.set_times(FileTimes::new().set_accessed(used)));
        if let Err(error) = noted {
            tracing::debug!(%object, %error, "when it was used is not noted");
        }
    }

    /// The object's bytes, if no process has them open or mapped; a process that opens them waits while this
    /// lives. `Err` where that cannot be known.
    pub(crate) fn alone(&self, object: ObjectId) -> io::Result<Option<Alone>> {
        Alone::with(&self.path(object))
    }

    /// Returns true if an incoming object could take the pages of one that is here: it has no part file, and
    /// the other one no second name.
    pub(crate) fn can_recycle(&self, old: ObjectId, coming: ObjectId) -> bool {
        let is_single = fs::symlink_metadata(self.path(old)).is_ok_and(|old| old.nlink() == 1);
        is_single && fs::symlink_metadata(part_path(&self.path(coming))).is_err()
    }

    /// Lets an object that comes take the pages of one that is not used any more; gives whether it does. The
    /// other one is gone in any case.
    pub(crate) fn recycle(&self, old: ObjectId, alone: Alone, coming: ObjectId) -> io::Result<bool> {
        // Bytes without a description are not taken for an object.
        self.take_away(&self.file(old, DESCRIPTION))?;
        let recycled = recycle(&self.path(old), alone, &self.path(coming)).unwrap_or_else(|error| {
            tracing::warn!(object = %old, %error, "its pages are not used again");
            false
        });
        if !recycled {
            self.remove(old)?;
        } else if !self.is_in_memory() {
            // After a loss of power no description must stand beside bytes that are written over.
            self.names.taken_away();
            self.names.sync(|| sync_folder(&self.folder))?;
        }
        Ok(recycled)
    }

    /// Removes an object and what an earlier try to receive it has left; gives whether there was anything.
    pub(crate) fn remove(&self, object: ObjectId) -> io::Result<bool> {
        let bytes = self.path(object);
        // The description last: bytes without one would be taken for what a try to receive has left.
        let files = [part_path(&bytes), bytes, self.file(object, DESCRIPTION)];
        let mut any = false;
        for file in files {
            any |= self.take_away(&file)?;
        }
        Ok(any)
    }

    /// Makes an object that an earlier run has received what a try to receive it has left: not all is here
    /// that belongs to it.
    pub(crate) fn set_back(&self, object: ObjectId) -> io::Result<()> {
        self.take_away(&self.file(object, DESCRIPTION))?;
        self.names.taken_away();
        set_back(&self.path(object))
    }

    /// Returns the remains of attempts to receive: the object, the length, and the time since which each
    /// waits; the oldest first.
    pub(crate) fn parts(&self) -> io::Result<Vec<(ObjectId, u64, SystemTime)>> {
        let mut parts = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(object) = is_part_name(&name).then(|| part_of(name.to_str()?)).flatten() else {
                continue;
            };
            let metadata = entry.metadata()?;
            parts.push((object, metadata.len(), metadata.modified()?));
        }
        parts.sort_by_key(|(object, _, since)| (*since, *object));
        Ok(parts)
    }

    /// Returns true if the store takes the machine's memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        is_in_memory(&self.lock)
    }

    /// Removes what tries to receive have left, where no other try has gone on with it for long.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            // No other try goes on with a delta: the next one may be against another version.
            let is_delta = name.to_str().is_some_and(|name| name.contains(&format!(".{DELTA}.")));
            let age_max = if is_delta { Duration::ZERO } else { PART_AGE_MAX };
            if is_part_name(&name) && remove_stale_part(&entry.path(), age_max)? {
                tracing::info!(path = %entry.path().display(), "removed from the store: no try to receive went on with it");
            }
        }
        Ok(())
    }

    /// The objects that are whole; bytes that no description vouches for become parts again that another try
    /// can go on with.
    fn survey(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        self.sweep()?;
        let paths: io::Result<Vec<PathBuf>> =
            fs::read_dir(&self.folder)?.map(|entry| entry.map(|entry| entry.path())).collect();
        for path in paths? {
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            let Some(object) = path.file_stem().and_then(|stem| object_of(stem.to_str()?)) else { continue };
            match extension {
                BYTES => found.extend(self.look_at(object)?),
                DESCRIPTION if fs::symlink_metadata(self.path(object)).is_err() => {
                    self.take_away(&path)?;
                }
                PASSING => drop(remove_file(&path)?),
                _ => {}
            }
        }
        found.sort_by_key(|found| found.id);
        Ok(found)
    }

    /// Determines at a start which object the bytes are.
    fn look_at(&self, object: ObjectId) -> io::Result<Option<Found>> {
        let noted = fs::metadata(self.file(object, DESCRIPTION));
        let described = self.description(object);
        let standing = match &described {
            Ok(None) => Described::Nothing,
            Ok(Some(description)) => Described::Of {
                length_bytes: description.length,
                is_of_these: is_as_written(&self.path(object)),
            },
            Err(_) => Described::Unreadable,
        };
        // Under relatime the kernel may take this reading for a use of the object: the time is put back.
        if let Some(used) = noted.as_ref().ok().and_then(|noted| noted.accessed().ok()) {
            self.note_use(object, used);
        }
        let bytes = fs::symlink_metadata(self.path(object)).ok().filter(fs::Metadata::is_file);
        match (keeping::verdict(bytes.as_ref().map(fs::Metadata::len), standing), described) {
            (Verdict::Whole, Ok(Some(description))) => {
                let metadata = noted?;
                let described = metadata.modified()?;
                // Of one that was pinned meanwhile the description is younger than the bytes are.
                let since =
                    bytes.and_then(|bytes| bytes.modified().ok()).map_or(described, |at| at.min(described));
                let used = metadata.accessed().map_or(since, |used| used.max(since));
                return Ok(Some(Found { id: object, description, since, used }));
            }
            (Verdict::Rest, _) => match self.set_back(object) {
                Ok(()) => {
                    tracing::warn!(%object, "what is in the store of it is checked by its next transfer: no description says that it is whole, or it was changed since")
                }
                Err(error) => {
                    tracing::warn!(%object, %error, "stays in the store unused: no description says that it is whole")
                }
            },
            (Verdict::Stray, _) => drop(self.take_away(&self.file(object, DESCRIPTION))?),
            (_, Err(reason)) => {
                // Another version may have written it, and a disk may read again.
                let path = self.file(object, DESCRIPTION);
                tracing::warn!(path = %path.display(), reason, "stays in the store unused: what it is cannot be read");
            }
            (_, Ok(_)) => {}
        }
        Ok(None)
    }

    /// Reads the description of an object; `None` if it has none.
    fn description(&self, object: ObjectId) -> Result<Option<Description>, String> {
        let Some(written) = read(&self.file(object, DESCRIPTION))? else { return Ok(None) };
        Ok(Some(Description {
            name: written.name,
            kind: match (written.directory, written.set) {
                (true, _) => ObjectKind::Directory,
                (false, true) => ObjectKind::Set,
                (false, false) => ObjectKind::File,
            },
            length: written.length,
            mode: written.mode,
            modified: written
                .modified_seconds
                .and_then(|seconds| ModificationTime::new(seconds, written.modified_nanos)),
            root: written.root,
            // A set that a user of this host has was added by its path: `Put` takes none.
            holder: written.brought_by.map(|uid| Holder {
                uid,
                private: written.private,
                in_place: written.set,
            }),
            pinned: written.pinned,
        }))
    }
}

/// Reads the contents of a description; `None` if there is none.
fn read(path: &Path) -> Result<Option<Written>, String> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| error.to_string())?,
    };
    toml::from_str(&text).map(Some).map_err(|error| error.message().to_string())
}

/// Returns true if an object's bytes were not written to since they were verified, as far as their time
/// shows. A description of an earlier version does not contain that time: then it is itself younger than they
/// are.
fn is_as_written(bytes: &Path) -> bool {
    let path = bytes.with_extension(DESCRIPTION);
    let (Ok(now), Ok(described)) = (fs::metadata(bytes), fs::metadata(&path)) else { return true };
    // What cannot be read is judged elsewhere.
    let Ok(Some(written)) = read(&path) else { return true };
    let now = time_of(&now);
    match written.written() {
        // Some file systems keep two seconds together, and show the whole time until they are mounted again.
        Some(then) => {
            now == then || (now.nanos == 0 && (0..=2).contains(&(then.seconds - now.seconds).abs()))
        }
        None => now <= time_of(&described),
    }
}

/// Looks whether the bytes of an object in the store are still those that were verified.
///
/// # Errors
/// Another program has written to them.
pub(crate) fn check_bytes(bytes: &Path) -> Result<(), Refusal> {
    if is_as_written(bytes) {
        return Ok(());
    }
    let message = format!(
        "{} was changed since its bytes were verified: remove the object with `polycast rm`, and have it sent again",
        bytes.display()
    );
    Err(Refusal::new(Kind::Path, message))
}

/// Removes a file; gives whether there was one.
fn remove_file(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

/// The object whose files have this name.
fn object_of(stem: &str) -> Option<ObjectId> {
    let (app, data) = stem.rsplit_once('-')?;
    let app: AppId = app.parse().ok()?;
    Some(ObjectId { app, data: DataId(data.parse().ok()?) })
}

/// The object whose part has this name: hidden, and with an ending more.
fn part_of(name: &str) -> Option<ObjectId> {
    let (stem, _) = name.strip_prefix('.')?.split_once(&format!(".{BYTES}."))?;
    object_of(stem)
}

/// Makes a folder, and those above it, for this user; gives why it cannot be trusted.
///
/// In shared memory and temporary folders every user can make folders: one that another user has made, or
/// that every user can write to, could be changed under us.
pub(super) fn trusted_folder(folder: &Path) -> Result<(), String> {
    if folder.as_os_str().is_empty() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| error.to_string())?;
    let folder = fs::canonicalize(folder).map_err(|error| error.to_string())?;
    let mut below: Option<fs::Metadata> = None;
    for ancestor in folder.ancestors() {
        let metadata = fs::metadata(ancestor).map_err(|error| error.to_string())?;
        let (shared, sticky) = (metadata.mode() & 0o002 != 0, metadata.mode() & 0o1000 != 0);
        let owners = [rustix::process::geteuid().as_raw(), 0];
        let foreign = below.is_some_and(|below| !owners.contains(&below.uid()));
        if shared && (!sticky || foreign) {
            return Err(format!("other users can change what is in {}", ancestor.display()));
        }
        below = Some(metadata);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
