//! etcd, as far as the managers use it: who leads, and the leader's state.
//!
//! The leader holds a key that lives as long as a lease which it keeps alive. Whatever it writes is written only if
//! that key is still its own, in the same transaction: one that has been superseded without noticing changes nothing.

use polycast_protocol::leases::{Record, RecordKey};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// Generated code of etcd's API.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod api {
    tonic::include_proto!("etcdserverpb");
}

use api::compare::{CompareResult, CompareTarget, TargetUnion};
use api::kv_client::KvClient;
use api::lease_client::LeaseClient;
use api::request_op::Request as Op;

/// How long a server of etcd may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1_000);
/// Changes in one transaction; etcd takes 128 unless it is told otherwise.
const CHANGES_MAX: usize = 100;
/// Records read at a time.
const READ_MAX: i64 = 1_000;

/// Why etcd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached, or refuses.
    #[error("etcd: {0}")]
    Etcd(String),
    /// The lease has ended, or another manager leads.
    #[error("another manager may lead by now")]
    Superseded,
    /// It cannot be asked: the settings name it wrongly.
    #[error("'{address}': {reason}")]
    Address {
        /// As the settings say.
        address: String,
        /// Why.
        reason: String,
    },
    /// What is stored is not ours.
    #[error("what etcd holds under '{key}' is not a record of this version: {reason}")]
    Record {
        /// The key.
        key: String,
        /// Why.
        reason: String,
    },
}

impl From<Status> for StoreError {
    fn from(status: Status) -> Self {
        StoreError::Etcd(polycast_api::error::innermost(&status))
    }
}

/// The connections to etcd.
#[derive(Debug)]
pub struct Store {
    /// To each of its servers; all of them give the same answers.
    channels: Vec<Channel>,
    /// The one that answered last, modulo how many there are.
    at: AtomicUsize,
    prefix: String,
}

/// That we lead.
#[derive(Clone, Copy, Debug)]
pub struct Mandate {
    /// The lease that the leader's key lives by.
    pub lease: i64,
    /// When the key was made, in etcd's count.
    revision: i64,
}

impl Store {
    /// Connections to these; nothing is sent yet. Needs a tokio runtime around it.
    pub fn new(endpoints: &[String], prefix: &str) -> Result<Self, StoreError> {
        let channel = |address: &String| {
            let endpoint = Endpoint::from_shared(format!("http://{address}"));
            let wrong = |error: tonic::transport::Error| StoreError::Address {
                address: address.clone(),
                reason: polycast_api::error::innermost(&error),
            };
            let endpoint = endpoint.map_err(wrong)?;
            Ok::<_, StoreError>(endpoint.connect_timeout(ANSWER_TIMEOUT).tcp_nodelay(true).connect_lazy())
        };
        let channels = endpoints.iter().map(channel).collect::<Result<_, _>>()?;
        Ok(Store { channels, at: AtomicUsize::new(0), prefix: prefix.trim_end_matches('/').to_string() })
    }

    /// Asks one server after the other until one answers. Whatever we ask can be asked twice.
    async fn ask<T, F>(&self, call: impl Fn(Channel) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut error = StoreError::Etcd("no server of it is named".into());
        for _ in &self.channels {
            let at = self.at.load(Ordering::Relaxed);
            let channel = self.channels[at % self.channels.len()].clone();
            match tokio::time::timeout(ANSWER_TIMEOUT, call(channel)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => error = status.into(),
                Err(_) => error = StoreError::Etcd("it does not answer in time".into()),
            }
            self.at.store(at.wrapping_add(1), Ordering::Relaxed);
        }
        Err(error)
    }

    async fn range(&self, request: api::RangeRequest) -> Result<api::RangeResponse, StoreError> {
        self.ask(|channel| {
            let request = request.clone();
            async move { KvClient::new(channel).range(request).await }
        })
        .await
    }

    async fn txn(&self, request: api::TxnRequest) -> Result<api::TxnResponse, StoreError> {
        self.ask(|channel| {
            let request = request.clone();
            async move { KvClient::new(channel).txn(request).await }
        })
        .await
    }

