//! Places in the store for what has come.

use super::super::shared::Shared;
use super::super::store::{Arrived, Description};
use crate::transfer::{TransferError, Verified};
use polycast_net::store::PartFile;
use polycast_types::ObjectId;
use std::io::ErrorKind;

/// Gives an object its place whose bytes are all in its part file, and are verified.
pub(super) fn keep(shared: &Shared, mut part: PartFile, object: &Verified) -> Result<(), TransferError> {
    // All of it is right: whatever fails now, another try needs no byte.
    part.keep_for_later();
    let (id, file, description) = (object.object, part.file(), description(object));
    let keep = || shared.store.keep(id, &Arrived { part: part.path(), file: &file }, &description);
    let kept = match keep() {
        Err(error) if error.kind() == ErrorKind::StorageFull && more_room(shared, id, object.len_bytes) => {
            keep()
        }
        kept => kept,
    };
    kept.map_err(TransferError::System)
}

/// Makes room anew for an object that comes: other programs have filled the store's file system meanwhile.
/// Gives whether it did.
pub(super) fn more_room(shared: &Shared, id: ObjectId, bytes: u64) -> bool {
    let made = shared.limits.make_room(&shared.catalog, &shared.store, id, bytes);
    made.inspect_err(|refusal| tracing::warn!(object = %id, %refusal, "no more room can be made")).is_ok()
}

/// The description of an object that has come.
pub(super) fn description(object: &Verified) -> Description {
    Description {
        name: object.name.clone(),
        kind: object.kind,
        length: object.len_bytes,
        mode: object.mode,
        modified: object.modified,
        root: object.root.clone(),
        holder: None,
        pinned: false,
    }
}
