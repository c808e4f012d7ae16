//! Digests that keys name.
//!
//! What this agent takes in from an origin is checked as it comes. Any program that may use an agent of the
//! cluster can put something under the id of a key, so what has come in other ways is checked, too, before a
//! process here that asks for the key gets it: once for each object and root.

use super::super::catalog::Available;
use super::Objects;
use super::key::Digest;
use polycast_api::error::{Kind, Refusal, plain};
use polycast_types::ObjectId;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Objects that are remembered as checked: as many as an agent knows by default.
const CHECKED_MAX: usize = 65_536;
/// Bytes that are read at a time to compute a digest.
const READ_LEN: usize = 1 << 20;

/// Objects whose bytes have the digest that their key names, with their roots.
#[derive(Debug, Default)]
pub(super) struct Checked(Mutex<BTreeMap<ObjectId, String>>);

impl Checked {
    fn roots(&self) -> MutexGuard<'_, BTreeMap<ObjectId, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes with this root are right.
    pub(super) fn insert(&self, id: ObjectId, root: String) {
        let mut roots = self.roots();
        if roots.len() >= CHECKED_MAX {
            roots.clear();
        }
        roots.insert(id, root);
    }

    /// Returns true if these bytes were checked. A file that was added in place can change.
    fn has(&self, id: ObjectId, object: &Available) -> bool {
        object.added_from.is_none() && self.roots().get(&id).is_some_and(|root| *root == object.root)
    }
}

impl Objects {
    /// Checks that an object that is here is the one that its key names.
    pub(super) async fn check_key(
        &self,
        id: ObjectId,
        digest: &Digest,
        object: &Available,
    ) -> Result<(), Refusal> {
        if *digest == Digest::None || self.checked.has(id, object) {
            return Ok(());
        }
        let path = object.added_from.clone().unwrap_or_else(|| self.shared.store.path(id));
        let (wanted, length) = (digest.clone(), object.length);
        let checking = tokio::task::spawn_blocking(move || check_file(&wanted, &path, length));
        checking.await.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))?.map_err(|why| {
            let why = format!("{why}: a program has put it there; remove it: polycast rm {id} --to all");
            tracing::warn!(object = %id, "{why}");
            Refusal::new(Kind::OriginFailed, why)
        })?;
        self.checked.insert(id, object.root.clone());
        Ok(())
    }
}

/// Checks the bytes of a file.
fn check_file(wanted: &Digest, path: &Path, length: u64) -> Result<(), String> {
    let found = match wanted {
        Digest::None => return Ok(()),
        Digest::Sha256(_) => digest_of(Context::new(&SHA256), path),
        Digest::Git(_) => git_digest(path, length),
    };
    let found = found.map_err(|error| format!("the object of this key cannot be read: {}", plain(&error)))?;
    let (Digest::Sha256(hex) | Digest::Git(hex)) = wanted else { return Ok(()) };
    if *hex == found {
        return Ok(());
    }
    Err(format!("the object of the key {hex} has other bytes, with the digest {found}"))
}

/// The digest of a file as git computes it, in hex.
pub(super) fn git_digest(path: &Path, length: u64) -> io::Result<String> {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(format!("blob {length}\0").as_bytes());
    digest_of(context, path)
}

fn digest_of(mut context: Context, path: &Path) -> io::Result<String> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; READ_LEN]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(context)),
            read => context.update(&buffer[..read]),
        }
    }
}

/// A finished digest in hex.
pub(super) fn hex(context: Context) -> String {
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
