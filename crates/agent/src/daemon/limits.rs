//! Limits on the size of the store and on the age of its objects: those that have not been requested for the
//! longest time make room for new ones, but none that is pinned or in use. The available room follows from
//! the settings, from the space left in the store's file system, and for a store in memory from the memory
//! left in its control group; the amount to remove follows from these ([`room`]).

mod memory;
mod room;

use super::catalog::{Catalog, Idle};
use super::store::Store;
use super::users::User;
use memory::Memory;
use polycast_api::error::{Kind, Refusal};
use polycast_net::lease::Alone;
use polycast_types::{ObjectId, format_bytes};
use room::{Lack, Room};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A store in memory gets this part of the machine's memory, unless settings say otherwise.
const PART_OF_MEMORY: u64 = 2;
/// A store on a file system in memory that has less than this in all is spoken of: containers have 64 MiB
/// unless they are told otherwise.
const SMALL_BYTES: u64 = 256 << 20;
/// A version is not written over so soon after a user was told where it is.
const RESTS: Duration = Duration::from_millis(500);
/// Part files that are known to be of older versions; others are taken for rests of an earlier try.
const ASIDE_MAX: usize = 4_096;
/// Rests that are told at a time.
const RESTS_MAX: usize = 256;
/// Shortest time between two searches for remains of attempts to receive.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Objects that are too old are looked for at least this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Limits of the store.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Bytes; `None`: as much as its file system.
    most: Option<u64>,
    /// Time that an object stays; `None`: until a user removes it.
    ttl: Option<Duration>,
    /// Held while room is made, so that two objects are not promised the same bytes.
    making: Mutex<()>,
    /// Objects whose part files have what an object of the same number had before.
    aside: Mutex<BTreeSet<ObjectId>>,
    /// The part files of the store, as of the last look.
    parts: Mutex<Option<Parts>>,
    swept: Mutex<Option<Instant>>,
    /// Memory that the store lies in; `None` on a disk.
    memory: Option<Memory>,
    /// Reads the free space of its file system.
    free: fn(&Store) -> io::Result<u64>,
}

/// Remains of an interrupted transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rest {
    pub id: ObjectId,
    /// Length of the object.
    pub len_bytes: u64,
    /// Bytes of it that are stored.
    pub stored_bytes: u64,
    pub since: SystemTime,
}

/// The part files that a store has.
#[derive(Clone, Debug)]
struct Parts {
    /// Number of objects that had been removed or had failed to arrive: only then is a part file left.
    gone: u64,
    found: Vec<(ObjectId, u64, SystemTime)>,
}

impl Limits {
    /// Takes the limits of the settings, or the ones that suit a store of this kind.
    pub(crate) fn new(most: Option<u64>, ttl: Option<Duration>, store: &Store) -> Self {
        let memory = store.is_in_memory().then(Memory::default);
        let part = || Some(memory.as_ref()?.all_bytes()? / PART_OF_MEMORY);
        Limits {
            most: most.or_else(part),
            free: Store::free_bytes,
            memory,
            ttl,
            making: Mutex::default(),
            aside: Mutex::default(),
            parts: Mutex::default(),
            swept: Mutex::default(),
        }
    }

    pub(crate) fn most(&self) -> Option<u64> {
        self.most
    }

    /// Returns the warning about a store that is too small for most objects.
    pub(crate) fn warning(&self, store: &Store) -> Option<String> {
        let size_bytes = store.size_bytes().ok()?;
        (self.memory.is_some() && size_bytes < SMALL_BYTES).then(|| {
            format!(
                "the store has {} in all, and takes no object that is larger: give the container more shared memory (--shm-size), or the agent another folder (--store)",
                format_bytes(size_bytes)
            )
        })
    }

    /// Returns the interval of the checks for objects that are too old; `None` if objects never expire.
    pub(crate) fn look_interval(&self) -> Option<Duration> {
        self.ttl.map(|ttl| (ttl / 4).clamp(Duration::from_millis(100), LOOK_INTERVAL))
    }

