//! Room on file systems: several objects on their way to one place are not promised the same bytes.

use super::{StoreError, failed};
use rustix::fs::statvfs;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Room that this process has promised, by the number of the claim.
static CLAIMS: Mutex<(u64, BTreeMap<u64, Claim>)> = Mutex::new((0, BTreeMap::new()));

#[derive(Debug)]
struct Claim {
    device: u64,
    total: u64,
    file: Arc<File>,
    /// Bytes of the claim that have gone elsewhere.
    moved: Arc<AtomicU64>,
}

impl Claim {
    /// Bytes that are still to be written.
    fn open(&self) -> u64 {
        let moved = self.moved.load(Ordering::Relaxed);
        self.total.saturating_sub(written(&self.file).unwrap_or(0)).saturating_sub(moved)
    }
}

/// Room that is kept for one object while this value lives.
#[derive(Debug)]
pub(super) struct Room(u64);

impl Room {
    /// Claims `total` bytes for what is written to `file`, and for what is `moved` from there to others; what
    /// is there of it already needs no more room.
    pub(super) fn claim(
        file: &Arc<File>,
        moved: &Arc<AtomicU64>,
        folder: &Path,
        total: u64,
    ) -> Result<Self, StoreError> {
        let wrong = |source: io::Error| failed(folder, source);
        let device = file.metadata().map_err(wrong)?.dev();
        let needed = total.saturating_sub(written(file).map_err(wrong)?);
        // Held while it is looked, so that two do not see the same free bytes.
        let mut claims = lock();
        let promised = claims.1.values().filter(|claim| claim.device == device).map(Claim::open);
        let promised = promised.fold(0, u64::saturating_add);
        let space = statvfs(folder).map_err(|errno| wrong(errno.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize).saturating_sub(promised);
        // Where no bytes are counted at all, how many are free is not known.
        if needed > free && space.f_blocks > 0 {
            return Err(StoreError::Full { place: folder.to_path_buf(), needed, free });
        }
        claims.0 += 1;
        let number = claims.0;
        let claim = Claim { device, total, file: Arc::clone(file), moved: Arc::clone(moved) };
        claims.1.insert(number, claim);
        Ok(Room(number))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        lock().1.remove(&self.0);
    }
}

fn written(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.blocks() * 512)
}

fn lock() -> MutexGuard<'static, (u64, BTreeMap<u64, Claim>)> {
    // Nothing here panics between two changes that belong together.
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner)
}
