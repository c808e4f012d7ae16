//! A new version of an object goes as a delta (`net::delta`) to those who have the version before, and as it is to the others.
//!
//! Where this host has an older version, a part of both is compared. If that looks worth it the object is coded, and the delta is sent to all receivers: one that
//! has not got that version refuses the call at once. Whoever is left then gets the object by a delivery like any other.

use super::deliver::Delivering;
use super::{Cancel, Sends, Standing, Wish};
use crate::daemon::Shared;
use crate::daemon::catalog;
use crate::daemon::invite::{Guarded, threads};
use crate::transfer::{Change, Report};
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal};
use polycast_net::delta::{self, DeltaError};
use polycast_net::hash::{hash_of, hex, parse_hex};
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_types::{Duration, format_bytes};
use polycast_wire::control::{Delta, Hash};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, watch};

/// Shorter objects go as they are: a second delivery would take longer than their bytes.
const LEN_LEAST: u64 = 4 << 20;

/// An object as a delta.
pub(super) struct Coded {
    pub(super) delta: Delta,
    /// The root hash of the delta itself.
    pub(super) root: Hash,
    source: Arc<FileSource>,
}

impl Coded {
    /// Codes an object against an older version that is here; none where that is not worth it.
    fn of(shared: &Arc<Shared>, send: &catalog::Send, cancel: &Cancel) -> Result<Option<Self>, DeltaError> {
        let object = &send.object;
        let found = shared.catalog.older(send.id(), &object.name, object.kind, object.length);
        let path = object.added_from.clone().unwrap_or_else(|| shared.store.path(send.id()));
        let mut new = None;
        for base in found {
            // Its root hash is not known before it was sent, and then no receiver has it.
            let Some(root) = parse_hex(&base.object.root) else { continue };
            let Ok(base) = Guarded::open(shared, base) else { continue };
            if new.is_none() {
                // Where it cannot be read its delivery says so.
                let Ok(source) = super::open(object, &path) else { return Ok(None) };
                new = Some(source);
            }
            let new = new.as_ref().expect("it was just opened");
            if !delta::is_worth(&**new, &base)? || shared.store.free_bytes()? < object.length {
                continue;
            }
            let file = shared.store.passing_file()?;
            let (threads, cancel) = (threads(), &cancel.engine);
            let Some(delta) = delta::write(&**new, (&base, root), &file, threads, cancel)? else { continue };
            let source = FileSource::own(file)?;
            return Ok(Some(Coded { delta, root: hash_of(&source)?, source: Arc::new(source) }));
        }
        Ok(None)
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
        for receiver in &mut report.receivers {
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

impl Sends {
    /// Sends an object to all that are wished for.
    pub(super) async fn carry_out(
        &self,
        send: &catalog::Send,
        wish: &Wish,
        cancel: &Cancel,
        standing: &watch::Sender<Standing>,
        changes: &mut mpsc::Receiver<Change>,
    ) -> Result<Arc<Report>, Refusal> {
        let begun = Instant::now();
        let (wish, before) = match self.code(send, wish, cancel).await {
            None => (wish.clone(), None),
            Some(coded) => {
                let coded = Arc::new(coded);
                let delivering =
                    Delivering::new(self, send, wish, cancel, standing, Some(Arc::clone(&coded)));
                match delivering.run(changes).await {
                    Ok(report) => match left(wish, &report, begun) {
                        None => return Ok(report),
                        Some(rest) => (rest, Some(report)),
                    },
                    Err(refusal) if matches!(refusal.kind, Kind::Cancelled | Kind::TimedOut) => {
                        return Err(refusal);
                    }
                    Err(refusal) => {
                        tracing::info!(object = %send.id(), %refusal, "not sent as a delta");
                        (wish.clone(), None)
                    }
                }
            }
        };
        let after = begun.elapsed().as_secs_f64();
        let rest = Delivering::new(self, send, &wish, cancel, standing, None).run(changes).await;
        match (before, rest) {
            (None, rest) => rest,
            (Some(before), Ok(rest)) => Ok(Arc::new(both(&before, &rest, after))),
            // Some have it, and the report says why the others have not.
            (Some(before), Err(refusal)) if before.receivers.iter().any(|receiver| receiver.verified) => {
                tracing::info!(object = %send.id(), %refusal, "those who are left do not get it");
                Ok(before)
            }
            (Some(_), Err(refusal)) => Err(refusal),
        }
    }

    /// The object as a delta, where that is worth it.
    async fn code(&self, send: &catalog::Send, wish: &Wish, cancel: &Cancel) -> Option<Coded> {
        let (id, object) = (send.id(), &send.object);
        // A path that is lent for a time is for the object.
        if object.kind == ObjectKind::Set || object.length < LEN_LEAST || wish.lease.is_some() {
            return None;
        }
        let begun = Instant::now();
        let held = self.shared.catalog.begin_send(id).ok()?;
        let (shared, cancel) = (Arc::clone(&self.shared), cancel.clone());
        let coding = tokio::task::spawn_blocking(move || Coded::of(&shared, &held, &cancel)).await;
        let outcome = coding.unwrap_or_else(|error| Err(DeltaError::Io(std::io::Error::other(error))));
        match outcome {
            Ok(Some(coded)) => {
                let (bytes, seconds) = (format_bytes(coded.len()), begun.elapsed().as_secs_f64());
                tracing::info!(object = %id, bytes, seconds, base = %hex(&coded.delta.base), "coded as a delta");
                Some(coded)
            }
            Ok(None) => None,
            Err(error) => {
                tracing::info!(object = %id, %error, "not coded as a delta");
                None
            }
        }
    }
}

/// The wish of those who have not got an object by its delta; none where all have.
fn left(wish: &Wish, report: &Report, begun: Instant) -> Option<Wish> {
    let lack = report.receivers.iter().filter(|receiver| !receiver.verified);
    let names: Vec<String> = lack.map(|receiver| receiver.name.clone()).collect();
    if names.is_empty() {
        return None;
    }
    let mut rest = wish.clone();
    rest.options.deadline = wish.options.deadline.map(|deadline| deadline - Duration::from(begun.elapsed()));
    rest.receivers = Receivers::Named(names);
    Some(rest)
}

/// The report of a delta's delivery and of the object's to those who were left.
fn both(before: &Report, rest: &Report, after: f64) -> Report {
    let mut before = before.clone();
    before.receivers.retain(|receiver| receiver.verified);
    if before.receivers.is_empty() {
        before.coded_bytes = 0;
    }
    before.continued(rest.clone(), after)
}
