//! Servers of others: how their files are read, and how an agent's host stands in for them.
//!
//! A [`Gateway`] is a client of the agent on its host. A program that asks it for a file of the hub gets
//! bytes that the agent has verified: from its store, from another agent, or from the hub, which one agent
//! reads then.

mod answers;
mod asked;
mod coming;
mod counts;
mod door;
mod files;
mod hub;
mod images;
pub mod origin;
mod parts;
mod place;
pub mod pull;
mod scope;
mod seal;
mod trouble;
mod upstream;
mod xet;

pub use counts::Counts;
pub use images::pull::{Image, ImagePuller, PulledBlob};
pub use images::registry_at;

use axum::Router;
use axum::routing::any;
use hub::Hub;
use images::Images;
use polycast_api::settings::{HubConfig, OciConfig};
use scope::Scope;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::net::TcpListener;

/// An endpoint of a host.
pub struct Gateway {
    listener: TcpListener,
    address: SocketAddr,
    pages: Router,
    agent: PathBuf,
    began: SystemTime,
}

impl Gateway {
    /// Listens for clients of the hub, and of ModelScope; the agent with this socket need not serve yet.
    ///
    /// # Errors
    /// The address cannot be used, or a setting is wrong.
    pub async fn of_hub(config: &HubConfig, agent: &Path, counts: Arc<Counts>) -> io::Result<Self> {
        let scope = Arc::new(Scope::new(config, agent, Arc::clone(&counts))?);
        let hub = Arc::new(Hub::new(config, agent, counts)?);
        let scope = Router::new().route("/ms/{*path}", any(scope::answer)).with_state(scope);
        Self::bind(config.listen, agent, scope.merge(Router::new().fallback(hub::answer).with_state(hub)))
            .await
    }

    /// Listens for container runtimes, as a mirror of registries.
    ///
    /// # Errors
    /// The address cannot be used, or a setting is wrong.
    pub async fn of_images(config: &OciConfig, agent: &Path, counts: Arc<Counts>) -> io::Result<Self> {
        let images = Arc::new(Images::new(config, agent, counts).map_err(io::Error::other)?);
        Self::bind(config.listen, agent, Router::new().fallback(images::answer).with_state(images)).await
    }

    async fn bind(listen: SocketAddr, agent: &Path, pages: Router) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        Ok(Gateway { listener, address, pages, agent: agent.to_path_buf(), began: SystemTime::now() })
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown` is ready.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send) {
        let (agent, began) = (self.agent, self.began);
        tokio::spawn(async move { parts::remove_left(&agent, began).await });
        let service = self.pages.into_make_service_with_connect_info::<door::Visitor>();
        let served = axum::serve(door::Door::new(self.listener), service).into_future();
        tokio::select! {
            ended = served => if let Err(error) = ended {
                tracing::warn!(%error, "an endpoint has ended");
            },
            () = shutdown => {}
        }
    }
}
