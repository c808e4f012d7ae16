//! Use of etcd by the managers: which manager leads, and the leader's state.
//!
//! The leader holds a key that lives as long as a lease which it keeps alive. Whatever it writes is written
//! only if that key is still its own, in the same transaction: one that has been superseded without noticing
//! changes nothing.
//!
//! Changes that belong together are written as one. Where they are more than a transaction takes, they are
//! written into a journal first, part by part, and counted there in one transaction; from then on they hold,
//! and the next leader makes those that were not made.
//!
//! A record that is longer than a transaction takes is written in pieces beside the state; under its own key
//! is then the number of pieces.
//!
//! The leader has etcd forget its history ([`history`]), and a manager that would lead makes room in an etcd
//! that is full ([`room`]).

mod etcd;
mod history;
#[cfg(test)]
pub(crate) mod pretended;
mod room;
mod shown;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use etcd::Servers;
#[cfg(test)]
pub(crate) use history::Span;
pub(crate) use room::Lack;
pub(crate) use shown::{EtcdServer, Present};

use history::History;
use room::Fullness;

use polycast_net::seal::Secret;
use polycast_protocol::leases::{Record, RecordKey};
use prost::Message as _;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tonic::Status;
use zeroize::Zeroizing;

/// Generated code of etcd's API.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub(crate) mod api {
    tonic::include_proto!("etcdserverpb");
}

use api::compare::{CompareResult, CompareTarget, TargetUnion};
use api::request_op::Request as Op;

/// Time that a server of etcd may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1_000);
/// Changes in one transaction; etcd takes 128 unless it is told otherwise.
pub(crate) const CHANGES_MAX: usize = 100;
/// Bytes of the records in one transaction; etcd takes 1.5 MiB unless it is told otherwise.
const BYTES_MAX: usize = 1 << 20;
/// A longer record is written in pieces of this length.
const PIECE_LEN: usize = 1 << 19;
/// Pieces of one record: far more than the longest one has. Each is read by itself.
const PIECES_MAX: usize = 1_024;
/// The longest address of a manager: a name of the domain name system, and a port.
const ADDRESS_LEN_MAX: usize = 253 + 1 + 5;
/// Maximum number of keys that are named of those under the state's that are no manager's: there can be any
/// number.
const FOREIGN_MAX: usize = 20;
/// Text before the number of pieces; no record begins with it.
const IN_PIECES: &str = "pieces ";
/// A longer value, which none of ours has, cannot be moved in one transaction.
const MOVED_MAX: usize = (3 << 19) - (8 << 10);
/// Records read at a time.
const READ_MAX: i64 = 1_000;

/// Reason why etcd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// It cannot be reached, or refuses.
    #[error("etcd: {0}")]
    Etcd(String),
    /// It takes no change: its database has reached its quota.
    #[error("etcd's database is full, and it takes no change until there is room")]
    Full,
    /// The same, after what a manager can do about it.
    #[error("etcd's database is full: {0}")]
    NoRoom(#[from] Lack),
    /// Its history is forgotten further than it was asked.
    #[error("etcd has forgotten that already")]
    Compacted,
    /// The lease has ended, or another manager leads.
    #[error("another manager may lead by now")]
    Superseded,
    /// The key of the leader holds what no manager has written. Managers cannot lead while it is there.
    #[error("the key '{key}' names no manager ({reason}): find out what writes there, and remove it")]
    Leader {
        /// The key.
        key: String,
        /// Reason why the key is wrong.
        reason: &'static str,
    },
    /// It cannot be asked: the settings name it wrongly.
    #[error("'{address}': {reason}")]
    Address {
        /// As the settings say.
        address: String,
        /// Reason why it is wrong.
        reason: String,
    },
    /// A record of ours cannot be written.
    #[error("the record '{key}' cannot be written: {reason}")]
    Record {
        /// The key.
        key: String,
        /// Reason for the failure.
        reason: String,
    },
}

impl From<Status> for StoreError {
    fn from(status: Status) -> Self {
        // Its codes mean other things too; its sentences have been these since etcd 3.0.
        match status.message() {
            says if says.ends_with("database space exceeded") => StoreError::Full,
            says if says.ends_with("required revision has been compacted") => StoreError::Compacted,
            _ => StoreError::Etcd(polycast_api::error::innermost(&status)),
        }
    }
}