    fn leader_key(&self) -> Vec<u8> {
        format!("{}/leader", self.prefix).into_bytes()
    }

    fn state_prefix(&self) -> String {
        format!("{}/state/", self.prefix)
    }

    /// Who leads, by the address that it is reached at.
    pub async fn leader(&self) -> Result<Option<String>, StoreError> {
        let request = api::RangeRequest { key: self.leader_key(), range_end: Vec::new(), limit: 1 };
        let found = self.range(request).await?.kvs.into_iter().next();
        Ok(found.map(|kv| String::from_utf8_lossy(&kv.value).into_owned()))
    }

    /// Tries to become the leader; gives `None` if there is one.
    pub async fn campaign(&self, address: &str, ttl_s: u64) -> Result<Option<Mandate>, StoreError> {
        let ttl = i64::try_from(ttl_s).unwrap_or(i64::MAX);
        let request = api::LeaseGrantRequest { ttl, id: 0 };
        let granted =
            self.ask(|channel| async move { LeaseClient::new(channel).lease_grant(request).await }).await?;
        let lease = granted.id;
        let absent = self.leader_is(0);
        let put = api::PutRequest { key: self.leader_key(), value: address.as_bytes().to_vec(), lease };
        let txn = api::TxnRequest {
            compare: vec![absent],
            success: vec![api::RequestOp { request: Some(Op::RequestPut(put)) }],
            failure: Vec::new(),
        };
        let outcome = self.txn(txn).await?;
        if !outcome.succeeded {
            self.revoke(lease).await;
            return Ok(None);
        }
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
    pub async fn keep_alive(&self, mandate: Mandate) -> Result<(), StoreError> {
        let request = api::LeaseKeepAliveRequest { id: mandate.lease };
        let answers = self.ask(|channel| async move {
            LeaseClient::new(channel).lease_keep_alive(tokio_stream::once(request)).await
        });
        let mut answers = answers.await?;
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, answers.next()).await;
        match answer {
            Ok(Some(Ok(answer))) if answer.ttl > 0 => Ok(()),
            Ok(Some(Ok(_))) => Err(StoreError::Superseded),
            Ok(Some(Err(status))) => Err(status.into()),
            Ok(None) | Err(_) => Err(StoreError::Etcd("it does not answer".into())),
        }
    }

    /// Ends a lease, and with it the leadership. One that cannot be ended ends by itself.
    pub async fn revoke(&self, lease: i64) {
        let request = api::LeaseRevokeRequest { id: lease };
        let _ =
            self.ask(|channel| async move { LeaseClient::new(channel).lease_revoke(request).await }).await;
    }

