//! Objects that are open: their bytes, and the threads that deltas of them may take.

use super::catalog::{Available, Send};
use super::shared::Shared;
use super::store::{Store, check_bytes};
use polycast_api::error::{Kind, Refusal};
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_types::ObjectId;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Opens an object's bytes, which must not have changed since it was added.
pub(super) fn open(object: &Available, path: &Path) -> Result<Arc<dyn ObjectSource>, Refusal> {
    let in_place = object.added_from.is_some();
    let wrong = |error: String| Refusal::new(Kind::Path, format!("cannot read {}: {error}", path.display()));
    let source: Arc<dyn ObjectSource> = match object.kind {
        ObjectKind::Directory if in_place => {
            let tree = object.choice.open(path);
            Arc::new(tree.map_err(|error| Refusal::new(Kind::Path, error.to_string()))?)
        }
        _ => {
            if !in_place {
                super::store::check_bytes(path)?;
            }
            let file = match in_place {
                true => FileSource::open_as_it_is(path),
                // The store notes by its times when it was used.
                false => FileSource::open(path).map(FileSource::unchanging),
            };
            let file = file.map_err(|error| wrong(error.to_string()))?;
            Arc::new(file.with_mode(object.mode).with_time(object.modified))
        }
    };
    if source.len() != object.length || (in_place && source.stamp() != object.stamp) {
        let message = format!("{} has changed since it was added", path.display());
        return Err(Refusal::new(Kind::Path, message));
    }
    Ok(source)
}

/// An object's bytes; it stays while they are looked at.
pub(super) struct Guarded {
    bytes: Arc<dyn ObjectSource>,
    _guard: Send,
}

impl Guarded {
    /// # Errors
    /// They cannot be read, or are not those that were verified.
    pub(super) fn open(shared: &Shared, guard: Send) -> Result<Self, Refusal> {
        let path = guard.object.added_from.clone().unwrap_or_else(|| shared.store.path(guard.id()));
        let bytes = open(&guard.object, &path)?;
        Ok(Guarded { bytes, _guard: guard })
    }
}

impl ObjectSource for Guarded {
    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn is_checked_quickly(&self) -> bool {
        self.bytes.is_checked_quickly()
    }

    fn check(&self) -> std::io::Result<()> {
        self.bytes.check()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.bytes.read_exact_at(buffer, offset)
    }
}

/// Threads of this process that code deltas, or make objects of them.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// Threads for one delta: those of the processors that no other delta has, since receivers wait for it; at
/// least one.
pub(crate) struct Threads(usize);

impl Threads {
    pub(crate) fn free() -> Self {
        let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let take = |at_work: usize| all.saturating_sub(at_work).max(1);
        let add = |at_work: usize| Some(at_work + take(at_work));
        let before = AT_WORK.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        Threads(take(before.expect("there is always a next one")))
    }

    pub(crate) fn count(&self) -> usize {
        self.0
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Checks the bytes of an object that is given to a process here ([`check_bytes`]); those of an added one are
/// its owner's.
///
/// # Errors
/// They were changed since they were verified.
pub(crate) fn check_here(store: &Store, id: ObjectId, object: &Available) -> Result<(), Refusal> {
    if object.added_from.is_some() { Ok(()) } else { check_bytes(&store.path(id)) }
}
