//! The Polycast manager: lends paths to transfers (Republic section III-B).
//!
//! The machine [`polycast_protocol::leases::Leases`] lies behind one lock. Every agent has a session, a
//! stream in each direction; what an agent says goes into the machine at once, and what the machine answers
//! goes out over the sessions. `devices` tells switches what paths need. The manager is never on the way of
//! the data.
//!
//! ```no_run
//! # async fn example() -> Result<(), polycast_manager::ManagerError> {
//! let config = polycast_manager::ManagerConfig::load("manager.toml".as_ref())?;
//! let manager = polycast_manager::Manager::bind(config).await?;
//! println!("agents reach the manager at {}", manager.address());
//! manager.serve(async { let _ = tokio::signal::ctrl_c().await; }).await
//! # }
//! ```
#![warn(missing_docs)]

pub mod audit;
pub mod authority;
pub mod check;
mod config;
mod convert;
mod core;
mod devices;
mod door;
pub mod fabrics;
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod leader;
mod page;
mod policy;
mod racks;
mod scheduling;
mod service;
mod store;

pub use config::{Choose, EtcdConfig, ManagerConfig, OnDeviceFailure, WhenBusy};
pub use racks::{RackCounts, Racks, RacksError};
pub use scheduling::SchedulerSettings;

use crate::core::{Around, Core};
use audit::AuditLogs;
use authority::{Authority, AuthorityError, RENEW_AFTER};
use guard::Guard;
use leader::Role;
use policy::Policy;
use polycast_api::http::{Access, Token};
use polycast_api::manager::authority_server::AuthorityServer;
use polycast_api::manager::manager_server::ManagerServer;
use polycast_api::settings::SettingsError;
use polycast_net::seal::Secret;
use polycast_net::tls::{IdentityError, IdentityFiles, Security};
use serde_json::json;
use service::{Enrolment, Service};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::{Servers, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;

/// Time that calls in progress may take to end when the manager does.
const FAREWELL: Duration = Duration::from_secs(2);
/// Interval at which a connection without traffic is probed, and time that the other end may take to answer.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Interval at which the manager checks whether the policy has changed.
const POLICY_LOOK: Duration = Duration::from_secs(1);
/// Purpose of the secret with which managers seal the key of permits in etcd.
const KEPT: &str = "polycast 2026-11-28 key of permits in etcd";
/// Calls of one connection at a time: an agent has its session, and asks how things stand.
const STREAMS_MAX: u32 = 16;
/// Bytes of one message: an agent names all its paths when it joins.
const MESSAGE_LEN_MAX: usize = 16 << 20;

/// Bytes of a wish for a certificate, which comes from hosts that have shown nothing: a name, a token and a
/// key are shorter.
const ENROLMENT_LEN_MAX: usize = 16 << 10;

/// Reason why the manager does not run.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] SettingsError),
    /// It cannot prove its name.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Its authority cannot be used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// It has an authority of its own and another identity.
    #[error(
        "there is an authority of the manager's own and another identity: name either --ca, or --key-file or --tls-ca"
    )]
    TwoIdentities,
    /// The address cannot be listened on.
    #[error("the manager cannot listen on {address}: {reason}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Reason for the failure.
        reason: String,
    },
    /// The service broke down.
    #[error("the manager's service failed: {0}")]
    Serve(String),
}

/// A manager that listens.
#[derive(Debug)]
pub struct Manager {
    config: ManagerConfig,
    security: Option<Security>,
    authority: Option<Arc<Authority>>,
    guard: Arc<Guard>,
    listener: TcpListener,
    http: Option<(TcpListener, Access)>,
    address: SocketAddr,
}

