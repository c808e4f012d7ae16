//! Servers of others: how their files are read, and how an agent's host stands in for them.
//!
//! A [`Gateway`] is a client of the agent on its host. A program that asks it for a file of the hub gets
//! bytes that the agent has verified: from its store, from another agent, or from the hub, which one agent
//! reads then.

mod answers;
mod coming;
mod counts;
mod door;
mod files;
mod hub;
pub mod origin;
mod place;
pub mod pull;
mod trouble;
mod upstream;

pub use counts::Counts;

use axum::Router;
use hub::Hub;
use polycast_api::settings::HubConfig;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The hub endpoint of a host.
pub struct Gateway {
    listener: TcpListener,
    address: SocketAddr,
    hub: Arc<Hub>,
}

impl Gateway {
    /// Listens for clients of the hub; the agent with this socket need not serve yet.
    ///
    /// # Errors
    /// The address cannot be used, or a setting is wrong.
    pub async fn bind(config: &HubConfig, agent: &Path) -> io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        let hub = Arc::new(Hub::new(config, agent).map_err(io::Error::other)?);
        Ok(Gateway { listener, address, hub })
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts of what it has answered.
    #[must_use]
    pub fn counts(&self) -> Arc<Counts> {
        self.hub.counts()
    }

    /// Answers until `shutdown` is ready.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send) {
        let pages = Router::new().fallback(hub::answer).with_state(self.hub);
        let service = pages.into_make_service_with_connect_info::<door::Visitor>();
        let served = axum::serve(door::Door::new(self.listener), service).into_future();
        tokio::select! {
            ended = served => if let Err(error) = ended {
                tracing::warn!(%error, "the hub endpoint has ended");
            },
            () = shutdown => {}
        }
    }
}