/// Requests of managers to etcd. Each of them can be made twice.
pub(crate) trait Etcd: Send + Sync {
    /// Reads keys.
    fn range(
        &self,
        request: api::RangeRequest,
    ) -> impl Future<Output = Result<api::RangeResponse, StoreError>> + Send;
    /// Makes changes under a condition, all or none.
    fn txn(
        &self,
        request: api::TxnRequest,
    ) -> impl Future<Output = Result<api::TxnResponse, StoreError>> + Send;
    /// Gives a lease; keys that are bound to it go when it ends.
    fn grant(&self, ttl_s: i64) -> impl Future<Output = Result<i64, StoreError>> + Send;
    /// Keeps a lease alive for another while; it says how long, 0 if it has ended.
    fn keep_alive(
        &self,
        lease: i64,
    ) -> impl Future<Output = Result<api::LeaseKeepAliveResponse, StoreError>> + Send;
    /// Ends a lease.
    fn revoke(&self, lease: i64) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Forgets what was before a revision; the answer may come when the room is free, or before.
    fn compact(&self, revision: i64, until_free: bool)
    -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Lists or changes alarms.
    fn alarm(
        &self,
        request: api::AlarmRequest,
    ) -> impl Future<Output = Result<api::AlarmResponse, StoreError>> + Send;
    /// The addresses of the servers that are named; in the next two calls a server is the one at this place.
    fn servers(&self) -> Vec<String>;
    /// Returns the status of one server.
    fn status(&self, at: usize) -> impl Future<Output = Result<api::StatusResponse, StoreError>> + Send;
    /// Makes the file of one server as short as what is in it; the server answers nothing meanwhile.
    fn defragment(&self, at: usize) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Data of managers in etcd under their prefix.
#[derive(Debug)]
pub(crate) struct Store<E = Servers> {
    etcd: E,
    prefix: String,
    /// Secret that the key of permits is sealed with, if all managers have one.
    seal: Option<Secret>,
    history: History,
    known: Mutex<Known>,
    /// State of an etcd that is full.
    fullness: Mutex<Fullness>,
}

/// Values under the keys of the state, as known to the leader that has read and written it: absent ones need
/// no removal.
#[derive(Debug, Default)]
struct Known {
    /// The revision of the mandate under which it was read; 0: nothing is known.
    mandate: i64,
    /// Every key below the state's, and whether its record is in pieces. There are as many as there are
    /// records.
    records: BTreeMap<String, bool>,
}

/// Contents of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Unknown,
    Nothing,
    Whole,
    Pieces,
}

impl Known {
    fn before(&self, mandate: Mandate, name: &str) -> Holds {
        match self.records.get(name) {
            _ if self.mandate != mandate.revision => Holds::Unknown,
            None => Holds::Nothing,
            Some(false) => Holds::Whole,
            Some(true) => Holds::Pieces,
        }
    }
}

/// Proof that this manager leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mandate {
    /// The lease that the leader's key lives by.
    pub lease: i64,
    /// Revision at which the key was made, in etcd's count.
    revision: i64,
}

/// Everything that was written.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// The records.
    pub records: Vec<Record>,
    /// Values that cannot be read, by their keys below the state's, and the reason for each.
    pub unread: BTreeMap<String, String>,
    /// Set if etcd is older than it was, as after a backup was put in its place: it lacks everything that was
    /// written since then.
    pub is_set_back: bool,
    /// Number of keys that are no manager's.
    foreign: usize,
    /// Value under every key of managers, and the revision of its last change.
    raw: BTreeMap<String, (Vec<u8>, i64)>,
}

/// A value under a key of the state, as it was read.
#[derive(Debug)]
pub(crate) struct Found {
    name: String,
    value: Vec<u8>,
    /// Revision of its last change.
    revision: i64,
}

