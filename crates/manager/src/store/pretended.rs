//! An etcd in memory and in tokio's time, as far as managers use one: keys, transactions, leases that end. Every manager has a
//! link to it of its own, which can be slow, cut, or lose answers.

use super::{ANSWER_TIMEOUT, Etcd, StoreError, api};
use api::compare::TargetUnion;
use api::request_op::Request as Op;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

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
    /// When each lease ends, and how long it lives.
    leases: BTreeMap<i64, (Instant, Duration)>,
    last_lease: i64,
    /// Every key that ever was.
    ever: BTreeSet<Vec<u8>>,
    random: u64,
}

/// The server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server(Arc<Mutex<State>>);

/// What is wrong with a link.
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

    /// Whether something was ever written under this key.
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
        self.values.retain(|_, value| value.lease == 0 || value.lease != lease);
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
                self.values.insert(put.key.clone(), value);
            }
            Op::RequestDeleteRange(delete) if delete.range_end.is_empty() => {
                self.values.remove(&delete.key);
            }
            Op::RequestDeleteRange(delete) => {
                self.values.retain(|key, _| *key < delete.key || *key >= delete.range_end);
            }
            Op::RequestRange(_) => panic!("managers do not read in transactions"),
        }
    }

    fn range(&self, request: &api::RangeRequest) -> api::RangeResponse {
        let is_asked = |key: &Vec<u8>| {
            if request.range_end.is_empty() {
                *key == request.key
            } else {
                *key >= request.key && *key < request.range_end
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
        let more = kvs.len() > request.limit as usize;
        kvs.truncate(request.limit as usize);
        api::RangeResponse { kvs, more }
    }
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
        let answer = self.ask(|state| {
            let succeeded = request.compare.iter().all(|compare| state.holds(compare));
            if succeeded {
                request.success.iter().filter_map(|op| op.request.as_ref()).for_each(|op| state.apply(op));
            }
            let header =
                Some(api::ResponseHeader { revision: state.revision, ..api::ResponseHeader::default() });
            api::TxnResponse { header, succeeded, responses: Vec::new() }
        });
        let answer = answer.await;
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
        self.ask(|state| {
            state.last_lease += 1;
            let ttl = Duration::from_secs(ttl_s.unsigned_abs());
            let lease = state.last_lease;
            state.leases.insert(lease, (Instant::now() + ttl, ttl));
            lease
        })
        .await
    }

    async fn keep_alive(&self, lease: i64) -> Result<i64, StoreError> {
        self.ask(|state| match state.leases.get_mut(&lease) {
            Some((ends_at, ttl)) => {
                *ends_at = Instant::now() + *ttl;
                ttl.as_secs() as i64
            }
            None => 0,
        })
        .await
    }

    async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        self.ask(|state| state.end(lease)).await
    }
}
