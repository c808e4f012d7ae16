//! What a transfer is told while it runs: that its path is lost, and that its group has changed (Blast section IV-A).

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A change of a transfer's group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A further receiver, by name and control address.
    Add(String, SocketAddr),
    /// A receiver, by name, that needs nothing any more.
    Remove(String),
}

/// Something that a device did for the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlStep {
    /// What, in a few words.
    pub step: String,
    /// How long after it was needed it was done, in microseconds.
    pub micros: u64,
}

/// What is known about the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathNews {
    /// Whether it is not there yet and should be waited for; `None` if that is as before.
    pub waits: Option<bool>,
    /// What has happened to it, in a sentence for the report.
    pub event: Option<String>,
    /// What devices did.
    pub steps: Vec<ControlStep>,
}

/// News that wait for the transfer; what comes after is not worth more memory.
const NEWS_MAX: usize = 1_024;

/// The changes that a transfer has not taken in yet.
#[derive(Debug, Default)]
pub struct Steering(Mutex<Orders>);

#[derive(Debug, Default)]
struct Orders {
    lost: Option<String>,
    outer: Option<Vec<Vec<u8>>>,
    changes: Vec<Change>,
    news: Vec<PathNews>,
}

impl Steering {
    /// The path must not be used any more, for this reason.
    pub fn lose_path(&self, reason: &str) {
        self.lock().lost.get_or_insert_with(|| reason.to_string());
    }

    /// The path goes another way in the same network: its datagrams have these headers from now on, for this reason.
    pub fn reroute(&self, outer: Vec<Vec<u8>>, reason: &str) {
        self.lock().outer = Some(outer);
        self.tell(PathNews { event: Some(reason.to_string()), ..PathNews::default() });
    }

    /// The headers that have changed since the last call.
    pub(crate) fn take_outer(&self) -> Option<Vec<Vec<u8>>> {
        self.lock().outer.take()
    }

    /// Changes the group.
    pub fn change(&self, change: Change) {
        self.lock().changes.push(change);
    }

    /// Tells what is known about the path.
    pub fn tell(&self, news: PathNews) {
        let mut orders = self.lock();
        if orders.news.len() < NEWS_MAX || news.waits.is_some() {
            orders.news.push(news);
        }
    }

    /// The news of the path since the last call.
    pub(crate) fn take_news(&self) -> Vec<PathNews> {
        std::mem::take(&mut self.lock().news)
    }

    /// Why the path is lost, if it is.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.lock().lost.clone()
    }

    /// The changes since the last call.
    pub(crate) fn take(&self) -> Vec<Change> {
        std::mem::take(&mut self.lock().changes)
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        // Nothing here panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