impl Loaded {
    /// Leaves out a key that is no manager's.
    fn skip(&mut self, name: &[u8]) {
        self.foreign += 1;
        if self.foreign <= FOREIGN_MAX {
            // What is no text could be taken for the name of a record of ours.
            let name = String::from_utf8(name.to_vec()).unwrap_or_else(|_| name.escape_ascii().to_string());
            self.unread.insert(name, "no manager writes under such a key".into());
        }
    }

    /// The values under these keys, for [`Store::set_aside`].
    pub(crate) fn values(mut self, keys: impl IntoIterator<Item = String>) -> Vec<Found> {
        let found = |key| {
            let (name, (value, revision)) = self.raw.remove_entry(&key)?;
            Some(Found { name, value, revision })
        };
        keys.into_iter().filter_map(found).collect()
    }
}

impl<E: Etcd> Store<E> {
    /// Creates a store of the data under this prefix.
    pub(crate) fn new(etcd: E, prefix: &str) -> Self {
        let history = History::new(history::Span::default());
        let prefix = prefix.trim_end_matches('/').to_string();
        let (known, fullness) = (Mutex::default(), Mutex::default());
        Store { etcd, prefix, seal: None, history, known, fullness }
    }

    /// The same, where what permits are signed with is sealed with this: etcd and its backups do not show it,
    /// and none that another program has put there is taken.
    pub(crate) fn sealed_with(self, seal: Option<Secret>) -> Self {
        Store { seal, ..self }
    }

    /// The same with another span of history.
    #[cfg(test)]
    pub(crate) fn keeping(self, span: Span) -> Self {
        Store { history: History::new(span), ..self }
    }

    fn leader_key(&self) -> Vec<u8> {
        format!("{}/leader", self.prefix).into_bytes()
    }

    fn state_prefix(&self) -> String {
        format!("{}/state/", self.prefix)
    }

    fn journal_prefix(&self) -> String {
        format!("{}/journal/", self.prefix)
    }

    /// Returns the key of the number of journal parts that hold; it exists only while all of them do.
    fn journal_count(&self) -> Vec<u8> {
        format!("{}/journaled", self.prefix).into_bytes()
    }

    fn journal_part(&self, number: usize) -> Vec<u8> {
        format!("{}{number:06}", self.journal_prefix()).into_bytes()
    }

    /// The pieces of one record; none of another's keys begins so.
    fn pieces_prefix(&self, key: &str) -> String {
        format!("{}/pieces/{key}/", self.prefix)
    }

    fn piece(&self, key: &str, number: usize) -> Vec<u8> {
        format!("{}{number:06}", self.pieces_prefix(key)).into_bytes()
    }

    async fn get(&self, key: Vec<u8>) -> Result<Option<Vec<u8>>, StoreError> {
        let request = api::RangeRequest { key, range_end: Vec::new(), limit: 1 };
        Ok(self.etcd.range(request).await?.kvs.into_iter().next().map(|kv| kv.value))
    }

    /// The leader, by the address that it is reached at.
    pub(crate) async fn leader(&self) -> Result<Option<String>, StoreError> {
        let request = api::RangeRequest { key: self.leader_key(), range_end: Vec::new(), limit: 1 };
        let found = self.etcd.range(request).await?;
        self.history.see(found.header.as_ref(), 0);
        let Some(kv) = found.kvs.into_iter().next() else { return Ok(None) };
        address_of_leader(kv).map(Some).map_err(|reason| {
            let key = String::from_utf8_lossy(&self.leader_key()).into_owned();
            StoreError::Leader { key, reason }
        })
    }

    /// Tries to become the leader; gives `None` if there is one.
    pub(crate) async fn campaign(&self, address: &str, ttl_s: u64) -> Result<Option<Mandate>, StoreError> {
        let lease = self.etcd.grant(i64::try_from(ttl_s).unwrap_or(i64::MAX)).await?;
        let put = api::PutRequest { key: self.leader_key(), value: address.as_bytes().to_vec(), lease };
        let txn = api::TxnRequest {
            compare: vec![self.leader_is(0)],
            success: vec![operation(Op::RequestPut(put))],
            failure: Vec::new(),
        };
        let outcome = self.etcd.txn(txn).await?;
        if !outcome.succeeded {
            self.revoke(lease).await;
            return Ok(None);
        }
        self.is_full_no_more();
        let revision = outcome.header.map_or(0, |header| header.revision);
        Ok(Some(Mandate { lease, revision }))
    }

