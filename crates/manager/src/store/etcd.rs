//! etcd's servers over gRPC.

use super::api::kv_client::KvClient;
use super::api::lease_client::LeaseClient;
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
    /// To each of them; all of them give the same answers.
    channels: Vec<Channel>,
    /// The one that answered last, modulo how many there are.
    at: AtomicUsize,
    /// How long one may take to answer.
    within: Duration,
}

impl Servers {
    /// Connections to these, over TLS where there is a `server`; nothing is sent yet. Needs a tokio runtime around it.
    pub(crate) fn new(endpoints: &[String], server: Option<ForeignServer>) -> Result<Self, StoreError> {
        Self::answering_within(endpoints, server, ANSWER_TIMEOUT)
    }

    /// The same, with servers that may take so long to answer.
    pub(super) fn answering_within(
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
            let Some(server) = server.clone() else { return Ok(endpoint.connect_lazy()) };
            let address = address.clone();
            let connector = tower::service_fn(move |_| {
                let (server, address) = (server.clone(), address.clone());
                async move { server.connect(&address).await.map(TokioIo::new) }
            });
            Ok::<_, StoreError>(endpoint.connect_with_connector_lazy(connector))
        };
        let channels = endpoints.iter().map(channel).collect::<Result<_, _>>()?;
        Ok(Servers { channels, at: AtomicUsize::new(0), within })
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
            match tokio::time::timeout(self.within, call(channel)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => error = status.into(),
                Err(_) => error = StoreError::Etcd("it does not answer in time".into()),
            }
            self.at.store(at.wrapping_add(1), Ordering::Relaxed);
        }
        Err(error)
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

    async fn keep_alive(&self, lease: i64) -> Result<i64, StoreError> {
        let request = api::LeaseKeepAliveRequest { id: lease };
        let answers = self.ask(|channel| async move {
            LeaseClient::new(channel).lease_keep_alive(tokio_stream::once(request)).await
        });
        let mut answers = answers.await?;
        match tokio::time::timeout(self.within, answers.next()).await {
            Ok(Some(Ok(answer))) => Ok(answer.ttl),
            Ok(Some(Err(status))) => Err(status.into()),
            Ok(None) | Err(_) => Err(StoreError::Etcd("it does not answer".into())),
        }
    }

    async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        let request = api::LeaseRevokeRequest { id: lease };
        let asked = self.ask(|channel| async move { LeaseClient::new(channel).lease_revoke(request).await });
        asked.await.map(drop)
    }
}
