//! Connections to etcd's servers over gRPC.

use super::api::kv_client::KvClient;
use super::api::lease_client::LeaseClient;
use super::api::maintenance_client::MaintenanceClient;
use super::room::LONG_TIMEOUT;
use super::{ANSWER_TIMEOUT, Etcd, StoreError, api};
use hyper_util::rt::TokioIo;
use polycast_net::tls::ForeignServer;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// The connections to etcd's servers.
#[derive(Debug)]
pub(crate) struct Servers {
    /// To each of them, by its address; all of them give the same answers.
    channels: Vec<(String, Channel)>,
    /// The one that answered last, modulo how many there are.
    at: AtomicUsize,
    /// Time that a server may take to answer.
    within: Duration,
}

impl Servers {
    /// Connections to these, over TLS where there is a `server`; nothing is sent yet. Needs a tokio runtime
    /// around it.
    pub(crate) fn new(endpoints: &[String], server: Option<ForeignServer>) -> Result<Self, StoreError> {
        Self::answering_within(endpoints, server, ANSWER_TIMEOUT)
    }

    /// The same, with servers that may take so long to answer.
    pub(crate) fn answering_within(
        endpoints: &[String],
        server: Option<ForeignServer>,
        within: Duration,
    ) -> Result<Self, StoreError> {
        let channel = |address: &String| {
            // With TLS too: the connection is made beneath.
            let endpoint = Endpoint::from_shared(format!("http://{address}"));
            let wrong = |error: tonic::transport::Error| StoreError::Address {
                address: address.clone(),
                reason: polycast_api::error::innermost(&error),
            };
            let endpoint = endpoint.map_err(wrong)?;
            let endpoint = endpoint.connect_timeout(within).tcp_nodelay(true);
            let address = address.clone();
            let Some(server) = server.clone() else { return Ok((address, endpoint.connect_lazy())) };
            let reached_at = address.clone();
            let connector = tower::service_fn(move |_| {
                let (server, address) = (server.clone(), reached_at.clone());
                async move { server.connect(&address).await.map(TokioIo::new) }
            });
            Ok::<_, StoreError>((address, endpoint.connect_with_connector_lazy(connector)))
        };
        let channels = endpoints.iter().map(channel).collect::<Result<_, _>>()?;
        Ok(Servers { channels, at: AtomicUsize::new(0), within })
    }

    /// Asks one server after the other until one answers. Whatever we ask can be asked twice.
    async fn ask<T, F>(&self, call: impl Fn(Channel) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.ask_within(self.within, call).await
    }

    async fn ask_within<T, F>(&self, within: Duration, call: impl Fn(Channel) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut error = StoreError::Etcd("no server of it is named".into());
        for _ in &self.channels {
            let at = self.at.load(Ordering::Relaxed);
            let (_, channel) = self.channels[at % self.channels.len()].clone();
            match answer_of(within, call(channel)).await {
                Ok(answer) => return Ok(answer),
                Err(why) => error = why,
            }
            self.at.store(at.wrapping_add(1), Ordering::Relaxed);
        }
        Err(error)
    }

    /// The connection to the server at this place.
    fn maintenance(&self, at: usize) -> Result<MaintenanceClient<Channel>, StoreError> {
        let missing = || StoreError::Etcd("no such server of it is named".into());
        let (_, channel) = self.channels.get(at).ok_or_else(missing)?;
        Ok(MaintenanceClient::new(channel.clone()))
    }
}

async fn answer_of<T>(
    within: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(within, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(StoreError::Etcd("it does not answer in time".into())),
    }
}

impl Etcd for Servers {
    async fn range(&self, request: api::RangeRequest) -> Result<api::RangeResponse, StoreError> {
        self.ask(|channel| {
            let request = request.clone();
            async move { KvClient::new(channel).max_decoding_message_size(usize::MAX).range(request).await }
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

    async fn grant(&self, ttl_s: i64) -> Result<i64, StoreError> {
        let request = api::LeaseGrantRequest { ttl: ttl_s, id: 0 };
        let granted = self.ask(|channel| async move { LeaseClient::new(channel).lease_grant(request).await });
        Ok(granted.await?.id)
    }

    async fn keep_alive(&self, lease: i64) -> Result<api::LeaseKeepAliveResponse, StoreError> {
        let request = api::LeaseKeepAliveRequest { id: lease };
        let answers = self.ask(|channel| async move {
            LeaseClient::new(channel).lease_keep_alive(tokio_stream::once(request)).await
        });
        let mut answers = answers.await?;
        match tokio::time::timeout(self.within, answers.next()).await {
            Ok(Some(Ok(answer))) => Ok(answer),
            Ok(Some(Err(status))) => Err(status.into()),
            Ok(None) | Err(_) => Err(StoreError::Etcd("it does not answer".into())),
        }
    }

    async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        let request = api::LeaseRevokeRequest { id: lease };
        let asked = self.ask(|channel| async move { LeaseClient::new(channel).lease_revoke(request).await });
        asked.await.map(drop)
    }

    async fn compact(&self, revision: i64, until_free: bool) -> Result<(), StoreError> {
        let request = api::CompactionRequest { revision, physical: until_free };
        let within = if until_free { self.within.max(LONG_TIMEOUT) } else { self.within };
        let compacted =
            self.ask_within(within, |channel| async move { KvClient::new(channel).compact(request).await });
        compacted.await.map(drop)
    }

    async fn alarm(&self, request: api::AlarmRequest) -> Result<api::AlarmResponse, StoreError> {
        self.ask(|channel| async move { MaintenanceClient::new(channel).alarm(request).await }).await
    }

    fn servers(&self) -> Vec<String> {
        self.channels.iter().map(|(address, _)| address.clone()).collect()
    }

    async fn status(&self, at: usize) -> Result<api::StatusResponse, StoreError> {
        let mut server = self.maintenance(at)?;
        answer_of(self.within, server.status(api::StatusRequest {})).await
    }

    async fn defragment(&self, at: usize) -> Result<(), StoreError> {
        let mut server = self.maintenance(at)?;
        let within = self.within.max(LONG_TIMEOUT);
        answer_of(within, server.defragment(api::DefragmentRequest {})).await.map(drop)
    }
}