    /// Removes what has been here for too long and is not in use.
    pub(crate) fn expire(&self, catalog: &Catalog, store: &Store) {
        let Some(ttl) = self.ttl else { return };
        let now = SystemTime::now();
        for idle in catalog.idle() {
            if now.duration_since(idle.since).is_ok_and(|age| age >= ttl) {
                let _gone = evict(catalog, store, idle.id, "it was here for store-ttl");
            }
        }
    }

    /// Makes room for an object of so many bytes that is about to come: the ones go whose place a newer
    /// version has taken, then those that have not been asked for for the longest time, and then what
    /// interrupted transfers have left. Nothing goes where that would not be enough.
    pub(crate) fn make_room(
        &self,
        catalog: &Catalog,
        store: &Store,
        coming: ObjectId,
        bytes: u64,
    ) -> Result<(), Refusal> {
        let now = SystemTime::now();
        self.make_pages(Recycling { catalog, store, coming, bytes, now, may: false, done: false }).map(drop)
    }

    /// The same, but the object may take the pages of one of the same length that goes; gives whether it
    /// does.
    pub(crate) fn make_room_or_recycle(
        &self,
        catalog: &Catalog,
        store: &Store,
        coming: ObjectId,
        bytes: u64,
    ) -> Result<bool, Refusal> {
        self.recycle_at(SystemTime::now(), catalog, store, coming, bytes)
    }

    fn recycle_at(
        &self,
        now: SystemTime,
        catalog: &Catalog,
        store: &Store,
        coming: ObjectId,
        bytes: u64,
    ) -> Result<bool, Refusal> {
        // What is there of its number has a part file already.
        let aside = self.aside().remove(&coming);
        let recycled =
            self.make_pages(Recycling { catalog, store, coming, bytes, now, may: !aside, done: false })?;
        Ok(recycled || aside)
    }

    /// Removes an object in whose place another one of its number is about to come: its pages are kept for
    /// that one, if no process has them open. Gives whether there was anything.
    pub(crate) fn set_aside(&self, store: &Store, id: ObjectId) -> io::Result<bool> {
        let Ok(Some(alone)) = store.alone(id) else { return store.remove(id) };
        if store.recycle(id, alone, id)? {
            let mut aside = self.aside();
            if aside.len() < ASIDE_MAX {
                aside.insert(id);
            }
        }
        Ok(true)
    }

    /// Removes what tries to receive have left long ago, unless it was looked for just now: a store may have
    /// very many files.
    pub(crate) fn sweep(&self, store: &Store) {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if swept.is_some_and(|at| at.elapsed() < SWEEP_INTERVAL) {
            return;
        }
        *swept = Some(Instant::now());
        drop(swept);
        if let Err(error) = store.sweep() {
            tracing::warn!(%error, "the store cannot be looked through");
        }
    }

    /// Returns the remains of interrupted transfers that other objects do not need; the folder is read when
    /// there may be more.
    fn left(
        &self,
        catalog: &Catalog,
        store: &Store,
        coming: Option<ObjectId>,
    ) -> Vec<(ObjectId, u64, SystemTime)> {
        let gone = catalog.gone();
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.as_ref().is_none_or(|parts| parts.gone != gone) {
            *parts = Some(Parts { gone, found: store.parts().unwrap_or_default() });
        }
        let is_left = |id: &ObjectId| Some(*id) != coming && !catalog.is_known(*id);
        let found = parts.iter().flat_map(|parts| &parts.found);
        found.filter(|(id, ..)| is_left(id)).copied().collect()
    }

    /// Returns the remains of interrupted transfers, the oldest first; at most [`RESTS_MAX`].
    pub(crate) fn rests(&self, catalog: &Catalog, store: &Store) -> Vec<Rest> {
        let left = self.left(catalog, store, None).into_iter().take(RESTS_MAX);
        let rest = |(id, len, since): (ObjectId, u64, SystemTime)| {
            // A part of an older version is as long as that one was, and as full.
            Rest { id, len_bytes: len, stored_bytes: store.written_bytes(id).min(len), since }
        };
        left.map(rest).collect()
    }

