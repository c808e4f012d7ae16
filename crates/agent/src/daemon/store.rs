//! The folder of received objects: one file with the bytes, and one that says what they are.
//!
//! The bytes appear under their name only when all of them are verified, and the description after that:
//! what a restarted agent finds with a description is whole.

use super::error::AgentError;
use super::users::Holder;
use polycast_net::lease::Alone;
use polycast_net::object::{MODE_USUAL, ObjectKind};
use polycast_net::store::{is_in_memory, is_part_name, part_path, recycle, remove_stale_part, sync_folder};
use polycast_types::{AppId, DataId, ObjectId};
use rustix::fs::{FlockOperation, flock, statvfs};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const BYTES: &str = "object";
const DESCRIPTION: &str = "toml";

/// What a try to receive has left is removed when no other try has gone on with it for so long.
const PART_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// What the bytes of a received object are.
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
    /// When it was received.
    pub since: SystemTime,
    /// When it was asked for last, as far as that was noted.
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
    root: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    brought_by: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    private: bool,
    #[serde(default)]
    pinned: bool,
}

fn usual_mode() -> u16 {
    MODE_USUAL
}

/// The folder; no other agent uses it while this value lives.
pub(crate) struct Store {
    folder: PathBuf,
    lock: File,
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
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| wrong("another agent uses it".into()))?;
        let store = Store { folder: folder.clone(), lock };
        let found = store.survey().map_err(|error| wrong(error.to_string()))?;
        Ok((store, found))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where an object's bytes are.
    pub(crate) fn path(&self, object: ObjectId) -> PathBuf {
        self.file(object, BYTES)
    }

    fn file(&self, object: ObjectId, extension: &str) -> PathBuf {
        self.folder.join(format!("{}-{}.{extension}", object.app, object.data.0))
    }

    /// Bytes that can still be written.
    pub(crate) fn free_bytes(&self) -> io::Result<u64> {
        let space = statvfs(&self.folder)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// Writes down what the bytes of an object are, which are on the disk by now: so is the description after this.
    pub(crate) fn describe(&self, object: ObjectId, description: &Description) -> io::Result<()> {
        let written = Written {
            name: description.name.clone(),
            directory: description.kind == ObjectKind::Directory,
            set: description.kind == ObjectKind::Set,
            length: description.length,
            mode: description.mode,
            root: description.root.clone(),
            brought_by: description.holder.map(|holder| holder.uid),
            private: description.holder.is_some_and(|holder| holder.private),
            pinned: description.pinned,
        };
        let text = toml::to_string(&written).map_err(io::Error::other)?;
        let passing = self.file(object, "new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&passing)?;
        file.write_all(text.as_bytes())?;
        if is_in_memory(&file) {
            return fs::rename(passing, self.file(object, DESCRIPTION));
        }
        file.sync_data()?;
        fs::rename(passing, self.file(object, DESCRIPTION))?;
        sync_folder(&self.folder)
    }

    /// Notes when an object was asked for, for a later run. It is no more than a note.
    pub(crate) fn note_use(&self, object: ObjectId, used: SystemTime) {
        let noted = File::open(self.file(object, DESCRIPTION))
            .and_then(|file| file.set_times(FileTimes::new().set_accessed(used)));
        if let Err(error) = noted {
            tracing::debug!(%object, %error, "when it was used is not noted");
        }
    }

    /// The object's bytes, if no process has them open or mapped; a process that opens them waits while this lives. `Err` where that cannot be
    /// known.
    pub(crate) fn alone(&self, object: ObjectId) -> io::Result<Option<Alone>> {
        Alone::with(&self.path(object))
    }

    /// Whether an object that comes could take the pages of one that is here: it has no part file, and the other one no second name.
    pub(crate) fn can_recycle(&self, old: ObjectId, coming: ObjectId) -> bool {
        let is_single = fs::symlink_metadata(self.path(old)).is_ok_and(|old| old.nlink() == 1);
        is_single && fs::symlink_metadata(part_path(&self.path(coming))).is_err()
    }

    /// Lets an object that comes take the pages of one that is not used any more; gives whether it does. The other one is
    /// gone in any case.
    pub(crate) fn recycle(&self, old: ObjectId, alone: Alone, coming: ObjectId) -> io::Result<bool> {
        // Bytes without a description are not taken for an object.
        remove_file(&self.file(old, DESCRIPTION))?;
        let recycled = recycle(&self.path(old), alone, &self.path(coming)).unwrap_or_else(|error| {
            tracing::warn!(object = %old, %error, "its pages are not used again");
            false
        });
        if !recycled {
            self.remove(old)?;
        } else if !self.is_in_memory() {
            // After a loss of power no description must stand beside bytes that are written over.
            sync_folder(&self.folder)?;
        }
        Ok(recycled)
    }

    /// Removes an object and what an earlier try to receive it has left; gives whether there was anything.
    pub(crate) fn remove(&self, object: ObjectId) -> io::Result<bool> {
        let bytes = self.path(object);
        // The description first: bytes without one are not taken for an object.
        let files = [self.file(object, DESCRIPTION), part_path(&bytes), bytes];
        let mut any = false;
        for file in files {
            any |= fs::symlink_metadata(&file).is_ok();
            remove_file(&file)?;
        }
        Ok(any)
    }

    /// What tries to receive have left: whose it is, how long, and since when it waits; the oldest first.
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

    /// Whether what is here takes the machine's memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        is_in_memory(&self.lock)
    }

    /// Removes what tries to receive have left, where no other try has gone on with it for long.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if is_part_name(&entry.file_name()) && remove_stale_part(&entry.path(), PART_AGE_MAX)? {
                tracing::info!(path = %entry.path().display(), "removed from the store: no try to receive went on with it");
            }
        }
        Ok(())
    }

    /// The objects that are whole; what is not is removed, except parts that another try can go on with.
    fn survey(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        self.sweep()?;
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            let Some(object) = path.file_stem().and_then(|stem| object_of(stem.to_str()?)) else { continue };
            match extension {
                BYTES => match self.description(object) {
                    Ok(Some(description)) => {
                        let metadata = fs::metadata(self.file(object, DESCRIPTION))?;
                        let since = metadata.modified()?;
                        let used = metadata.accessed().map_or(since, |used| used.max(since));
                        found.push(Found { id: object, description, since, used });
                    }
                    Ok(None) => {
                        tracing::warn!(%object, "removed from the store: it is not whole");
                        self.remove(object)?;
                    }
                    Err(reason) => {
                        // Another version may have written it, and a disk may read again.
                        let path = self.file(object, DESCRIPTION);
                        tracing::warn!(path = %path.display(), reason, "stays in the store unused: what it is cannot be read");
                    }
                },
                "new" => remove_file(&path)?,
                DESCRIPTION if self.path(object).try_exists().is_ok_and(|there| !there) => {
                    remove_file(&path)?
                }
                _ => {}
            }
        }
        found.sort_by_key(|found| found.id);
        Ok(found)
    }

    /// What is written of an object; nothing where it is not whole: descriptions are written last, each at once.
    fn description(&self, object: ObjectId) -> Result<Option<Description>, String> {
        let text = match fs::read_to_string(self.file(object, DESCRIPTION)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| error.to_string())?,
        };
        let written: Written = toml::from_str(&text).map_err(|error| error.message().to_string())?;
        let there = fs::symlink_metadata(self.path(object)).map_err(|error| error.to_string())?;
        Ok((there.is_file() && there.len() == written.length).then_some(Description {
            name: written.name,
            kind: match (written.directory, written.set) {
                (true, _) => ObjectKind::Directory,
                (false, true) => ObjectKind::Set,
                (false, false) => ObjectKind::File,
            },
            length: written.length,
            mode: written.mode,
            root: written.root,
            holder: written.brought_by.map(|uid| Holder { uid, private: written.private }),
            pinned: written.pinned,
        }))
    }
}