impl Manager {
    /// Checks the settings and listens; agents that come wait until [`Manager::serve`] runs.
    ///
    /// # Errors
    /// The settings are wrong, or the port is in use.
    pub async fn bind(config: ManagerConfig) -> Result<Self, ManagerError> {
        config.check()?;
        let (authority, security) = match &config.ca {
            None => (None, config.identity().security_of_manager(&config.manager_name)?),
            Some(_) if config.identity() != IdentityFiles::default() => {
                return Err(ManagerError::TwoIdentities);
            }
            Some(folder) => {
                let authority = Arc::new(Authority::open_or_new(folder)?);
                let files = authority.certify_manager()?;
                let security = Security::files_or_nobody(files).map_err(IdentityError::from)?;
                (Some(authority), Some(security))
            }
        };
        let policy = config.policy.as_deref().map(Policy::load).transpose()?.unwrap_or_default();
        let audit = config.audit().map(|settings| {
            let wrong =
                |error: io::Error| SettingsError::Value { setting: "audit-log", reason: error.to_string() };
            AuditLogs::open(settings).map_err(wrong)
        });
        let guard = Guard::new(security.is_some(), config.permit_s, policy, audit.transpose()?);
        match &authority {
            // With several managers the one that leads learns what to sign with from the one before it.
            _ if !config.etcd.endpoints.is_empty() => {}
            Some(authority) => guard.sign_with(&authority.permit_seed()?),
            None => guard.sign_with(&Secret::fresh()),
        }
        let guard = Arc::new(guard);
        let refused = |address: SocketAddr, error: &io::Error| ManagerError::Listen {
            address,
            reason: match error.kind() {
                io::ErrorKind::AddrInUse => "the port is in use".into(),
                io::ErrorKind::AddrNotAvailable => "no interface of this machine has that address".into(),
                _ => error.to_string(),
            },
        };
        let refuse = |error: io::Error| refused(config.listen, &error);
        let listener = TcpListener::bind(config.listen).await.map_err(refuse)?;
        let address = listener.local_addr().map_err(refuse)?;
        let http = match config.http {
            None => None,
            Some(page) => {
                let token = config.view_token_file.as_deref().map(Token::read).transpose()?;
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                let listener = TcpListener::bind(page).await.map_err(|error| refused(page, &error))?;
                Some((listener, Access { token, names: vec![host] }))
            }
        };
        Ok(Manager { config, security, authority, guard, listener, http, address })
    }

    /// Returns the address where agents reach it; with the port that the system chose if the settings said 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of its page with metrics, if the settings have one.
    #[must_use]
    pub fn page(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.0.local_addr().ok()
    }

    /// Serves until `shutdown` is ready.
    ///
    /// # Errors
    /// The service broke down.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ManagerError> {
        let store = match self.config.etcd.endpoints.as_slice() {
            [] => None,
            endpoints => {
                let wrong = |error: StoreError| SettingsError::Value {
                    setting: "etcd.endpoints",
                    reason: error.to_string(),
                };
                let servers = Servers::new(endpoints, self.config.etcd.server()?).map_err(wrong)?;
                let seal = self.security.as_ref().and_then(|security| security.members_secret(KEPT));
                Some(Store::new(servers, &self.config.etcd.prefix).sealed_with(seal))
            }
        };
        let begins = || json!({ "manager": self.address.to_string(), "version": env!("CARGO_PKG_VERSION") });
        self.guard.note("begin", begins);
        let (role, roles) = watch::channel(Role::Follower(None));
        let advertised = self.config.etcd.advertise.clone().unwrap_or_else(|| self.address.to_string());
        let around = Around::secured(self.security.clone()).guarded(&self.guard);
        if let Some((listener, access)) = self.http {
            let page = Arc::new(page::Page::new(&roles, &advertised, &around, store.is_some()));
            tokio::spawn(polycast_api::http::serve(listener, page, access, std::future::pending()));
        }
        let (stop_server, server_stopped) = oneshot::channel::<()>();
        let manager = Service::new(roles.clone(), &self.config, around.clone());
        let incoming = door::open(self.listener, &self.config, self.security, &self.guard);
        let server = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .max_concurrent_streams(STREAMS_MAX)
            .add_service(InterceptedService::new(
                ManagerServer::new(manager).max_decoding_message_size(MESSAGE_LEN_MAX),
                service::known,
            ))
            .add_optional_service(self.authority.clone().map(|own| enrolment(own, &self.guard)))
            .serve_with_incoming_shutdown(incoming, async {
                // An end of the channel without a word is an end too.
                let _ = server_stopped.await;
            });
        tracing::info!(address = %self.address, "the manager listens");
        let mut server = std::pin::pin!(server);
        let mut shutdown = std::pin::pin!(shutdown);
        let served = tokio::select! {
            served = &mut server => Some(served),
            led = lead(&self.config, store.as_ref(), &advertised, &role, &around) => {
                led?;
                None
            }
            () = stand(store.as_ref(), &advertised, &roles, &around) => None,
            () = renew(self.authority.as_deref()) => None,
            () = follow_policy(self.config.policy.as_deref(), &self.guard, &role) => None,
            () = say_refusals(&self.guard) => None,
            () = &mut shutdown => None,
        };
        // First the core: with it the sessions end, for which the server would wait.
        if let Role::Leader(core) = &*role.borrow() {
            core.stop();
        }
        if let Some(store) = &store {
            store.resign(&advertised).await;
        }
        let _ = stop_server.send(());
        let served = match served {
            Some(served) => served,
            None => tokio::time::timeout(FAREWELL, &mut server).await.unwrap_or(Ok(())),
        };
        tracing::info!("the manager has ended");
        self.guard.note("end", || json!({ "manager": self.address.to_string() }));
        self.guard.close();
        served.map_err(|error| ManagerError::Serve(error.to_string()))
    }
}