    /// The condition that the leader's key was made at this revision; 0: that there is none.
    fn leader_is(&self, revision: i64) -> api::Compare {
        api::Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: self.leader_key(),
            target_union: Some(TargetUnion::CreateRevision(revision)),
        }
    }

    /// Keeps a lease alive for another while.
    pub(crate) async fn keep_alive(&self, mandate: Mandate) -> Result<(), StoreError> {
        let kept = self.etcd.keep_alive(mandate.lease).await?;
        self.history.see(kept.header.as_ref(), 0);
        if kept.ttl > 0 { Ok(()) } else { Err(StoreError::Superseded) }
    }

    /// Ends a lease, and with it the leadership. One that cannot be ended ends by itself.
    pub(crate) async fn revoke(&self, lease: i64) {
        let _ = self.etcd.revoke(lease).await;
    }

    /// Ends the leadership of the manager at this address, if it leads, so that another one takes over at
    /// once; and shows it no more.
    pub(crate) async fn resign(&self, address: &str) {
        let hide = delete(self.shown_key(address), Vec::new());
        let txn = api::TxnRequest {
            compare: vec![is_value(self.leader_key(), address.as_bytes().to_vec())],
            success: vec![delete(self.leader_key(), Vec::new()), hide.clone()],
            failure: vec![hide],
        };
        // Otherwise the leases end by themselves.
        let _ = self.etcd.txn(txn).await;
    }

    /// Returns the secret that permits are signed with: all managers that lead one after the other have the
    /// same, so that agents that know one of them accept permits that another one has signed.
    pub(crate) async fn permit_seed(&self, mandate: Mandate) -> Result<Secret, StoreError> {
        let key = format!("{}/permit-seed", self.prefix).into_bytes();
        if let Some(found) = self.get(key.clone()).await?
            && let Some(seed) = self.seed_in(&Zeroizing::new(found))?
        {
            return Ok(seed);
        }
        let seed = Secret::fresh();
        let value = self.seal.as_ref().map_or_else(|| seed.reveal().to_vec(), |seal| seed.sealed(seal));
        let put = api::PutRequest { key, value, lease: 0 };
        self.make(mandate, vec![operation(Op::RequestPut(put))]).await?;
        Ok(seed)
    }

    /// Returns the kept secret, or `None` if it was not sealed with the key that managers have: it was
    /// written under another key, or by another program.
    fn seed_in(&self, found: &[u8]) -> Result<Option<Secret>, StoreError> {
        if let Some(seal) = &self.seal {
            let seed = Secret::unsealed(found, seal);
            if seed.is_none() {
                tracing::warn!(
                    "the key of permits in etcd is not sealed with the cluster's key: a new one is made"
                );
            }
            return Ok(seed);
        }
        let seed = <[u8; 32]>::try_from(found).map(|seed| Some(Secret::new(seed)));
        seed.map_err(|_| StoreError::Record {
            key: "permit-seed".into(),
            reason: "it has no 32 bytes: remove it, and a new one is made".into(),
        })
    }

    /// All records of the state, after the changes were made that the leader before could not make. What
    /// cannot be read is named, and stays where it is.
    pub(crate) async fn load(&self, mandate: Mandate) -> Result<Loaded, StoreError> {
        let mut loaded = Loaded::default();
        if let Err(reason) = self.recover(mandate).await? {
            // It cannot be read what it would have changed.
            loaded.unread.insert("journal".into(), reason);
        }
        let prefix = self.state_prefix().into_bytes();
        let end = after(&prefix);
        let mut key = prefix.clone();
        loop {
            let request = api::RangeRequest { key: key.clone(), range_end: end.clone(), limit: READ_MAX };
            let response = self.etcd.range(request).await?;
            if response.kvs.iter().any(|kv| kv.key < key || kv.key >= end) {
                return Err(StoreError::Etcd("it gives keys that it was not asked for".into()));
            }
            loaded.is_set_back |= self.history.was_set_back(response.header.as_ref());
            let last = response.kvs.last().map(|kv| kv.key.clone());
            for kv in response.kvs {
                let name = kv.key.get(prefix.len()..).unwrap_or_default();
                let known =
                    String::from_utf8(name.to_vec()).ok().filter(|name| RecordKey::parse(name).is_some());
                let Some(name) = known else {
                    loaded.skip(name);
                    continue;
                };
                match self.whole(&name, &kv.value).await?.and_then(|value| read(&name, &value)) {
                    Ok(record) => loaded.records.push(record),
                    Err(reason) => drop(loaded.unread.insert(name.clone(), reason)),
                }
                loaded.raw.insert(name, (kv.value, kv.mod_revision));
            }
            match last {
                Some(last) if response.more => {
                    key = last;
                    key.push(0);
                }
                _ => break,
            }
        }
        if loaded.foreign > 0 {
            let (keys, under) = (loaded.foreign, self.state_prefix());
            tracing::warn!(keys, under, "keys in etcd are no manager's, and stay where they are");
        }
        let records = loaded.raw.iter().map(|(name, (value, _))| (name.clone(), is_in_pieces(value)));
        *self.known() = Known { mandate: mandate.revision, records: records.collect() };
        Ok(loaded)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Nothing here panics between two changes that belong together.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record's value, put together if it is in pieces; or what is wrong with them.
    async fn whole<'a>(
        &self,
        name: &str,
        value: &'a [u8],
    ) -> Result<Result<Cow<'a, [u8]>, String>, StoreError> {
        let Some(count) = value.strip_prefix(IN_PIECES.as_bytes()) else { return Ok(Ok(value.into())) };
        let Ok(count) = String::from_utf8_lossy(count).parse::<usize>() else {
            return Ok(Err("it has no number of pieces".into()));
        };
        if count > PIECES_MAX {
            return Ok(Err(format!(
                "it says that it has {count} pieces, and no record has more than {PIECES_MAX}"
            )));
        }
        let mut whole = Vec::new();
        for number in 0..count {
            let Some(piece) = self.get(self.piece(name, number)).await? else {
                return Ok(Err(format!("piece {number} of {count} is not there")));
            };
            whole.extend(piece);
        }
        Ok(Ok(whole.into()))
    }

    /// Makes the changes of a journal that holds, and forgets one that does not. Gives why its changes cannot
    /// be made.
    async fn recover(&self, mandate: Mandate) -> Result<Result<(), String>, StoreError> {
        let Some(count) = self.get(self.journal_count()).await? else {
            return self.forget_journal(mandate).await.map(Ok);
        };
        let mut parts = Vec::new();
        let mut wrong = None;
        match String::from_utf8_lossy(&count).parse::<usize>() {
            Ok(count) => {
                for number in 0..count {
                    let part = self.get(self.journal_part(number)).await?;
                    match part.map(|part| api::TxnRequest::decode(part.as_slice())) {
                        Some(Ok(part)) if !part.success.iter().all(|change| self.is_of_record(change)) => {
                            wrong = Some(format!("part {number} of the journal changes more than records"));
                        }
                        Some(Ok(part)) => parts.push(part.success),
                        Some(Err(error)) => wrong = Some(format!("part {number} of the journal: {error}")),
                        None => wrong = Some(format!("part {number} of the journal is not there")),
                    }
                    if wrong.is_some() {
                        break;
                    }
                }
            }
            Err(error) => wrong = Some(format!("the journal has no number of parts: {error}")),
        }
        for changes in parts {
            self.make(mandate, changes).await?;
        }
        self.forget_journal(mandate).await?;
        Ok(wrong.map_or(Ok(()), Err))
    }

    /// Returns true if a change is of records alone, as are all changes that managers write into the journal.
    /// Changes there are made with a manager's rights, which may go further than those of a program
    /// that has written them.
    fn is_of_record(&self, change: &api::RequestOp) -> bool {
        let places = [self.state_prefix(), format!("{}/pieces/", self.prefix)].map(String::into_bytes);
        let is_within = |key: &[u8], end: &[u8]| {
            // An end before the key means all that there is to etcd.
            let ends_well = |place: &[u8]| end.is_empty() || (end > key && end <= after(place).as_slice());
            places.iter().any(|place| key.starts_with(place) && ends_well(place))
        };
        match &change.request {
            Some(Op::RequestPut(put)) => put.lease == 0 && is_within(&put.key, &[]),
            Some(Op::RequestDeleteRange(delete)) => is_within(&delete.key, &delete.range_end),
            Some(Op::RequestRange(_)) | None => false,
        }
    }

    async fn forget_journal(&self, mandate: Mandate) -> Result<(), StoreError> {
        let prefix = self.journal_prefix().into_bytes();
        let end = after(&prefix);
        self.make(mandate, vec![delete(self.journal_count(), Vec::new()), delete(prefix, end)]).await
    }

    /// Makes changes, if we still lead.
    async fn make(&self, mandate: Mandate, changes: Vec<api::RequestOp>) -> Result<(), StoreError> {
        let compare = vec![self.leader_is(mandate.revision)];
        let txn = api::TxnRequest { compare, success: changes, failure: Vec::new() };
        let bytes = txn.encoded_len() as u64;
        let made = self.etcd.txn(txn).await?;
        self.history.see(made.header.as_ref(), bytes);
        if made.succeeded { Ok(()) } else { Err(StoreError::Superseded) }
    }

    /// Writes changes of the state, if we still lead: all of them, or none as far as the next leader sees.
    pub(crate) async fn write(
        &self,
        mandate: Mandate,
        changes: &[(RecordKey, Option<Record>)],
    ) -> Result<(), StoreError> {
        let mut steps = Vec::new();
        let mut after = Vec::new();
        for (key, record) in changes {
            let name = key.to_string();
            let before = self.known().before(mandate, &name);
            let (own, then) = self.steps(&name, before, record.as_ref())?;
            steps.extend(own);
            after.push((name, then));
        }
        self.write_parts(mandate, in_parts(steps)).await?;
        let mut known = self.known();
        if known.mandate == mandate.revision {
            for (name, then) in after {
                match then {
                    Holds::Whole | Holds::Pieces => drop(known.records.insert(name, then == Holds::Pieces)),
                    Holds::Nothing | Holds::Unknown => drop(known.records.remove(&name)),
                }
            }
        }
        Ok(())
    }

    async fn write_parts(&self, mandate: Mandate, parts: Vec<Vec<api::RequestOp>>) -> Result<(), StoreError> {
        if parts.len() <= 1 {
            for part in parts {
                self.make(mandate, part).await?;
            }
            return Ok(());
        }
        for (number, part) in parts.iter().enumerate() {
            let part = api::TxnRequest { success: part.clone(), ..api::TxnRequest::default() };
            self.make(mandate, vec![put(self.journal_part(number), part.encode_to_vec())]).await?;
        }
        let count = parts.len().to_string().into_bytes();
        self.make(mandate, vec![put(self.journal_count(), count)]).await?;
        for part in parts {
            self.make(mandate, part).await?;
        }
        self.forget_journal(mandate).await
    }

    /// Returns the operations for the change of one record, and the contents of its key after them.
    fn steps(
        &self,
        own: &str,
        before: Holds,
        record: Option<&Record>,
    ) -> Result<(Vec<api::RequestOp>, Holds), StoreError> {
        let in_state = format!("{}{own}", self.state_prefix()).into_bytes();
        let value = record.map(serde_json::to_vec).transpose().map_err(|error| {
            let key = String::from_utf8_lossy(&in_state).into_owned();
            StoreError::Record { key, reason: error.to_string() }
        })?;
        let pieces: Vec<&[u8]> = match &value {
            Some(value) if value.len() > PIECE_LEN => value.chunks(PIECE_LEN).collect(),
            _ => Vec::new(),
        };
        let mut steps: Vec<_> = pieces
            .iter()
            .zip(0..)
            .map(|(piece, number)| put(self.piece(own, number), piece.to_vec()))
            .collect();
        if matches!(before, Holds::Pieces | Holds::Unknown) {
            let end = after(self.pieces_prefix(own).as_bytes());
            steps.push(delete(self.piece(own, pieces.len()), end));
        }
        match value {
            // One that came and went before it was written.
            None if before == Holds::Nothing => {}
            None => steps.push(delete(in_state, Vec::new())),
            Some(_) if !pieces.is_empty() => {
                steps.push(put(in_state, format!("{IN_PIECES}{}", pieces.len()).into_bytes()));
                return Ok((steps, Holds::Pieces));
            }
            Some(value) => {
                steps.push(put(in_state, value));
                return Ok((steps, Holds::Whole));
            }
        }
        Ok((steps, Holds::Nothing))
    }

    /// Moves values out of the state, to where people can look at them, unless they have changed since they
    /// were read. One that is too long for it stays.
    pub(crate) async fn set_aside(&self, mandate: Mandate, values: Vec<Found>) -> Result<(), StoreError> {
        for Found { name, value, revision } in values {
            if value.len() > MOVED_MAX {
                tracing::warn!(
                    key = name,
                    bytes = value.len(),
                    "a value in etcd is too long to be moved, and stays"
                );
                continue;
            }
            let key = format!("{}{name}", self.state_prefix()).into_bytes();
            let aside = format!("{}/aside/{name}", self.prefix).into_bytes();
            let txn = api::TxnRequest {
                compare: vec![self.leader_is(mandate.revision), is_of(key.clone(), revision)],
                success: vec![put(aside, value), delete(key, Vec::new())],
                failure: Vec::new(),
            };
            let bytes = txn.encoded_len() as u64;
            let moved = self.etcd.txn(txn).await?;
            self.history.see(moved.header.as_ref(), bytes);
        }
        Ok(())
    }
}