    fn aside(&self) -> MutexGuard<'_, BTreeSet<ObjectId>> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The room that there is for an object of so many bytes.
    fn room(
        &self,
        (catalog, store): (&Catalog, &Store),
        (coming, bytes): (ObjectId, u64),
        parts: &[(ObjectId, u64, SystemTime)],
    ) -> Room {
        let left: u64 = parts.iter().map(|(_, len, _)| len).sum();
        let to_write = |(id, total): (ObjectId, u64)| total.saturating_sub(store.written_bytes(id));
        let others = catalog.under_way().into_iter().filter(|(id, _)| *id != coming);
        Room {
            coming_bytes: bytes,
            written_bytes: store.written_bytes(coming),
            used_bytes: catalog.stored_bytes(Some(coming)).saturating_add(left),
            promised_bytes: others.map(to_write).fold(0, u64::saturating_add),
            most_bytes: self.most,
            free_bytes: (self.free)(store).ok(),
            memory_bytes: self.memory.as_ref().and_then(Memory::left_bytes),
        }
    }

    fn make_pages(&self, mut recycling: Recycling<'_>) -> Result<bool, Refusal> {
        let Recycling { catalog, store, coming, bytes, .. } = recycling;
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(most) = self.most.filter(|most| bytes > *most) {
            let why = format!(
                "the object has {}, and the store holds {} at most (store-max)",
                format_bytes(bytes),
                format_bytes(most)
            );
            return Err(Refusal::new(Kind::StoreFull, why));
        }
        let mut parts = self.left(catalog, store, Some(coming));
        let mut room = self.room((catalog, store), (coming, bytes), &parts);
        if !room.lack().is_met() {
            // What is too old goes before what is only the least used.
            self.expire(catalog, store);
            parts = self.left(catalog, store, Some(coming));
            room = self.room((catalog, store), (coming, bytes), &parts);
        }
        let lack = room.lack();
        let (victims, lacks) = victims(catalog, store, parts, lack);
        if !lacks.is_met() {
            return Err(Refusal::new(Kind::StoreFull, full(store, &room, lack, lacks)));
        }
        for Victim { id, len, is_set } in victims {
            // One that came into use just now stays: the file system has the last word.
            match Use::of(store, id) {
                Use::ByNobody(alone) if len == bytes && recycling.may && !recycling.done => {
                    recycling.take(id, alone);
                }
                Use::Known if !is_set => {}
                unused => {
                    evict_alone(catalog, store, id, unused.alone(), "a new object needs its room");
                }
            }
        }
        recycling.take_superseded();
        Ok(recycling.done)
    }
}

/// Explains why an object has no room even if all removable objects are removed.
fn full(store: &Store, room: &Room, lack: Lack, lacks: Lack) -> String {
    let object = format_bytes(room.coming_bytes);
    if let Some(most) = room.most_bytes.filter(|_| lacks.length_bytes > 0) {
        let stays = room.used_bytes.saturating_sub(lack.length_bytes - lacks.length_bytes);
        return format!(
            "the object has {object}, and {} of the {} that the store may hold (store-max) are pinned or in use",
            format_bytes(stays),
            format_bytes(most)
        );
    }
    let free = room.left_bytes().unwrap_or(0).saturating_add(lack.written_bytes - lacks.written_bytes);
    let what = if room.is_short_of_memory() {
        "the memory that the agent's control group may take".to_string()
    } else {
        store.folder().display().to_string()
    };
    format!(
        "{what} is full: the object has {object}, {} can be had, and what else is there is pinned, in use, on its way or not the store's",
        format_bytes(free)
    )
}

/// Something that is to go.
struct Victim {
    id: ObjectId,
    len: u64,
    is_set: bool,
}

/// Use of an object's bytes by a process that has them open or mapped.
enum Use {
    /// None has, and one that opens them waits while this lives.
    ByNobody(Alone),
    /// One has, or we cannot look now.
    Known,
    /// Unknown use: a file system without leases, or no bytes at all.
    Unknown,
}

impl Use {
    fn of(store: &Store, id: ObjectId) -> Self {
        match store.alone(id) {
            Ok(Some(alone)) => Use::ByNobody(alone),
            Ok(None) => Use::Known,
            // We have too many files open ourselves, which says nothing of others.
            Err(error) if is_exhausted(&error) => Use::Known,
            Err(_) => Use::Unknown,
        }
    }

