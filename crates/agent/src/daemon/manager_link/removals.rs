//! Wishes to remove objects at other agents: ours, which the manager passes on, and theirs, which it passes
//! to us.

use polycast_api::manager as api;
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// The wishes that are under way.
#[derive(Default)]
pub(super) struct Removals {
    pub ours: BTreeMap<u64, mpsc::Sender<api::Removed>>,
    pub others: Option<mpsc::Sender<api::Remove>>,
    /// The last one of others was not heard.
    is_full: bool,
}

impl Removals {
    /// Another agent wishes objects removed here.
    pub(super) fn wished(&mut self, wish: api::Remove) {
        if self.is_news(wish) {
            tracing::warn!("wishes to remove objects are not heard now: too many wait");
        }
    }

    /// Takes a wish of others; gives whether it is to be said that it is not heard, which is so of the first
    /// of many.
    fn is_news(&mut self, wish: api::Remove) -> bool {
        let is_full = self.others.as_ref().is_none_or(|others| others.try_send(wish).is_err());
        !std::mem::replace(&mut self.is_full, is_full) && is_full
    }

    /// An answer to a wish of ours.
    pub(super) fn answered(&mut self, answer: api::Removed) {
        if let Some(ours) = self.ours.get(&answer.request_id) {
            // The caller that wished it may have gone.
            let _ = ours.try_send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many wishes of others come, it is said once that there is no room for them.
    #[tokio::test]
    async fn wishes_that_are_not_heard_are_spoken_of_once() {
        let (others, mut wishes) = mpsc::channel(1);
        let mut removals = Removals { others: Some(others), ..Removals::default() };
        let mut said = || removals.is_news(api::Remove::default());
        assert_eq!([said(), said(), said(), said()], [false, true, false, false]);
        wishes.recv().await.unwrap();
        assert_eq!([said(), said(), said()], [false, true, false]);
    }
}
