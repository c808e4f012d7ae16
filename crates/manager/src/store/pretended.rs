//! An etcd in memory and in tokio's time, as far as managers use one: keys, transactions, leases that end, a
//! history that takes room until it is forgotten, and a quota. Every manager has a link to it of its own,
//! which can be slow, cut, or lose answers.

use super::{ANSWER_TIMEOUT, Etcd, StoreError, api};
use api::alarm_request::AlarmAction;
use api::compare::TargetUnion;
use api::request_op::Request as Op;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// The number of the only member.
const MEMBER: u64 = 7;
/// Bytes that a revision takes beside its key and its value.
const REVISION_LEN: u64 = 100;

#[derive(Clone, Debug)]
struct Value {
    value: Vec<u8>,
    create_revision: i64,
    mod_revision: i64,
    lease: i64,
}

#[derive(Debug, Default)]
struct State {
    values: BTreeMap<Vec<u8>, Value>,
    revision: i64,
    /// End of each lease, and its lifetime.
    leases: BTreeMap<i64, (Instant, Duration)>,
    last_lease: i64,
    /// Every key that ever was.
    ever: BTreeSet<Vec<u8>>,
    random: u64,
    /// Values that are gone: the revision that has ended each, and the bytes that it takes until that is
    /// forgotten.
    past: Vec<(i64, u64)>,
    /// Revision before which everything is forgotten.
    compacted: i64,
    compactions: u64,
    defragmentations: u64,
    /// Number of bytes that other clients have in use.
    foreign_bytes: u64,
    /// Length of the database's file.
    file_bytes: u64,
    quota_bytes: Option<u64>,
    /// Set if it reports its quota.
    tells_quota: bool,
    is_full: bool,
    /// Set if it does not let managers defragment it.
    is_locked: bool,
    /// Set if it gives other keys than those that it is asked for, and reports that there are more.
    is_wild: bool,
}

/// The server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server(Arc<Mutex<State>>);

/// Faults of a link.
#[derive(Debug, Default)]
struct Faults {
    cut: bool,
    /// One call in so many takes longer than its caller waits, before or after it was done.
    loses_one_in: u64,
    /// The manager dies after so many transactions more.
    crash_after: Option<u64>,
}

/// A manager's connection.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    server: Server,
    faults: Arc<Mutex<Faults>>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn with_seed(seed: u64) -> Self {
        let server = Self::default();
        server.lock().random = seed;
        server
    }

    pub(crate) fn link(&self) -> Link {
        Link { server: self.clone(), faults: Arc::default() }
    }

    /// Returns true if something was ever written under this key.
    pub(crate) fn was_written(&self, key: &str) -> bool {
        self.lock().ever.contains(key.as_bytes())
    }

    /// The keys with this beginning.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        let state = self.lock();
        let keys = state.values.keys().map(|key| String::from_utf8_lossy(key).into_owned());
        keys.filter(|key| key.starts_with(prefix)).collect()
    }

    /// Another client writes.
    pub(crate) fn put(&self, key: &str, value: &[u8]) {
        let request = api::PutRequest { key: key.into(), value: value.into(), lease: 0 };
        self.lock().apply(&Op::RequestPut(request));
    }

    /// It takes no more than so many bytes.
    pub(crate) fn set_quota(&self, bytes: u64, tells: bool) {
        let mut state = self.lock();
        (state.quota_bytes, state.tells_quota) = (Some(bytes), tells);
    }

    /// Other clients have so many bytes in use, whatever its quota.
    pub(crate) fn set_foreign(&self, bytes: u64) {
        let mut state = self.lock();
        state.foreign_bytes = bytes;
        state.revision += 1;
        state.grow();
    }

    /// Sets whether it keeps managers from defragmenting it.
    pub(crate) fn set_locked(&self, is_locked: bool) {
        self.lock().is_locked = is_locked;
    }

    /// It counts as a backup did, which was put in its place.
    pub(crate) fn set_back(&self, revision: i64) {
        self.lock().revision = revision;
    }

    /// It gives other keys than those that it is asked for.
    pub(crate) fn set_wild(&self) {
        self.lock().is_wild = true;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().is_full
    }

    /// Returns the number of bytes in use of its file.
    pub(crate) fn in_use_bytes(&self) -> u64 {
        self.lock().in_use_bytes()
    }

    /// Returns how often it was compacted, and defragmented.
    pub(crate) fn upkeep(&self) -> (u64, u64) {
        let state = self.lock();
        (state.compactions, state.defragmentations)
    }

    /// Returns its current revision.
    pub(crate) fn revision(&self) -> i64 {
        self.lock().revision
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap();
        let now = Instant::now();
        let ended: Vec<i64> =
            state.leases.iter().filter(|(_, (at, _))| *at <= now).map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|id| state.end(id));
        state
    }
}

impl State {
    /// A number below this.
    fn below(&mut self, end: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % end
    }

    fn end(&mut self, lease: i64) {
        self.leases.remove(&lease);
        self.remove(|_, value| value.lease != 0 && value.lease == lease);
    }

