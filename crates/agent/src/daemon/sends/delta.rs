//! A new version of an object as a delta (`net::delta`), to be sent to those who have the version before.
//!
//! Where this host has an older version, a part of both is compared, and if that looks worth it the object is coded. All receivers are called to
//! the delta: one that has not got that version refuses at once. The delivery then brings the object to those who lack it
//! (`protocol::delivery`).

use super::Cancel;
use crate::daemon::Shared;
use crate::daemon::catalog::Available;
use crate::daemon::invite::{Guarded, threads};
use crate::transfer::Report;
use polycast_net::delta::{self, DeltaError};
use polycast_net::hash::{hash_of, hex, parse_hex};
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_types::{ObjectId, format_bytes};
use polycast_wire::control::{Delta, Hash};
use std::sync::Arc;
use std::time::Instant;

/// Shorter objects go as they are: a second transfer to those who have no older version would take longer than the bytes do.
const LEN_LEAST: u64 = 4 << 20;

/// An object as a delta.
pub(super) struct Coded {
    pub(super) delta: Delta,
    /// The root hash of the delta itself.
    pub(super) root: Hash,
    source: Arc<FileSource>,
}

impl Coded {
    /// The object as a delta against an older version that is here; none where that is not worth it, or cannot be done.
    pub(super) fn of(
        shared: &Arc<Shared>,
        (id, object): (ObjectId, &Available),
        new: &dyn ObjectSource,
        cancel: &Cancel,
    ) -> Option<Self> {
        if object.kind == ObjectKind::Set || object.length < LEN_LEAST {
            return None;
        }
        let begun = Instant::now();
        for base in shared.catalog.older(id, &object.name, object.kind, object.length) {
            // Its root hash is not known before it was sent, and then no receiver has it.
            let Some(root) = parse_hex(&base.object.root) else { continue };
            let Ok(bytes) = Guarded::open(shared, base) else { continue };
            match Self::against(shared, new, (&bytes, root), cancel) {
                Ok(Some(coded)) => {
                    let (bytes, seconds) = (format_bytes(coded.len()), begun.elapsed().as_secs_f64());
                    tracing::info!(object = %id, bytes, seconds, base = %hex(&root), "coded as a delta");
                    return Some(coded);
                }
                Ok(None) => {}
                Err(error) => tracing::info!(object = %id, %error, "not coded as a delta"),
            }
        }
        None
    }

    fn against(
        shared: &Shared,
        new: &dyn ObjectSource,
        (base, base_root): (&dyn ObjectSource, Hash),
        cancel: &Cancel,
    ) -> Result<Option<Self>, DeltaError> {
        if !delta::is_worth(new, base)? || shared.store.free_bytes()? < new.len() {
            return Ok(None);
        }
        let file = shared.store.passing_file()?;
        let Some(delta) = delta::write(new, (base, base_root), &file, threads(), &cancel.engine)? else {
            return Ok(None);
        };
        let source = FileSource::own(file)?;
        Ok(Some(Coded { delta, root: hash_of(&source)?, source: Arc::new(source) }))
    }

    /// Bytes of the delta.
    pub(super) fn len(&self) -> u64 {
        self.source.len()
    }

    pub(super) fn source(&self) -> Arc<dyn ObjectSource> {
        Arc::clone(&self.source) as Arc<dyn ObjectSource>
    }

    /// The report of the delta's transfer, as one of the object's.
    pub(super) fn told_of(&self, mut report: Report) -> Report {
        let spared = self.delta.len - self.len();
        for receiver in report.receivers.iter_mut().filter(|receiver| receiver.error.is_none()) {
            receiver.spared_bytes += spared;
            receiver.bytes += spared;
        }
        report.bytes = self.delta.len;
        report.spared_bytes = report.receivers.iter().map(|receiver| receiver.spared_bytes).sum();
        report.coded_bytes = self.len();
        report.root = report.root.map(|_| hex(&self.delta.root));
        report
    }
}
