//! Objects that are asked for, and topics: this agent's part of the manager's directory.
//!
//! The manager is told what is here, and what users here ask for; it says which agents to send to, which one
//! gets an object from its origin, and which version of a topic is committed. `fetch` looks after those who
//! ask, `fill` takes in what one of them gets from elsewhere, `serve` sends to others, `topics` publishes and
//! subscribes.

mod digests;
mod fetch;
mod fill;
mod key;
mod ranges;
mod serve;
mod topics;

pub(super) use fetch::Asks;
pub(super) use fill::{Expected, Shape, fill, store, store_bytes};
pub(super) use key::{Digest, Key};
pub(super) use ranges::Watching;
pub(super) use serve::Outcomes;

use super::catalog::{Available, Catalog};
use super::manager_link::{HeldObject, ManagerLink};
use super::sends::Sends;
use super::shared::Shared;
use digests::Checked;
use fetch::{Fetches, Unserved};
use polycast_api::convert::object_id;
use polycast_api::manager;
use polycast_api::manager::directory_news::News;
use polycast_api::report::Report;
use polycast_net::hash::parse_hex;
use polycast_types::ObjectId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use topics::Topics;

/// Fetches, topics and publications in progress.
pub(super) struct Objects {
    shared: Arc<Shared>,
    sends: Arc<Sends>,
    fetches: Mutex<Fetches>,
    unserved: Mutex<Unserved>,
    checked: Checked,
    topics: Mutex<Topics>,
    /// Reports of the transfers of objects that are being published, by their numbers.
    published: Mutex<BTreeMap<ObjectId, BTreeMap<u64, Arc<Report>>>>,
}

impl Objects {
    pub(super) fn new(shared: Arc<Shared>, sends: Arc<Sends>) -> Self {
        Objects {
            shared,
            sends,
            fetches: Mutex::default(),
            unserved: Mutex::default(),
            checked: Checked::default(),
            topics: Mutex::default(),
            published: Mutex::default(),
        }
    }

    /// Tells the manager what is here, and does what it says, until told to end.
    pub(super) async fn run(self: Arc<Self>, mut ending: watch::Receiver<bool>) {
        let mut news = self.shared.link.directory_news();
        announce(&self.shared.catalog, &self.shared.link);
        loop {
            tokio::select! {
                more = self.shared.catalog.await_journal() => {
                    if !more {
                        return;
                    }
                    announce(&self.shared.catalog, &self.shared.link);
                }
                Some(news) = news.recv() => self.hear(news),
                _ = ending.wait_for(|ends| *ends) => return,
            }
        }
    }

    fn hear(self: &Arc<Self>, news: News) {
        match news {
            News::Serve(serve) => {
                let Some(object) = object_of(serve.object) else { return };
                let objects = Arc::clone(self);
                objects.shared.link.serving(serve.serve_id);
                tokio::spawn(async move {
                    objects.serve(serve.serve_id, object, serve.receivers).await;
                });
            }
            News::Fill(fill) => {
                if let Some(object) = object_of(fill.object) {
                    self.told_to_fill(object);
                }
            }
            News::Denied(denied) => {
                if let Some(object) = object_of(denied.object) {
                    let refusal = super::manager_link::refusal(&denied.kind, denied.reason);
                    self.denied(object, &refusal);
                }
            }
            News::Topic(topic) => self.topic_news(topic),
            News::Refused(refused) => self.topic_refused(refused),
            // The link itself passes it to the publisher.
            News::Published(_) => {}
        }
    }

    fn fetches(&self) -> MutexGuard<'_, Fetches> {
        // Nothing here panics between two changes that belong together.
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unserved(&self) -> MutexGuard<'_, Unserved> {
        self.unserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn published(&self) -> MutexGuard<'_, BTreeMap<ObjectId, BTreeMap<u64, Arc<Report>>>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn topics(&self) -> MutexGuard<'_, Topics> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the manager what has come and gone.
fn announce(catalog: &Catalog, link: &ManagerLink) {
    /// Lock that keeps the reports in the order of the changes.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let held = |object: Available| {
        let root = parse_hex(&object.root);
        HeldObject { length: object.length, root, since: object.since }
    };
    let changes = catalog.take_journal().into_iter().map(|(id, object)| (id, object.map(held)));
    link.tell_held(changes.collect());
}

/// The object that the manager means.
fn object_of(object: Option<manager::ObjectRef>) -> Option<ObjectId> {
    let object = object?;
    object_id(&object.app_id, object.data_id).ok()
}