    fn alone(self) -> Option<Alone> {
        match self {
            Use::ByNobody(alone) => Some(alone),
            Use::Known | Use::Unknown => None,
        }
    }
}

/// Returns true if this process or the machine cannot open another file.
fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let known = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| known.contains(&errno))
}

/// Selects the objects to remove so that nothing is lacking, and returns the remaining lack. Any object may
/// go that no process has open: a file that a process has mapped takes its memory whether it has a name or
/// not. Objects whose removal would not help stay.
fn victims(
    catalog: &Catalog,
    store: &Store,
    parts: Vec<(ObjectId, u64, SystemTime)>,
    mut lack: Lack,
) -> (Vec<Victim>, Lack) {
    let mut victims = Vec::new();
    if lack.is_met() {
        return (victims, lack);
    }
    let gives = |lack: Lack, id: ObjectId, len: u64| Lack {
        length_bytes: len,
        written_bytes: if lack.written_bytes > 0 { store.freed_bytes(id) } else { 0 },
    };
    for idle in catalog.idle() {
        if lack.is_met() {
            return (victims, lack);
        }
        let given = gives(lack, idle.id, idle.length);
        // Looked at again when it goes: there may be more than this process can have open. Of a set only the
        // list is looked at here, which no process needs to have open: its files come after it.
        if !idle.is_set && (!lack.is_helped_by(given) || matches!(Use::of(store, idle.id), Use::Known)) {
            continue;
        }
        victims.push(Victim { id: idle.id, len: idle.length, is_set: idle.is_set });
        lack = lack.less(given);
    }
    for (id, len, _) in parts {
        let given = gives(lack, id, len);
        if lack.is_helped_by(given) {
            victims.push(Victim { id, len, is_set: false });
            lack = lack.less(given);
        }
    }
    (victims, lack)
}

/// Lets an object that comes take the pages of one that goes.
struct Recycling<'a> {
    catalog: &'a Catalog,
    store: &'a Store,
    coming: ObjectId,
    bytes: u64,
    now: SystemTime,
    /// Set if it may do so at all.
    may: bool,
    done: bool,
}

impl Recycling<'_> {
    /// Takes those of a version that is not used any more, if there is one of this length, whether room is
    /// needed or not.
    fn take_superseded(&mut self) {
        if self.done || !self.may || self.bytes == 0 || !self.catalog.has_superseded(self.bytes) {
            return;
        }
        let now = self.now;
        let rested = |used: SystemTime| now.duration_since(used).is_ok_and(|age| age >= RESTS);
        let bytes = self.bytes;
        let fits = |idle: &Idle| idle.superseded && idle.length == bytes && !idle.is_set && rested(idle.used);
        for idle in self.catalog.idle().into_iter().filter(fits) {
            // Nothing goes whose pages cannot be taken: no room is needed here.
            if !self.store.can_recycle(idle.id, self.coming) {
                continue;
            }
            if let Use::ByNobody(alone) = Use::of(self.store, idle.id) {
                self.take(idle.id, alone);
                return;
            }
        }
    }

    /// Takes those of this object; gives whether it is gone.
    fn take(&mut self, id: ObjectId, alone: Alone) -> bool {
        let mut recycled = false;
        let gone = self.catalog.delete(id, User::agent(), || {
            recycled = self.store.recycle(id, alone, self.coming)?;
            Ok(true)
        });
        self.done |= recycled;
        match &gone {
            Ok(()) => {
                tracing::info!(object = %id, coming = %self.coming, recycled, "makes room for another one")
            }
            Err(refusal) => tracing::info!(object = %id, %refusal, "stays in the store"),
        }
        gone.is_ok()
    }
}

/// Removes an object, unless a process has it open or it has come into use; gives whether it is gone.
fn evict(catalog: &Catalog, store: &Store, id: ObjectId, why: &str) -> bool {
    match Use::of(store, id) {
        Use::Known => false,
        unused => evict_alone(catalog, store, id, unused.alone(), why),
    }
}

