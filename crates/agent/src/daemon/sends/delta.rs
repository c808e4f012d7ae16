//! A new version of an object as a delta (`net::delta`), to be sent to those who have the version before.
//!
//! Where this host has an older version, a part of both is compared, and if that looks worth it the object is
//! coded. All receivers are called to the delta: one that has not got that version refuses at once. The
//! delivery then brings the object to those who lack it (`protocol::delivery`).

use super::Cancel;
use crate::daemon::catalog::Available;
use crate::daemon::opened::{Guarded, Threads};
use crate::daemon::shared::Shared;
use crate::transfer::Report;
use polycast_api::client::Receivers;
use polycast_net::delta::{self, DeltaError};
use polycast_net::hash::{hash_of, hex, parse_hex};
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_types::{ObjectId, format_bytes};
use polycast_wire::control::{Delta, Hash};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shorter objects go as they are: a second transfer to those who have no older version would take longer
/// than the bytes do.
const LEN_LEAST: u64 = 4 << 20;

/// So few receivers are looked at before an object is coded for them.
const LOOKED_AT: usize = 4;
/// An agent that lives takes a connection within this, and coding half a gigabyte takes as long.
const REACHED_WITHIN: Duration = Duration::from_millis(250);

/// Returns true if a delta of the object may be worth it.
pub(super) fn is_worth_a_try(object: &Available) -> bool {
    object.kind != ObjectKind::Set && object.length >= LEN_LEAST
}

/// Returns true if one of the receivers can be reached, as far as a quick check shows. A topic's directory
/// tries one source after the other for a host that has died, and each would code the version for nothing.
pub(super) async fn reaches(shared: &Shared, receivers: &Receivers) -> bool {
    let Receivers::Named(names) = receivers else { return true };
    if names.len() > LOOKED_AT {
        return true;
    }
    let (peers, _) = shared.link.peers().await;
    let mut tries = tokio::task::JoinSet::new();
    for peer in peers.into_iter().filter(|peer| names.contains(&peer.name)) {
        tries.spawn(async move {
            let connecting = tokio::net::TcpStream::connect(peer.control_address.as_str());
            matches!(tokio::time::timeout(REACHED_WITHIN, connecting).await, Ok(Ok(_)))
        });
    }
    while let Some(tried) = tries.join_next().await {
        if tried.unwrap_or(false) {
            return true;
        }
    }
    false
}

/// An object as a delta.
pub(super) struct Coded {
    pub(super) delta: Delta,
    /// The root hash of the delta itself.
    pub(super) root: Hash,
    source: Arc<FileSource>,
}

impl Coded {
    /// The object as a delta against an older version that is here; none where that is not worth it, or
    /// cannot be done.
    pub(super) fn of(
        shared: &Arc<Shared>,
        (id, object): (ObjectId, &Available),
        new: &dyn ObjectSource,
        cancel: &Cancel,
    ) -> Option<Self> {
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
        let threads = Threads::free();
        let made = delta::write(new, (base, base_root), &file, threads.count(), &cancel.engine)?;
        let Some(delta) = made else {
            return Ok(None);
        };
        // What is made of it has these at its receivers.
        let source = FileSource::own(file)?.with_mode(new.mode()).with_time(new.modified());
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
