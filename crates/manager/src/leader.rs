//! One leader among several managers (Republic section III-B leaves one manager; this keeps its service when
//! it dies).
//!
//! The managers compete for a key in etcd. The one that has it reads the state of the leader before it, makes
//! a core of it, and lets agents in; the others tell agents which one leads. What the leader tells agents and
//! devices goes out when the change of state behind it is written, so that no grant is forgotten and none is
//! given twice.

#[cfg(test)]
mod ages;
pub(crate) mod standbys;
#[cfg(test)]
mod tests;

use crate::config::ManagerConfig;
use crate::core::{Around, Commit, Core};
use crate::store::{CHANGES_MAX, Etcd, Loaded, Mandate, Store, StoreError};
use polycast_api::error::Refusal;
use polycast_protocol::leases::RecordKey;
use serde_json::json;
use std::collections::BTreeMap;
use std::mem::Discriminant;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Interval at which a manager that does not lead checks whether another one does.
const LOOK: Duration = Duration::from_millis(200);
/// The longest pause after a time in which this manager led for less than that.
const REST_MAX: Duration = Duration::from_secs(5);
/// Interval at which a manager checks for room in an etcd that is full: the database is asked about and
/// compacted then.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(5);
/// Managers make room one after the other, each [`LOOK`] after one before it: by their addresses they have so
/// many places.
const TURNS: u32 = 8;
/// Interval at which the log repeats a fault that remains.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// So many of the records that are set aside are named in the log, one by one.
const NAMED_MAX: usize = 20;

/// Role of this manager: whether it leads.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// It does.
    Leader(Arc<Core>),
    /// It does not; the leader's address where it is known.
    Follower(Option<String>),
    /// No manager leads, as far as this one can see, and it cannot either: why.
    Leaderless(String),
}

/// Fault of etcd, as far as the log has it. It is logged when it begins and when it becomes something else,
/// and then once a minute: managers check five times a second.
#[derive(Debug, Default)]
struct Trouble(Option<(Discriminant<StoreError>, Instant)>);

impl Trouble {
    /// Says what is wrong, if it is time to; gives whether it was.
    fn say(&mut self, error: &StoreError) -> bool {
        let (kind, now) = (std::mem::discriminant(error), Instant::now());
        if self.0.is_some_and(|(before, said_at)| before == kind && now - said_at < SAY_AGAIN) {
            return false;
        }
        self.0 = Some((kind, now));
        tracing::warn!(%error, "no manager can lead, as far as this one sees");
        true
    }

    /// Nothing is wrong any more.
    fn is_over(&mut self) {
        if self.0.take().is_some() {
            tracing::warn!("managers can lead again");
        }
    }
}