/// The same where no process has it open, or that cannot be known.
fn evict_alone(catalog: &Catalog, store: &Store, id: ObjectId, alone: Option<Alone>, why: &str) -> bool {
    let removed = catalog.delete(id, User::agent(), || store.remove(id));
    drop(alone);
    match removed {
        Ok(()) => {
            tracing::info!(object = %id, why, "removed from the store");
            true
        }
        Err(refusal) => {
            tracing::info!(object = %id, %refusal, "stays in the store");
            false
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::store::Description;
    use super::*;
    use polycast_net::object::ObjectKind;
    use polycast_types::{AppId, DataId};
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Child, Command, Stdio};
    use std::sync::{Arc, RwLock, RwLockReadGuard};
    use tempfile::TempDir;

    /// A process that has just been made has all our files open until its program begins: none is made while
    /// a test looks at which files are open.
    static MAKING: RwLock<()> = RwLock::new(());

    /// Starts a program.
    pub(in crate::daemon) fn spawn(command: &mut Command) -> Child {
        let _alone = MAKING.write().unwrap_or_else(PoisonError::into_inner);
        command.spawn().unwrap()
    }

    /// A folder with a store, and no process is made meanwhile.
    type Folder = (TempDir, RwLockReadGuard<'static, ()>);

    fn id(data: u64) -> ObjectId {
        ObjectId { app: AppId::default(), data: DataId(data) }
    }

    fn description(length: u64) -> Description {
        let (name, root) = ("a".into(), "00".into());
        let kind = ObjectKind::File;
        Description { name, kind, length, mode: 0o644, modified: None, root, holder: None, pinned: false }
    }

    /// A store with objects of 100 bytes, number 1 the oldest, and its folder, which goes with the first
    /// value.
    fn filled(objects: u64) -> (Folder, Store, Arc<Catalog>) {
        filled_with(objects, 100)
    }

    /// The same with objects of another length.
    fn filled_with(objects: u64, len: usize) -> (Folder, Store, Arc<Catalog>) {
        let alone = MAKING.read().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let catalog = Arc::new(Catalog::new(100, 10, Vec::new()));
        for data in 1..=objects {
            fs::write(store.path(id(data)), vec![7; len]).unwrap();
            catalog.begin_receive(id(data)).unwrap().complete(description(len as u64));
            std::thread::sleep(Duration::from_millis(2));
        }
        ((folder, alone), store, catalog)
    }

    fn here(catalog: &Catalog) -> Vec<u64> {
        catalog.list(None).into_iter().map(|(id, _)| id.data.0).collect()
    }

    #[test]
    fn the_oldest_make_room_and_none_that_is_in_use() {
        let (_folder, store, catalog) = filled(4);
        let limits = Limits::new(Some(400), None, &store);
        let sending = catalog.begin_send(id(1)).unwrap();
        limits.make_room(&catalog, &store, id(5), 150).unwrap();
        assert_eq!(here(&catalog), [1, 4], "two had to go, and the first is being sent");
        assert!(!store.path(id(2)).exists() && store.path(id(1)).exists());
        // Nothing goes for an object that has no place even so.
        let refused = limits.make_room(&catalog, &store, id(5), 301).unwrap_err();
        assert_eq!(refused.kind, Kind::StoreFull);
        assert!(refused.message.contains("store-max"), "{refused}");
        limits.make_room(&catalog, &store, id(5), 401).unwrap_err();
        assert_eq!(here(&catalog), [1, 4]);
        drop(sending);
        limits.make_room(&catalog, &store, id(5), 400).unwrap();
        assert!(here(&catalog).is_empty());
    }

    #[test]
    fn those_that_were_not_asked_for_go_first_and_none_that_is_pinned_or_open() {
        let (_folder, store, catalog) = filled(5);
        let limits = Limits::new(Some(500), None, &store);
        // The first one was used just now, the second is pinned, and the third is open.
        catalog.touch(id(1));
        catalog.pin(id(2), User::agent(), true, |description| store.describe(id(2), description)).unwrap();
        let reader = fs::File::open(store.path(id(3))).unwrap();
        limits.make_room(&catalog, &store, id(6), 100).unwrap();
        assert_eq!(here(&catalog), [1, 2, 3, 5]);
        limits.make_room(&catalog, &store, id(6), 300).unwrap();
        assert_eq!(here(&catalog), [2, 3], "two had to go, and none that may not");
        let refused = limits.make_room(&catalog, &store, id(6), 301).unwrap_err();
        assert!(refused.message.contains("pinned or in use"), "{refused}");
        assert_eq!(here(&catalog), [2, 3]);
        drop(reader);
        limits.make_room(&catalog, &store, id(6), 400).unwrap();
        assert_eq!(here(&catalog), [2]);
        // A pin is there after a restart, and may be taken away.
        let found = |store: Store| {
            let folder = store.folder().to_path_buf();
            drop(store);
            Store::open(&folder).unwrap()
        };
        let (store, found) = found(store);
        assert!(found.len() == 1 && found[0].description.pinned);
        let catalog = Arc::new(Catalog::new(100, 10, found));
        limits.make_room(&catalog, &store, id(6), 500).unwrap_err();
        catalog.pin(id(2), User::agent(), false, |description| store.describe(id(2), description)).unwrap();
        limits.make_room(&catalog, &store, id(6), 500).unwrap();
    }

    #[test]
    fn a_version_that_is_not_used_gives_its_pages_to_the_next_one() {
        let (_folder, store, catalog) = filled(3);
        let limits = Limits::new(None, None, &store);
        let at = |now| limits.recycle_at(now, &catalog, &store, id(4), 100).unwrap();
        let later = SystemTime::now() + RESTS;
        assert!(!at(later), "none of them was followed by others");
        catalog.supersede(id(1));
        let before = SystemTime::now();
        catalog.touch(id(1));
        assert!(!at(before + RESTS - Duration::from_millis(1)), "a user was told just now where it is");
        let later = SystemTime::now() + RESTS;
        let path = store.path(id(1));
        let number = fs::metadata(&path).unwrap().ino();
        let reader = fs::File::open(&path).unwrap();
        assert!(!at(later), "a process reads it");
        assert_eq!(fs::read(&path).unwrap(), [7; 100]);
        drop(reader);
        assert!(!limits.recycle_at(later, &catalog, &store, id(4), 99).unwrap(), "another length");
        assert!(at(later));
        assert_eq!(here(&catalog), [2, 3]);
        let part = polycast_net::store::part_path(&store.path(id(4)));
        assert_eq!(fs::metadata(part).unwrap().ino(), number, "the same pages");
        // What has to go anyhow gives its pages too.
        let limits = Limits::new(Some(300), None, &store);
        assert!(limits.make_room_or_recycle(&catalog, &store, id(5), 100).unwrap());
        assert_eq!(here(&catalog), [3]);
    }

    /// A reader comes at the very moment in which pages are taken: it gets the bytes that it was promised, or
    /// nothing.
    #[test]
    fn a_reader_that_comes_meanwhile_sees_no_other_version() {
        let (_folder, store, _) = filled(0);
        for round in 0..20u64 {
            let path = store.path(id(1));
            fs::write(&path, vec![7; 1 << 16]).unwrap();
            let reading = std::thread::spawn({
                let path = path.clone();
                move || {
                    std::thread::sleep(Duration::from_micros(round * 50));
                    let mut file = fs::File::open(path).ok()?;
                    let mut bytes = Vec::new();
                    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
                    Some(bytes)
                }
            });
            let recycled = match store.alone(id(1)).unwrap() {
                Some(alone) => store.recycle(id(1), alone, id(2)).unwrap(),
                None => false,
            };
            let part = polycast_net::store::part_path(&store.path(id(2)));
            if recycled {
                fs::write(&part, vec![8; 1 << 16]).unwrap();
            }
            if let Some(bytes) = reading.join().unwrap() {
                assert!(
                    bytes.iter().all(|byte| *byte == 7) && bytes.len() == 1 << 16,
                    "recycled under a reader"
                );
            }
            let _ = fs::remove_file(part);
        }
    }

    /// Variable that marks the child process of the test below.
    const CHILD: &str = "POLYCAST_TEST_FEW_FILES";

    /// Room is made in a process that can have few files open: what others have open stays, and each of the
    /// others goes.
    #[test]
    fn many_make_room_where_few_files_can_be_open() {
        use rustix::process::{Resource, Rlimit, setrlimit};
        if std::env::var_os(CHILD).is_none() {
            let name = "daemon::limits::tests::many_make_room_where_few_files_can_be_open";
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
            let ended = spawn(child.stdout(Stdio::piped())).wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stdout);
            assert!(ended.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let (_folder, store, _) = filled(0);
        let catalog = Arc::new(Catalog::new(1_000, 10, Vec::new()));
        for data in 1..=200 {
            fs::write(store.path(id(data)), [7; 100]).unwrap();
            catalog.begin_receive(id(data)).unwrap().complete(description(100));
        }
        let _reader = fs::File::open(store.path(id(150))).unwrap();
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
        let limits = Limits::new(Some(20_000), None, &store);
        limits.make_room(&catalog, &store, id(999), 19_900).unwrap();
        assert_eq!(here(&catalog), [150], "what is open stays, and all others go");
        // Where not even one more can be open, nothing goes that a process may have open.
        let _all: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
        limits.make_room(&catalog, &store, id(999), 20_000).unwrap_err();
        assert_eq!(here(&catalog), [150]);
    }

    #[test]
    fn versions_whose_pages_cannot_be_taken_stay_where_there_is_room() {
        let (_folder, store, catalog) = filled(3);
        let limits = Limits::new(None, None, &store);
        (1..=3).for_each(|data| catalog.supersede(id(data)));
        let later = SystemTime::now() + RESTS;
        // An earlier try has left a part of what comes.
        fs::write(polycast_net::store::part_path(&store.path(id(4))), [1; 50]).unwrap();
        assert!(!limits.recycle_at(later, &catalog, &store, id(4), 100).unwrap());
        assert_eq!(here(&catalog), [1, 2, 3]);
        // One that has another name somewhere is not written over, and is no reason for others to go.
        fs::hard_link(store.path(id(1)), store.folder().join("kept")).unwrap();
        assert!(limits.recycle_at(later, &catalog, &store, id(5), 100).unwrap());
        assert_eq!(here(&catalog), [1, 3]);
    }

    #[test]
    fn what_is_on_its_way_has_its_room() {
        let (_folder, store, catalog) = filled(1);
        let limits = Limits::new(Some(400), None, &store);
        let receive = catalog.begin_receive(id(2)).unwrap();
        limits.make_room(&catalog, &store, id(2), 300).unwrap();
        receive.progress().total.store(300, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(here(&catalog), [1, 2], "there was room for both");
        limits.make_room(&catalog, &store, id(3), 150).unwrap_err();
        limits.make_room(&catalog, &store, id(3), 100).unwrap();
        assert_eq!(here(&catalog), [2], "the older one went, not the one that comes");
    }

    /// Returns the space left on a disk of 1 MiB.
    fn of_small_disk(store: &Store) -> io::Result<u64> {
        let files = fs::read_dir(store.folder())?.map(|file| {
            let file = file?.metadata()?;
            Ok(file.blocks() * 512 / file.nlink())
        });
        let taken: io::Result<u64> = files.sum();
        Ok((1u64 << 20).saturating_sub(taken?))
    }

    #[test]
    fn what_the_file_system_has_left_counts_as_what_settings_say() {
        let (_folder, store, catalog) = filled_with(5, 150_000);
        let limits = Limits { free: of_small_disk, ..Limits::new(None, None, &store) };
        limits.make_room(&catalog, &store, id(6), 200_000).unwrap();
        assert_eq!(here(&catalog), [1, 2, 3, 4, 5], "there is room for all");
        limits.make_room(&catalog, &store, id(6), 300_000).unwrap();
        assert_eq!(here(&catalog), [2, 3, 4, 5]);
        // Another one is on its way, and has written nothing yet.
        let receive = catalog.begin_receive(id(7)).unwrap();
        receive.progress().total.store(300_000, std::sync::atomic::Ordering::Relaxed);
        limits.make_room(&catalog, &store, id(6), 150_000).unwrap();
        assert_eq!(here(&catalog), [3, 4, 5, 7]);
        // What it has written is not promised any more.
        fs::write(polycast_net::store::part_path(&store.path(id(7))), vec![7; 300_000]).unwrap();
        limits.make_room(&catalog, &store, id(6), 200_000).unwrap();
        assert_eq!(here(&catalog), [3, 4, 5, 7]);
        receive.fail(Refusal::new(Kind::TransferFailed, "its source has gone"));
        // Other programs fill the disk: what is here is not enough, and nothing goes.
        let other = store.folder().join("other");
        fs::write(&other, vec![1; 200_000]).unwrap();
        let refused = limits.make_room(&catalog, &store, id(6), 900_000).unwrap_err();
        assert_eq!(refused.kind, Kind::StoreFull);
        assert!(
            refused.message.contains("is full") && refused.message.contains("not the store's"),
            "{refused}"
        );
        assert_eq!(here(&catalog), [3, 4, 5]);
        // The rest of what did not come goes last.
        limits.make_room(&catalog, &store, id(6), 400_000).unwrap();
        assert_eq!(here(&catalog), Vec::<u64>::new());
        assert_eq!(limits.rests(&catalog, &store).len(), 1);
        limits.make_room(&catalog, &store, id(6), 700_000).unwrap();
        assert!(limits.rests(&catalog, &store).is_empty());
    }

    #[test]
    fn what_gives_no_room_stays() {
        let (_folder, store, catalog) = filled_with(3, 300_000);
        let limits = Limits { free: of_small_disk, ..Limits::new(None, None, &store) };
        // The first one is a hole, the second one has another name, which keeps its bytes.
        let hole = fs::File::create(store.path(id(1))).unwrap();
        hole.set_len(300_000).unwrap();
        drop(hole);
        fs::hard_link(store.path(id(2)), store.folder().join("kept")).unwrap();
        limits.make_room(&catalog, &store, id(4), 600_000).unwrap();
        assert_eq!(here(&catalog), [1, 2]);
        // For what settings say its length counts.
        let limits = Limits::new(Some(700_000), None, &store);
        limits.make_room(&catalog, &store, id(4), 300_000).unwrap();
        assert_eq!(here(&catalog), [2]);
    }

    #[test]
    fn what_a_transfer_has_left_is_told() {
        let (_folder, store, catalog) = filled(1);
        let limits = Limits::new(None, None, &store);
        let part = polycast_net::store::part_path(&store.path(id(7)));
        let file = fs::File::create(&part).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 8_192], 0).unwrap();
        file.set_len(1 << 20).unwrap();
        let rests = limits.rests(&catalog, &store);
        let told: Vec<_> = rests.iter().map(|rest| (rest.id, rest.len_bytes, rest.stored_bytes)).collect();
        assert_eq!(told, [(id(7), 1 << 20, 8_192)]);
        // Its next transfer goes on with it.
        let receive = catalog.begin_receive(id(7)).unwrap();
        assert!(limits.rests(&catalog, &store).is_empty());
        receive.fail(Refusal::new(Kind::TransferFailed, "its source has gone"));
        assert_eq!(limits.rests(&catalog, &store).len(), 1);
    }

    #[test]
    fn a_small_store_in_memory_is_named() {
        let (_folder, store, _) = filled(0);
        let limits = Limits::new(None, None, &store);
        let in_memory = Limits { memory: Some(Memory::default()), ..limits };
        let is_small = store.size_bytes().unwrap() < SMALL_BYTES;
        assert_eq!(in_memory.warning(&store).is_some_and(|said| said.contains("--shm-size")), is_small);
        let on_disk = Limits { memory: None, ..in_memory };
        assert_eq!(on_disk.warning(&store), None);
    }

    #[test]
    fn what_is_too_old_goes() {
        let (_folder, store, catalog) = filled(2);
        Limits::new(None, Some(Duration::from_secs(3_600)), &store).expire(&catalog, &store);
        assert_eq!(here(&catalog), [1, 2]);
        let sending = catalog.begin_send(id(2)).unwrap();
        Limits::new(None, Some(Duration::from_millis(1)), &store).expire(&catalog, &store);
        assert_eq!(here(&catalog), [2]);
        drop(sending);
    }
}