/// Steps in parts that a transaction takes.
fn in_parts(steps: Vec<api::RequestOp>) -> Vec<Vec<api::RequestOp>> {
    let mut parts: Vec<Vec<api::RequestOp>> = Vec::new();
    let mut bytes = 0;
    for step in steps {
        let len = step.encoded_len();
        match parts.last_mut() {
            Some(part) if part.len() < CHANGES_MAX && bytes + len <= BYTES_MAX => {
                part.push(step);
                bytes += len;
            }
            _ => {
                parts.push(vec![step]);
                bytes = len;
            }
        }
    }
    parts
}

/// The address in the key of the leader, or why no manager has written it.
fn address_of_leader(kv: api::KeyValue) -> Result<String, &'static str> {
    // It would not end with the manager that has written it.
    if kv.lease == 0 {
        return Err("it has no lease");
    }
    if kv.value.len() > ADDRESS_LEN_MAX || !kv.value.iter().all(u8::is_ascii_graphic) {
        return Err("it is no address");
    }
    String::from_utf8(kv.value).map_err(|_| "it is no address")
}

fn is_in_pieces(value: &[u8]) -> bool {
    value.starts_with(IN_PIECES.as_bytes())
}

/// Reads one record of the state.
fn read(name: &str, value: &[u8]) -> Result<Record, String> {
    let key = RecordKey::parse(name).ok_or("no manager writes under such a key")?;
    let record: Record = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    let own = record.key();
    if own == key { Ok(record) } else { Err(format!("it is the record of '{own}'")) }
}

/// The next key after all that begin with a prefix: ours end with '/', which is not the last byte there is.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn operation(request: Op) -> api::RequestOp {
    api::RequestOp { request: Some(request) }
}

fn put(key: Vec<u8>, value: Vec<u8>) -> api::RequestOp {
    operation(Op::RequestPut(api::PutRequest { key, value, lease: 0 }))
}

fn delete(key: Vec<u8>, range_end: Vec<u8>) -> api::RequestOp {
    operation(Op::RequestDeleteRange(api::DeleteRangeRequest { key, range_end }))
}

/// The condition that a key's last change is that of this revision.
fn is_of(key: Vec<u8>, revision: i64) -> api::Compare {
    api::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key,
        target_union: Some(TargetUnion::ModRevision(revision)),
    }
}

fn is_value(key: Vec<u8>, value: Vec<u8>) -> api::Compare {
    api::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Value.into(),
        key,
        target_union: Some(TargetUnion::Value(value)),
    }
}