/// Removes a file; one that is gone already is as good.
fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
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
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn object(data: u64) -> ObjectId {
        ObjectId { app: AppId([7; 16]), data: DataId(data) }
    }

    fn description(length: u64) -> Description {
        Description {
            name: "a \"b\".bin".into(),
            kind: ObjectKind::Directory,
            length,
            mode: 0o750,
            root: "00ff".into(),
            holder: Some(Holder { uid: 1_000, private: true }),
            pinned: true,
        }
    }

    #[test]
    fn what_is_whole_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (store, found) = Store::open(folder.path()).unwrap();
        assert!(found.is_empty());
        for data in 1..=4 {
            fs::write(store.path(object(data)), b"abc").unwrap();
        }
        store.describe(object(1), &description(3)).unwrap();
        store.describe(object(2), &description(4)).unwrap();
        store.describe(object(3), &description(3)).unwrap();
        store.describe(object(5), &description(3)).unwrap();
        fs::remove_file(store.path(object(3))).unwrap();
        let part = part_path(&store.path(object(6)));
        fs::write(&part, b"ab").unwrap();
        // A week without another try is enough.
        let old = part_path(&store.path(object(7)));
        fs::write(&old, b"ab").unwrap();
        let week = PART_AGE_MAX + Duration::from_secs(60);
        File::open(&old).unwrap().set_modified(SystemTime::now() - week).unwrap();
        drop(store);
        let (store, found) = Store::open(folder.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id, &found[0].description), (object(1), &description(3)));
        assert_eq!(store.parts().unwrap()[0].0, object(6));
        // The lock, the one object's two files, and the part.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
        assert!(store.remove(object(6)).unwrap());
        assert!(store.remove(object(1)).unwrap());
        assert!(!store.remove(object(1)).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_read_now_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        for data in 1..=2 {
            fs::write(store.path(object(data)), b"abc").unwrap();
            store.describe(object(data), &description(3)).unwrap();
        }
        let (newer, odd) = (store.file(object(1), DESCRIPTION), store.file(object(2), DESCRIPTION));
        let text = fs::read_to_string(&newer).unwrap();
        fs::write(&newer, format!("{text}colour = \"blue\"\n")).unwrap();
        fs::remove_file(&odd).unwrap();
        fs::create_dir(&odd).unwrap();
        drop(store);
        let (store, found) = Store::open(folder.path()).unwrap();
        assert!(found.is_empty());
        assert_eq!(fs::read(store.path(object(1))).unwrap(), b"abc");
        assert_eq!(fs::read(store.path(object(2))).unwrap(), b"abc");
        fs::write(&newer, text).unwrap();
        drop(store);
        let (_, found) = Store::open(folder.path()).unwrap();
        assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), [object(1)], "it is of use again");
    }

    #[test]
    fn a_store_belongs_to_one_agent() {
        let folder = tempfile::tempdir().unwrap();
        let (first, _) = Store::open(folder.path()).unwrap();
        let error = Store::open(folder.path()).err().unwrap().to_string();
        assert!(error.ends_with("another agent uses it"), "{error}");
        drop(first);
        assert!(Store::open(folder.path()).is_ok());
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Store::open(&open).err().unwrap().to_string();
        assert!(error.contains("other users can change"), "{error}");
    }
}