    /// Removes what is so; as with etcd that makes a revision if there is any.
    fn remove(&mut self, is_meant: impl Fn(&[u8], &Value) -> bool) {
        let gone = self.values.extract_if(.., |key, value| is_meant(key, value));
        let gone: Vec<u64> = gone.map(|(key, value)| len(&key, &value.value)).collect();
        if !gone.is_empty() {
            self.revision += 1;
            self.past.extend(gone.into_iter().map(|len| (self.revision, len + REVISION_LEN)));
        }
    }

    fn in_use_bytes(&self) -> u64 {
        let now: u64 = self.values.iter().map(|(key, value)| len(key, &value.value)).sum();
        now + self.past.iter().map(|(_, len)| len).sum::<u64>() + self.foreign_bytes
    }

    /// A file only grows by itself.
    fn grow(&mut self) {
        self.file_bytes = self.file_bytes.max(self.in_use_bytes());
    }

    /// Checks that it takes this many bytes more. As with etcd, a server that does not is full until that is
    /// taken back.
    fn takes(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.is_full |= self.quota_bytes.is_some_and(|quota| self.file_bytes + bytes > quota);
        if self.is_full { Err(StoreError::Full) } else { Ok(()) }
    }

    fn header(&self) -> Option<api::ResponseHeader> {
        Some(api::ResponseHeader {
            revision: self.revision,
            member_id: MEMBER,
            ..api::ResponseHeader::default()
        })
    }

    fn compact(&mut self, revision: i64) -> Result<(), StoreError> {
        assert!(revision <= self.revision, "{revision} is no revision yet: there are {}", self.revision);
        if revision <= self.compacted {
            return Err(StoreError::Compacted);
        }
        self.compacted = revision;
        self.compactions += 1;
        self.past.retain(|(ended, _)| *ended > revision);
        Ok(())
    }

    fn alarm(&mut self, request: &api::AlarmRequest) -> api::AlarmResponse {
        if request.action() == AlarmAction::Deactivate {
            let is_its_own = request.member_id == MEMBER && request.alarm() == api::AlarmType::Nospace;
            assert!(is_its_own, "managers take back no other alarm: {request:?}");
            self.is_full = false;
        }
        // One of another kind stands too.
        let alarms = [api::AlarmType::Corrupt, api::AlarmType::Nospace];
        let stand = alarms.into_iter().filter(|kind| *kind == api::AlarmType::Corrupt || self.is_full);
        let alarms = stand.map(|kind| api::AlarmMember { member_id: MEMBER, alarm: kind.into() }).collect();
        api::AlarmResponse { alarms }
    }

    fn holds(&self, compare: &api::Compare) -> bool {
        let value = self.values.get(&compare.key);
        match &compare.target_union {
            Some(TargetUnion::CreateRevision(revision)) => {
                value.map_or(0, |value| value.create_revision) == *revision
            }
            Some(TargetUnion::ModRevision(revision)) => {
                value.map_or(0, |value| value.mod_revision) == *revision
            }
            Some(TargetUnion::Value(wanted)) => value.is_some_and(|value| value.value == *wanted),
            other => panic!("managers do not compare {other:?}"),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::RequestPut(put) => {
                self.revision += 1;
                let created = self.values.get(&put.key).map(|value| value.create_revision);
                let create_revision = created.unwrap_or(self.revision);
                self.ever.insert(put.key.clone());
                let mod_revision = self.revision;
                let value =
                    Value { value: put.value.clone(), create_revision, mod_revision, lease: put.lease };
                if let Some(before) = self.values.insert(put.key.clone(), value) {
                    self.past.push((mod_revision, len(&put.key, &before.value)));
                }
                self.grow();
            }
            Op::RequestDeleteRange(delete) if delete.range_end.is_empty() => {
                self.remove(|key, _| key == delete.key);
            }
            Op::RequestDeleteRange(delete) => {
                self.remove(|key, _| key >= delete.key.as_slice() && key < delete.range_end.as_slice());
            }
            Op::RequestRange(_) => panic!("managers do not read in transactions"),
        }
    }

    fn range(&self, request: &api::RangeRequest) -> api::RangeResponse {
        let is_asked = |key: &Vec<u8>| {
            if request.range_end.is_empty() {
                *key == request.key
            } else {
                (self.is_wild || *key >= request.key) && *key < request.range_end
            }
        };
        let mut kvs: Vec<api::KeyValue> = self
            .values
            .iter()
            .filter(|(key, _)| is_asked(key))
            .map(|(key, value)| api::KeyValue {
                key: key.clone(),
                value: value.value.clone(),
                create_revision: value.create_revision,
                mod_revision: value.mod_revision,
                lease: value.lease,
                ..api::KeyValue::default()
            })
            .collect();
        let more = self.is_wild || kvs.len() > request.limit as usize;
        kvs.truncate(request.limit as usize);
        api::RangeResponse { header: self.header(), kvs, more }
    }
}

/// Returns the bytes that a key and its value take.
fn len(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + REVISION_LEN
}

impl Link {
    pub(crate) fn set_cut(&self, cut: bool) {
        self.faults.lock().unwrap().cut = cut;
    }

