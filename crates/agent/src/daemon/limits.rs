//! How much the store may hold, and for how long: the oldest objects make room for new ones, and none that is in use.

use super::catalog::Catalog;
use super::store::Store;
use super::users::User;
use polycast_api::error::{Kind, Refusal};
use polycast_types::{ObjectId, format_bytes};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// A store in memory gets this part of the machine's memory, unless settings say otherwise.
const PART_OF_MEMORY: u64 = 2;
/// Objects that are too old are looked for at least this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// What the store may hold.
#[derive(Debug)]
pub struct Limits {
    /// Bytes; `None`: as much as its file system.
    most: Option<u64>,
    /// How long an object stays; `None`: until somebody removes it.
    ttl: Option<Duration>,
    /// Held while room is made, so that two objects are not promised the same bytes.
    making: Mutex<()>,
}

impl Limits {
    /// Those of the settings, or what suits a store of this kind.
    pub fn new(most: Option<u64>, ttl: Option<Duration>, store: &Store) -> Self {
        let most = most
            .or_else(|| store.is_in_memory().then(|| memory_bytes()?.checked_div(PART_OF_MEMORY)).flatten());
        Limits { most, ttl, making: Mutex::default() }
    }

    pub fn most(&self) -> Option<u64> {
        self.most
    }

    /// How often to look for what is too old; `None` where nothing ever is.
    pub fn look_interval(&self) -> Option<Duration> {
        self.ttl.map(|ttl| (ttl / 4).clamp(Duration::from_millis(100), LOOK_INTERVAL))
    }

    /// Removes what has been here for too long and is not in use.
    pub fn expire(&self, catalog: &Catalog, store: &Store) {
        let Some(ttl) = self.ttl else { return };
        let now = SystemTime::now();
        for (id, _, since) in catalog.idle() {
            if now.duration_since(since).is_ok_and(|age| age >= ttl) {
                evict(catalog, store, id, "it was here for store-ttl");
            }
        }
    }

    /// Makes room for an object of so many bytes that is about to come: the oldest ones go, and then what interrupted
    /// transfers have left. Nothing goes where that would not be enough.
    pub fn make_room(
        &self,
        catalog: &Catalog,
        store: &Store,
        coming: ObjectId,
        bytes: u64,
    ) -> Result<(), Refusal> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        self.expire(catalog, store);
        let Some(most) = self.most else { return Ok(()) };
        let full = |why: String| Err(Refusal::new(Kind::StoreFull, why));
        if bytes > most {
            return full(format!(
                "the object has {}, and the store holds {} at most (store-max)",
                format_bytes(bytes),
                format_bytes(most)
            ));
        }
        let parts = store.parts().unwrap_or_default();
        let parts: Vec<_> =
            parts.into_iter().filter(|(id, ..)| *id != coming && !catalog.is_known(*id)).collect();
        let idle = catalog.idle();
        let left: u64 = parts.iter().map(|(_, len, _)| len).sum();
        let used = catalog.stored_bytes(Some(coming)).saturating_add(left);
        let can_go = idle.iter().map(|(_, len, _)| len).sum::<u64>().saturating_add(left);
        let mut over = used.saturating_add(bytes).saturating_sub(most);
        if over > can_go {
            return full(format!(
                "the object has {}, and {} of the {} that the store may hold (store-max) are in use",
                format_bytes(bytes),
                format_bytes(used - can_go),
                format_bytes(most)
            ));
        }
        for (id, len, _) in idle.into_iter().chain(parts) {
            if over == 0 {
                break;
            }
            if evict(catalog, store, id, "a new object needs its room") {
                over = over.saturating_sub(len);
            }
        }
        Ok(())
    }
}

/// Removes an object, unless it has come into use; gives whether it is gone.
fn evict(catalog: &Catalog, store: &Store, id: ObjectId, why: &str) -> bool {
    match catalog.delete(id, User::agent(), || store.remove(id)) {
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

/// The machine's memory.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::super::store::Description;
    use super::*;
    use polycast_net::object::ObjectKind;
    use polycast_types::{AppId, DataId};
    use std::fs;
    use std::sync::Arc;
    use tempfile::TempDir;

    fn id(data: u64) -> ObjectId {
        ObjectId { app: AppId::default(), data: DataId(data) }
    }

    fn description(length: u64) -> Description {
        let (name, root) = ("a".into(), "00".into());
        Description { name, kind: ObjectKind::File, length, mode: 0o644, root, holder: None }
    }

    /// A store with objects of 100 bytes, number 1 the oldest, and its folder, which goes with the first value.
    fn filled(objects: u64) -> (TempDir, Store, Arc<Catalog>) {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let catalog = Arc::new(Catalog::new(100, 10, Vec::new()));
        for data in 1..=objects {
            fs::write(store.path(id(data)), [7; 100]).unwrap();
            catalog.begin_receive(id(data)).unwrap().complete(description(100));
            std::thread::sleep(Duration::from_millis(2));
        }
        (folder, store, catalog)
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
