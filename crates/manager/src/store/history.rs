//! Age of etcd's history: etcd keeps every value that a key ever had, until it gets the revision up to which
//! it may forget.
//!
//! Managers read what is there now and never what was there before, so that any revision may be forgotten as
//! far as they are concerned. Other programs beside them may go through keys at a revision that they have
//! begun with, or take up a watch again: these have a [`Span`] of time or writing for it, and between one and
//! two of them are kept.

use super::api::ResponseHeader;
use super::{Etcd, Store, StoreError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Amount of history that is kept: this much, and at most twice as much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Age up to which history is kept, unless too much is written.
    pub age: Duration,
    /// Bytes of ours after which earlier history is not kept, however young it is.
    pub bytes: u64,
}

impl Default for Span {
    fn default() -> Self {
        // Kubernetes leaves as long to those who read its etcd: other programs are used to it. A cluster in
        // which little happens asks for one compaction in five minutes. 16 MiB are a 128th of the quota that
        // etcd has unless it is told otherwise: two spans of it, and what there is, are far from that.
        Span { age: Duration::from_secs(300), bytes: 16 << 20 }
    }
}

/// Revisions of etcd, and the times when it had them.
#[derive(Debug)]
pub(super) struct History {
    span: Span,
    marks: Mutex<Marks>,
    /// Revision before which everything can be forgotten; 0: nothing yet.
    old: watch::Sender<i64>,
}

#[derive(Debug, Default)]
struct Marks {
    /// The revision at the beginning of the span that runs.
    at: Option<(Instant, i64)>,
    /// Number of bytes that were written in it.
    bytes: u64,
    /// The highest revision there was.
    highest: i64,
}

impl History {
    pub(super) fn new(span: Span) -> Self {
        History { span, marks: Mutex::default(), old: watch::Sender::new(0) }
    }

    /// Takes note of the revision in an answer, and of the bytes that were written with it. A manager that
    /// follows does so too: when it leads it knows at once what is old.
    pub(super) fn see(&self, header: Option<&ResponseHeader>, written_bytes: u64) {
        let Some(revision) = header.map(|header| header.revision).filter(|revision| *revision > 0) else {
            return;
        };
        let now = Instant::now();
        let mut marks = self.marks();
        marks.bytes = marks.bytes.saturating_add(written_bytes);
        marks.highest = marks.highest.max(revision);
        let Some((since, before)) = marks.at else {
            (marks.at, marks.bytes) = (Some((now, revision)), 0);
            return;
        };
        if now - since < self.span.age && marks.bytes < self.span.bytes {
            return;
        }
        (marks.at, marks.bytes) = (Some((now, revision)), 0);
        self.old.send_replace(before);
    }

    /// Returns true if etcd counts from further back than it has done, as after a backup was put in its
    /// place; from then on that is its revision. The answer has to be one that reflects all earlier changes.
    pub(super) fn was_set_back(&self, header: Option<&ResponseHeader>) -> bool {
        let Some(revision) = header.map(|header| header.revision) else { return false };
        std::mem::replace(&mut self.marks().highest, revision) > revision
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        // Nothing here panics between two changes that belong together.
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Etcd> Store<E> {
    /// Has etcd forget its old history, again and again, one call for each span; does not end. Only the
    /// leader does so, that it is done once. One that leads no more without knowing it does no harm: what was
    /// old for it is old.
    pub(crate) async fn forget_history(&self) -> StoreError {
        let mut old = self.history.old.subscribe();
        loop {
            let revision = *old.borrow_and_update();
            if revision > 0
                && let Err(error) = self.compact(revision, false).await
            {
                // With the next span it is tried again, and then more is forgotten.
                tracing::warn!(%error, revision, "etcd does not forget its history");
            }
            if old.changed().await.is_err() {
                // The store has it, and is there.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Has etcd forget what was before a revision, if it has not yet; with `until_free` its answer comes when
    /// the room is free.
    pub(super) async fn compact(&self, revision: i64, until_free: bool) -> Result<(), StoreError> {
        match self.etcd.compact(revision, until_free).await {
            Ok(()) | Err(StoreError::Compacted) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(revision: i64) -> ResponseHeader {
        ResponseHeader { revision, ..ResponseHeader::default() }
    }

    /// History that is forgotten is one span old at least, and two at most.
    #[tokio::test(start_paused = true)]
    async fn history_is_old_after_a_span_of_time() {
        let history = History::new(Span { age: Duration::from_secs(300), bytes: 1_000 });
        let old = history.old.subscribe();
        history.see(None, 0);
        for second in 0..2_000 {
            history.see(Some(&header(100 + second)), 0);
            let kept = 100 + second - *old.borrow();
            let is_first = second < 300;
            assert!(is_first == (*old.borrow() == 0), "after {second} s");
            assert!(is_first || (300..=600).contains(&kept), "{kept} revisions are kept after {second} s");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    /// The same of bytes: it does not matter then how young it is.
    #[tokio::test(start_paused = true)]
    async fn history_is_old_after_many_bytes() {
        let history = History::new(Span { age: Duration::from_secs(300), bytes: 1_000 });
        let old = history.old.subscribe();
        for write in 1..100 {
            history.see(Some(&header(write)), 100);
            let kept_bytes = (write - *old.borrow()) * 100;
            assert!(kept_bytes <= 2_000, "{kept_bytes} bytes are kept after {write} writes");
            assert!(*old.borrow() == 0 || kept_bytes >= 1_000, "{kept_bytes} bytes are kept");
        }
        assert!(*old.borrow() > 0);
    }

    /// An etcd that was set up anew counts from the beginning: what was old in the other one is not asked
    /// for.
    #[tokio::test(start_paused = true)]
    async fn an_etcd_that_begins_anew_is_asked_for_what_it_has() {
        let history = History::new(Span { age: Duration::from_secs(300), bytes: 1_000 });
        for revision in [900, 5, 9] {
            history.see(Some(&header(revision)), 0);
            tokio::time::advance(Duration::from_secs(300)).await;
        }
        assert_eq!(*history.old.borrow(), 5);
    }
}