    pub(crate) fn lose_one_in(&self, calls: u64) {
        self.faults.lock().unwrap().loses_one_in = calls;
    }

    /// Nothing comes back after so many transactions more: the manager that asked is dead.
    pub(crate) fn crash_after(&self, transactions: u64) {
        self.faults.lock().unwrap().crash_after = Some(transactions);
    }

    async fn ask<T>(&self, act: impl FnOnce(&mut State) -> T) -> Result<T, StoreError> {
        let late = || StoreError::Etcd("it does not answer in time".into());
        let (cut, loses) = {
            let faults = self.faults.lock().unwrap();
            (faults.cut, faults.loses_one_in)
        };
        let (there, back, loses) = {
            let mut state = self.server.lock();
            let loses = loses > 0 && state.below(loses) == 0;
            (state.below(8), state.below(8), loses.then(|| state.below(2)))
        };
        tokio::time::sleep(Duration::from_millis(there)).await;
        if cut || loses == Some(0) {
            tokio::time::sleep(ANSWER_TIMEOUT).await;
            return Err(late());
        }
        let answer = act(&mut self.server.lock());
        tokio::time::sleep(Duration::from_millis(back)).await;
        if loses == Some(1) {
            tokio::time::sleep(ANSWER_TIMEOUT).await;
            return Err(late());
        }
        Ok(answer)
    }
}

impl Etcd for Link {
    async fn range(&self, request: api::RangeRequest) -> Result<api::RangeResponse, StoreError> {
        self.ask(|state| state.range(&request)).await
    }

    async fn txn(&self, request: api::TxnRequest) -> Result<api::TxnResponse, StoreError> {
        assert!(request.success.len() <= 128, "etcd takes 128 changes");
        assert!(prost::Message::encoded_len(&request) <= 3 << 19, "etcd takes 1.5 MiB");
        let ops = || request.success.iter().filter_map(|op| op.request.as_ref());
        let put_bytes = ops().filter_map(|op| match op {
            Op::RequestPut(put) => Some(len(&put.key, &put.value)),
            _ => None,
        });
        let put_bytes: u64 = put_bytes.sum();
        let answer = self.ask(|state| {
            // Keys can be removed from one that is full.
            if put_bytes > 0 {
                state.takes(put_bytes)?;
            }
            let succeeded = request.compare.iter().all(|compare| state.holds(compare));
            let done = if succeeded { &request.success } else { &request.failure };
            done.iter().filter_map(|op| op.request.as_ref()).for_each(|op| state.apply(op));
            Ok(api::TxnResponse { header: state.header(), succeeded, responses: Vec::new() })
        });
        let answer = answer.await.flatten();
        let dies = {
            let mut faults = self.faults.lock().unwrap();
            faults.crash_after = faults.crash_after.map(|left| left.saturating_sub(1));
            faults.crash_after == Some(0)
        };
        if dies {
            std::future::pending::<()>().await;
        }
        answer
    }

    async fn grant(&self, ttl_s: i64) -> Result<i64, StoreError> {
        let granted = self.ask(|state| {
            state.takes(0)?;
            state.last_lease += 1;
            let ttl = Duration::from_secs(ttl_s.unsigned_abs());
            let lease = state.last_lease;
            state.leases.insert(lease, (Instant::now() + ttl, ttl));
            Ok(lease)
        });
        granted.await.flatten()
    }

    async fn keep_alive(&self, lease: i64) -> Result<api::LeaseKeepAliveResponse, StoreError> {
        self.ask(|state| {
            let ttl = match state.leases.get_mut(&lease) {
                Some((ends_at, ttl)) => {
                    *ends_at = Instant::now() + *ttl;
                    ttl.as_secs() as i64
                }
                None => 0,
            };
            api::LeaseKeepAliveResponse { header: state.header(), id: lease, ttl }
        })
        .await
    }

    async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        self.ask(|state| state.end(lease)).await
    }

    async fn compact(&self, revision: i64, _until_free: bool) -> Result<(), StoreError> {
        self.ask(|state| state.compact(revision)).await.flatten()
    }

    async fn alarm(&self, request: api::AlarmRequest) -> Result<api::AlarmResponse, StoreError> {
        self.ask(|state| state.alarm(&request)).await
    }

    fn servers(&self) -> Vec<String> {
        vec!["etcd:1".into()]
    }

    async fn status(&self, _at: usize) -> Result<api::StatusResponse, StoreError> {
        self.ask(|state| api::StatusResponse {
            header: state.header(),
            version: "3.4.0".into(),
            db_size: state.file_bytes as i64,
            db_size_in_use: state.in_use_bytes() as i64,
            db_size_quota: state.quota_bytes.filter(|_| state.tells_quota).unwrap_or(0) as i64,
        })
        .await
    }

    async fn defragment(&self, _at: usize) -> Result<(), StoreError> {
        self.ask(|state| {
            if state.is_locked {
                return Err(StoreError::Etcd("permission denied".into()));
            }
            state.defragmentations += 1;
            state.file_bytes = state.in_use_bytes();
            Ok(())
        })
        .await
        .flatten()
    }
}