/// Competes and leads, and does not end.
pub(crate) async fn compete<E: Etcd>(
    config: &ManagerConfig,
    store: &Store<E>,
    address: &str,
    role: &watch::Sender<Role>,
    around: &Around,
) {
    let mut rest = LOOK;
    let mut trouble = Trouble::default();
    // Where etcd is full: when it is looked at again.
    let mut try_at = Instant::now();
    loop {
        match store.leader().await {
            Ok(Some(leader)) => {
                trouble.is_over();
                role.send_replace(Role::Follower(Some(leader)));
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Ok(None) if Instant::now() < try_at => {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Ok(None) => {}
            Err(error) => {
                trouble.say(&error);
                role.send_replace(Role::Leaderless(error.to_string()));
                tokio::time::sleep(LOOK).await;
                continue;
            }
        }
        match store.campaign(address, config.etcd.ttl_s).await {
            Ok(Some(mandate)) => {
                trouble.is_over();
                role.send_replace(Role::Follower(None));
                let begun = Instant::now();
                let error = lead(config, store, mandate, role, around).await;
                tracing::warn!(%error, "leads no more");
                role.send_replace(match &error {
                    StoreError::Superseded => Role::Follower(None),
                    error => Role::Leaderless(error.to_string()),
                });
                store.revoke(mandate.lease).await;
                // What has ended this at once may do so again; another manager may be better off meanwhile.
                rest = if begun.elapsed() < REST_MAX { (rest * 2).min(REST_MAX) } else { LOOK };
                tokio::time::sleep(rest).await;
            }
            Ok(None) => tokio::time::sleep(LOOK).await,
            Err(StoreError::Full) => {
                if let Err(error) = make_room(store, address, role).await {
                    trouble.say(&error);
                    role.send_replace(Role::Leaderless(error.to_string()));
                    try_at = Instant::now() + LOOK_FOR_ROOM;
                }
                tokio::time::sleep(LOOK).await;
            }
            Err(error) => {
                trouble.say(&error);
                role.send_replace(Role::Leaderless(error.to_string()));
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Makes room in an etcd that is full, if that can be done.
async fn make_room<E: Etcd>(
    store: &Store<E>,
    address: &str,
    role: &watch::Sender<Role>,
) -> Result<(), StoreError> {
    // What was said before may say more.
    if !matches!(&*role.borrow(), Role::Leaderless(_)) {
        role.send_replace(Role::Leaderless(StoreError::Full.to_string()));
    }
    // Each manager sees at the same moment that none can lead. The first one makes room, and the others find
    // that there is some.
    let turn = address.bytes().fold(0, |sum: u32, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    tokio::time::sleep(LOOK * (turn % TURNS)).await;
    store.make_room().await?;
    tracing::warn!("etcd was full, and has room again");
    Ok(())
}

/// Leads until that is over; gives why.
async fn lead<E: Etcd>(
    config: &ManagerConfig,
    store: &Store<E>,
    mandate: Mandate,
    role: &watch::Sender<Role>,
    around: &Around,
) -> StoreError {
    let begun = Instant::now();
    // The mandate is kept alive meanwhile: there may be much to read.
    // In one order, here and below: a run in virtual time is the same each time.
    let loaded = tokio::select! {
        biased;
        loaded = store.load(mandate) => loaded,
        error = keep(config, store, mandate) => Err(error),
    };
    let mut loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return error,
    };
    if around.guard().signs() {
        match store.permit_seed(mandate).await {
            Ok(seed) => around.guard().sign_with(&seed),
            Err(error) => return error,
        }
    }
    let (records, unread) = (std::mem::take(&mut loaded.records), std::mem::take(&mut loaded.unread));
    let count = records.len();
    if loaded.is_set_back {
        tracing::warn!(
            "etcd is older than it was, as after a backup was put in its place: paths that it does not name are waited for"
        );
    }
    // A record that this version cannot read may be a path, unless it is plain that it is something else.
    let in_doubt = loaded.is_set_back
        || unread
            .keys()
            .any(|key| key == "journal" || matches!(RecordKey::parse(key), Some(RecordKey::Lease(_))));
    let restored = match Core::restored(config, around, records, in_doubt) {
        Ok(restored) => restored,
        Err(error) => return StoreError::Etcd(error.to_string()),
    };
    let core = Arc::new(restored.core);
    let aside = name_aside(unread, restored.aside);
    around.guard().note("leads", || json!({ "records": count }));
    tracing::info!(target: "polycast::done", records = count, micros = begun.elapsed().as_micros() as u64, "this manager leads");
    role.send_replace(Role::Leader(Arc::clone(&core)));
    let error = tokio::select! {
        biased;
        () = core.stopped() => StoreError::Etcd("it is too slow for what is asked".into()),
        error = keep(config, store, mandate) => error,
        error = write(&core, store, mandate, restored.commits) => error,
        error = clear_away(config, store, mandate, loaded, aside) => error,
        error = store.forget_history() => error,
        () = core.keep_time(restored.news) => unreachable!("it does not end"),
    };
    match &error {
        StoreError::Superseded => core.stop(),
        error => core.stop_for(&Refusal::no_leader(&error.to_string())),
    }
    error
}

/// Says which records are not taken in; gives the keys of those that are ours.
fn name_aside(unread: BTreeMap<String, String>, unfit: Vec<(String, String)>) -> Vec<String> {
    let all: BTreeMap<String, String> = unread.into_iter().chain(unfit).collect();
    for (key, reason) in all.iter().take(NAMED_MAX) {
        tracing::warn!(key, reason, "a record in etcd cannot be used and is set aside");
    }
    if let Some(more) = all.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        tracing::warn!(more, "more records in etcd cannot be used and are set aside");
    }
    // What is not ours is left where it is.
    all.into_keys().filter(|key| RecordKey::parse(key).is_some()).collect()
}

/// Moves what cannot be used out of the state, when those whose paths it may be about have had the time to
/// say so: a manager that leads before then has to wait for them as well. Ends only with an error.
async fn clear_away<E: Etcd>(
    config: &ManagerConfig,
    store: &Store<E>,
    mandate: Mandate,
    loaded: Loaded,
    aside: Vec<String>,
) -> StoreError {
    let values = loaded.values(aside);
    if !values.is_empty() {
        tokio::time::sleep(config.patience()).await;
        if let Err(error) = store.set_aside(mandate, values).await {
            return error;
        }
    }
    std::future::pending().await
}

/// Keeps the mandate alive; ends when it may be over.
async fn keep<E: Etcd>(config: &ManagerConfig, store: &Store<E>, mandate: Mandate) -> StoreError {
    let ttl = Duration::from_secs(config.etcd.ttl_s);
    let mut kept_at = Instant::now();
    // What etcd has said last, where it has not confirmed it since.
    let mut unkept = None;
    loop {
        // What etcd has not confirmed in time may have ended: another manager may lead. Where it is etcd that
        // is away none does, and users are told so.
        if kept_at.elapsed() >= ttl {
            return unkept.unwrap_or(StoreError::Superseded);
        }
        tokio::time::sleep(ttl / 5).await;
        let asked_at = Instant::now();
        match store.keep_alive(mandate).await {
            Ok(()) => (kept_at, unkept) = (asked_at, None),
            Err(StoreError::Superseded) => return StoreError::Superseded,
            Err(error) => {
                // It is asked several times until it is too late: the first time says all.
                if unkept.is_none() {
                    tracing::warn!(%error, "cannot keep leading");
                }
                unkept = Some(error);
            }
        }
    }
}

/// Writes changes of the state, several at a time, and says what waits for each.
async fn write<E: Etcd>(
    core: &Core,
    store: &Store<E>,
    mandate: Mandate,
    mut commits: mpsc::Receiver<Commit>,
) -> StoreError {
    let mut next = None;
    loop {
        let commit = match next.take() {
            Some(commit) => Some(commit),
            None => commits.recv().await,
        };
        let Some(mut commit) = commit else { break };
        while let Ok(more) = commits.try_recv() {
            // What one transaction does not take is written twice, the first time into the journal.
            if !commit.fits(&more, CHANGES_MAX) {
                next = Some(more);
                break;
            }
            commit.add(more);
        }
        if let Err(error) = store.write(mandate, &commit.changes()).await {
            return error;
        }
        core.perform(commit.acts);
    }
    StoreError::Etcd("the manager ends".into())
}