/// The service of the manager's own authority.
fn enrolment(authority: Arc<Authority>, guard: &Arc<Guard>) -> AuthorityServer<Enrolment> {
    let service = AuthorityServer::new(Enrolment(authority, Arc::clone(guard)));
    service.max_decoding_message_size(ENROLMENT_LEN_MAX)
}

/// Keeps the manager's own certificate fresh, as long as the manager runs.
async fn renew(authority: Option<&Authority>) {
    let Some(authority) = authority else { return std::future::pending().await };
    loop {
        tokio::time::sleep(RENEW_AFTER / 2).await;
        if let Err(error) = authority.certify_manager() {
            tracing::warn!(%error, "the manager's certificate cannot be renewed");
        }
    }
}

/// Says what was refused within the second in which another one was, as long as the manager runs.
async fn say_refusals(guard: &Guard) {
    loop {
        tokio::time::sleep(guard::SAY).await;
        guard.say_refusals();
    }
}

/// Goes by the policy as its file says, as long as the manager runs.
async fn follow_policy(path: Option<&Path>, guard: &Guard, role: &watch::Sender<Role>) {
    let Some(path) = path else { return std::future::pending().await };
    let stamp = || {
        let file = std::fs::metadata(path).ok()?;
        Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
    };
    let mut seen = stamp();
    loop {
        tokio::time::sleep(POLICY_LOOK).await;
        // Where it is not there just now, it may be being replaced.
        let Some(now) = stamp().filter(|now| Some(*now) != seen) else { continue };
        seen = Some(now);
        match Policy::load(path) {
            Ok(policy) => {
                tracing::warn!(policy = %path.display(), "the policy has changed");
                guard.note("policy", || json!({ "file": path, "taken": true }));
                guard.take_policy(policy);
                if let Role::Leader(core) = &*role.borrow() {
                    core.enforce();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the policy has changed, and the one before it goes on");
                guard.note("policy", || json!({ "file": path, "taken": false, "reason": error.to_string() }));
            }
        }
    }
}

/// Runs a manager until `shutdown` is ready.
///
/// # Errors
/// The settings are wrong, the port is in use, or the service broke down.
pub async fn run(
    config: ManagerConfig,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ManagerError> {
    Manager::bind(config).await?.serve(shutdown).await
}

/// Shows this manager to the one that leads, if there can be several, as long as it runs.
async fn stand(store: Option<&Store>, advertised: &str, role: &watch::Receiver<Role>, around: &Around) {
    match store {
        None => std::future::pending().await,
        Some(store) => leader::standbys::stand(store, advertised, role, &around.lookout()).await,
    }
}

/// Leads, alone or whenever this manager is the one that does; ends only with an error.
async fn lead(
    config: &ManagerConfig,
    store: Option<&Store>,
    advertised: &str,
    role: &watch::Sender<Role>,
    around: &Around,
) -> Result<(), SettingsError> {
    match store {
        None => {
            let (core, news) = Core::new(config, around)?;
            let core = Arc::new(core);
            role.send_replace(Role::Leader(Arc::clone(&core)));
            core.keep_time(news).await;
        }
        Some(store) => leader::compete(config, store, advertised, role, around).await,
    }
    Ok(())
}