    /// Ends the leadership of the manager at this address, if it leads, so that another one takes over at once.
    pub async fn resign(&self, address: &str) {
        let is_ours = api::Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Value.into(),
            key: self.leader_key(),
            target_union: Some(TargetUnion::Value(address.as_bytes().to_vec())),
        };
        let delete = api::DeleteRangeRequest { key: self.leader_key(), range_end: Vec::new() };
        let txn = api::TxnRequest {
            compare: vec![is_ours],
            success: vec![api::RequestOp { request: Some(Op::RequestDeleteRange(delete)) }],
            failure: Vec::new(),
        };
        // Otherwise the lease ends by itself.
        let _ = self.txn(txn).await;
    }

    /// All records of the state.
    pub async fn load(&self) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        let prefix = self.state_prefix().into_bytes();
        let mut end = prefix.clone();
        // The next key after all that begin with the prefix: it ends with '/', which is not the last byte there is.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let mut key = prefix;
        loop {
            let request = api::RangeRequest { key: key.clone(), range_end: end.clone(), limit: READ_MAX };
            let response = self.range(request).await?;
            for kv in &response.kvs {
                records.push(serde_json::from_slice(&kv.value).map_err(|error| StoreError::Record {
                    key: String::from_utf8_lossy(&kv.key).into_owned(),
                    reason: error.to_string(),
                })?);
            }
            match response.kvs.last() {
                Some(last) if response.more => {
                    key = last.key.clone();
                    key.push(0);
                }
                _ => return Ok(records),
            }
        }
    }

    /// Writes changes of the state, if we still lead.
    pub async fn write(
        &self,
        mandate: Mandate,
        changes: &[(RecordKey, Option<Record>)],
    ) -> Result<(), StoreError> {
        for part in changes.chunks(CHANGES_MAX) {
            let ops = part.iter().map(|(key, record)| self.change(key, record.as_ref()));
            let txn = api::TxnRequest {
                compare: vec![self.leader_is(mandate.revision)],
                success: ops.collect::<Result<_, _>>()?,
                failure: Vec::new(),
            };
            if !self.txn(txn).await?.succeeded {
                return Err(StoreError::Superseded);
            }
        }
        Ok(())
    }

    fn change(&self, key: &RecordKey, record: Option<&Record>) -> Result<api::RequestOp, StoreError> {
        let key = format!("{}{key}", self.state_prefix());
        let request = match record {
            None => Op::RequestDeleteRange(api::DeleteRangeRequest {
                key: key.into_bytes(),
                range_end: Vec::new(),
            }),
            Some(record) => {
                let wrong = |error: serde_json::Error| StoreError::Record {
                    key: key.clone(),
                    reason: error.to_string(),
                };
                let value = serde_json::to_vec(record).map_err(wrong)?;
                Op::RequestPut(api::PutRequest { key: key.into_bytes(), value, lease: 0 })
            }
        };
        Ok(api::RequestOp { request: Some(request) })
    }
}

#[cfg(test)]
#[path = "../tests/common/etcd.rs"]
#[allow(dead_code, reason = "other tests need all of it")]
mod etcd;

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_protocol::leases::AgentKey;

    fn member(name: &str) -> (RecordKey, Option<Record>) {
        let agent = AgentKey { name: name.into(), incarnation: 7 };
        let record =
            Record::Member { agent, host: polycast_planning::HostId(0), address: ([10, 0, 0, 1], 1) };
        (RecordKey::Member(name.into()), Some(record))
    }

    /// One that leads no more without knowing it writes nothing, and so it tells nobody anything.
    #[tokio::test]
    async fn whoever_has_been_superseded_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let Some((_etcd, client)) = etcd::start(folder.path().to_str().unwrap()) else { return };
        let store = Store::new(&["127.0.0.1:1".into(), client], "/test/").unwrap();
        let begun = std::time::Instant::now();
        while store.leader().await.is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "etcd does not come up");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(store.leader().await.unwrap(), None);
        let first = store.campaign("one:1", 60).await.unwrap().expect("nobody leads");
        assert!(store.campaign("two:1", 60).await.unwrap().is_none(), "there is a leader");
        assert_eq!(store.leader().await.unwrap().as_deref(), Some("one:1"));
        let many: Vec<_> = (0..250).map(|number| member(&format!("host-{number:03}"))).collect();
        store.write(first, &many).await.unwrap();
        assert_eq!(store.load().await.unwrap().len(), 250);
        // Its lease has ended.
        store.revoke(first.lease).await;
        let second = store.campaign("two:1", 60).await.unwrap().expect("nobody leads any more");
        let late = store.write(first, &[member("late")]).await;
        assert!(matches!(late, Err(StoreError::Superseded)), "{late:?}");
        assert!(matches!(store.keep_alive(first).await, Err(StoreError::Superseded)));
        store.keep_alive(second).await.unwrap();
        let (key, _) = member("host-000");
        store.write(second, &[(key, None), member("new")]).await.unwrap();
        let names: Vec<String> = store
            .load()
            .await
            .unwrap()
            .into_iter()
            .map(|record| match record {
                Record::Member { agent, .. } => agent.name,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((names.len(), names[0].as_str()), (250, "host-001"), "the first is gone");
        assert!(names.contains(&"new".to_string()) && !names.contains(&"late".to_string()));
        store.resign("two:1").await;
        assert_eq!(store.leader().await.unwrap(), None);
    }
}
