//! Parts of objects: verified bytes are told before the last one is here.

use super::super::catalog::{Coming, Progress};
use super::super::shared::Shared;
use polycast_api::agent::{ByteRange, WatchEvent};
use polycast_api::error::{Kind, Refusal};
use polycast_net::store::part_path;
use polycast_types::{ObjectId, RangeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Status;

/// Ranges that one call may name, and an event.
const RANGES_MAX: usize = 65_536;

type Events = mpsc::Sender<Result<WatchEvent, Status>>;

/// Ranges of an object that a caller requests, and the ones that it was notified of.
pub(crate) struct Watching {
    id: ObjectId,
    /// Empty for all of it.
    wanted: RangeSet,
    told: RangeSet,
    events: Events,
}

impl Watching {
    /// # Errors
    /// A range has no bytes, or there are too many.
    pub(crate) fn new(id: ObjectId, ranges: &[ByteRange], events: Events) -> Result<Self, Refusal> {
        let invalid = |why: String| Refusal::new(Kind::Invalid, why);
        if ranges.len() > RANGES_MAX {
            return Err(invalid(format!("{} ranges are more than {RANGES_MAX}", ranges.len())));
        }
        let mut wanted = RangeSet::new();
        for ByteRange { offset, length } in ranges {
            let end = offset.checked_add(*length).filter(|_| *length > 0);
            let end = end.ok_or_else(|| invalid(format!("{length} bytes from {offset} on are no range")))?;
            wanted.insert(*offset..end);
        }
        Ok(Watching { id, wanted, told: RangeSet::new(), events })
    }

    /// Tells of bytes as they are verified, until all that are wanted have been told of, or the caller has
    /// gone.
    pub(crate) async fn run(mut self, shared: Arc<Shared>, timeout: Option<Duration>) {
        let outcome = match timeout {
            None => self.follow(&shared).await,
            Some(span) => tokio::time::timeout(span, self.follow(&shared)).await.unwrap_or_else(|_| {
                Err(Refusal::new(
                    Kind::TimedOut,
                    format!("not all that is wanted of object {} is here", self.id),
                ))
            }),
        };
        if let Err(refusal) = outcome {
            // A caller that has gone need not hear it.
            let _ = self.events.send(Err(refusal.into())).await;
        }
    }

    async fn follow(&mut self, shared: &Shared) -> Result<(), Refusal> {
        let mut changes = shared.catalog.changes();
        let mut came = false;
        loop {
            // Seen before looking, so that a change in between is not missed.
            if changes.borrow_and_update().is_none() {
                return Err(Refusal::new(Kind::Cancelled, "the agent is shutting down"));
            }
            match shared.catalog.coming(self.id) {
                Some(Coming::Here(object)) => {
                    shared.used(self.id);
                    let path = object.added_from.unwrap_or_else(|| shared.store.path(self.id));
                    while !self.tell(&path, object.length, None).await? {}
                    return Ok(());
                }
                Some(Coming::OnItsWay(progress)) => {
                    came = true;
                    let part = part_path(&shared.store.path(self.id));
                    if self.follow_part(&part, &progress, &mut changes).await? {
                        return Ok(());
                    }
                }
                // It was on its way, and did not come.
                None if came => return Err(shared.catalog.absent(self.id)),
                None => {
                    tokio::select! {
                        changed = changes.changed() => changed.map_err(|_| shared.catalog.absent(self.id))?,
                        () = self.events.closed() => return Ok(()),
                    }
                }
            }
        }
    }

    /// Tells of what comes until something else has happened; gives whether all that is wanted was told.
    async fn follow_part(
        &mut self,
        part: &Path,
        progress: &Progress,
        changes: &mut tokio::sync::watch::Receiver<Option<u64>>,
    ) -> Result<bool, Refusal> {
        let mut news = progress.arrivals.news();
        loop {
            news.borrow_and_update();
            let length = progress.total.load(Ordering::Relaxed);
            if length > 0 && self.tell(part, length, Some(progress)).await? {
                return Ok(true);
            }
            tokio::select! {
                changed = changes.changed() => {
                    changed.map_err(|_| Refusal::new(Kind::Cancelled, "the agent is shutting down"))?;
                    return Ok(false);
                }
                more = news.changed() => {
                    more.map_err(|_| Refusal::new(Kind::Internal, "it is not being received any more"))?;
                }
                () = self.events.closed() => return Ok(true),
            }
        }
    }

    /// Tells what is new, where there is anything; gives whether nothing more is to be told.
    async fn tell(&mut self, path: &Path, length: u64, progress: Option<&Progress>) -> Result<bool, Refusal> {
        let all = std::iter::once(0..length).filter(|all| !all.is_empty()).collect();
        let wanted = if self.wanted.is_empty() { &all } else { &self.wanted };
        if let Some(outside) = wanted.iter().find(|range| range.end > length) {
            // What is being brought may be longer than is known yet.
            if progress.is_some_and(|progress| progress.holder.is_some()) {
                return Ok(false);
            }
            let why = format!(
                "bytes {} to {} lie outside object {}, which has {length}",
                outside.start, outside.end, self.id
            );
            return Err(Refusal::new(Kind::Invalid, why));
        }
        let here = progress.map_or_else(|| wanted.clone(), |progress| progress.arrivals.of(wanted));
        let fresh = here.iter().flat_map(|range| self.told.gaps(range)).take(RANGES_MAX);
        let fresh: Vec<_> = fresh.collect();
        fresh.iter().for_each(|range| {
            self.told.insert(range.clone());
        });
        let complete = wanted.iter().all(|range| self.told.covers(range));
        if fresh.is_empty() && !complete {
            return Ok(false);
        }
        let verified =
            fresh.into_iter().map(|range| ByteRange { offset: range.start, length: range.end - range.start });
        // One that is not UTF-8 cannot be told.
        let path = path.to_str().unwrap_or_default().to_string();
        let event = WatchEvent { path, length, verified: verified.collect(), complete };
        Ok(self.events.send(Ok(event)).await.is_err() || complete)
    }
}
