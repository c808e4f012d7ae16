//! One leader among several managers (Republic section III-B leaves one manager; this keeps its service when it dies).
//!
//! The managers compete for a key in etcd. Who has it reads the state of the leader before it, makes a core of it, and
//! lets agents in; the others tell agents who leads. What the leader tells agents and devices goes out when the change of
//! state behind it is written, so that no grant is forgotten and none is given twice.

use crate::config::ManagerConfig;
use crate::core::{Commit, Core};
use crate::store::{Mandate, Store, StoreError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// How often a manager that does not lead looks whether another one does.
const LOOK: Duration = Duration::from_millis(200);

/// Whether this manager leads.
#[derive(Clone, Debug)]
pub enum Role {
    /// It does.
    Leader(Arc<Core>),
    /// It does not; the leader's address where it is known.
    Follower(Option<String>),
}

/// Competes and leads, for ever.
pub async fn compete(config: &ManagerConfig, store: &Store, address: &str, role: &watch::Sender<Role>) {
    loop {
        match store.leader().await {
            Ok(Some(leader)) => {
                role.send_replace(Role::Follower(Some(leader)));
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot see who leads");
                role.send_replace(Role::Follower(None));
                tokio::time::sleep(LOOK).await;
                continue;
            }
        }
        match store.campaign(address, config.etcd.ttl_s).await {
            Ok(Some(mandate)) => {
                let error = lead(config, store, mandate, role).await;
                tracing::warn!(%error, "leads no more");
                role.send_replace(Role::Follower(None));
                store.revoke(mandate.lease).await;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot become the leader");
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Leads until that is over; gives why.
async fn lead(
    config: &ManagerConfig,
    store: &Store,
    mandate: Mandate,
    role: &watch::Sender<Role>,
) -> StoreError {
    let begun = Instant::now();
    let records = match store.load().await {
        Ok(records) => records,
        Err(error) => return error,
    };
    let count = records.len();
    let (core, news, commits) = match Core::restored(config, records) {
        Ok(core) => core,
        Err(error) => return StoreError::Etcd(error.to_string()),
    };
    let core = Arc::new(core);
    tracing::warn!(records = count, micros = begun.elapsed().as_micros() as u64, "this manager leads");
    role.send_replace(Role::Leader(Arc::clone(&core)));
    let error = tokio::select! {
        () = core.keep_time(news) => unreachable!("it goes on for ever"),
        () = core.stopped() => StoreError::Etcd("it is too slow for what is asked".into()),
        error = keep(config, store, mandate) => error,
        error = write(&core, store, mandate, commits) => error,
    };
    core.stop();
    error
}

/// Keeps the mandate alive; ends when it may be over.
async fn keep(config: &ManagerConfig, store: &Store, mandate: Mandate) -> StoreError {
    let ttl = Duration::from_secs(config.etcd.ttl_s);
    let mut kept_at = Instant::now();
    loop {
        tokio::time::sleep(ttl / 5).await;
        let asked_at = Instant::now();
        match store.keep_alive(mandate).await {
            Ok(()) => kept_at = asked_at,
            Err(StoreError::Superseded) => return StoreError::Superseded,
            Err(error) => tracing::warn!(%error, "cannot keep leading"),
        }
        // What etcd has not confirmed in time may have ended: somebody else may lead.
        if kept_at.elapsed() >= ttl {
            return StoreError::Superseded;
        }
    }
}

/// Writes changes of the state, several at a time, and says what waits for each.
async fn write(
    core: &Core,
    store: &Store,
    mandate: Mandate,
    mut commits: mpsc::Receiver<Commit>,
) -> StoreError {
    while let Some(mut commit) = commits.recv().await {
        while let Ok(more) = commits.try_recv() {
            commit.add(more);
        }
        if let Err(error) = store.write(mandate, &commit.changes()).await {
            return error;
        }
        core.perform(commit.acts);
    }
    StoreError::Etcd("the manager ends".into())
}
