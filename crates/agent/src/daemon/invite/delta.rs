//! Objects that come as deltas (`net::delta`): the delta is received as an object is, and what is made of it
//! and its base is kept in its place.

use super::super::catalog::Progress;
use super::super::opened::{Guarded, Threads};
use super::super::shared::Shared;
use super::keep::{keep, more_room};
use crate::transfer::{Invitation, Keeper, Sink, TransferError, Verified};
use polycast_net::delta::{DeltaError, apply};
use polycast_net::hash::hex;
use polycast_net::object::{FileSource, ObjectSource};
use polycast_net::store::{MoreRoom, PartFile, Placing};
use polycast_types::{ObjectId, Printable};
use polycast_wire::control::Delta;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The version that a delta is against.
pub(super) struct Base {
    delta: Delta,
    bytes: Guarded,
}

impl Base {
    /// Finds it by its root hash. Whether its bytes are still those is seen by what comes of them.
    ///
    /// # Errors
    /// It is not here, or the delta is of no use.
    pub(super) fn of(shared: &Shared, invitation: &Invitation, delta: &Delta) -> Result<Self, String> {
        if delta.len == 0 || invitation.object_len > delta.len {
            return Err(format!(
                "a delta of {} bytes for an object of {} saves nothing: send the object",
                invitation.object_len, delta.len
            ));
        }
        let base = shared.catalog.of_root(invitation.object.app, &hex(&delta.base));
        let base = base.ok_or("it has not the version that the delta is against")?;
        let bytes = Guarded::open(shared, base).map_err(|refusal| refusal.to_string())?;
        Ok(Base { delta: *delta, bytes })
    }
}

/// Returns the object that was made from a received delta.
pub(super) fn made(came: &Verified, delta: &Delta) -> Verified {
    Verified { len_bytes: delta.len, root: hex(&delta.root), ..came.clone() }
}

/// Builds the sink of a delta: the object that is made from it is kept.
pub(super) fn sink(shared: &Arc<Shared>, id: ObjectId, base: Base, progress: Arc<Progress>) -> Sink {
    let (here, also_here) = (Arc::clone(shared), Arc::clone(shared));
    let len = base.delta.len;
    let keep = move |mut came: PartFile, object: &Verified| {
        let kept = make(&here, (id, &came), &base, &progress).and_then(|part| {
            let object = made(object, &base.delta);
            keep(&here, part, &object)
        });
        // Another try is against whatever is here then.
        came.discard();
        kept
    };
    let keeper = Keeper::by(keep, MoreRoom::by(move || more_room(&also_here, id, len)));
    Sink::Kept { path: shared.store.delta_path(id), keeper }
}

/// Makes the object in its part file.
fn make(
    shared: &Arc<Shared>,
    (id, came): (ObjectId, &PartFile),
    Base { delta, bytes }: &Base,
    progress: &Progress,
) -> Result<PartFile, TransferError> {
    let (also_here, len) = (Arc::clone(shared), delta.len);
    let more = MoreRoom::by(move || more_room(&also_here, id, len));
    let placing = Placing { replace: true, unpacked: false };
    let mut part = PartFile::open_with(&shared.store.path(id), len.into(), placing, Some(more))?;
    let coded = FileSource::own(came.file().try_clone()?)?;
    progress.total.store(len, Ordering::Relaxed);
    let on_made = |range: Range<u64>| {
        // What came was the delta, before this.
        progress.bytes.fetch_add(range.end - range.start, Ordering::Relaxed);
        progress.spared.fetch_add(range.end - range.start, Ordering::Relaxed);
        progress.arrivals.came(range);
    };
    let (bytes, threads): (&dyn ObjectSource, _) = (bytes, Threads::free());
    let made = apply(delta, (&coded, bytes), &part, threads.count(), &progress.cancel, &on_made);
    if made.is_err() && progress.bytes.load(Ordering::Relaxed) > 0 {
        // What is right of it need not be sent.
        part.keep_for_later();
    }
    made.map_err(|error| match error {
        DeltaError::Io(error) => TransferError::System(error),
        DeltaError::Store(error) => error.into(),
        DeltaError::Cancelled => TransferError::Cancelled,
        wrong => TransferError::Contradiction(Printable(&wrong.to_string()).to_string()),
    })?;
    Ok(part)
}
